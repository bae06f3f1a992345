//! Finds one setting for all ranks of a job, because a job has a single `PYTORCH_CUDA_ALLOC_CONF`.
//!
//! Each rank first gets its own advice. From that advice, [`RankAdvice`] keeps every setting that was tried, as a few
//! numbers, regardless of the recording's size. One rank's best settings may never have been tried on another, so
//! [`still_to_try`] lists what to try there. Then [`one_setting`] chooses by the same rules as the advice on one recording,
//! except that the tightest rank's margin counts.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use parkade::profile::Profile;
use rayon::prelude::*;

use crate::advise::{Advice, AdvisedOption, CompletedRuns, DeviceOutcome, Outcome, Verdict, is_costly, tolerance_bytes};
use crate::caution::Caution;

/// One setting, tried on one rank.
#[derive(Clone, Debug)]
pub struct Tried {
    /// The settings, as in `PYTORCH_CUDA_ALLOC_CONF`.
    pub settings: String,
    /// Whether every recorded request is served.
    pub serves: bool,
    /// Whether the last page of an expandable segment extends beyond the memory, which is possible under a limit but not on a
    /// device.
    pub reaches_beyond: bool,
    /// Whether the rank's program fits.
    pub outcome: Outcome,
    /// The cut runs that are similar to the rank's run, if its program died.
    pub completes: Option<CompletedRuns>,
    /// The smallest memory in which every request is served. If the rank's devices differ in memory, this is the memory of
    /// the smallest device minus what the tightest device has left.
    pub needs_bytes: u64,
    /// The smallest memory in which every request is served if each of the rank's devices has this much.
    pub enough_bytes: u64,
    /// The cost of the driver calls, in microseconds.
    pub driver_us: u64,
    /// The number of keys that the settings set.
    pub keys: usize,
    /// Whether segments are expandable.
    pub is_expandable: bool,
    /// Whether some of these settings work only under a memory limit.
    pub needs_limit: bool,
    /// The cautions about what the setting breaks in this rank's program.
    pub warnings: Vec<Caution>,
}

impl Tried {
    fn of(advice: &Advice, place: usize, option: &AdvisedOption) -> Tried {
        // The live bytes exceed the memory, even if the last page of an expandable segment conceals this.
        let is_hopeless = advice.verdict == Verdict::Capacity;
        Tried {
            settings: option.settings.text.clone(),
            serves: option.gets_past() && !is_hopeless,
            reaches_beyond: option.reaches_beyond(),
            outcome: if is_hopeless { advice.outcome } else { advice.outcome_with(place) },
            completes: option.completes,
            needs_bytes: needs_bytes(option),
            enough_bytes: option.smallest_capacity_bytes(),
            driver_us: option.driver_us(),
            keys: option.keys(),
            is_expandable: option.settings.expandable_segments,
            needs_limit: option.needs_limit(),
            warnings: option.warnings().copied().collect(),
        }
    }
}

fn needs_bytes(option: &AdvisedOption) -> u64 {
    let available = || option.devices.iter().filter_map(|device| device.available_bytes);
    let left = |device: &DeviceOutcome| Some(i128::from(device.available_bytes?) - i128::from(device.smallest_bytes));
    match (option.available_bytes, option.devices.iter().filter_map(left).min()) {
        (Some(least), Some(left)) if available().any(|bytes| bytes != least) => {
            u64::try_from(i128::from(least) - left).unwrap_or(0)
        }
        _ => option.smallest_capacity_bytes(),
    }
}

/// The advice on one rank: its memory, and what was tried.
#[derive(Clone, Debug)]
pub struct RankAdvice {
    /// The PyTorch release whose rules applied.
    pub profile: &'static Profile,
    /// The rank's memory, specified or shown by an out-of-memory error. `None` if it is not known.
    pub available_bytes: Option<u64>,
    /// The peak of bytes that its recorded run reserved.
    pub reserved_bytes: u64,
    /// All settings that were tried. The first is the recorded run's own; the others follow in order of usefulness.
    pub tried: Vec<Tried>,
    /// Whether the rank's run died, so that the memory needed includes an estimate of the rest.
    pub is_estimated: bool,
    /// The index of the settings that are best for this rank alone.
    pub best: Option<usize>,
}

