//! Sentences about the memory that a run is judged by: given, shown by an error, or assumed.

use parkade_analysis::advise::{Advice, DeviceMemory, DeviceOutcome, MemoryBudget};

use crate::terminal::size::show_bytes;

/// What tells the limit.
pub const LIMIT_SAYS: &str = "; --limit says how much there was";

/// Between which sizes the limit was.
pub fn range(report: &Advice) -> String {
    let ranges = report.memories.iter().filter_map(|memory| memory.range);
    match ranges.min_by_key(|range| range.below_bytes) {
        Some(range) if range.below_bytes < u64::MAX => {
            format!("the limit was between {} and {}", show_bytes(range.least_bytes), show_bytes(range.below_bytes))
        }
        Some(range) => format!("the limit was at least {}", show_bytes(range.least_bytes)),
        None => "the limit is not known".to_owned(),
    }
}

/// Where the memory comes from.
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
        let (least, below) = (show_bytes(hint.least_bytes), show_bytes(hint.below_bytes));
        let had = match memory.range {
            _ if hint.least_bytes == hint.below_bytes => format!("had {least} for the allocator"),
            None => format!("had a limit between {least} and {below}; {judged_by} is used"),
            Some(_) => format!("had a limit between {least} and {below}; {judged_by} is assumed (--limit sets it)"),
        };
        format!("no --capacity: the out-of-memory error at entry {} shows that device {device} {had}", hint.entry)
    };
    report.memories.iter().zip(&report.own().devices).map(about).collect()
}

/// That nothing shows how much memory a device had, and that so much is assumed.
pub fn shows_no_limit(memory: &DeviceMemory, bytes: u64) -> String {
    let why = if Some(bytes) == memory.range.map(|range| range.least_bytes) { ", which it reserved," } else { "" };
    format!("device {} shows no limit; {}{why} is assumed", memory.device, show_bytes(bytes))
}

/// That the recorded run had less memory than was given.
fn contradicted(report: &Advice) -> Option<String> {
    let (contradiction, available) = (report.contradiction?, report.own().available_bytes?);
    Some(format!(
        "the run had less than {}: a request was refused at entry {} that would have brought reserved memory to {}. Something else may have \
         held the rest; for the memory that the run had, leave out --limit and --capacity",
        show_bytes(available),
        contradiction.entry,
        show_bytes(contradiction.refused_bytes)
    ))
}
