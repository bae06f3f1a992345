//! Advice on a page: lines of text, and the settings that were tried.

use parkade::profile::Profile;
use parkade::settings::Settings;
use parkade_analysis::advise::{self, AdviseOptions, MemoryBudget, Recommendation, Verdict};
use parkade_recording::DeviceRecording;
use parkade_replay::{VerifyError, VerifyOptions};

use crate::commands::advise::words;

/// The name of empty settings.
pub(super) const DEFAULT: &str = "default";

/// One setting that was tried.
#[derive(Clone, Debug)]
pub(super) struct Tried {
    /// The settings as in `PYTORCH_CUDA_ALLOC_CONF`, or [`DEFAULT`].
    pub(super) label: String,
    /// Whether these are the recorded run's own.
    pub(super) is_own: bool,
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
    /// Whether the requests fit; unknown without a capacity.
    pub(super) fn fits(&self, capacity_bytes: Option<u64>) -> Option<bool> {
        if self.fails_at_entry.is_some() { Some(false) } else { capacity_bytes.map(|_| true) }
    }
}

/// What to do, if anything is known to help.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Advice {
    /// The line to paste, if there is one.
    pub(super) command: Option<String>,
    /// Why, and what it costs; one line each.
    pub(super) lines: Vec<String>,
}

/// For longer traces only the settings of the page are tried: a search takes about half a minute for a million entries.
const SEARCHED_ENTRIES: usize = 200_000;

/// What `parkade advise` says of this device.
///
/// # Errors
/// As for verifying the recording.
pub(super) fn of_device(
    device: &DeviceRecording,
    own: &VerifyOptions,
    profile: &'static Profile,
    given: Vec<Settings>,
    memory: MemoryBudget,
) -> Result<Advice, VerifyError> {
    let is_long = device.trace.len() > SEARCHED_ENTRIES;
    let options = AdviseOptions { own: own.clone(), profile, memory, given, only_given: is_long };
    let report = advise::advise(&[device], &options, &|_| ()).map_err(|(_, error)| error)?;
    Ok(of_report(&report, is_long))
}

fn of_report(report: &advise::Advice, is_long: bool) -> Advice {
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
    let more = if is_long { "parkade advise searches more" } else { "parkade advise shows them all" };
    lines.push(format!("{} settings tried; {more}", report.options.len()));
    let line = |place: &Recommendation| place.line.clone();
    Advice {
        command: report.recommendation.as_ref().filter(|_| !recommended.is_some_and(|option| option.is_own)).map(line),
        lines,
    }
}
