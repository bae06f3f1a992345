//! A recorded run over time, as plain data for drawing: levels, lifetimes of blocks and segments, and markers.
//!
//! A *moment* is a number of completed entries: moment 0 is the state before the first entry, moment `n` the state after `n`
//! entries. `log` records the moments between which each block and segment existed; the heap at any moment, the levels, and
//! what holds the memory all follow from it. [`Timeline`] holds the log of one device's run, its levels and its markers:
//! out-of-memory errors, retries, and calls to `empty_cache`. [`Levels`] are memory levels at every moment, and aggregated into
//! buckets for drawing; [`what_if`] replays the requests under other settings and returns a curve of reserved bytes over the
//! recording's entries and the estimated rest. `packed` packs a log into few bytes and reads it back.

mod log;
mod packed;
mod served;

pub use log::{BlockLife, BlockNow, HeapLog, Holder, HolderKey, NEVER, SegmentLife, SegmentNow, holders};
pub use packed::{Column, Packed, PackedError, TimeSamples, pack_numbers};
pub use served::Served;

use parkade::profile::Profile;
use parkade::settings::Settings;
use parkade::stats::Family;
use parkade_recording::{Action, DeviceRecording};
use parkade_replay::{
    AfterFailure, Operation, PredictOptions, PredictedRun, Prediction, Requests, Timing, VerifyError, VerifyOptions, device_like,
};
use parkade_sim::address::LearnedAddressSpace;
use rustc_hash::FxHashMap;

/// One device's run over time.
#[derive(Clone, Debug)]
pub struct Timeline {
    /// The number of entries in its trace.
    pub entries: usize,
    /// The lifetime of each block and segment.
    pub log: HeapLog,
    /// Its memory levels at every moment.
    pub levels: Levels,
    /// Out-of-memory errors, retries and calls to `empty_cache`, by moment.
    pub markers: Vec<Marker>,
}

impl Timeline {
    /// Returns the timeline of one device of a recording. `own` holds the recorded run's settings and limit, and `requests`
    /// holds its requests. A device without a trace has a single moment, that of its final segments.
    ///
    /// # Errors
    /// Fails if the recording cannot be replayed.
    pub fn of_device(recording: &DeviceRecording, own: &VerifyOptions, requests: &Requests) -> Result<Timeline, VerifyError> {
        let entries = recording.trace.len();
        if entries == 0 {
            let log = HeapLog::of_segments(&recording.segments);
            let levels = log.levels(0);
            return Ok(Timeline { entries, log, levels, markers: Vec::new() });
        }
        let (log, retries) = HeapLog::of_trace(recording, own, !requests.pools.is_empty())?;
        let levels = log.levels(entries);
        let markers = markers(recording, &retries, requests);
        Ok(Timeline { entries, log, levels, markers })
    }
}

impl Timeline {
    /// Returns the timeline of a run that a simulation recorded, whatever the rules of its allocator. The entries state their
    /// pools, and `operations` states the rest.
    #[must_use]
    pub fn of_served(recording: &DeviceRecording, operations: &[Served]) -> Timeline {
        let entries = recording.trace.len();
        let log = HeapLog::of_served(recording, operations);
        let levels = log.levels(entries);
        let mut markers: Vec<Marker> = Vec::new();
        let mut first = 0;
        for operation in operations {
            let of_operation = recording.trace.get(first..operation.entries).unwrap_or(&[]);
            let mut add = |kind, bytes| markers.push(Marker { moment: first as u32, kind, bytes });
            if operation.empties_cache {
                add(MarkerKind::EmptyCache, None);
            }
            if operation.is_retried {
                add(MarkerKind::Retry, of_operation.last().map(|entry| entry.size));
            }
            let oom = of_operation.iter().position(|entry| entry.action == Action::Oom);
            if let Some(at) = oom {
                let (moment, bytes) = ((first + at) as u32, Some(of_operation[at].size));
                markers.push(Marker { moment, kind: MarkerKind::OutOfMemory, bytes });
            }
            first = operation.entries;
        }
        markers.sort_by_key(|marker| (marker.moment, marker.kind));
        Timeline { entries, log, levels, markers }
    }
}

/// The event at a marker.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum MarkerKind {
    /// A request ran out of memory.
    OutOfMemory,
    /// The device refused memory; the allocator released its cache and retried.
    Retry,
    /// The program called `empty_cache`, and memory was released.
    EmptyCache,
}

parkade_recording::names! {
    MarkerKind {
        MarkerKind::OutOfMemory => "oom",
        MarkerKind::Retry => "retry",
        MarkerKind::EmptyCache => "empty_cache",
    }
}

