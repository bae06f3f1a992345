//! Sentences about the options, about one setting for all ranks, and about options that are not tried.

use parkade_analysis::StackName;
use parkade_analysis::advise::{
    Advice, AdvisedOption, DeviceOutcome, Enough, FirstFailure, LikelyRuns, Outcome, Outcome as Fit, Program, Reason, Verdict,
    paste_line,
};
use parkade_analysis::caution::{Caution, Severity};
use parkade_analysis::continuation::Doubt;
use parkade_recording::{Frame, StackId};
use parkade_replay::{SelfCheck, SettingsOrigin};

use super::advised::{Advised, Job, Otherwise, Rank};
use super::names::{self, fullest, on, on_it, on_tightest, shown, smallest_on_tightest, the};
use super::remedies;
use crate::terminal::output::{self, list};
use crate::terminal::recording;
use crate::terminal::run_words::{self, LIMIT_SAYS, memory, range};
use crate::terminal::size::{show_bytes, show_range};

/// The number of listed holders.
pub(super) const HOLDERS: usize = 5;

/// The note below a table in which settings fit although the peak is above the limit.
pub(crate) const REACHES_BEYOND: &str = "a run may fit although its peak exceeds the limit: PyTorch compares the limit with what a request needs \
     before it maps whole pages of expandable segments (docs/spec.md 2.8 and 4.3)";

/// The advice if the run's own settings are the best.
pub(crate) const KEEP: &str = "Keep the settings as they are.";

/// Returns the name of an option's settings.
pub(super) fn name(option: &AdvisedOption) -> String {
    shown(&option.settings.text)
}

fn with(option: &AdvisedOption) -> String {
    the(&option.settings.text)
}

/// Says why this option is recommended and, for a run that survives its errors, what happens without it.
pub(crate) fn why(report: &Advice) -> String {
    let goes_on = goes_on(report).filter(|_| !report.own().fits());
    [Some(reason(report)), goes_on].into_iter().flatten().collect::<Vec<_>>().join("; ")
}

/// Says that the run continues although requests fail.
fn goes_on(report: &Advice) -> Option<String> {
    let dies = report.programs.iter().any(Program::died);
    report.programs.iter().filter(|_| !dies).find_map(|program| {
        let said = run_words::goes_on(&program.ending, program.requests.ooms)?;
        Some(format!("{}{said}", on(report, program.device)))
    })
}

fn reason(report: &Advice) -> String {
    let (Some(recommendation), Some(option)) = (&report.recommendation, report.recommended()) else { return String::new() };
    let smallest = show_bytes(smallest_on_tightest(option));
    let own = report.own();
    let fails = own.devices.iter().find_map(|device| Some((device.device, device.fails_at_entry()?)));
    let others = match (own.fits(), fails) {
        _ if option.is_own => String::new(),
        (false, Some((device, entry))) => format!("; with {} it fails at entry {entry}{}", with(own), on_it(report, device)),
        (true, _) if own.retries() > 0 => format!("; with {} memory runs short and the cache is emptied", with(own)),
        (_, _) => {
            let needed = show_bytes(smallest_on_tightest(own));
            format!(
                "; with {} it needs {needed}{}",
                with(own),
                own.tightest().map_or_else(String::new, |own| on_it(report, own.device))
            )
        }
    };
    if report.hides_more {
        return hidden(report, option);
    }
    if !report.enough.is_empty() {
        return depends(report);
    }
    if report.outcome == Outcome::GetsPast || recommendation.reason == Reason::GetsPast {
        return gets_past(report, option);
    }
    let (far, tightest) = (conditions(report), on_tightest(report, option));
    let in_limit = option.tightest().and_then(|device| device.available_bytes);
    let in_limit = in_limit.map_or_else(String::new, |bytes| format!(" in {}", show_bytes(bytes)));
    match recommendation.reason {
        Reason::FitsAsItIs if option.is_as_recorded() => format!("{far}it fits{in_limit} as it is: the recorded run did"),
        Reason::FitsAsItIs => format!("{far}it fits{in_limit} as it is: it needs {}", needs(report, own)),
        Reason::Fits => {
            format!("{far}it fits{in_limit} with {}: it needs at least {smallest}{tightest}{others}", with(option))
        }
        Reason::NeedsLeast if is_at_ease(report) => {
            format!("{far}nothing failed, so no setting has to change: the run needs {}", needs(report, own))
        }
        Reason::NeedsLeast if option.is_own => format!("{far}it fits in {smallest}{tightest}{}", at_start(report, option)),
        Reason::NeedsLeast | Reason::GetsPast => format!("{far}it fits in {smallest}{tightest}{others}"),
    }
}

