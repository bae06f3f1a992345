//! Compares the ranks of one job: which one ran out of memory first, which one differs from the others, and whether they are
//! comparable.
//!
//! [`RankRun`] holds the compared numbers of one device of one file ([`Measure`]); its size does not depend on the file's. The
//! sizes that a program requests identify it even without stacks, which few recordings have ([`RequestSizes`]). [`compare`]
//! compares any number of runs and judges by release, settings, program and copies whether the files are from ranks of one
//! job. [`one_setting`] advises on one setting for all ranks.
//!
//! The odd one out is the rank that deviates most from the others' median. A rank's deviation is measured against the median
//! of the *other* ranks, in units of their median absolute deviation, so that neither the rank itself nor a second outlier
//! hides it. The bound is from Iglewicz and Hoaglin (1993), who use it for their modified z-score. Ranks of one job are often
//! exactly alike; any difference would then be infinitely many deviations, so differences below 1 % do not count.

mod job;

pub use job::{JobAdvice, RankAdvice, Standing, Tried, one_setting, still_to_try};

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};

use parkade::profile::Release;
use parkade_recording::{Action, DeviceRecording};
use parkade_replay::recognition::{Recognition, in_words, most_reserved, verify_finding_limit};
use parkade_replay::{DeviceVerdict, Outlook, ReplaySettings, VerifyError, VerifyOptions};
use rustc_hash::FxHasher;

use crate::ending::Ending;
use crate::fragmentation::Fragmentation;

/// The rank that ran out of memory first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FailsFirst {
    /// Its index among the compared runs.
    pub run: usize,
    /// The next rank that failed, and how many microseconds later it failed; `None` if no other rank failed, or if not all
    /// files have times.
    pub next: Option<(usize, u64)>,
    /// Whether the order was decided by times. Without times, the rank with fewer entries counts as first, which is a guess.
    pub is_by_time: bool,
    /// The number of ranks that ran out of memory.
    pub failed: usize,
}

/// The result of comparing ranks. Runs are identified by their index in the compared slice.
#[derive(Clone, PartialEq, Debug)]
pub struct Comparison {
    /// The rank that ran out of memory first; `None` if none did.
    pub fails_first: Option<FailsFirst>,
    /// The runs that differ from the others, ordered by measure and, within a measure, with the largest deviation first. The
    /// first is the odd one out.
    pub odd: Vec<Odd>,
    /// Evidence that the files are not from ranks of one job.
    pub differences: Vec<Difference>,
    /// The indices of the runs that were searched for outliers: the runs of the program that most files have, with each
    /// recording counted once.
    pub compared: Vec<usize>,
}

/// Compares the runs of several ranks.
///
/// The failure times are from the files, so if the hosts' clocks differ, the order may be wrong.
#[must_use]
pub fn compare(runs: &[RankRun]) -> Comparison {
    let (differences, compared) = differences(runs);
    Comparison { fails_first: fails_first(runs), odd: odd_ones(runs, &compared), differences, compared }
}

fn fails_first(runs: &[RankRun]) -> Option<FailsFirst> {
    let failures: Vec<_> = runs.iter().enumerate().filter_map(|(place, run)| Some((place, run.failure?))).collect();
    let times: Option<Vec<(u64, usize)>> = failures.iter().map(|&(place, failure)| Some((failure.time_us?, place))).collect();
    let (run, next, is_by_time) = if let Some(mut times) = times {
        times.sort_unstable();
        let &(first_us, run) = times.first()?;
        (run, times.get(1).map(|&(time_us, next)| (next, time_us - first_us)), true)
    } else {
        let (run, _) = failures.iter().min_by_key(|(place, failure)| (failure.entry, *place))?;
        (*run, None, false)
    };
    Some(FailsFirst { run, next, is_by_time, failed: failures.len() })
}

/// Ranks of one program have at least this share of their requests in common. Recordings of one program, even if one is cut
/// short or lengths vary, share a third or more; recordings of different programs mostly share less than a fifth.
const LEAST_IN_COMMON: f64 = 0.25;

/// Runs that share some property.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Variant {
    /// The common value: a release, or settings; empty for programs, which have no names.
    pub value: String,
    /// The indices of these runs.
    pub runs: Vec<usize>,
}

