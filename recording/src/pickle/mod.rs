//! Reads pickles of plain data (dicts, lists, tuples, text, numbers, booleans and None) in protocols 0 to 5.
//!
//! The reader must be safe for files from untrusted sources. It imports and calls nothing: it refuses any opcode that would
//! do so and names the opcode and its offset. [`memory_bound`] bounds the memory, the time is linear in the file's length,
//! and nothing recurses over the file's nesting.
//!
//! | file | contents |
//! |---|---|
//! | `load` | reads an entire pickle, in one or more pieces: the entry point, and the loop over the opcodes |
//! | `machine` | the pickle machine: its state, and a shortcut for the dicts that make up most of a recording |
//! | `objects` | the values read so far, and how they are stored |
//! | `skim` | what the beginning of a pickle shows about the rest |
//! | `opcode` | opcode names, and their arguments in the input; the errors in a pickle |
//! | `writer` | writes pickles |

mod load;
mod machine;
mod objects;
mod opcode;
mod skim;
mod writer;

pub use load::memory_bound;
pub(crate) use load::{Length, Loaded, load, load_bytes};
pub(crate) use objects::{Dict, Objects, Tag, Texts, Value};
pub use opcode::{PickleError, PickleProblem};
pub(crate) use skim::Skim;
pub(crate) use writer::Pickler;
pub use writer::Style;
