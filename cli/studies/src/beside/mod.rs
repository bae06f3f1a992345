//! A policy of parkade beside PyTorch's settings: what it would need for the requests of a recording.
//!
//! PyTorch can run on any policy (`parkade.enable(policy=...)`), so it is an option like a setting. The policy serves the recorded
//! requests in the order of the recording; those that failed there are left out, and of a run that died nothing is estimated.

use anyhow::{Result, anyhow};
use parkade_policies::{BESIDE, CATALOGUE, Named, named, needs_serial_work, why_unknown};
use parkade_recording::DeviceRecording;
use parkade_replay::{Requests, VerifyOptions};
use parkade_research::study::{Outcome, RunOptions, make_for, run, smallest_capacity};
use parkade_research::workload::recorded::of_requests;
use parkade_terminal::json_struct::view;
use parkade_terminal::{output, size};

/// What a policy needs, on the device that needs most.
#[derive(Clone, PartialEq, Debug)]
pub struct Needs {
    /// Its name.
    policy: &'static str,
    /// What may be reserved, if known.
    available_bytes: Option<u64>,
    /// Whether every recorded request is served in that; less may be enough where it is not.
    fits: Option<bool>,
    /// The least memory in which every recorded request is served.
    smallest_bytes: u64,
    /// The most that is reserved, in the memory that there is or with plenty.
    peak_reserved_bytes: u64,
    /// What driver calls cost then, on all devices.
    driver_us: u64,
    /// Requests that failed in the recording.
    failed_requests: u64,
}

/// The policy with this name.
///
/// # Errors
/// There is none; the text has similar names.
pub fn policy(name: &str) -> Result<&'static Named> {
    named(name).ok_or_else(|| {
        let known = CATALOGUE.iter().chain(BESIDE).map(|policy| policy.name);
        let why = why_unknown(name).map_or_else(|| crate::sweep::suggestion(name, known), |why| format!(": {why}"));
        anyhow!("there is no policy {name:?}{why}")
    })
}

/// What a policy needs for the recorded requests of each device, which were made under `own`.
///
/// # Errors
/// The requests cannot be read, or the policy does not serve them with plenty of memory either.
pub fn needs(
    policy: &'static Named,
    devices: &[&DeviceRecording],
    own: &VerifyOptions,
    available_bytes: Option<u64>,
) -> Result<Needs> {
    let mut needs = Needs {
        policy: policy.name,
        available_bytes,
        fits: available_bytes.map(|_| true),
        smallest_bytes: 0,
        peak_reserved_bytes: 0,
        driver_us: 0,
        failed_requests: 0,
    };
    for device in devices {
        let requests = Requests::of_recording(device, own, &mut |_| ())?;
        let recorded = of_requests("recording", &requests);
        let make = make_for(policy, &recorded.workload);
        let smallest = smallest_capacity(&recorded.workload, &make, &RunOptions::plenty(), available_bytes.as_slice()).map_err(
            |outcome| {
                anyhow!("the policy {} does not serve the requests with plenty of memory: {:?}", policy.name, outcome.ending)
            },
        )?;
        let options = available_bytes.map_or_else(RunOptions::plenty, RunOptions::new);
        let at_hand = run(&recorded.workload, make(), &options);
        needs.fits = needs.fits.map(|fits| fits && at_hand.fits());
        let at_hand = Some(at_hand).filter(Outcome::fits).unwrap_or(smallest.outcome);
        needs.smallest_bytes = needs.smallest_bytes.max(smallest.capacity_bytes);
        needs.peak_reserved_bytes = needs.peak_reserved_bytes.max(at_hand.peak_reserved_bytes);
        needs.driver_us += at_hand.driver_ns / 1000;
        needs.failed_requests += recorded.failed_requests;
    }
    Ok(needs)
}

impl Needs {
    /// Whether every recorded request is served in the memory that there is, if that is known.
    #[must_use]
    pub fn fits(&self) -> Option<bool> {
        self.fits
    }

    /// In words.
    #[must_use]
    pub fn words(&self) -> String {
        let fits = match self.fits() {
            Some(true) => "fits, ",
            Some(false) if self.available_bytes.is_some_and(|available| self.smallest_bytes <= available) => {
                "does not fit, although less would be enough, "
            }
            Some(false) => "does not fit, ",
            None => "",
        };
        let left_out = match self.failed_requests {
            0 => String::new(),
            count => format!("; {} that failed in the recording left out", output::count(count, "request")),
        };
        let promise = if needs_serial_work(self.policy) { ", serial=True" } else { "" };
        format!(
            "with parkade.enable(policy={:?}{promise}) instead of settings: {fits}smallest memory {}, {} reserved at most, {:.1} ms of driver calls{left_out}",
            self.policy,
            size::show_bytes(self.smallest_bytes),
            size::show_bytes(self.peak_reserved_bytes),
            self.driver_us as f64 / 1000.0
        )
    }
}

view! {
    /// The same as a JSON object.
    pub struct Object(needs: &Needs) {
        policy: &'static str = needs.policy,
        fits: Option<bool> = needs.fits(),
        smallest_capacity_bytes: u64 = needs.smallest_bytes,
        peak_reserved_bytes: u64 = needs.peak_reserved_bytes,
        driver_us: u64 = needs.driver_us,
        failed_requests: u64 = needs.failed_requests,
    }
}
