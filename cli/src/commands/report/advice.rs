//! Advice on a page: lines of text, and the settings that were tried.

use anyhow::Result;
use parkade::profile::Profile;
use parkade::settings::Settings;
use parkade_analysis::advise::{self, AdviseOptions, MemoryBudget, Recommendation, Verdict};
use parkade_recording::DeviceRecording;
use parkade_replay::VerifyOptions;

use super::Args;
use crate::commands::advise::{self as advise_commands, words};

/// The name of empty settings.
pub(super) const DEFAULT: &str = "default";

/// One setting that was tried.
#[derive(Clone, Debug)]
pub(super) struct Tried {
    /// The settings as in `PYTORCH_CUDA_ALLOC_CONF`, or [`DEFAULT`].
    pub(super) label: String,
    /// Whether these are the recorded run's own.
    pub(super) is_own: bool,
    /// Whether the page recommends them.
    pub(super) is_recommended: bool,
    /// The peak of reserved memory.
    pub(super) peak_reserved_bytes: i64,
    /// The entry whose request failed first.
    pub(super) fails_at_entry: Option<usize>,
    /// Retries after releasing all cached memory.
    pub(super) retries: i64,
    /// Driver calls.
    pub(super) driver_calls: u64,
    /// What they take on the measured device, in nanoseconds.
    pub(super) driver_ns: u64,
}

impl Tried {
    /// Whether the requests fit in so many bytes; unknown if nobody knows how many there are.
    pub(super) fn fits(&self, limit_bytes: Option<u64>) -> Option<bool> {
        if self.fails_at_entry.is_some() { Some(false) } else { limit_bytes.map(|_| true) }
    }
}

/// The name of settings.
pub(super) fn name(settings: &Settings) -> String {
    if settings.text.is_empty() { DEFAULT.to_owned() } else { settings.text.clone() }
}

/// What to do, if anything is known to help.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Advice {
    /// The recommended settings.
    pub(super) recommended: Option<Settings>,
    /// The line to paste, if there is one.
    pub(super) command: Option<String>,
    /// Why, and what it costs; one line each.
    pub(super) lines: Vec<String>,
}

/// What `parkade advise` says of these devices; `None` if none has a trace.
///
/// # Errors
/// As for verifying the recording.
pub(super) fn of_devices(
    devices: &[&DeviceRecording],
    own: &VerifyOptions,
    profile: &'static Profile,
    given: Vec<Settings>,
    args: &Args,
) -> Result<Option<Advice>> {
    let traced: Vec<&DeviceRecording> = devices.iter().copied().filter(|device| !device.trace.is_empty()).collect();
    if traced.is_empty() {
        return Ok(None);
    }
    let memory = MemoryBudget { capacity_bytes: args.capacity.or(args.limit), limit_bytes: None };
    let options = AdviseOptions { own: own.clone(), profile, memory, given, only_given: false };
    let found = advise_commands::search(&traced, &options, args.json.json)?;
    Ok(Some(of_report(&found)))
}

fn of_report(report: &advise::Advice) -> Advice {
    let mut lines = Vec::new();
    if report.verdict != Verdict::Fits {
        lines.push(format!("{}: {}", report.verdict.name(), words::verdict(report)));
    }
    let recommended = report.recommended();
    match recommended {
        Some(option) if option.is_own => lines.push("Keep the settings as they are.".to_owned()),
        Some(_) => {}
        None => lines.push(words::no_setting(report)),
    }
    if let Some(option) = recommended {
        lines.push(words::why(report));
        lines.push(format!("costs: {}", words::costs(report)));
        lines.extend(words::also(option).map(str::to_owned));
        lines.extend(option.warnings().map(|caution| format!("warning: {} {}", caution.what, caution.instead)));
        if option.is_close() {
            lines.push(words::CLOSE.to_owned());
        }
    }
    lines.push(format!("{} settings tried; parkade advise shows them all", report.options.len()));
    let line = |place: &Recommendation| place.line.clone();
    Advice {
        recommended: recommended.map(|option| option.settings.clone()),
        command: report.recommendation.as_ref().filter(|_| !recommended.is_some_and(|option| option.is_own)).map(line),
        lines,
    }
}
