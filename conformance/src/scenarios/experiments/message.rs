//! C4: the out-of-memory message in the documents, and today's.

use crate::backend::AnyBackend;
use crate::suite::{Entry, Evidence, Trouble, Verdict};
use parkade::texts::format_bytes;
use parkade_recording::message::OutOfMemoryMessage;

use crate::scenarios::story::{Story, claim, mib, scenario};

/// The log as it is in the documents, line breaks included.
const LOG: &str = "OutOfMemoryError: CUDA out of memory. Tried to allocate 4.88 GiB (GPU 2; 39.59
GiB total capacity; 28.60 GiB already allocated; 3.92 GiB free; 33.95 GiB
reserved in total by PyTorch). If reserved memory is substantially greater than allocated memory, consider
setting max_split_size_mb to counteract fragmentation. Refer to PyTorch's Memory
Management and PYTORCH_CUDA_ALLOC_CONF documentation.";

pub(super) fn entries() -> Vec<Entry> {
    vec![
        scenario(
            "C4",
            "the documents' log: 5.35 GiB are reserved and not allocated, more than the 4.88 GiB that were tried",
            |_| log(),
        ),
        scenario("C4/today", "today's message, of a heap with 60 MiB free in pieces, leads to the same diagnosis", today),
    ]
}

fn read(text: &str) -> Result<OutOfMemoryMessage, Trouble> {
    OutOfMemoryMessage::parse(text).map_err(|error| Trouble::fail(format!("{text}: {error}")))
}

fn diagnosis(message: &OutOfMemoryMessage) -> String {
    let verdict =
        if message.is_fragmentation() { "at least what was tried: fragmentation" } else { "less than was tried: capacity" };
    format!(
        "tried         {:>12}\nallocated     {:>12}\nreserved      {:>12}\nfragmentation {:>12}, {verdict}\n",
        message.tried.to_string(),
        message.allocated.to_string(),
        message.reserved.to_string(),
        message.unallocated.to_string(),
    )
}

fn log() -> Verdict {
    let message = read(LOG)?;
    let gib = |hundredths: u64| format_bytes((hundredths << 30).div_ceil(100));
    let figures = [message.tried, message.total, message.allocated, message.free, message.reserved, message.unallocated];
    let expected = [488, 3959, 2860, 392, 3395, 535].map(gib);
    claim(figures.map(|size| size.to_string()) == expected, || format!("{message:?}"))?;
    claim(message.device == 2 && message.is_fragmentation(), || format!("{message:?}"))?;
    Ok(Evidence::text(format!("GPU {} of {}, {} free\n{}", message.device, message.total, message.free, diagnosis(&message))))
}

fn today(backend: &AnyBackend) -> Verdict {
    let mut story = Story::new(backend, "", Some(mib(120)))?;
    story.alloc("all", mib(120))?;
    story.free("all")?;
    for number in 1..=6 {
        story.alloc(&format!("piece {number}"), mib(20))?;
    }
    for number in [1, 3, 5] {
        story.free(&format!("piece {number}"))?;
    }
    story.show("60 MiB free in pieces");
    let text = story.stage.alloc("40 MiB", mib(40))?.refusal()?;
    story.measure(&text);
    let message = read(&text)?;
    let figures = [message.tried, message.allocated, message.reserved, message.unallocated].map(|size| size.bytes >> 20);
    claim(figures == [40, 60, 120, 60] && message.limit.is_some_and(|limit| limit.bytes == 120 << 20), || {
        format!("{message:?}")
    })?;
    claim(message.is_fragmentation(), || format!("{message:?}"))?;
    story.say(&diagnosis(&message));
    story.finish()
}
