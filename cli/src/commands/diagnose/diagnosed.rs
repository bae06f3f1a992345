//! A diagnosed recording as text: the cause, the five steps, then the evidence; with the sentences that JSON also contains.
//!
//! The sentences are the headline, the findings of each step, the meaning of each cause, what the file lacks, and, if nothing
//! failed, why more is reserved than allocated.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use parkade_analysis::StackNames;
use parkade_analysis::annotations::phase_at;
use parkade_analysis::diagnose::{
    Applies, Breakdown, Cause, Contradiction, Diagnosis, Excess, ExcessCause, ExcessPart, Fence, Limit, Onset, PINNED_PART, Peak,
    Question, Verdict, Why,
};
use parkade_recording::{Recording, StackId};
use parkade_replay::recognition::{Basis, Recognition};
use parkade_replay::{ReplaySettings, SettingsOrigin};

use super::parts::{self, POOLS_DO_NOT_SHARE};
use crate::terminal::answer::Answer;
use crate::terminal::output::{self, Tone, count};
use crate::terminal::recording::{self, short_name};
use crate::terminal::run_words;
use crate::terminal::size::{self, show_apart, show_bytes};
use crate::terminal::table::Table;

/// A diagnosed recording.
pub(crate) struct Diagnosed {
    pub(super) file: PathBuf,
    pub(super) recording: Recording,
    /// The names of its stacks.
    pub(super) names: StackNames,
    pub(super) made_by: Recognition,
    pub(super) settings: ReplaySettings,
    pub(super) limit: Option<u64>,
    pub(super) devices: Vec<Diagnosis>,
    /// The kind of blocks that holds the most at the failure, by device, where no setting helps.
    pub(super) holders: BTreeMap<u32, String>,
}

/// The bytes that the run reserved on a device, if they exceed the given limit.
pub(super) fn refuting_bytes(limit: Option<u64>, diagnosis: &Diagnosis) -> Option<u64> {
    match diagnosis.evidence.contradiction(limit?)? {
        Contradiction::Reserved { bytes, .. } => Some(bytes),
        Contradiction::Refused { .. } => None,
    }
}

impl Diagnosed {
    /// The bytes that the run reserved on a device and the given limit, if the limit is smaller and so cannot have been the run's.
    fn refuted(&self, diagnosis: &Diagnosis) -> Option<(u64, u64)> {
        refuting_bytes(self.limit, diagnosis).zip(self.limit)
    }

    /// A note on the settings.
    fn settings_note(&self) -> Option<String> {
        let fraction = self.settings.settings.per_process_memory_fraction;
        if self.settings.origin == SettingsOrigin::Assumed {
            Some(recording::ASSUMED_SETTINGS.to_owned())
        } else if self.limit.is_none() && fraction < 1.0 {
            Some(format!("per_process_memory_fraction:{fraction} sets a limit that is not in the file (give it with --limit)"))
        } else {
            None
        }
    }
}

/// The point in time that is diagnosed.
fn occasion(diagnosis: &Diagnosis, entries: usize) -> String {
    let entry = diagnosis.entry.unwrap_or(0);
    match diagnosis.why {
        Why::OutOfMemory => format!("out of memory at entry {entry} of {entries}"),
        Why::Chosen if is_asked(diagnosis) => format!("after entry {entry} of {entries}, where nothing failed"),
        Why::Chosen => format!("before entry {entry} of {entries}, where nothing failed"),
        Why::Peak => {
            let place =
                diagnosis.entry.map_or("before the first entry".to_owned(), |entry| format!("at entry {entry} of {entries}"));
            // Reserved memory may stay at its peak for a while: `peaks` says when it reached the peak.
            format!(
                "no failure is recorded; this is the state {place}, where reserved memory is at its peak and the most of it is allocated"
            )
        }
        Why::End => "the file has no history, only the heap at the end".to_owned(),
    }
}

/// The cause in one sentence; if no setting helps, also that, and what reduces memory most.
pub(super) fn headline(diagnosed: &Diagnosed, diagnosis: &Diagnosis) -> String {
    let cause = cause_of(diagnosis);
    if !is_beyond_settings(diagnosis) {
        return cause;
    }
    let holder = diagnosed.holders.get(&diagnosis.device).map(String::as_str);
    run_words::no_cure(&cause, if diagnosis.verdict == Verdict::Capacity { holder } else { Some(run_words::FREE_POOLS) })
}

