//! A replayed recording as a short table, with what a person should know beneath it.

use std::io::{self, Write};

use parkade_replay::{Extreme, Outlook, SettingsOrigin};

use super::{Replayed, short_name};
use crate::output::{self, Paint};
use crate::size;

const HEADS: [&str; 8] = ["settings", "fits", "oom", "peak allocated", "peak reserved", "retries", "driver calls", "driver time"];
/// The column that is coloured.
const FITS: usize = 1;

pub(super) fn print(out: &mut impl Write, replayed: &Replayed, paint: Paint) -> io::Result<()> {
    let name = short_name(&replayed.file);
    let is_one_of_many = replayed.devices.len() > 1;
    let name_of = |device: &Outlook| if is_one_of_many { format!("{name} device {}", device.device) } else { name.clone() };
    let rows: Vec<(String, [String; HEADS.len()])> =
        replayed.devices.iter().map(|device| (name_of(device), cells(replayed, device))).collect();
    let name_width = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0).max("recording".len());
    let widths: Vec<usize> = (0..HEADS.len())
        .map(|column| rows.iter().map(|(_, cells)| cells[column].chars().count()).max().unwrap_or(0).max(HEADS[column].len()))
        .collect();
    let heads: Vec<String> = HEADS.iter().zip(&widths).map(|(head, &width)| format!("{head:>width$}")).collect();
    writeln!(out, "{}", paint.dim(&format!("{:<name_width$}  {}", "recording", heads.join("  "))))?;
    for ((name, cells), device) in rows.iter().zip(&replayed.devices) {
        let mut cells: Vec<String> = cells.iter().zip(&widths).map(|(cell, &width)| format!("{cell:>width$}")).collect();
        cells[FITS] = if device.fits() { paint.good(&cells[FITS]) } else { paint.bad(&cells[FITS]) };
        writeln!(out, "{name:<name_width$}  {}", cells.join("  "))?;
    }
    for ((name, _), device) in rows.iter().zip(&replayed.devices) {
        let notes = notes(replayed, device);
        if !notes.is_empty() {
            writeln!(out, "\n{name}")?;
        }
        for note in notes {
            writeln!(out, "  {}", output::one_line(&note))?;
        }
    }
    writeln!(out, "\n{}", verdict(replayed, paint))
}

fn cells(replayed: &Replayed, device: &Outlook) -> [String; HEADS.len()] {
    let prediction = &device.prediction;
    let text = &replayed.settings.settings.text;
    let settings = if text.is_empty() { "default".to_owned() } else { output::one_line(&output::shorten(text, 60)) };
    [
        settings,
        if device.fits() { "yes" } else { "no" }.to_owned(),
        prediction.stats.num_ooms.to_string(),
        size::show(prediction.peak_allocated_bytes()),
        size::show(prediction.peak_reserved_bytes()),
        prediction.stats.num_alloc_retries.to_string(),
        prediction.driver_calls.to_string(),
        format!("{:.1} ms", prediction.driver_ns as f64 / 1e6),
    ]
}

fn verdict(replayed: &Replayed, paint: Paint) -> String {
    let failed = replayed.devices.iter().find_map(|device| device.prediction.first_failure.map(|entry| (device, entry)));
    match failed {
        None => paint.good("it fits"),
        Some((device, entry)) if replayed.devices.len() > 1 => {
            paint.bad(&format!("it does not fit: device {} is out of memory at entry {entry} first", device.device))
        }
        Some((_, entry)) => paint.bad(&format!("it does not fit: the first request that is out of memory is at entry {entry}")),
    }
}

fn show(extreme: Extreme) -> String {
    let outcome = if extreme.fits { "" } else { " (out of memory)" };
    format!("{}{outcome}", size::show(extreme.peak_reserved_bytes))
}

fn notes(replayed: &Replayed, device: &Outlook) -> Vec<String> {
    let requests = &device.requests;
    let mut notes = vec![format!("recorded: {} reserved at most", size::show(requests.recorded_peak_reserved_bytes))];
    if let Some(range) = device.timing {
        notes.push(format!(
            "other streams delay frees: {} reserved at most if they are done at the next request, {} if never before a wait; \
             {} to {} over all timings tried",
            show(range.earliest),
            show(range.latest),
            size::show(range.least_peak_reserved_bytes),
            size::show(range.most_peak_reserved_bytes)
        ));
    }
    if replayed.settings.origin == SettingsOrigin::Assumed {
        notes.push("not in the file: the settings; PyTorch's defaults are assumed (--settings gives others)".to_owned());
    }
    if replayed.limit.is_none() && replayed.settings.settings.garbage_collection_threshold > 0.0 {
        notes.push("without a limit garbage_collection_threshold does nothing (--limit gives one)".to_owned());
    }
    if let Some(lost) = requests.lost_beginning {
        notes.push(format!(
            "not in the file: what was before the first entry; the {} blocks in use then count as asked for before it",
            lost.blocks
        ));
    }
    if requests.ooms > 0 {
        notes.push(format!(
            "the recorded run was out of memory {} times; what it would have gone on to ask for is not in the file",
            requests.ooms
        ));
    }
    if requests.mismatches > 0 {
        notes.push(format!(
            "{} recorded decisions differ from PyTorch's under the recording's own settings (see parkade verify; \
             --recorded-limit gives its limit): the requests are less sure",
            requests.mismatches
        ));
    }
    if device.prediction.device_errors > 0 {
        notes.push(format!("{} requests failed for another reason than memory", device.prediction.device_errors));
    }
    notes
}
