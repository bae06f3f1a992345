//! The sentences of a report: what happened, how exact the replay is, what the file lacks, and what to do.

use crate::terminal::size::show_bytes;
use crate::terminal::{output, recording, run_words, size};
use parkade_analysis::advise::{Advice as Found, Outcome, Recommendation, Verdict};
use parkade_analysis::timeline::{HeapLog, HolderKey, Marker, MarkerKind};
use parkade_replay::SettingsOrigin;

use super::gather::{Device, Origin, Report, Tried};
use crate::commands::advise::{self, words as advise_words};
use crate::terminal::markup::{counted, grouped};

/// Reserved memory that no block uses at a moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Emptiness {
    /// The sum of its bytes.
    pub(super) bytes: u64,
    /// The number of pieces.
    pub(super) holes: usize,
    /// The largest piece.
    pub(super) largest: u64,
}

/// The emptiness at a moment.
pub(super) fn emptiness(log: &HeapLog, moment: u32) -> Emptiness {
    let mut empty = Emptiness::default();
    for segment in log.at(moment) {
        let mut from = segment.address;
        let ends = segment.blocks.iter().map(|block| (block.address, block.address.saturating_add(block.size)));
        let end = segment.address.saturating_add(segment.size);
        for (address, block_end) in ends.chain([(end, end)]) {
            let hole = address.saturating_sub(from);
            empty.bytes = empty.bytes.saturating_add(hole);
            empty.holes += usize::from(hole > 0);
            empty.largest = empty.largest.max(hole);
            from = from.max(block_end);
        }
    }
    empty
}

/// The entry that led to this moment.
pub(super) fn brought_by(moment: u32) -> String {
    moment.checked_sub(1).map_or("before the first entry".to_owned(), |entry| format!("entry {}", grouped(u64::from(entry))))
}

/// The moment as a phrase.
pub(super) fn after(moment: u32) -> String {
    if moment == 0 { brought_by(0) } else { format!("after {}", brought_by(moment)) }
}

pub(super) fn count_of(device: &Device, kind: MarkerKind) -> usize {
    device.timeline.markers.iter().filter(|marker| marker.kind == kind).count()
}

/// What happened, in a sentence or two.
pub(super) fn what_happened(device: &Device) -> String {
    let happened = happened(device);
    match &device.simulated {
        Some(simulated) => format!("Simulated under the policy {}. {happened}", simulated.policy),
        None => happened,
    }
}

