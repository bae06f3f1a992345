//! Who holds the memory: parameters, gradients, optimizer states, activations, inputs, temporaries, workspaces, caches.
//!
//! A recording does not say what a block is for. [`Holders::of`] tells it, in this order: by the Python calls of the allocation
//! (`by_stack`), where the file has them; by its life against the forward and backward passes (`by_lifetime`), which are found in the
//! lives of all blocks (`passes`), with gradients paired to parameters by size (`gradients`, `kept`); and in a step that did not end,
//! by the step before (`by_repetition`). Where steps are known, by marks or by what the run repeats, each block is also told to live within
//! one or across them (`by_steps`). Each block says how it was told, and [`Kind::Unknown`] is one that was not.
//!
//! Some things look the same in lives alone: an input that the program does not keep is told as an activation, and a batch that is made
//! once and used in all passes as a parameter. In a run that trains nothing, brief blocks, those with calls, and those that its steps make
//! are told; what was there before is not.

mod by_lifetime;
mod by_repetition;
mod by_stack;
mod by_steps;
mod classify;
mod folded;
mod gradients;
mod kept;
mod kind;
mod passes;
mod run;
mod sums;

pub use by_steps::{StepLife, StepMark, Steps};
pub use classify::Holders;
pub use folded::Folded;
pub use kind::{How, Kind, Told};
pub use sums::{Held, KindUse, WithoutStack};
