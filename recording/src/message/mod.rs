//! Parses out-of-memory messages: from text to plain data.
//!
//! The module knows three generations of messages from PyTorch's GPU allocator, and those from its ports to other devices:
//! - up to PyTorch 1.3, figures in parentheses; the last figure is the cached, unallocated memory (`cached`);
//! - up to 2.0, the same form, but the last figure is all reserved memory (`reserved in total by PyTorch`);
//! - since 2.1, sentences (spec 2.13). Version 2.1 misspelled a word (`capacty`).
//!
//! The text may be a longer log, and the message may have line breaks anywhere. [`MessageLog`] reads all messages in a log,
//! by rank, including truncated ones, and names the source of a message that is not from PyTorch ([`Source`]). Every message
//! is an [`OutOfMemoryMessage`]. A figure is identified by the words around it, not by its order, and any figure may be
//! missing. Sizes are printed with two decimals, so each is known to within half of its last digit.

mod figures;
mod lines;
mod log;
mod patterns;
mod reader;
mod signs;

pub use figures::{MessageError, OutOfMemoryMessage, ProcessUse, Size, Source};
pub use lines::LogTime;
pub use log::{FirstFailure, LoggedMessage, MOST_MESSAGES, MessageLog, OtherMessage, ToldBy};
