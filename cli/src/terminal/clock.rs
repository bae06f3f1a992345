//! Measures time with the machine's clock or with the one that the [surroundings](super::surroundings) provide, because some targets have
//! no clock.

use std::time::{Duration, Instant};

use super::surroundings::provided;

/// The start of a measurement.
#[derive(Clone, Copy, Debug)]
pub enum Start {
    /// By the machine's clock.
    Machine(Instant),
    /// By the provided clock.
    Provided(Duration),
}

impl Start {
    /// Returns the current time.
    pub fn now() -> Start {
        provided().map_or_else(|| Start::Machine(Instant::now()), |here| Start::Provided(here.now()))
    }

    /// Returns the time since then.
    pub fn elapsed(self) -> Duration {
        match self {
            Start::Machine(start) => start.elapsed(),
            Start::Provided(start) => provided().map_or(Duration::ZERO, |here| here.now().saturating_sub(start)),
        }
    }
}
