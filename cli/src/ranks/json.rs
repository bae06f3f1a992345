//! The comparison of ranks as one JSON object.

use parkade_analysis::ranks::{Difference, FailsFirst, Odd, Variant};

use super::{Ranked, Ranks};
use crate::terminal::json_struct::{all, view};

view! {
    pub(super) struct Object<'a>(ranks: &'a Ranks) {
        ranks: Vec<Rank<'a>> = all(&ranks.runs, Rank::of),
        ranks_from: &'static str = ranks.from.name(),
        fails_first: Option<First> = ranks.comparison.fails_first.map(|first| First::of(ranks, first)),
        odd_one_out: Option<OddOne> = ranks.comparison.odd.first().map(|odd| OddOne::of(ranks, odd)),
        stand_out: Vec<OddOne> = all(&ranks.comparison.odd, |odd| OddOne::of(ranks, odd)),
        compared: usize = ranks.comparison.compared.len(),
        differences: Vec<Differs> = all(&ranks.comparison.differences, |difference| Differs::of(ranks, difference)),
    }
}

view! {
    struct Rank<'a>(ranked: &'a Ranked) {
        rank: u64 = ranked.rank,
        device: u32 = ranked.run.device,
        file: String = ranked.file.display().to_string(),
        entries: usize = ranked.run.entries,
        fails_at_entry: Option<usize> = ranked.run.failure.map(|failure| failure.entry),
        failed_at_us: Option<u64> = ranked.run.failure.and_then(|failure| failure.time_us),
        ooms: u64 = ranked.run.ooms,
        retries: Option<i64> = ranked.run.retries,
        peak_allocated_bytes: Option<i64> = ranked.run.peak_allocated_bytes,
        peak_reserved_bytes: Option<i64> = ranked.run.peak_reserved_bytes,
        free_bytes: Option<u64> = ranked.run.end.map(|end| end.free_bytes),
        largest_hole_bytes: Option<u64> = ranked.run.end.map(|end| end.largest_hole_bytes),
        profile: &'static str = ranked.run.profile,
        settings: &'a str = &ranked.run.settings,
    }
}

view! {
    /// Names a run.
    struct Name(ranks: &Ranks, run: usize) {
        rank: u64 = ranks.runs[run].rank,
        device: u32 = ranks.runs[run].run.device,
    }
}

view! {
    struct First(ranks: &Ranks, first: FailsFirst) {
        rank: u64 = ranks.runs[first.run].rank,
        device: u32 = ranks.runs[first.run].run.device,
        by: &'static str = if first.is_by_time { "time" } else { "entry" },
        next: Option<Name> = first.next.map(|(run, _)| Name::of(ranks, run)),
        next_after_us: Option<u64> = first.next.map(|(_, later_us)| later_us),
        failed: usize = first.failed,
    }
}

view! {
    struct OddOne(ranks: &Ranks, odd: &Odd) {
        rank: u64 = ranks.runs[odd.run].rank,
        device: u32 = ranks.runs[odd.run].run.device,
        measure: &'static str = odd.measure.name(),
        value: i64 = odd.value,
        median_of_others: i64 = odd.median,
        score: f64 = odd.score,
    }
}

view! {
    struct Differs(ranks: &Ranks, difference: &Difference) {
        of: &'static str = difference.name(),
        variants: Vec<OneVariant> = all(difference.variants(), |variant| OneVariant::of(ranks, variant)),
    }
}

view! {
    struct OneVariant(ranks: &Ranks, variant: &Variant) {
        value: String = variant.value.clone(),
        ranks: Vec<Name> = all(&variant.runs, |&run| Name::of(ranks, run)),
    }
}
