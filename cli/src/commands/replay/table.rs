//! A replayed recording as a table with notes.

use std::io::{self, Write};
use std::path::Path;

use parkade_analysis::advise::Outcome;
use parkade_analysis::ending::Ending;
use parkade_replay::{Extreme, Outlook, SettingsOrigin};

use super::Replayed;
use crate::recording::{self, short_name};
use crate::table::{Mark, Table};
use crate::{ending, output, size};

const HEADS: [&str; 9] =
    ["recording", "settings", "fits", "oom", "peak allocated", "peak reserved", "retries", "driver calls", "driver time"];
/// The column that is coloured.
const FITS: usize = 2;

pub(super) fn print(out: &mut dyn Write, file: &Path, replayed: &Replayed) -> io::Result<()> {
    let name = short_name(file);
    let is_one_of_many = replayed.devices.len() > 1;
    let name_of = |device: &Outlook| if is_one_of_many { format!("{name} device {}", device.device) } else { name.clone() };
    let mut table = Table::new(HEADS);
    for device in &replayed.devices {
        table.marked(cells(replayed, device, name_of(device)), FITS, Mark::of(device.fits()));
    }
    write!(out, "{}", table.text())?;
    for (place, device) in replayed.devices.iter().enumerate() {
        let notes = notes(replayed, device, replayed.answer.endings.get(place));
        if !notes.is_empty() {
            writeln!(out, "\n{}", name_of(device))?;
        }
        for note in notes {
            write!(out, "{}", output::paragraph(&note, 2))?;
        }
    }
    writeln!(out, "\n{}", verdict(replayed))
}

fn cells(replayed: &Replayed, device: &Outlook, name: String) -> [String; HEADS.len()] {
    let prediction = &device.prediction;
    // A run that died, without a limit.
    let is_unknown = replayed.limit.is_none() && replayed.answer.endings.iter().any(|ending| ending.death().is_some());
    let text = &replayed.settings.settings.text;
    let settings = if text.is_empty() { "default".to_owned() } else { output::one_line(&output::shorten(text, 60)) };
    [
        name,
        settings,
        match replayed.answer.outcome {
            Outcome::GetsPast if device.fits() => "gets past",
            Outcome::Unknown if device.fits() && is_unknown => "-",
            _ if device.fits() => "yes",
            _ => "no",
        }
        .to_owned(),
        prediction.stats.num_ooms.to_string(),
        size::show(prediction.peak_allocated_bytes()),
        size::show(prediction.peak_reserved_bytes()),
        prediction.stats.num_alloc_retries.to_string(),
        prediction.driver_calls.to_string(),
        format!("{:.1} ms", prediction.driver_ns as f64 / 1e6),
    ]
}

fn verdict(replayed: &Replayed) -> String {
    let death = replayed.answer.endings.iter().find_map(Ending::death);
    match (replayed.answer.outcome, death) {
        (Outcome::GetsPast, Some(error)) => {
            let why = match replayed.answer.doubt {
                Some(doubt) => ending::doubt(doubt),
                None => "what is estimated of it does not fit".to_owned(),
            };
            return output::bad(&format!(
                "it gets past entry {}, where the run died; the rest is not in the file, and {why}",
                error.entry
            ));
        }
        (Outcome::Fits, Some(_)) => return output::good("it fits, with what is estimated of the rest"),
        (Outcome::Unknown, Some(error)) if replayed.limit.is_none() => {
            let entry = error.entry;
            return output::bad(&format!(
                "not known: the run died at entry {entry}, and without --limit or --capacity nothing is refused"
            ));
        }
        (Outcome::Unknown, _) if replayed.limit.is_some() => {
            return output::bad("what is in the file fits, but what came before its first entry needed more than there is");
        }
        _ => {}
    }
    let mut outlooks = replayed.devices.iter().zip(&replayed.answer.endings);
    let failed = outlooks.find_map(|(device, ending)| device.prediction.first_failure.map(|entry| (device, ending, entry)));
    let Some((device, ending, entry)) = failed else { return output::good("it fits") };
    let goes_on = ending::goes_on(ending, device.requests.ooms).map_or_else(String::new, |said| format!("; {said}"));
    let of_device = if replayed.devices.len() > 1 { format!("device {} runs", device.device) } else { "it runs".to_owned() };
    let first = if replayed.devices.len() > 1 { " first," } else { "" };
    output::bad(&format!("it does not fit: {of_device} out of memory{first} at entry {entry}{goes_on}"))
}

fn show(extreme: Extreme) -> String {
    let outcome = if extreme.fits { "" } else { " (out of memory)" };
    format!("{}{outcome}", size::show(extreme.peak_reserved_bytes))
}

fn notes(replayed: &Replayed, device: &Outlook, ending: Option<&Ending>) -> Vec<String> {
    let requests = &device.requests;
    let mut notes = vec![format!("recorded: at most {} reserved", size::show(requests.recorded_peak_reserved_bytes))];
    if let Some(range) = device.timing {
        notes.push(format!(
            "other streams delay frees: at most {} reserved if they finish by the next request, {} if only when waited for; \
             {} to {} over all timings tried",
            show(range.earliest),
            show(range.latest),
            size::show(range.least_peak_reserved_bytes),
            size::show(range.most_peak_reserved_bytes)
        ));
    }
    if replayed.settings.origin == SettingsOrigin::Assumed {
        notes.push(recording::ASSUMED_SETTINGS.to_owned());
    }
    if replayed.limit.is_none() && replayed.settings.settings.garbage_collection_threshold > 0.0 {
        notes.push("without a limit garbage_collection_threshold does nothing (--limit sets one)".to_owned());
    }
    if let Some(lost) = requests.lost_beginning {
        notes.push(format!(
            "not in the file: what came before the first entry; the {} live then count as requested before it",
            output::count(lost.blocks, "block")
        ));
    }
    notes.extend(ending.and_then(ending::ending));
    if requests.mismatches > 0 {
        notes.push(recording::uncertain_requests(requests.mismatches, requests.decisions));
    }
    if device.prediction.device_errors > 0 {
        notes.push(recording::other_failures(device.prediction.device_errors));
    }
    notes
}