/// A property in which the runs of one job should not differ, but do. The variant that most runs have comes first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Difference {
    /// Releases of PyTorch.
    Release(Vec<Variant>),
    /// Settings of the allocator.
    Settings(Vec<Variant>),
    /// Programs, or parts of one program that have little in common.
    Program(Vec<Variant>),
    /// Runs with no differences, such as copies of one recording; each variant is one set of copies.
    Copies(Vec<Variant>),
}

impl Difference {
    /// Returns the groups of runs.
    #[must_use]
    pub fn variants(&self) -> &[Variant] {
        match self {
            Difference::Release(variants)
            | Difference::Settings(variants)
            | Difference::Program(variants)
            | Difference::Copies(variants) => variants,
        }
    }
}

parkade_recording::names! {
    Difference {
        Difference::Release(_) => "release",
        Difference::Settings(_) => "settings",
        Difference::Program(_) => "program",
        Difference::Copies(_) => "copies",
    }
}

/// Returns the differences between the runs, and the indices of the runs that can be compared: the runs of the most common
/// program, with copies counted once.
fn differences(runs: &[RankRun]) -> (Vec<Difference>, Vec<usize>) {
    let releases = releases(runs);
    let settings = by(runs, |run| &run.settings);
    let programs = programs(runs);
    let mut copies = by(runs, |run| run.content);
    copies.retain(|variant| variant.runs.len() > 1);
    copies.iter_mut().for_each(|variant| variant.value.clear());
    let is_copy = |place: usize| copies.iter().any(|variant| variant.runs[1..].contains(&place));
    let alike = programs.first().map_or(&[][..], |most| &most.runs);
    let alike = alike.iter().copied().filter(|&place| !is_copy(place)).collect();
    let mut found = Vec::new();
    found.extend((releases.len() > 1).then_some(Difference::Release(releases)));
    found.extend((settings.len() > 1).then_some(Difference::Settings(settings)));
    found.extend((programs.len() > 1).then_some(Difference::Program(programs)));
    found.extend((!copies.is_empty()).then_some(Difference::Copies(copies)));
    (found, alike)
}

/// Returns the runs by a property, the most frequent value first.
fn by<'r, T: Ord + ToString>(runs: &'r [RankRun], property: impl Fn(&'r RankRun) -> T) -> Vec<Variant> {
    let mut groups: BTreeMap<T, Vec<usize>> = BTreeMap::new();
    for (place, run) in runs.iter().enumerate() {
        groups.entry(property(run)).or_default().push(place);
    }
    most_first(groups.into_iter().map(|(value, runs)| Variant { value: value.to_string(), runs }).collect())
}

