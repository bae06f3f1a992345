//! How policies of parkade fare on all ranks of a job.

use crate::terminal::json_struct::view;
use crate::terminal::size::show_bytes;
use parkade_analysis::advise::Outcome as Fit;

use super::Needs;

/// A policy on all ranks.
pub struct OnRanks {
    policy: &'static str,
    /// The call that runs a program on it.
    call: String,
    /// How many ranks it was tried on.
    tried: usize,
    /// The worst rank's.
    outcome: Fit,
    /// The ranks with this outcome.
    worst_ranks: Vec<u64>,
    /// The rank that needs most, and how much. `None` if there is one that it does not serve in any memory.
    needs_most: Option<(u64, u64)>,
    /// Whether the memory of any rank is known or assumed.
    is_asked: bool,
}

impl OnRanks {
    /// Each policy that was named, on ranks with what it needs on each, in any order.
    #[must_use]
    pub fn of<'a>(on_each: impl Iterator<Item = (u64, &'a [Needs])>) -> Vec<OnRanks> {
        let mut on_each: Vec<(u64, &[Needs])> = on_each.collect();
        on_each.sort_by_key(|&(rank, _)| rank);
        // The same policies were named for all ranks.
        let policies = on_each.first().map_or(0, |(_, needs)| needs.len());
        (0..policies).filter_map(|place| OnRanks::of_one(&on_each, place)).collect()
    }

    fn of_one(on_each: &[(u64, &[Needs])], place: usize) -> Option<OnRanks> {
        let on_each: Vec<(u64, &Needs)> = on_each.iter().filter_map(|(rank, needs)| Some((*rank, needs.get(place)?))).collect();
        let (_, first) = on_each.first()?;
        let order = [Fit::DoesNotFit, Fit::Unknown, Fit::GetsPast, Fit::Fits];
        let outcome = order.into_iter().find(|fit| on_each.iter().any(|(_, needs)| needs.outcome() == *fit))?;
        let bytes: Option<Vec<(u64, u64)>> = on_each.iter().map(|(rank, needs)| Some((*rank, needs.smallest_bytes()?))).collect();
        Some(OnRanks {
            policy: first.policy(),
            call: first.call(),
            tried: on_each.len(),
            outcome,
            worst_ranks: on_each.iter().filter(|(_, needs)| needs.outcome() == outcome).map(|(rank, _)| *rank).collect(),
            needs_most: bytes.and_then(|bytes| bytes.into_iter().max_by_key(|&(_, bytes)| bytes)),
            is_asked: on_each.iter().any(|(_, needs)| needs.fits().is_some()),
        })
    }

    /// The ranks on which it fares worst.
    #[must_use]
    pub fn worst_ranks(&self) -> &[u64] {
        &self.worst_ranks
    }

    /// In words; `worst` are those of [`worst_ranks`](Self::worst_ranks).
    #[must_use]
    pub fn words(&self, worst: &str) -> String {
        let is_one = self.worst_ranks.len() == 1;
        let does = match self.outcome {
            Fit::Fits => format!("every one of the {} ranks fits", self.tried),
            Fit::GetsPast if is_one => format!("{worst} gets past its failure, after which its file has no more"),
            Fit::GetsPast => format!("{worst} get past their failures, after which their files have no more"),
            Fit::DoesNotFit if is_one => format!("{worst} fails"),
            Fit::DoesNotFit => format!("{worst} fail"),
            Fit::Unknown if self.is_asked => format!("not known whether {worst} fit{}", if is_one { "s" } else { "" }),
            Fit::Unknown => "every rank is served".to_owned(),
        };
        let most = match self.needs_most {
            Some((rank, bytes)) => format!("rank {rank} needs most, {}", show_bytes(bytes)),
            None => "there is a rank that it does not serve in any memory".to_owned(),
        };
        format!("with {} instead of one setting: {does}; {most}", self.call)
    }
}

view! {
    /// The same as a JSON object.
    pub struct OnRanksObject(found: &OnRanks) {
        policy: &'static str = found.policy,
        outcome: &'static str = found.outcome.name(),
        worst_ranks: Vec<u64> = found.worst_ranks.clone(),
        smallest_capacity_bytes: Option<u64> = found.needs_most.map(|(_, bytes)| bytes),
        needs_most_rank: Option<u64> = found.needs_most.map(|(rank, _)| rank),
    }
}
