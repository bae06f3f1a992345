//! The tests of the commands, one program: what they share is compiled once.

mod common;

mod advise;
mod advise_memory;
mod advise_ranks;
mod advise_survived;
mod agreement;
mod diagnose;
mod diagnose_cuda_malloc_async;
mod diagnose_limit;
mod died_lost_beginning;
mod diff;
mod diff_ranks;
mod enable;
mod escapes;
mod export_and_stats;
mod frontier;
mod json;
mod ops;
mod outputs;
mod pack;
mod perfetto;
mod ranks;
mod readme;
mod releases;
mod replay;
mod report;
mod report_answers;
mod report_kinds;
mod report_ranks;
mod report_targets;
mod sweep;
mod sweep_spread;
mod usage;
mod verify;
mod verify_bad_input;