/// An event at a given moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Marker {
    /// The moment before the event, when the heap shows why the event happened.
    pub moment: u32,
    /// What happened.
    pub kind: MarkerKind,
    /// The size of the request that ran out of memory or was retried.
    pub bytes: Option<u64>,
}

/// Returns the markers of a device's recording, by moment. `retries` are the moments after the requests that were retried.
fn markers(recording: &DeviceRecording, retries: &[u32], requests: &Requests) -> Vec<Marker> {
    let mut markers: Vec<Marker> = Vec::new();
    for (at, entry) in recording.trace.iter().enumerate().filter(|(_, entry)| entry.action == Action::Oom) {
        markers.push(Marker { moment: at as u32, kind: MarkerKind::OutOfMemory, bytes: Some(entry.size) });
    }
    // Programs often call `empty_cache` several times in a row; one marker is enough.
    let mut calls: Vec<usize> =
        requests.operations.iter().filter(|(_, what)| *what == Operation::EmptyCache).map(|&(at, _)| at).collect();
    calls.dedup();
    markers.extend(calls.iter().map(|&at| Marker { moment: at as u32, kind: MarkerKind::EmptyCache, bytes: None }));
    markers.extend(retries.iter().map(|&moment| Marker {
        moment: moment.saturating_sub(1),
        kind: MarkerKind::Retry,
        bytes: recording.trace.get(moment.saturating_sub(1) as usize).map(|entry| entry.size),
    }));
    markers.sort_by_key(|marker| (marker.moment, marker.kind));
    markers
}

/// Bytes at every moment. Each list has one more element than the trace has entries.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Levels {
    /// Bytes of live blocks.
    pub allocated: Vec<u64>,
    /// Bytes of live blocks, plus bytes of freed blocks that other streams still use.
    pub active: Vec<u64>,
    /// Reserved bytes.
    pub reserved: Vec<u64>,
}

/// A level during a range of moments, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Bucket {
    /// Its minimum.
    pub min: u64,
    /// Its maximum.
    pub max: u64,
    /// Its value at the last of these moments.
    pub last: u64,
}

/// An aggregated level: of `k` buckets over `n` moments, bucket `i` covers the moments from `i * n / k` up to, but not
/// including, `(i + 1) * n / k`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Curve {
    /// The buckets in order.
    pub buckets: Vec<Bucket>,
    /// The number of moments.
    pub moments: usize,
}

impl HeapLog {
    /// Returns the levels at every moment of a run with this many entries.
    fn levels(&self, entries: usize) -> Levels {
        let blocks = || self.blocks.iter();
        Levels {
            allocated: sum_of(blocks().map(|block| (block.born, block.freed, block.size)), entries),
            active: sum_of(blocks().map(|block| (block.born, block.gone, block.size)), entries),
            reserved: sum_of(self.segments.iter().map(|segment| (segment.born, segment.gone, segment.size)), entries),
        }
    }
}

/// Returns, for each moment, the total size of everything that exists then. A lifetime includes its first moment and excludes
/// the moment at its end.
fn sum_of(lives: impl Iterator<Item = (u32, u32, u64)>, entries: usize) -> Vec<u64> {
    let mut changes = vec![0_u64; entries + 1];
    for (born, gone, size) in lives {
        if let Some(change) = changes.get_mut(born as usize) {
            *change = change.wrapping_add(size);
        }
        if let Some(change) = changes.get_mut(gone as usize) {
            *change = change.wrapping_sub(size);
        }
    }
    let mut level = 0_u64;
    for change in &mut changes {
        level = level.wrapping_add(*change);
        *change = level;
    }
    changes
}

impl Curve {
    /// Aggregates a level, known at every moment, into at most this many buckets.
    #[must_use]
    pub fn of(level: &[u64], most_buckets: usize) -> Curve {
        let moments = level.len();
        let count = most_buckets.min(moments);
        let bucket = |i: usize| {
            let part = &level[i * moments / count..(i + 1) * moments / count];
            let (mut min, mut max) = (u64::MAX, 0);
            for &bytes in part {
                (min, max) = (min.min(bytes), max.max(bytes));
            }
            Bucket { min, max, last: part.last().copied().unwrap_or_default() }
        };
        Curve { buckets: (0..count).map(bucket).collect(), moments }
    }

    /// Returns the highest value at any moment, in bytes.
    #[must_use]
    pub fn peak(&self) -> u64 {
        self.buckets.iter().map(|bucket| bucket.max).max().unwrap_or(0)
    }
}

impl Levels {
    /// Returns the first moment at which a level is at its highest.
    #[must_use]
    pub fn peak_moment(level: &[u64]) -> usize {
        let peak = level.iter().max();
        level.iter().position(|bytes| Some(bytes) == peak).unwrap_or(0)
    }
}

