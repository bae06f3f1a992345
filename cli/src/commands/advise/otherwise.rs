//! What other releases advise that explain the recording as well.

use anyhow::Result;
use parkade::profile::Release;
use parkade_analysis::advise::{Advice, AdviseOptions};
use parkade_recording::DeviceRecording;
use parkade_replay::VerifyOptions;
use parkade_replay::recognition::{Recognition, in_words};

use super::search;
use crate::terminal::json_struct::view;

/// Advice of releases that explain the recording too, where it is another.
pub(super) struct Otherwise {
    releases: Vec<&'static Release>,
    outcome: &'static str,
    line: Option<String>,
}

/// Searches under the rules of each release that explains the recording, but for the first, and keeps what is another advice.
pub(super) fn find(
    traced: &[&DeviceRecording],
    options: &AdviseOptions,
    (made_by, advice): (&Recognition, &Advice),
    is_hidden: bool,
) -> Result<Vec<Otherwise>> {
    let mut found: Vec<Otherwise> = Vec::new();
    for profile in made_by.rules().into_iter().skip(1) {
        let mut settings = options.own.settings.clone();
        settings.profile = profile;
        let own = VerifyOptions { settings, ..options.own.clone() };
        let other = search(traced, &AdviseOptions { own, profile, given: options.given.clone(), ..*options }, is_hidden)?;
        if line(&other) != line(advice) || other.outcome != advice.outcome {
            let (releases, outcome) = (made_by.with_rules(profile), other.outcome.name());
            found.push(Otherwise { releases, outcome, line: line(&other).map(str::to_owned) });
        }
    }
    Ok(found)
}

fn line(advice: &Advice) -> Option<&str> {
    advice.recommendation.as_ref().map(|recommendation| recommendation.line.as_str())
}

impl Otherwise {
    pub(super) fn words(&self) -> String {
        let says = match &self.line {
            Some(line) => format!("says {line}"),
            None => "recommends nothing".to_owned(),
        };
        let outcome = self.outcome.replace('_', " ");
        format!(
            "the run may also have been one of PyTorch {}, whose advice is another: it {says} ({outcome})",
            in_words(&self.releases)
        )
    }
}

view! {
    pub(super) struct Object(other: &Otherwise) {
        releases: Vec<&'static str> = other.releases.iter().map(|release| release.name).collect(),
        outcome: &'static str = other.outcome,
        line: Option<String> = other.line.clone(),
    }
}
