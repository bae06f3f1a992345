//! What happens in the address space beside the program's own cudaMallocs.

use super::layout::Layout;

/// Something that happens in the address space beside the program's own cudaMallocs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Change {
    /// Addresses are free for chunks.
    Space,
    /// A chunk that somebody else made has room.
    Chunk,
    /// Somebody else takes what is free.
    Hide,
    /// Somebody else gives back.
    Unhide,
}

/// A change of these addresses, and when.
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