/// Returns the runs by release: each joins the first group that shares a possible release with it. Runs with the fewest
/// possible releases come first.
fn releases(runs: &[RankRun]) -> Vec<Variant> {
    let mut groups: Vec<(Vec<&'static Release>, Vec<usize>)> = Vec::new();
    let mut surest: Vec<(usize, &RankRun)> = runs.iter().enumerate().collect();
    surest.sort_by_key(|(_, run)| run.releases.len());
    for (place, run) in surest {
        let common = |releases: &[&'static Release]| -> Vec<&'static Release> {
            releases.iter().filter(|release| run.releases.contains(release)).copied().collect()
        };
        match groups.iter_mut().find(|(releases, _)| !common(releases).is_empty()) {
            Some((releases, places)) => {
                *releases = common(releases);
                places.push(place);
            }
            None => groups.push((run.releases.clone(), vec![place])),
        }
    }
    groups.iter_mut().for_each(|(_, places)| places.sort_unstable());
    most_first(groups.into_iter().map(|(releases, runs)| Variant { value: in_words(&releases), runs }).collect())
}

/// Returns the runs by program: each joins the first group with whose first run it has enough in common.
fn programs(runs: &[RankRun]) -> Vec<Variant> {
    let mut groups: Vec<(&RequestSizes, Variant)> = Vec::new();
    for (place, run) in runs.iter().enumerate() {
        match groups.iter_mut().find(|(sizes, _)| sizes.in_common(&run.sizes) >= LEAST_IN_COMMON) {
            Some((_, variant)) => variant.runs.push(place),
            None => groups.push((&run.sizes, Variant { value: String::new(), runs: vec![place] })),
        }
    }
    most_first(groups.into_iter().map(|(_, variant)| variant).collect())
}

fn most_first(mut variants: Vec<Variant>) -> Vec<Variant> {
    variants.sort_by_key(|variant| (std::cmp::Reverse(variant.runs.len()), variant.runs.first().copied()));
    variants
}

/// With fewer ranks, the comparison names no outlier.
pub const LEAST_RANKS: usize = 3;
/// A modified z-score above this is an outlier.
const BOUND: f64 = 3.5;
/// The ratio of a normal distribution's standard deviation to its median absolute deviation.
const NORMAL: f64 = 1.4826;
/// A smaller deviation does not count. This is a share of the median; for bytes, a share of the median peak of reserved memory.
const LEAST_SHARE: f64 = 0.01;
/// If more than one in this many ranks stands out in a measure, none of them is reported.
const MOST_OF: usize = 3;

/// A rank that stands out, listed under the first measure in which it does: the peaks come first, because the memory in use
/// at the end depends on when the snapshot was taken.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Odd {
    /// Its index among the compared runs.
    pub run: usize,
    /// The measure in which it stands out.
    pub measure: Measure,
    /// Its value.
    pub value: i64,
    /// The median of the others.
    pub median: i64,
    /// The difference from the median, in units of the others' deviation; greater than 3.5.
    pub score: f64,
}

/// Returns the runs that stand out among those at the indices `alike`, ordered by measure and, within a measure, with the
/// largest deviation first. The result is empty if there are fewer than [`LEAST_RANKS`].
fn odd_ones(runs: &[RankRun], alike: &[usize]) -> Vec<Odd> {
    let mut found: Vec<Odd> = Vec::new();
    let reserved = values(runs, alike, Measure::PeakReserved);
    let scale = median(&mut reserved.iter().map(|&(_, value)| value).collect::<Vec<_>>());
    let died = alike.iter().filter(|&&run| runs[run].is_cut_short).count();
    for measure in Measure::ALL {
        let values = values(runs, alike, measure);
        if values.len() < LEAST_RANKS {
            continue;
        }
        for odd in deviating(measure, &values, if measure.is_bytes() { scale } else { None }) {
            if is_telling(&runs[odd.run], &odd, died) && found.iter().all(|other| other.run != odd.run) {
                found.push(odd);
            }
        }
    }
    found
}

/// Returns whether a low value in this run is meaningful. It is not if the run is one of several that died, because how far
/// each of them got is a matter of chance.
fn is_telling(run: &RankRun, odd: &Odd, died: usize) -> bool {
    let grows = matches!(odd.measure, Measure::PeakAllocated | Measure::PeakReserved | Measure::Entries);
    !(run.is_cut_short && died > 1 && grows && odd.value < odd.median)
}

fn values(runs: &[RankRun], alike: &[usize], measure: Measure) -> Vec<(usize, i64)> {
    alike.iter().filter_map(|&run| Some((run, measure.of(&runs[run])?))).collect()
}

fn deviating(measure: Measure, values: &[(usize, i64)], scale: Option<i64>) -> Vec<Odd> {
    let of_one = |&(run, value): &(usize, i64)| {
        let others = || values.iter().filter(|(other, _)| *other != run).map(|&(_, value)| value);
        let median_of_others = median(&mut others().collect::<Vec<_>>())?;
        let deviation = |value: i64| value.saturating_sub(median_of_others).saturating_abs();
        let spread = NORMAL * median(&mut others().map(deviation).collect::<Vec<_>>())? as f64;
        let least = LEAST_SHARE * scale.unwrap_or(median_of_others).max(median_of_others) as f64;
        let unit = spread.max(least / BOUND);
        let score = if unit > 0.0 { deviation(value) as f64 / unit } else { 0.0 };
        (score > BOUND).then_some(Odd { run, measure, value, median: median_of_others, score })
    };
    let mut found: Vec<Odd> = values.iter().filter_map(of_one).collect();
    found.sort_by(|one, other| other.score.total_cmp(&one.score).then(one.run.cmp(&other.run)));
    // This many outliers form groups, such as the stages of a pipeline.
    if found.len() * MOST_OF > values.len() { Vec::new() } else { found }
}

/// Returns the median, which reorders the values; for an even number of values, the mean of the middle two, rounded down.
fn median(values: &mut [i64]) -> Option<i64> {
    let middle = values.len() / 2;
    let is_even = values.len().is_multiple_of(2);
    if values.is_empty() {
        return None;
    }
    let (below, &mut upper, _) = values.select_nth_unstable(middle);
    let lower = below.iter().copied().max().filter(|_| is_even).unwrap_or(upper);
    Some(((i128::from(lower) + i128::from(upper)) / 2) as i64)
}

/// A request that ran out of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Failure {
    /// Its entry in the trace.
    pub entry: usize,
    /// Its time, in microseconds since 1970, if the file has it.
    pub time_us: Option<u64>,
}

