//! Measures fragmentation over time: how a heap's bytes are used at chosen moments in a run.
//!
//! [`Fragmentation`] describes one heap. [`sample_recorded_run`] computes it, together with PyTorch's statistics, at chosen
//! entries of a recorded run; [`sample_replayed_run`] does so for the same requests under other settings. A file without a
//! trace contains no heap other than the final one, which `recorded_heap` converts to the core's types.

use parkade::profile::Profile;
use parkade::settings::Settings;
use parkade::snapshot::{BlockActivity, BlockInfo, SegmentInfo};
use parkade::stats::{Family, Stats};
use parkade::units::{Bytes, DeviceAddress, PoolClass, PoolId, StreamId};
use parkade_recording::{Block, BlockState, DeviceRecording, Segment};
use parkade_replay::recognition::verify_finding_limit;
use parkade_replay::{
    AfterFailure, PredictOptions, PredictedRun, Requests, Timing, VerifyError, VerifyOptions, device_like, learned_addresses,
    watch_device,
};

/// A heap's bytes by use, and the fragmentation that follows from them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Fragmentation {
    /// Reserved bytes.
    pub reserved_bytes: u64,
    /// Bytes of live blocks.
    pub allocated_bytes: u64,
    /// Bytes of blocks that the program has freed but other streams still use.
    pub pending_bytes: u64,
    /// Bytes requested for live and pending blocks; the rest of these blocks is rounding.
    pub requested_bytes: u64,
    /// Bytes of free blocks.
    pub free_bytes: u64,
    /// The part of the free bytes in segments that are entirely free.
    pub free_segments_bytes: u64,
    /// The part of the free bytes in segments that are partly in use: only a request that fits into a hole can use it.
    /// `inactive_split_bytes` in `memory_stats()` counts the part of it in ordinary segments.
    pub partial_segments_bytes: u64,
    /// The largest free block: the largest request on that block's stream and pool that needs no memory from the device.
    pub largest_hole_bytes: u64,
    /// The number of free blocks.
    pub holes: u64,
}

impl Fragmentation {
    /// Returns the fragmentation of a core's heap.
    #[must_use]
    pub fn of(heap: &[SegmentInfo]) -> Fragmentation {
        let mut sums = Fragmentation::default();
        for segment in heap {
            let blocks = segment.blocks.iter().map(|block| (block.size.get(), block.requested.get(), block.state));
            sums.add(segment.total.get(), blocks);
        }
        sums
    }

    /// Returns the fragmentation of the final heap of a recording, which is the only heap in a file without a trace.
    #[must_use]
    pub fn of_recorded(segments: &[Segment]) -> Fragmentation {
        Fragmentation::of(&recorded_heap(segments))
    }

    /// Adds a segment. The sums saturate because sizes in a file may be absurd.
    fn add(&mut self, total_bytes: u64, blocks: impl Iterator<Item = (u64, u64, BlockActivity)>) {
        let mut free_bytes = 0_u64;
        self.reserved_bytes = self.reserved_bytes.saturating_add(total_bytes);
        for (size, requested, activity) in blocks {
            match activity {
                BlockActivity::Inactive => {
                    free_bytes = free_bytes.saturating_add(size);
                    self.largest_hole_bytes = self.largest_hole_bytes.max(size);
                    self.holes += 1;
                    continue;
                }
                BlockActivity::Allocated => self.allocated_bytes = self.allocated_bytes.saturating_add(size),
                BlockActivity::PendingFree => self.pending_bytes = self.pending_bytes.saturating_add(size),
            }
            self.requested_bytes = self.requested_bytes.saturating_add(requested);
        }
        self.free_bytes = self.free_bytes.saturating_add(free_bytes);
        let place = if free_bytes == total_bytes { &mut self.free_segments_bytes } else { &mut self.partial_segments_bytes };
        *place = place.saturating_add(free_bytes);
    }

