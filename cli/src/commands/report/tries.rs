//! The settings that a report tries, and how the run fares under them: what is in the file, and if it died, with what is estimated of its
//! rest, as `parkade advise` tries them.

use anyhow::Result;
use parkade::profile::Profile;
use parkade::settings::Settings;
use parkade_analysis::advise::{Advice as Found, Outcome, Program, fit_as_recorded};
use parkade_analysis::timeline::{Curve, Span, WhatIf, WhatIfRun, in_use, what_if};
use parkade_recording::DeviceRecording;
use parkade_replay::{Prediction, ReplaySettings, Requests, VerifyOptions, learned_addresses};
use rayon::prelude::*;

use super::{Args, advice};

/// Buckets of the curves of settings that were tried.
const BUCKETS: usize = 1024;
/// The same where a part of them is estimated.
const BUCKETS_WITH_REST: usize = 2048;
/// Settings that are tried beside the recorded run's own.
const TRIED: [&str; 5] = [
    "",
    "expandable_segments:True",
    "max_split_size_mb:128,garbage_collection_threshold:0.7",
    "garbage_collection_threshold:0.8",
    "roundup_power2_divisions:4",
];

/// One setting that was tried.
#[derive(Clone, Debug)]
pub(super) struct Tried {
    /// The settings as in `PYTORCH_CUDA_ALLOC_CONF`, or [`DEFAULT`](super::advice::DEFAULT).
    pub(super) label: String,
    /// Whether these are the recorded run's own.
    pub(super) is_own: bool,
    /// Whether the page recommends them.
    pub(super) is_recommended: bool,
    /// Whether the program fits: what is in the file, and if the run died, what is estimated of its rest.
    pub(super) outcome: Outcome,
    /// What is in the file.
    pub(super) in_file: Fared,
    /// What is in the file up to the error of which the run died, and the rest as it is estimated; with its reserved bytes over the
    /// entries of [`Rest::span`].
    pub(super) with_rest: Option<(Fared, Curve)>,
}

/// How a run fared.
#[derive(Clone, Debug)]
pub(super) struct Fared {
    /// The peak of reserved memory.
    pub(super) peak_reserved_bytes: i64,
    /// The entry whose request failed first; with the rest, the moment before it.
    pub(super) fails_at_entry: Option<usize>,
    /// Retries after releasing all cached memory.
    pub(super) retries: i64,
    /// Driver calls.
    pub(super) driver_calls: u64,
    /// What they take on the measured device, in nanoseconds.
    pub(super) driver_ns: u64,
}

/// What is estimated of the rest of a run that died.
pub(super) struct Rest {
    /// What curves with the rest are drawn over.
    pub(super) span: Span,
    /// The entry of which it died.
    pub(super) died_at: usize,
    /// The bytes in use.
    pub(super) in_use: Curve,
}

impl Tried {
    /// Whether the requests in the file fit in so many bytes; unknown if nobody knows how many there are.
    pub(super) fn fits(&self, limit_bytes: Option<u64>) -> Option<bool> {
        if self.in_file.fails_at_entry.is_some() { Some(false) } else { limit_bytes.map(|_| true) }
    }

    /// Whether its program fits although it reserves more than so many bytes.
    pub(super) fn reaches_beyond(&self, limit_bytes: Option<u64>) -> bool {
        let reserved = u64::try_from(self.run().peak_reserved_bytes).unwrap_or(0);
        self.outcome == Outcome::Fits && limit_bytes.is_some_and(|limit| reserved > limit)
    }

    /// The run that tables show, which is the one that `parkade advise` shows.
    pub(super) fn run(&self) -> &Fared {
        self.with_rest.as_ref().map_or(&self.in_file, |(fared, _)| fared)
    }
}

impl Fared {
    fn of(prediction: &Prediction) -> Fared {
        Fared {
            peak_reserved_bytes: prediction.peak_reserved_bytes(),
            fails_at_entry: prediction.first_failure,
            retries: prediction.stats.num_alloc_retries,
            driver_calls: prediction.driver_calls,
            driver_ns: prediction.driver_ns,
        }
    }
}

/// The settings that the user asked for.
pub(super) fn given_settings(args: &Args, profile: &'static Profile) -> Result<Vec<Settings>> {
    let given = args.settings.iter().map(|text| Ok(ReplaySettings::given_as(profile, text)?.settings));
    given.collect()
}

/// Settings to try.
pub(super) struct Attempt {
    pub(super) settings: Settings,
    is_own: bool,
    is_recommended: bool,
}

