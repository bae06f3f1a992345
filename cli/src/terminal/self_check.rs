//! How far a prediction can be trusted: whether a replay under the recorded run's own settings needs as much as that run, and how flushes
//! were read. All commands use the same words and keys.

use parkade_replay::{Extreme, Flush, FlushReason, Requests, SelfCheck};

use super::json_struct::{Word, all, sections, view};
use super::size;

view! {
    /// The recorded peak, and what a replay under the run's own settings comes to.
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
    /// How memory that was given back before a request was read.
    pub struct ReadFlush(flush: &Flush) {
        /// The entry of the request.
        entry: usize = flush.entry,
        /// What would have been reserved if nothing had been given back.
        wanted_bytes: u64 = flush.wanted_bytes,
        /// Whether it was read as a retry: the device had refused the request. Else it was read as a call of `empty_cache`.
        is_retry: bool = flush.reason.is_retry(),
        /// [Why](predictions.md#how-is-a-flush-read) it was read so: as a call `capture_follows`, `often_emptied`,
        /// `other_stack`, `no_retry`; as a retry `never_had_more`, `often_refused`, `others_failed`, `stack_of_request`,
        /// `no_call`.
        reason: Word<FlushReason> = Word::of(&flush.reason),
    }
}

view! {
    /// What comes of it if that was read the other way.
    pub struct OtherReading(otherwise: Extreme) {
        /// The peak of reserved memory.
        peak_reserved_bytes: i64 = otherwise.peak_reserved_bytes,
        /// Whether every request is served in the memory there is.
        fits: bool = otherwise.fits,
    }
}

/// The keys of the flushes of a recording.
pub fn flushes(requests: &Requests) -> Vec<ReadFlush> {
    all(&requests.flushes, ReadFlush::of)
}

/// Says by how much the self-check fails, in a line of at most 80 columns. `None` if it passes or nothing could be checked.
pub fn failed(check: Option<SelfCheck>) -> Option<String> {
    let check = check.filter(|check| !check.holds())?;
    let (own, recorded) = (size::show(check.own_settings_peak_bytes), size::show(check.recorded_peak_bytes));
    Some(format!("self-check fails: own settings need {own}, recorded {recorded} ({:+.1} %)", check.error_percent()))
}

/// Says how the doubtful flushes of a recording were read and why, with a sentence for each reason.
pub fn readings(requests: &Requests) -> Vec<String> {
    let reasons = [FlushReason::CaptureFollows, FlushReason::OftenEmptied, FlushReason::NeverHadMore];
    let sentence = |reason: FlushReason| {
        let mut entries = requests.flushes.iter().filter(|flush| flush.reason == reason).map(|flush| flush.entry);
        let (first, more) = (entries.next()?, entries.count());
        let and = if more > 0 { format!(" and {more} more") } else { String::new() };
        let read = match reason {
            FlushReason::CaptureFollows => "a call to empty_cache, because a capture follows",
            FlushReason::OftenEmptied => "a call to empty_cache, because the program often makes one",
            _ => "a retry for lack of memory, because the run never had that much",
        };
        Some(format!("cache released before entry {first}{and}: interpreted as {read}"))
    };
    reasons.into_iter().filter_map(sentence).collect()
}

/// Says what the other reading leads to.
pub fn other_reading(otherwise: Extreme, is_limited: bool) -> String {
    let fits = match (is_limited, otherwise.fits) {
        (false, _) => "",
        (true, true) => "; it fits",
        (true, false) => "; it does not fit",
    };
    format!("interpreted the other way, at most {} is reserved{fits}", size::show(otherwise.peak_reserved_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_check_is_one_line() {
        let check = |own, recorded| SelfCheck { own_settings_peak_bytes: own, recorded_peak_bytes: recorded };
        assert_eq!(failed(Some(check(580, 580))), None);
        assert_eq!(failed(None), None);
        let said = failed(Some(check(624 << 20, 580 << 20))).expect("it fails");
        assert_eq!(said, "self-check fails: own settings need 624.00 MiB, recorded 580.00 MiB (+7.6 %)");
        let longest = failed(Some(check((1024 << 20) - 1, (1 << 20) * 513))).expect("it fails");
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
                "cache released before entry 12: interpreted as a call to empty_cache, because a capture follows",
                "cache released before entry 4 and 1 more: interpreted as a retry for lack of memory, because the run never \
                 had that much",
            ]
        );
    }
}
