//! Replays the requests of a recording under a parkade policy, in place of PyTorch's allocator and its settings, as a table
//! with notes and as one JSON object. The words are the same as for a replay under settings wherever they mean the same.
//!
//! For a run that died, the request that failed is replayed too, but nothing after it: the recording continues with the
//! program's end, and what would have followed otherwise is not estimated. Requests that failed and were survived are repeated
//! and freed immediately, as under settings.

use std::path::Path;

use anyhow::{Result, anyhow};
use parkade_analysis::advise::Outcome;
use parkade_analysis::ending::Ending;
use parkade_analysis::ranks::{Failure, RankRun};
use parkade_policies::{Named, needs_serial_work};
use parkade_recording::{DeviceRecording, Recording};
use parkade_replay::recognition::{Recognition, most_reserved};
use parkade_replay::{OutlookOptions, Requests, SelfCheck, VerifyOptions};
use parkade_research::study::{self, PLENTY_BYTES, RunOptions, make_for};
use parkade_research::workload::recorded::RecordedWorkload;

use super::settings::{
    Device, HIDDEN, Known, Numbers, OneOrMany, Recorded, Row, Sums, before_first_entry, empty_cache_calls, shown,
};
use crate::commands::beside;
use crate::commands::simulated::program::workload_of;
use crate::terminal::answer::Answer;
use crate::terminal::args::Replay;
use crate::terminal::json_struct::{Word, all, view};
use crate::terminal::recording::{self, MadeBy};
use crate::terminal::run_words::Checked;
use crate::terminal::surroundings::Start;
use crate::terminal::table::Mark;
use crate::terminal::{output, progress, run_words, size};

/// A recording that was replayed under a policy.
pub struct UnderPolicy {
    policy: Named,
    capacity_bytes: Option<u64>,
    /// The limit of each device.
    limits: Vec<Option<u64>>,
    /// Whether the limits were assumed and not given.
    is_assumed: bool,
    /// The recorded run's own limit, if garbage collection reveals it.
    found_limit: Option<u64>,
    own: VerifyOptions,
    made_by: Recognition,
    recording: Recording,
    devices: Vec<OnDevice>,
    seconds: f64,
}

/// The requests of one device, and their outcome.
struct OnDevice {
    device: u32,
    requests: Requests,
    /// Whether a replay under the recorded run's own settings needs what that run needed.
    check: Option<SelfCheck>,
    /// How the recorded run ended.
    ending: Ending,
    run: study::Outcome,
    /// The entry of the refused request, at which the run ends.
    fails_at: Option<usize>,
    /// Frees that waited for other streams in the recording.
    late_frees: u64,
    /// Requests whose stream or pool a study cannot number.
    unnamed_requests: u64,
}

/// Replays a recording's requests under the policy.
pub(super) fn replay(file: &Path, args: &Replay, is_json: bool, policy: Named) -> Result<UnderPolicy> {
    let start = Start::now();
    let recording = recording::read(file)?;
    let (own, found_limit, made_by) = args.own_or_found(&recording)?;
    let traced = recording::traced(&recording);
    if traced.is_empty() {
        return Err(recording::no_trace(&recording, "to replay"));
    }
    // A policy has no memory fraction.
    let given = args.limit(1.0, recording::newest_release())?;
    let (limits, is_assumed) = match given {
        None => assumed(&traced, &own)?,
        Some(_) => (vec![given; traced.len()], false),
    };
    let bar = progress::entries(is_json);
    bar.set_length(recording::entries(&traced));
    let (mut devices, mut done) = (Vec::new(), 0);
    for (device, &limit_bytes) in traced.iter().zip(&limits) {
        let requests = Requests::of_recording(device, &own, &mut |entries| bar.set_position((done + entries) as u64));
        let mut requests = recording::of_device(requests, device.device, traced.len())?;
        if recording.other_policy().is_some() {
            // The peak of the requests is that of PyTorch's allocator.
            requests.recorded_peak_reserved_bytes = i64::try_from(most_reserved(device)).unwrap_or(i64::MAX);
        }
        done += device.trace.len();
        let options = RunOptions { limit_bytes, ..RunOptions::new(args.capacity.unwrap_or(PLENTY_BYTES)) };
        let check = SelfCheck::of(device, &own, &requests);
        let served = OnDevice::of(device, (requests, check), &policy, &options);
        devices.push(recording::of_device(served, device.device, traced.len())?);
    }
    bar.finish_and_clear();
    let seconds = start.elapsed().as_secs_f64();
    let capacity_bytes = args.capacity;
    Ok(UnderPolicy { policy, capacity_bytes, limits, is_assumed, found_limit, own, made_by, recording, devices, seconds })
}

