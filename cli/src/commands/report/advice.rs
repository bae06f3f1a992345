//! Advice on a page: lines of text, and the settings that were tried.

use anyhow::Result;
use parkade::profile::Profile;
use parkade::settings::Settings;
use parkade_analysis::advise::{self, AdviseOptions, MemoryBudget, Outcome, Recommendation, Verdict};
use parkade_recording::DeviceRecording;
use parkade_replay::VerifyOptions;

use super::Args;
use super::gather::Device;
use super::markup::grouped;
use super::tries::Tried;
use crate::commands::advise::{self as advise_commands, words};
use crate::terminal::output;

/// The name of empty settings.
pub(super) const DEFAULT: &str = "default";

/// The name of settings.
pub(super) fn name(settings: &Settings) -> String {
    if settings.text.is_empty() { DEFAULT.to_owned() } else { settings.text.clone() }
}

/// Whether settings are the same, however they are written.
pub(super) fn is_same(one: &Settings, other: &Settings) -> bool {
    Settings { text: String::new(), ..one.clone() } == Settings { text: String::new(), ..other.clone() }
}

/// What to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Advice {
    /// The line to paste, if there is one.
    pub(super) command: Option<String>,
    /// Why, and what to know about it; one line each.
    pub(super) lines: Vec<String>,
}

/// What `parkade advise` finds for these devices; `None` if none has a trace. `is_full`: it searches, otherwise it judges `given` only.
///
/// # Errors
/// As for verifying the recording.
pub(super) fn search(
    devices: &[&DeviceRecording],
    own: &VerifyOptions,
    profile: &'static Profile,
    (given, is_full): (Vec<Settings>, bool),
    args: &Args,
) -> Result<Option<advise::Advice>> {
    let traced: Vec<&DeviceRecording> = devices.iter().copied().filter(|device| !device.trace.is_empty()).collect();
    if traced.is_empty() {
        return Ok(None);
    }
    let memory = MemoryBudget { capacity_bytes: args.capacity.or(args.limit), limit_bytes: None };
    let options = AdviseOptions { own: own.clone(), profile, memory, given, only_given: !is_full };
    Ok(Some(advise_commands::search(&traced, &options, args.json.json)?))
}

/// Where settings are among those that `advise` tried.
pub(super) fn place(found: &advise::Advice, settings: &Settings) -> Option<usize> {
    found.options.iter().position(|option| is_same(&option.settings, settings))
}

/// The bytes that could be reserved under settings that `advise` tried.
pub(super) fn available_bytes(found: &advise::Advice, settings: &Settings) -> Option<u64> {
    found.options[place(found, settings)?].available_bytes
}

/// Whether the program of a device fits with settings, as `advise` judges it.
pub(super) fn outcome_with(found: &advise::Advice, settings: &Settings, device: u32) -> Option<Outcome> {
    found.outcome_on_device(place(found, settings)?, device)
}

/// The words of the box on a page. What the settings cost is said of the requests that the page's table has.
pub(super) fn of_device(report: &advise::Advice, device: &Device) -> Advice {
    let costs = costs(device);
    let mut advice = of_report(report);
    let why = advice.lines.iter().position(|line| *line == words::why(report)).map_or(advice.lines.len(), |place| place + 1);
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
        (Some(_), _) => ", with what is estimated of the rest",
        (None, Some(_)) => ", for what is in the file",
        (None, None) => "",
    };
    Some(format!("costs: {} driver calls, {}{beside}{emptied}{what}", grouped(recommended.run().driver_calls), time(recommended)))
}

fn of_report(report: &advise::Advice) -> Advice {
    let mut lines = Vec::new();
    if report.verdict != Verdict::Fits {
        lines.push(format!("{}: {}", report.verdict.name(), words::verdict(report)));
    }
    let recommended = report.recommended();
    match recommended {
        Some(option) if option.is_own => lines.push(words::KEEP.to_owned()),
        Some(_) => {}
        None => lines.push(words::no_setting(report)),
    }
    if let Some(option) = recommended {
        lines.push(words::why(report));
        lines.extend(words::also(option.needs_limit()).map(str::to_owned));
        lines.extend(option.warnings().map(|caution| format!("warning: {} {}", caution.what, caution.instead)));
        lines.extend(words::close(option));
    }
    lines.push(format!("{} settings tried; parkade advise shows them all", report.options.len()));
    let line = |place: &Recommendation| place.line.clone();
    Advice {
        command: report.recommendation.as_ref().filter(|_| !recommended.is_some_and(|option| option.is_own)).map(line),
        lines,
    }
}