/// Returns whether the recorded run met no limit, so that it needs no other settings.
pub(super) fn is_at_ease(report: &Advice) -> bool {
    let is_unlimited = report.recommendation.as_ref().is_some_and(|found| found.reason == Reason::NeedsLeast);
    is_unlimited && report.programs.iter().all(|program| program.requests.ooms == 0)
}

/// Says how much memory these settings need and, if that is less than the run reserved, why it reserved more.
fn needs(report: &Advice, option: &AdvisedOption) -> String {
    let (needed, tightest) = (show_bytes(smallest_on_tightest(option)), on_tightest(report, option));
    let peak = option.tightest().map_or(0, |device| device.prediction.peak_reserved_bytes());
    let peak = show_bytes(u64::try_from(peak).unwrap_or(0));
    let is_whole = report.programs.iter().all(|program| !program.died() && program.requests.lost_beginning.is_none());
    let is_cached = peak != needed && option.is_own && option.retries() == 0 && is_whole;
    let cached = if is_cached { format!(", and reserved {peak} because memory was cached") } else { String::new() };
    format!("at least {needed}{tightest}{cached}{}", at_start(report, option))
}

/// Says under which conditions it fits.
fn conditions(report: &Advice) -> String {
    let is_cut = report.programs.iter().any(|program| program.requests.lost_beginning.is_some());
    let died = report.programs.iter().filter(|program| program.died());
    let steps = died.filter_map(|program| Some((program.continuation.as_ref()?.steps, program.device)));
    let estimated = steps.min_by_key(|&(steps, _)| steps).map(|(steps, device)| {
        let steps = output::count(steps, "step");
        format!("judging by {steps}{}, all consistent, ", on_it(report, device))
    });
    let is_cut = is_cut.then(|| "judging by what is in the file, ".to_owned());
    [if_all(report), is_cut, estimated].into_iter().flatten().collect()
}

/// Says that the given memory must be available, if the recording contradicts it.
pub(super) fn if_all(report: &Advice) -> Option<String> {
    let device = report.contradiction?.device;
    let bytes = show_bytes(names::available_bytes(report, device)?);
    Some(format!("if the full {bytes} is available{}, ", on_it(report, device)))
}

/// Says how much the recorded run had reserved before its first entry, if that is more than the recorded requests need.
fn at_start(report: &Advice, option: &AdvisedOption) -> String {
    let more = report.programs.iter().filter_map(|program| {
        let needed = smallest_on(option, program.device).unwrap_or(0);
        let reserved = program.requests.lost_beginning?.reserved_bytes;
        Some((reserved.checked_sub(needed).filter(|&more| more > 0)?, reserved, program.device))
    });
    more.max().map_or_else(String::new, |(_, reserved, device)| {
        format!(" for what is in the file{}", run_words::had_before_on(reserved, &on_it(report, device)))
    })
}

/// Returns the smallest memory of a device in which an option serves every request.
fn smallest_on(option: &AdvisedOption, device: u32) -> Option<u64> {
    names::outcome(option, device).map(|outcome| option.smallest_capacity_bytes_of(outcome))
}

