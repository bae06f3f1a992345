//! What several commands say about a run: how it ended, what is known about the rest after an out-of-memory error, the memory by which it
//! is judged, and how far a prediction for it can be trusted.
//!
//! A prediction can be trusted if a replay under the recorded run's own settings needs as much as that run; the
//! interpretation of flushes is part of that. All commands use the same words and keys.

use parkade_analysis::advise::{Advice, DeviceMemory, DeviceOutcome, MemoryBudget, MemoryRange};
use parkade_analysis::continuation::{Continuation, Doubt};
use parkade_analysis::ending::{AfterError, Ending};
use parkade_analysis::holders::{Kind, KindUse};
use parkade_replay::{Extreme, Flush, FlushReason, Requests, SelfCheck};

use super::json_struct::{Word, all, sections, view};
use super::output::count;
use super::size::{self, show_apart, show_bytes};

/// States how the run ended, with the evidence. `None` if no request ran out of memory.
pub fn ending(ending: &Ending) -> Option<String> {
    match ending {
        Ending::NoError => None,
        Ending::Died(error) => {
            Some(format!("the run died of the out-of-memory error at entry {}: {}", error.entry, afterwards(error)))
        }
        Ending::Survived(error) => {
            Some(format!("the run survived the out-of-memory error at entry {}: {}", error.entry, afterwards(error)))
        }
    }
}

/// States that a run continues after this many errors. `None` if it did not survive any.
pub fn goes_on(ending: &Ending, errors: u64) -> Option<String> {
    let met = count(errors, "out-of-memory error");
    matches!(ending, Ending::Survived(_))
        .then(|| format!("the program survives such errors: it continued after {met} in the recording"))
}

/// States that the run had reserved more before the first entry of its recording than the recorded requests need.
pub fn had_before(reserved_bytes: u64) -> String {
    had_before_on(reserved_bytes, "")
}

/// States the same with the device, if there are several.
pub fn had_before_on(reserved_bytes: u64, on_device: &str) -> String {
    format!(", although the run had reserved {}{on_device} before its first entry", show_bytes(reserved_bytes))
}

fn afterwards(error: &AfterError) -> String {
    let AfterError { served, served_bytes, telling_bytes, .. } = *error;
    if let Some(entry) = error.asked_again_at {
        return format!("the failed request was repeated and served at entry {entry}");
    }
    if served == 0 {
        return "nothing was allocated after it".to_owned();
    }
    let allocated = format!("{} after it, {} in all", count(served, "allocation"), show_bytes(served_bytes));
    if error.went_on() {
        format!("{allocated}, so it continued")
    } else if served_bytes >= error.goes_on_bytes {
        let repeated = show_bytes(served_bytes - telling_bytes);
        format!(
            "{allocated}, but {repeated} of that was allocated repeatedly in code that had not run before, as in error handling"
        )
    } else {
        format!("only {allocated}")
    }
}

/// States how the rest of a run that died is estimated.
pub fn rest(continuation: Option<&Continuation>) -> String {
    match continuation {
        None => "what it would have done next is not in the file".to_owned(),
        Some(rest) => format!(
            "what it would have done next is not in the file; it is estimated from the {} before: the rest of the step that failed, \
             then {} more",
            count(rest.steps, "step"),
            rest.more_steps
        ),
    }
}

/// Explains why the estimate, or the lack of one, does not show whether the program fits.
pub fn doubt(doubt: Doubt) -> String {
    match doubt {
        Doubt::NoSteps => "the program had not reached this point before, so nothing is known about what follows".to_owned(),
        Doubt::FewSteps(steps) => {
            format!("only {} came before the one that failed, too few to know what later ones need", count(steps, "step"))
        }
        Doubt::NotSteady => "its steps end with more memory in use than they began with, so later ones may need more".to_owned(),
        Doubt::Growing => "each of its steps needed more than the one before, so later ones will need more still".to_owned(),
        Doubt::Margin => "its largest step is unlike the others, and a slightly larger one would not fit".to_owned(),
    }
}

/// The option that sets the limit. Ends a sentence.
pub const LIMIT_SAYS: &str = "; --limit sets it";

/// States the range in which the limit of a device was.
pub fn range(range: Option<MemoryRange>) -> String {
    match range {
        Some(range) if range.below_bytes < u64::MAX => {
            let [least, below] = show_apart(range.least_bytes, range.below_bytes);
            format!("the limit was between {least} and {below}")
        }
        Some(range) => format!("the limit was at least {}", show_bytes(range.least_bytes)),
        None => "the limit is not known".to_owned(),
    }
}

