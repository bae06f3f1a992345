//! The counts of a replay, its first mismatch, and the comparisons at the end of the trace.
//!
//! At the end, the replay compares the heap: its segments and blocks. It also compares facts that a recording states twice
//! and that the core does not decide: a segment's sums against its blocks, and the times against the order of entries. In a
//! file from PyTorch they agree; in a file that was edited by hand they may not.
//!
//! The replay compares its stats with PyTorch's at the end of the recorded run, if the recording has any. A call to
//! `reset_peak_memory_stats` leaves no entry but is visible in the stats: every peak is then the largest value since the
//! call. If recorded peaks differ from those of the entire run, a single reset must explain all of them. For each peak, a
//! reset explains it if it lies within a range of operations: after the last operation at which the value was higher, and no
//! later than the last one at which the value was reached. These ranges must have an operation in common.

use parkade::snapshot::{BlockActivity, BlockInfo, SegmentInfo};
use parkade::stats::{Family, Stats};
use parkade::units::{PoolClass, PoolId};
use parkade_recording::{Block, BlockState, DeviceRecording, Segment};

use super::flushes::Flush;
use super::recorded_core::ReplayCore;
use crate::entries::Decision;
use crate::inputs::{SINCE_2_12, StatsFile};

/// A point at which the core and the recording differ.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mismatch {
    /// The recording's entry, from 0; `None` for a difference in the final state or in stats.
    pub entry: Option<usize>,
    /// The value in the recording.
    pub recorded: String,
    /// The value in the replay.
    pub replayed: String,
    /// The addresses involved: the recording's and the core's, or one if they are equal.
    pub addresses: Vec<u64>,
}

/// The counts of a replay.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Decisions compared.
    pub(crate) decisions: u64,
    /// The number of decisions that differ.
    pub(crate) mismatches: u64,
    /// The first mismatch.
    pub(crate) first: Option<Mismatch>,
    /// The core's decision at that point that the recording does not contain, and the entry before which it came.
    pub(crate) stray: Option<(usize, Decision)>,
    /// The first decision of this kind in the entire replay.
    pub(crate) first_stray: Option<(usize, Decision)>,
    /// The requests that ran out of memory.
    pub(crate) ooms: u64,
    /// The calls that released cached memory, each with the entry before which the program made it.
    pub(crate) releases: Vec<(usize, Release)>,
    /// The requests that failed, with their private pool. No entry names the pool; the reading that agrees assumes
    /// it.
    pub(crate) failed_in: Vec<(usize, PoolId)>,
    /// The requests whose entries can be read in several ways.
    pub(crate) ambiguous: Vec<usize>,
    /// The flushes before requests that the device may have refused, in order. The list only grows: a state that can be
    /// returned to never has more flushes than the current one.
    pub(crate) flushes: Vec<Flush>,
    /// Restored checkpoints of private pools.
    pub(crate) restores: u64,
    /// The requests that the driver refused, taken from the recording.
    pub(crate) refusals: u64,
}

impl Tally {
    /// Returns the number of events that the replay needed although no entry shows them. Of two readings, the one with fewer
    /// is likelier.
    pub(crate) fn effort(&self) -> u64 {
        self.releases.len() as u64 + self.refusals + self.restores
    }

    /// Returns the current state, which [`return_to`](Self::return_to) restores.
    pub(crate) fn mark(&self) -> Mark {
        let lengths = [self.releases.len(), self.failed_in.len(), self.ambiguous.len()];
        let (first, releases, flushes) = (self.first.clone(), Vec::new(), Vec::new());
        Mark { counts: Tally { first, releases, failed_in: Vec::new(), ambiguous: Vec::new(), flushes, ..*self }, lengths }
    }

    /// Returns to an earlier state.
    pub(crate) fn return_to(&mut self, mark: &Mark) {
        let [releases, failed_in, ambiguous] = mark.lengths;
        self.releases.truncate(releases);
        self.failed_in.truncate(failed_in);
        self.ambiguous.truncate(ambiguous);
        let first = mark.counts.first.clone();
        let now = std::mem::take(self);
        let Tally { releases, failed_in, ambiguous, flushes, .. } = now;
        *self = Tally { first, releases, failed_in, ambiguous, flushes, ..mark.counts };
    }
}

