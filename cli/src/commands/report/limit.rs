//! The memory limit of the recorded run, which a recording does not contain: given, or as `parkade advise` infers it for each device.
//!
//! Everything in a report uses this one limit: what is said of the run, the graphs, the settings that are tried and the advice.

use anyhow::Result;
use parkade_analysis::advise::{CapacityHint, DeviceMemory, MemoryBudget, capacity_hint};
use parkade_recording::DeviceRecording;
use parkade_replay::recognition::find_limit;
use parkade_replay::{VerifyError, VerifyOptions, verify_device};

use super::Args;
use crate::terminal::recording;

/// The limit of the recorded run on a device, and the memory with which settings are tried there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Limit {
    /// The limit under which the run is shown.
    pub(super) run_bytes: Option<u64>,
    /// The most that may be reserved under other settings; unlimited if `None`.
    pub(super) tried_bytes: Option<u64>,
    /// Why it is assumed, if it was not given.
    pub(super) assumed: Option<DeviceMemory>,
}

impl Limit {
    /// The limit of each device's run. `own` are the recorded run's settings.
    ///
    /// # Errors
    /// If a recording cannot be replayed.
    pub(super) fn of_each(args: &Args, devices: &[&DeviceRecording], own: &VerifyOptions) -> Result<Vec<Limit>> {
        if args.limit.is_some() || args.capacity.is_some() {
            let given = Limit { run_bytes: args.limit, tried_bytes: args.capacity.or(args.limit), assumed: None };
            return Ok(vec![given; devices.len()]);
        }
        let traced: Vec<&DeviceRecording> = devices.iter().copied().filter(|device| !device.trace.is_empty()).collect();
        let named = |device: &DeviceRecording, result| recording::of_device(result, device.device, devices.len());
        let found = traced.iter().map(|device| named(device, found(device, own))).collect::<Result<Vec<_>>>()?;
        let memories = DeviceMemory::of(&traced, &own.settings, MemoryBudget::default(), &found);
        let limit = |device: &&DeviceRecording| {
            let place = traced.iter().position(|traced| traced.device == device.device);
            let Some((memory, found)) = place.map(|place| (memories[place], found[place])) else { return Ok(Limit::default()) };
            let Some(bytes) = memory.budget.limit_bytes else { return Ok(Limit::default()) };
            // A wrong limit would show a run that did not happen.
            let shown = if found.is_some() { found } else { named(device, possible(device, own, bytes))? };
            Ok(Limit { run_bytes: shown, tried_bytes: Some(bytes), assumed: Some(memory) })
        };
        devices.iter().map(limit).collect()
    }

    pub(super) const fn is_assumed(&self) -> bool {
        self.assumed.is_some()
    }

    /// What an error of the device shows of the limit, if that was not given.
    pub(super) fn hint(&self) -> Option<CapacityHint> {
        self.assumed?.shown
    }
}

/// The limit that garbage collection shows, if an error bounds it.
fn found(device: &DeviceRecording, own: &VerifyOptions) -> Result<Option<u64>, VerifyError> {
    if capacity_hint(device, &own.settings).is_some() { find_limit(device, own) } else { Ok(None) }
}

/// The limit, if the recorded run is not further from its replay with it than without.
fn possible(device: &DeviceRecording, own: &VerifyOptions, bytes: u64) -> Result<Option<u64>, VerifyError> {
    let differing =
        |limit_bytes| Ok(verify_device(device, &VerifyOptions { limit_bytes, ..own.clone() }, &mut |_| ())?.mismatches);
    let is_possible = differing(Some(bytes))? <= differing(None)?;
    Ok(is_possible.then_some(bytes))
}
