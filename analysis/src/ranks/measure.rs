//! The numbers in which ranks are compared.

use super::run::RankRun;

/// A number that every rank has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Measure {
    /// The peak of allocated memory, in bytes.
    PeakAllocated,
    /// The peak of reserved memory, in bytes.
    PeakReserved,
    /// Free memory in the heap at the end, in bytes.
    Free,
    /// The largest hole in it, in bytes.
    LargestHole,
    /// Entries of the trace.
    Entries,
}

impl Measure {
    /// Every measure, the one that says most first.
    pub const ALL: [Measure; 5] =
        [Measure::PeakAllocated, Measure::PeakReserved, Measure::Free, Measure::LargestHole, Measure::Entries];

    /// Its name in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Measure::PeakAllocated => "peak_allocated_bytes",
            Measure::PeakReserved => "peak_reserved_bytes",
            Measure::Free => "free_bytes",
            Measure::LargestHole => "largest_hole_bytes",
            Measure::Entries => "entries",
        }
    }

    /// Whether it is a number of bytes.
    #[must_use]
    pub const fn is_bytes(self) -> bool {
        !matches!(self, Measure::Entries)
    }

    /// This run's value; `None` if it has none.
    #[must_use]
    pub fn of(self, run: &RankRun) -> Option<i64> {
        let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        match self {
            Measure::PeakAllocated => run.peak_allocated_bytes,
            Measure::PeakReserved => run.peak_reserved_bytes,
            Measure::Free => run.end.map(|end| signed(end.free_bytes)),
            Measure::LargestHole => run.end.map(|end| signed(end.largest_hole_bytes)),
            Measure::Entries => Some(signed(run.entries as u64)).filter(|&entries| entries > 0),
        }
    }
}