/// PyTorch rounds requests up to a multiple of this many bytes (spec 1.2).
const ROUNDING: u64 = 512;

/// The requests to run, and the device to run them on.
#[derive(Clone, Debug)]
pub struct WhatIf<'a> {
    /// The program's requests.
    pub requests: &'a Requests,
    /// The addresses at which the program's driver places segments.
    pub learned: &'a LearnedAddressSpace,
    /// The device's number.
    pub device: u32,
    /// The entries that the curves cover.
    pub span: Span,
    /// The PyTorch release whose rules apply.
    pub profile: &'static Profile,
    /// The memory limit; unlimited if `None`.
    pub limit_bytes: Option<u64>,
    /// The device's memory; unlimited if `None`.
    pub capacity_bytes: Option<u64>,
}

/// The entries that a curve covers, starting with moment 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// The number of entries.
    pub entries: usize,
    /// The point at which the estimated entries begin, if there are any.
    pub rest: Option<Rest>,
}

/// The estimated rest of a run that died. It follows the request that failed; anything that the dying run did after that is
/// left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rest {
    /// The entry of the request that failed.
    pub died_at: usize,
    /// The first estimated entry among the requests.
    pub first: usize,
}

impl Span {
    /// Returns all entries of a recording.
    #[must_use]
    pub const fn recorded(entries: usize) -> Span {
        Span { entries, rest: None }
    }

    /// Returns the entries up to the one at which the run died, and the estimated entries among these requests, which begin
    /// at the entry `first`.
    #[must_use]
    pub fn continued(requests: &Requests, died_at: usize, first: usize) -> Span {
        let last = requests.operations.last().map_or(0, |&(entry, _)| entry);
        Span { entries: died_at + 1 + (last + 1).saturating_sub(first), rest: Some(Rest { died_at, first }) }
    }

    /// Returns the moment after one of the requests' entries.
    #[must_use]
    pub fn moment(&self, entry: usize) -> usize {
        match self.rest {
            Some(Rest { died_at, first }) if entry >= first => died_at + 2 + (entry - first),
            // Requests from before the first entry belong to moment 0.
            _ if entry == 0 => 0,
            _ => entry + 1,
        }
    }
}

/// The outcome of a run under other settings.
#[derive(Clone, Debug)]
pub struct WhatIfRun {
    /// Reserved bytes over the recording's entries.
    pub reserved: Curve,
    /// All other results of the run.
    pub prediction: Prediction,
}

/// Runs the requests under `settings`. A request that fails does not end the run: some programs catch the error and continue
/// with less memory.
#[must_use]
pub fn what_if(what: &WhatIf<'_>, settings: &Settings, most_buckets: usize) -> WhatIfRun {
    let device = device_like(what.device, what.learned, what.capacity_bytes);
    let options = PredictOptions {
        profile: what.profile,
        settings: settings.clone(),
        limit_bytes: what.limit_bytes,
        after_failure: AfterFailure::GoOn,
        timing: Timing::Recorded,
    };
    let mut run = PredictedRun::new(what.requests, device, &options, ());
    let mut curve = Running::over(what.span, most_buckets);
    let mut peak = 0;
    for &(entry, _) in &what.requests.operations {
        if !run.step() {
            break;
        }
        let reserved = run.stats().family(Family::ReservedBytes).all;
        // During an operation, more may be reserved than at its end.
        let most = if reserved.peak > peak { reserved.peak } else { reserved.current };
        peak = reserved.peak;
        curve.add(what.span.moment(entry), as_bytes(reserved.current), as_bytes(most));
    }
    WhatIfRun { reserved: curve.end(), prediction: run.prediction() }
}

/// Returns the bytes that the requests keep in use, with each block rounded up as PyTorch rounds it (spec 1.2). A request
/// that fails in the recording does not count.
#[must_use]
pub fn in_use(requests: &Requests, span: Span, most_buckets: usize) -> Curve {
    let mut curve = Running::over(span, most_buckets);
    let mut sizes: FxHashMap<usize, u64> = FxHashMap::default();
    let mut level = 0_u64;
    for &(entry, operation) in &requests.operations {
        match operation {
            Operation::Allocate { id, bytes, failed: false, .. } => {
                let bytes = bytes.max(1).checked_next_multiple_of(ROUNDING).unwrap_or(u64::MAX);
                sizes.insert(id, bytes);
                level = level.saturating_add(bytes);
            }
            Operation::Free { id, .. } => level = level.saturating_sub(sizes.remove(&id).unwrap_or(0)),
            _ => {}
        }
        curve.add(span.moment(entry), level, level);
    }
    curve.end()
}

