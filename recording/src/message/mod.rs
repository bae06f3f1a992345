//! PyTorch's out-of-memory messages: from text to plain data.
//!
//! Three generations of messages are understood:
//! - up to PyTorch 1.3, figures in parentheses, of which the last is the memory cached and not allocated (`cached`);
//! - up to 2.0, the same, but the last is all reserved memory (`reserved in total by PyTorch`);
//! - since 2.1, sentences (spec 2.13). Version 2.1 misspelled a word (`capacty`).
//!
//! The text may be a longer log, and the message may have line breaks anywhere.
//! Sizes are printed with two decimals, so each is known to within half of its last digit.

mod out_of_memory;
mod parse;
mod size;
#[cfg(test)]
mod tests;

pub use out_of_memory::{MessageError, OutOfMemoryMessage, ProcessUse};
pub use size::Size;