/// The limit of each device that `advise` assumes if a run died, and whether it assumes any.
fn assumed(traced: &[&DeviceRecording], own: &VerifyOptions) -> Result<(Vec<Option<u64>>, bool)> {
    let (settings, profile) = (own.settings.settings.clone(), own.settings.profile);
    let options = OutlookOptions { own: own.clone(), profile, settings, limit_bytes: None, capacity_bytes: None };
    let known = Known::of(traced, &options)?;
    Ok((known.limits, known.is_assumed))
}

impl OnDevice {
    fn of(
        device: &DeviceRecording,
        (requests, check): (Requests, Option<SelfCheck>),
        policy: &Named,
        options: &RunOptions,
    ) -> Result<OnDevice> {
        let ending = Ending::of(device);
        let RecordedWorkload { workload, entries, late_frees, unnamed_requests, .. } = workload_of(&requests, &ending);
        let run = study::run(&workload, make_for(policy, &workload)(), options);
        let fails_at = run.failed_at_event.map(|event| entries.get(event).map_or(0, |&entry| entry as usize));
        if let study::Ending::Fault(fault) = &run.ending {
            let entry = fails_at.unwrap_or(0);
            return Err(anyhow!(
                "the policy {} cannot serve entry {entry}, for a reason other than memory: {fault}",
                policy.name
            ));
        }
        Ok(OnDevice { device: device.device, requests, check, ending, run, fails_at, late_frees, unnamed_requests })
    }

    /// Bytes reserved before the first entry of a recording whose oldest entries are missing.
    fn lost_bytes(&self) -> u64 {
        self.requests.lost_beginning.map_or(0, |lost| lost.reserved_bytes)
    }

    /// The error that ended the recorded run.
    fn died_at(&self) -> Option<usize> {
        self.ending.death().map(|death| death.entry)
    }
}

impl UnderPolicy {
    /// Whether the memory is known, given or assumed.
    pub(super) fn is_limited(&self) -> bool {
        self.limits.iter().any(Option::is_some)
    }

    /// The limit of all devices, if they have the same.
    fn limit(&self) -> Option<u64> {
        let first = *self.limits.first()?;
        first.filter(|_| self.limits.iter().all(|limit| *limit == first))
    }

    /// The first device that runs out of memory, and the entry.
    fn first_failure(&self) -> Option<(&OnDevice, usize)> {
        self.devices.iter().find_map(|device| Some((device, device.fails_at?)))
    }

    /// The first error that ended a recorded run.
    pub(super) fn first_death(&self) -> Option<usize> {
        self.devices.iter().find_map(OnDevice::died_at)
    }

    /// Whether the part before the first entry of a device (an index among those replayed) needed more than the available memory.
    fn hides_more(&self, place: usize) -> bool {
        let limit = self.limits.get(place).copied().flatten();
        limit.zip(self.devices.get(place)).is_some_and(|(limit, device)| device.lost_bytes() > limit)
    }

    /// The outcome.
    pub(super) fn outcome(&self) -> Outcome {
        if !self.is_limited() {
            Outcome::Unknown
        } else if self.first_failure().is_some() {
            // The memory is known to be at least this much, but may have been more.
            if self.is_assumed { Outcome::Unknown } else { Outcome::DoesNotFit }
        } else if (0..self.devices.len()).any(|place| self.hides_more(place)) {
            Outcome::Unknown
        } else if self.first_death().is_some() {
            Outcome::GetsPast
        } else {
            Outcome::Fits
        }
    }

    /// Whether every request of a device is served, and its recorded run did not end before its program did.
    fn fits(&self, device: &OnDevice) -> bool {
        device.fails_at.is_none() && device.died_at().is_none()
    }