fn happened(device: &Device) -> String {
    let (levels, log) = (&device.timeline.levels, &device.timeline.log);
    let at = |list: &[u64], moment: u32| list.get(moment as usize).copied().unwrap_or_default();
    let is_oom = |marker: &&Marker| marker.kind == MarkerKind::OutOfMemory;
    let ooms: Vec<&Marker> = device.timeline.markers.iter().filter(is_oom).collect();
    if device.verdict.is_none() {
        let empty = emptiness(log, 0);
        let left_out = device.left_out.as_ref().map_or_else(String::new, |words| format!("; {words}"));
        return format!(
            "The file has no history, only the segments at the end: {} in use and {} reserved, {}{left_out}.",
            show_bytes(at(&levels.active, 0)),
            show_bytes(at(&levels.reserved, 0)),
            holes(empty)
        );
    }
    let doubt = doubt(device);
    // The error of which the run died or, if it survived all, the first.
    let death = device.ending.death().map(|death| death.entry);
    let last = ooms.iter().find(|oom| death == Some(oom.moment as usize));
    if let Some(first) = last.or(ooms.first()) {
        let earlier = ooms.iter().filter(|oom| oom.moment < first.moment).count() as u64;
        let more =
            [(earlier, "request", "before, and the run continued"), (ooms.len() as u64 - 1 - earlier, "more request", "later")];
        let more = more.iter().filter(|(count, _, _)| *count > 0);
        let more: String = more.map(|&(count, what, when)| format!(" {} failed {when}.", counted(count, what))).collect();
        let reserved = at(&levels.reserved, first.moment);
        // If the replay differs, the limit is usually wrong.
        let left = device.limit.run_bytes.filter(|_| doubt.is_empty()).map_or_else(String::new, |limit| {
            let assumed =
                if device.limit.is_assumed() { format!(", assumed to be {},", show_bytes(limit)) } else { String::new() };
            format!(" The limit{assumed} left {} to reserve.", show_bytes(limit.saturating_sub(reserved)))
        });
        return format!(
            "{doubt}Out of memory at entry {}: {} was requested with {} in use and {} reserved, {}.{left}{more}",
            grouped(u64::from(first.moment)),
            first.bytes.map_or_else(String::new, show_bytes),
            show_bytes(at(&levels.active, first.moment)),
            show_bytes(reserved),
            holes(emptiness(log, first.moment))
        );
    }
    let (allocated, reserved) = (device.curves.allocated.peak(), device.curves.reserved.peak());
    let beyond = reserved.saturating_sub(allocated);
    let percent = if allocated == 0 { 0.0 } else { beyond as f64 / allocated as f64 * 100.0 };
    let retries = match count_of(device, MarkerKind::Retry) {
        // A recording does not show retries, and this replay is inexact.
        _ if !doubt.is_empty() => "No request failed in the recording.".to_owned(),
        0 => "Nothing failed.".to_owned(),
        1 => "Nothing failed, but all cached memory had to be released once.".to_owned(),
        count => format!("Nothing failed, but all cached memory had to be released {} times.", grouped(count as u64)),
    };
    let is_cut = device.verdict.as_ref().is_some_and(|verdict| verdict.not_in_file.lost_beginning.is_some());
    let subject = if is_cut { "As far back as the file goes, the program" } else { "The program" };
    format!(
        "{doubt}{subject} held at most {}, for which {} was reserved, {} more ({percent:.1} %). {retries}",
        show_bytes(allocated),
        show_bytes(reserved),
        show_bytes(beyond)
    )
}

/// A warning if the replay is not exact; empty if it is.
fn doubt(device: &Device) -> String {
    let mut doubt = match device.verdict.as_ref().map_or(0, |verdict| verdict.mismatches) {
        0 => String::new(),
        count => format!(
            "The replay differs from the recording ({}), so what is shown between the recorded entries may not have happened. ",
            counted(count, "difference")
        ),
    };
    if let Some(limit) = device.limit.run_bytes.filter(|&limit| device.recorded_peak_bytes > limit) {
        doubt.push_str(&recording::not_its_limit(device.recorded_peak_bytes, limit));
        doubt.push(' ');
    }
    doubt
}

fn holes(empty: Emptiness) -> String {
    match empty.holes {
        0 => "none of it free".to_owned(),
        1 => format!("{} of it free in one piece", show_bytes(empty.bytes)),
        count => format!(
            "{} of it free in {} holes of at most {}",
            show_bytes(empty.bytes),
            grouped(count as u64),
            show_bytes(empty.largest)
        ),
    }
}

/// How exact the replay of a device is.
pub(super) fn exactness(device: &Device) -> String {
    if let Some(simulated) = &device.simulated {
        return format!("a simulation of the policy {}, not of the recorded allocator", simulated.policy);
    }
    match &device.verdict {
        None => "no trace to replay".to_owned(),
        Some(_) if !device.has_history => recording::NO_HISTORY.to_owned(),
        Some(verdict) if verdict.mismatches == 0 => {
            let beside = device.left_out.as_ref().map_or_else(String::new, |words| format!("; {words}"));
            format!("exact: all {} recorded decisions are reproduced{beside}", grouped(verdict.decisions))
        }
        Some(verdict) => format!(
            "{} of {} recorded decisions {} (parkade verify shows the first; --limit sets the run's limit)",
            grouped(verdict.mismatches),
            grouped(verdict.decisions),
            if verdict.mismatches == 1 { "differs" } else { "differ" }
        ),
    }
}