/// A state of a tally. The lists only grow, so their lengths are enough. Copying the lists would make every reading cost as
/// much as all calls before it.
pub(crate) struct Mark {
    /// Everything except the lists.
    counts: Tally,
    lengths: [usize; 3],
}

/// A call that releases cached memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Release {
    /// `empty_cache`.
    All,
    /// The end of a MemPool: it releases all memory of this pool, which is no longer used (spec 5.4).
    Pool(PoolId),
}

/// Compares segment by segment and block by block, and adds the result to the tally.
pub(crate) fn compare_heap(recorded: &[Segment], replayed: &[SegmentInfo], tally: &mut Tally) {
    let (mut theirs, mut ours) = (recorded.iter().peekable(), replayed.iter().peekable());
    loop {
        let (their, our) = (theirs.peek(), ours.peek());
        let (their_address, our_address) = (their.map(|s| s.address), our.map(|s| s.address.get()));
        match (their, our) {
            (None, None) => return,
            (Some(their), Some(our)) if their_address == our_address => {
                compare_segment(their, our, tally);
                theirs.next();
                ours.next();
            }
            (Some(their), _) if our_address.is_none_or(|address| their.address < address) => {
                differ(tally, their.address, || segment(their.address, their.total_bytes), || "no segment".to_owned());
                theirs.next();
            }
            (_, our) => {
                let our = our.map(|our| (our.address.get(), our.total.get()));
                let (address, total) = our.unwrap_or_default();
                differ(tally, address, || "no segment".to_owned(), || segment(address, total));
                ours.next();
            }
        }
    }
}

fn differ(tally: &mut Tally, address: u64, recorded: impl FnOnce() -> String, replayed: impl FnOnce() -> String) {
    tally.decisions += 1;
    tally.mismatches += 1;
    if tally.first.is_none() {
        let (recorded, replayed) = (recorded(), replayed());
        tally.first = Some(Mismatch { entry: None, recorded, replayed, addresses: vec![address] });
    }
}

fn compare_segment(recorded: &Segment, replayed: &SegmentInfo, tally: &mut Tally) {
    let class = if recorded.large { PoolClass::Large } else { PoolClass::Small };
    let describe = |total: u64, stream: u64, class: PoolClass| {
        format!("a {} segment at {:#x} of {total} bytes on stream {stream:#x}", class.name(), recorded.address)
    };
    let theirs = describe(recorded.total_bytes, recorded.stream, class);
    let ours = describe(replayed.total.get(), replayed.stream.get(), replayed.class);
    if theirs == ours {
        tally.decisions += 1;
    } else {
        differ(tally, recorded.address, || theirs, || ours);
    }
    for (block, own) in recorded.blocks.iter().zip(&replayed.blocks) {
        if agrees(block, own) {
            tally.decisions += 1;
        } else {
            differ(tally, block.address, || recorded_block(block), || replayed_block(own));
        }
    }
    let common = recorded.blocks.len().min(replayed.blocks.len());
    for block in &recorded.blocks[common..] {
        differ(tally, block.address, || recorded_block(block), || "no block".to_owned());
    }
    for own in &replayed.blocks[common..] {
        differ(tally, own.address.get(), || "no block".to_owned(), || replayed_block(own));
    }
}

/// Returns whether two blocks agree. The requested size matters only while a block is in use (spec 7.3).
fn agrees(recorded: &Block, replayed: &BlockInfo) -> bool {
    let (state, is_active) = match recorded.state {
        BlockState::ActiveAllocated => (BlockActivity::Allocated, true),
        BlockState::ActivePendingFree => (BlockActivity::PendingFree, true),
        BlockState::Inactive => (BlockActivity::Inactive, false),
    };
    let same_request = !is_active || recorded.requested.is_none_or(|requested| requested == replayed.requested.get());
    recorded.address == replayed.address.get() && recorded.size == replayed.size.get() && state == replayed.state && same_request
}

fn segment(address: u64, total: u64) -> String {
    format!("a segment at {address:#x} of {total} bytes")
}

fn recorded_block(block: &Block) -> String {
    let requested = block.requested.map_or("an unknown number of".to_owned(), |requested| requested.to_string());
    format!("a block at {:#x} of {} bytes, {} ({requested} bytes requested)", block.address, block.size, block.state.name())
}

fn replayed_block(block: &BlockInfo) -> String {
    format!(
        "a block at {:#x} of {} bytes, {} ({} bytes requested)",
        block.address.get(),
        block.size,
        block.state.name(),
        block.requested
    )
}

