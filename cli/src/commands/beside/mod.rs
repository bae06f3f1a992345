//! A policy of parkade beside PyTorch's settings: what it would need for the requests of a recording.
//!
//! PyTorch can run on any policy (`parkade.enable(policy=...)`), so it is an option like a setting, and it is asked for the same
//! requests. Settings are replayed, and policies are run as `parkade sweep` runs them, which differs in when memory comes back that other
//! streams use: a run does not wait for it ([`measure`] says so).

mod device;
mod ranks;
mod words;

use crate::terminal::json_struct::view;
use parkade_analysis::advise::{Advice, Outcome as Fit};
use parkade_policies::{Named, named};

use device::{Asked, Figures, OnDevice};
pub use ranks::{OnRanks, OnRanksObject};
pub use words::measure;

/// The policy that decides as PyTorch with expandable_segments:True: settings and policies are compared by it.
const EXPANDABLE: &str = "pytorch-expandable";

/// What a policy needs.
#[derive(Clone, PartialEq, Debug)]
pub struct Needs {
    /// Its name.
    policy: &'static str,
    /// How it fares on each device.
    devices: Vec<OnDevice>,
    /// What expandable_segments:True needs by the same measure, on the device that needs most.
    expandable_bytes: Option<u64>,
    /// Whether memory that other streams used comes back later than it was freed.
    has_late_frees: bool,
}

/// What each of these policies needs for the requests on which there is advice, each policy once.
#[must_use]
pub fn needs(policies: &[&'static Named], advice: &Advice) -> Vec<Needs> {
    if policies.is_empty() {
        return Vec::new();
    }
    let asked = Asked::of(advice);
    let expandable_bytes = named(EXPANDABLE).and_then(|expandable| {
        let mut each = asked.iter().map(|device| device.smallest_bytes(expandable));
        each.try_fold(0, |most, bytes| Some(most.max(bytes?)))
    });
    let has_late_frees = asked.iter().any(Asked::has_late_frees);
    let mut needs: Vec<Needs> = Vec::new();
    for policy in policies {
        if needs.iter().all(|known| known.policy != policy.name) {
            let devices = asked.iter().map(|device| device.try_policy(policy)).collect();
            needs.push(Needs { policy: policy.name, devices, expandable_bytes, has_late_frees });
        }
    }
    needs
}

impl Needs {
    /// The policy's name.
    #[must_use]
    pub fn policy(&self) -> &'static str {
        self.policy
    }

    /// What it comes to: the worst of the devices.
    #[must_use]
    pub fn outcome(&self) -> Fit {
        self.worst().map_or(Fit::Unknown, |device| device.outcome)
    }

    /// Whether every request is served in the memory that there is, if that is known: what is estimated of the rest of a run that died
    /// is so too.
    #[must_use]
    pub fn fits(&self) -> Option<bool> {
        self.of_all(|figures| Some(figures.at_hand?.fits))
    }

    /// Whether every recorded request is, that of which a run died included.
    #[must_use]
    pub fn gets_past(&self) -> Option<bool> {
        self.of_all(|figures| Some(figures.at_hand?.fails_at_entry.is_none()))
    }

    /// The least memory in which every request is served, on the device that needs most. `None` if the policy does not serve them.
    #[must_use]
    pub fn smallest_bytes(&self) -> Option<u64> {
        self.most(|figures| figures.smallest_bytes)
    }

    fn worst(&self) -> Option<&OnDevice> {
        let order = [Fit::DoesNotFit, Fit::Unknown, Fit::GetsPast, Fit::Fits];
        let badness = |device: &&OnDevice| order.iter().position(|fit| *fit == device.outcome);
        self.devices.iter().min_by_key(badness)
    }

    /// Whether it is so on every device, if it is known of each. A policy that does not serve the requests does not in any memory.
    fn of_all(&self, is_so: impl Fn(&Figures) -> Option<bool>) -> Option<bool> {
        let of = |device: &OnDevice| device.figures.as_ref().map_or(Some(false), &is_so);
        self.devices.iter().map(of).try_fold(true, |all, so| Some(all && so?))
    }

    fn most(&self, of: impl Fn(&Figures) -> u64) -> Option<u64> {
        self.devices.iter().map(|device| device.figures.as_ref().ok().map(&of)).try_fold(0, |most, one| Some(most.max(one?)))
    }

    fn peak_reserved_bytes(&self) -> Option<u64> {
        self.most(|figures| figures.peak_reserved_bytes)
    }

    fn driver_us(&self) -> Option<u64> {
        self.devices.iter().map(|device| Some(device.figures.as_ref().ok()?.driver_us)).sum()
    }

    fn failed_requests(&self) -> u64 {
        self.devices.iter().map(|device| device.failed_requests).sum()
    }

    fn fails_at_entry(&self) -> Option<usize> {
        self.devices.iter().find_map(|device| device.figures.as_ref().ok()?.at_hand?.fails_at_entry)
    }

    fn why_not(&self) -> Option<&str> {
        self.devices.iter().find_map(|device| device.figures.as_ref().err()).map(String::as_str)
    }
}

view! {
    /// The same as a JSON object.
    pub struct Object(needs: &Needs) {
        policy: &'static str = needs.policy,
        outcome: &'static str = needs.outcome().name(),
        fits: Option<bool> = needs.fits(),
        gets_past: Option<bool> = needs.gets_past(),
        fails_at_entry: Option<usize> = needs.fails_at_entry(),
        doubt: Option<&'static str> = needs.devices.iter().find_map(|device| device.doubt).map(|doubt| doubt.name()),
        smallest_capacity_bytes: Option<u64> = needs.smallest_bytes(),
        expandable_smallest_capacity_bytes: Option<u64> = needs.expandable_bytes,
        peak_reserved_bytes: Option<u64> = needs.peak_reserved_bytes(),
        driver_us: Option<u64> = needs.driver_us(),
        failed_requests: u64 = needs.failed_requests(),
        not_served: Option<String> = needs.why_not().map(str::to_owned),
    }
}
