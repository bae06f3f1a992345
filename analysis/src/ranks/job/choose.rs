//! Which setting is for all ranks.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::tried::{RankAdvice, Tried};
use crate::advise::{Outcome, is_costly, tolerance_bytes};

/// How many settings are taken from what is most useful for each rank alone ...
const USEFUL: usize = 3;
/// ... and how many of these, over all ranks, are tried on every rank.
const MOST_TRIED: usize = 16;

/// How one rank fares with the setting for all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Standing {
    /// Whether its program fits.
    pub outcome: Outcome,
    /// The least memory in which it does.
    pub needs_bytes: u64,
    /// The memory it has: its own, or that of the other ranks, but at least what it reserved.
    pub available_bytes: Option<u64>,
}

impl Standing {
    /// What is left. Negative if memory is short.
    #[must_use]
    pub fn margin_bytes(&self) -> Option<i64> {
        let available = i64::try_from(self.available_bytes?).unwrap_or(i64::MAX);
        Some(available.saturating_sub_unsigned(self.needs_bytes))
    }
}

/// The advice on a job.
#[derive(Clone, Debug)]
pub struct JobAdvice {
    /// The setting that serves every rank. If none does: the one that serves the most ranks.
    pub settings: String,
    /// Whether it serves every rank.
    pub serves_all: bool,
    /// Whether it is every rank's own setting already.
    pub is_own: bool,
    /// How each rank fares with it, in the order of the ranks.
    pub ranks: Vec<Standing>,
    /// The rank with the least margin, or which needs most if no memory is known.
    pub tightest: usize,
    /// The memory that is assumed for ranks that do not show theirs: the least that another rank shows.
    pub assumed_bytes: Option<u64>,
    /// Ranks that no setting tried on them serves.
    pub hopeless: Vec<usize>,
    /// The least memory for each rank in which one setting serves all, and that setting.
    pub enough: (u64, String),
}

/// Settings that are useful for some rank and were not tried on others: for each rank, what to try there.
#[must_use]
pub fn still_to_try(ranks: &[RankAdvice]) -> Vec<Vec<String>> {
    let mut votes: BTreeMap<&str, usize> = BTreeMap::new();
    for rank in ranks {
        let useful = rank.best().into_iter().chain(rank.tried.iter().take(USEFUL));
        let useful: BTreeSet<&str> = useful.map(|tried| tried.settings.as_str()).collect();
        useful.into_iter().for_each(|settings| *votes.entry(settings).or_default() += 1);
    }
    let mut useful: Vec<(&str, usize)> = votes.into_iter().collect();
    useful.sort_by_key(|&(_, votes)| Reverse(votes));
    useful.truncate(MOST_TRIED);
    let missing = |rank: &RankAdvice| {
        let new = useful.iter().filter(|(settings, _)| rank.with(settings).is_none());
        new.map(|&(settings, _)| settings.to_owned()).collect()
    };
    ranks.iter().map(missing).collect()
}

/// One setting for all ranks. `None` if no setting was tried on all of them.
///
/// Of the settings that serve every rank, those with the best outcome and without warnings count; of these, those whose margin on their
/// tightest rank is near the widest; of these the one that costs least, sets the fewest keys, has expandable segments, has the widest
/// margin. If each rank's best settings are its own, and these are the same, they stay.
#[must_use]
pub fn one_setting(ranks: &[RankAdvice]) -> Option<JobAdvice> {
    let assumed_bytes = ranks.iter().filter_map(|rank| rank.available_bytes).min();
    let first = ranks.first()?;
    let everywhere = |tried: &Tried| {
        let on_each: Vec<&Tried> = ranks.iter().map(|rank| rank.with(&tried.settings)).collect::<Option<_>>()?;
        Some(Candidate::of(ranks, &on_each, assumed_bytes))
    };
    let mut seen = BTreeSet::new();
    let candidates: Vec<Candidate> =
        first.tried.iter().filter(|tried| seen.insert(&tried.settings)).filter_map(everywhere).collect();
    let enough = candidates.iter().min_by_key(|candidate| (candidate.enough_bytes, candidate.keys))?;
    let enough = (enough.enough_bytes, enough.settings.clone());
    let chosen = choose(&candidates, stays(ranks))?;
    let serves_none = |rank: &RankAdvice| !rank.tried.iter().any(|tried| served(rank, tried, assumed_bytes));
    Some(JobAdvice {
        settings: chosen.settings.clone(),
        serves_all: chosen.served == ranks.len(),
        is_own: ranks.iter().all(|rank| rank.own().is_some_and(|own| own.settings == chosen.settings)),
        tightest: chosen.tightest(),
        ranks: chosen.standings.clone(),
        assumed_bytes: assumed_bytes.filter(|_| ranks.iter().any(|rank| rank.available_bytes.is_none())),
        hopeless: (0..ranks.len()).filter(|&rank| serves_none(&ranks[rank])).collect(),
        enough,
    })
}