/// Says that it is not known whether the run before the first entry fits, for the device with the largest excess of reserved over available
/// memory.
fn hidden(report: &Advice, option: &AdvisedOption) -> String {
    let reserved = report.programs.iter().filter_map(|program| {
        let reserved = program.requests.lost_beginning?.reserved_bytes;
        let available = names::available_bytes(report, program.device).unwrap_or(0);
        Some((i128::from(reserved) - i128::from(available), reserved, program.device))
    });
    let Some((_, reserved, device)) = reserved.max() else { return String::new() };
    format!(
        "not known: {}what is in the file fits in {}, but before its first entry the run had reserved {} with its own settings, more \
         than is available; how much of that these settings would need is not in the file",
        on(report, device),
        show_bytes(smallest_on(option, device).unwrap_or(0)),
        show_bytes(reserved)
    )
}

/// Says that the answer depends on where in its range the limit was.
fn depends(report: &Advice) -> String {
    let of_device = |enough: &Enough| {
        let served = match died_at(report, enough.device) {
            Some(entry) => format!("to get past entry {entry}, where the run died,"),
            None => "to serve every request".to_owned(),
        };
        let bytes = show_bytes(enough.bytes);
        format!("{}{served} {bytes} is needed, and {}", on(report, enough.device), range(Some(enough.range)))
    };
    let each: Vec<String> = report.enough.iter().map(of_device).collect();
    format!("not known: {}{}", each.join("; "), LIMIT_SAYS)
}

/// Returns the entry at which the program of a device died, if it did.
fn died_at(report: &Advice, device: u32) -> Option<usize> {
    Some(names::program(report, device)?.ending.death()?.entry)
}

/// Says that the option serves the requests that ended the run, and why more is not known.
fn gets_past(report: &Advice, option: &AdvisedOption) -> String {
    let died = report.programs.iter().filter_map(|program| Some((program, program.ending.death()?.entry)));
    let each: Vec<String> = died.map(|(program, entry)| gets_past_on(report, option, (program, entry))).collect();
    if_all(report).filter(|_| !each.is_empty()).unwrap_or_default() + &each.join("; ")
}

/// Says the same for one device, whose program died at this entry.
fn gets_past_on(report: &Advice, option: &AdvisedOption, (program, entry): (&Program, usize)) -> String {
    let device = program.device;
    let past = format!("{}it gets past entry {entry}, where the run died; the rest is not in the file", on(report, device));
    let doubt = report.doubts.iter().find(|(doubted, _)| *doubted == device).map(|&(_, doubt)| doubt);
    if !names::outcome(option, device).is_some_and(DeviceOutcome::fits) {
        let need = show_bytes(smallest_on(option, device).unwrap_or(0));
        // It makes no difference that later steps may need even more.
        let doubt = doubt.filter(|doubt| !matches!(doubt, Doubt::Growing | Doubt::Margin));
        let doubt = doubt.map_or_else(String::new, |doubt| format!(". That estimate is uncertain: {}", run_words::doubt(doubt)));
        format!("{past}, and is estimated to need {need}, more than is available{doubt}")
    } else if let Some(doubt) = doubt {
        format!("{past}, and {}", run_words::doubt(doubt))
    } else {
        past
    }
}

/// Compares the cost of the recommended option with that of the recorded run's own settings.
pub(crate) fn costs(report: &Advice) -> String {
    let (Some(option), own) = (report.recommended(), report.own()) else { return String::new() };
    let time = |option: &AdvisedOption| format!("{:.1} ms", option.driver_us() as f64 / 1000.0);
    let beside = if option.is_own { String::new() } else { format!(" (with {}: {})", with(own), time(own)) };
    let retries = match option.retries() {
        0 => String::new(),
        retries => format!("; the cache is emptied {} for lack of memory", output::times(retries)),
    };
    format!("{} driver calls, {}{beside}{retries}", option.driver_calls(), time(option))
}

/// Says how much memory is missing, that no setting helps, and which blocks hold the most; for a run that survives its errors, also
/// that it continues.
pub(crate) fn no_setting(report: &Advice, holder: Option<&str>) -> String {
    [Some(missing(report, holder)), goes_on(report)].into_iter().flatten().collect::<Vec<_>>().join("; ")
}