/// Whether no setting can prevent the failure.
pub(super) fn is_beyond_settings(diagnosis: &Diagnosis) -> bool {
    matches!(diagnosis.verdict, Verdict::Capacity | Verdict::PrivatePools) && diagnosis.steps.settings == Applies::No
}

fn cause_of(diagnosis: &Diagnosis) -> String {
    let (heap, steps) = (&diagnosis.heap, &diagnosis.steps);
    let asked = diagnosis.request.map_or_else(String::new, |request| show_bytes(request.asked.size.get()));
    let empty = show_bytes(heap.stranded_bytes());
    let room = steps.unreserved_bytes.filter(|&bytes| bytes > 0);
    let room = room.map_or_else(String::new, |bytes| format!(", and {} more could be reserved", show_bytes(bytes)));
    match diagnosis.verdict {
        Verdict::Fragmentation => {
            let largest = show_bytes(heap.largest_hole_bytes());
            format!("fragmentation: {asked} requested; {empty} reserved but free, the largest hole {largest}{room}")
        }
        Verdict::Streams => {
            format!("streams: {asked} requested; {empty} reserved but free, most of it cached for other streams{room}")
        }
        Verdict::PrivatePools => {
            format!("private pools: {asked} requested; {empty} reserved but free, most of it in private pools{room}")
        }
        Verdict::Capacity => {
            let short = steps.short_bytes.map_or(String::new(), |short| format!(", {} more than available", show_bytes(short)));
            let live = show_bytes(heap.allocated_bytes());
            format!("capacity: {live} live plus {asked} requested is {}{short}", show_bytes(steps.needed_bytes))
        }
        Verdict::Undecided => format!(
            "fragmentation if the memory limit was at least {}, capacity if it was lower (--limit settles it)",
            show_bytes(steps.needed_bytes)
        ),
        Verdict::NoFailure if is_asked(diagnosis) => excess_headline(diagnosis),
        Verdict::NoFailure => {
            format!("{} live, {empty} reserved but free", show_bytes(heap.allocated_bytes()))
        }
    }
}

/// The findings of the first four steps; the fifth is the evidence itself.
pub(super) fn findings(diagnosed: &Diagnosed, diagnosis: &Diagnosis) -> [String; 4] {
    [capacity(diagnosis), fragmentation(diagnosis), settings(diagnosed, diagnosis), empty_cache(diagnosis)]
}

fn capacity(diagnosis: &Diagnosis) -> String {
    let live = show_bytes(diagnosis.heap.allocated_bytes());
    let need = match diagnosis.request.filter(|_| diagnosis.why == Why::OutOfMemory) {
        Some(request) => format!(
            "{live} live plus {} requested is {}",
            show_bytes(request.asked.size.get()),
            show_bytes(diagnosis.steps.needed_bytes)
        ),
        None => format!("{live} live"),
    };
    if diagnosis.why == Why::End && matches!(diagnosis.limit, Limit::NeverReached { .. }) {
        return format!("{need}; whether a request was refused is not in the file");
    }
    format!("{need}; {}", limit(diagnosis))
}

/// Evidence in the file that contradicts the given limit.
pub(super) fn contradiction(diagnosed: &Diagnosed, diagnosis: &Diagnosis) -> Option<String> {
    let judged_by = if let Limit::Given { bytes } = diagnosis.limit { Some(bytes) } else { None };
    let refuted = diagnosed.refuted(diagnosis).map(|(_, limit)| limit);
    contradicts(diagnosis, refuted.or(judged_by)?)
}

fn contradicts(diagnosis: &Diagnosis, limit_bytes: u64) -> Option<String> {
    Some(match diagnosis.evidence.contradiction(limit_bytes)? {
        Contradiction::Reserved { bytes, entries } => {
            let place = entries.checked_sub(1).map_or("at the start".to_owned(), |entry| format!("at entry {entry}"));
            format!("{} was reserved {place}", show_bytes(bytes))
        }
        Contradiction::Refused { bytes, entry } => {
            format!("a request refused at entry {entry} would have brought reserved memory to {}", show_bytes(bytes))
        }
    })
}

