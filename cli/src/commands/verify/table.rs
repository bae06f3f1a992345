//! Verified recordings as a table with notes.

use std::io::{self, Write};

use parkade_recording::DeviceRecording;
use parkade_replay::{Decision, DeviceVerdict, Guess, SettingsOrigin};

use super::Verified;
use crate::ranks::Ranks;
use crate::terminal::table::{Mark, Table};
use crate::terminal::{output, recording, release, size};

/// The number of entries of a block's history, or of names in a list, that is shown.
const HISTORY: usize = 6;

/// One recording: a row and notes for each device.
pub(super) struct Part {
    rows: Vec<Row>,
    notes: Vec<(String, Vec<String>)>,
}

struct Row {
    cells: [String; HEADS.len()],
    is_good: bool,
}

const HEADS: [&str; 8] = ["recording", "entries", "decisions", "mismatches", "oom", "peak allocated", "peak reserved", "seconds"];
/// The column that is coloured.
const MISMATCHES: usize = 3;

impl Part {
    pub(super) fn of(verified: &Verified, name: &str) -> Part {
        let mut part = Part { rows: Vec::new(), notes: Vec::new() };
        for (place, device) in verified.devices.iter().enumerate() {
            let is_one_of_many = verified.devices.len() > 1;
            let name = if is_one_of_many { format!("{name} device {}", device.device) } else { name.to_owned() };
            let seconds = if place == 0 { format!("{:.2}", verified.seconds) } else { String::new() };
            let cells = [
                name.clone(),
                device.entries.to_string(),
                device.decisions.to_string(),
                device.mismatches.to_string(),
                device.ooms.to_string(),
                size::show(device.peak_allocated_bytes()),
                size::show(device.peak_reserved_bytes()),
                seconds,
            ];
            part.rows.push(Row { cells, is_good: device.mismatches == 0 });
            let notes: Vec<String> = notes(verified, device);
            if !notes.is_empty() {
                part.notes.push((name, notes));
            }
        }
        part
    }

    fn is_good(&self) -> bool {
        self.rows.iter().all(|row| row.is_good)
    }
}

/// Prints the verified recordings, their comparison as ranks, and the number of those that could not be verified.
pub(super) fn print(out: &mut dyn Write, parts: &[&Part], failed: usize, ranks: Option<&Ranks>) -> io::Result<()> {
    if parts.is_empty() {
        return Ok(());
    }
    let mut table = Table::new(HEADS);
    for row in parts.iter().flat_map(|part| &part.rows) {
        table.marked(&row.cells, MISMATCHES, Mark::of(row.is_good));
    }
    write!(out, "{}", table.text())?;
    for (name, notes) in parts.iter().flat_map(|part| &part.notes) {
        writeln!(out, "\n{name}")?;
        for note in notes {
            write!(out, "{}", output::paragraph(note.trim_start(), 2 + note.len() - note.trim_start().len()))?;
        }
    }
    if let Some(ranks) = ranks {
        writeln!(out)?;
        ranks.print(out)?;
    }
    writeln!(out, "\n{}", verdict(parts, failed))
}

fn verdict(parts: &[&Part], failed: usize) -> String {
    let verified = parts.len();
    let different = parts.iter().filter(|part| !part.is_good()).count();
    let found = match (different, verified) {
        (0, _) => output::good("every decision is the same"),
        (1, 1) => output::bad("the recording differs"),
        _ => output::bad(&format!("{different} of {verified} recordings differ")),
    };
    if failed == 0 { found } else { format!("{found}; {failed} could not be verified") }
}

fn notes(verified: &Verified, device: &DeviceVerdict) -> Vec<String> {
    let mut notes = settings(verified);
    notes.extend(not_in_file(device));
    notes.extend(statistics(verified, device));
    notes.extend(divergence(verified, device));
    notes.extend(tolerated(verified));
    notes
}

fn settings(verified: &Verified) -> Vec<String> {
    let settings = &verified.settings.settings;
    let mut notes = vec![release::words(&verified.made_by)];
    match verified.settings.origin {
        SettingsOrigin::Assumed => {
            notes.push(recording::ASSUMED_SETTINGS.to_owned());
        }
        SettingsOrigin::RecordedValues => {
            let said = match &verified.settings.refusal {
                Some(refusal) => format!("is refused ({})", output::shorten(&refusal.to_string(), 200)),
                None => "does not match the values in the file".to_owned(),
            };
            notes.push(format!("the settings string {:?} {said}, which are used instead", output::shorten(&settings.text, 100)));
        }
        SettingsOrigin::Recorded | SettingsOrigin::Given => {}
    }
    if let Some(bytes) = verified.assumed_limit {
        notes.push(recording::assumed_limit(bytes, "--limit"));
    } else if verified.limit.is_none() && settings.garbage_collection_threshold > 0.0 {
        notes.push(
            "not in the file: the memory limit, without which garbage_collection_threshold does nothing (--limit sets it)"
                .to_owned(),
        );
    }
    if verified.has_unknown_fraction() {
        notes.push(format!(
            "not in the file: the device's memory, of which per_process_memory_fraction allows {}; no limit is checked (--limit sets one)",
            settings.per_process_memory_fraction
        ));
    }
    notes
}

