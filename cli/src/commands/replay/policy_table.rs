//! A recording replayed under a policy, as a table with notes: the words are those of a replay under settings where they mean the same.

use std::io::{self, Write};

use parkade_analysis::advise::Outcome;
use parkade_policies::needs_serial_work;
use parkade_research::study::PLENTY_BYTES;

use super::Args;
use super::policy::{OnDevice, UnderPolicy};
use super::table::{FITS, HIDDEN, before_first_entry};
use crate::terminal::recording::{self, short_name};
use crate::terminal::table::{Mark, Table};
use crate::terminal::{output, release, run_words, size};

const HEADS: [&str; 9] =
    ["recording", "policy", "fits", "oom", "peak allocated", "peak reserved", "retries", "driver calls", "driver time"];

pub(super) fn print(out: &mut dyn Write, args: &Args, replayed: &UnderPolicy) -> io::Result<()> {
    let name = short_name(&args.file);
    let is_one_of_many = replayed.devices.len() > 1;
    let name_of = |device: &OnDevice| if is_one_of_many { format!("{name} device {}", device.device) } else { name.clone() };
    let mut table = Table::new(HEADS);
    for (place, device) in replayed.devices.iter().enumerate() {
        let fits = fits(replayed, device, place);
        let mark = if fits == "-" { Mark::Plain } else { Mark::of(device.fails_at.is_none()) };
        table.marked(cells(replayed, device, name_of(device), fits), FITS, mark);
    }
    write!(out, "{}", table.text())?;
    for (place, device) in replayed.devices.iter().enumerate() {
        writeln!(out, "\n{}", name_of(device))?;
        for note in notes(replayed, device, place) {
            write!(out, "{}", output::paragraph(&note, 2))?;
        }
    }
    let (is_good, said) = said(replayed);
    let lines = output::paragraph(&said, 0);
    let lines = lines.trim_end();
    writeln!(out, "\n{}", if is_good { output::good(lines) } else { output::bad(lines) })
}

/// Whether a device's requests are served, in a word; a dash where it is not known.
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

fn cells(replayed: &UnderPolicy, device: &OnDevice, name: String, fits: &str) -> [String; HEADS.len()] {
    let run = &device.run;
    [
        name,
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
            let far = if has_lost { "as far as the file goes, " } else { "" };
            (true, format!("{far}it fits{}", had_before(replayed)))
        }
        (Outcome::GetsPast, death) => {
            let entry = death.unwrap_or(0);
            (
                false,
                format!(
                    "it gets past entry {entry}, where the run died; the rest is not in the file, and under a policy it is not estimated"
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

/// What the recorded run had reserved before its first entry, if that is more than what is in the file needs.
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

/// Which device runs out of memory, if there are several.
fn runs(replayed: &UnderPolicy, device: &OnDevice) -> String {
    if replayed.devices.len() > 1 { format!("device {} runs", device.device) } else { "it runs".to_owned() }
}

fn notes(replayed: &UnderPolicy, device: &OnDevice, place: usize) -> Vec<String> {
    let requests = &device.requests;
    let mut notes = vec![format!("recorded: at most {} reserved", size::show(requests.recorded_peak_reserved_bytes))];
    if place == 0 {
        notes.push(release::words(&replayed.made_by));
    }
    if let Some(bytes) = replayed.limits.get(place).copied().flatten().filter(|_| replayed.is_assumed) {
        notes.push(recording::assumed_limit(bytes, "--limit"));
    }
    if let Some(bytes) = replayed.found_limit {
        notes.push(format!("of the recorded run {}", recording::assumed_limit(bytes, "--recorded-limit")));
    }
    notes.extend(requests.lost_beginning.map(before_first_entry));
    notes.extend(run_words::ending(&device.ending));
    if requests.mismatches > 0 {
        notes.push(recording::uncertain_requests(requests.mismatches, requests.decisions));
    }
    if device.late_frees > 0 {
        notes.push(format!(
            "{} waited for other streams in the recorded run; the memory becomes free where it did there",
            output::count(device.late_frees, "free")
        ));
    }
    if device.unnamed_requests > 0 {
        notes.push(format!("{} left out: its streams or pools are too many", output::count(device.unnamed_requests, "request")));
    }
    if !replayed.is_limited() && device.run.peak_reserved_bytes >= PLENTY_BYTES / 2 {
        notes.push("the policy reserves memory in advance, by how much there is: --limit or --capacity says that".to_owned());
    }
    if device.fails_at.is_some() {
        notes.push("peaks, calls and time are those up to the request that fails: it ends the run".to_owned());
    }
    if place == 0 && needs_serial_work(&replayed.policy.name) {
        notes.push(format!(
            "parkade.enable(policy={:?}, serial=True) runs a program so: one thread at a time may use the GPU",
            replayed.policy.name
        ));
    }
    notes
}