/// What is known about the limit.
fn limit(diagnosis: &Diagnosis) -> String {
    let entry = |evidence: Option<(u64, usize)>| evidence.map_or(0, |(_, entry)| entry);
    let (served, refused) = (entry(diagnosis.evidence.served), entry(diagnosis.evidence.refused));
    match diagnosis.limit {
        Limit::Given { bytes } => {
            let objection =
                contradicts(diagnosis, bytes).map_or_else(String::new, |text| format!("; the file contradicts this: {text}"));
            format!("the limit is {}, as given{objection}", show_bytes(bytes))
        }
        Limit::DeviceFull { bytes } => format!("the device was full: this allocator had {}", show_bytes(bytes)),
        Limit::Between { at_least_bytes, below_bytes } => {
            let [least, below] = show_apart(at_least_bytes, below_bytes);
            format!(
                "the limit is at least {least} (reserved at entry {}) and less than {below} (refused at entry {refused}){}",
                served.saturating_sub(1),
                only_whole_gibibyte(at_least_bytes, below_bytes).map_or_else(String::new, |bytes| format!(
                    "; {} is the only whole number of GiB in between",
                    show_bytes(bytes)
                ))
            )
        }
        Limit::NotFixed { reserved_bytes, refused_bytes } => {
            let [reserved, refused_bytes] = show_apart(reserved_bytes, refused_bytes);
            format!(
                "the limit was not fixed: {reserved} was reserved at entry {}, but {refused_bytes} refused at entry {refused}",
                served.saturating_sub(1)
            )
        }
        Limit::NeverReached { at_least_bytes } => format!("nothing was refused up to {}", show_bytes(at_least_bytes)),
    }
}

/// Users set limits in whole gibibytes: the only whole number that the limit can be.
fn only_whole_gibibyte(at_least_bytes: u64, below_bytes: u64) -> Option<u64> {
    const GIB: u64 = 1 << 30;
    let (first, end) = (at_least_bytes.div_ceil(GIB), below_bytes.div_ceil(GIB));
    (end.saturating_sub(first) == 1).then_some(first.saturating_mul(GIB))
}

fn fragmentation(diagnosis: &Diagnosis) -> String {
    let heap = &diagnosis.heap;
    let (reserved, allocated, empty) = (heap.reserved_bytes, heap.allocated_bytes(), heap.stranded_bytes());
    let percent = if reserved == 0 { 0.0 } else { empty as f64 / reserved as f64 * 100.0 };
    let compared = match diagnosis.request.filter(|_| diagnosis.why == Why::OutOfMemory) {
        Some(request) if empty >= request.asked.size.get() => ", enough in total",
        Some(_) => ", less than was requested",
        None => "",
    };
    let retries = match diagnosis.retries {
        0 => String::new(),
        retries => format!("; num_alloc_retries is {retries}"),
    };
    let nothing_failed = if matches!(diagnosis.why, Why::Chosen | Why::Peak) { "no request failed here; " } else { "" };
    format!(
        "{nothing_failed}{} reserved - {} allocated = {} ({percent:.1} % of reserved) in {}{compared}; the largest hole is {}{retries}",
        show_bytes(reserved),
        show_bytes(allocated),
        show_bytes(empty),
        count(heap.holes.len(), "hole"),
        show_bytes(heap.largest_hole_bytes())
    )
}

fn settings(diagnosed: &Diagnosed, diagnosis: &Diagnosis) -> String {
    let advise = || advise_line(diagnosed, diagnosis);
    match diagnosis.verdict {
        Verdict::Capacity if diagnosis.steps.settings == Applies::Unknown => {
            let rounding = show_bytes(diagnosis.heap.rounding_bytes);
            format!(
                "rounding (roundup_power2_divisions) costs {rounding}, at least as much as is missing; to see the run without \
                 it:\n{}",
                advise()
            )
        }
        Verdict::Capacity => "no setting reduces live memory".to_owned(),
        Verdict::NoFailure if diagnosis.why == Why::End => {
            format!("whether a request failed is not in the file; to see which settings need less memory:\n{}", advise())
        }
        Verdict::NoFailure => format!("nothing failed; to see which settings need less memory:\n{}", advise()),
        Verdict::Undecided => format!("yes, if this is fragmentation; to find out:\n{}", advise()),
        Verdict::PrivatePools if diagnosis.steps.settings == Applies::No => POOLS_DO_NOT_SHARE.to_owned(),
        Verdict::PrivatePools => {
            format!("not for what private pools have cached, but perhaps for the rest; to find out:\n{}", advise())
        }
        Verdict::Streams => format!("streams do not share cached memory; to see what helps:\n{}", advise()),
        _ => format!("to see which one, and what it costs:\n{}", advise()),
    }
}

