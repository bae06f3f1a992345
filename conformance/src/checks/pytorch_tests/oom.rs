//! Out of memory: the message, the retry, and the notification.

use parkade::device::DeviceBackend;
use parkade::trace::TraceAction;
use parkade::units::{Bytes, MIB, StreamId};

use super::support::{Mode, ensure, fill, holds, same, twice, with_capacity};
use crate::backend::{AnyBackend, Needs};
use crate::scripted_allocator::Stage;
use crate::suite::{Effort, Entry, Evidence, Verdict};

const GIB: u64 = 1 << 30;
/// More than any device has: the tests' 2^40 elements of four bytes.
const FAR_TOO_MUCH: Bytes = Bytes(4 << 40);

pub(super) fn entries() -> Vec<Entry> {
    let mut entries = Vec::new();
    let says = "a huge request's error names its size, an absurd one does not reach the device, and neither affects live tensors";
    entries.extend(twice("test_out_of_memory", says, out_of_memory));
    let says = "a request for the second half of memory is refused, and served once the first half is freed";
    entries.extend(twice("test_out_of_memory_retry", says, retry));
    let says = "a request larger than the device ends in out of memory";
    entries.extend(twice("test_raises_oom", says, |backend: &AnyBackend, mode, _: &Effort| raises(backend, mode.settings())));
    let says = "the same with a maximum split size, which takes another path through the search";
    entries.extend(twice("test_raises_oom_max_split_size_mb_setting", says, |backend: &AnyBackend, mode: Mode, _: &Effort| {
        raises(backend, &mode.with("max_split_size_mb:1024"))
    }));
    let says = "the observer is told of a failed request";
    entries.extend(twice("test_notifies_oom", says, notifies));
    entries
}

fn out_of_memory(backend: &AnyBackend, mode: Mode, _: &Effort) -> Verdict {
    let mut stage = Stage::new(backend, &Needs::default(), mode.settings(), None)?;
    let tensor = Bytes(4096);
    stage.alloc("tensor", tensor)?.served()?;
    fill(&stage, "tensor", tensor, 1, StreamId::DEFAULT)?;
    let mut text = String::new();
    let refusal = stage.alloc("huge", Bytes(800_000_000 * GIB))?.refusal()?;
    let index = stage.core().device().index();
    let expected = format!("Tried to allocate 800000000.00 GiB. GPU {index} has a total capacity of");
    ensure(refusal.contains(&expected), || format!("the message is: {refusal}"))?;
    text.push_str("Tried to allocate 800000000.00 GiB\n");
    let beyond = match stage.core().allocate(Bytes(8_000_000_000 * GIB), StreamId::DEFAULT) {
        Ok(_) => "the request was served".to_owned(),
        Err(error) => error.to_string(),
    };
    ensure(beyond.contains("Tried to allocate more than 1EB memory"), || format!("the message is: {beyond}"))?;
    text.push_str(&beyond);
    let address = stage.address("tensor")?;
    ensure(holds(&stage, address, 4096, 1)?, || "the tensor's contents changed".to_owned())?;
    stage.finish()?;
    Ok(Evidence { text, operations: 3, ..Evidence::default() })
}

/// The test's device has less than its total, because of the driver's context; here each half is a page larger instead.
fn retry(backend: &AnyBackend, mode: Mode, _: &Effort) -> Verdict {
    let mut stage = Stage::new(backend, &with_capacity(Bytes(GIB)), mode.settings(), None)?;
    let half = Bytes(GIB / 2 + 2 * MIB);
    stage.alloc("a", half)?.served()?;
    let refusal = stage.alloc("b", half)?.refusal()?;
    ensure(refusal.contains("Tried to allocate"), || format!("the message is: {refusal}"))?;
    same("refusals", (stage.stats().num_ooms, stage.stats().num_alloc_retries), (1, 1))?;
    stage.free("a")?;
    stage.alloc("b", half)?.served()?;
    same("refusals at the end", stage.stats().num_ooms, 1)?;
    let text = stage.figures() + &stage.picture();
    stage.finish()?;
    Ok(Evidence { text, operations: 4, ..Evidence::default() })
}

fn raises(backend: &AnyBackend, settings: &str) -> Verdict {
    let mut stage = Stage::new(backend, &Needs::default(), settings, None)?;
    stage.alloc("all", FAR_TOO_MUCH)?.refusal()?;
    same("refusals", stage.stats().num_ooms, 1)?;
    let text = stage.figures();
    stage.finish()?;
    Ok(Evidence { text, operations: 1, ..Evidence::default() })
}

fn notifies(backend: &AnyBackend, mode: Mode, _: &Effort) -> Verdict {
    let mut stage = Stage::new(backend, &Needs::default(), mode.settings(), None)?;
    stage.alloc("all", FAR_TOO_MUCH)?.refusal()?;
    let told: Vec<_> = stage.trace().iter().filter(|entry| entry.action == TraceAction::Oom).map(|entry| entry.size).collect();
    same("what the observer was told of", told, vec![FAR_TOO_MUCH.get()])?;
    stage.finish()?;
    Ok(Evidence { text: format!("oom of {FAR_TOO_MUCH} bytes"), operations: 1, ..Evidence::default() })
}
