//! What a setting breaks: known cases in which a setting of PyTorch's allocator does harm, or nothing, in a program that uses
//! something else.
//!
//! [`in_use`] reads off a recording what the program uses, as far as a recording shows it; [`rule`] is the form of a known case and
//! when it applies, [`rules`] the table of them. A replay tells what a setting does to the memory of a program; these cases
//! are what no replay of one process can show: hangs, refused calls, memory of other libraries, settings without effect.

mod in_use;
mod rule;
mod rules;
#[cfg(test)]
mod tests;

use parkade::profile::Profile;
use parkade::settings::Settings;

pub use in_use::{Feature, InUse};

/// How sure it is that a program uses something.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Evidence {
    /// The recording would show it, and does not.
    NotShown,
    /// The recording cannot show it, or has lost the part that would.
    Unknown,
    /// The recording shows it.
    Shown,
}

impl Evidence {
    /// The word for it in output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Evidence::NotShown => "not shown",
            Evidence::Unknown => "unknown",
            Evidence::Shown => "shown",
        }
    }
}

/// What a setting does to a program that uses what a caution speaks of.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Severity {
    /// Nothing: who sets it expects something that will not happen.
    NoEffect,
    /// The program may fail, hang or need far more memory; that depends on more than is said here.
    MayBreak,
    /// The program fails, hangs or corrupts its memory.
    Breaks,
}

impl Severity {
    /// The words for it in output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Severity::NoEffect => "no effect",
            Severity::MayBreak => "may break",
            Severity::Breaks => "breaks",
        }
    }
}

/// A known case that applies to settings, and is not ruled out by what the program uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Caution {
    /// Names the case in machine-readable output; words joined by hyphens. Stays the same from release to release.
    pub id: &'static str,
    /// The keys of the settings that it is about, joined by `, `.
    pub setting: &'static str,
    /// Whether the program uses what the case is about: never [`Evidence::NotShown`].
    pub in_use: Evidence,
    /// How bad it is if so.
    pub severity: Severity,
    /// What happens, in one sentence.
    pub what: &'static str,
    /// What to do instead, in one sentence.
    pub instead: &'static str,
    /// Where it is reported or documented: issues and pull requests as `owner/name#number`, `spec` a section of the behavioural
    /// specification, which was found by running PyTorch's own library.
    pub source: &'static str,
}

impl Caution {
    /// Whether these settings should not be recommended without saying so: the program does use it, and it does harm.
    #[must_use]
    pub fn needs_warning(&self) -> bool {
        self.in_use == Evidence::Shown && self.severity > Severity::NoEffect
    }
}

/// The known cases that apply to `settings` under `profile` in a program that uses `in_use`: what is shown before what is
/// unknown, then the worst first, then in the order of the table.
#[must_use]
pub fn cautions(in_use: &InUse, settings: &Settings, profile: &Profile) -> Vec<Caution> {
    let applying = rules::RULES.iter().filter(|rule| rule.applies_to(settings, profile));
    let mut found: Vec<Caution> = applying.filter_map(|rule| rule.caution(in_use)).collect();
    found.sort_by_key(|caution| std::cmp::Reverse((caution.in_use, caution.severity)));
    found
}
