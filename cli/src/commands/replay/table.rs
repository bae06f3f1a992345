//! A replayed recording as a table with notes.

use std::io::{self, Write};

use parkade_analysis::advise::Outcome;
use parkade_analysis::ending::Ending;
use parkade_replay::{Extreme, LostBeginning, Outlook, SettingsOrigin, TimingsThatFit};

use super::{Args, UnderSettings};
use crate::terminal::recording::{self, short_name};
use crate::terminal::table::{Mark, Table};
use crate::terminal::{output, release, run_words, size};

const HEADS: [&str; 9] =
    ["recording", "settings", "fits", "oom", "peak allocated", "peak reserved", "retries", "driver calls", "driver time"];
/// Why what is in the file does not tell.
pub(super) const HIDDEN: &str = "what came before its first entry needed more than there is";
/// The column that is coloured.
pub(super) const FITS: usize = 2;

pub(super) fn print(out: &mut dyn Write, args: &Args, replayed: &UnderSettings) -> io::Result<()> {
    let name = short_name(&args.file);
    let is_one_of_many = replayed.devices.len() > 1;
    let name_of = |device: &Outlook| if is_one_of_many { format!("{name} device {}", device.device) } else { name.clone() };
    let mut table = Table::new(HEADS);
    for (place, device) in replayed.devices.iter().enumerate() {
        let fits = fits(args, replayed, place);
        let mark = if fits == "-" { Mark::Plain } else { Mark::of(replayed.answer.fails_at(place).is_none()) };
        table.marked(cells(replayed, device, place, name_of(device), fits), FITS, mark);
    }
    write!(out, "{}", table.text())?;
    for (place, device) in replayed.devices.iter().enumerate() {
        let notes = notes(args, replayed, device, place);
        if !notes.is_empty() {
            writeln!(out, "\n{}", name_of(device))?;
        }
        for note in notes {
            write!(out, "{}", output::paragraph(&note, 2))?;
        }
    }
    write!(out, "\n{}", verdict(args, replayed))
}

/// Whether a device's program fits, in a word; a dash where it is not known.
fn fits(args: &Args, replayed: &UnderSettings, place: usize) -> &'static str {
    let answer = &replayed.answer;
    let is_unknown = answer.outcomes.get(place) == Some(&Outcome::Unknown);
    if answer.fails_at(place).is_some() {
        // At least so much memory is known, but not that it was no more.
        if is_unknown && replayed.is_assumed { "-" } else { "no" }
    } else if !replayed.is_limited(args) || (is_unknown && !answer.fits(place)) {
        "-"
    } else if answer.fits(place) {
        "yes"
    } else {
        "gets past"
    }
}

fn cells(replayed: &UnderSettings, device: &Outlook, place: usize, name: String, fits: &str) -> [String; HEADS.len()] {
    let prediction = &device.prediction;
    let text = &replayed.settings.settings.text;
    let settings = if text.is_empty() { "default".to_owned() } else { output::one_line(&output::shorten(text, 60)) };
    [
        name,
        settings,
        fits.to_owned(),
        replayed.answer.ooms(place, device).to_string(),
        size::show(prediction.peak_allocated_bytes()),
        size::show(prediction.peak_reserved_bytes()),
        prediction.stats.num_alloc_retries.to_string(),
        prediction.driver_calls.to_string(),
        format!("{:.1} ms", prediction.driver_ns as f64 / 1e6),
    ]
}

/// The answer, in the lines that the terminal has room for.
fn verdict(args: &Args, replayed: &UnderSettings) -> String {
    let (is_good, said) = said(args, replayed);
    let lines = output::paragraph(&said, 0);
    let lines = lines.trim_end();
    format!("{}\n", if is_good { output::good(lines) } else { output::bad(lines) })
}

/// The answer, and whether it is good news.
fn said(args: &Args, replayed: &UnderSettings) -> (bool, String) {
    let answer = &replayed.answer;
    let death = answer.endings.iter().find_map(Ending::death);
    let has_lost = replayed.devices.iter().any(|device| device.requests.lost_beginning.is_some());
    let limited = replayed.is_limited(args);
    match (answer.outcome, death) {
        (Outcome::GetsPast, Some(error)) => {
            let why = match answer.doubt {
                Some(doubt) => run_words::doubt(doubt),
                None => "what is estimated of it does not fit".to_owned(),
            };
            let entry = error.entry;
            (false, format!("it gets past entry {entry}, where the run died; the rest is not in the file, and {why}"))
        }
        (Outcome::Fits, Some(_)) => (true, "it fits, with what is estimated of the rest".to_owned()),
        (Outcome::Fits, None) => {
            let far = if has_lost { "as far as the file goes, " } else { "" };
            let how = if answer.any_as_recorded { " as it is: the recorded run did" } else { "" };
            (true, format!("{far}it fits{how}{}{}", had_before(replayed), other_timings(replayed)))
        }
        (Outcome::Unknown, Some(error)) if !limited => (
            false,
            format!("not known: the run died at entry {}, and without --limit or --capacity nothing is refused", error.entry),
        ),
        (Outcome::Unknown, None) if !limited => {
            let peaks = replayed.devices.iter().map(|device| size::show(device.prediction.peak_reserved_bytes()));
            (true, format!("at most {} reserved; without --limit or --capacity nothing is refused", output::list(peaks)))
        }
        (Outcome::Unknown, _) if replayed.is_assumed => (false, format!("not known: {}", with_assumed(replayed))),
        (Outcome::Unknown, _) => (false, format!("not known: what is in the file fits, but {HIDDEN}")),
        (Outcome::GetsPast | Outcome::DoesNotFit, _) => (false, does_not_fit(replayed)),
    }
}

