//! Finds the known issues that apply to settings in a program.

use std::cmp::Reverse;

use parkade::profile::Profile;
use parkade::settings::Settings;

use super::evidence::Evidence;
use super::in_use::InUse;
use super::issue::{KnownIssue, Severity};
use super::table::KNOWN_ISSUES;

/// A known issue that applies to the settings and that the program does not rule out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Caution {
    /// Identifies the issue in machine-readable output: words joined by hyphens, the same in every release.
    pub id: &'static str,
    /// The keys of the settings that it is about, joined by `, `.
    pub setting: &'static str,
    /// Whether the program uses what the issue needs; never [`Evidence::NotShown`].
    pub in_use: Evidence,
    /// How bad it is if the program does.
    pub severity: Severity,
    /// What happens, in one sentence.
    pub what: &'static str,
    /// What to do instead, in one sentence.
    pub instead: &'static str,
    /// Where it is reported or documented: issues and pull requests as `owner/name#number`; `spec` and a number is a section of the
    /// behavioural specification, which was found by running PyTorch's own library.
    pub source: &'static str,
}

impl Caution {
    /// Whether these settings need a warning: the program uses what the issue needs, and the issue does harm.
    #[must_use]
    pub fn needs_warning(&self) -> bool {
        self.in_use == Evidence::Shown && self.severity > Severity::NoEffect
    }
}

/// The known issues that apply to `settings` under `profile` in a program that uses `in_use`. Those that are shown come before those that
/// are unknown, then the more severe first, then in the order of the table.
#[must_use]
pub fn cautions(in_use: &InUse, settings: &Settings, profile: &Profile) -> Vec<Caution> {
    let applying = KNOWN_ISSUES.iter().filter(|issue| issue.applies_to(settings, profile));
    let mut found: Vec<Caution> = applying.filter_map(|issue| caution(issue, in_use)).collect();
    found.sort_by_key(|caution| Reverse((caution.in_use, caution.severity)));
    found
}

/// The caution for a program, unless it is known not to use something that the issue needs. It is as certain as the least certain of these.
fn caution(issue: &KnownIssue, in_use: &InUse) -> Option<Caution> {
    let least = issue.uses.iter().map(|&feature| in_use.evidence(feature)).min().unwrap_or(Evidence::Shown);
    (least != Evidence::NotShown).then_some(Caution {
        id: issue.id,
        setting: issue.setting,
        in_use: least,
        severity: issue.severity,
        what: issue.what,
        instead: issue.instead,
        source: issue.source,
    })
}
