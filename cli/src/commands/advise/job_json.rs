//! One setting for all ranks as JSON.

use crate::commands::beside::OnRanksObject;
use parkade_analysis::advise::paste_line;
use parkade_analysis::ranks::Standing;

use super::job::{Job, Rank};
use super::job_words as words;
use crate::terminal::json_struct::{all, view};

view! {
    pub(super) struct Object<'a>(job: &'a Job) {
        settings: Option<&'a str> = job.advice.serves_all.then_some(&job.advice.settings),
        line: Option<String> = job.advice.serves_all.then(|| paste_line(&job.advice.settings)),
        outcome: &'static str = job.fit().name(),
        own: bool = job.advice.is_own,
        tried: &'a str = &job.advice.settings,
        tightest_rank: u64 = job.ranks[job.advice.tightest].number,
        assumed_limit_bytes: Option<u64> = job.advice.assumed_bytes,
        enough_bytes: u64 = job.advice.enough.0,
        enough_settings: &'a str = &job.advice.enough.1,
        ranks: Vec<OfRank<'a>> = all(job.ranks.iter().zip(&job.advice.ranks), |(rank, standing)| OfRank::of(rank, *standing)),
        policies: Vec<OnRanksObject> = all(&job.policies, OnRanksObject::of),
        notes: Vec<String> = words::sentences(job),
    }
}

view! {
    struct OfRank<'a>(rank: &'a Rank, standing: Standing) {
        rank: u64 = rank.number,
        file: String = rank.file.display().to_string(),
        best_settings: Option<&'a str> = rank.advice.best().map(|best| &*best.settings),
        best_outcome: Option<&'static str> = rank.advice.best().map(|best| best.outcome.name()),
        best_smallest_capacity_bytes: Option<u64> = rank.advice.best().map(|best| best.needs_bytes),
        outcome: &'static str = standing.outcome.name(),
        smallest_capacity_bytes: u64 = standing.needs_bytes,
        capacity_bytes: Option<u64> = standing.available_bytes,
        margin_bytes: Option<i64> = standing.margin_bytes(),
    }
}
