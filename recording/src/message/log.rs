//! All out-of-memory messages of a log: by rank, without repetitions, and which came first.
//!
//! The ranks of a run write into one log, each line behind its rank's prefix, and a message may be printed more than once: by the
//! traceback, by a logger, by the launcher. A message may be broken into lines, between which lines of other ranks may stand.
//!
//! These are the answers; `reader` reads the log.

use super::cuda_malloc_async::CudaMallocAsyncMessage;
use super::foreign::ForeignMessage;
use super::out_of_memory::{MessageError, OutOfMemoryMessage};
use super::partial::PartialMessage;
use super::prefix::LogTime;

/// So many different messages of a log are kept, the first ones; those after them are counted.
pub const MOST_MESSAGES: usize = 1 << 14;

/// What a message says, as far as it is there.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum ReadMessage {
    /// It is complete.
    Complete(OutOfMemoryMessage),
    /// Parts are missing.
    Partial(PartialMessage),
}

/// A message in a log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LoggedMessage {
    /// The rank that wrote it, if a prefix or the line tells.
    pub rank: Option<u32>,
    /// When, if its line tells.
    pub time: Option<LogTime>,
    /// The line on which it begins, from 1.
    pub line: usize,
    /// How often it is there.
    pub times: usize,
    /// What it says.
    pub message: ReadMessage,
}

/// A message of another framework, in a log that has messages of PyTorch too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OtherMessage {
    /// The rank that wrote it, if a prefix tells.
    pub rank: Option<u32>,
    /// Its line, from 1.
    pub line: usize,
    /// Who wrote it, and what it wanted.
    pub message: ForeignMessage,
}

/// How it is known which message came first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ToldBy {
    /// The times of all messages.
    Times,
    /// torchrun's summary of the failures.
    Launcher,
}

/// The first failure.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FirstFailure {
    /// Its rank.
    pub rank: Option<u32>,
    /// Its time, as it is printed.
    pub time: String,
    /// Its message in [`MessageLog::messages`], if the log has one of that rank.
    pub message: Option<usize>,
    /// How it is known.
    pub told_by: ToldBy,
}

/// The out-of-memory messages of a log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MessageLog {
    /// Each different message of each rank, in the order of the log; of more than [`MOST_MESSAGES`] the first.
    pub messages: Vec<LoggedMessage>,
    /// How many messages follow those and differ from all of them.
    pub left_out: usize,
    /// Which rank failed first, if that is known and there are several.
    pub first: Option<FirstFailure>,
    /// The first message of PyTorch's cudaMallocAsync backend, if there is none of its own allocator.
    pub cuda_malloc_async: Option<CudaMallocAsyncMessage>,
    /// The first message of another framework, if there is none of PyTorch's.
    pub foreign: Option<ForeignMessage>,
    /// Beside messages of PyTorch: those of other frameworks, one of each rank.
    pub others: Vec<OtherMessage>,
    /// What is wrong with the first message that has no figure; [`MessageError::NotFound`] if there is none.
    pub error: MessageError,
}

impl MessageLog {
    /// The message to explain: that of the first failure, else the first complete one, else the first.
    #[must_use]
    pub fn explained(&self) -> Option<usize> {
        let complete = |message: &LoggedMessage| matches!(message.message, ReadMessage::Complete(_));
        let first = self.first.as_ref().and_then(|first| first.message);
        let first_complete = || self.messages.iter().position(complete);
        first.or_else(first_complete).or_else(|| (!self.messages.is_empty()).then_some(0))
    }
}
