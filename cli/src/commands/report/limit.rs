//! The memory limit of the recorded run, which a recording does not contain: given, or read off an out-of-memory error.
//!
//! Everything in a report uses this one limit: what is said of the run, the graphs, the settings that are tried and the advice.

use parkade_analysis::advise::{CapacityHint, capacity_hint};
use parkade_analysis::verify_finding_limit;
use parkade_recording::DeviceRecording;
use parkade_replay::{VerifyError, VerifyOptions, verify_device};

use super::Args;

/// The limit of the recorded run, and the memory with which settings are tried.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Limit {
    /// The limit under which the run is shown.
    pub(super) run_bytes: Option<u64>,
    /// The most that may be reserved under other settings; unlimited if `None`.
    pub(super) tried_bytes: Option<u64>,
    /// What shows the limit, if it was not given.
    pub(super) hint: Option<CapacityHint>,
}

impl Limit {
    /// The limit of these devices' run, inferred as `parkade advise` infers it if neither a limit nor a capacity is given. `own` are the
    /// recorded run's settings.
    ///
    /// # Errors
    /// If the recording cannot be replayed.
    pub(super) fn of(args: &Args, devices: &[&DeviceRecording], own: &VerifyOptions) -> Result<Limit, VerifyError> {
        let traced: Vec<&&DeviceRecording> = devices.iter().filter(|device| !device.trace.is_empty()).collect();
        match (args.limit, args.capacity, traced.as_slice()) {
            // An error on one device says nothing about the memory of the others.
            (None, None, [device]) => Limit::inferred(device, own),
            (limit, capacity, _) => Ok(Limit { run_bytes: limit, tried_bytes: capacity.or(limit), hint: None }),
        }
    }

    fn inferred(device: &DeviceRecording, own: &VerifyOptions) -> Result<Limit, VerifyError> {
        let Some(hint) = capacity_hint(device, &own.settings) else { return Ok(Limit::default()) };
        let under = |limit_bytes| VerifyOptions { limit_bytes, ..own.clone() };
        let (without, found) = verify_finding_limit(device, &under(None), &mut |_| ())?;
        let bytes = found.unwrap_or(hint.assumed_bytes());
        // A wrong limit would show a run that did not happen.
        let is_possible =
            found.is_some() || verify_device(device, &under(Some(bytes)), &mut |_| ())?.mismatches <= without.mismatches;
        let run_bytes = is_possible.then_some(bytes);
        Ok(Limit { run_bytes, tried_bytes: Some(bytes), hint: Some(hint) })
    }
}
