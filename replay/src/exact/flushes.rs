//! A flush: cached memory that was given back right before a request that then took more memory than there ever was.
//!
//! No entry says why. The device may have refused the request, so that the allocator gave its cache back and asked again (a
//! retry); or the program called `empty_cache`, as `torch.cuda.graph` does before each capture. The entries are the same.

/// A flush, how it was read, and why.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flush {
    /// The request's entry.
    pub entry: usize,
    /// The bytes that would have been reserved if nothing had been given back. If the flush was a retry, there was less memory.
    pub wanted_bytes: u64,
    /// Why it was read as it was.
    pub reason: FlushReason,
}

impl Flush {
    /// The flush as it was read in the end: with a call of `empty_cache`, with a refusal. `None` if with neither, as after garbage
    /// collection.
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

/// Why a flush was read as a retry or as a call of `empty_cache`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlushReason {
    /// A call of `empty_cache`: a private pool is used from here on, as in a capture.
    CaptureFollows,
    /// A call of `empty_cache`: the program often makes one where memory is not short.
    OftenEmptied,
    /// A retry: so much was never reserved, and nothing speaks for a call.
    NeverHadMore,
    /// A retry: other requests ran out of memory.
    OthersFailed,
    /// A retry: a call would have left other entries.
    NoCall,
    /// A call of `empty_cache`: a retry would have left other entries.
    NoRetry,
}

impl FlushReason {
    /// Whether the flush was read as a retry.
    #[must_use]
    pub const fn is_retry(self) -> bool {
        matches!(self, FlushReason::NeverHadMore | FlushReason::OthersFailed | FlushReason::NoCall)
    }

    /// Whether the flush may have been the other thing.
    #[must_use]
    pub const fn is_doubtful(self) -> bool {
        !matches!(self, FlushReason::NoCall | FlushReason::NoRetry)
    }

    /// The name in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            FlushReason::CaptureFollows => "capture_follows",
            FlushReason::OftenEmptied => "often_emptied",
            FlushReason::NeverHadMore => "never_had_more",
            FlushReason::OthersFailed => "others_failed",
            FlushReason::NoCall => "no_call",
            FlushReason::NoRetry => "no_retry",
        }
    }
}