/// What the recorded run had reserved before its first entry, if that is more than what is in the file needs.
fn had_before(replayed: &UnderSettings) -> String {
    let reserved = |device: &Outlook| {
        let lost = device.requests.lost_beginning?;
        (lost.reserved_bytes > device.prediction.peak_reserved_bytes().unsigned_abs()).then_some(lost.reserved_bytes)
    };
    replayed.devices.iter().filter_map(reserved).max().map_or_else(String::new, run_words::had_before)
}

/// That it does not fit with some other timings of the streams.
fn other_timings(replayed: &UnderSettings) -> String {
    match replayed.timings.iter().flatten().filter(|timings| timings.fit < timings.of).min_by_key(|timings| timings.fit) {
        Some(TimingsThatFit { fit, of }) => format!(
            "; that depends on when the other streams finish: as recorded it does, but of {of} other timings that were tried {} {}",
            if *fit == 0 { "none".to_owned() } else { format!("only {fit}") },
            if *fit == 1 { "does" } else { "do" }
        ),
        None => String::new(),
    }
}

/// What happens in the memory that is assumed.
fn with_assumed(replayed: &UnderSettings) -> String {
    let limit = match replayed.limit() {
        Some(bytes) => size::show_bytes(bytes),
        None => "the memory of each device".to_owned(),
    };
    let found = match replayed.answer.first_failure() {
        Some((place, entry)) => {
            let runs = runs(replayed, place);
            format!("in {limit} {runs} out of memory at entry {entry}, but the limit may have been higher")
        }
        None if replayed.answer.hides_more => format!("in {limit} what is in the file fits, but {HIDDEN}"),
        None => format!("in {limit} what is in the file fits, but the limit may have been lower"),
    };
    format!("{found} (--limit sets it)")
}

/// Which device runs out of memory, if there are several.
fn runs(replayed: &UnderSettings, place: usize) -> String {
    match replayed.devices.as_slice() {
        [_] => "it runs".to_owned(),
        devices => format!("device {} runs", devices.get(place).map_or(0, |device| device.device)),
    }
}

fn does_not_fit(replayed: &UnderSettings) -> String {
    let answer = &replayed.answer;
    let Some((place, entry)) = answer.first_failure() else { return "it does not fit".to_owned() };
    let is_one_of_many = replayed.devices.len() > 1;
    if answer.fails_as_recorded == Some(place) {
        let of_device = if is_one_of_many { format!(" of device {}", replayed.devices[place].device) } else { String::new() };
        return format!(
            "it does not fit: the run{of_device} itself died at entry {entry} with this limit and these settings; the replay is served only \
             because the file lost the beginning of the run"
        );
    }
    let of_device = runs(replayed, place);
    let first = if is_one_of_many { " first," } else { "" };
    let errors = replayed.devices.get(place).map_or(0, |device| device.requests.ooms);
    let goes_on = answer.endings.get(place).and_then(|ending| run_words::goes_on(ending, errors));
    let goes_on = goes_on.map_or_else(String::new, |said| format!("; {said}"));
    format!("it does not fit: {of_device} out of memory{first} at entry {entry}{goes_on}")
}

fn show(extreme: Extreme) -> String {
    let outcome = if extreme.fits { "" } else { " (out of memory)" };
    format!("{}{outcome}", size::show(extreme.peak_reserved_bytes))
}

/// What the file lost, and what stands for it.
pub(super) fn before_first_entry(lost: LostBeginning) -> String {
    format!(
        "not in the file: what came before the first entry; the {} live then count as requested before it",
        output::count(lost.blocks, "block")
    )
}

fn notes(args: &Args, replayed: &UnderSettings, device: &Outlook, place: usize) -> Vec<String> {
    let requests = &device.requests;
    let mut notes = vec![format!("recorded: at most {} reserved", size::show(requests.recorded_peak_reserved_bytes))];
    if place == 0 {
        notes.push(release::words(&replayed.made_by));
    }
    if let Some(range) = device.timing {
        let (least, most) = (size::show(range.least_peak_reserved_bytes), size::show(range.most_peak_reserved_bytes));
        let between = if range.is_likely {
            format!("{least} to {most} is likely, by the times of the entries")
        } else {
            format!("{least} to {most} over all timings tried")
        };
        let fit = replayed.timings.get(place).copied().flatten();
        let fit = fit.map_or_else(String::new, |TimingsThatFit { fit, of }| {
            format!("; fits with {fit} of {of} timings of the other streams")
        });
        notes.push(format!(
            "frees wait for other streams: the peak of reserved memory is {} if each is complete at the next request, {} if it is only \
             where the allocator waits for it; {between}{fit}",
            show(range.earliest),
            show(range.latest),
        ));
    }
    if replayed.settings.origin == SettingsOrigin::Assumed {
        notes.push(recording::ASSUMED_SETTINGS.to_owned());
    }
    if let Some(bytes) = replayed.limits.get(place).copied().flatten().filter(|_| replayed.is_assumed) {
        notes.push(recording::assumed_limit(bytes, "--limit"));
    }
    if let Some(bytes) = replayed.found_limit {
        notes.push(format!("of the recorded run {}", recording::assumed_limit(bytes, "--recorded-limit")));
    }
    if !replayed.is_limited(args) && replayed.settings.settings.garbage_collection_threshold > 0.0 {
        notes.push("without a limit garbage_collection_threshold does nothing (--limit sets one)".to_owned());
    }
    notes.extend(requests.lost_beginning.map(before_first_entry));
    notes.extend(replayed.answer.endings.get(place).and_then(run_words::ending));
    if requests.mismatches > 0 {
        notes.push(recording::uncertain_requests(requests.mismatches, requests.decisions));
    }
    if device.prediction.device_errors > 0 {
        notes.push(recording::other_failures(device.prediction.device_errors));
    }
    notes
}