/// The command to run next.
fn advise_line(diagnosed: &Diagnosed, diagnosis: &Diagnosis) -> String {
    let limit = match (diagnosis.limit, diagnosed.limit) {
        // The memory to try, not the run's own limit.
        (_, Some(limit)) if diagnosed.refuted(diagnosis).is_some() => format!(" --capacity {}", size::exact(limit)),
        (_, Some(limit)) => format!(" --limit {}", size::exact(limit)),
        (Limit::Given { bytes } | Limit::DeviceFull { bytes }, None) => format!(" --capacity {}", size::exact(bytes)),
        // The error in the file shows it.
        (Limit::Between { .. } | Limit::NotFixed { .. }, None) => String::new(),
        (Limit::NeverReached { .. }, None) => " --capacity SIZE".to_owned(),
    };
    format!("parkade advise {}{limit}", recording::in_shell(&diagnosed.file))
}

fn empty_cache(diagnosis: &Diagnosis) -> String {
    let left = diagnosis.heap.releasable_bytes();
    if diagnosis.why != Why::OutOfMemory {
        return format!("it would release {} in wholly free segments or pages", show_bytes(left));
    }
    let given = &diagnosis.given_back;
    let done = match given.entries {
        Some((first, last)) => format!(
            "the allocator had just done so (entries {first} to {last}: {} in {}) and still had no room",
            show_bytes(given.bytes),
            count(given.segments, "piece")
        ),
        None if diagnosis.heap.kept_by_pools_bytes > 0 => format!(
            "no whole segment or page was free in the pools it may empty: the allocator tried before giving up; {} in private pools \
             can be released once nothing uses them",
            show_bytes(diagnosis.heap.kept_by_pools_bytes)
        ),
        None => "no whole segment or page was free: the allocator tried before giving up".to_owned(),
    };
    if left == 0 { done } else { format!("{done}; {} could still be released", show_bytes(left)) }
}

/// Explains a cause. Without a request, no hole is too small.
fn cause(cause: Cause, is_for_request: bool) -> String {
    match cause {
        Cause::Pinned if !is_for_request => format!("free, in segments or pages of which at most 1/{PINNED_PART} is in use"),
        Cause::TooSmall if !is_for_request => "free".to_owned(),
        Cause::PrivatePool if !is_for_request => "in a private pool (MemPool, CUDA graph)".to_owned(),
        Cause::PendingEvent => "freed, but another stream may still be using it (record_stream)".to_owned(),
        Cause::PrivatePool => "in a private pool (MemPool, CUDA graph) that the request does not use".to_owned(),
        Cause::OtherStream => "cached for another stream".to_owned(),
        Cause::OtherClass => "in the other pool: requests up to 1 MiB and larger ones share no segments".to_owned(),
        Cause::Oversize => "large enough, but max_split_size_mb keeps it for other requests".to_owned(),
        Cause::ExpandableOff => "large enough, but expandable segments have since been turned off".to_owned(),
        Cause::Fits => "large enough for the request".to_owned(),
        Cause::Pinned => format!("too small, in segments or pages of which at most 1/{PINNED_PART} is in use"),
        Cause::TooSmall => "too small".to_owned(),
    }
}

/// Since when the memory has been stranded, with the definition.
fn onset_in_words(recording: &Recording, diagnosis: &Diagnosis, onset: &Onset) -> String {
    let level = show_bytes(onset.level_bytes);
    let Some(entry) = onset.entry else {
        return format!("before the first entry: reserved - allocated was never below {level}, half its value here");
    };
    let before = diagnosis.entry.map_or(0, |target| target.saturating_sub(entry));
    let seconds = match (onset.time_us, diagnosis.time_us) {
        (Some(then), Some(now)) => format!(", {}", duration(now.saturating_sub(then))),
        _ => String::new(),
    };
    let phase = onset.time_us.and_then(|time| phase_at(&recording.annotations, diagnosis.device, time));
    let phase = phase.map_or_else(String::new, |phase| match (phase.open.last(), &phase.last_ended) {
        (Some(open), _) => format!(", in {}", output::one_line(open)),
        (None, Some((name, 1))) => format!(", after the first {}", output::one_line(name)),
        (None, Some((name, times))) => format!(", after {times} runs of {}", output::one_line(name)),
        (None, None) => ", before the first annotated phase".to_owned(),
    });
    format!(
        "at entry {entry} ({}{seconds} earlier{phase}): since then reserved - allocated has stayed at or above {level}, \
         half its value here",
        count(before, "entry")
    )
}

/// A duration with a suitable unit.
fn duration(us: u64) -> String {
    match us {
        0..1_000 => format!("{us} us"),
        1_000..1_000_000 => format!("{:.1} ms", us as f64 / 1e3),
        _ => format!("{:.1} s", us as f64 / 1e6),
    }
}