    /// The runs under the policy, for the comparison of ranks. If no memory is known, nothing was refused, and the recorded errors
    /// stand.
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

const HEADS: [&str; 8] = ["policy", "fits", "oom", "peak allocated", "peak reserved", "retries", "driver calls", "driver time"];

pub(super) fn answer(file: &Path, replayed: &UnderPolicy) -> Answer {
    let row = |(place, device): (usize, &OnDevice)| {
        let fits = fits(replayed, device, place);
        let mark = if fits == "-" { Mark::Plain } else { Mark::of(device.fails_at.is_none()) };
        Row { device: device.device, cells: cells(replayed, device, fits), mark, notes: notes(replayed, device, place) }
    };
    shown(file, said(replayed), &HEADS, replayed.devices.iter().enumerate().map(row).collect())
}

/// Whether a device's requests are served, in one word; a dash if that is not known.
fn fits(replayed: &UnderPolicy, device: &OnDevice, place: usize) -> &'static str {
    if device.fails_at.is_some() {
        if replayed.is_assumed { "-" } else { "no" }
    } else if !replayed.is_limited() || replayed.hides_more(place) {
        "-"
    } else if device.died_at().is_some() {
        "gets past"
    } else {
        "yes"
    }
}

fn cells(replayed: &UnderPolicy, device: &OnDevice, fits: &str) -> [String; HEADS.len()] {
    let run = &device.run;
    [
        replayed.policy.name.to_string(),
        fits.to_owned(),
        u64::from(device.fails_at.is_some()).to_string(),
        size::show_bytes(run.peak_allocated_bytes),
        size::show_bytes(run.peak_reserved_bytes),
        run.retries.to_string(),
        run.driver_calls.to_string(),
        format!("{:.1} ms", run.driver_ns as f64 / 1e6),
    ]
}

/// The answer, and whether it is good news.
fn said(replayed: &UnderPolicy) -> (bool, String) {
    match (replayed.outcome(), replayed.first_death()) {
        (Outcome::Fits, _) => {
            let has_lost = replayed.devices.iter().any(|device| device.requests.lost_beginning.is_some());
            let far = if has_lost { "judging by what is in the file, " } else { "" };
            (true, format!("{far}it fits{}", had_before(replayed)))
        }
        (Outcome::GetsPast, death) => {
            let entry = death.unwrap_or(0);
            (
                false,
                format!(
                    "it gets past entry {entry}, where the run died; the rest is not in the file, and parkade does not \
                     estimate it under a policy"
                ),
            )
        }
        (Outcome::DoesNotFit, _) => (false, does_not_fit(replayed)),
        (Outcome::Unknown, Some(entry)) if !replayed.is_limited() => {
            (false, format!("not known: the run died at entry {entry}, and without --limit or --capacity nothing is refused"))
        }
        (Outcome::Unknown, None) if !replayed.is_limited() => {
            let peaks = replayed.devices.iter().map(|device| size::show_bytes(device.run.peak_reserved_bytes));
            (true, format!("at most {} reserved; without --limit or --capacity nothing is refused", output::list(peaks)))
        }
        (Outcome::Unknown, _) => (false, format!("not known: {}", not_known(replayed))),
    }
}

/// The memory that the recorded run had reserved before its first entry, if that exceeds the need of what is in the file.
fn had_before(replayed: &UnderPolicy) -> String {
    let hidden = replayed.devices.iter().filter(|device| device.lost_bytes() > device.run.peak_reserved_bytes);
    hidden.map(OnDevice::lost_bytes).max().map_or_else(String::new, run_words::had_before)
}

fn not_known(replayed: &UnderPolicy) -> String {
    match replayed.first_failure() {
        Some((device, entry)) => {
            let limit = replayed.limit().map_or_else(|| "the memory of each device".to_owned(), size::show_bytes);
            let runs = runs(replayed, device);
            format!("in {limit} {runs} out of memory at entry {entry}, but the limit may have been higher (--limit sets it)")
        }
        None => format!("what is in the file fits, but {HIDDEN}"),
    }
}

fn does_not_fit(replayed: &UnderPolicy) -> String {
    let Some((device, entry)) = replayed.first_failure() else { return "it does not fit".to_owned() };
    let first = if replayed.devices.len() > 1 { " first," } else { "" };
    let goes_on = run_words::goes_on(&device.ending, device.requests.ooms).map_or_else(String::new, |said| format!("; {said}"));
    format!("it does not fit: {} out of memory{first} at entry {entry}{goes_on}", runs(replayed, device))
}

/// Names the device that runs out of memory, if there are several.
fn runs(replayed: &UnderPolicy, device: &OnDevice) -> String {
    if replayed.devices.len() > 1 { format!("device {} runs", device.device) } else { "it runs".to_owned() }
}