    /// Returns the bytes of live and pending blocks beyond the requested bytes.
    #[must_use]
    pub fn rounding_bytes(&self) -> u64 {
        self.allocated_bytes.saturating_add(self.pending_bytes).saturating_sub(self.requested_bytes)
    }

    /// Returns 1 - allocated / reserved, from 0 to 1, or `None` if nothing is reserved. The documents call more than 0.3 a
    /// risk (scenario D2). The ratio does not distinguish memory that the next request can use from memory that it cannot.
    #[must_use]
    pub fn ratio(&self) -> Option<f64> {
        (self.reserved_bytes > 0).then(|| 1.0 - self.allocated_bytes as f64 / self.reserved_bytes as f64)
    }
}

/// The state at a given moment.
#[derive(Clone, Debug)]
pub struct Sample {
    /// The last completed entry of the recording.
    pub entry: usize,
    /// PyTorch's statistics, counted from the first entry.
    pub stats: Stats,
    /// The use of the heap's bytes.
    pub fragmentation: Fragmentation,
    /// The peak of allocated bytes since the previous sample, checked after every operation.
    pub peak_allocated_bytes: i64,
    /// The peak of reserved bytes since the previous sample.
    pub peak_reserved_bytes: i64,
}

/// The samples of a run, and how accurately the replay reproduces the recording.
#[derive(Clone, Debug)]
pub struct SampledRun {
    /// One sample for each chosen entry.
    pub samples: Vec<Sample>,
    /// The number of recorded decisions on which the core differs under the recording's own settings. If there are any, the
    /// samples may deviate from the recorded run, and the requests of a replayed run are less certain.
    pub mismatches: u64,
    /// The number of decisions compared.
    pub decisions: u64,
    /// The recorded run's limit, in bytes, if the caller specified none and some limit explains every decision.
    pub assumed_limit_bytes: Option<u64>,
}

/// Options for replaying a run under other settings.
#[derive(Clone, Debug)]
pub struct ReplayOptions {
    /// The recorded run's settings and limit, needed to read its requests.
    pub own: VerifyOptions,
    /// The PyTorch release whose rules apply.
    pub profile: &'static Profile,
    /// The settings to replay under.
    pub settings: Settings,
    /// The memory limit to replay under.
    pub limit_bytes: Option<u64>,
    /// The device's memory; unlimited if `None`.
    pub capacity_bytes: Option<u64>,
}

/// Samples the recorded run after each of the entries `at`, which must be in order; each sample is taken when the operation
/// of its entry has completed. `own` holds that run's settings and limit. Garbage collection depends on the limit. If the
/// caller specifies no limit and decisions differ, a limit that explains them is searched for, as in a diagnosis.
///
/// # Errors
/// Fails if the recording cannot be replayed.
pub fn sample_recorded_run(recording: &DeviceRecording, own: &VerifyOptions, at: &[usize]) -> Result<SampledRun, VerifyError> {
    let (verdict, assumed_limit_bytes) = verify_finding_limit(recording, own, &mut |_| ())?;
    let own = VerifyOptions { limit_bytes: own.limit_bytes.or(assumed_limit_bytes), ..own.clone() };
    let mut sampler = Sampler::new(at);
    watch_device(recording, &own, &mut |moment| {
        sampler.pass(moment.entries, moment.stats(), &mut || moment.segments());
    })?;
    let (mismatches, decisions) = (verdict.mismatches, verdict.decisions);
    Ok(SampledRun { samples: sampler.samples, mismatches, decisions, assumed_limit_bytes })
}