/// How certain the diagnosis is, and what the file lacks.
pub(super) fn notes(diagnosed: &Diagnosed, diagnosis: &Diagnosis) -> Vec<String> {
    let mut notes = Vec::new();
    let recorded = diagnosed.recording.devices.iter().find(|device| device.device == diagnosis.device);
    match &diagnosis.exactness {
        None => notes.push(recorded.and_then(|device| device.left_out.as_ref()).map_or_else(
            || {
                "not in the file: the history, so requests and times are unknown \
                 (torch.cuda.memory._record_memory_history() records it)"
                    .to_owned()
            },
            recording::left_out_words,
        )),
        Some(_) if !recorded.is_some_and(recording::has_history) => notes.push(recording::NO_HISTORY.to_owned()),
        Some(verdict) if verdict.mismatches == 0 => {
            notes.push(format!("exact: all {} recorded decisions are reproduced", verdict.decisions));
        }
        Some(verdict) => {
            let first = verdict.first.as_ref().and_then(|first| first.entry);
            let first = first.map_or(String::new(), |entry| format!(", the first at entry {entry}"));
            let way_out = match diagnosed.made_by.basis {
                Basis::Given => "the file may be from a different release: without --profile, each release is tried",
                _ if diagnosed.made_by.maps_while_off => "a different allocator may have made the decisions (see the next note)",
                _ => "give the run's own --limit and --settings (see parkade verify)",
            };
            let differing = recording::differing(verdict.mismatches, verdict.decisions);
            notes.push(format!("not exact: {differing} in the replay{first}; {way_out}"));
        }
    }
    notes.push(diagnosed.made_by.words());
    notes.extend(recording::of_file(&diagnosed.recording));
    notes.extend(run_words::ending(&diagnosis.ending));
    if let Some(bytes) = diagnosis.assumed_limit_bytes {
        notes.push(contradicts(diagnosis, bytes).map_or_else(
            || recording::assumed_limit(bytes, "--limit"),
            |text| {
                let assumed = show_bytes(bytes);
                format!(
                    "a limit of {assumed} is assumed because of the first out-of-memory error, but {text}: --limit sets the \
                     limit that the run had"
                )
            },
        ));
    }
    if let Some(lost) = diagnosis.exactness.as_ref().and_then(|verdict| verdict.not_in_file.lost_beginning) {
        notes.push(format!(
            "not in the file: everything before its first entry; the ages of the {} ({}, {}) that existed then are unknown, \
             and stacks are known only for those that live to the end; an earlier peak or failure may be missing too",
            count(lost.blocks, "block"),
            count(lost.segments, "segment"),
            show_bytes(lost.reserved_bytes)
        ));
    }
    if diagnosed.recording.stacks.is_empty() {
        notes.push("not in the file: stacks (torch.cuda.memory._record_memory_history(stacks='python') records them)".to_owned());
    }
    if diagnosis.ooms > 1 || (diagnosis.ooms == 1 && diagnosis.why != Why::OutOfMemory) {
        notes.push(format!(
            "{} ran out of memory in total; --entry N diagnoses a different one",
            count(diagnosis.ooms, "request")
        ));
    }
    notes.extend(diagnosed.settings_note());
    notes
}

/// A warning, shown first, if the figures are not the recorded run's.
fn warning(diagnosis: &Diagnosis) -> Option<String> {
    let mismatches = diagnosis.exactness.as_ref().map_or(0, |verdict| verdict.mismatches);
    let differ = if mismatches == 1 { "1 recorded decision differs" } else { &format!("{mismatches} recorded decisions differ") };
    let text = format!("warning: {differ} in the replay, so the figures may be wrong (see below)");
    (mismatches > 0).then_some(text)
}

/// Whether the diagnosis answers this question.
fn is_asked(diagnosis: &Diagnosis) -> bool {
    diagnosis.question == Question::ReservedAboveAllocated
}

/// The causes of the difference in one sentence, the largest first.
fn excess_headline(diagnosis: &Diagnosis) -> String {
    let (excess, reserved) = (&diagnosis.excess, show_bytes(diagnosis.heap.reserved_bytes));
    if excess.bytes() == 0 {
        return format!("all of the {reserved} reserved is allocated");
    }
    let mut parts = present(excess);
    parts.sort_by_key(|part| Reverse(part.bytes));
    let parts: Vec<String> = parts.iter().map(|part| format!("{} {}", show_bytes(part.bytes), in_short(part.cause))).collect();
    let why = match parts.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, rest)) => format!("{} and {last}", rest.join(", ")),
        None => String::new(),
    };
    format!("{} of the {reserved} reserved is not allocated: {why}", show_bytes(excess.bytes()))
}