fn missing(report: &Advice, holder: Option<&str>) -> String {
    if report.verdict == Verdict::PrivatePools {
        return run_words::no_cure("private pools: they keep what they have cached", Some(run_words::FREE_POOLS));
    }
    let fullest = fullest(report);
    if report.outcome == Outcome::Unknown {
        let each: Vec<String> = match (report.enough.as_slice(), fullest) {
            ([], None) => Vec::new(),
            ([], Some((program, _))) => vec![holds(report, program.device)],
            (enough, _) => enough.iter().map(|enough| holds(report, enough.device) + &does_with(report, enough)).collect(),
        };
        return format!("not known: {}{LIMIT_SAYS}", each.join("; "));
    }
    let (live, available) = fullest.map_or((0, 0), |(program, available)| (program.live.bytes, available));
    let on = fullest.map_or_else(String::new, |(program, _)| on(report, program.device));
    let (cause, short) = match live.checked_sub(available) {
        Some(short) if short > 0 => ("capacity", format!("{} too little", show_bytes(short))),
        _ => ("fragmentation", "but nothing that was tried packs it tightly enough".to_owned()),
    };
    let (holds, has) = (show_bytes(live), show_bytes(available));
    let rounded = fullest.zip(report.first_failure.as_ref()).and_then(|((program, _), cause)| with_rounding(program, cause));
    let is_rounding = live > available && rounded.is_none_or(|rounded| rounded > live);
    let even = if is_rounding { "even with minimal rounding, " } else { "" };
    let cause = format!("{cause}: {even}{on}the program holds {holds} at once, and {has} is available, {short}");
    run_words::no_cure(&cause, holder)
}

/// Says how much the program on a device holds and in which range its limit was.
fn holds(report: &Advice, device: u32) -> String {
    let live = names::program(report, device).map_or(0, |program| program.live.bytes);
    let range = range(names::range(report, device));
    format!("{}the program holds {} at once, and {range}", on(report, device), show_bytes(live))
}

/// Says what happens with this much memory on a device.
fn does_with(report: &Advice, enough: &Enough) -> String {
    let Some(option) = report.options.get(enough.option) else { return String::new() };
    let does = died_at(report, enough.device).map_or_else(|| "it fits".to_owned(), |entry| format!("it gets past entry {entry}"));
    format!("; with at least {}, {does} with {}", show_bytes(enough.bytes), with(option))
}

/// Returns the cautions that a recording cannot confirm, the worst first.
pub(super) fn unknown(option: &AdvisedOption) -> Vec<&Caution> {
    let does_harm = |caution: &&Caution| !caution.needs_warning() && caution.severity > Severity::NoEffect;
    option.cautions.iter().filter(|_| !option.is_own).filter(does_harm).collect()
}

/// Returns the calls of a stack, innermost first.
pub(super) fn stack(advised: &Advised, stack: StackId) -> impl Iterator<Item = String> {
    advised.recording.stacks.frames(stack).map(call)
}

fn call(frame: &Frame) -> String {
    format!("{}:{} {}", frame.filename, frame.line, frame.name)
}

/// Names the operator and the user's own call, by the rule that all commands share.
fn place(advised: &Advised, id: StackId) -> Option<String> {
    let StackName { operator, line, calls_backward, .. } = advised.names.name(&advised.recording.stacks, id);
    let line = line.map(|frame| output::shorten(&call(frame), 100));
    let backward = calls_backward.map(|frame| format!("backward() from {}", output::shorten(&call(frame), 100)));
    let named: Vec<String> = [operator, line, backward].into_iter().flatten().collect();
    (!named.is_empty()).then(|| output::one_line(&named.join(", ")))
}

/// Says why the recorded run's own settings fail.
pub(crate) fn verdict(report: &Advice) -> String {
    let Some(cause) = &report.first_failure else { return String::new() };
    let FirstFailure { device, wanted_bytes, held, entry } = cause;
    let what = match report.verdict {
        Verdict::Capacity => return at_most(report, cause),
        Verdict::PrivatePools => format!("{} is cached by private pools", show_bytes(held.private_pools_bytes)),
        Verdict::Streams => {
            format!(
                "{} is cached for other streams or waiting for them",
                show_bytes(held.other_streams_bytes + held.pending_bytes)
            )
        }
        Verdict::Fragmentation | Verdict::Undecided | Verdict::Fits => {
            format!("{} is free, but the largest hole is {}", show_bytes(held.free_bytes), show_bytes(held.largest_free_bytes))
        }
    };
    let said = format!(
        "{}at entry {entry}, {} is requested and {} is live; {what}",
        on(report, *device),
        show_bytes(*wanted_bytes),
        show_bytes(held.live_bytes)
    );
    if report.verdict != Verdict::Undecided {
        return said;
    }
    let both = show_bytes(wanted_bytes.saturating_add(held.live_bytes));
    format!("{said}: fragmentation if the limit was at least {both}, capacity if it was lower")
}