/// Samples the recorded requests under other settings, at the entries `at` as above. A request that fails does not end the run.
///
/// # Errors
/// Fails if the recording cannot be replayed.
pub fn sample_replayed_run(
    recording: &DeviceRecording,
    options: &ReplayOptions,
    at: &[usize],
) -> Result<SampledRun, VerifyError> {
    let requests = Requests::of_recording(recording, &options.own, &mut |_| ())?;
    let device = device_like(recording.device, &learned_addresses(recording, &requests), options.capacity_bytes);
    let predict = PredictOptions {
        profile: options.profile,
        settings: options.settings.clone(),
        limit_bytes: options.limit_bytes,
        after_failure: AfterFailure::GoOn,
        timing: Timing::Recorded,
    };
    let mut run = PredictedRun::new(&requests, device, &predict, ());
    let mut sampler = Sampler::new(at);
    let next = |run: &PredictedRun<'_>| requests.operations.get(run.done()).map_or(recording.trace.len(), |&(at, _)| at);
    sampler.pass(next(&run), run.stats(), &mut || run.segments());
    while run.step() {
        sampler.pass(next(&run), run.stats(), &mut || run.segments());
    }
    let (mismatches, decisions) = (requests.mismatches, requests.decisions);
    Ok(SampledRun { samples: sampler.samples, mismatches, decisions, assumed_limit_bytes: None })
}

/// Takes the samples during a run.
pub struct Sampler<'a> {
    at: &'a [usize],
    samples: Vec<Sample>,
    peak_allocated_bytes: i64,
    peak_reserved_bytes: i64,
}

impl<'a> Sampler<'a> {
    /// Creates a sampler that takes samples after these entries, which must be in order.
    #[must_use]
    pub fn new(at: &'a [usize]) -> Sampler<'a> {
        Sampler { at, samples: Vec::new(), peak_allocated_bytes: 0, peak_reserved_bytes: 0 }
    }

    /// Takes the samples that are due after this many entries.
    pub fn pass(&mut self, entries: usize, stats: &Stats, segments: &mut dyn FnMut() -> Vec<SegmentInfo>) {
        let current = |family| stats.family(family).all.current;
        self.peak_allocated_bytes = self.peak_allocated_bytes.max(current(Family::AllocatedBytes));
        self.peak_reserved_bytes = self.peak_reserved_bytes.max(current(Family::ReservedBytes));
        let mut fragmentation = None;
        while let Some(&entry) = self.at.get(self.samples.len()).filter(|&&entry| entry < entries) {
            let fragmentation = *fragmentation.get_or_insert_with(|| Fragmentation::of(&segments()));
            let (peak_allocated_bytes, peak_reserved_bytes) = (self.peak_allocated_bytes, self.peak_reserved_bytes);
            self.samples.push(Sample { entry, stats: stats.clone(), fragmentation, peak_allocated_bytes, peak_reserved_bytes });
            self.peak_allocated_bytes = current(Family::AllocatedBytes);
            self.peak_reserved_bytes = current(Family::ReservedBytes);
        }
    }

    /// Returns the samples.
    #[must_use]
    pub fn finish(self) -> Vec<Sample> {
        self.samples
    }
}

/// Converts recorded segments to the core's type.
pub(crate) fn recorded_heap(segments: &[Segment]) -> Vec<SegmentInfo> {
    segments.iter().map(segment_info).collect()
}

fn segment_info(segment: &Segment) -> SegmentInfo {
    let blocks: Vec<BlockInfo> = segment.blocks.iter().map(block_info).collect();
    let sum = |counts: fn(&BlockInfo) -> u64| Bytes(blocks.iter().map(counts).fold(0, u64::saturating_add));
    SegmentInfo {
        address: DeviceAddress(segment.address),
        total: Bytes(segment.total_bytes),
        allocated: sum(|block| if block.state == BlockActivity::Allocated { block.size.get() } else { 0 }),
        active: sum(|block| if block.state == BlockActivity::Inactive { 0 } else { block.size.get() }),
        requested: sum(|block| if block.state == BlockActivity::Inactive { 0 } else { block.requested.get() }),
        stream: StreamId(segment.stream),
        pool: segment.pool.map_or(PoolId::DEFAULT, |(first, second)| PoolId(first, second)),
        class: if segment.large { PoolClass::Large } else { PoolClass::Small },
        expandable: segment.expandable,
        rank: 0,
        blocks,
    }
}

/// Converts a block. If its requested size is not in the file, the block counts as requested in full.
fn block_info(block: &Block) -> BlockInfo {
    BlockInfo {
        address: DeviceAddress(block.address),
        size: Bytes(block.size),
        requested: Bytes(block.requested.unwrap_or(block.size)),
        state: match block.state {
            BlockState::ActiveAllocated => BlockActivity::Allocated,
            BlockState::ActivePendingFree => BlockActivity::PendingFree,
            BlockState::Inactive => BlockActivity::Inactive,
        },
    }
}

#[cfg(test)]
mod tests {
    use parkade_recording::{Block, BlockState, StackId};