fn not_in_file(device: &DeviceVerdict) -> Vec<String> {
    let mut notes = Vec::new();
    let not = &device.not_in_file;
    if let Some(lost) = not.lost_beginning {
        notes.push(format!(
            "not in the file: what came before the first entry; rebuilt from the end: {} segments ({}), {} live blocks",
            lost.segments,
            size::show(lost.reserved_bytes.cast_signed()),
            lost.blocks
        ));
        if lost.assumed_sizes > 0 {
            notes.push(format!(
                "  the sizes of {} of these blocks are unknown and taken as the rounded requests",
                lost.assumed_sizes
            ));
        }
        if lost.inferred_sizes > 0 {
            notes.push(format!(
                "  the sizes of {} of these blocks are the smallest that explain why later requests did not fit behind them",
                lost.inferred_sizes
            ));
        }
        if not.assumed_collections > 0 {
            notes.push(format!(
                "not in the file: the ages of free blocks; {} garbage collections released what the recording released",
                not.assumed_collections
            ));
        } else if not.unknown_ages {
            notes.push(
                "  the ages of free blocks, which garbage collection uses, are unknown and counted from the first entry"
                    .to_owned(),
            );
        }
    }
    if let Some(guess) = &not.guess {
        notes.extend(guessed(guess));
    }
    if not.gave_up_on_pools {
        notes.push(
            "not in the file: private pools that were gone by the end; there is too much to try to look for them to the end, so the \
             recording may differ only because of them"
                .to_owned(),
        );
    }
    if not.restores > 0 {
        notes.push(format!(
            "not in the file: when the state of a private pool was restored; inferred: {}, where no requests explain the blocks",
            output::count(not.restores, "time")
        ));
    }
    if not.refusals > 0 {
        notes.push(format!(
            "not in the file: why the device refused {} for a segment; the recording is followed (--limit checks a limit)",
            output::count(not.refusals, "request")
        ));
    }
    notes
}

/// Private pools that the file does not name, inferred from the trace.
fn guessed(guess: &Guess) -> Vec<String> {
    let mut notes = vec![format!(
        "not in the file: private pools that were gone by the end; inferred: {} segments in {} pools, {} requests in {} windows \
         (without them {} requests differ)",
        guess.segments.len(),
        guess.pools,
        guess.requests,
        guess.windows,
        guess.contradictions
    )];
    let place = |entry: Option<usize>, otherwise: &str| entry.map_or(otherwise.to_owned(), |entry| format!("entry {entry}"));
    notes.extend(guess.segments.iter().take(HISTORY).map(|segment| {
        let (from, to) = (place(segment.made_at, "before the first entry"), place(segment.gone_at, "the end"));
        format!("  inferred: {:#x}, from {from} to {to}, pool {}", segment.address, segment.pool)
    }));
    if guess.segments.len() > HISTORY {
        notes.push(format!("  and {} more (--json lists all)", guess.segments.len() - HISTORY));
    }
    notes
}

fn statistics(verified: &Verified, device: &DeviceVerdict) -> Vec<String> {
    let Some(check) = &device.stats_check else { return Vec::new() };
    let mut notes = Vec::new();
    let unknowable =
        if check.unknowable > 0 { format!(", {} unknowable from the file", check.unknowable) } else { String::new() };
    notes.push(format!("statistics: {} keys compared, {} differ{unknowable}", check.compared, check.differences.len()));
    for difference in check.differences.iter().take(HISTORY) {
        notes.push(format!("  {}: recorded {}, replayed {}", difference.key, difference.recorded, difference.replayed));
    }
    if let Some((from, to)) = check.peaks_reset {
        let when = if from == to { format!("at entry {from}") } else { format!("between entries {from} and {to}") };
        notes.push(format!("not in the file: a call to reset_peak_memory_stats; one {when} explains every peak"));
    }
    if check.silent_empty_caches > 0 {
        notes.push(format!("not in the file: {} calls to empty_cache that freed nothing", check.silent_empty_caches));
    }
    if !check.unknown_keys.is_empty() {
        let shown: Vec<&str> = check.unknown_keys.iter().take(HISTORY).map(String::as_str).collect();
        let more = check.unknown_keys.len() - shown.len();
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        notes.push(format!(
            "ignored: statistics that PyTorch {} does not have: {}{more}",
            verified.made_by.profile().name,
            shown.join(", ")
        ));
    }
    notes
}

/// The first difference, with the histories of the blocks concerned, which are the same on both sides up to there.
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
    for &address in &first.addresses {
        notes.extend(history(recording, address, first.entry.unwrap_or(recording.trace.len())));
    }
    notes
}

fn history(recording: &DeviceRecording, address: u64, until: usize) -> Vec<String> {
    let of_block = recording.trace[..until].iter().enumerate().filter(|(_, entry)| entry.address == address);
    let mut lines: Vec<String> =
        of_block.rev().take(HISTORY).map(|(n, entry)| format!("    entry {n}: {}", Decision::from(entry))).collect();
    lines.reverse();
    let end = if lines.is_empty() { " nothing" } else { "" };
    lines.insert(0, format!("  before that, on both sides, at {address:#x}:{end}"));
    lines
}

fn tolerated(verified: &Verified) -> Vec<String> {
    let tolerated = &verified.recording.tolerated;
    let kinds = [
        ("keys", &tolerated.unknown_top_keys),
        ("segment keys", &tolerated.unknown_segment_keys),
        ("block keys", &tolerated.unknown_block_keys),
        ("entry keys", &tolerated.unknown_entry_keys),
        ("actions", &tolerated.unknown_actions),
    ];
    let found = kinds.iter().filter(|(_, names)| !names.is_empty());
    found
        .map(|(kind, names)| {
            let list: Vec<String> = names.iter().take(HISTORY).map(|(name, count)| format!("{name} ({count})")).collect();
            let more = if names.len() > HISTORY { format!(" and {} more", names.len() - HISTORY) } else { String::new() };
            format!("ignored: unknown {kind}: {}{more}", list.join(", "))
        })
        .collect()
}
