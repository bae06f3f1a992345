//! Sentences about the options, for people.

use parkade_analysis::advise::{Advice, AdvisedOption, FirstFailure, Outcome, Program, Reason, Verdict};
use parkade_analysis::caution::{Caution, Severity};
use parkade_analysis::shown_frame;
use parkade_recording::{Frame, StackId};
use parkade_replay::SettingsOrigin;

use super::Advised;
use crate::size::{show, show_bytes};
use crate::{ending, output, recording};

/// The number of holders listed.
pub(super) const HOLDERS: usize = 5;

/// Added where the answer is near a boundary.
pub(crate) const CLOSE: &str = "close call: 1 % more or less memory could change this";

/// Settings by name.
pub(super) fn name(option: &AdvisedOption) -> String {
    shown(&option.settings.text)
}

/// The same of a settings string.
pub(super) fn shown(settings: &str) -> String {
    match settings {
        "" => "default".to_owned(),
        text => output::one_line(&output::shorten(text, 72)),
    }
}

/// Why this option is recommended, and what happens without it to a run that survives its errors.
pub(crate) fn why(report: &Advice) -> String {
    let goes_on = goes_on(report).filter(|_| !report.own().fits());
    [Some(reason(report)), goes_on].into_iter().flatten().collect::<Vec<_>>().join("; without it ")
}

/// That the run goes on although requests fail.
fn goes_on(report: &Advice) -> Option<String> {
    let dies = report.programs.iter().any(Program::died);
    report.programs.iter().filter(|_| !dies).find_map(|program| ending::goes_on(&program.ending, program.requests.ooms))
}

fn reason(report: &Advice) -> String {
    let (Some(recommendation), Some(option)) = (&report.recommendation, report.recommended()) else { return String::new() };
    let smallest = show_bytes(option.smallest_capacity_bytes());
    let own = report.own();
    let others = match (own.fits(), own.fails_at_entry()) {
        _ if option.is_own => String::new(),
        (false, Some(entry)) => format!("; {} fails at entry {entry}", name(own)),
        (true, _) if own.retries() > 0 => format!("; with {} memory runs short and the cache is emptied", name(own)),
        (_, _) => format!("; {} needs {}", name(own), show_bytes(own.smallest_capacity_bytes())),
    };
    let is_cut = report.programs.iter().any(|program| program.requests.lost_beginning.is_some());
    let far = if is_cut { "as far as the file goes, " } else { "" };
    if report.outcome == Outcome::GetsPast {
        return gets_past(report, option);
    }
    if report.hides_more {
        return format!("what is in the file fits in {smallest}, but what came before its first entry needed more than there is");
    }
    match recommendation.reason {
        Reason::GetsPast => gets_past(report, option),
        Reason::FitsAsItIs => format!("{far}it fits as it is: {smallest} is enough"),
        Reason::Fits => format!("{far}it fits: {smallest} is enough{others}"),
        Reason::NeedsLeast if option.is_own => format!("{far}it fits in {smallest}"),
        Reason::NeedsLeast => format!("{far}it fits in {smallest}{others}"),
    }
}

/// That the option serves the request of which the run died, and why more cannot be said.
fn gets_past(report: &Advice, option: &AdvisedOption) -> String {
    let died = report.programs.iter().find(|program| program.died());
    let Some((program, error)) = died.and_then(|program| Some((program, program.ending.death()?))) else { return String::new() };
    let past = format!("it gets past entry {}, where the run died; the rest is not in the file", error.entry);
    let of_device = report.doubts.iter().find(|(device, _)| *device == program.device);
    if !option.fits() {
        let need = show_bytes(option.smallest_capacity_bytes());
        format!("{past}, and by the estimate it would need {need}, more than there is")
    } else if let Some(&(_, doubt)) = of_device {
        format!("{past}, and {}", ending::doubt(doubt))
    } else {
        past
    }
}