/// Compares the maximum that the program on a device needs at once with the available memory. If the request failed at that point, the
/// amount is as recorded.
fn at_most(report: &Advice, cause: &FirstFailure) -> String {
    let mut devices = report.programs.iter().zip(&report.own().devices);
    let Some((program, outcome)) = devices.find(|(program, _)| program.device == cause.device) else { return String::new() };
    let rounded = with_rounding(program, cause);
    let live = rounded.unwrap_or(program.live.bytes);
    // Elsewhere only what is needed with minimal rounding is known.
    let even = if rounded.is_some() { "" } else { "even with minimal rounding, " };
    let more = show_bytes(live.saturating_sub(outcome.available_bytes.unwrap_or(0)));
    format!(
        "{}at entry {}, {even}live memory and the request add up to {}, {more} more than available",
        on(report, program.device),
        program.live.entry,
        show_bytes(live)
    )
}

/// Returns the memory that was live when a request failed, plus that request, including the rounding of the run's own settings; `None` if
/// the program holds the most at a different time.
fn with_rounding(program: &Program, cause: &FirstFailure) -> Option<u64> {
    let is_peak = program.device == cause.device && program.live.entry == cause.entry;
    is_peak.then(|| cause.held.live_bytes.saturating_add(cause.wanted_bytes).max(program.live.bytes))
}

/// Returns the largest holders at the peak of live memory.
pub(super) fn holders(advised: &Advised, program: &Program) -> Vec<String> {
    let named = program.live.holders.iter().take(HOLDERS).filter_map(|holder| {
        let place = place(advised, holder.stack)?;
        Some(format!("{} in {}: {place}", show_bytes(holder.bytes), output::count(holder.blocks, "block")))
    });
    named.collect()
}

/// Says that the answer is close, and why.
pub(crate) fn close(option: &AdvisedOption) -> Option<String> {
    let is_unsure = option.fits() && option.likely.is_some_and(|runs| runs.may_not_fit());
    let why = likely(option).filter(|_| is_unsure).map(|why| format!("close call: {why}"));
    why.or_else(|| option.is_close().then(|| "close call: 1 % more or less memory could change this".to_owned()))
}

/// Says what is likely, judging by the times of the entries.
fn likely(option: &AdvisedOption) -> Option<String> {
    let LikelyRuns { fit, of, device, least_peak_reserved_bytes, most_peak_reserved_bytes, .. } = option.likely?;
    let on = if option.devices.len() > 1 { format!(" on device {device}") } else { String::new() };
    let fits = option.available_bytes.map_or_else(String::new, |_| format!(", and {fit} of {of} likely runs fit"));
    let peaks = show_range(least_peak_reserved_bytes, most_peak_reserved_bytes);
    Some(format!("{peaks} is likely{on}, judging by the times of the entries{fits}"))
}

/// Returns notes on the figures.
pub(super) fn notes(advised: &Advised, report: &Advice) -> Vec<String> {
    let mut notes = Vec::new();
    notes.extend(memory(report));
    notes.push(recording::made_by_words(&advised.made_by));
    notes.extend(recording::of_file(&advised.recording));
    notes.extend(advised.otherwise.iter().map(Otherwise::words));
    if advised.own.origin == SettingsOrigin::Assumed {
        notes.push("not in the file: the settings; the default settings are assumed".to_owned());
    }
    for program in &report.programs {
        let of_device = if report.programs.len() > 1 { format!("device {}: ", program.device) } else { String::new() };
        notes.extend(notes_of(program, report).into_iter().map(|note| format!("{of_device}{note}")));
    }
    notes.extend(notes_of_options(report));
    let is_limited = report.own().available_bytes.is_some();
    notes.extend(report.otherwise.iter().map(|&(device, otherwise)| {
        let of_device = if report.programs.len() > 1 { format!("device {device}: ") } else { String::new() };
        let name = name(report.recommended().unwrap_or(report.own()));
        format!("{of_device}{name}: {}", run_words::other_reading(otherwise, is_limited))
    }));
    notes
}