fn present(excess: &Excess) -> Vec<&ExcessPart> {
    excess.parts.iter().filter(|part| part.bytes > 0).collect()
}

fn in_short(cause: ExcessCause) -> &'static str {
    match cause {
        ExcessCause::PendingEvent => "waiting for events",
        ExcessCause::PrivatePool => "in private pools",
        ExcessCause::OtherStream => "cached for other streams",
        ExcessCause::FreeSegment => "in whole free segments",
        ExcessCause::SmallPoolHole => "in holes of the small pool",
        ExcessCause::LargePoolHole => "in holes of the large pool",
    }
}

/// The rows of the table: bytes, and their explanation.
fn rows(excess: &Excess) -> Vec<(u64, String)> {
    present(excess).into_iter().map(|part| (part.bytes, excess_row(excess, part))).collect()
}

fn excess_row(excess: &Excess, part: &ExcessPart) -> String {
    let pieces = |thing| match part.pieces {
        1 => count(1_u8, thing),
        pieces => format!("{}, the largest {}", count(pieces, thing), show_bytes(part.largest_bytes)),
    };
    let whole = |then: &str| match part.whole_bytes {
        0 => String::new(),
        bytes if bytes == part.bytes => format!("; all of it in whole segments, {then}"),
        bytes => format!("; {} of it in whole segments, {then}", show_bytes(bytes)),
    };
    match part.cause {
        ExcessCause::PendingEvent => {
            format!("freed, but another stream may still be using it (record_stream) ({})", pieces("block"))
        }
        ExcessCause::PrivatePool => {
            format!("in private pools (MemPool, CUDA graph) ({}{})", pieces("hole"), whole("kept until nothing uses the pool"))
        }
        ExcessCause::OtherStream => {
            let main = excess.main_stream.map_or(0, |stream| stream.get());
            let whole = whole("which empty_cache gives back");
            format!("cached for streams other than {main}, which holds the most ({}{whole})", pieces("hole"))
        }
        ExcessCause::FreeSegment => {
            format!("whole free segments or pages: the cache, which empty_cache releases ({})", pieces("piece"))
        }
        ExcessCause::SmallPoolHole => {
            format!("holes beside blocks in use, in the small pool: for requests up to 1 MiB only ({})", pieces("hole"))
        }
        ExcessCause::LargePoolHole => {
            format!("holes beside blocks in use, in the large pool: for requests above 1 MiB only ({})", pieces("hole"))
        }
    }
}

/// The peaks of the run; `None` without a trace.
fn peaks(diagnosis: &Diagnosis) -> Option<String> {
    let peaks = diagnosis.peaks?;
    let at = |peak: Peak| peak.entry.map_or_else(|| "before the first entry".to_owned(), |entry| format!("at entry {entry}"));
    Some(format!(
        "reserved memory first reached its peak, {}, {}; allocated memory peaked at {}, {}, when {} was reserved",
        show_bytes(peaks.reserved.bytes),
        at(peaks.reserved),
        show_bytes(peaks.allocated.bytes),
        at(peaks.allocated),
        show_bytes(peaks.reserved_at_allocated_bytes)
    ))
}

/// The number of stacks and fences shown, and with `--all`.
const SHOWN: [usize; 2] = [3, 10];

pub(super) fn answer(diagnosed: &Diagnosed, all: bool) -> Answer {
    let mut answer = Answer::new();
    let mut commands: Vec<Option<String>> = Vec::new();
    let all_commands: Vec<Option<String>> = diagnosed.devices.iter().map(|diagnosis| steps(diagnosed, diagnosis).1).collect();
    // A single command about the file covers all of its devices.
    let is_common = all_commands.iter().flatten().collect::<BTreeSet<_>>().len() == 1;
    for (place, diagnosis) in diagnosed.devices.iter().enumerate() {
        if place > 0 {
            answer.gap();
        }
        let command = device(&mut answer, diagnosed, diagnosis, SHOWN[usize::from(all)]);
        if is_common {
            commands.push(command);
        } else {
            add_command(&mut answer, command);
        }
    }
    add_command(&mut answer, commands.into_iter().flatten().next());
    answer
}

fn add_command(answer: &mut Answer, command: Option<String>) {
    if let Some(command) = command {
        answer.gap();
        answer.code(Tone::Good, command);
    }
}