/// Compares the facts that the recording states twice, and adds the differences to the tally. Skips a sum or time that the
/// file does not have.
pub(crate) fn compare_own_words(recording: &DeviceRecording, tally: &mut Tally) {
    let times = recording.trace.iter().enumerate().filter_map(|(at, entry)| Some((at, entry.time()?)));
    let mut latest = 0;
    for (at, time) in times {
        if time < latest {
            let recorded = format!("the time {time} us");
            disagree(
                tally,
                Mismatch {
                    entry: Some(at),
                    recorded,
                    replayed: format!("a time of at least {latest} us, the time of an earlier entry"),
                    addresses: Vec::new(),
                },
            );
        }
        latest = latest.max(time);
    }
    for segment in &recording.segments {
        let sums = [
            (
                "allocated_size",
                segment.allocated_bytes,
                sum(segment, |block| (block.state == BlockState::ActiveAllocated).then_some(block.size)),
            ),
            ("active_size", segment.active_bytes, sum(segment, |block| is_active(block).then_some(block.size))),
            ("requested_size", segment.requested_bytes, requested(segment)),
        ];
        for (key, stated, found) in sums {
            if let (Some(stated), Some(found)) = (stated, found)
                && stated != found
            {
                let recorded = format!("the segment at {:#x} states {key} {stated}", segment.address);
                let replayed = format!("its blocks add up to {found}");
                disagree(tally, Mismatch { entry: None, recorded, replayed, addresses: vec![segment.address] });
            }
        }
    }
}

fn disagree(tally: &mut Tally, mismatch: Mismatch) {
    tally.decisions += 1;
    tally.mismatches += 1;
    tally.first.get_or_insert(mismatch);
}

fn is_active(block: &Block) -> bool {
    block.state != BlockState::Inactive
}

fn sum(segment: &Segment, of_block: impl Fn(&Block) -> Option<u64>) -> Option<u64> {
    segment.blocks.iter().filter_map(of_block).try_fold(0_u64, u64::checked_add)
}

/// Returns the requested bytes of the active blocks, or `None` if a block does not state its requested bytes.
fn requested(segment: &Segment) -> Option<u64> {
    let mut active = segment.blocks.iter().filter(|block| is_active(block));
    active.try_fold(0_u64, |sum, block| sum.checked_add(block.requested?))
}

/// A stat that differs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StatsDifference {
    /// Its key in `memory_stats()`.
    pub key: String,
    /// PyTorch's value.
    pub recorded: i64,
    /// The replay's value.
    pub replayed: i64,
}

/// The result of comparing stats.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct StatsCheck {
    /// The number of keys compared.
    pub compared: usize,
    /// Differences that nothing explains.
    pub differences: Vec<StatsDifference>,
    /// The number of keys that cannot be known because the trace's oldest entries are missing.
    pub unknowable: usize,
    /// The number of calls to `empty_cache` that freed nothing; these calls leave no entry.
    pub silent_empty_caches: i64,
    /// The entries between which a single call to `reset_peak_memory_stats` explains all peaks; the call leaves no entry.
    pub peaks_reset: Option<(usize, usize)>,
    /// Keys in the file that parkade does not know.
    pub unknown_keys: Vec<String>,
}

/// Compares stats. `reset` finds the point at which a reset explains the recorded peaks; it is called only if they
/// differ.
pub(crate) fn compare_stats(
    file: &StatsFile,
    replayed: &Stats,
    lost_beginning: bool,
    reset: impl FnOnce() -> Option<(usize, usize)>,
) -> StatsCheck {
    let mut check = StatsCheck { unknown_keys: file.unknown.clone(), ..StatsCheck::default() };
    let mut peaks = Vec::new();
    let rejections = (SINCE_2_12.to_owned(), replayed.num_oom_rejections);
    for (key, value) in replayed.entries().into_iter().chain([rejections]) {
        let Some(&recorded) = file.known.get(&key) else { continue };
        // Sums, and possibly peaks, include events before the first entry; current values do not depend on them.
        if lost_beginning && !key.ends_with(".current") && key != "max_split_size" {
            check.unknowable += 1;
            continue;
        }
        check.compared += 1;
        if recorded == value {
            continue;
        }
        let difference = StatsDifference { key, recorded, replayed: value };
        if difference.key.ends_with(".peak") {
            peaks.push(difference);
        } else if difference.key == "num_sync_all_streams" && recorded > value {
            check.silent_empty_caches = recorded - value;
        } else {
            check.differences.push(difference);
        }
    }
    if !peaks.is_empty() {
        check.peaks_reset = reset();
        if check.peaks_reset.is_none() {
            check.differences.extend(peaks);
        }
    }
    check
}