impl Failure {
    /// Returns the failure of the request at an entry of a device's trace.
    #[must_use]
    pub fn of(device: &DeviceRecording, entry: usize) -> Failure {
        Failure { entry, time_us: device.trace.get(entry).and_then(parkade_recording::Entry::time) }
    }
}

/// One device's run, reduced to what is compared with other ranks. It takes about 5 KiB.
#[derive(Clone, PartialEq, Debug)]
pub struct RankRun {
    /// The device's number in its file.
    pub device: u32,
    /// The number of entries in its trace.
    pub entries: usize,
    /// The request that the run died on. A request whose failure it survived does not count.
    pub failure: Option<Failure>,
    /// Whether the recorded run died, so that its peaks and entries cover only its beginning.
    pub is_cut_short: bool,
    /// The number of requests that ran out of memory.
    pub ooms: u64,
    /// `num_alloc_retries`; `None` if there is no trace or if the replay differs.
    pub retries: Option<i64>,
    /// The peak of allocated memory; `None` if there is no trace or if the replay differs.
    pub peak_allocated_bytes: Option<i64>,
    /// The peak of reserved memory; `None` if there is no trace.
    pub peak_reserved_bytes: Option<i64>,
    /// The heap when the snapshot was taken; `None` for a run under settings other than the recorded run's.
    pub end: Option<Fragmentation>,
    /// The PyTorch release by whose rules the recorded run was read.
    pub profile: &'static str,
    /// The releases that may have made the recording, the oldest first.
    pub releases: Vec<&'static Release>,
    /// The recorded run's settings, as in `PYTORCH_CUDA_ALLOC_CONF`.
    pub settings: String,
    /// The sizes that the program requested.
    pub sizes: RequestSizes,
    /// A hash of the trace and segments, which is equal for copies of a file.
    pub content: u64,
}

impl RankRun {
    /// Returns the recorded run of a device, from its verification.
    #[must_use]
    pub fn of_verdict(device: &DeviceRecording, own: &ReplaySettings, verdict: &DeviceVerdict) -> RankRun {
        let mut run = RankRun::recorded(device, own);
        if verdict.mismatches > 0 {
            // The replay differs from this run, so its results do not apply.
            run.peak_reserved_bytes = i64::try_from(most_reserved(device)).ok();
            return run;
        }
        run.retries = Some(verdict.stats.num_alloc_retries);
        run.peak_allocated_bytes = Some(verdict.peak_allocated_bytes());
        run.peak_reserved_bytes = Some(verdict.peak_reserved_bytes());
        run
    }

    /// Returns the recorded run of a device, after verifying it. A device without a trace has only its final heap. A limit
    /// that the run exceeded cannot have been the run's limit.
    ///
    /// # Errors
    /// Returns [`VerifyError`] if the trace contradicts itself.
    pub fn of_recording(device: &DeviceRecording, own: &VerifyOptions) -> Result<RankRun, VerifyError> {
        if device.trace.is_empty() {
            return Ok(RankRun::recorded(device, &own.settings));
        }
        let limit_bytes = own.limit_bytes.filter(|&limit| limit >= most_reserved(device));
        let own = VerifyOptions { limit_bytes, ..own.clone() };
        let (verdict, _) = verify_finding_limit(device, &own, &mut |_| ())?;
        Ok(RankRun::of_verdict(device, &own.settings, &verdict))
    }

    /// Returns the run of a device under other settings. `own` holds the recorded run's settings.
    #[must_use]
    pub fn of_outlook(device: &DeviceRecording, own: &ReplaySettings, outlook: &Outlook) -> RankRun {
        let prediction = &outlook.prediction;
        RankRun {
            failure: prediction.first_failure.map(|entry| Failure::of(device, entry)),
            ooms: u64::try_from(prediction.stats.num_ooms).unwrap_or(0),
            retries: Some(prediction.stats.num_alloc_retries),
            peak_allocated_bytes: Some(prediction.peak_allocated_bytes()),
            peak_reserved_bytes: Some(prediction.peak_reserved_bytes()),
            end: None,
            ..RankRun::recorded(device, own)
        }
    }

