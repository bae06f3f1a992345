//! From a recording to advice: under which settings would the recorded program have fitted, in how much memory, and at what price?
//!
//! The way of the data: the requests of each traced device (`program`) are carried out under many settings (`candidates` says which,
//! `search` in which order, `evaluate` one of them); for each, the smallest memory in which it fits is searched (`capacity`). `verdict`
//! names why the program's own settings fail, `choice` picks one option, `hint` reads off an out-of-memory point how much memory
//! there was, and `report` is all of it in one call.
//!
//! Memory here is what the allocator may reserve: the device's memory without the driver's own, or the limit. It is held as PyTorch
//! holds a limit (`set_per_process_memory_fraction`). With expandable segments the last page may reach up to
//! one page beyond a limit; a margin as small as that is called close.

mod candidates;
mod capacity;
mod choice;
mod evaluate;
mod held;
mod hint;
mod program;
mod report;
mod search;
mod verdict;

pub use candidates::Candidate;
pub use choice::{Reason, Recommendation};
pub use evaluate::{DeviceOutcome, Space};
pub use held::Held;
pub use hint::{CapacityHint, hint};
pub use program::{Holder, LivePeak, Program};
pub use report::{AdviseOptions, Progress, Report, TimingFits, advise};
pub use search::AdvisedOption;
pub use verdict::{Cause, Verdict};