/// A recorded peak, and the operations between which a reset explains it.
#[derive(Clone, Copy, Debug)]
struct Target {
    peak: i64,
    /// The first operation before which a reset explains it.
    earliest: usize,
    /// The last operation before which a reset explains it; `None` if the peak is never reached.
    latest: Option<usize>,
}

/// Watches all peaks during a replay.
#[derive(Clone, Debug)]
pub(crate) struct PeakWatch {
    targets: Vec<Target>,
    operation: usize,
    /// The entry at which each operation began.
    entries: Vec<u32>,
}

/// Returns all peaks, in a fixed order.
fn peaks(stats: &Stats) -> impl Iterator<Item = i64> + '_ {
    let families = Family::ALL.into_iter().flat_map(|family| stats.family(family).levels().map(|(_, stat)| stat.peak));
    families.chain(stats.oversize().map(|(_, stat)| stat.peak))
}

fn currents(stats: &Stats) -> impl Iterator<Item = i64> + '_ {
    let families = Family::ALL.into_iter().flat_map(|family| stats.family(family).levels().map(|(_, stat)| stat.current));
    families.chain(stats.oversize().map(|(_, stat)| stat.current))
}

impl PeakWatch {
    /// Starts watching for the peaks in `recorded`.
    pub(crate) fn new(recorded: &Stats) -> PeakWatch {
        let targets = peaks(recorded).map(|peak| Target { peak, earliest: 0, latest: None }).collect();
        PeakWatch { targets, operation: 0, entries: Vec::new() }
    }

    /// Notes that an operation begins at the entry `at`.
    pub(crate) fn before(&mut self, at: usize) {
        self.entries.push(at as u32);
    }

    /// Notes that an operation is over. The peaks were reset before it, so they are now its largest values.
    pub(crate) fn after(&mut self, core: &mut ReplayCore<'_>) {
        self.reached(peaks(core.stats()));
        core.reset_peak_stats();
    }

    /// Notes the largest values during an operation.
    fn reached(&mut self, largest: impl Iterator<Item = i64>) {
        for (target, peak) in self.targets.iter_mut().zip(largest) {
            if peak > target.peak {
                target.earliest = self.operation + 1;
            } else if peak == target.peak {
                target.latest = Some(self.operation);
            }
        }
        self.operation += 1;
    }

    /// Returns the first and the last entry before which a single reset explains all recorded peaks, or `None` if there is no
    /// such entry.
    pub(crate) fn finish(mut self, core: &ReplayCore<'_>) -> Option<(usize, usize)> {
        let (earliest, latest) = self.resets(currents(core.stats()))?;
        let entry =
            |operation: usize| self.entries.get(operation).map_or(core.device().recorded_entries(), |&entry| entry as usize);
        Some((entry(earliest), entry(latest)))
    }