    /// Adds all releases that may have made the recording.
    #[must_use]
    pub fn made_by(self, found: &Recognition) -> RankRun {
        RankRun { releases: found.releases.clone(), ..self }
    }

    /// Returns the properties that need no replay.
    fn recorded(device: &DeviceRecording, own: &ReplaySettings) -> RankRun {
        let death = Ending::of(device).death().map(|death| death.entry);
        RankRun {
            device: device.device,
            entries: device.trace.len(),
            failure: death.map(|entry| Failure::of(device, entry)),
            is_cut_short: death.is_some(),
            ooms: device.trace.iter().filter(|entry| entry.action == Action::Oom).count() as u64,
            retries: None,
            peak_allocated_bytes: None,
            peak_reserved_bytes: None,
            end: Some(Fragmentation::of_recorded(&device.segments)),
            profile: own.profile.name,
            releases: own.profile.releases().collect(),
            settings: own.settings.text.clone(),
            sizes: RequestSizes::of(device),
            content: content(device),
        }
    }
}

fn content(device: &DeviceRecording) -> u64 {
    let mut hasher = FxHasher::default();
    for entry in &device.trace {
        (entry.action.name(), entry.address, entry.size, entry.stream, entry.time()).hash(&mut hasher);
    }
    for segment in &device.segments {
        (segment.address, segment.total_bytes, segment.stream).hash(&mut hasher);
        for block in &segment.blocks {
            (block.address, block.size, block.state.name()).hash(&mut hasher);
        }
    }
    hasher.finish()
}

/// The number of counters. Sizes with the same hash share a counter.
const COUNTS: u64 = 1024;

/// The frequency with which a program requests each size, as a fixed-size sketch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RequestSizes {
    counts: Vec<u32>,
    total: u64,
}

impl RequestSizes {
    /// Returns the sizes requested in a device's trace.
    #[must_use]
    pub fn of(device: &DeviceRecording) -> RequestSizes {
        let mut sizes = RequestSizes { counts: vec![0; COUNTS as usize], total: 0 };
        let requests = device.trace.iter().filter(|entry| entry.action == Action::Alloc);
        requests.for_each(|entry| sizes.add(entry.size));
        sizes
    }

    fn add(&mut self, size: u64) {
        // The result of FxHasher depends on the width of an address; this hash does not.
        let hash = size.wrapping_mul(0xf135_7aea_2e62_a9c5).rotate_left(26);
        let count = &mut self.counts[(hash % COUNTS) as usize];
        *count = count.saturating_add(1);
        self.total += 1;
    }

    /// Returns the share that two programs have in common, from 0 to 1: the sum, over all sizes, of the smaller of the size's
    /// shares in the two programs' requests. The share is 1 if one of them has no requests, because then nothing
    /// distinguishes them.
    #[must_use]
    pub fn in_common(&self, other: &RequestSizes) -> f64 {
        if self.total == 0 || other.total == 0 {
            return 1.0;
        }
        let share = |count: u32, total: u64| f64::from(count) / total as f64;
        let both = self.counts.iter().zip(&other.counts);
        both.map(|(&own, &others)| share(own, self.total).min(share(others, other.total))).sum()
    }
}

/// A number by which ranks are compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Measure {
    /// The peak of allocated memory, in bytes.
    PeakAllocated,
    /// The peak of reserved memory, in bytes.
    PeakReserved,
    /// The free memory in the final heap, in bytes.
    Free,
    /// The largest free block in the final heap, in bytes.
    LargestHole,
    /// The number of entries in the trace.
    Entries,
}

impl Measure {
    /// All measures, the most telling first.
    pub const ALL: [Measure; 5] =
        [Measure::PeakAllocated, Measure::PeakReserved, Measure::Free, Measure::LargestHole, Measure::Entries];

    /// Returns whether the measure is a number of bytes.
    #[must_use]
    pub const fn is_bytes(self) -> bool {
        !matches!(self, Measure::Entries)
    }

