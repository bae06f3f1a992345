//! Entries of the suite and how a list of them is run: each has a name, runs on a backend and ends with a verdict.
//!
//! What is checked is in [`checks`](crate::checks); nothing here depends on it.

mod entry;
mod progress;
mod reference;
mod requirement;
mod row;
mod run;
mod verdict;

pub use entry::{Entry, Group};
pub use progress::{Progress, Silent};
pub use reference::Reference;
pub use requirement::Requirement;
pub use row::{Row, Status, Summary};
pub use run::{check, run};
pub use verdict::{Effort, Evidence, PROGRAM, Trouble, Verdict};
