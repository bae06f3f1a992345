//! What others do to the address space, beside the program's own cudaMallocs.

use super::layout::Layout;

/// A kind of change that somebody else makes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Change {
    /// Addresses become free for chunks.
    Space,
    /// A chunk made by somebody else has room.
    Chunk,
    /// Somebody else takes free addresses.
    Hide,
    /// Somebody else returns addresses.
    Unhide,
}

/// A change to a range of addresses, at a moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Event {
    pub(super) moment: u64,
    pub(super) change: Change,
    pub(super) start: u64,
    pub(super) bytes: u64,
}

impl Event {
    pub(super) fn apply(&self, layout: &mut Layout) {
        match self.change {
            Change::Space => layout.add_space(self.start, self.bytes),
            Change::Chunk => layout.add_chunk(self.start, self.bytes),
            Change::Hide => layout.hide(self.start, self.bytes),
            Change::Unhide => layout.unhide(self.start, self.bytes),
        }
    }
}
