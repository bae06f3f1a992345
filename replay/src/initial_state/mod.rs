//! The state before a recording's first entry, worked out from its end.
//!
//! A trace is a ring buffer, so its beginning may be lost. `rewind` undoes the entries, last first, which
//! gives the blocks and segments from before the first entry (`early`) and finds contradictions.
//! `block_sizes` works out how long those blocks are, `inferred_sizes` corrects that when a replay shows
//! more; `expandable_runs` follows the mapped memory of expandable segments, and `expandable_ranges` tells which
//! of it belongs together. `state` is the result. `consistency` checks
//! the whole trace once more, forwards.

mod block_sizes;
mod consistency;
mod early;
mod expandable_ranges;
mod expandable_runs;
mod inferred_sizes;
mod rewind;
mod state;

pub(crate) use expandable_ranges::TOTAL_MEMORY;
pub(crate) use inferred_sizes::SmallerGap;
pub use state::LostBeginning;
pub(crate) use state::Start;