fn as_bytes(amount: i64) -> u64 {
    u64::try_from(amount).unwrap_or(0)
}

/// A curve being drawn from left to right.
struct Running {
    /// The buckets of all moments before the current one.
    buckets: Vec<Bucket>,
    count: usize,
    moments: usize,
    /// The current moment, and the level at it.
    moment: usize,
    now: Bucket,
}

impl Running {
    fn over(span: Span, most_buckets: usize) -> Running {
        let moments = span.entries + 1;
        let count = most_buckets.min(moments).max(1);
        Running { buckets: Vec::new(), count, moments, moment: 0, now: Bucket::default() }
    }

    fn end(mut self) -> Curve {
        self.advance(self.moments);
        Curve { buckets: self.buckets, moments: self.moments }
    }

    /// Sets the level at a moment, and the highest level during it. The moments before it keep the level that was set last.
    fn add(&mut self, moment: usize, level: u64, most: u64) {
        let moment = moment.min(self.moments - 1);
        let most = if moment > self.moment { most } else { most.max(self.now.max) };
        self.advance(moment);
        self.now = Bucket { min: level, max: most, last: level };
    }

    /// Draws all moments up to, but not including, this one.
    fn advance(&mut self, moment: usize) {
        if moment > self.moment {
            let level = self.now.last;
            self.draw(self.moment, self.now);
            self.now = Bucket { min: level, max: level, last: level };
            if moment > self.moment + 1 {
                self.draw(self.moment + 1, self.now);
                self.draw(moment - 1, self.now);
            }
            self.moment = moment;
        }
    }

    /// Draws a level at a moment, and also at all moments since the one that was drawn last.
    fn draw(&mut self, moment: usize, level: Bucket) {
        // The bucket that covers the moment: the last i with i * moments / count <= moment.
        let place = (((moment + 1) * self.count - 1) / self.moments).min(self.count - 1);
        if let Some(bucket) = self.buckets.get_mut(place) {
            *bucket = Bucket { min: bucket.min.min(level.min), max: bucket.max.max(level.max), last: level.last };
        }
        self.buckets.resize(self.buckets.len().max(place + 1), level);
    }
}

#[cfg(test)]
mod tests {
    use parkade::snapshot::BlockActivity;
    use parkade::units::PoolId;
    use parkade_replay::Completion;
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::drawn_runs::{DrawnRun, programs};

    #[test]
    fn no_extreme_is_lost() {
        let level: Vec<u64> = (0..1000).map(|i| if i == 777 { 5000 } else { i }).collect();
        for count in [1, 7, 64, 1000, 4096] {
            let curve = Curve::of(&level, count);
            assert_eq!(curve.buckets.len(), count.min(1000));
            assert_eq!((curve.peak(), curve.moments), (5000, 1000));
            assert_eq!(curve.buckets.iter().map(|bucket| bucket.min).min(), Some(0));
            assert_eq!(curve.buckets.last().map(|bucket| bucket.last), Some(999));
        }
        assert_eq!(Curve::of(&level, 10).buckets[7], Bucket { min: 700, max: 5000, last: 799 });
        assert_eq!((Levels::peak_moment(&level), Curve::of(&[], 5).peak()), (777, 0));
    }

