//! A replayed recording as one JSON object.

use parkade_analysis::continuation::Doubt;
use parkade_analysis::ending::Ending;
use parkade_replay::{LostBeginning, Operation, Outlook, Requests, TIMINGS, TimingsThatFit};
use serde::Serialize;

use super::policy::{OnDevice, UnderPolicy};
use super::{Args, UnderSettings};
use crate::terminal::json_struct::{all, origin, view};
use crate::terminal::release::MadeBy;

view! {
    /// With several devices the numbers are sums, and `devices` has each device's.
    pub(super) struct Object(args: &Args, replayed: &UnderSettings) {
        file: String = args.file.display().to_string(),
        settings: String = replayed.settings.settings.text.clone(),
        settings_origin: &'static str = origin(replayed.settings.origin),
        profile: &'static str = replayed.profile.name,
        made_by: MadeBy = MadeBy::of(&replayed.made_by),
        capacity_bytes: Option<u64> = args.replay.capacity,
        limit_bytes: Option<u64> = replayed.limit(),
        recorded_limit_bytes: Option<u64> = args.replay.recorded.recorded_limit.or(replayed.found_limit),
        outcome: &'static str = replayed.answer.outcome.name(),
        endings: Vec<&'static str> = all(&replayed.answer.endings, Ending::name),
        doubt: Option<&'static str> = replayed.answer.doubt.map(Doubt::name),
        seconds: f64 = replayed.seconds,
        #[serde(flatten)]
        numbers: OneOrMany = match replayed.devices.as_slice() {
            [device] => OneOrMany::One(Box::new(Numbers::of(device, replayed, 0))),
            _ => OneOrMany::Many(Sums::of_settings(replayed)),
        },
    }
}

view! {
    /// The same under a policy: without what settings alone have.
    pub(super) struct PolicyObject(args: &Args, replayed: &UnderPolicy) {
        file: String = args.file.display().to_string(),
        policy: String = replayed.policy.name.to_string(),
        made_by: MadeBy = MadeBy::of(&replayed.made_by),
        capacity_bytes: Option<u64> = args.replay.capacity,
        limit_bytes: Option<u64> = replayed.limit(),
        recorded_limit_bytes: Option<u64> = args.replay.recorded.recorded_limit.or(replayed.found_limit),
        outcome: &'static str = replayed.outcome().name(),
        endings: Vec<&'static str> = all(&replayed.devices, |device| device.ending.name()),
        seconds: f64 = replayed.seconds,
        #[serde(flatten)]
        numbers: OneOrMany = match replayed.devices.as_slice() {
            [device] => OneOrMany::One(Box::new(Numbers::under_policy(device, replayed, 0))),
            _ => OneOrMany::Many(Sums::of_policy(replayed)),
        },
    }
}

#[derive(Serialize)]
#[serde(untagged)]
enum OneOrMany {
    One(Box<Numbers>),
    Many(Sums),
}

view! {
    struct Numbers(outlook: &Outlook, replayed: &UnderSettings, place: usize) {
        fits: bool = replayed.answer.fits(place),
        ooms: i64 = replayed.answer.ooms(place, outlook),
        fails_at_entry: Option<usize> = replayed.answer.fails_at(place),
        peak_allocated_bytes: i64 = outlook.prediction.peak_allocated_bytes(),
        peak_reserved_bytes: i64 = outlook.prediction.peak_reserved_bytes(),
        retries: i64 = outlook.prediction.stats.num_alloc_retries,
        driver_calls: u64 = outlook.prediction.driver_calls,
        driver_ns: u64 = outlook.prediction.driver_ns,
        empty_cache_calls: usize = empty_cache_calls(&outlook.requests),
        recorded: Recorded = Recorded::of(&outlook.requests),
        device_errors: u64 = outlook.prediction.device_errors,
        assumed_limit_bytes: Option<u64> = replayed.limits.get(place).copied().flatten().filter(|_| replayed.is_assumed),
        #[serde(flatten)]
        timing: Option<Timing> = outlook.timing.map(|range| Timing::of(range, replayed.timings.get(place).copied().flatten())),
    }
}