/// Says that the self-check fails, for the device with the largest error.
pub(super) fn self_check_failed(report: &Advice) -> Option<String> {
    let (worst, failed) = (self_check_of(report), run_words::failed_check(self_check_of(report))?);
    let device = report.programs.iter().find(|program| program.self_check == worst)?.device;
    Some(if report.programs.len() > 1 { format!("device {device}: {failed}") } else { failed })
}

/// Returns the self-check with the largest error.
pub(super) fn self_check_of(report: &Advice) -> Option<SelfCheck> {
    SelfCheck::worst(report.programs.iter().filter_map(|program| program.self_check))
}

fn notes_of(program: &Program, report: &Advice) -> Vec<String> {
    let mut notes = Vec::new();
    let requests = &program.requests;
    if let Some(lost) = requests.lost_beginning {
        notes.push(format!(
            "not in the file: everything before the first entry; the {} live at that point ({}) count as requested just before \
             it. How they were split is unknown, so the run probably needs more",
            output::count(lost.blocks, "block"),
            show_bytes(program.live.at_start_bytes)
        ));
        let available = names::available_bytes(report, program.device);
        if available.is_some_and(|available| lost.reserved_bytes > available) {
            notes.push(format!(
                "warning: {} was already reserved before the first entry, more than is available: with the run's own settings, \
                 the missing part would have failed here",
                show_bytes(lost.reserved_bytes)
            ));
        }
        if available.is_some_and(|available| program.live.at_start_bytes > available) {
            notes.push("those blocks alone exceed the memory".to_owned());
        }
    }
    notes.extend(run_words::ending(&program.ending));
    if program.died() {
        notes.push(run_words::rest(program.continuation.as_ref()));
    }
    notes.extend(run_words::readings(requests));
    if requests.mismatches > 0 {
        notes.push(recording::uncertain_requests(requests.mismatches, requests.decisions));
    }
    notes
}

/// Returns notes on options that concern all devices.
fn notes_of_options(report: &Advice) -> Vec<String> {
    let mut notes = Vec::new();
    let device_errors = report.own().devices.iter().map(|device| device.prediction.device_errors).sum::<u64>();
    if device_errors > 0 {
        notes.push(recording::other_failures(device_errors));
    }
    for timing in &report.timings {
        let option = &report.options[timing.option];
        let peaks = show_range(timing.least_peak_reserved_bytes, timing.most_peak_reserved_bytes);
        let fits = match (option.available_bytes, timing.fit) {
            (None, _) => String::new(),
            (Some(_), fit) => format!("fits with {fit} of {} timings of the other streams, ", timing.of),
        };
        let likely = likely(option).map_or_else(String::new, |likely| format!("; {likely}"));
        let on = on_it(report, timing.device);
        notes.push(format!("{}: {fits}reserves {peaks}{on}{likely}", name(option)));
    }
    notes
}

/// The maximum number of ranks that are named.
const NAMED: usize = 8;

/// Says for a page what to do on all ranks: the line to paste, if there is one, and sentences about it.
pub(crate) fn what_to_do(job: &Job) -> (Option<String>, Vec<String>) {
    let is_new = job.advice.serves_all && !job.advice.is_own;
    let keep = job.advice.serves_all && job.advice.is_own;
    let lines = warnings(job).into_iter().map(|warning| format!("warning: {warning}")).chain(sentences(job));
    let lines = lines.chain(keep.then(|| KEEP.to_owned())).collect();
    (is_new.then(|| paste_line(&job.advice.settings)), lines)
}