fn notes(replayed: &UnderPolicy, device: &OnDevice, place: usize) -> Vec<String> {
    let requests = &device.requests;
    let mut notes = vec![format!("recorded: at most {} reserved", size::show(requests.recorded_peak_reserved_bytes))];
    notes.extend(run_words::failed_check(device.check));
    let simulated = replayed.recording.other_policy();
    if place == 0 {
        notes.push(simulated.map_or_else(|| recording::made_by_words(&replayed.made_by), recording::is_simulation));
    }
    if let Some(bytes) = replayed.limits.get(place).copied().flatten().filter(|_| replayed.is_assumed) {
        notes.push(recording::assumed_limit(bytes, "--limit"));
    }
    if let Some(bytes) = replayed.found_limit {
        notes.push(format!("for the recorded run, {}", recording::assumed_limit(bytes, "--recorded-limit")));
    }
    notes.extend(requests.lost_beginning.map(before_first_entry));
    notes.extend(run_words::ending(&device.ending));
    notes.extend(run_words::readings(requests));
    if requests.mismatches > 0 && simulated.is_none() {
        notes.push(recording::uncertain_requests(requests.mismatches, requests.decisions));
    }
    if device.late_frees > 0 {
        notes.push(format!(
            "{} waited for other streams in the recorded run; the memory becomes free at the same point as it did then",
            output::count(device.late_frees, "free")
        ));
    }
    if device.unnamed_requests > 0 {
        notes
            .push(format!("{} left out: there are too many streams or pools", output::count(device.unnamed_requests, "request")));
    }
    if !replayed.is_limited() && device.run.peak_reserved_bytes >= PLENTY_BYTES / 2 {
        notes.push(
            "the policy reserves a share of all memory in advance: --limit or --capacity sets how much memory the device has"
                .to_owned(),
        );
    }
    if device.fails_at.is_some() {
        notes.push("peaks, calls and time cover the run up to the request that fails, which ends it".to_owned());
    }
    if place == 0 && needs_serial_work(&replayed.policy.name) {
        notes.push(format!(
            "{} runs a program on this policy; only one thread at a time may use the GPU",
            beside::enable_call(&replayed.policy.name)
        ));
    }
    notes
}

view! {
    /// The same object as under settings, without the fields that only settings have.
    pub(super) struct PolicyObject(file: &Path, args: &Replay, replayed: &UnderPolicy) {
        file: String = file.display().to_string(),
        /// `--policy`, in place of `settings`.
        policy: String = replayed.policy.name.to_string(),
        made_by: MadeBy = MadeBy::of(&replayed.made_by),
        capacity_bytes: Option<u64> = replayed.capacity_bytes,
        limit_bytes: Option<u64> = replayed.limit(),
        recorded_limit_bytes: Option<u64> = args.recorded.bytes(&replayed.recording).or(replayed.found_limit),
        outcome: Word<Outcome> = Word::of(&replayed.outcome()),
        endings: Vec<Word<Ending>> = all(&replayed.devices, |device| Word::of(&device.ending)),
        seconds: f64 = replayed.seconds,
        #[serde(flatten)]
        numbers: OneOrMany = match replayed.devices.as_slice() {
            [device] => OneOrMany::One(Box::new(numbers(device, replayed, 0))),
            _ => OneOrMany::Many(sums(replayed)),
        },
    }
}

fn numbers(device: &OnDevice, replayed: &UnderPolicy, place: usize) -> Numbers {
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
        self_check: device.check.map(Checked::of),
        flushes: run_words::flushes(&device.requests),
        // Policies are compared under one interpretation only.
        read_otherwise: None,
        // A request that fails for a different reason is an error of the command.
        device_errors: 0,
        assumed_limit_bytes: replayed.limits.get(place).copied().flatten().filter(|_| replayed.is_assumed),
        timing: None,
    }
}

fn sums(replayed: &UnderPolicy) -> Sums {
    let of_device =
        |(place, device): (usize, &OnDevice)| Device { device: device.device, numbers: numbers(device, replayed, place) };
    let fits = replayed.devices.iter().all(|device| replayed.fits(device));
    let fails_at_entry = replayed.first_failure().map(|(_, entry)| entry);
    let checks = replayed.devices.iter().filter_map(|device| device.check);
    Sums::of(all(replayed.devices.iter().enumerate(), of_device), checks, fits, fails_at_entry)
}
