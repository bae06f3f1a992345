//! A reader for pickles of plain data: dicts, lists, tuples, texts, numbers, booleans and None, protocols 0 to 5.
//!
//! Written for files from strangers. Nothing is imported or called: an opcode that would is refused by name and offset.
//! Memory is bounded by [`memory_bound`], time is linear in the file's length, and nothing recurses over the file's nesting.

mod cursor;
mod error;
mod heap;
mod literal;
mod machine;
mod memo;
pub(crate) mod opcode;
mod rare;
mod record;
mod shape;
mod stack;
mod template;
mod texts;
mod value;

pub use error::{PickleError, PickleProblem};
pub(crate) use heap::{Dict, Heap};
pub(crate) use texts::Texts;
pub(crate) use value::{Tag, Value};

/// Bytes of memory that reading a pickle of so many bytes may use beside the file itself: four times its length, or
/// 64 MiB for small files. Real recordings use less than twice their length. What is counted is what is in use; the
/// vectors that hold it may have up to twice that in address space.
pub fn memory_bound(length: usize) -> u64 {
    (length as u64).saturating_mul(4).max(64 << 20)
}

/// A pickle that was read: its root, and what it refers to.
pub(crate) struct Loaded<'a> {
    pub(crate) root: Value,
    pub(crate) heap: Heap,
    pub(crate) texts: Texts<'a>,
}

impl Loaded<'_> {
    /// Length of the file, in bytes.
    pub(crate) fn length(&self) -> usize {
        self.texts.input_length()
    }

    /// Python's name of a value's type, for messages.
    pub(crate) fn type_name(&self, value: Value) -> &'static str {
        self.heap.type_name(value)
    }
}

/// Reads a pickle.
///
/// # Errors
/// [`PickleError`], with the byte offset, for anything that is not a whole pickle of plain data.
pub(crate) fn load(input: &[u8]) -> Result<Loaded<'_>, PickleError> {
    let mut machine = machine::Machine::new(input);
    let root = machine.run(memory_bound(input.len()))?;
    let machine::Machine { heap, texts, .. } = machine;
    Ok(Loaded { root, heap, texts })
}
