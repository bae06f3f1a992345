//! The state before a recording's first entry, reconstructed from its end.
//!
//! A trace is a ring buffer, so its oldest entries may be missing. `rewind` undoes the entries, the last one first. This
//! yields the blocks and segments from before the first entry and finds contradictions. `extents` determines how long
//! those blocks are and corrects the lengths when a replay shows more; it also finds which mapped memory belongs to one
//! expandable segment. `state` is the result; it checks the entire trace once more, forwards.

mod extents;
mod rewind;
mod state;

pub(crate) use extents::{SmallerGap, TOTAL_MEMORY};
pub use state::LostBeginning;
pub(crate) use state::Start;
