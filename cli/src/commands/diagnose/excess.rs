//! Why more is reserved than allocated, in words: the headline and the rows where nothing failed.

use parkade_analysis::diagnose::{Diagnosis, Excess, ExcessCause, ExcessPart, Peak, Question};

use crate::terminal::output::count;
use crate::terminal::size::show_bytes;

/// Whether this is the question.
pub(super) fn is_asked(diagnosis: &Diagnosis) -> bool {
    diagnosis.question == Question::ReservedAboveAllocated
}

/// The causes of the difference in one sentence, the largest first.
pub(super) fn headline(diagnosis: &Diagnosis) -> String {
    let (excess, reserved) = (&diagnosis.excess, show_bytes(diagnosis.heap.reserved_bytes));
    if excess.bytes() == 0 {
        return format!("all of the {reserved} reserved is allocated");
    }
    let mut parts = present(excess);
    parts.sort_by_key(|part| std::cmp::Reverse(part.bytes));
    let parts: Vec<String> = parts.iter().map(|part| format!("{} {}", show_bytes(part.bytes), in_short(part.cause))).collect();
    let why = match parts.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, rest)) => format!("{} and {last}", rest.join(", ")),
        None => String::new(),
    };
    format!("{} of the {reserved} reserved is not allocated: {why}", show_bytes(excess.bytes()))
}

fn present(excess: &Excess) -> Vec<&ExcessPart> {
    excess.parts.iter().filter(|part| part.bytes > 0).collect()
}

fn in_short(cause: ExcessCause) -> &'static str {
    match cause {
        ExcessCause::PendingEvent => "waiting for events",
        ExcessCause::PrivatePool => "in private pools",
        ExcessCause::OtherStream => "cached for other streams",
        ExcessCause::FreeSegment => "in whole free segments",
        ExcessCause::SmallPoolHole => "in holes of the small pool",
        ExcessCause::LargePoolHole => "in holes of the large pool",
    }
}

/// The rows of the table: bytes and what they are.
pub(super) fn rows(excess: &Excess) -> Vec<(u64, String)> {
    present(excess).into_iter().map(|part| (part.bytes, row(excess, part))).collect()
}

fn row(excess: &Excess, part: &ExcessPart) -> String {
    let pieces = |thing| match part.pieces {
        1 => count(1_u8, thing),
        pieces => format!("{}, the largest {}", count(pieces, thing), show_bytes(part.largest_bytes)),
    };
    let whole = |then: &str| match part.whole_bytes {
        0 => String::new(),
        bytes if bytes == part.bytes => format!("; all of it in whole segments, {then}"),
        bytes => format!("; {} of it in whole segments, {then}", show_bytes(bytes)),
    };
    match part.cause {
        ExcessCause::PendingEvent => {
            format!("freed, but another stream may still be using it (record_stream) ({})", pieces("block"))
        }
        ExcessCause::PrivatePool => {
            format!("in private pools (MemPool, CUDA graph) ({}{})", pieces("hole"), whole("kept until nothing uses the pool"))
        }
        ExcessCause::OtherStream => {
            let main = excess.main_stream.map_or(0, |stream| stream.get());
            let whole = whole("which empty_cache gives back");
            format!("cached for streams other than {main}, which holds the most ({}{whole})", pieces("hole"))
        }
        ExcessCause::FreeSegment => {
            format!("whole free segments or pages: the cache, which empty_cache gives back ({})", pieces("piece"))
        }
        ExcessCause::SmallPoolHole => {
            format!("holes beside blocks in use, in the small pool: for requests up to 1 MiB only ({})", pieces("hole"))
        }
        ExcessCause::LargePoolHole => {
            format!("holes beside blocks in use, in the large pool: for requests above 1 MiB only ({})", pieces("hole"))
        }
    }
}

/// The peaks of the run; `None` without a trace.
pub(super) fn peaks(diagnosis: &Diagnosis) -> Option<String> {
    let peaks = diagnosis.peaks?;
    let at = |peak: Peak| peak.entry.map_or_else(|| "before the first entry".to_owned(), |entry| format!("at entry {entry}"));
    Some(format!(
        "reserved memory peaked at {}, first {}; allocated memory peaked at {}, {}, when {} was reserved",
        show_bytes(peaks.reserved.bytes),
        at(peaks.reserved),
        show_bytes(peaks.allocated.bytes),
        at(peaks.allocated),
        show_bytes(peaks.reserved_at_allocated_bytes)
    ))
}
