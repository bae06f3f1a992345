//! A limit on what a file may expand to, so that one dict that occurs in a million places cannot fill memory.

use super::error::FormatProblem;

/// How many bytes of the file are not yet accounted for.
///
/// Every segment, block, entry and annotation takes the fewest bytes that it can have in a pickle. A
/// file that refers to the same dict or list a million times, at a few bytes each, would otherwise
/// expand to far more than its length.
pub(crate) struct Budget {
    left: usize,
}

impl Budget {
    /// Least bytes of a segment: a dict of three keys, two bytes for each key and value, and a list of one block.
    pub(crate) const SEGMENT: usize = 29;
    /// Least bytes of a block (size, state), and of an annotation (name, stage).
    pub(crate) const BLOCK: usize = 11;
    /// Least bytes of a trace entry (action, address, size, stream).
    pub(crate) const ENTRY: usize = 19;

    /// The budget of a file of this length in bytes.
    pub(crate) fn new(length: usize) -> Self {
        Budget { left: length.saturating_add(1 << 16) }
    }

    /// Takes the bytes of `dicts` dicts of one kind.
    ///
    /// # Errors
    /// [`FormatProblem::Repeated`] once the file is too short to contain them all.
    pub(crate) fn spend(&mut self, dicts: usize, bytes_each: usize) -> Result<(), FormatProblem> {
        let left = self.left.checked_sub(dicts.saturating_mul(bytes_each));
        self.left = left.ok_or(FormatProblem::Repeated)?;
        Ok(())
    }
}
