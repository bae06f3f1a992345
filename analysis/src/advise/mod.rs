//! Which settings would have let a recorded program fit, in how much memory, and at what price.
//!
//! [`advise`] (in `advice`) does all of it. It reads the requests of each traced device (`program`) and carries them out under many
//! settings: `candidates` lists them, `search` decides the order, `decisive` tells which of them decide the same, `evaluate` tries one, and
//! `capacity` finds the smallest memory in which it fits, in trials that share what they have in common (`trial`). Then `verdict` says why
//! the program's own settings fail and `choice` picks one option. Where the recorded run itself fitted, `as_recorded` says so. If the
//! caller does not know how much memory there was, `hint` infers it from an out-of-memory error in the recording.
//!
//! Memory here means what the allocator may reserve: the device's memory without the driver's own share, or the limit. It is enforced
//! as PyTorch enforces a limit (`set_per_process_memory_fraction`). The last page of an expandable segment may exceed a limit by up to
//! one page; an option with so little to spare counts as close.

mod advice;
mod advised_option;
mod as_recorded;
mod candidates;
mod capacity;
mod choice;
mod comparing;
mod decisive;
mod evaluate;
mod held;
mod likely;
mod memory;
mod options;
mod outcome;
mod program;
mod replay;
#[cfg(test)]
mod sample_programs;
mod search;
mod trial;
mod verdict;

pub use advice::{Advice, TimingFits, advise};
pub use advised_option::AdvisedOption;
pub use as_recorded::fit_as_recorded;
pub use choice::{Reason, Recommendation, paste_line};
pub(crate) use comparing::{is_costly, tolerance_bytes};
pub use evaluate::DeviceOutcome;
pub use held::Held;
pub use likely::LikelyRuns;
pub use memory::{DeviceMemory, MemoryContradiction, MemoryRange};
pub use options::{AdviseOptions, MemoryBudget, Progress};
pub use outcome::{Enough, Outcome};
pub use parkade_replay::recognition::{CapacityHint, capacity_hint};
pub use program::{LivePeak, Program};
pub use verdict::{FirstFailure, Verdict};