/// The releases of PyTorch that may have made the file.
pub(super) fn version(report: &Report) -> String {
    match (&report.origin, report.origin.made_by()) {
        (_, Some(made_by)) => recording::made_by_words(made_by),
        (Origin::Simulated { kind, .. }, None) => format!("requests of a {}", kind.name()),
        (Origin::Recorded { .. }, None) => String::new(),
    }
}

/// The settings of the recorded run.
pub(super) fn settings(report: &Report) -> String {
    let Some(settings) = report.origin.settings() else { return "none: a policy decides".to_owned() };
    match settings.settings.text.as_str() {
        "" if settings.origin == SettingsOrigin::Assumed => "not in the file; the default settings are assumed".to_owned(),
        "" => "default settings".to_owned(),
        text => output::shorten(text, 300),
    }
}

/// The assumed limit and the reason for it; `None` if it was given or nothing shows it.
fn assumed_limit(device: &Device) -> Option<String> {
    let (memory, bytes) = (device.limit.assumed?, device.limit.tried_bytes?);
    let Some(hint) = memory.shown else {
        return Some(output::sentence(&format!("{} (--limit sets it)", advise::shows_no_limit(&memory, bytes))));
    };
    let [least, below] = size::show_apart(hint.least_bytes, hint.below_bytes);
    let shows = if hint.least_bytes == hint.below_bytes {
        format!("the allocator had {least}")
    } else {
        format!("it was between {least} and {below}")
    };
    Some(format!(
        "A limit of {} is assumed: the out-of-memory error at entry {} shows that {shows}. --limit sets it.",
        show_bytes(bytes),
        grouped(hint.entry as u64)
    ))
}

/// Caveats for reading a picture.
pub(super) fn notes(report: &Report, device: &Device) -> Vec<String> {
    let mut notes: Vec<String> = run_words::failed_check(device.self_check).iter().map(|said| output::sentence(said)).collect();
    notes.extend(assumed_limit(device));
    if let Some(simulated) = &device.simulated {
        notes.extend(simulated.words.iter().cloned());
        notes.extend(simulated.notes.iter().map(|said| output::sentence(said)));
        return notes;
    }
    let Some(settings) = report.origin.settings() else { return notes };
    if settings.origin == SettingsOrigin::RecordedValues {
        notes.push("The file's settings string does not match the values stored with it; the values are used.".to_owned());
    }
    let threshold = settings.settings.garbage_collection_threshold;
    if device.limit.run_bytes.is_none() && threshold > 0.0 {
        notes.push(
            "Not in the file: the memory limit, without which garbage_collection_threshold does nothing (--limit sets it)."
                .to_owned(),
        );
    }
    let Some(verdict) = &device.verdict else {
        notes.push("Only the end can be shown: torch.cuda.memory._record_memory_history() records a trace.".to_owned());
        return notes;
    };
    if let Some(lost) = verdict.not_in_file.lost_beginning {
        notes.push(format!(
            "The oldest entries are missing from the file: {} ({}) and {} existed before its first entry, rebuilt from its end. \
             Where \
             those blocks were requested is known only if they live to the \
             end. Under other settings they are requested again, side by side and without the holes that were between them, so \
             peaks may be lower.",
            counted(lost.segments as u64, "segment"),
            size::show(lost.reserved_bytes.cast_signed()),
            counted(lost.blocks as u64, "block")
        ));
    }
    if let Some(said) = run_words::ending(&device.ending) {
        notes.push(output::sentence(&said));
    }
    if device.ending.death().is_some() {
        let programs = report.found.iter().flat_map(|found| &found.programs);
        let rest = programs.filter(|program| program.device == device.number).find_map(|program| program.continuation.as_ref());
        let shown = match device.rest {
            Some(_) => {
                "The memory over time and its holders show what is in the file; the numbers for other settings include the \
                 estimate."
            }
            None => "The graphs and tables show what is in the file.",
        };
        notes.push(format!("{} {shown}", output::sentence(&run_words::rest(rest))));
    }
    if verdict.not_in_file.refusals > 0 {
        notes.push(format!(
            "Not in the file: why the device refused {} for a segment; the replay follows the recording (--limit checks a \
             limit).",
            counted(verdict.not_in_file.refusals, "request")
        ));
    }
    notes
}

