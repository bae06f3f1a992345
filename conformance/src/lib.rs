//! parkade's conformance suite: the laws that the allocator obeys, and the machinery that checks them.
//!
//! The tests are in `tests/`. What they share is here: a device with a witness ([`device`]), sequences of operations
//! ([`operation`]), a naive model of what an allocator may do ([`model`], [`rules`], [`ladder`], [`history`]) and the [`world`] in which the core and
//! the model are run side by side; the laws that hold for every policy ([`policies`]); the real allocator's recorded answers ([`golden`]) and how answers are compared
//! ([`compare`]); recordings of real runs and how to cut and forge them ([`recordings`]); rules about source code
//! ([`tidy`]).
//!
//! Nothing in the model calls the core or shares code with it: it knows intervals, and the specification's rules
//! written a second time, the slow and obvious way.
#![forbid(unsafe_code)]

pub mod bench;
pub mod compare;
pub mod contract;
pub mod device;
pub mod differential;
pub mod golden;
pub mod harness;
pub mod history;
pub mod ladder;
mod law;
pub mod laws;
pub mod model;
pub mod operation;
pub mod peers;
pub mod policies;
pub mod recordings;
mod routing;
pub mod rules;
pub mod scenarios;
pub mod suite;
pub mod tidy;
pub mod world;

pub use law::{Broken, Law, ensure};

/// Settings of a property test: `cases` of them, or what the environment's `PROPTEST_CASES` says.
///
/// Failures are not written to files: the message holds the smallest failing input, which belongs into a test of its own.
#[must_use]
pub fn property_settings(cases: u32) -> proptest::test_runner::Config {
    let mut settings = proptest::test_runner::Config { failure_persistence: None, ..proptest::test_runner::Config::default() };
    if std::env::var_os("PROPTEST_CASES").is_none() {
        settings.cases = cases;
    }
    settings
}