/// The settings that each rank has and that are the best for it alone.
fn stays(ranks: &[RankAdvice]) -> Option<&str> {
    let own = ranks.first()?.own()?.settings.as_str();
    let is_best = |rank: &RankAdvice| rank.best == Some(0) && rank.own().is_some_and(|tried| tried.settings == own);
    ranks.iter().all(is_best).then_some(own)
}

/// Whether a rank gets through with what was tried, in its own memory or the assumed one.
fn served(rank: &RankAdvice, tried: &Tried, assumed_bytes: Option<u64>) -> bool {
    match rank.available_bytes {
        Some(_) => tried.serves,
        None => rank.judged_by(assumed_bytes).is_none_or(|judged_by| tried.needs_bytes <= judged_by),
    }
}

/// A setting that was tried on every rank.
struct Candidate {
    settings: String,
    standings: Vec<Standing>,
    /// The least memory for each rank in which it serves all.
    enough_bytes: u64,
    /// How many ranks are served.
    served: usize,
    /// The worst outcome, as [`weight`].
    worst: u8,
    has_warnings: bool,
    reaches_beyond: bool,
    /// On the rank that spends most in the driver.
    driver_us: u64,
    keys: usize,
    is_expandable: bool,
}

impl Candidate {
    fn of(ranks: &[RankAdvice], on_each: &[&Tried], assumed_bytes: Option<u64>) -> Candidate {
        let standing = |(rank, tried): (&RankAdvice, &&Tried)| Standing {
            outcome: match (rank.available_bytes, rank.judged_by(assumed_bytes)) {
                // Its own memory is not known, so it was tried without a limit.
                (None, Some(judged_by)) if tried.needs_bytes <= judged_by => Outcome::Fits,
                (None, Some(_)) => Outcome::Unknown,
                _ => tried.outcome,
            },
            needs_bytes: tried.needs_bytes,
            available_bytes: rank.judged_by(assumed_bytes),
        };
        let standings: Vec<Standing> = ranks.iter().zip(on_each).map(standing).collect();
        Candidate {
            settings: on_each.first().map_or_else(String::new, |tried| tried.settings.clone()),
            enough_bytes: on_each.iter().map(|tried| tried.enough_bytes).max().unwrap_or(0),
            served: ranks.iter().zip(on_each).filter(|(rank, tried)| served(rank, tried, assumed_bytes)).count(),
            worst: standings.iter().map(|standing| weight(standing.outcome)).max().unwrap_or(0),
            has_warnings: on_each.iter().any(|tried| !tried.warnings.is_empty()),
            reaches_beyond: on_each.iter().any(|tried| tried.reaches_beyond),
            driver_us: on_each.iter().map(|tried| tried.driver_us).max().unwrap_or(0),
            keys: on_each.iter().map(|tried| tried.keys).max().unwrap_or(0),
            is_expandable: on_each.iter().any(|tried| tried.is_expandable),
            standings,
        }
    }

    /// The first of the ranks with the least margin.
    fn tightest(&self) -> usize {
        let key = |&rank: &usize| {
            let standing = &self.standings[rank];
            standing.margin_bytes().unwrap_or_else(|| 0_i64.saturating_sub_unsigned(standing.needs_bytes))
        };
        (0..self.standings.len()).min_by_key(key).unwrap_or(0)
    }

    /// What the tightest rank has left; without a known memory, less the more it needs.
    fn margin(&self) -> i64 {
        let standing = self.standings.get(self.tightest());
        standing.map_or(0, |one| one.margin_bytes().unwrap_or_else(|| 0_i64.saturating_sub_unsigned(one.needs_bytes)))
    }

    /// By how much the margin may be less than the widest.
    fn tolerance(&self) -> i64 {
        let needed = self.standings.get(self.tightest()).map_or(0, |one| one.needs_bytes);
        i64::try_from(tolerance_bytes(needed, self.is_expandable)).unwrap_or(i64::MAX)
    }
}

/// Fits before "gets past", and that before what is not known.
const fn weight(outcome: Outcome) -> u8 {
    match outcome {
        Outcome::Fits => 0,
        Outcome::GetsPast => 1,
        Outcome::Unknown => 2,
        Outcome::DoesNotFit => 3,
    }
}

fn choose<'c>(candidates: &'c [Candidate], stays: Option<&str>) -> Option<&'c Candidate> {
    if let Some(own) = candidates.iter().find(|one| stays == Some(&one.settings) && one.served == one.standings.len()) {
        return Some(own);
    }
    let standing = |one: &Candidate| (Reverse(one.served), one.worst, one.has_warnings, one.reaches_beyond);
    let best = candidates.iter().map(standing).min()?;
    let eligible: Vec<&Candidate> = candidates.iter().filter(|one| standing(one) == best).collect();
    let widest = eligible.iter().map(|one| one.margin()).max()?;
    let quickest = eligible.iter().map(|one| one.driver_us).min()?;
    let near = eligible.into_iter().filter(|one| one.margin().saturating_add(one.tolerance()) >= widest);
    near.min_by_key(|one| {
        (is_costly(one.driver_us, quickest), one.keys, !one.is_expandable, Reverse(one.margin()), one.driver_us)
    })
}
