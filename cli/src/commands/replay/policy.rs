//! The requests of a recording under a policy of parkade, in place of PyTorch's allocator and its settings.
//!
//! Of a run that died, the request that failed is asked for too, and nothing after it: what followed in the recording is its end, and what
//! would have followed otherwise is not estimated. Requests that failed and were survived are asked for again and given back at once,
//! as under settings.

use std::time::Instant;

use anyhow::{Result, anyhow, bail};
use parkade_analysis::advise;
use parkade_analysis::ending::Ending;
use parkade_analysis::ranks::{Failure, RankRun};
use parkade_policies::Named;
use parkade_recording::{DeviceRecording, Recording};
use parkade_replay::recognition::Recognition;
use parkade_replay::{Completion, Operation, OutlookOptions, Requests, VerifyOptions};
use parkade_research::study::{self, Outcome, PLENTY_BYTES, RunOptions, make_for};
use parkade_research::workload::recorded::{RecordedWorkload, of_requests};

use super::Args;
use super::judged::Known;
use crate::terminal::{progress, recording, release};

/// A recording that was replayed under a policy.
pub struct UnderPolicy {
    pub(super) policy: Named,
    /// The limit of each device.
    pub(super) limits: Vec<Option<u64>>,
    /// They were not given, but assumed.
    pub(super) is_assumed: bool,
    /// The recorded run's own limit, if garbage collection shows it.
    pub(super) found_limit: Option<u64>,
    pub(super) own: VerifyOptions,
    pub(super) made_by: Recognition,
    pub(super) recording: Recording,
    pub(super) devices: Vec<OnDevice>,
    pub(super) seconds: f64,
}

/// The requests of one device, and what became of them.
pub(super) struct OnDevice {
    pub(super) device: u32,
    pub(super) requests: Requests,
    /// How the recorded run ended.
    pub(super) ending: Ending,
    pub(super) run: Outcome,
    /// The entry of the request that was refused, at which the run ends.
    pub(super) fails_at: Option<usize>,
    /// Frees that waited for other streams in the recording.
    pub(super) late_frees: u64,
    /// Requests that a study cannot name.
    pub(super) unnamed_requests: u64,
}

/// Replays a recording's requests under the policy.
pub(super) fn replay(args: &Args, policy: Named) -> Result<UnderPolicy> {
    let start = Instant::now();
    let recording = recording::read(&args.file)?;
    let (own, found_limit, made_by) = args.replay.own_or_found(&recording)?;
    let traced = recording::traced(&recording);
    if traced.is_empty() {
        bail!("the file has no trace entries to replay: {}", recording::RECORD_IT);
    }
    // A policy has no memory fraction.
    let given = args.replay.limit(1.0, release::newest())?;
    let (limits, is_assumed) = match given {
        None => assumed(&traced, &own)?,
        Some(_) => (vec![given; traced.len()], false),
    };
    let bar = progress::entries(args.json.json);
    bar.set_length(recording::entries(&traced));
    let (mut devices, mut done) = (Vec::new(), 0);
    for (device, &limit_bytes) in traced.iter().zip(&limits) {
        let requests = Requests::of_recording(device, &own, &mut |entries| bar.set_position((done + entries) as u64));
        let requests = recording::of_device(requests, device.device, traced.len())?;
        done += device.trace.len();
        let options = RunOptions { limit_bytes, ..RunOptions::new(args.replay.capacity.unwrap_or(PLENTY_BYTES)) };
        let served = OnDevice::of(device, requests, &policy, &options);
        devices.push(recording::of_device(served, device.device, traced.len())?);
    }
    bar.finish_and_clear();
    let seconds = start.elapsed().as_secs_f64();
    Ok(UnderPolicy { policy, limits, is_assumed, found_limit, own, made_by, recording, devices, seconds })
}

/// The limit of each device that `advise` assumes if a run died, and whether it assumes any.
fn assumed(traced: &[&DeviceRecording], own: &VerifyOptions) -> Result<(Vec<Option<u64>>, bool)> {
    let (settings, profile) = (own.settings.settings.clone(), own.settings.profile);
    let options = OutlookOptions { own: own.clone(), profile, settings, limit_bytes: None, capacity_bytes: None };
    let known = Known::of(traced, &options)?;
    Ok((known.limits, known.is_assumed))
}

/// What a policy is asked for: up to the error that the run died of, and with every request that failed.
fn asked(requests: &Requests, ending: &Ending) -> Requests {
    let end = ending.death().map(|death| death.entry);
    let recorded = requests.operations.iter().take_while(|(at, _)| end.is_none_or(|end| *at <= end));
    let again = recorded.flat_map(|&(at, operation)| match operation {
        Operation::Allocate { id, bytes, stream, pool, failed: true } => {
            let request = Operation::Allocate { id, bytes, stream, pool, failed: false };
            [Some((at, request)), Some((at, Operation::Free { id, completion: Completion::AtOnce }))]
        }
        operation => [Some((at, operation)), None],
    });
    Requests { operations: again.flatten().collect(), ..Requests::default() }
}