    /// Returns the run's value for this measure, or `None` if it has none.
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

parkade_recording::names! {
    Measure {
        Measure::PeakAllocated => "peak_allocated_bytes",
        Measure::PeakReserved => "peak_reserved_bytes",
        Measure::Free => "free_bytes",
        Measure::LargestHole => "largest_hole_bytes",
        Measure::Entries => "entries",
    }
}

#[cfg(test)]
mod tests {
    //! Tests comparisons of artificial ranks with known answers.

    use parkade::profile::Profile;
    use parkade_recording::{Action, DeviceRecording, Entry};
    use proptest::prelude::*;

    use super::*;
    use crate::fragmentation::Fragmentation;

    const GIB: i64 = 1 << 30;

    /// Returns a program that requests each of these sizes exactly once.
    fn program(sizes: impl IntoIterator<Item = u64>) -> RequestSizes {
        let trace = sizes.into_iter().map(|size| Entry::new(Action::Alloc, 0, size, 0)).collect();
        RequestSizes::of(&DeviceRecording { trace, ..DeviceRecording::default() })
    }

    /// Returns the releases that share this release's rules.
    fn releases(name: &str) -> Vec<&'static Release> {
        Profile::of(name).expect("a release").releases().collect()
    }

    /// Returns the run of a rank with this peak of allocated memory and this content hash; everything else is the same.
    fn run(content: u64, peak_allocated_bytes: i64) -> RankRun {
        RankRun {
            device: 0,
            entries: 1000,
            failure: None,
            is_cut_short: false,
            ooms: 0,
            retries: Some(0),
            peak_allocated_bytes: Some(peak_allocated_bytes),
            peak_reserved_bytes: Some(12 * GIB),
            end: Some(Fragmentation::default()),
            profile: "2.11",
            releases: releases("2.11"),
            settings: String::new(),
            sizes: program(0..100),
            content,
        }
    }

    fn ranks(peaks: &[i64]) -> Vec<RankRun> {
        peaks.iter().zip(0..).map(|(&peak, content)| run(content, peak)).collect()
    }

    fn odd(peaks: &[i64]) -> Vec<usize> {
        compare(&ranks(peaks)).odd.iter().map(|odd| odd.run).collect()
    }

    #[test]
    fn one_unlike_equal_ones_is_odd_from_one_per_cent_on() {
        let found = compare(&ranks(&[10 * GIB, 11 * GIB, 10 * GIB, 10 * GIB])).odd;
        let [odd_one] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!(
            (odd_one.run, odd_one.measure, odd_one.value, odd_one.median),
            (1, Measure::PeakAllocated, 11 * GIB, 10 * GIB)
        );
        assert!(odd(&[10 * GIB, 10 * GIB + (1 << 20), 10 * GIB, 10 * GIB]).is_empty());
        assert!(odd(&[10 * GIB; 4]).is_empty());
    }

    #[test]
    fn two_ranks_do_not_show_which_is_odd() {
        assert!(odd(&[10 * GIB, 20 * GIB]).is_empty());
        assert_eq!(odd(&[10 * GIB, 20 * GIB, 10 * GIB]), [1]);
    }

    #[test]
    fn ranks_that_vary_among_themselves_are_not_odd() {
        assert!(odd(&[10 * GIB, 11 * GIB, 12 * GIB, 13 * GIB, 14 * GIB]).is_empty());
        assert_eq!(odd(&[10 * GIB, 11 * GIB, 12 * GIB, 13 * GIB, 40 * GIB]), [4]);
        // Two halves, like the stages of a pipeline.
        assert!(odd(&[10 * GIB, 10 * GIB, 20 * GIB, 20 * GIB]).is_empty());
    }

    #[test]
    fn a_second_odd_one_does_not_hide_the_first() {
        assert_eq!(odd(&[10 * GIB, 30 * GIB, 10 * GIB, 10 * GIB, 60 * GIB, 10 * GIB]), [4, 1]);
    }

    #[test]
    fn peaks_say_more_than_what_is_left_at_the_end() {
        let mut runs = ranks(&[10 * GIB, 10 * GIB, 11 * GIB, 10 * GIB, 10 * GIB, 10 * GIB]);
        runs[2].peak_reserved_bytes = Some(40 * GIB);
        runs[4].end = Some(Fragmentation { free_bytes: 9 << 30, ..Fragmentation::default() });
        let odd: Vec<_> = compare(&runs).odd.iter().map(|odd| (odd.run, odd.measure)).collect();
        assert_eq!(odd, [(2, Measure::PeakAllocated), (4, Measure::Free)]);
    }

