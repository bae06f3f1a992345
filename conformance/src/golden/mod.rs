//! Golden files: scripts with the real allocator's answers, written by `differential/golden.py` and kept in `golden/`.

mod compare;
mod difference;
mod error;
mod file;
mod run;

pub use compare::Comparison;
pub use difference::Difference;
pub use error::GoldenError;
pub use file::{folder, read, read_file};
pub use run::{Agreement, GoldenRun};