/// The cost of the recommended option, compared with the recorded run's own settings.
pub(crate) fn costs(report: &Advice) -> String {
    let (Some(option), own) = (report.recommended(), report.own()) else { return String::new() };
    let time = |option: &AdvisedOption| format!("{:.1} ms", option.driver_us() as f64 / 1000.0);
    let beside = if option.is_own { String::new() } else { format!(" (with {}: {})", name(own), time(own)) };
    let retries = match option.retries() {
        0 => String::new(),
        retries => format!("; the cache is emptied {} for lack of memory", output::times(retries)),
    };
    format!("{} driver calls, {}{beside}{retries}", option.driver_calls(), time(option))
}

/// Says that no setting helps, and what is missing; of a run that survives its errors, that it goes on.
pub(crate) fn no_setting(report: &Advice) -> String {
    [Some(missing(report)), goes_on(report)].into_iter().flatten().collect::<Vec<_>>().join("; ")
}

fn missing(report: &Advice) -> String {
    if report.verdict == Verdict::PrivatePools {
        return "no setting helps: private pools keep what they have cached; free the CUDA graphs or MemPools you no longer need, \
                then call torch.cuda.empty_cache()"
            .to_owned();
    }
    let available = report.own().available_bytes.unwrap_or(0);
    if report.outcome == Outcome::Unknown {
        let least = show_bytes(available);
        return format!(
            "not known: the limit was at least {least}, and with no more than that no setting helps; --limit says how much there is"
        );
    }
    let live = report.programs.iter().map(|program| program.live.bytes).max().unwrap_or(0);
    let short = match live.checked_sub(available) {
        Some(short) if short > 0 => format!("{} too little", show_bytes(short)),
        _ => "and no setting tried packs it tightly enough".to_owned(),
    };
    let (holds, has) = (show_bytes(live), show_bytes(available));
    format!("no setting helps: the program holds {holds} at once and there is {has}, {short}")
}

/// What the option needs besides.
pub(crate) fn also(needs_limit: bool) -> Option<&'static str> {
    needs_limit.then_some(
        "garbage_collection_threshold does nothing without a limit: first call torch.cuda.set_per_process_memory_fraction with \
         the fraction of memory that the process may use, such as 1.0",
    )
}

/// What the option may break without a recording showing it, the worst first.
pub(super) fn unknown(option: &AdvisedOption) -> Vec<&Caution> {
    let does_harm = |caution: &&Caution| !caution.needs_warning() && caution.severity > Severity::NoEffect;
    option.cautions.iter().filter(|_| !option.is_own).filter(does_harm).collect()
}

/// The calls of a stack, innermost first.
pub(super) fn stack(advised: &Advised, stack: StackId) -> impl Iterator<Item = String> {
    advised.recording.stacks.frames(stack).map(call)
}

fn call(frame: &Frame) -> String {
    format!("{}:{} {}", frame.filename, frame.line, frame.name)
}

/// The user's own call, by the rule of every command.
fn place(advised: &Advised, id: StackId) -> Option<String> {
    let frame = shown_frame(&advised.recording.stacks, id)?;
    Some(output::one_line(&output::shorten(&call(frame), 100)))
}

/// Why the recorded run's own settings fail.
pub(crate) fn verdict(report: &Advice) -> String {
    let Some(cause) = &report.first_failure else { return String::new() };
    let FirstFailure { wanted_bytes, held, entry, .. } = cause;
    let what = match report.verdict {
        Verdict::Capacity => return at_most(report, cause.device),
        Verdict::PrivatePools => format!("{} is cached by private pools", show_bytes(held.private_pools_bytes)),
        Verdict::Streams => {
            format!(
                "{} is cached for other streams or waiting for them",
                show_bytes(held.other_streams_bytes + held.pending_bytes)
            )
        }
        Verdict::Fragmentation | Verdict::Fits => {
            format!("{} is free, but the largest hole is {}", show_bytes(held.free_bytes), show_bytes(held.largest_free_bytes))
        }
    };
    format!("at entry {entry}, {} is requested and {} is live; {what}", show_bytes(*wanted_bytes), show_bytes(held.live_bytes))
}