/// Whether the program fits with settings, in a word or two, and the CSS class of these words.
pub(super) fn outcome(device: &Device, tried: &Tried) -> (String, &'static str) {
    let at = |entry: usize| format!(", entry {}", grouped(entry as u64));
    match tried.outcome {
        Outcome::Fits => ("yes".to_owned(), "good"),
        Outcome::GetsPast => {
            (format!("past it{}", device.ending.death().map_or_else(String::new, |death| at(death.entry))), "warn")
        }
        Outcome::DoesNotFit => (format!("no{}", tried.in_file.fails_at_entry.map_or_else(String::new, at)), "bad"),
        Outcome::Unknown => ("–".to_owned(), "quiet"),
    }
}

/// What holds memory, in words.
pub(super) fn holder(report: &Report, key: HolderKey) -> String {
    match key {
        HolderKey::Size(bytes) => format!("blocks of {}", show_bytes(bytes)),
        HolderKey::Stack(stack) => report.labels.line(stack),
    }
}

/// A text near the beginning of every page and picture that parkade makes.
pub(super) const OWN_MARK: &str = "made by parkade report";

/// What to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Advice {
    /// The line to paste, if there is one.
    pub(super) command: Option<String>,
    /// The reason and the caveats, one line each.
    pub(super) lines: Vec<String>,
}

/// The words of the box on a page. The cost of the settings refers to the requests in the page's table.
pub(super) fn advice_on(report: &Found, device: &Device) -> Advice {
    let costs = costs(device);
    let mut advice = advice_of(report);
    let why =
        advice.lines.iter().position(|line| *line == advise_words::why(report)).map_or(advice.lines.len(), |place| place + 1);
    advice.lines.splice(why..why, costs);
    advice
}

fn costs(device: &Device) -> Option<String> {
    let tried = || device.tried.iter().map(|(tried, _)| tried);
    let recommended = tried().find(|tried| tried.is_recommended)?;
    let time = |tried: &Tried| format!("{:.1} ms", tried.run().driver_ns as f64 / 1e6);
    let own = tried().find(|tried| tried.is_own && !tried.is_recommended);
    let beside = own.map_or_else(String::new, |own| format!(" (with {}: {})", output::shorten(&own.label, 72), time(own)));
    let emptied = match recommended.run().retries {
        0 => String::new(),
        retries => format!("; the cache is emptied {} for lack of memory", output::times(retries)),
    };
    let what = match (&device.rest, device.ending.death()) {
        (Some(_), _) => ", including the estimated rest",
        (None, Some(_)) => ", for what is in the file",
        (None, None) => "",
    };
    Some(format!("costs: {} driver calls, {}{beside}{emptied}{what}", grouped(recommended.run().driver_calls), time(recommended)))
}

fn advice_of(report: &Found) -> Advice {
    let mut lines = Vec::new();
    if report.verdict != Verdict::Fits {
        lines.push(format!("{}: {}", report.verdict.name(), advise_words::verdict(report)));
    }
    let recommended = report.recommended();
    match recommended {
        Some(option) if option.is_own => lines.push(advise_words::KEEP.to_owned()),
        Some(_) => {}
        None => lines.push(advise_words::no_setting(report, None)),
    }
    if let Some(option) = recommended {
        lines.push(advise_words::why(report));
        lines.extend(advise::also(option.needs_limit()).map(str::to_owned));
        lines.extend(option.warnings().map(|caution| format!("warning: {} {}", caution.what, caution.instead)));
        lines.extend(advise_words::close(option));
    }
    lines.push(format!("{} settings tried; parkade advise shows them all", report.options.len()));
    let line = |place: &Recommendation| place.line.clone();
    Advice {
        command: report.recommendation.as_ref().filter(|_| !recommended.is_some_and(|option| option.is_own)).map(line),
        lines,
    }
}
