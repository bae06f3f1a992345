//! What an entry of the suite is, and running a list of them: each has a name, runs on a backend and ends with a verdict.
//!
//! Nothing here knows what is checked: that is in [`checks`](crate::checks).

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
pub use verdict::{Effort, Evidence, Trouble, Verdict};
