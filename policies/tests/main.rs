//! Tests of the policies: their mechanisms, and comparisons with the answers of real allocators.

mod compaction;
mod every_nth_call;
mod hostile;
mod lending;
mod mechanisms;
mod moving_handles;
mod page_runs;
mod policy_run;
mod pools;
mod private_pools;
mod real_ones;
mod regions;
mod rescue;
mod rescue_in_captures;
mod stalloc;
