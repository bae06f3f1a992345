//! Out-of-memory messages: from text to plain data.
//!
//! Of PyTorch's GPU allocator three generations of messages are known, and those of its ports to other devices:
//! - up to PyTorch 1.3, figures in parentheses, of which the last is the memory cached and not allocated (`cached`);
//! - up to 2.0, the same, but the last is all reserved memory (`reserved in total by PyTorch`);
//! - since 2.1, sentences (spec 2.13). Version 2.1 misspelled a word (`capacty`).
//!
//! The text may be a longer log, and the message may have line breaks anywhere. [`MessageLog`] reads all messages of a log, by rank,
//! those that are cut included, and says who wrote one that is not PyTorch's ([`Source`]). Every message is an [`OutOfMemoryMessage`],
//! whose figures are told by the words around them and not by their order; none of them has to be there.
//! Sizes are printed with two decimals, so each is known to within half of its last digit.

mod encoding;
mod figures;
mod lines;
mod log;
mod patterns;
mod reader;
mod signs;
mod size;
mod source;

pub use figures::{MessageError, OutOfMemoryMessage, ProcessUse};
pub use lines::LogTime;
pub use log::{FirstFailure, LoggedMessage, MOST_MESSAGES, MessageLog, OtherMessage, ToldBy};
pub use size::Size;
pub use source::Source;
