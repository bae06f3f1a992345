//! An entry: one thing to check, its name, and what it requires of the device.

use super::requirement::Requirement;
use super::verdict::{Effort, Trouble, Verdict};
use crate::backend::{AnyBackend, DeviceFacts};

/// The kind of an entry.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Group {
    /// A property of every program.
    Law,
    /// What a device call does.
    Contract,
    /// A scenario from the source documents.
    Scenario,
    /// A test from PyTorch's own suite.
    PyTorchTest,
    /// The same sequence on two devices.
    Lockstep,
}

impl Group {
    /// Its name in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Group::Law => "law",
            Group::Contract => "contract",
            Group::Scenario => "scenario",
            Group::PyTorchTest => "peer",
            Group::Lockstep => "differential",
        }
    }
}

/// One thing to check.
pub struct Entry {
    /// Its kind.
    pub group: Group,
    /// Its name, unique in its group.
    pub name: String,
    /// What holds, in one line.
    pub says: &'static str,
    requires: Option<Requirement>,
    check: Check<AnyBackend>,
}

type Check<AnyBackend> = Box<dyn Fn(&AnyBackend, &Effort) -> Verdict + Send + Sync>;

impl Entry {
    /// An entry that runs on every device.
    pub fn new(
        group: Group,
        name: impl Into<String>,
        says: &'static str,
        check: impl Fn(&AnyBackend, &Effort) -> Verdict + Send + Sync + 'static,
    ) -> Entry {
        Entry { group, name: name.into(), says, requires: None, check: Box::new(check) }
    }

    /// The same entry, skipped on devices that do not meet the requirement.
    #[must_use]
    pub fn requires(self, requirement: Requirement) -> Entry {
        Entry { requires: Some(requirement), ..self }
    }

    /// Why the entry cannot run on a device with these facts; `None` if it can.
    #[must_use]
    pub fn unmet(&self, facts: &DeviceFacts) -> Option<&'static str> {
        self.requires.and_then(|requirement| requirement.unmet(facts))
    }

    /// Runs the check.
    ///
    /// # Errors
    /// Why it did not pass; [`Trouble::Skip`] if the device does not meet its requirement.
    pub fn check(&self, backend: &AnyBackend, effort: &Effort) -> Verdict {
        match self.unmet(&backend.facts()) {
            Some(reason) => Err(Trouble::Skip(reason.to_owned())),
            None => (self.check)(backend, effort),
        }
    }

    /// Group and name, as filters match them.
    #[must_use]
    pub fn title(&self) -> String {
        format!("{}/{}", self.group.name(), self.name)
    }
}