/// Adds what was found on a device; returns the command to run next.
fn device(answer: &mut Answer, diagnosed: &Diagnosed, diagnosis: &Diagnosis, most: usize) -> Option<String> {
    let has_several = diagnosed.devices.len() > 1;
    let number = if diagnosed.recording.devices.len() > 1 { format!(", device {}", diagnosis.device) } else { String::new() };
    let trace = diagnosed.recording.devices.iter().find(|device| device.device == diagnosis.device);
    let entries = trace.map_or(0, |device| device.trace.len());
    let tone = if diagnosis.verdict == Verdict::NoFailure { Tone::Plain } else { Tone::Bad };
    let on = if has_several { format!("device {}: ", diagnosis.device) } else { String::new() };
    answer.headline(tone, format!("{on}{}", headline(diagnosed, diagnosis)));
    if let Some((reserved, limit)) = diagnosed.refuted(diagnosis) {
        answer.paragraph(recording::not_its_limit(reserved, limit));
    }
    if let Some(warning) = warning(diagnosis) {
        answer.toned(Tone::Bad, warning);
    }
    let settings = match &*diagnosed.settings.settings.text {
        "" => String::new(),
        text => format!("; settings {}", output::shorten(text, 200)),
    };
    answer.toned(Tone::Dim, format!("{}{number}: {}{settings}", short_name(&diagnosed.file), occasion(diagnosis, entries)));
    answer.paragraphs(peaks(diagnosis).filter(|_| is_asked(diagnosis)));
    let request = diagnosis.request.filter(|_| !is_asked(diagnosis));
    let asked = request.and_then(|request| parts::stack_line(&diagnosed.names, &diagnosed.recording, request.stack));
    answer.paragraphs(asked.map(|line| format!("requested by {line}")));
    answer.gap();
    let (steps, command) = steps(diagnosed, diagnosis);
    answer.table(steps);
    bytes(answer, diagnosis);
    fences(answer, diagnosed, diagnosis, most);
    live(answer, diagnosed, diagnosis, most);
    if let Some(onset) = &diagnosis.onset {
        answer.gap();
        answer.title("when it began");
        answer.indented(2, onset_in_words(&diagnosed.recording, diagnosis, onset));
    }
    answer.gap();
    answer.title("how certain this is");
    notes(diagnosed, diagnosis).into_iter().for_each(|note| answer.indented(2, note));
    command
}

/// The first four steps as a table, and the command that one of them leads to.
fn steps(diagnosed: &Diagnosed, diagnosis: &Diagnosis) -> (Table, Option<String>) {
    let steps = &diagnosis.steps;
    let answers = [steps.capacity, steps.fragmentation, steps.settings, steps.empty_cache];
    let (mut table, mut next) = (parts::steps(), None);
    for (place, (finding, answer)) in findings(diagnosed, diagnosis).into_iter().zip(answers).enumerate() {
        let finding = match finding.split_once(":\n") {
            Some((finding, command)) => {
                next = Some(command.to_owned());
                format!("{finding}, run the command below")
            }
            None => finding,
        };
        parts::add_step(&mut table, place, answer, finding);
    }
    (table, next)
}

/// A table of sizes, each with its meaning.
fn sizes() -> Table {
    Table::bare(2).with_left([1])
}

fn bytes(answer: &mut Answer, diagnosis: &Diagnosis) {
    let heap = &diagnosis.heap;
    answer.gap();
    answer.title(format!(
        "where the {} of reserved memory is ({})",
        show_bytes(heap.reserved_bytes),
        count(heap.segments, "segment")
    ));
    let mut table = sizes();
    table.row([show_bytes(heap.requested_bytes), format!("live, in {}", count(heap.live_blocks, "block"))]);
    table.row([show_bytes(heap.rounding_bytes), "lost to rounding in those blocks".to_owned()]);
    if is_asked(diagnosis) {
        for (bytes, text) in rows(&diagnosis.excess) {
            table.row([show_bytes(bytes), text]);
        }
        return answer.table(table);
    }
    for strand in heap.strands.iter().filter(|strand| strand.bytes > 0) {
        let holes = match strand.holes {
            1 => count(1_u8, "hole"),
            holes => format!("{}, the largest {}", count(holes, "hole"), show_bytes(strand.largest_bytes)),
        };
        table.row([show_bytes(strand.bytes), format!("{} ({holes})", cause(strand.cause, diagnosis.is_for_request))]);
    }
    answer.table(table);
    if let Some(request) = diagnosis.request.filter(|_| diagnosis.why != Why::OutOfMemory) {
        let given = diagnosis.given_back.bytes;
        let given = if given > 0 { format!(", {} was released", show_bytes(given)) } else { String::new() };
        let after = show_bytes(diagnosis.reserved_after_bytes);
        let requested = show_bytes(request.requested_bytes);
        answer.indented(2, format!("then {requested} was requested{given}, and {after} was reserved"));
    }
    if diagnosis.why == Why::OutOfMemory && diagnosis.met != diagnosis.heap {
        answer.indented(2, format!("before the allocator released what it could: {}", met(&diagnosis.met)));
    }
}

