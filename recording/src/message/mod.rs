//! PyTorch's out-of-memory messages: from text to plain data.
//!
//! Three generations of messages are understood:
//! - up to PyTorch 1.3, figures in parentheses, of which the last is the memory cached and not allocated (`cached`);
//! - up to 2.0, the same, but the last is all reserved memory (`reserved in total by PyTorch`);
//! - since 2.1, sentences (spec 2.13). Version 2.1 misspelled a word (`capacty`).
//!
//! The text may be a longer log, and the message may have line breaks anywhere. [`MessageLog`] reads all messages of a log, by rank,
//! those that are cut included ([`PartialMessage`]), and names the framework that wrote a message that is not PyTorch's
//! ([`ForeignMessage`]). The one of PyTorch's cudaMallocAsync backend has figures of its own ([`CudaMallocAsyncMessage`]).
//! Sizes are printed with two decimals, so each is known to within half of its last digit.

mod cuda_malloc_async;
mod distinct;
mod foreign;
mod lines;
mod log;
#[cfg(test)]
mod log_tests;
mod out_of_memory;
mod parse;
mod partial;
mod prefix;
mod reader;
mod scan;
mod size;
mod stems;
#[cfg(test)]
mod tests;

pub use cuda_malloc_async::CudaMallocAsyncMessage;
pub use foreign::{ForeignMessage, Framework};
pub use log::{FirstFailure, LoggedMessage, MOST_MESSAGES, MessageLog, OtherMessage, ReadMessage, ToldBy};
pub use out_of_memory::{MessageError, OutOfMemoryMessage, ProcessUse};
pub use partial::PartialMessage;
pub use prefix::LogTime;
pub use size::Size;
