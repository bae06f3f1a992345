//! The message of PyTorch's cudaMallocAsync backend: what its figures say, and what they cannot.

use std::io::{self, Write};

use parkade_recording::message::{CudaMallocAsyncMessage, Size};

use super::layout::{hanging, width, wrapped};
use crate::terminal::json_struct::view;
use crate::terminal::output;
use crate::terminal::runner::Outcome;

/// What the figures say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    /// More than the device has, whatever is cached.
    Capacity,
    /// More than the limit that the program set.
    Limit,
    /// It would fit beside what is allocated, so the rest of the device is in use for something else.
    Elsewhere,
    /// Figures that would decide are missing or too close.
    Undecided,
}

impl Verdict {
    const fn name(self) -> &'static str {
        match self {
            Verdict::Capacity => "capacity",
            Verdict::Limit => "limit",
            Verdict::Elsewhere => "elsewhere",
            Verdict::Undecided => "undecided",
        }
    }

    fn of(message: &CudaMallocAsyncMessage) -> Verdict {
        let (Some(allocated), Some(requested), Some(total)) = (message.allocated, message.requested, message.total) else {
            return Verdict::Undecided;
        };
        let needed = allocated.plus(requested);
        let exceeds = |most: Size| needed.bytes.saturating_sub(needed.within) > most.bytes.saturating_add(most.within);
        let fits = |most: Size| needed.bytes.saturating_add(needed.within) <= most.bytes.saturating_sub(most.within);
        let limit = message.limit.flatten();
        if exceeds(total) {
            Verdict::Capacity
        } else if limit.is_some_and(exceeds) {
            Verdict::Limit
        } else if fits(total) && limit.is_none_or(fits) {
            Verdict::Elsewhere
        } else {
            Verdict::Undecided
        }
    }
}

/// Not known if figures that would decide are missing.
pub(super) fn outcome(message: &CudaMallocAsyncMessage) -> Outcome {
    if Verdict::of(message) == Verdict::Undecided { Outcome::NotKnown } else { Outcome::Good }
}

/// The cause in a sentence.
fn headline(message: &CudaMallocAsyncMessage) -> String {
    let show = |size: Option<Size>| size.map_or_else(|| "an unknown amount".to_owned(), |size| size.to_string());
    let needed = message.allocated.zip(message.requested).map(|(allocated, requested)| allocated.plus(requested));
    let (allocated, requested, total) = (show(message.allocated), show(message.requested), show(message.total));
    match Verdict::of(message) {
        Verdict::Capacity => format!(
            "capacity: {allocated} is allocated and {requested} requested, together {}, and the device has {total}",
            show(needed)
        ),
        Verdict::Limit => format!(
            "the limit: {allocated} is allocated and {requested} requested, together {}; the program may have {}, as \
             set_per_process_memory_fraction says, of the device's {total}",
            show(needed),
            show(message.limit.flatten())
        ),
        Verdict::Elsewhere => format!(
            "{allocated} is allocated and {requested} requested, which the device's {total} would hold; {} of it is free and {} is in \
             use for something else",
            show(message.free),
            show(elsewhere(message))
        ),
        Verdict::Undecided => "its figures do not tell why: they are missing, or too close to each other".to_owned(),
    }
}

/// What is neither allocated nor free.
fn elsewhere(message: &CudaMallocAsyncMessage) -> Option<Size> {
    Some(message.total?.minus(message.allocated?.plus(message.free?)))
}

/// What follows from it, and what the message cannot tell.
fn notes(message: &CudaMallocAsyncMessage) -> Vec<String> {
    let what = match Verdict::of(message) {
        Verdict::Capacity => "no setting of an allocator helps: hold less at once",
        Verdict::Limit => "raise the fraction, or hold less at once; the driver was not asked",
        Verdict::Elsewhere => {
            "in use for something else is what the driver's pool has cached or lost to fragmentation, what other processes hold \
             (parkade info, nvidia-smi), and the driver's own memory (about 500 MiB)"
        }
        Verdict::Undecided => {
            "the six lines that PyTorch writes say more than the first one: allocated, requested, free, the limits"
        }
    };
    let mut notes = vec![what.to_owned()];
    if message.limit == Some(None) {
        notes.push("no fraction was set, so the limit in the message (2^64 - 1 bytes) is none".to_owned());
    }
    notes.push(
        "the driver's pool, not PyTorch, caches memory under this backend: settings such as max_split_size_mb and \
         expandable_segments have no effect, and PyTorch records no history, so there is no snapshot to replay"
            .to_owned(),
    );
    notes.push(
        "to see whether PyTorch's own allocator fits, run once without backend:cudaMallocAsync in PYTORCH_CUDA_ALLOC_CONF, record a \
         snapshot, and give it to parkade advise"
            .to_owned(),
    );
    notes
}

pub(super) fn print(out: &mut dyn Write, message: &CudaMallocAsyncMessage) -> io::Result<()> {
    writeln!(out, "an out-of-memory message of PyTorch's cudaMallocAsync backend, from device {}\n", message.device)?;
    writeln!(out, "{}\n", output::bad(&wrapped(&headline(message), width()).join("\n")))?;
    for note in notes(message) {
        hanging(out, "  ", 2, &note)?;
    }
    Ok(())
}

view! {
    pub(super) struct Object(message: &CudaMallocAsyncMessage) {
        backend: &'static str = "cudaMallocAsync",
        device: u32 = message.device,
        verdict: &'static str = Verdict::of(message).name(),
        headline: String = headline(message),
        allocated_bytes: Option<u64> = message.allocated.map(|size| size.bytes),
        requested_bytes: Option<u64> = message.requested.map(|size| size.bytes),
        total_bytes: Option<u64> = message.total.map(|size| size.bytes),
        free_bytes: Option<u64> = message.free.map(|size| size.bytes),
        limit_bytes: Option<u64> = message.limit.flatten().map(|size| size.bytes),
        elsewhere_bytes: Option<u64> = elsewhere(message).map(|size| size.bytes),
        notes: Vec<String> = notes(message),
    }
}
