//! Tests of the suite itself, the recordings, the scenarios and the rules of this repository.

mod core_laws;
mod corpus;
mod lockstep;
mod policies;
#[cfg(feature = "scenarios")]
mod recordings;
#[cfg(feature = "scenarios")]
mod scenarios;
mod source_rules;