/// States how the available memory is known.
pub fn memory(report: &Advice) -> Vec<String> {
    if report.given != MemoryBudget::default() {
        return contradicted(report).into_iter().collect();
    }
    if report.own().available_bytes.is_none() {
        return vec!["no --capacity: every setting is shown with the memory it needs".to_owned()];
    }
    let about = |(memory, outcome): (&DeviceMemory, &DeviceOutcome)| {
        let (device, judged_by) = (memory.device, show_bytes(outcome.available_bytes.unwrap_or(0)));
        let Some(hint) = memory.shown else { return shows_no_limit(memory, outcome.available_bytes.unwrap_or(0)) };
        let [least, below] = show_apart(hint.least_bytes, hint.below_bytes);
        let had = match memory.range {
            _ if hint.least_bytes == hint.below_bytes => format!("had {least} for the allocator"),
            None => format!("had a limit between {least} and {below}; {judged_by} is used"),
            Some(_) => format!("had a limit between {least} and {below}; {judged_by} is assumed (--limit sets it)"),
        };
        format!("no --capacity: the out-of-memory error at entry {} shows that device {device} {had}", hint.entry)
    };
    report.memories.iter().zip(&report.own().devices).map(about).collect()
}

/// States that nothing shows how much memory a device had, and how much is assumed.
pub fn shows_no_limit(memory: &DeviceMemory, bytes: u64) -> String {
    let why = if Some(bytes) == memory.range.map(|range| range.least_bytes) { ", which it reserved," } else { "" };
    format!("device {} shows no limit; {}{why} is assumed", memory.device, show_bytes(bytes))
}

/// States that the recorded run had less memory than the given amount.
fn contradicted(report: &Advice) -> Option<String> {
    let contradiction = report.contradiction?;
    let of_device = report.own().devices.iter().find(|device| device.device == contradiction.device)?;
    let (device, available) = (of_device.device, of_device.available_bytes?);
    let on = if report.programs.len() > 1 { format!("on device {device} ") } else { String::new() };
    Some(format!(
        "{on}the run had less than {}: at entry {}, a request was refused that would have brought reserved memory to {}. \
         Something else may have held the rest; to use the memory that the run had, leave out --limit and --capacity",
        show_bytes(available),
        contradiction.entry,
        show_bytes(contradiction.refused_bytes)
    ))
}

view! {
    /// The recorded peak, and that of a replay under the run's own settings.
    pub struct Checked(check: SelfCheck) {
        /// The predicted peak of reserved memory.
        own_settings_peak_bytes: i64 = check.own_settings_peak_bytes,
        /// The recorded peak of reserved memory.
        recorded_peak_bytes: i64 = check.recorded_peak_bytes,
        /// Whether the two are equal.
        holds: bool = check.holds(),
    }
}

sections! {
    "self_check": Checked;
}

view! {
    /// The interpretation of a release of memory right before a request.
    pub struct ReadFlush(flush: &Flush) {
        /// The entry of the request.
        entry: usize = flush.entry,
        /// The bytes that would have been reserved if nothing had been released.
        wanted_bytes: u64 = flush.wanted_bytes,
        /// Whether it was interpreted as a retry: the device had refused the request. If not, it was interpreted as a call to
        /// `empty_cache`.
        is_retry: bool = flush.reason.is_retry(),
        /// [Why](predictions.md#how-is-a-flush-read) it was interpreted this way: as a call `capture_follows`, `often_emptied`,
        /// `other_stack`, `no_retry`; as a retry `never_had_more`, `often_refused`, `others_failed`, `stack_of_request`,
        /// `no_call`.
        reason: Word<FlushReason> = Word::of(&flush.reason),
    }
}

view! {
    /// The result if that is interpreted the other way.
    pub struct OtherReading(otherwise: Extreme) {
        /// The peak of reserved memory.
        peak_reserved_bytes: i64 = otherwise.peak_reserved_bytes,
        /// Whether every request is served in the available memory.
        fits: bool = otherwise.fits,
    }
}

/// The keys of the flushes of a recording.
pub fn flushes(requests: &Requests) -> Vec<ReadFlush> {
    all(&requests.flushes, ReadFlush::of)
}