    #[test]
    fn what_is_estimated_follows_the_request_that_failed() {
        let allocate = |id, bytes| Operation::Allocate { id, bytes, stream: 0, pool: PoolId::DEFAULT, failed: false };
        let free = |id| Operation::Free { id, completion: Completion::AtOnce };
        // The file has ten entries; the run died at the fifth, so the rest is numbered from 10.
        let operations = vec![(0, allocate(0, 1000)), (4, allocate(1, 512)), (10, free(0)), (12, allocate(2, 1))];
        let requests = Requests { operations, ..Requests::default() };
        let span = Span::continued(&requests, 4, 10);
        assert_eq!(span, Span { entries: 8, rest: Some(Rest { died_at: 4, first: 10 }) });
        assert_eq!([0, 1, 4, 10, 12].map(|entry| span.moment(entry)), [0, 2, 5, 6, 8]);
        let levels: Vec<u64> = in_use(&requests, span, 100).buckets.iter().map(|bucket| bucket.last).collect();
        assert_eq!(levels, [1024, 1024, 1024, 1024, 1024, 1536, 512, 512, 1024]);
        assert_eq!([0, 1, 4].map(|entry| Span::recorded(10).moment(entry)), [0, 2, 5]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        /// Compares levels and heaps with the core's own.
        #[test]
        fn a_timeline_is_what_the_core_states(
            steps in programs(24),
            is_expandable in any::<bool>(),
            is_limited in any::<bool>(),
        ) {
            let settings = if is_expandable { "expandable_segments:True" } else { "" };
            let run = DrawnRun::of(&steps, settings, is_limited.then_some(80 << 20));
            prop_assume!(!run.trace().is_empty());
            let requests = Requests::of_recording(run.device(), &run.own, &mut |_| ()).expect("it replays");
            prop_assert_eq!(requests.mismatches, 0);
            let Timeline { log, levels, .. } = Timeline::of_device(run.device(), &run.own, &requests).expect("it replays");
            prop_assert_eq!((&levels.reserved, &levels.allocated), (&run.reserved(), &run.allocated()));
            for state in &run.states {
                let pending = DrawnRun::bytes_in(&state.heap, BlockActivity::PendingFree);
                prop_assert_eq!(levels.active[state.entries], state.allocated_bytes + pending);
                let found = log.at(state.entries as u32);
                let found = found.iter().map(|segment| {
                    let blocks = segment.blocks.iter();
                    let blocks: Vec<(u64, u64, bool)> =
                        blocks.map(|block| (block.address, block.size, block.is_pending)).collect();
                    (segment.address, segment.size, segment.stream, segment.pool, segment.expandable, blocks)
                });
                let expected = state.heap.iter().map(|segment| {
                    let blocks = segment.blocks.iter().filter(|block| block.state != BlockActivity::Inactive);
                    let is_pending = |state| state == BlockActivity::PendingFree;
                    let blocks = blocks.map(|block| (block.address.get(), block.size.get(), is_pending(block.state))).collect();
                    let pool = (segment.pool.0, segment.pool.1);
                    (segment.address.get(), segment.total.get(), segment.stream.get(), pool, segment.expandable, blocks)
                });
                prop_assert_eq!(found.collect::<Vec<_>>(), expected.collect::<Vec<_>>(), "after {} entries", state.entries);
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        /// Compares with the level at every moment, of which each bucket has those that it covers.
        #[test]
        fn a_curve_that_is_drawn_is_that_of_every_moment(
            changes in vec((0..4_usize, 0..9_u64, 0..9_u64), 0..12),
            after in 0..4_usize,
            most_buckets in 1..20_usize,
        ) {
            let entries = changes.iter().map(|change| change.0).sum::<usize>() + after;
            let mut curve = Running::over(Span::recorded(entries), most_buckets);
            // The lowest and the highest bytes at each moment, and the last. Several changes may belong to one moment.
            let mut moments = vec![(0, 0, 0); entries + 1];
            let mut at = 0;
            for (further, level, more) in changes {
                at += further;
                curve.add(at, level, level + more);
                let most = if further == 0 { moments[at].1.max(level + more) } else { level + more };
                moments[at] = (level, most, level);
                moments[at + 1..].fill((level, level, level));
            }
            let found = curve.end();
            let count = most_buckets.min(entries + 1);
            let expected = (0..count).map(|bucket| {
                let covered = &moments[bucket * moments.len() / count..(bucket + 1) * moments.len() / count];
                Bucket {
                    min: covered.iter().map(|moment| moment.0).min().expect("a moment"),
                    max: covered.iter().map(|moment| moment.1).max().expect("a moment"),
                    last: covered[covered.len() - 1].2,
                }
            });
            prop_assert_eq!(found.buckets, expected.collect::<Vec<_>>());
        }

        /// Compares with the definition of a bucket.
        #[test]
        fn each_bucket_has_the_moments_that_it_covers(level in vec(0..9_u64, 0..40), most_buckets in 1..50_usize) {
            let count = most_buckets.min(level.len());
            let expected = (0..count).map(|bucket| {
                let is_covered =
                    |&moment: &usize| bucket * level.len() / count <= moment && moment < (bucket + 1) * level.len() / count;
                let covered: Vec<u64> = (0..level.len()).filter(is_covered).map(|moment| level[moment]).collect();
                let of = |best: Option<&u64>| best.copied().expect("a moment");
                Bucket { min: of(covered.iter().min()), max: of(covered.iter().max()), last: of(covered.last()) }
            });
            let curve = Curve::of(&level, most_buckets);
            prop_assert_eq!(curve.buckets.clone(), expected.collect::<Vec<_>>());
            prop_assert_eq!(curve.peak(), level.iter().copied().max().unwrap_or(0));
            let first = (0..level.len()).find(|&moment| level[moment] == curve.peak());
            prop_assert_eq!(Levels::peak_moment(&level), first.unwrap_or(0));
        }
    }
}
