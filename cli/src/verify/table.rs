//! Verified recordings as a table, with what a person should know beneath it.

use std::io::{self, Write};

use parkade_sim::recording::DeviceRecording;
use parkade_sim::replay::{DeviceVerdict, Doing, SettingsOrigin};

use super::Verified;
use crate::output::Paint;
use crate::size;

/// How many entries of a block's history are shown.
const HISTORY: usize = 6;

/// Rows and notes, collected and printed at the end, when the widths are known.
#[derive(Default)]
pub(super) struct Table {
    rows: Vec<(String, [String; 7], bool)>,
    notes: Vec<(String, Vec<String>)>,
}

const HEADS: [&str; 7] = ["entries", "decisions", "mismatches", "oom", "peak allocated", "peak reserved", "seconds"];

impl Table {
    pub(super) fn add(&mut self, verified: &Verified) {
        let name = verified.file.file_name().unwrap_or(verified.file.as_os_str()).to_string_lossy().into_owned();
        for (place, device) in verified.devices.iter().enumerate() {
            let name = if verified.devices.len() > 1 { format!("{name} device {}", device.device) } else { name.clone() };
            let seconds = if place == 0 { format!("{:.2}", verified.seconds) } else { String::new() };
            let cells = [
                device.entries.to_string(),
                device.decisions.to_string(),
                device.mismatches.to_string(),
                device.ooms.to_string(),
                size::show(device.peak_allocated_bytes()),
                size::show(device.peak_reserved_bytes()),
                seconds,
            ];
            self.rows.push((name.clone(), cells, device.mismatches == 0));
            let notes = notes(verified, device);
            if !notes.is_empty() {
                self.notes.push((name, notes));
            }
        }
    }

    pub(super) fn print(&self, out: &mut impl Write, paint: Paint) -> io::Result<()> {
        if self.rows.is_empty() {
            return Ok(());
        }
        let name_width = self.rows.iter().map(|(name, _, _)| name.chars().count()).max().unwrap_or(0).max("recording".len());
        let widths: Vec<usize> = (0..HEADS.len())
            .map(|column| self.rows.iter().map(|(_, cells, _)| cells[column].len()).max().unwrap_or(0).max(HEADS[column].len()))
            .collect();
        let heads: Vec<String> = HEADS.iter().zip(&widths).map(|(head, &width)| format!("{head:>width$}")).collect();
        writeln!(out, "{}", paint.dim(&format!("{:<name_width$}  {}", "recording", heads.join("  "))))?;
        for (name, cells, good) in &self.rows {
            let cells: Vec<String> = cells
                .iter()
                .zip(&widths)
                .enumerate()
                .map(|(column, (cell, &width))| {
                    let cell = format!("{cell:>width$}");
                    match (column, good) {
                        (2, true) => paint.good(&cell),
                        (2, false) => paint.bad(&cell),
                        _ => cell,
                    }
                })
                .collect();
            writeln!(out, "{name:<name_width$}  {}", cells.join("  "))?;
        }
        for (name, notes) in &self.notes {
            writeln!(out, "\n{name}")?;
            for note in notes {
                writeln!(out, "  {note}")?;
            }
        }
        let different = self.rows.iter().filter(|(_, _, good)| !good).count();
        let verdict = match different {
            0 => paint.good("every decision is the same"),
            n => paint.bad(&format!("{n} of {} differ", self.rows.len())),
        };
        writeln!(out, "\n{verdict}")
    }
}

fn notes(verified: &Verified, device: &DeviceVerdict) -> Vec<String> {
    let mut notes = Vec::new();
    match verified.settings.origin {
        SettingsOrigin::Assumed => {
            notes.push("not in the file: the settings; PyTorch's defaults are assumed (--settings gives others)".to_owned())
        }
        SettingsOrigin::RecordedValues => {
            notes.push(format!(
                "the file's settings string {:?} does not give the values that it states; the values are used",
                verified.settings.settings.text
            ));
        }
        SettingsOrigin::Recorded | SettingsOrigin::Given => {}
    }
    notes.extend(not_in_file(device));
    notes.extend(statistics(device));
    notes.extend(divergence(verified, device));
    notes.extend(tolerated(verified));
    notes
}

