//! The comparison of two folders as one JSON object.

use super::folders::{Job, Peaks, Rank};
use crate::terminal::json_struct::{all, view};
use crate::terminal::runner::Outcome;

view! {
    pub(super) struct Object<'a>(job: &'a Job) {
        pairs: Vec<Pair> = all(&job.ranks, Pair::of),
        ranks_from: &'static str = job.matched.from,
        only_a: &'a [u64] = &job.matched.only_a,
        only_b: &'a [u64] = &job.matched.only_b,
        exceeded: bool = job.ranks.iter().any(|rank| rank.is_exceeded),
        check: Option<&'static str> = job.has_bounds.then(|| check(job.outcome)),
        notes: &'a [String] = &job.matched.notes,
    }
}

view! {
    struct Pair(rank: &Rank) {
        rank: u64 = rank.number,
        a: String = rank.a.display().to_string(),
        b: Option<String> = rank.b.as_ref().map(|file| file.display().to_string()),
        peak_reserved_bytes_a: Option<u64> = rank.levels.before.map(|peaks| peaks.reserved_bytes),
        peak_reserved_bytes: u64 = rank.levels.last.reserved_bytes,
        peak_allocated_bytes_a: Option<u64> = rank.levels.before.map(|peaks: Peaks| peaks.allocated_bytes),
        peak_allocated_bytes: u64 = rank.levels.last.allocated_bytes,
        died: bool = rank.died,
        exceeded: bool = rank.is_exceeded,
        check: &'static str = check(rank.outcome),
    }
}

/// What came of the bounds.
pub(super) const fn check(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Good => "holds",
        Outcome::CheckFailed => "exceeded",
        Outcome::NotKnown => "not_known",
        Outcome::CouldNotRun => "could_not_run",
    }
}