/// Returns the warnings about the setting on all ranks, without duplicates.
pub(super) fn warnings(job: &Job) -> Vec<String> {
    let of = |rank: &Rank| rank.advice.with(&job.advice.settings).map_or_else(Vec::new, |tried| tried.warnings.clone());
    let mut said: Vec<String> = Vec::new();
    for caution in job.ranks.iter().flat_map(of) {
        let warning = format!("{} {} [{}]", caution.what, caution.instead, caution.source);
        if !said.contains(&warning) {
            said.push(warning);
        }
    }
    said
}

/// Returns the sentences about the job, with the conclusion last.
pub(super) fn sentences(job: &Job) -> Vec<String> {
    let mut sentences = Vec::new();
    if job.are_of_several_programs {
        sentences.push(
            "these recordings are from different programs: one setting for all of them matters only if they share one \
             PYTORCH_CUDA_ALLOC_CONF"
                .to_owned(),
        );
    }
    if let Some(assumed) = job.advice.assumed_bytes {
        sentences.push(format!(
            "some recordings do not show how much memory their rank had; {} is assumed for these, which is the smallest amount \
             that another rank shows, or what they reserved if that is more (--limit sets it)",
            show_bytes(assumed)
        ));
    }
    let needs_limit = job.ranks.iter().any(|rank| rank.advice.with(&job.advice.settings).is_some_and(|tried| tried.needs_limit));
    if job.advice.serves_all {
        sentences.extend(remedies::also(needs_limit).map(str::to_owned));
        sentences.push(serves_all(job));
    } else {
        sentences.extend(each_alone(job).filter(|_| job.fit() == Fit::DoesNotFit));
        sentences.push(serves_some(job));
    }
    sentences
}

fn serves_all(job: &Job) -> String {
    let advice = &job.advice;
    let (setting, tightest) = (the(&advice.settings), &job.ranks[advice.tightest]);
    let standing = &advice.ranks[advice.tightest];
    let (number, all) = (job.ranks.len(), read(job));
    let all = if job.unread == 0 && number == 2 { "both ranks".to_owned() } else { format!("all {all}") };
    let does = match job.fit() {
        Fit::Fits => format!("{all} fit with {setting}"),
        Fit::GetsPast => {
            let past = job.advice.ranks.iter().filter(|standing| standing.outcome == Fit::GetsPast).count();
            let names = named(job, |fit| fit == Fit::GetsPast);
            let others = if past == number { "" } else { "; the others fit" };
            let likely = least_likely(job);
            match past {
                1 => format!("of {all}, {names} gets past its failure with {setting}, and its file ends there{likely}{others}"),
                _ if past == number => {
                    format!("{all} get past their failures with {setting}, and their files end there{likely}")
                }
                _ => {
                    format!("of {all}, {names} get past their failures with {setting}, and their files end there{likely}{others}")
                }
            }
        }
        Fit::Unknown if standing.available_bytes.is_some() => {
            let names = named(job, |fit| fit == Fit::Unknown);
            format!(
                "not known whether {all} fit with {setting}; each recorded request is served in the assumed memory, but {names} may \
                 have had less, or the part that needed the most is not in the file"
            )
        }
        Fit::Unknown | Fit::DoesNotFit if job.is_at_ease() && !advice.is_own => {
            format!("nothing failed, so no setting has to change; with {setting}, {all} need less memory")
        }
        Fit::Unknown | Fit::DoesNotFit => format!("every recorded request of {all} is served with {setting}"),
    };
    let room = match (standing.available_bytes, standing.margin_bytes()) {
        (Some(available), Some(..0)) => format!(
            "including the estimated rest of its run, rank {} would need {}, more than the {} available",
            tightest.number,
            show_bytes(standing.needs_bytes),
            show_bytes(available)
        ),
        (Some(available), Some(margin)) => format!(
            "rank {} is the tightest: it needs {} of {}, which leaves {}",
            tightest.number,
            show_bytes(standing.needs_bytes),
            show_bytes(available),
            show_bytes(margin.unsigned_abs())
        ),
        _ => format!("rank {} needs the most, {}", tightest.number, show_bytes(standing.needs_bytes)),
    };
    format!("{does}; {room}")
}

