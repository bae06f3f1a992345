//! PyTorch's out-of-memory messages, read back: text in, plain data out.
//!
//! Three generations are understood. Until 1.3 the last figure in the parenthesis is what is cached and not allocated (`cached`), from
//! then to 2.0 all that is reserved (`reserved in total by PyTorch`); since 2.1 the message is in sentences (spec 2.13), which 2.1
//! misspelt (`capacty`). A message may be broken into lines anywhere, and stand inside a longer log.
//!
//! Sizes in messages have two decimals of their unit, so each figure is known within half of its last digit.

mod out_of_memory;
mod parse;
mod size;
#[cfg(test)]
mod tests;

pub use out_of_memory::{MessageError, OutOfMemoryMessage, ProcessUse};
pub use size::Size;