/// The settings to try, each once: the recorded run's own, the recommended ones, those that are always tried, those given.
pub(super) fn settings(
    profile: &'static Profile,
    own: &ReplaySettings,
    recommended: Option<Settings>,
    given: Vec<Settings>,
) -> Result<Vec<Attempt>> {
    let always = TRIED.into_iter().map(|text| Ok(ReplaySettings::given_as(profile, text)?.settings));
    let always = always.collect::<Result<Vec<Settings>>>()?;
    let is_best = |settings: &Settings| recommended.as_ref().is_some_and(|best| advice::is_same(best, settings));
    let mut tried: Vec<Attempt> = Vec::new();
    for settings in [own.settings.clone()].into_iter().chain(recommended.clone()).chain(always).chain(given) {
        if !tried.iter().any(|other| advice::is_same(&other.settings, &settings)) {
            tried.push(Attempt { is_own: tried.is_empty(), is_recommended: is_best(&settings), settings });
        }
    }
    Ok(tried)
}

/// What to try on each device, and with how much memory.
pub(super) struct Tries<'a> {
    pub(super) settings: &'a [Attempt],
    /// What `advise` found: whether each fits, and what is estimated of runs that died.
    pub(super) judged: &'a [&'a Found],
    pub(super) profile: &'static Profile,
    /// How the run was recorded.
    pub(super) own: &'a VerifyOptions,
    pub(super) limit_bytes: Option<u64>,
    pub(super) capacity_bytes: Option<u64>,
}

impl Tries<'_> {
    /// The program of a device that died, with the entry of which it did, if something is estimated of its rest.
    fn continued(&self, device: u32) -> Option<(&Program, usize, Span)> {
        let programs = self.judged.iter().take(1).flat_map(|found| &found.programs);
        let program = programs.filter(|program| program.device == device).find(|program| program.continuation.is_some())?;
        let died_at = program.ending.death()?.entry;
        let first = program.entries.max(died_at + 1);
        Some((program, died_at, Span::continued(&program.requests, died_at, first)))
    }

    /// What is estimated of a device's rest.
    pub(super) fn rest(&self, device: u32) -> Option<Rest> {
        let (program, died_at, span) = self.continued(device)?;
        Some(Rest { span, died_at, in_use: in_use(&program.requests, span, BUCKETS_WITH_REST) })
    }

    /// All settings on a device, each with its reserved bytes over what is in the file.
    pub(super) fn run(&self, device: &DeviceRecording, requests: &Requests) -> Vec<(Tried, Curve)> {
        let &Tries { profile, limit_bytes, capacity_bytes, .. } = self;
        let learned = learned_addresses(device, requests);
        let span = Span::recorded(device.trace.len());
        let what = WhatIf { requests, learned: &learned, device: device.device, span, profile, limit_bytes, capacity_bytes };
        self.settings.par_iter().map(|attempt| self.run_one(device, &what, attempt)).collect()
    }

    fn run_one(&self, device: &DeviceRecording, what: &WhatIf<'_>, attempt: &Attempt) -> (Tried, Curve) {
        let WhatIf { requests, limit_bytes, .. } = *what;
        let WhatIfRun { reserved, mut prediction } = what_if(what, &attempt.settings, BUCKETS);
        if let Some(bytes) = limit_bytes {
            fit_as_recorded(&mut prediction, device, self.own, (self.profile, &attempt.settings), bytes);
        }
        let with_rest = self.continued(device.device).map(|(program, _, span)| {
            // As `advise` does: the limit alone decides.
            let available =
                self.judged.iter().find_map(|found| advice::available_bytes(found, &attempt.settings)).or(limit_bytes);
            let what = WhatIf { requests: &program.requests, span, limit_bytes: available, capacity_bytes: None, ..what.clone() };
            let WhatIfRun { reserved, prediction } = what_if(&what, &attempt.settings, BUCKETS_WITH_REST);
            let fared = Fared::of(&prediction);
            // The moment before an entry has as many entries done as come before it.
            let fails_at_entry = fared.fails_at_entry.map(|entry| span.moment(entry).saturating_sub(1));
            (Fared { fails_at_entry, ..fared }, reserved)
        });
        let hides_more = |limit| requests.lost_beginning.is_some_and(|lost| lost.reserved_bytes > limit);
        let plain = match limit_bytes {
            _ if prediction.first_failure.is_some() => Outcome::DoesNotFit,
            Some(limit) if !hides_more(limit) => Outcome::Fits,
            _ => Outcome::Unknown,
        };
        let tried = Tried {
            outcome: self
                .judged
                .iter()
                .find_map(|found| advice::outcome_with(found, &attempt.settings, device.device))
                .unwrap_or(plain),
            label: advice::name(&attempt.settings),
            is_own: attempt.is_own,
            is_recommended: attempt.is_recommended,
            in_file: Fared::of(&prediction),
            with_rest,
        };
        (tried, reserved)
    }
}
