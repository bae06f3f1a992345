//! Tests the limits of memory: running out of memory (the message, the retry and the notification), the value and the
//! effect of the memory fraction, and settings that change while a program runs.

use parkade::device::DeviceBackend;
use parkade::settings::{ErrorKind, Settings};
use parkade::stats::Family;
use parkade::trace::TraceAction;
use parkade::units::{Bytes, MIB, StreamId};

use super::support::{Mode, ensure, fill, holds, once, same, twice, with_capacity};
use crate::backend::{AnyBackend, Needs};
use crate::scripted_allocator::{Request, Stage};
use crate::suite::{Effort, Entry, Evidence, Requirement, Trouble, Verdict};

const GIB: u64 = 1 << 30;
/// More than any device has: the 2^40 four-byte elements of PyTorch's tests.
const FAR_TOO_MUCH: Bytes = Bytes(4 << 40);

pub(super) fn oom_entries() -> Vec<Entry> {
    let mut entries = Vec::new();
    let says = "the error for a huge request states its size, a request beyond 1 EB never reaches the device, and neither \
                affects live tensors";
    entries.extend(twice("test_out_of_memory", says, out_of_memory));
    let says = "a request for the second half of memory is refused, and served once the first half is freed";
    entries.extend(twice("test_out_of_memory_retry", says, retry));
    let says = "a request larger than the device runs out of memory";
    entries.extend(twice("test_raises_oom", says, |backend: &AnyBackend, mode, _: &Effort| raises(backend, mode.settings())));
    let says = "a request larger than the device also runs out of memory with max_split_size_mb, which changes the search";
    entries.extend(twice("test_raises_oom_max_split_size_mb_setting", says, |backend: &AnyBackend, mode: Mode, _: &Effort| {
        raises(backend, &mode.with("max_split_size_mb:1024"))
    }));
    let says = "the observer is notified of a failed request";
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

/// In PyTorch's test, the driver's context takes some of the device's memory; here, each half is a page larger instead.
fn retry(backend: &AnyBackend, mode: Mode, _: &Effort) -> Verdict {
    let mut stage = Stage::new(backend, &with_capacity(Bytes(GIB)), mode.settings(), None)?;
    let half = Bytes(GIB / 2 + 2 * MIB);
    stage.alloc("a", half)?.served()?;
    let refusal = stage.alloc("b", half)?.refusal()?;
    ensure(refusal.contains("Tried to allocate"), || format!("the message is: {refusal}"))?;
    same("refusals", (stage.stats().num_ooms, stage.stats().num_alloc_retries), (1, 1))?;
    stage.free("a")?;
    stage.alloc("b", half)?.served()?;
    same("number of refused requests at the end", stage.stats().num_ooms, 1)?;
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
    same("the events that the observer received", told, vec![FAR_TOO_MUCH.get()])?;
    stage.finish()?;
    Ok(Evidence { text: format!("oom of {FAR_TOO_MUCH} bytes"), operations: 1, ..Evidence::default() })
}

/// Tolerance for equal fractions: 2.11 rounds the limit down to whole bytes.
const CLOSE: f64 = 1e-7;
/// Fractions that single precision can represent exactly, like those that the test draws.
const SOME: [f64; 3] = [0.496_256_589_889_526_37, 0.768_221_795_558_929_4, 0.088_477_432_727_813_72];

pub(super) fn fraction_entries() -> Vec<Entry> {
    let mut entries = Vec::new();
    let says = "only fractions from 0 to 1 are accepted; with a fraction of one half, 0.499 of the memory fits and 0.5 does not";
    entries.extend(twice("test_set_per_process_memory_fraction", says, set));
    entries.push(once("test_get_per_process_memory_fraction", "a fraction reads back as it was set", get));
    let says = "the settings string sets the memory fraction of a new process, and accepts only values from 0 to 1";
    entries.push(once("test_allocator_memory_fraction_setting", says, from_the_environment));
    entries
}

fn set(backend: &AnyBackend, mode: Mode, _: &Effort) -> Verdict {
    let mut stage = Stage::new(backend, &Needs::default(), mode.settings(), None)?;
    let mut text = String::new();
    for fraction in [-0.1, 2.0] {
        let refused = stage.core().set_memory_fraction(fraction).err();
        let refused = refused.ok_or_else(|| Trouble::fail(format!("the invalid fraction {fraction} was accepted")))?;
        text += &format!("{refused}\n");
    }
    let total = stage.core().device().total_memory();
    let free = stage.device().steer().memory_info()?.free;
    if free.get() < total.get() / 2 {
        return Err(Trouble::Skip(format!("half of the device is needed, but only {free} of {total} bytes are free")));
    }
    let tensor = Bytes(4096);
    stage.alloc("tensor", tensor)?.served()?;
    stage.release_cached()?;
    fraction_of(&mut stage, 0.5)?;
    let reserved = stage.core().heap().reserved();
    stage.alloc("most", Bytes((total.get() as f64 * 0.499) as u64).saturating_sub(reserved))?.served()?;
    stage.free("most")?;
    stage.release_cached()?;
    let refusal = stage.alloc("half", Bytes((total.get() as f64 * 0.5) as u64))?.refusal()?;
    ensure(refusal.contains("out of memory"), || format!("the message is: {refusal}"))?;
    fill(&stage, "tensor", tensor, 1, StreamId::DEFAULT)?;
    let address = stage.address("tensor")?;
    ensure(holds(&stage, address, 4096, 1)?, || "the tensor does not contain the data that was written to it".to_owned())?;
    text += &stage.picture();
    stage.finish()?;
    Ok(Evidence { text, operations: 6, ..Evidence::default() })
}

fn get(backend: &AnyBackend) -> Verdict {
    let mut stage = Stage::new(backend, &Needs::default(), "", None)?;
    same("the initial fraction", stage.core().memory_fraction(), 1.0)?;
    let mut operations = 0;
    for fraction in [1.0, 0.0].into_iter().chain(SOME) {
        fraction_of(&mut stage, fraction)?;
        let found = stage.core().memory_fraction();
        let tolerance = if fraction == 0.0 || fraction == 1.0 { 0.0 } else { CLOSE };
        ensure((found - fraction).abs() <= tolerance, || format!("{fraction} reads back as {found}"))?;
        operations += 1;
    }
    stage.finish()?;
    Ok(Evidence::operations(operations))
}

fn fraction_of(stage: &mut Stage, fraction: f64) -> Result<(), Trouble> {
    stage.core().set_memory_fraction(fraction).map_err(|error| Trouble::fail(error.to_string()))
}

fn from_the_environment(backend: &AnyBackend) -> Verdict {
    let mut text = String::new();
    for (value, expected) in [("0.0", 0.0), ("0.5", 0.5), ("1.0", 1.0)] {
        let string = format!("per_process_memory_fraction:{value}");
        let settings = Settings::from_environment(&string).map_err(|error| Trouble::fail(error.to_string()))?;
        let mut stage = Stage::new(backend, &Needs::default(), &string, None)?;
        fraction_of(&mut stage, settings.per_process_memory_fraction)?;
        let found = stage.core().memory_fraction();
        ensure((found - expected).abs() <= CLOSE, || format!("{string} sets a fraction of {found}"))?;
        let served = stage.alloc("a", Bytes(1))? == Request::Served;
        same(&string, served, expected > 0.0)?;
        stage.finish()?;
    }
    for value in ["-0.1", "1.1"] {
        let refused = Settings::from_environment(&format!("per_process_memory_fraction:{value}"));
        let message = refused.err().map(|error| error.message().to_owned()).unwrap_or_default();
        let is_said = message.contains("per_process_memory_fraction is invalid");
        ensure(is_said, || format!("a fraction of {value} in the settings: {message:?}"))?;
        text += &format!("{value}: {message}\n");
    }
    Ok(Evidence { text, operations: 5, ..Evidence::default() })
}

/// 21 Mi elements of four bytes.
const MIDDLING: Bytes = Bytes(84 * MIB);
/// 100 Mi elements of four bytes.
const BIG: Bytes = Bytes(400 * MIB);
/// Strings for which Python raises `ValueError`.
const REFUSED: [&str; 7] = [
    "foo:1,bar:2",
    "garbage_collection_threshold:1.2",
    "max_split_size_mb:2",
    "release_lock_on_cudamalloc:none",
    "pinned_use_cuda_host_register:none",
    "pinned_num_register_threads:none",
    "pinned_num_register_threads:1024",
];

pub(super) fn settings_entries() -> Vec<Entry> {
    vec![
        once(
            "test_allocator_settings",
            "divisions round requests, a later string resets them, and invalid strings are refused",
            strings,
        ),
        once(
            "test_max_split_expandable",
            "blocks of all kinds are released for a request that needs all of the memory",
            max_split,
        )
        .requires(Requirement::ExpandableSegments),
        once("test_garbage_collect_expandable", "garbage collection skips expandable blocks", garbage)
            .requires(Requirement::ExpandableSegments),
        once("test_cachingAllocator_raw_alloc", "a raw 1 MiB request counts as requested memory", raw_alloc),
    ]
}

/// Applies a settings string at run time.
fn apply(stage: &mut Stage, text: &str) -> Result<(), Trouble> {
    stage.core().policy_mut().settings.apply(text).map_err(|error| Trouble::fail(format!("{text:?}: {error}")))
}

/// Returns the bytes that a request adds to the cumulative active bytes and to the cumulative requested bytes.
fn added(stage: &mut Stage, name: &str, bytes: Bytes) -> Result<(u64, u64), Trouble> {
    let sums = |stage: &Stage| {
        let of = |family| stage.stats().family(family).all.allocated.cast_unsigned();
        (of(Family::ActiveBytes), of(Family::RequestedBytes))
    };
    let before = sums(stage);
    stage.alloc(name, bytes)?.served()?;
    let after = sums(stage);
    Ok((after.0 - before.0, after.1 - before.1))
}

/// Returns the size rounded up to a division of its power of two.
fn rounded(bytes: Bytes, divisions: u64) -> u64 {
    let power = bytes.get().next_power_of_two();
    if power == bytes.get() { power } else { bytes.get().next_multiple_of(power / 2 / divisions) }
}

fn strings(backend: &AnyBackend) -> Verdict {
    let mut stage = Stage::new(backend, &Needs::default(), "", None)?;
    let whole = MIDDLING.get();
    same("without divisions", added(&mut stage, "x", MIDDLING)?, (whole, whole))?;
    apply(&mut stage, "roundup_power2_divisions:4")?;
    same("with four divisions", added(&mut stage, "y", MIDDLING)?, (rounded(MIDDLING, 4), whole))?;
    apply(&mut stage, "garbage_collection_threshold:0.5")?;
    apply(&mut stage, "garbage_collection_threshold:0.5,max_split_size_mb:40")?;
    stage.release_cached()?;
    same("after a settings string without divisions", added(&mut stage, "z", MIDDLING)?.0, whole)?;
    stage.release_cached()?;
    apply(&mut stage, "garbage_collection_threshold:0.5,roundup_power2_divisions:[64:8,128:2,256:2,512:2,1024:1,>:1]")?;
    same("with the divisions for sizes from 64 MiB", added(&mut stage, "w", MIDDLING)?.0, rounded(MIDDLING, 8))?;
    stage.release_cached()?;
    same("with the divisions for sizes from 256 MiB", added(&mut stage, "v", BIG)?.0, rounded(BIG, 2))?;
    stage.release_cached()?;
    apply(&mut stage, "release_lock_on_cudamalloc:True")?;
    same("after a settings string with a different key", added(&mut stage, "u", MIDDLING)?.0, whole)?;
    let mut text = stage.picture();
    for wrong in REFUSED {
        let error = Settings::default().apply(wrong).err();
        let error = error.ok_or_else(|| Trouble::fail(format!("{wrong:?} was accepted")))?;
        let is_value_error = matches!(error.kind(), ErrorKind::Value | ErrorKind::InvalidNumber);
        ensure(is_value_error, || format!("{wrong:?} caused {:?}, not a ValueError", error.kind()))?;
        text += &format!("{wrong}: {}\n", error.message());
    }
    stage.finish()?;
    Ok(Evidence { text, operations: 20, ..Evidence::default() })
}

fn max_split(backend: &AnyBackend) -> Verdict {
    const ORDINARY: &str = "expandable_segments:False,max_split_size_mb:40";
    const EXPANDABLE: &str = "expandable_segments:True,max_split_size_mb:40";
    let mut stage = Stage::new(backend, &Needs::default(), "", Some(Bytes::mib(120)))?;
    for (name, settings) in [("a", ORDINARY), ("b", EXPANDABLE), ("c", ORDINARY)] {
        apply(&mut stage, settings)?;
        stage.alloc(name, Bytes::mib(40))?.served()?;
    }
    stage.alloc("d", Bytes::mib(40))?.refusal()?;
    let mut text = stage.picture();
    for name in ["a", "b", "c"] {
        stage.free(name)?;
    }
    stage.alloc("all", Bytes::mib(120))?.served()?;
    text += "\n";
    text += &stage.picture();
    stage.finish()?;
    Ok(Evidence { text, operations: 8, ..Evidence::default() })
}

fn garbage(backend: &AnyBackend) -> Verdict {
    let mut stage = Stage::new(backend, &Needs::default(), "", Some(Bytes::mib(120)))?;
    for (name, settings) in [
        ("a", "expandable_segments:False,garbage_collection_threshold:0.5"),
        ("b", "expandable_segments:True,garbage_collection_threshold:0.5"),
    ] {
        apply(&mut stage, settings)?;
        stage.alloc(name, Bytes::mib(40))?.served()?;
    }
    stage.free("a")?;
    stage.free("b")?;
    stage.alloc("c", Bytes::mib(80))?.served()?;
    let text = stage.picture();
    stage.finish()?;
    Ok(Evidence { text, operations: 5, ..Evidence::default() })
}

fn raw_alloc(backend: &AnyBackend) -> Verdict {
    let mut stage = Stage::new(backend, &Needs::default(), "", None)?;
    let core = stage.core();
    core.reset_accumulated_stats();
    let raw = core.raw_allocate(Bytes(MIB), StreamId::DEFAULT).map_err(|error| Trouble::fail(error.to_string()))?;
    same("requested bytes", core.stats().family(Family::RequestedBytes).all.allocated, MIB.cast_signed())?;
    core.free(raw).map_err(|error| Trouble::fail(error.to_string()))?;
    stage.finish()?;
    Ok(Evidence::operations(2))
}
