//! Reading a whole pickle.

use super::error::PickleError;
use super::machine::Machine;
use super::objects::Objects;
use super::texts::Texts;
use super::value::Value;

/// The most memory that reading a pickle of `length` bytes may use in addition to the file, in bytes.
///
/// Four times the length, or 64 MiB for small files; real recordings use less than twice their length. Only
/// memory in use counts: the vectors that contain it may reserve up to twice that in address space.
pub fn memory_bound(length: usize) -> u64 {
    (length as u64).saturating_mul(4).max(64 << 20)
}

/// A pickle that was read: its root, and what the root refers to.
pub(crate) struct Loaded<'a> {
    pub(crate) root: Value,
    pub(crate) objects: Objects,
    pub(crate) texts: Texts<'a>,
}

impl Loaded<'_> {
    /// Length of the file, in bytes.
    pub(crate) fn length(&self) -> usize {
        self.texts.input_length()
    }

    /// Python's name of a value's type, for messages.
    pub(crate) fn type_name(&self, value: Value) -> &'static str {
        self.objects.type_name(value)
    }
}

/// Reads a pickle.
///
/// # Errors
/// [`PickleError`], with the byte offset, for anything that is not a whole pickle of plain data.
pub(crate) fn load(input: &[u8]) -> Result<Loaded<'_>, PickleError> {
    let mut machine = Machine::new(input);
    let root = machine.run(memory_bound(input.len()))?;
    let Machine { objects, texts, .. } = machine;
    Ok(Loaded { root, objects, texts })
}
