//! Statistics and measures at chosen moments of a run: the recorded one, or the same requests under other settings.

use parkade::profile::Profile;
use parkade::settings::Settings;
use parkade::snapshot::SegmentInfo;
use parkade::stats::{Family, Stats};

use super::Measures;
use crate::diagnose::{DiagnoseError, DiagnoseOptions, diagnose_device};
use parkade_recording::DeviceRecording;
use parkade_replay::{
    AfterFailure, PredictOptions, PredictedRun, Requests, Timing, VerifyError, VerifyOptions, device_like, learned_addresses,
    verify_device, watch_device,
};

/// The state at one moment.
#[derive(Clone, Debug)]
pub struct Sample {
    /// The last entry of the recording that was done by then.
    pub entry: usize,
    /// The statistics since the first entry.
    pub stats: Stats,
    /// What the heap's bytes were doing.
    pub measures: Measures,
    /// The most bytes handed out at once since the sample before, looked at after every operation.
    pub peak_allocated_bytes: i64,
    /// The most bytes taken from the device at once since then.
    pub peak_reserved_bytes: i64,
}

/// The samples of a run, and how exactly the recorded one is known.
#[derive(Clone, Debug)]
pub struct SampledRun {
    /// One for each entry that was asked for.
    pub samples: Vec<Sample>,
    /// How many decisions of the recording the core makes otherwise under its own settings. Unless it is zero, the samples of the
    /// recorded run are not its own, and the requests of a replayed one are less sure.
    pub mismatches: u64,
    /// How many decisions were compared for that.
    pub decisions: u64,
    /// The recorded run's limit, if it was not given and one was found that explains every decision.
    pub assumed_limit_bytes: Option<u64>,
}

/// Under what to replay.
#[derive(Clone, Debug)]
pub struct ReplayedRun {
    /// Settings and limit of the recorded run, which show what it asked for.
    pub own: VerifyOptions,
    /// The version of PyTorch whose decisions are made.
    pub profile: &'static Profile,
    /// The settings to replay under.
    pub settings: Settings,
    /// The memory limit to replay under.
    pub limit_bytes: Option<u64>,
    /// The device's memory; as much as is needed if not given.
    pub capacity_bytes: Option<u64>,
}

/// Samples the recorded run after each of these entries, which must be in order: once the operation is done that the entry belongs
/// to. `own` are the settings and the limit of that run. Garbage collection depends on the limit: if none is given, one is looked for
/// as a diagnosis does.
///
/// # Errors
/// As for verifying the recording: see [`VerifyError`].
pub fn recorded_run(recording: &DeviceRecording, own: &VerifyOptions, at: &[usize]) -> Result<SampledRun, VerifyError> {
    let mut verdict = verify_device(recording, own, &mut |_| ())?;
    let mut own = own.clone();
    let mut assumed_limit_bytes = None;
    let collects = own.settings.settings.garbage_collection_threshold > 0.0;
    if verdict.mismatches > 0
        && collects
        && own.limit_bytes.is_none()
        && let Some(bytes) = limit_that_explains(recording, &own)?
    {
        (own.limit_bytes, assumed_limit_bytes) = (Some(bytes), Some(bytes));
        verdict = verify_device(recording, &own, &mut |_| ())?;
    }
    let mut sampler = Sampler::new(at);
    watch_device(recording, &own, &mut |moment| {
        sampler.pass(moment.entries, moment.stats(), &mut || moment.segments());
    })?;
    let (mismatches, decisions) = (verdict.mismatches, verdict.decisions);
    Ok(SampledRun { samples: sampler.samples, mismatches, decisions, assumed_limit_bytes })
}

/// The limit under which every decision is the recorded one, among the whole gibibytes that the out-of-memory points leave.
fn limit_that_explains(recording: &DeviceRecording, own: &VerifyOptions) -> Result<Option<u64>, VerifyError> {
    let options = DiagnoseOptions { own: own.clone(), capacity_bytes: None, entry: None, fences: 0 };
    match diagnose_device(recording, &options, &mut |_| ()) {
        Ok(diagnosis) => Ok(diagnosis.assumed_limit_bytes),
        Err(DiagnoseError::Replay(error)) => Err(error),
        // No entry was chosen.
        Err(DiagnoseError::NoSuchEntry { .. }) => Ok(None),
    }
}

/// Samples the same requests under other settings. A request that fails does not end the run.
///
/// # Errors
/// As for verifying the recording: see [`VerifyError`].
pub fn replayed_run(recording: &DeviceRecording, options: &ReplayedRun, at: &[usize]) -> Result<SampledRun, VerifyError> {
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

    /// So many entries are done.
    fn pass(&mut self, entries: usize, stats: &Stats, segments: &mut dyn FnMut() -> Vec<SegmentInfo>) {
        let current = |family| stats.family(family).all.current;
        self.peak_allocated_bytes = self.peak_allocated_bytes.max(current(Family::AllocatedBytes));
        self.peak_reserved_bytes = self.peak_reserved_bytes.max(current(Family::ReservedBytes));
        let mut measures = None;
        while let Some(&entry) = self.at.get(self.samples.len()).filter(|&&entry| entry < entries) {
            let measures = *measures.get_or_insert_with(|| Measures::of(&segments()));
            let (peak_allocated_bytes, peak_reserved_bytes) = (self.peak_allocated_bytes, self.peak_reserved_bytes);
            self.samples.push(Sample { entry, stats: stats.clone(), measures, peak_allocated_bytes, peak_reserved_bytes });
            self.peak_allocated_bytes = current(Family::AllocatedBytes);
            self.peak_reserved_bytes = current(Family::ReservedBytes);
        }
    }
}
