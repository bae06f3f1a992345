//! Of which device a sentence speaks, where a recording has several: every figure in it is that device's.

use parkade_analysis::advise::{Advice, AdvisedOption, DeviceOutcome, MemoryRange, Program};

/// Names a device before what is said of it; nothing if it is the only one.
pub(super) fn on(report: &Advice, device: u32) -> String {
    if report.programs.len() > 1 { format!("on device {device} ") } else { String::new() }
}

/// Names a device after what is said of it; nothing if it is the only one.
pub(super) fn on_it(report: &Advice, device: u32) -> String {
    if report.programs.len() > 1 { format!(" on device {device}") } else { String::new() }
}

/// The device on which an option has the least to spare, named with the reason why it is spoken of; nothing if it is the only one.
pub(super) fn on_tightest(report: &Advice, option: &AdvisedOption) -> String {
    let Some(tightest) = option.tightest().filter(|_| report.programs.len() > 1) else { return String::new() };
    let has_as_much = |device: &DeviceOutcome| device.available_bytes == tightest.available_bytes;
    let why = if option.devices.iter().all(has_as_much) { "needs the most" } else { "has the least to spare" };
    format!(" on device {}, which {why}", tightest.device)
}

/// The least memory of the device on which an option has the least to spare.
pub(super) fn smallest_on_tightest(option: &AdvisedOption) -> u64 {
    option.tightest().map_or(0, |device| option.smallest_capacity_bytes_of(device))
}

/// How an option fares on a device.
pub(super) fn outcome(option: &AdvisedOption, device: u32) -> Option<&DeviceOutcome> {
    option.devices.iter().find(|outcome| outcome.device == device)
}

/// How much memory a device has for the recorded run's own settings.
pub(super) fn available_bytes(report: &Advice, device: u32) -> Option<u64> {
    outcome(report.own(), device)?.available_bytes
}

/// Where the limit of a device lies, if only a range is known.
pub(super) fn range(report: &Advice, device: u32) -> Option<MemoryRange> {
    report.memories.iter().find(|memory| memory.device == device)?.range
}

/// The program of a device.
pub(super) fn program(report: &Advice, device: u32) -> Option<&Program> {
    report.programs.iter().find(|program| program.device == device)
}

/// Of the devices that are to blame if nothing fits, the program that holds the most of what its device has, and how much that has.
pub(super) fn fullest(report: &Advice) -> Option<(&Program, u64)> {
    let available = |program: &Program| available_bytes(report, program.device).unwrap_or(0);
    let held = report.programs.iter().filter(|program| is_to_blame(report, program.device));
    let held = held.map(|program| (program, available(program)));
    held.max_by_key(|(program, available)| i128::from(program.live.bytes) - i128::from(*available))
}

/// Whether no option serves a device; where each device is served by some option, whether the run's own settings do not. If they do, all are
/// looked at.
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