impl RankAdvice {
    /// Summarizes a rank's advice.
    #[must_use]
    pub fn of(advice: &Advice) -> RankAdvice {
        RankAdvice {
            profile: advice.profile,
            available_bytes: advice.own().available_bytes,
            reserved_bytes: advice.programs.iter().map(|program| program.reserved_bytes).max().unwrap_or(0),
            tried: advice.options.par_iter().enumerate().map(|(place, option)| Tried::of(advice, place, option)).collect(),
            is_estimated: advice.programs.iter().any(|program| program.died() && program.continuation.is_some()),
            best: advice.recommendation.as_ref().map(|recommendation| recommendation.option),
        }
    }

    /// Adds the settings that a later search on the same rank tried and this search did not.
    pub fn add(&mut self, later: &Advice) {
        for tried in RankAdvice::of(later).tried {
            if self.with(&tried.settings).is_none() {
                self.tried.push(tried);
            }
        }
    }

    /// Returns the result of these settings on this rank, if they were tried.
    #[must_use]
    pub fn with(&self, settings: &str) -> Option<&Tried> {
        self.tried.iter().find(|tried| tried.settings == settings)
    }

    /// Returns the recorded run's own settings.
    #[must_use]
    pub fn own(&self) -> Option<&Tried> {
        self.tried.first()
    }

    /// Returns the rank's memory: its own, or the memory assumed for ranks whose recordings do not show it, but at least what
    /// the rank reserved.
    #[must_use]
    pub fn judged_by(&self, assumed_bytes: Option<u64>) -> Option<u64> {
        self.available_bytes.or(assumed_bytes.map(|assumed| assumed.max(self.reserved_bytes)))
    }

    /// Returns the settings that are best for this rank alone.
    #[must_use]
    pub fn best(&self) -> Option<&Tried> {
        self.tried.get(self.best?)
    }
}

/// The number of each rank's most useful settings that are candidates.
const USEFUL: usize = 3;
/// The maximum number of candidates, across all ranks, that are tried on every rank.
const MOST_TRIED: usize = 16;

/// The outcome of the common setting on one rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Standing {
    /// Whether the rank's program fits.
    pub outcome: Outcome,
    /// The smallest memory in which it fits.
    pub needs_bytes: u64,
    /// The rank's memory: its own, or that assumed from the other ranks, but at least what the rank reserved.
    pub available_bytes: Option<u64>,
}

impl Standing {
    /// Returns the memory that is left. Negative if memory is short.
    #[must_use]
    pub fn margin_bytes(&self) -> Option<i64> {
        let available = i64::try_from(self.available_bytes?).unwrap_or(i64::MAX);
        Some(available.saturating_sub_unsigned(self.needs_bytes))
    }
}

/// The advice on a job.
#[derive(Clone, Debug)]
pub struct JobAdvice {
    /// The setting that serves every rank. If none does, the one that serves the most ranks.
    pub settings: String,
    /// Whether it serves every rank.
    pub serves_all: bool,
    /// Whether it is already every rank's own setting.
    pub is_own: bool,
    /// The outcome of the setting on each rank, in rank order.
    pub ranks: Vec<Standing>,
    /// The rank with the smallest margin or, if no memory is known, the one that needs the most.
    pub tightest: usize,
    /// The memory that is assumed for ranks whose recordings do not show it: the smallest that any other rank shows.
    pub assumed_bytes: Option<u64>,
    /// The ranks that are not served by any of the settings tried.
    pub hopeless: Vec<usize>,
    /// The smallest memory per rank in which one setting serves all ranks, and that setting.
    pub enough: (u64, String),
}

/// Settings that are useful for some rank but have not been tried on others: for each rank, the settings to try there.
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

/// Chooses one setting for all ranks. Returns `None` if no setting was tried on all of them.
///
/// Among the settings that serve every rank, those with the best outcome and without warnings are considered; of these, those
/// whose margin on their tightest rank is near the widest; and of these, the order is the lowest cost, then the fewest keys,
/// then expandable segments, then the widest margin. If every rank's own settings are the best for it, and all ranks have the
/// same settings, they are kept.
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

/// Returns the settings of the ranks, if all ranks have the same settings and these are the best for each rank alone.
fn stays(ranks: &[RankAdvice]) -> Option<&str> {
    let own = ranks.first()?.own()?.settings.as_str();
    let is_best = |rank: &RankAdvice| rank.best == Some(0) && rank.own().is_some_and(|tried| tried.settings == own);
    ranks.iter().all(is_best).then_some(own)
}