/// States by how much the self-check fails, in a line of at most 80 columns. `None` if it passes or nothing could be
/// checked.
pub fn failed_check(check: Option<SelfCheck>) -> Option<String> {
    let check = check.filter(|check| !check.holds())?;
    let (own, recorded) = (size::show(check.own_settings_peak_bytes), size::show(check.recorded_peak_bytes));
    Some(format!("the self-check fails: replayed {own}, recorded {recorded} ({:+.1} %)", check.error_percent()))
}

/// States how the doubtful flushes of a recording were read and why, with a sentence for each reason.
pub fn readings(requests: &Requests) -> Vec<String> {
    let reasons = [FlushReason::CaptureFollows, FlushReason::OftenEmptied, FlushReason::NeverHadMore];
    let sentence = |reason: FlushReason| {
        let mut entries = requests.flushes.iter().filter(|flush| flush.reason == reason).map(|flush| flush.entry);
        let (first, more) = (entries.next()?, entries.count());
        let and = if more > 0 { format!(" and {more} more") } else { String::new() };
        let read = match reason {
            FlushReason::CaptureFollows => "a call to empty_cache, because a capture follows",
            FlushReason::OftenEmptied => "a call to empty_cache, because the program often calls it",
            _ => "a retry after a failed request, because the run never had that much memory",
        };
        Some(format!("the cache was released before entry {first}{and}; this is interpreted as {read}"))
    };
    reasons.into_iter().filter_map(sentence).collect()
}

/// States the result of the other reading.
pub fn other_reading(otherwise: Extreme, is_limited: bool) -> String {
    let fits = match (is_limited, otherwise.fits) {
        (false, _) => "",
        (true, true) => "; it fits",
        (true, false) => "; it does not fit",
    };
    format!("with the other interpretation, at most {} is reserved{fits}", size::show(otherwise.peak_reserved_bytes))
}

/// What reduces the memory that private pools keep.
pub const FREE_POOLS: &str = "free the CUDA graphs and MemPools that you no longer need, then call torch.cuda.empty_cache()";

/// The verdict on a run that no setting cures, in the same order in every command: the cause, that no setting helps, and what
/// reduces memory most.
pub fn no_cure(cause: &str, reduces: Option<&str>) -> String {
    let reduces = reduces.map_or_else(String::new, |reduces| format!("; {reduces}"));
    format!("{cause}; no setting helps{reduces}")
}

/// Says how much the blocks of a kind hold, of all live bytes.
pub fn holder(used: &KindUse, live_bytes: u64) -> String {
    let percent = used.held.bytes as f64 / live_bytes.max(1) as f64 * 100.0;
    format!("{} hold {} ({percent:.0} %)", plural(used.kind), show_bytes(used.held.bytes))
}

/// Names the blocks of a kind, as the subject of a sentence.
pub const fn plural(kind: Kind) -> &'static str {
    match kind {
        Kind::Parameters => "parameters",
        Kind::Gradients => "gradients",
        Kind::OptimizerStates => "optimizer states",
        Kind::Activations => "activations",
        Kind::Inputs => "inputs",
        Kind::Temporaries => "temporaries",
        Kind::Workspaces => "workspaces",
        Kind::Caches => "caches",
        Kind::Unknown => "blocks of unknown kind",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_check_is_one_line() {
        let check = |own, recorded| SelfCheck { own_settings_peak_bytes: own, recorded_peak_bytes: recorded };
        assert_eq!(failed_check(Some(check(580, 580))), None);
        assert_eq!(failed_check(None), None);
        let said = failed_check(Some(check(624 << 20, 580 << 20))).expect("it fails");
        assert_eq!(said, "the self-check fails: replayed 624.00 MiB, recorded 580.00 MiB (+7.6 %)");
        let longest = failed_check(Some(check((1024 << 20) - 1, (1 << 20) * 513))).expect("it fails");
        assert!(longest.chars().count() <= 80, "{longest}");
    }

    #[test]
    fn flushes_with_one_reason_are_one_sentence() {
        let flush = |entry, reason| Flush { entry, wanted_bytes: 1, reason };
        let flushes = vec![
            flush(4, FlushReason::NeverHadMore),
            flush(9, FlushReason::NoCall),
            flush(12, FlushReason::CaptureFollows),
            flush(20, FlushReason::NeverHadMore),
        ];
        let said = readings(&Requests { flushes, ..Requests::default() });
        assert_eq!(
            said,
            [
                "the cache was released before entry 12; this is interpreted as a call to empty_cache, because a capture follows",
                "the cache was released before entry 4 and 1 more; this is interpreted as a retry after a failed request, \
                 because the run never had that much memory",
            ]
        );
    }
}