    use super::*;

    #[test]
    fn every_byte_is_counted_once() {
        let block =
            |address, size, requested, state| Block { address, size, requested: Some(requested), state, stack: StackId::NONE };
        let used = Segment::new(vec![
            block(0, 40, 37, BlockState::ActiveAllocated),
            block(40, 30, 99, BlockState::Inactive),
            block(70, 20, 20, BlockState::ActivePendingFree),
            block(90, 10, 0, BlockState::Inactive),
        ]);
        let found = Fragmentation::of_recorded(&[used, Segment::new(vec![block(200, 100, 50, BlockState::Inactive)])]);
        let expected = Fragmentation {
            reserved_bytes: 200,
            allocated_bytes: 40,
            pending_bytes: 20,
            requested_bytes: 57,
            free_bytes: 140,
            free_segments_bytes: 100,
            partial_segments_bytes: 40,
            largest_hole_bytes: 100,
            holes: 3,
        };
        assert_eq!(found, expected);
        assert_eq!((found.rounding_bytes(), found.ratio()), (3, Some(0.8)));
        assert_eq!(Fragmentation::default().ratio(), None);
    }

    /// Compares with the values at all moments from one sample to the next, for every choice of up to three samples.
    #[test]
    fn a_sample_has_the_peaks_since_the_one_before_it() {
        let runs = [[1_i64, 2, 3, 4, 5], [5, 4, 3, 2, 1], [2, 5, 1, 4, 3], [3, 1, 5, 2, 4], [0, 0, 7, 0, 0]];
        let entries = || (0..5_usize).map(Some).chain([None]);
        let chosen = entries().flat_map(|a| entries().flat_map(move |b| entries().map(move |c| [a, b, c])));
        for at in chosen.map(|at| at.into_iter().flatten().collect::<Vec<usize>>()).filter(|at| at.is_sorted()) {
            for (allocated, reserved) in runs.iter().flat_map(|one| runs.iter().map(move |other| (one, other))) {
                let mut sampler = Sampler::new(&at);
                for done in 0..5 {
                    let entries =
                        [("allocated_bytes.all.current", allocated[done]), ("reserved_bytes.all.current", reserved[done])];
                    sampler.pass(done, &Stats::from_entries(entries).expect("PyTorch's keys"), &mut Vec::new);
                }
                // A sample is taken when its entry is done. The last entry is not done, so its sample is never taken.
                let taken = || at.iter().filter(|&&entry| entry + 1 < 5).map(|&entry| (entry, entry + 1));
                let since = [0].into_iter().chain(taken().map(|(_, done)| done));
                let peaks = |run: &[i64; 5], since: usize, done: usize| run[since..=done].iter().copied().max().unwrap_or(0);
                let expected = since.zip(taken()).map(|(since, (entry, done))| {
                    (entry, allocated[done], peaks(allocated, since, done), peaks(reserved, since, done))
                });
                let found = sampler.finish().into_iter().map(|sample| {
                    let current = sample.stats.family(Family::AllocatedBytes).all.current;
                    (sample.entry, current, sample.peak_allocated_bytes, sample.peak_reserved_bytes)
                });
                assert_eq!(found.collect::<Vec<_>>(), expected.collect::<Vec<_>>(), "{at:?} {allocated:?} {reserved:?}");
            }
        }
    }
}
