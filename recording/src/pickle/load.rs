//! Reading a whole pickle.

use super::cursor::NextPiece;
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
pub(crate) struct Loaded {
    pub(crate) root: Value,
    pub(crate) objects: Objects,
    pub(crate) texts: Texts,
    /// Length of what was read, in bytes.
    pub(crate) length: u64,
    /// The protocol that the file states, 0 if it states none.
    pub(crate) protocol: u8,
}

impl Loaded {
    /// Python's name of a value's type, for messages.
    pub(crate) fn type_name(&self, value: Value) -> &'static str {
        self.objects.type_name(value)
    }
}

/// Reads a pickle that comes in pieces: `next_piece` appends the next one, and nothing at the end. If the length is not known, it may be
/// estimated, and memory is bounded by what has come so far.
///
/// # Errors
/// [`PickleError`], with the byte offset, for anything that is not a whole pickle of plain data.
pub(crate) fn load(length: Length, next_piece: NextPiece<'_>) -> Result<Loaded, PickleError> {
    let mut machine = Machine::new(length, next_piece);
    let root = machine.run()?;
    let length = machine.cursor.fetched();
    let Machine { objects, texts, protocol, .. } = machine;
    Ok(Loaded { root, objects, texts, length, protocol })
}

/// The length of a pickle, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Length {
    Known(usize),
    Estimated(usize),
}

impl Length {
    /// What to make room for.
    pub(crate) fn expected(self) -> usize {
        match self {
            Length::Known(length) | Length::Estimated(length) => length,
        }
    }

    /// The most memory that may be in use after `fetched` bytes.
    pub(crate) fn memory_bound(self, fetched: u64) -> u64 {
        match self {
            Length::Known(length) => memory_bound(length),
            Length::Estimated(_) => memory_bound(usize::try_from(fetched).unwrap_or(usize::MAX)),
        }
    }
}

/// Reads a pickle that is in memory.
///
/// # Errors
/// As [`load`].
pub(crate) fn load_bytes(bytes: &[u8]) -> Result<Loaded, PickleError> {
    let mut pieces = bytes.chunks(PIECE);
    load(Length::Known(bytes.len()), &mut |input| input.extend_from_slice(pieces.next().unwrap_or_default()))
}

/// How many bytes of a pickle in memory are read at a time: few enough to stay in a cache.
const PIECE: usize = 1 << 18;