fn met(met: &Breakdown) -> String {
    format!("{} reserved, {} of it free", show_bytes(met.reserved_bytes), show_bytes(met.stranded_bytes()))
}

fn fences(answer: &mut Answer, diagnosed: &Diagnosed, diagnosis: &Diagnosis, most: usize) {
    if diagnosis.fences.is_empty() {
        return;
    }
    answer.gap();
    answer.title("blocks that pin free memory");
    let mut table = sizes();
    for fence in diagnosis.fences.iter().take(most) {
        let owner = parts::stack_line(&diagnosed.names, &diagnosed.recording, fence.owner.stack);
        let owner = owner.map_or_else(String::new, |line| format!("\n{line}"));
        table.row([show_bytes(fence.bytes), format!("{}{owner}", fence_text(diagnosis, fence))]);
    }
    answer.table(table);
}

fn fence_text(diagnosis: &Diagnosis, fence: &Fence) -> String {
    let beside = show_bytes(fence.beside_bytes);
    let effect = if fence.frees_segment {
        format!("alone pins a segment of {}", show_bytes(fence.opens_bytes))
    } else if fence.is_enough {
        format!(
            "has {beside} free beside it; freeing it would leave a hole of {}, which is enough",
            show_bytes(fence.opens_bytes)
        )
    } else {
        format!("has {beside} free beside it")
    };
    let state = if fence.is_pending { ", and waits for events" } else { "" };
    let age = match (fence.owner.entry, diagnosis.entry) {
        (Some(entry), Some(now)) => {
            let times = fence.owner.time_us.zip(diagnosis.time_us);
            let time = times.map_or_else(String::new, |(then, now)| format!(", {}", duration(now.saturating_sub(then))));
            format!("; allocated at entry {entry}, {}{time} ago", count(now.saturating_sub(entry), "entry"))
        }
        (None, Some(_)) => "; allocated before the trace begins".to_owned(),
        (_, None) => String::new(),
    };
    format!("{effect}{state}{age}")
}

fn live(answer: &mut Answer, diagnosed: &Diagnosed, diagnosis: &Diagnosis, most: usize) {
    // A single row "no stack in the file" is useless.
    if diagnosis.stacks.iter().all(|held| held.stack == StackId::NONE) {
        return;
    }
    answer.gap();
    answer.title("stacks that hold the most live memory");
    // Stacks that look the same in one line share a row.
    let mut rows: BTreeMap<String, (u64, usize)> = BTreeMap::new();
    for held in &diagnosis.stacks {
        let line = parts::stack_line(&diagnosed.names, &diagnosed.recording, held.stack);
        let (bytes, blocks) = rows.entry(line.unwrap_or_else(|| "no stack in the file".to_owned())).or_default();
        *bytes = bytes.saturating_add(held.bytes);
        *blocks += held.blocks;
    }
    let mut rows: Vec<_> = rows.into_iter().collect();
    rows.sort_by_key(|&(_, (bytes, _))| Reverse(bytes));
    let mut table = sizes();
    for (line, (bytes, blocks)) in rows.into_iter().take(most) {
        table.row([show_bytes(bytes), format!("in {}: {line}", count(blocks, "block"))]);
    }
    answer.table(table);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_gibibyte_is_named_if_it_is_the_only_one() {
        const GIB: u64 = 1 << 30;
        assert_eq!(only_whole_gibibyte(11 * GIB + 1, 12 * GIB + 1), Some(12 * GIB));
        assert_eq!(only_whole_gibibyte(12 * GIB, 13 * GIB), Some(12 * GIB));
        let none = [(11 * GIB + 1, 12 * GIB), (11 * GIB, 12 * GIB + 1), (5, 5), (u64::MAX, 5), (0, u64::MAX)];
        assert_eq!(none.map(|(least, below)| only_whole_gibibyte(least, below)), [None; 5]);
    }
}
