//! Two recorded runs compared: peaks, what holds the memory at them, fragmentation, driver calls, step by step.
//!
//! [`show`] sums up one [`Side`], a device of a recording or one of its steps; [`diff`] sums up two and pairs what they have in common.
//! `side` replays, `step_spans` finds steps, `run` sums up, `growth` and `phases` say what grew, `likeness` whether the runs are
//! comparable at all, and `bound` checks a peak against what is allowed.

mod bound;
mod comparison;
mod growth;
mod heap;
mod likeness;
mod phases;
mod placements;
mod portable_stack;
mod run;
mod side;
mod step_spans;
mod steps;

pub use bound::{Bound, Check};
pub use comparison::{Comparison, diff, show};
pub use growth::{Grouping, Growth, Held, Origin, SizeClass};
pub use likeness::{Likeness, Relation};
pub use phases::{Phase, PhaseChange, PhaseUse};
pub use run::{DriverUse, Peak, Run};
pub use side::{DiffError, Part, Side, Which};
pub use step_spans::{NoSteps, REPETITION};
pub use steps::{StepLevels, StepPair, Steps};
