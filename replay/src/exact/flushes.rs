//! Flushes: cached memory that went back to the device right before a request which then took more memory than had ever been
//! reserved.
//!
//! No entry shows why. Either the device refused the request, so that the allocator released its cache and asked again (a
//! retry), or the program called `empty_cache`, as `torch.cuda.graph` does before each capture. Both leave the same entries,
//! except for the stacks, if the recording has stacks.

use parkade_recording::{Entry, StackId};

use crate::entries::gives_memory;

/// A flush, how the replay read it, and why.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flush {
    /// The request's entry.
    pub entry: usize,
    /// The bytes that would have been reserved if nothing had been released. If the flush was a retry, the device had less
    /// memory than this.
    pub wanted_bytes: u64,
    /// The reason for this reading.
    pub reason: FlushReason,
}

impl Flush {
    /// The flush according to its final reading: as a call to `empty_cache` or as a retry after a refusal. `None` if it was
    /// neither, for example garbage collection.
    pub(super) fn read_as(self, is_call: bool, is_retry: bool) -> Option<Flush> {
        match (is_call, is_retry) {
            (false, false) => None,
            (_, true) if self.reason.is_retry() => Some(self),
            (_, true) => Some(Flush { reason: FlushReason::NoCall, ..self }),
            (true, false) if self.reason.is_retry() => Some(Flush { reason: FlushReason::NoRetry, ..self }),
            (true, false) => Some(self),
        }
    }
}

/// If this many requests each needed more than had ever been reserved, it is no coincidence that memory went back right
/// before them.
const OFTEN: usize = 3;

/// Judges all flushes of a recording together: if there are many, none of them is in doubt.
pub(crate) fn taken_together(mut flushes: Vec<Flush>) -> Vec<Flush> {
    let wanted = |flush: &Flush| flush.reason == FlushReason::NeverHadMore;
    if flushes.iter().filter(|flush| wanted(flush)).count() >= OFTEN {
        flushes.iter_mut().filter(|flush| wanted(flush)).for_each(|flush| flush.reason = FlushReason::OftenRefused);
    }
    flushes
}

/// Why a flush was read as a retry or as a call to `empty_cache`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlushReason {
    /// A call to `empty_cache`: a private pool is first used after it, as in a capture.
    CaptureFollows,
    /// A call to `empty_cache`: the program often calls it when memory is not short.
    OftenEmptied,
    /// A retry: that much had never been reserved, and nothing suggests a call.
    NeverHadMore,
    /// A retry: that much had never been reserved, and this is true of so many requests that it is no coincidence. A program
    /// that calls `empty_cache` would also do so at other times.
    OftenRefused,
    /// A retry: other requests ran out of memory.
    OthersFailed,
    /// A retry: the entries that release memory have the stack of the request.
    StackOfRequest,
    /// A call to `empty_cache`: the entries that release memory have a different stack from the request's.
    OtherStack,
    /// A retry: a call would have left different entries.
    NoCall,
    /// A call to `empty_cache`: a retry would have left different entries.
    NoRetry,
}

impl FlushReason {
    /// What the stacks of a request's entries show; the last entry is the request. `None` if some entry has no stack, or if
    /// no entry releases memory.
    ///
    /// All entries of one request have its stack. The entries of `empty_cache` have its own stack or, if the recording has
    /// stacks only for requests, the stack of the request that first took the memory (spec 7.4).
    pub(super) fn of_stacks(entries: &[Entry]) -> Option<FlushReason> {
        let stack = entries.last()?.stack;
        let mut given = entries.iter().filter(|entry| gives_memory(entry)).map(|entry| entry.stack).peekable();
        given.peek()?;
        if stack == StackId::NONE || given.clone().any(|stack| stack == StackId::NONE) {
            return None;
        }
        Some(if given.all(|given| given == stack) { FlushReason::StackOfRequest } else { FlushReason::OtherStack })
    }

    /// Whether the flush was read as a retry.
    #[must_use]
    pub const fn is_retry(self) -> bool {
        !matches!(self, FlushReason::CaptureFollows | FlushReason::OftenEmptied | FlushReason::OtherStack | FlushReason::NoRetry)
    }

    /// Whether the flush may have been a call rather than a retry, or the reverse.
    #[must_use]
    pub const fn is_doubtful(self) -> bool {
        matches!(self, FlushReason::CaptureFollows | FlushReason::OftenEmptied | FlushReason::NeverHadMore)
    }
}

parkade_recording::names! {
    FlushReason {
        FlushReason::CaptureFollows => "capture_follows",
        FlushReason::OftenEmptied => "often_emptied",
        FlushReason::NeverHadMore => "never_had_more",
        FlushReason::OftenRefused => "often_refused",
        FlushReason::OthersFailed => "others_failed",
        FlushReason::StackOfRequest => "stack_of_request",
        FlushReason::OtherStack => "other_stack",
        FlushReason::NoCall => "no_call",
        FlushReason::NoRetry => "no_retry",
    }
}

#[cfg(test)]
mod tests {
    use parkade_recording::{Action, Frame, StackTable};

    use super::*;

    #[test]
    fn many_retries_are_no_chance() {
        let flush = |entry| Flush { entry, wanted_bytes: 1, reason: FlushReason::NeverHadMore };
        let call = Flush { reason: FlushReason::CaptureFollows, ..flush(9) };
        let reasons = |flushes: &[Flush]| taken_together(flushes.to_vec()).iter().map(|flush| flush.reason).collect::<Vec<_>>();
        assert_eq!(reasons(&[flush(1), flush(2), call])[..2], [FlushReason::NeverHadMore; 2]);
        let four = reasons(&[flush(1), flush(2), call, flush(3)]);
        assert_eq!(four, [FlushReason::OftenRefused, FlushReason::OftenRefused, call.reason, FlushReason::OftenRefused]);
    }

    #[test]
    fn what_a_request_gives_back_has_its_stack() {
        let entry = |action, stack| {
            let mut entry = Entry::new(action, 1 << 30, 2 << 20, 0);
            entry.stack = stack;
            entry
        };
        let said = |freed: [StackId; 2], request| {
            let [one, other] = freed.map(|stack| entry(Action::SegmentFree, stack));
            FlushReason::of_stacks(&[one, other, entry(Action::SegmentAlloc, request), entry(Action::Alloc, request)])
        };
        let mut table = StackTable::default();
        let [one, other] = [1, 2].map(|line| {
            let call = table.intern_frame(Frame { filename: "train.py".into(), line, name: "step".into() });
            table.intern_stack(&[call])
        });
        assert_eq!(said([one, one], one), Some(FlushReason::StackOfRequest));
        assert_eq!(said([other, other], one), Some(FlushReason::OtherStack));
        assert_eq!(said([one, other], one), Some(FlushReason::OtherStack), "those of the requests that took the memory");
        assert_eq!(said([one, StackId::NONE], one), None);
        assert_eq!(said([StackId::NONE; 2], StackId::NONE), None);
        assert_eq!(FlushReason::of_stacks(&[entry(Action::SegmentAlloc, one), entry(Action::Alloc, one)]), None);
    }
}
