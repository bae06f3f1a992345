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

mod foreign;
mod lines;
mod log;
mod out_of_memory;
mod partial;
mod patterns;
mod reader;

pub use foreign::{CudaMallocAsyncMessage, ForeignMessage, Framework};
pub use lines::LogTime;
pub use log::{FirstFailure, LoggedMessage, MOST_MESSAGES, MessageLog, OtherMessage, ReadMessage, ToldBy};
pub use out_of_memory::{MessageError, OutOfMemoryMessage, ProcessUse, Size};
pub use partial::PartialMessage;
