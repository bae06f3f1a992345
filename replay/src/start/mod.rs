//! The state before a recording's first entry, worked out from its end.

mod block_sizes;
mod consistency;
mod early;
mod expandable_runs;
mod inferred_sizes;
mod rewind;
mod state;

pub(crate) use consistency::check_consistency;
pub(crate) use expandable_runs::TOTAL_MEMORY;
pub(crate) use inferred_sizes::SmallerGap;
pub use state::LostBeginning;
pub(crate) use state::Start;
