//! The compared properties of one device's run, and the measures of the comparison.
//!
//! The sizes that a program requests identify it even without stacks, which few recordings have ([`RequestSizes`]).

use std::hash::{Hash, Hasher};

use parkade::profile::Release;
use parkade_recording::{Action, DeviceRecording};
use parkade_replay::recognition::{Recognition, most_reserved, verify_finding_limit};
use parkade_replay::{DeviceVerdict, Outlook, ReplaySettings, VerifyError, VerifyOptions};
use rustc_hash::FxHasher;

use crate::ending::Ending;
use crate::fragmentation::Fragmentation;

/// A request that ran out of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Failure {
    /// Its entry in the trace.
    pub entry: usize,
    /// Its time, in microseconds since 1970, if the file has it.
    pub time_us: Option<u64>,
}

impl Failure {
    /// The failure of the request at an entry of a device's trace.
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
    /// `num_alloc_retries`; `None` without a trace, or if the replay differs.
    pub retries: Option<i64>,
    /// The peak of allocated memory; `None` without a trace, or if the replay differs.
    pub peak_allocated_bytes: Option<i64>,
    /// The peak of reserved memory; `None` without a trace.
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
    /// The recorded run of a device, from its verification.
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

    /// The recorded run of a device, after verifying it. A device without a trace has only its final heap. A limit that the
    /// run exceeded cannot have been the run's limit.
    ///
    /// # Errors
    /// [`VerifyError`] if the trace contradicts itself.
    pub fn of_recording(device: &DeviceRecording, own: &VerifyOptions) -> Result<RankRun, VerifyError> {
        if device.trace.is_empty() {
            return Ok(RankRun::recorded(device, &own.settings));
        }
        let limit_bytes = own.limit_bytes.filter(|&limit| limit >= most_reserved(device));
        let own = VerifyOptions { limit_bytes, ..own.clone() };
        let (verdict, _) = verify_finding_limit(device, &own, &mut |_| ())?;
        Ok(RankRun::of_verdict(device, &own.settings, &verdict))
    }

    /// The run of a device under other settings. `own` holds the recorded run's settings.
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

    /// The properties that need no replay.
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
const COUNTS: usize = 1024;

/// How often a program requests each size, as a fixed-size sketch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RequestSizes {
    counts: Vec<u32>,
    total: u64,
}

impl RequestSizes {
    /// The sizes requested in a device's trace.
    #[must_use]
    pub fn of(device: &DeviceRecording) -> RequestSizes {
        let mut sizes = RequestSizes { counts: vec![0; COUNTS], total: 0 };
        let requests = device.trace.iter().filter(|entry| entry.action == Action::Alloc);
        requests.for_each(|entry| sizes.add(entry.size));
        sizes
    }

    fn add(&mut self, size: u64) {
        let mut hasher = FxHasher::default();
        size.hash(&mut hasher);
        let count = &mut self.counts[hasher.finish() as usize % COUNTS];
        *count = count.saturating_add(1);
        self.total += 1;
    }

    /// The share that two programs have in common, from 0 to 1: the sum, over all sizes, of the smaller of the size's shares
    /// in the two programs' requests. 1 if one of them has no requests, because then nothing distinguishes them.
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

    /// Whether the measure is a number of bytes.
    #[must_use]
    pub const fn is_bytes(self) -> bool {
        !matches!(self, Measure::Entries)
    }

    /// The run's value for this measure; `None` if it has none.
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