impl OnDevice {
    fn of(device: &DeviceRecording, requests: Requests, policy: &Named, options: &RunOptions) -> Result<OnDevice> {
        let ending = Ending::of(device);
        let RecordedWorkload { workload, entries, late_frees, unnamed_requests, .. } =
            of_requests("recording", &asked(&requests, &ending));
        let run = study::run(&workload, make_for(policy, &workload)(), options);
        let fails_at = run.failed_at_event.map(|event| entries.get(event).map_or(0, |&entry| entry as usize));
        if let study::Ending::Fault(fault) = &run.ending {
            let entry = fails_at.unwrap_or(0);
            return Err(anyhow!("the policy {} does not serve entry {entry}, and not for lack of memory: {fault}", policy.name));
        }
        Ok(OnDevice { device: device.device, requests, ending, run, fails_at, late_frees, unnamed_requests })
    }

    /// Bytes reserved before the first entry of a recording that lost its beginning.
    pub(super) fn lost_bytes(&self) -> u64 {
        self.requests.lost_beginning.map_or(0, |lost| lost.reserved_bytes)
    }

    /// The error that the recorded run died of.
    pub(super) fn died_at(&self) -> Option<usize> {
        self.ending.death().map(|death| death.entry)
    }
}

impl UnderPolicy {
    /// Whether the memory is known, given or assumed.
    pub(super) fn is_limited(&self) -> bool {
        self.limits.iter().any(Option::is_some)
    }

    /// The limit of all devices, if it is one.
    pub(super) fn limit(&self) -> Option<u64> {
        let first = *self.limits.first()?;
        first.filter(|_| self.limits.iter().all(|limit| *limit == first))
    }

    /// The first device that runs out of memory, and the entry.
    pub(super) fn first_failure(&self) -> Option<(&OnDevice, usize)> {
        self.devices.iter().find_map(|device| Some((device, device.fails_at?)))
    }

    /// The first error that a recorded run died of.
    pub(super) fn first_death(&self) -> Option<usize> {
        self.devices.iter().find_map(OnDevice::died_at)
    }

    /// Whether what came before the first entry of a device (its place among those replayed) needed more than there is.
    pub(super) fn hides_more(&self, place: usize) -> bool {
        let limit = self.limits.get(place).copied().flatten();
        limit.zip(self.devices.get(place)).is_some_and(|(limit, device)| device.lost_bytes() > limit)
    }

    /// What it comes to.
    pub(super) fn outcome(&self) -> advise::Outcome {
        if !self.is_limited() {
            advise::Outcome::Unknown
        } else if self.first_failure().is_some() {
            // At least so much memory is known, but not that it was no more.
            if self.is_assumed { advise::Outcome::Unknown } else { advise::Outcome::DoesNotFit }
        } else if (0..self.devices.len()).any(|place| self.hides_more(place)) {
            advise::Outcome::Unknown
        } else if self.first_death().is_some() {
            advise::Outcome::GetsPast
        } else {
            advise::Outcome::Fits
        }
    }

    /// Whether every request of a device is served, and its recorded run did not end before its program did.
    pub(super) fn fits(&self, device: &OnDevice) -> bool {
        device.fails_at.is_none() && device.died_at().is_none()
    }

    /// The runs under the policy, for the comparison of ranks. Where no memory is known, nothing was refused, and the recorded errors stand.
    pub(super) fn rank_runs(&self) -> Result<Vec<RankRun>> {
        let of_device = |(recorded, device): (&DeviceRecording, &OnDevice)| {
            let run = RankRun::of_recording(recorded, &self.own)?.made_by(&self.made_by);
            let is_limited = self.is_limited();
            Ok(RankRun {
                failure: device.fails_at.or(device.died_at().filter(|_| !is_limited)).map(|entry| Failure::of(recorded, entry)),
                ooms: if is_limited { u64::from(device.fails_at.is_some()) } else { run.ooms },
                retries: i64::try_from(device.run.retries).ok(),
                peak_allocated_bytes: i64::try_from(device.run.peak_allocated_bytes).ok(),
                peak_reserved_bytes: i64::try_from(device.run.peak_reserved_bytes).ok(),
                end: None,
                ..run
            })
        };
        recording::traced(&self.recording).into_iter().zip(&self.devices).map(of_device).collect()
    }
}

#[cfg(test)]
mod tests {
    use parkade::units::PoolId;
    use parkade_analysis::ending::AfterError;

    use super::*;

    #[test]
    fn a_run_that_died_is_asked_up_to_its_error() {
        let pool = PoolId::DEFAULT;
        let allocate = |id, failed| Operation::Allocate { id, bytes: 1 << 20, stream: 0, pool, failed };
        let freed = |id| Operation::Free { id, completion: Completion::AtOnce };
        let operations = vec![(1, allocate(0, false)), (2, allocate(1, true)), (4, allocate(2, true)), (6, allocate(3, false))];
        let requests = Requests { operations, ..Requests::default() };
        let (first, again) =
            ((1, allocate(0, false)), [(2, allocate(1, false)), (2, freed(1)), (4, allocate(2, false)), (4, freed(2))]);
        let survived = asked(&requests, &Ending::NoError).operations;
        assert_eq!(survived, [&[first][..], &again, &[(6, allocate(3, false))]].concat());
        let error = AfterError {
            entry: 4,
            wanted_bytes: 1 << 20,
            served: 1,
            served_bytes: 0,
            telling_bytes: 0,
            asked_again_at: None,
            goes_on_bytes: 0,
        };
        assert_eq!(asked(&requests, &Ending::Died(error)).operations, [&[first][..], &again].concat());
    }
}