/// Says how likely the least likely of the ranks that died is to complete.
fn least_likely(job: &Job) -> String {
    let of = |rank: &Rank| Some((rank.number, rank.advice.with(&job.advice.settings)?.completes?));
    let least = job.ranks.iter().filter_map(of).min_by(|(_, one), (_, other)| one.probability().total_cmp(&other.probability()));
    least
        .map_or_else(String::new, |(number, runs)| format!("; on rank {number}, the least likely, it {}", remedies::likely(runs)))
}

/// If each rank has a setting that serves it, says that a launcher can set a different one for each.
fn each_alone(job: &Job) -> Option<String> {
    job.advice.hopeless.is_empty().then(|| {
        "every rank has a setting that serves it, but they need different ones: a launcher can set PYTORCH_CUDA_ALLOC_CONF for \
         each process"
            .to_owned()
    })
}

/// Says that no setting serves every rank, which ranks cannot be served, and how much memory would be enough.
fn serves_some(job: &Job) -> String {
    let advice = &job.advice;
    let left = named(job, |fit| fit == Fit::DoesNotFit);
    let (bytes, settings) = (show_bytes(advice.enough.0), the(&advice.enough.1));
    let is_estimated = job.ranks.iter().any(|rank| rank.advice.is_estimated);
    let enough = if is_estimated {
        format!("an estimated {bytes} for each gets past the failures with {settings}")
    } else {
        format!("{bytes} for each is enough with {settings}")
    };
    let number = job.ranks.len();
    let all = match (job.unread, number) {
        (0, 2) => "both ranks".to_owned(),
        _ => format!("all {}", read(job)),
    };
    let failing = advice.ranks.iter().filter(|standing| standing.outcome == Fit::DoesNotFit).count();
    let short = match failing {
        1 => format!("; with {}, which serve the most ranks, {left} fails", the(&advice.settings)),
        _ if failing < number => format!("; with {}, which serve the most ranks, {left} fail", the(&advice.settings)),
        _ => String::new(),
    };
    if left.is_empty() {
        let names = named(job, |fit| fit == Fit::Unknown);
        return format!("not known whether one setting serves {all}: it depends on how much memory {names} had; {enough}");
    }
    let hopeless: Vec<u64> = advice.hopeless.iter().map(|&rank| job.ranks[rank].number).collect();
    let because =
        if hopeless.is_empty() { String::new() } else { format!(": no setting that was tried serves {}", ranks(&hopeless)) };
    format!("no setting serves {all}{because}{short}; {enough}")
}

/// Counts the ranks: all, or those that could be read.
fn read(job: &Job) -> String {
    let read = job.ranks.len();
    match job.unread {
        0 => format!("{read} ranks"),
        unread => format!("{read} ranks that could be read (of {})", read + unread),
    }
}

/// Names the ranks whose outcome satisfies the condition.
fn named(job: &Job, is_such: impl Fn(Fit) -> bool) -> String {
    let such = job.ranks.iter().zip(&job.advice.ranks).filter(|(_, standing)| is_such(standing.outcome));
    ranks(&such.map(|(rank, _)| rank.number).collect::<Vec<_>>())
}

/// Names ranks by their numbers.
pub(super) fn ranks(numbers: &[u64]) -> String {
    let more = numbers.len().saturating_sub(NAMED);
    match numbers {
        [] => String::new(),
        [one] => format!("rank {one}"),
        _ if more == 0 => format!("ranks {}", list(numbers)),
        _ => format!("ranks {} and {more} more", list(&numbers[..NAMED])),
    }
}

/// Says which given options are not tried.
pub(super) fn notes_without_trace(advised: &Advised) -> Vec<String> {
    let named = advised.not_tried.join(" and ");
    let are = if advised.not_tried.len() == 1 { "is" } else { "are" };
    let note = || format!("{named} {are} not tried: without a trace, their requests are unknown");
    if advised.not_tried.is_empty() { Vec::new() } else { vec![note()] }
}
