//! Statistics and fragmentation at chosen moments of a run: the recorded one, or the same requests under other settings.

use parkade::profile::Profile;
use parkade::settings::Settings;
use parkade::snapshot::SegmentInfo;
use parkade::stats::{Family, Stats};
use parkade_recording::DeviceRecording;
use parkade_replay::recognition::verify_finding_limit;
use parkade_replay::{
    AfterFailure, PredictOptions, PredictedRun, Requests, Timing, VerifyError, VerifyOptions, device_like, learned_addresses,
    watch_device,
};

use super::heap::Fragmentation;

/// The state at one moment.
#[derive(Clone, Debug)]
pub struct Sample {
    /// The last entry of the recording that is done.
    pub entry: usize,
    /// PyTorch's statistics, counted from the first entry on.
    pub stats: Stats,
    /// How the heap's bytes are used.
    pub fragmentation: Fragmentation,
    /// The peak of allocated bytes since the previous sample, checked after every operation.
    pub peak_allocated_bytes: i64,
    /// The peak of reserved bytes since the previous sample.
    pub peak_reserved_bytes: i64,
}

/// The samples of a run, and how exactly the replay reproduces the recording.
#[derive(Clone, Debug)]
pub struct SampledRun {
    /// One for each chosen entry.
    pub samples: Vec<Sample>,
    /// How many recorded decisions the core makes differently under the recording's own settings. If any, the samples of a recorded run
    /// may not be its own, and the requests of a replayed run are less certain.
    pub mismatches: u64,
    /// How many decisions were compared.
    pub decisions: u64,
    /// The recorded run's limit, in bytes, if none was given and one was found that explains every decision.
    pub assumed_limit_bytes: Option<u64>,
}

/// How to replay a run under other settings.
#[derive(Clone, Debug)]
pub struct ReplayOptions {
    /// Settings and limit of the recorded run, needed to read its requests.
    pub own: VerifyOptions,
    /// The PyTorch release whose decisions are made.
    pub profile: &'static Profile,
    /// The settings to replay under.
    pub settings: Settings,
    /// The memory limit to replay under.
    pub limit_bytes: Option<u64>,
    /// The device's memory; unlimited if `None`.
    pub capacity_bytes: Option<u64>,
}

/// Samples the recorded run after each of the entries `at`, which must be in order; each sample is taken when the operation of its entry
/// is done. `own` are the settings and the limit of that run. Garbage collection depends on the limit. If none is given and decisions
/// differ, a limit that explains them is searched, as in a diagnosis.
///
/// # Errors
/// If the recording cannot be replayed.
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
/// If the recording cannot be replayed.
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

/// Takes the samples while a run passes by.
struct Sampler<'a> {
    at: &'a [usize],
    samples: Vec<Sample>,
    peak_allocated_bytes: i64,
    peak_reserved_bytes: i64,
}

impl<'a> Sampler<'a> {
    fn new(at: &'a [usize]) -> Sampler<'a> {
        Sampler { at, samples: Vec::new(), peak_allocated_bytes: 0, peak_reserved_bytes: 0 }
    }

    /// Takes the samples that are due now that so many entries are done.
    fn pass(&mut self, entries: usize, stats: &Stats, segments: &mut dyn FnMut() -> Vec<SegmentInfo>) {
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
}
