//! How answers name settings and devices. If a recording has several devices, a sentence names its own, so that every figure in it
//! belongs to one device.

use parkade_analysis::advise::{Advice, AdvisedOption, DeviceOutcome, MemoryRange, Program};

use crate::terminal::output;

/// Names a device at the beginning of a clause; empty if it is the only one.
pub(super) fn on(report: &Advice, device: u32) -> String {
    if report.programs.len() > 1 { format!("on device {device} ") } else { String::new() }
}

/// Names a device at the end of a clause; empty if it is the only one.
pub(super) fn on_it(report: &Advice, device: u32) -> String {
    if report.programs.len() > 1 { format!(" on device {device}") } else { String::new() }
}

/// Names the device on which an option has the least to spare, with that reason; empty if it is the only one.
pub(super) fn on_tightest(report: &Advice, option: &AdvisedOption) -> String {
    let Some(tightest) = option.tightest().filter(|_| report.programs.len() > 1) else { return String::new() };
    let has_as_much = |device: &DeviceOutcome| device.available_bytes == tightest.available_bytes;
    let why = if option.devices.iter().all(has_as_much) { "needs the most" } else { "has the least to spare" };
    format!(" on device {}, which {why}", tightest.device)
}

/// Returns the smallest memory of the device on which an option has the least to spare.
pub(super) fn smallest_on_tightest(option: &AdvisedOption) -> u64 {
    option.tightest().map_or(0, |device| option.smallest_capacity_bytes_of(device))
}

/// Returns the outcome of an option on a device.
pub(super) fn outcome(option: &AdvisedOption, device: u32) -> Option<&DeviceOutcome> {
    option.devices.iter().find(|outcome| outcome.device == device)
}

/// Returns the memory of a device with the recorded run's own settings.
pub(super) fn available_bytes(report: &Advice, device: u32) -> Option<u64> {
    outcome(report.own(), device)?.available_bytes
}

/// Returns the range of a device's limit, if only a range is known.
pub(super) fn range(report: &Advice, device: u32) -> Option<MemoryRange> {
    report.memories.iter().find(|memory| memory.device == device)?.range
}

/// Returns the program of a device.
pub(super) fn program(report: &Advice, device: u32) -> Option<&Program> {
    report.programs.iter().find(|program| program.device == device)
}

/// Among the devices that prevent a fit, returns the program with the largest excess over the memory of its device, and that memory.
pub(super) fn fullest(report: &Advice) -> Option<(&Program, u64)> {
    let available = |program: &Program| available_bytes(report, program.device).unwrap_or(0);
    let held = report.programs.iter().filter(|program| is_to_blame(report, program.device));
    let held = held.map(|program| (program, available(program)));
    held.max_by_key(|(program, available)| i128::from(program.live.bytes) - i128::from(*available))
}

/// Returns whether a device prevents a fit: no option serves it; or if every device is served by some option, the run's own settings do not
/// serve it. If these serve all devices, the function returns true for each.
fn is_to_blame(report: &Advice, device: u32) -> bool {
    let gets_past = |option: &AdvisedOption, device: u32| outcome(option, device).is_none_or(|outcome| outcome.gets_past);
    let is_hopeless = |device: u32| report.options.iter().all(|option| !gets_past(option, device));
    let fails = |device: u32| !gets_past(report.own(), device);
    let any = |is_such: &dyn Fn(u32) -> bool| report.programs.iter().any(|program| is_such(program.device));
    if any(&is_hopeless) {
        is_hopeless(device)
    } else if any(&fails) {
        fails(device)
    } else {
        true
    }
}

/// Returns the name of a settings string. A long one is cut after a setting.
pub(super) fn shown(settings: &str) -> String {
    const LONGEST: usize = 100;
    let text = in_full(settings);
    if text.chars().count() <= LONGEST {
        return text;
    }
    let start: String = text.chars().take(LONGEST).collect();
    let start = start.rsplit_once(',').map_or(start.as_str(), |(start, _)| start);
    format!("{start},...")
}

/// Returns the full name of a settings string.
pub(super) fn in_full(settings: &str) -> String {
    if settings.is_empty() { "default settings".to_owned() } else { output::one_line(settings) }
}

/// Returns the name of a settings string for use in a sentence.
pub(super) fn the(settings: &str) -> String {
    if settings.is_empty() { "the default settings".to_owned() } else { shown(settings) }
}