fn not_in_file(device: &DeviceVerdict) -> Vec<String> {
    let mut notes = Vec::new();
    let not = &device.not_in_file;
    if let Some(lost) = not.lost_beginning {
        notes.push(format!(
            "not in the file: what was before the first entry; rebuilt from the end: {} segments ({}), {} blocks in use",
            lost.segments,
            size::show(lost.reserved_bytes.cast_signed()),
            lost.blocks
        ));
        if lost.assumed_sizes > 0 {
            notes.push(format!(
                "  the size of {} of these blocks shows nowhere; taken as the rounded request",
                lost.assumed_sizes
            ));
        }
        if not.unknown_ages {
            notes.push(
                "  the ages of free blocks, which garbage collection looks at, are unknown; counted from the first entry"
                    .to_owned(),
            );
        }
    }
    if not.refusals > 0 {
        notes.push(format!(
            "not in the file: why the device refused {} requests for a segment; taken from the recording (--limit checks a limit)",
            not.refusals
        ));
    }
    notes
}

fn statistics(device: &DeviceVerdict) -> Vec<String> {
    let Some(check) = &device.statistics else { return Vec::new() };
    let mut notes = Vec::new();
    let unknowable =
        if check.unknowable > 0 { format!(", {} that the file cannot tell", check.unknowable) } else { String::new() };
    notes.push(format!("statistics: {} keys compared, {} differ{unknowable}", check.compared, check.differences.len()));
    for difference in check.differences.iter().take(HISTORY) {
        notes.push(format!("  {}: recorded {}, replayed {}", difference.key, difference.recorded, difference.replayed));
    }
    if let Some((from, to)) = check.peaks_reset {
        let when = if from == to { format!("at entry {from}") } else { format!("between entries {from} and {to}") };
        notes.push(format!("not in the file: a call of reset_peak_memory_stats; one {when} explains every peak"));
    }
    if check.silent_empty_caches > 0 {
        notes.push(format!("not in the file: {} calls of empty_cache that freed nothing", check.silent_empty_caches));
    }
    if !check.unknown_keys.is_empty() {
        notes.push(format!("statistics that PyTorch {} does not have: {}", "2.11", check.unknown_keys.join(", ")));
    }
    notes
}

/// The first divergence, with the histories of the blocks concerned. Up to there both sides did the same, so their histories
/// differ only in what comes last.
fn divergence(verified: &Verified, device: &DeviceVerdict) -> Vec<String> {
    let Some(first) = &device.first else { return Vec::new() };
    let place = first.entry.map_or("at the end".to_owned(), |entry| format!("entry {entry}"));
    let mut notes = vec![
        format!("first difference, {place}:"),
        format!("  recorded  {}", first.recorded),
        format!("  replayed  {}", first.replayed),
    ];
    let recording = verified.recording.devices.iter().find(|recording| recording.device == device.device);
    let Some(recording) = recording else { return notes };
    let mut addresses = first.addresses.clone();
    addresses.dedup();
    for address in addresses {
        notes.extend(history(recording, address, first.entry.unwrap_or(recording.trace.len())));
    }
    notes
}

fn history(recording: &DeviceRecording, address: u64, until: usize) -> Vec<String> {
    let of_block = recording.trace[..until].iter().enumerate().filter(|(_, entry)| entry.address == address);
    let mut lines: Vec<String> =
        of_block.rev().take(HISTORY).map(|(n, entry)| format!("    entry {n}: {}", Doing::from(entry))).collect();
    lines.reverse();
    let title = if lines.is_empty() { "nothing happened" } else { "what happened" };
    lines.insert(0, format!("  {title} at {address:#x} before that:"));
    lines
}

fn tolerated(verified: &Verified) -> Vec<String> {
    let tolerated = &verified.recording.tolerated;
    let kinds = [
        ("keys", &tolerated.unknown_top_keys),
        ("keys of segments", &tolerated.unknown_segment_keys),
        ("keys of blocks", &tolerated.unknown_block_keys),
        ("keys of entries", &tolerated.unknown_entry_keys),
        ("actions", &tolerated.unknown_actions),
    ];
    let found = kinds.iter().filter(|(_, names)| !names.is_empty());
    found
        .map(|(kind, names)| {
            let list: Vec<String> = names.iter().map(|(name, count)| format!("{name} ({count})")).collect();
            format!("tolerated, unknown {kind}: {}", list.join(", "))
        })
        .collect()
}
