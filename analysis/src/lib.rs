//! Answers about a recorded run: which settings would have fitted, why memory ran out, and what was where at which moment.
#![forbid(unsafe_code)]

pub mod advise;
pub mod caution;
pub mod diagnose;
pub mod measures;
pub mod timeline;