/// Returns whether a setting serves a rank, in the rank's own memory or the assumed one.
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
    /// The smallest memory per rank in which the setting serves all ranks.
    enough_bytes: u64,
    /// The number of ranks served.
    served: usize,
    /// The worst outcome, as a [`weight`].
    worst: u8,
    has_warnings: bool,
    reaches_beyond: bool,
    /// The driver time of the rank that spends the most time in the driver.
    driver_us: u64,
    keys: usize,
    is_expandable: bool,
}

impl Candidate {
    fn of(ranks: &[RankAdvice], on_each: &[&Tried], assumed_bytes: Option<u64>) -> Candidate {
        let standing = |(rank, tried): (&RankAdvice, &&Tried)| Standing {
            outcome: match (rank.available_bytes, rank.judged_by(assumed_bytes)) {
                // The rank's own memory is not known, so the setting was tried without a limit.
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

    /// Returns the first of the ranks with the smallest margin.
    fn tightest(&self) -> usize {
        let key = |&rank: &usize| {
            let standing = &self.standings[rank];
            standing.margin_bytes().unwrap_or_else(|| 0_i64.saturating_sub_unsigned(standing.needs_bytes))
        };
        (0..self.standings.len()).min_by_key(key).unwrap_or(0)
    }

    /// Returns the tightest rank's remaining memory or, if its capacity is unknown, the negative of the memory it needs.
    fn margin(&self) -> i64 {
        let standing = self.standings.get(self.tightest());
        standing.map_or(0, |one| one.margin_bytes().unwrap_or_else(|| 0_i64.saturating_sub_unsigned(one.needs_bytes)))
    }

    /// Returns the amount by which a margin may be smaller than the widest one.
    fn tolerance(&self) -> i64 {
        let needed = self.standings.get(self.tightest()).map_or(0, |one| one.needs_bytes);
        i64::try_from(tolerance_bytes(needed, self.is_expandable)).unwrap_or(i64::MAX)
    }
}

/// Returns the weight of an outcome: "fits" ranks before "gets past", which ranks before an unknown outcome.
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

#[cfg(test)]
mod tests {
    //! Tests the choice of one setting for all ranks, from the settings that were tried on each.

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const MIB: u64 = 1 << 20;
    const EXPANDABLE: &str = "expandable_segments:True";

    /// Returns a rank with this much memory, and the memory that settings need on it. The first settings are its own; the
    /// best are those that need the least.
    fn rank(available_mib: Option<u64>, needs: &[(&str, u64)]) -> RankAdvice {
        let tried = |&(settings, needs_mib): &(&str, u64)| {
            let serves = available_mib.is_none_or(|available| needs_mib <= available);
            Tried {
                completes: None,
                settings: settings.to_owned(),
                serves,
                reaches_beyond: false,
                outcome: match available_mib {
                    None => Outcome::Unknown,
                    Some(_) if serves => Outcome::Fits,
                    Some(_) => Outcome::DoesNotFit,
                },
                needs_bytes: needs_mib * MIB,
                enough_bytes: needs_mib * MIB,
                driver_us: 1000,
                keys: settings.matches(':').count(),
                is_expandable: settings.contains(EXPANDABLE),
                needs_limit: false,
                warnings: Vec::new(),
            }
        };
        let tried: Vec<Tried> = needs.iter().map(tried).collect();
        let best = (0..tried.len()).filter(|&place| tried[place].serves).min_by_key(|&place| tried[place].needs_bytes);
        let profile = &Profile::PYTORCH_2_11;
        RankAdvice {
            profile,
            available_bytes: available_mib.map(|mib| mib * MIB),
            reserved_bytes: 0,
            tried,
            is_estimated: false,
            best,
        }
    }

    #[test]
    fn the_setting_with_the_widest_margin_on_its_tightest_rank() {
        let one = rank(Some(1000), &[("", 1200), ("split:1", 700), ("round:1", 980), ("both:1", 850)]);
        let other = rank(Some(1000), &[("", 1200), ("split:1", 990), ("round:1", 700), ("both:1", 860)]);
        let found = one_setting(&[one, other]).expect("advice");
        // On its own, each rank prefers a different setting.
        assert_eq!((found.settings.as_str(), found.serves_all, found.tightest), ("both:1", true, 1));
        assert_eq!(found.ranks[1].margin_bytes(), Some(140 * MIB as i64));
        assert!(found.hopeless.is_empty() && !found.is_own && found.assumed_bytes.is_none());
    }

    #[test]
    fn a_rank_with_less_memory_counts_by_what_is_left_to_it() {
        let small = rank(Some(500), &[("a:1", 400), ("b:1", 490)]);
        let large = rank(Some(1000), &[("a:1", 930), ("b:1", 700)]);
        let found = one_setting(&[small, large]).expect("advice");
        assert_eq!((found.settings.as_str(), found.tightest), ("a:1", 1));
    }

    #[test]
    fn where_no_setting_serves_all_it_is_said_who_is_left() {
        let one = || rank(Some(1000), &[("", 1100), ("split:1", 900), ("round:1", 1300)]);
        let other = rank(Some(1000), &[("", 1100), ("split:1", 1200), ("round:1", 900)]);
        let found = one_setting(&[one(), one(), other]).expect("advice");
        assert_eq!((found.settings.as_str(), found.serves_all, found.tightest), ("split:1", false, 2));
        assert_eq!((found.ranks[2].outcome, found.enough.clone()), (Outcome::DoesNotFit, (1100 * MIB, String::new())));
        assert!(found.hopeless.is_empty(), "each fits with some setting");
        let never = rank(Some(1000), &[("", 1500), ("split:1", 1500), ("round:1", 1500)]);
        assert_eq!(one_setting(&[one(), never]).expect("advice").hopeless, [1]);
    }

    #[test]
    fn ranks_without_a_known_memory_are_given_that_of_the_others() {
        let died = rank(Some(1000), &[("", 1100), (EXPANDABLE, 900)]);
        let other = rank(None, &[("", 950), (EXPANDABLE, 940)]);
        let found = one_setting(&[died.clone(), other]).expect("advice");
        assert_eq!((found.settings.as_str(), found.assumed_bytes, found.tightest), (EXPANDABLE, Some(1000 * MIB), 1));
        assert_eq!(found.ranks[1].outcome, Outcome::Fits);
        let larger = rank(None, &[("", 1200), (EXPANDABLE, 1100)]);
        assert!(!one_setting(&[died, larger]).expect("advice").serves_all);
        let unknown = [rank(None, &[("", 800), ("a:1", 600)]), rank(None, &[("", 800), ("a:1", 700)])];
        let found = one_setting(&unknown).expect("advice");
        assert_eq!((found.settings.as_str(), found.tightest, found.assumed_bytes), ("a:1", 1, None));
    }

    #[test]
    fn settings_stay_where_they_are_best_for_every_rank() {
        let at_ease = || RankAdvice { best: Some(0), ..rank(Some(1000), &[("", 600), ("a:1", 500)]) };
        let found = one_setting(&[at_ease(), at_ease()]).expect("advice");
        assert!(found.is_own && found.settings.is_empty());
        let other = rank(Some(1000), &[("", 990), ("a:1", 500)]);
        assert_eq!(one_setting(&[at_ease(), other]).expect("advice").settings, "a:1");
    }

    #[test]
    fn what_is_best_for_one_rank_is_tried_on_the_others() {
        let mut ranks = [rank(Some(1000), &[("", 1100), ("a:7", 900)]), rank(Some(1000), &[("", 1100), ("b:9", 900)])];
        assert_eq!(still_to_try(&ranks), [["b:9"], ["a:7"]]);
        assert!(!one_setting(&ranks).expect("the default was tried on both").serves_all);
        let more = rank(Some(1000), &[("a:7", 950), ("b:9", 930)]).tried;
        ranks.iter_mut().for_each(|rank| {
            rank.tried.extend(more.iter().filter(|one| rank.with(&one.settings).is_none()).cloned().collect::<Vec<_>>())
        });
        let found = one_setting(&ranks).expect("advice");
        assert!(found.serves_all && still_to_try(&ranks).iter().all(Vec::is_empty), "{found:?}");
        assert!(one_setting(&[rank(None, &[("a:1", 1)]), rank(None, &[("b:1", 1)])]).is_none(), "nothing is common");
        assert!(one_setting(&[]).is_none());
    }

    /// Returns the memory in which a rank is judged.
    fn memory(rank: &RankAdvice, ranks: &[RankAdvice]) -> Option<u64> {
        if rank.available_bytes.is_some() {
            return rank.available_bytes;
        }
        let least_of_others = ranks.iter().filter_map(|other| other.available_bytes).min()?;
        // The rank did have what it reserved.
        Some(if least_of_others < rank.reserved_bytes { rank.reserved_bytes } else { least_of_others })
    }

    proptest! {
        /// Looks at each rank and each setting.
        #[test]
        fn a_setting_is_judged_on_every_rank_by_the_memory_that_the_rank_has(
            drawn in vec((proptest::option::of(1..6_u64), 0..8_u64, [1..8_u64, 1..8, 1..8], 1..8_usize), 1..4),
        ) {
            let settings = ["", "a:1", EXPANDABLE];
            let ranks: Vec<RankAdvice> = drawn
                .iter()
                .map(|&(available, reserved, needs, tried)| {
                    let needs: Vec<(&str, u64)> = settings.into_iter().zip(needs).collect();
                    let tried: Vec<(&str, u64)> = (0..3).filter(|place| tried >> place & 1 == 1).map(|place| needs[place]).collect();
                    RankAdvice { reserved_bytes: reserved * MIB, ..rank(available, &tried) }
                })
                .collect();
            let common: Vec<&str> =
                settings.into_iter().filter(|settings| ranks.iter().all(|rank| rank.with(settings).is_some())).collect();
            let Some(found) = one_setting(&ranks) else {
                prop_assert!(common.is_empty());
                return Ok(());
            };
            let needs = |rank: &RankAdvice, settings: &str| rank.with(settings).map_or(0, |tried| tried.needs_bytes);
            let is_enough = |rank: &RankAdvice, settings: &str| {
                memory(rank, &ranks).is_none_or(|bytes| needs(rank, settings) <= bytes)
            };
            let served = |settings: &str| ranks.iter().filter(|rank| is_enough(rank, settings)).count();
            let chosen = found.settings.as_str();
            prop_assert!(common.contains(&chosen) && common.iter().all(|other| served(other) <= served(chosen)), "{:?}", found);
            let standings = ranks.iter().map(|rank| Standing {
                outcome: match (memory(rank, &ranks), rank.available_bytes) {
                    (None, _) => Outcome::Unknown,
                    (Some(_), _) if is_enough(rank, chosen) => Outcome::Fits,
                    (Some(_), None) => Outcome::Unknown,
                    (Some(_), Some(_)) => Outcome::DoesNotFit,
                },
                needs_bytes: needs(rank, chosen),
                available_bytes: memory(rank, &ranks),
            });
            prop_assert_eq!(&found.ranks, &standings.collect::<Vec<_>>());
            prop_assert_eq!(found.serves_all, served(chosen) == ranks.len());
            prop_assert_eq!(found.is_own, ranks.iter().all(|rank| rank.tried[0].settings == chosen));
            let least = ranks.iter().filter_map(|rank| rank.available_bytes).min();
            prop_assert_eq!(found.assumed_bytes, if ranks.iter().any(|rank| rank.available_bytes.is_none()) { least } else { None });
            let is_hopeless = |&place: &usize| ranks[place].tried.iter().all(|tried| !is_enough(&ranks[place], &tried.settings));
            prop_assert_eq!(&found.hopeless, &(0..ranks.len()).filter(is_hopeless).collect::<Vec<_>>());
            let left = |place: usize| memory(&ranks[place], &ranks).unwrap_or(0) as i64 - needs(&ranks[place], chosen) as i64;
            let is_tightest = |&place: &usize| (0..ranks.len()).all(|other| left(place) <= left(other));
            prop_assert_eq!(Some(found.tightest), (0..ranks.len()).find(is_tightest));
            let most = |settings: &&str| ranks.iter().map(|rank| needs(rank, settings)).max();
            let keys = |settings: &&str| settings.matches(':').count();
            let enough = common.iter().min_by_key(|settings| (most(settings), keys(settings)));
            let enough = enough.and_then(|settings| Some((most(settings)?, (*settings).to_owned())));
            prop_assert_eq!(Some(found.enough), enough);
        }
    }
}