/// The most that the program on a device needs at once, compared with what is available.
fn at_most(report: &Advice, device: u32) -> String {
    let Some(program) = report.programs.iter().find(|program| program.device == device) else { return String::new() };
    let (live, available) = (program.live.bytes, report.own().available_bytes.unwrap_or(0));
    let more = show_bytes(live.saturating_sub(available));
    format!(
        "at entry {}, live memory and the request add up to {}, {more} more than available",
        program.live.entry,
        show_bytes(live)
    )
}

/// The largest holders at the peak of live memory.
pub(super) fn holders(advised: &Advised, program: &Program) -> Vec<String> {
    let named = program.live.holders.iter().take(HOLDERS).filter_map(|holder| {
        let place = place(advised, holder.stack)?;
        Some(format!("{} in {}: {place}", show_bytes(holder.bytes), output::count(holder.blocks, "block")))
    });
    named.collect()
}

/// What to know about the numbers.
pub(super) fn notes(advised: &Advised, report: &Advice) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some((device, hint)) = report.hint {
        let about = if hint.least_bytes == hint.below_bytes {
            format!("had {} for the allocator", show_bytes(hint.least_bytes))
        } else {
            let (least, below) = (show_bytes(hint.least_bytes), show_bytes(hint.below_bytes));
            match report.recorded_limit {
                Some(limit) => format!("had a limit between {least} and {below}; {} is used", show_bytes(limit)),
                None => {
                    let assumed = show_bytes(hint.assumed_bytes());
                    format!("had a limit between {least} and {below}; {assumed} is assumed (--limit sets it)")
                }
            }
        };
        notes.push(format!("no --capacity: the out-of-memory error at entry {} shows that device {device} {about}", hint.entry));
    } else if report.own().available_bytes.is_none() {
        notes.push("no --capacity: every setting is shown with the memory it needs".to_owned());
    }
    if advised.own.origin == SettingsOrigin::Assumed {
        notes.push("not in the file: the settings; PyTorch's defaults are assumed".to_owned());
    }
    for program in &report.programs {
        notes.extend(notes_of(program, report));
    }
    notes
}

fn notes_of(program: &Program, report: &Advice) -> Vec<String> {
    let mut notes = Vec::new();
    let requests = &program.requests;
    if let Some(lost) = requests.lost_beginning {
        notes.push(format!(
            "not in the file: what came before the first entry; the {} live then ({}) count as requested just before it. How they \
             were split is unknown, so the real need is probably higher",
            output::count(lost.blocks, "block"),
            show_bytes(program.live.at_start_bytes)
        ));
        if report.hides_more {
            notes.push(format!(
                "careful: {} was already reserved before the first entry, more than the memory: with the run's own settings the part \
                 that is cut off needed more, or would have failed",
                show_bytes(lost.reserved_bytes)
            ));
        }
        let more_than = |available: &u64| program.live.at_start_bytes > *available;
        if report.own().available_bytes.as_ref().is_some_and(more_than) {
            notes.push("those blocks alone exceed the memory".to_owned());
        }
    }
    notes.extend(ending::ending(&program.ending));
    if program.died() {
        notes.push(ending::rest(program.continuation.as_ref()));
    }
    if requests.mismatches > 0 {
        notes.push(recording::uncertain_requests(requests.mismatches, requests.decisions));
    }
    let device_errors = report.own().devices.iter().map(|device| device.prediction.device_errors).sum::<u64>();
    if device_errors > 0 {
        notes.push(recording::other_failures(device_errors));
    }
    for timing in &report.timings {
        let option = &report.options[timing.option];
        let (least, most) = (show(timing.least_peak_reserved_bytes), show(timing.most_peak_reserved_bytes));
        let fits = match (option.available_bytes, timing.fit) {
            (None, _) => String::new(),
            (Some(_), fit) => format!("fits with {fit} of {} timings of the other streams, ", timing.of),
        };
        notes.push(format!("{}: {fits}reserves {least} to {most}", name(option)));
    }
    notes
}