impl Numbers {
    fn under_policy(device: &OnDevice, replayed: &UnderPolicy, place: usize) -> Numbers {
        let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        Numbers {
            fits: replayed.fits(device),
            ooms: i64::from(device.fails_at.is_some()),
            fails_at_entry: device.fails_at,
            peak_allocated_bytes: signed(device.run.peak_allocated_bytes),
            peak_reserved_bytes: signed(device.run.peak_reserved_bytes),
            retries: signed(device.run.retries),
            driver_calls: device.run.driver_calls,
            driver_ns: device.run.driver_ns,
            empty_cache_calls: empty_cache_calls(&device.requests),
            recorded: Recorded::of(&device.requests),
            // A request that fails for another reason is an error of the command.
            device_errors: 0,
            assumed_limit_bytes: replayed.limits.get(place).copied().flatten().filter(|_| replayed.is_assumed),
            timing: None,
        }
    }
}

fn empty_cache_calls(requests: &Requests) -> usize {
    requests.operations.iter().filter(|(_, operation)| *operation == Operation::EmptyCache).count()
}

view! {
    struct Recorded(requests: &Requests) {
        peak_reserved_bytes: i64 = requests.recorded_peak_reserved_bytes,
        ooms: u64 = requests.ooms,
        mismatches: u64 = requests.mismatches,
        lost_beginning: Option<Lost> = requests.lost_beginning.map(Lost::of),
    }
}

view! {
    struct Lost(lost: LostBeginning) {
        segments: usize = lost.segments,
        blocks: usize = lost.blocks,
        reserved_bytes: u64 = lost.reserved_bytes,
    }
}

view! {
    /// How much the timing of other streams matters.
    struct Timing(range: parkade_replay::TimingRange, timings: Option<TimingsThatFit>) {
        peak_reserved_bytes_earliest: i64 = range.earliest.peak_reserved_bytes,
        fits_earliest: bool = range.earliest.fits,
        peak_reserved_bytes_latest: i64 = range.latest.peak_reserved_bytes,
        fits_latest: bool = range.latest.fits,
        peak_reserved_bytes_least: i64 = range.least_peak_reserved_bytes,
        peak_reserved_bytes_most: i64 = range.most_peak_reserved_bytes,
        peak_reserved_bytes_are_likely: bool = range.is_likely,
        timings_tried: usize = TIMINGS.len(),
        timings_fit: Option<usize> = timings.map(|timings| timings.fit),
    }
}

#[derive(Serialize)]
struct Device {
    device: u32,
    #[serde(flatten)]
    numbers: Numbers,
}

/// The sums over several devices.
#[derive(Serialize)]
struct Sums {
    ooms: i64,
    peak_allocated_bytes: i64,
    peak_reserved_bytes: i64,
    retries: i64,
    driver_calls: i64,
    driver_ns: i64,
    empty_cache_calls: i64,
    device_errors: i64,
    fits: bool,
    fails_at_entry: Option<usize>,
    devices: Vec<Device>,
}

impl Sums {
    fn of_settings(replayed: &UnderSettings) -> Sums {
        let of_device = |(place, outlook): (usize, &Outlook)| Device {
            device: outlook.device,
            numbers: Numbers::of(outlook, replayed, place),
        };
        let fails_at_entry = replayed.answer.first_failure().map(|(_, entry)| entry);
        Sums::of(all(replayed.devices.iter().enumerate(), of_device), replayed.fits(), fails_at_entry)
    }

    fn of_policy(replayed: &UnderPolicy) -> Sums {
        let of_device = |(place, device): (usize, &OnDevice)| Device {
            device: device.device,
            numbers: Numbers::under_policy(device, replayed, place),
        };
        let fits = replayed.devices.iter().all(|device| replayed.fits(device));
        let fails_at_entry = replayed.first_failure().map(|(_, entry)| entry);
        Sums::of(all(replayed.devices.iter().enumerate(), of_device), fits, fails_at_entry)
    }

    fn of(devices: Vec<Device>, fits: bool, fails_at_entry: Option<usize>) -> Sums {
        // Sums that do not overflow.
        let sum = |number: &dyn Fn(&Numbers) -> i64| devices.iter().map(|one| number(&one.numbers)).fold(0, i64::saturating_add);
        let signed = |number: u64| i64::try_from(number).unwrap_or(0);
        Sums {
            ooms: sum(&|one| one.ooms),
            peak_allocated_bytes: sum(&|one| one.peak_allocated_bytes),
            peak_reserved_bytes: sum(&|one| one.peak_reserved_bytes),
            retries: sum(&|one| one.retries),
            driver_calls: sum(&|one| signed(one.driver_calls)),
            driver_ns: sum(&|one| signed(one.driver_ns)),
            empty_cache_calls: sum(&|one| signed(one.empty_cache_calls as u64)),
            device_errors: sum(&|one| signed(one.device_errors)),
            fits,
            fails_at_entry,
            devices,
        }
    }
}