    /// Returns the first and the last operation before which a single reset explains all recorded peaks. The number of
    /// operations stands for a reset after the last one.
    fn resets(&mut self, at_end: impl Iterator<Item = i64>) -> Option<(usize, usize)> {
        for (target, current) in self.targets.iter_mut().zip(at_end) {
            if current == target.peak {
                target.latest = Some(self.operation);
            } else if current > target.peak {
                return None;
            }
        }
        let earliest = self.targets.iter().map(|target| target.earliest).max()?;
        let latest = self.targets.iter().map(|target| target.latest).min()??;
        (earliest <= latest).then_some((earliest, latest))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use parkade::units::{Bytes, DeviceAddress, StreamId};
    use parkade_recording::{Action, Entry};

    use super::super::flushes::FlushReason;
    use super::*;

    /// The number of operations in the runs below.
    const OPERATIONS: usize = 3;

    /// Returns a stat's values during a run: the largest one during each operation, and the one at the end. Every number below
    /// 128 is a different run.
    fn values(number: i64) -> ([i64; OPERATIONS], i64) {
        let bit = |place: usize| (number >> place) & 1;
        let largest = [0, 1, 2].map(|operation| bit(operation).max(bit(operation + 1)) + bit(4 + operation));
        (largest, bit(OPERATIONS))
    }

    /// Compares with trying a reset before every operation and after the last one, for every pair of stats and of peaks.
    #[test]
    fn a_reset_explains_the_peaks_that_it_leaves() {
        let peak = |run: &([i64; OPERATIONS], i64), reset: usize| run.0[reset..].iter().copied().max().unwrap_or(run.1);
        for (one, other) in (0..128).flat_map(|one| (0..128).map(move |other| (values(one), values(other)))) {
            for recorded in (0..3).flat_map(|one| (0..3).map(move |other| [one, other])) {
                let targets = recorded.map(|peak| Target { peak, earliest: 0, latest: None }).to_vec();
                let mut watch = PeakWatch { targets, operation: 0, entries: Vec::new() };
                for operation in 0..OPERATIONS {
                    watch.reached([one.0[operation], other.0[operation]].into_iter());
                }
                let mut explains = (0..=OPERATIONS).filter(|&reset| [peak(&one, reset), peak(&other, reset)] == recorded);
                let first = explains.next();
                let expected = first.map(|first| (first, explains.next_back().unwrap_or(first)));
                assert_eq!(watch.resets([one.1, other.1].into_iter()), expected, "{recorded:?} of {one:?} and {other:?}");
            }
        }
    }

    fn mismatch(number: usize) -> Mismatch {
        Mismatch { entry: Some(number), recorded: String::new(), replayed: String::new(), addresses: Vec::new() }
    }

    /// Changes everything in a tally except the flushes, which stay when a reading is discarded.
    fn change(tally: &mut Tally, number: usize) {
        let decision = Some((number, Decision::from(&Entry::new(Action::Alloc, number as u64, 512, 0))));
        let Tally { decisions, mismatches, first, stray, first_stray, ooms, releases, failed_in, ambiguous, .. } = tally;
        (*first, *stray, *first_stray) = (Some(mismatch(number)), decision, decision);
        releases.push((number, Release::All));
        failed_in.push((number, PoolId::DEFAULT));
        ambiguous.push(number);
        for count in [decisions, mismatches, ooms, &mut tally.restores, &mut tally.refusals] {
            *count += 1 + number as u64;
        }
    }

    #[test]
    fn a_discarded_reading_leaves_only_flushes() {
        for (before, after) in (0..3).flat_map(|before| (0..3).map(move |after| (before, after))) {
            let mut tally = Tally::default();
            (0..before).for_each(|number| change(&mut tally, number));
            let (mark, expected) = (tally.mark(), format!("{tally:?}"));
            (before..before + after).for_each(|number| change(&mut tally, number));
            tally.flushes.push(Flush { entry: 1, wanted_bytes: 2, reason: FlushReason::NoCall });
            tally.return_to(&mark);
            assert_eq!(std::mem::take(&mut tally.flushes).len(), 1);
            assert_eq!(format!("{tally:?}"), expected, "{after} after {before}");
        }
    }

    const MIB: u64 = 1 << 20;

    fn recorded(address: u64, blocks: &[u64]) -> Segment {
        let block = |&address: &u64| Block {
            address,
            size: 512,
            requested: Some(500),
            state: BlockState::ActiveAllocated,
            stack: parkade_recording::StackId::NONE,
        };
        let mut segment = Segment::new(blocks.iter().map(block).collect());
        (segment.address, segment.total_bytes) = (address, 2 * MIB);
        segment
    }

    fn replayed(address: u64, blocks: &[u64]) -> SegmentInfo {
        let block = |&address: &u64| BlockInfo {
            address: DeviceAddress(address),
            size: Bytes(512),
            requested: Bytes(500),
            state: BlockActivity::Allocated,
        };
        SegmentInfo {
            address: DeviceAddress(address),
            total: Bytes(2 * MIB),
            allocated: Bytes(0),
            active: Bytes(0),
            requested: Bytes(0),
            stream: StreamId::DEFAULT,
            pool: PoolId::DEFAULT,
            class: PoolClass::Small,
            expandable: false,
            rank: 0,
            blocks: blocks.iter().map(block).collect(),
        }
    }

    /// Returns every subset of three addresses.
    fn subsets() -> impl Iterator<Item = Vec<u64>> {
        (0..8_u64).map(|bits| (1..4).filter(|place| bits >> (place - 1) & 1 == 1).map(|place| place * 2 * MIB).collect())
    }

    #[test]
    fn every_segment_and_block_of_one_side_alone_is_a_difference() {
        for (theirs, ours) in subsets().flat_map(|theirs| subsets().map(move |ours| (theirs.clone(), ours))) {
            let union: BTreeSet<u64> = theirs.iter().chain(&ours).copied().collect();
            let alone: Vec<u64> = union.iter().copied().filter(|at| theirs.contains(at) != ours.contains(at)).collect();
            let mut tally = Tally::default();
            let their_segments: Vec<Segment> = theirs.iter().map(|&at| recorded(at, &[])).collect();
            let our_segments: Vec<SegmentInfo> = ours.iter().map(|&at| replayed(at, &[])).collect();
            compare_heap(&their_segments, &our_segments, &mut tally);
            assert_eq!((tally.mismatches, tally.decisions), (alone.len() as u64, union.len() as u64), "{theirs:?} {ours:?}");
            assert_eq!(tally.first.map(|first| first.addresses), alone.first().map(|&first| vec![first]), "{theirs:?} {ours:?}");

            // Blocks follow one another without gaps, so they are compared by their order.
            let mut tally = Tally::default();
            compare_heap(&[recorded(0, &theirs)], &[replayed(0, &ours)], &mut tally);
            let same = theirs.iter().zip(&ours).filter(|(one, other)| one == other).count();
            let blocks = theirs.len().max(ours.len());
            assert_eq!((tally.mismatches, tally.decisions), ((blocks - same) as u64, 1 + blocks as u64), "{theirs:?} {ours:?}");
        }
    }

    #[test]
    fn a_time_before_that_of_an_earlier_entry_is_a_difference() {
        let times = |number: u64| [0, 2, 4, 6].map(|place| (number >> place & 3).checked_sub(1));
        for times in (0..256).map(times) {
            let entry = |time: Option<u64>| {
                let mut entry = Entry::new(Action::Alloc, 0, 512, 0);
                entry.set_time(time);
                entry
            };
            let recording = DeviceRecording { trace: times.map(entry).to_vec(), ..DeviceRecording::default() };
            let mut tally = Tally::default();
            compare_own_words(&recording, &mut tally);
            let is_early = |&at: &usize| times[at].is_some_and(|time| times[..at].iter().flatten().any(|&before| before > time));
            let early: Vec<usize> = (0..times.len()).filter(is_early).collect();
            assert_eq!(tally.mismatches, early.len() as u64, "{times:?}");
            assert_eq!(tally.first.and_then(|first| first.entry), early.first().copied(), "{times:?}");
        }
    }

    /// Changes one number at a time, up and down.
    #[test]
    fn every_stat_that_differs_is_named_or_explained() {
        let replayed = Stats::default();
        for key in replayed.entries().into_iter().map(|(key, _)| key).chain([SINCE_2_12.to_owned()]) {
            for (change, lost, reset) in [-1, 0, 1].into_iter().flat_map(|change| {
                [(false, None), (false, Some((3, 7))), (true, None)].map(|(lost, reset)| (change, lost, reset))
            }) {
                let file = StatsFile { known: BTreeMap::from([(key.clone(), change)]), unknown: vec!["other".to_owned()] };
                let check = compare_stats(&file, &replayed, lost, || reset);
                let is_known = !lost || key.ends_with(".current") || key == "max_split_size";
                let differs = is_known && change != 0;
                let is_silent = differs && key == "num_sync_all_streams" && change > 0;
                let peaks_reset = reset.filter(|_| differs && key.ends_with(".peak"));
                let is_difference = differs && !is_silent && peaks_reset.is_none();
                let difference = StatsDifference { key: key.clone(), recorded: change, replayed: 0 };
                let expected = StatsCheck {
                    compared: usize::from(is_known),
                    unknowable: usize::from(!is_known),
                    differences: Vec::from_iter(is_difference.then_some(difference)),
                    silent_empty_caches: i64::from(is_silent),
                    peaks_reset,
                    unknown_keys: vec!["other".to_owned()],
                };
                assert_eq!(check, expected, "{key} {change} {lost}");
            }
        }
    }
}