    #[test]
    fn the_first_failure_is_that_with_the_earliest_time() {
        let mut runs = ranks(&[GIB; 3]);
        assert_eq!(compare(&runs).fails_first, None);
        runs[0].failure = Some(Failure { entry: 10, time_us: Some(5_000) });
        runs[2].failure = Some(Failure { entry: 900, time_us: Some(4_000) });
        let by_time = FailsFirst { run: 2, next: Some((0, 1_000)), is_by_time: true, failed: 2 };
        assert_eq!(compare(&runs).fails_first, Some(by_time));
        runs[2].failure = Some(Failure { entry: 900, time_us: None });
        let by_entry = FailsFirst { run: 0, next: None, is_by_time: false, failed: 2 };
        assert_eq!(compare(&runs).fails_first, Some(by_entry));
    }

    #[test]
    fn other_programs_and_copies_do_not_count_among_the_alike() {
        let mut runs = ranks(&[10 * GIB, 10 * GIB, 10 * GIB, 40 * GIB, 10 * GIB]);
        runs[3].sizes = program(1_000_000..1_000_100);
        runs[3].releases = releases("2.15");
        runs[4].content = runs[0].content;
        runs[1].settings = "expandable_segments:True".to_owned();
        let found = compare(&runs);
        assert_eq!((found.compared, found.odd), (vec![0, 1, 2], vec![]));
        let variants = |difference: &Difference| difference.variants().iter().map(|one| one.runs.clone()).collect::<Vec<_>>();
        let named: Vec<_> = found.differences.iter().map(|one| (one.name(), variants(one))).collect();
        let expected = [
            ("release", vec![vec![0, 1, 2, 4], vec![3]]),
            ("settings", vec![vec![0, 2, 3, 4], vec![1]]),
            ("program", vec![vec![0, 1, 2, 4], vec![3]]),
            ("copies", vec![vec![0, 4]]),
        ];
        assert_eq!(named, expected);
    }

    #[test]
    fn releases_differ_only_where_none_may_have_made_both() {
        let mut runs = ranks(&[10 * GIB; 4]);
        let either: Vec<_> = [releases("2.10"), releases("2.11")].concat();
        runs[0].releases = either.clone();
        runs[2].releases = either;
        assert_eq!(compare(&runs).differences, []);
        runs[3].releases = releases("2.12");
        let variant = |value: &str, runs: &[usize]| Variant { value: value.to_owned(), runs: runs.to_vec() };
        let expected = vec![variant("2.11", &[0, 1, 2]), variant("2.12", &[3])];
        assert_eq!(compare(&runs).differences, [Difference::Release(expected)]);
    }

    #[test]
    fn nothing_is_made_of_nothing() {
        let found = compare(&[]);
        assert_eq!((found.fails_first, found.compared.len(), found.odd.len(), found.differences.len()), (None, 0, 0, 0));
    }

    proptest! {
        /// The order of the files affects only the indices, and absurd values do not overflow.
        #[test]
        fn the_order_does_not_matter(peaks in proptest::collection::vec(any::<i64>(), 0..12)) {
            let found = compare(&ranks(&peaks));
            let mut reversed = ranks(&peaks);
            reversed.reverse();
            let mirrored = compare(&reversed);
            let last = peaks.len().saturating_sub(1);
            let places = |found: &Comparison, mirror: bool| {
                let mut places: Vec<_> = found.odd.iter().map(|odd| if mirror { last - odd.run } else { odd.run }).collect();
                places.sort_unstable();
                places
            };
            prop_assert_eq!(places(&found, false), places(&mirrored, true));
        }
    }

    #[test]
    fn of_several_ranks_that_died_none_is_odd_for_what_it_had_no_time_to_need() {
        let with_died = |peak: i64, died: &[usize]| {
            let mut all = ranks(&[10 * GIB, 10 * GIB, 10 * GIB, peak]);
            died.iter().for_each(|&run| all[run].is_cut_short = true);
            compare(&all).odd.iter().map(|odd| odd.run).collect::<Vec<_>>()
        };
        assert_eq!((with_died(7 * GIB, &[]), with_died(7 * GIB, &[3])), (vec![3], vec![3]));
        assert_eq!((with_died(7 * GIB, &[0, 3]), with_died(13 * GIB, &[0, 3])), (vec![], vec![3]));
    }
}
