//! An entry: one thing to check, with a name, and what it needs of a device.

use super::requirement::Requirement;
use super::verdict::{Effort, Trouble, Verdict};
use crate::backend::{Backend, DeviceFacts};

/// What kind of thing an entry is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Group {
    /// Holds for every program.
    Law,
    /// What a device does, call by call.
    Contract,
    /// A story of the source documents.
    Scenario,
    /// A test of PyTorch's own suite.
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
pub struct Entry<B> {
    /// Its kind.
    pub group: Group,
    /// Its name, unique in its group.
    pub name: String,
    /// What holds, in a line.
    pub says: &'static str,
    requires: Option<Requirement>,
    check: Check<B>,
}

type Check<B> = Box<dyn Fn(&B, &Effort) -> Verdict + Send + Sync>;

impl<B: Backend> Entry<B> {
    /// An entry that every device can be checked with.
    pub fn new(
        group: Group,
        name: impl Into<String>,
        says: &'static str,
        check: impl Fn(&B, &Effort) -> Verdict + Send + Sync + 'static,
    ) -> Entry<B> {
        Entry { group, name: name.into(), says, requires: None, check: Box::new(check) }
    }

    /// The same, skipped on devices that do not have this.
    #[must_use]
    pub fn requires(self, requirement: Requirement) -> Entry<B> {
        Entry { requires: Some(requirement), ..self }
    }

    /// Why it cannot be run on a device with these facts, in words; `None` if it can.
    #[must_use]
    pub fn unmet(&self, facts: &DeviceFacts) -> Option<&'static str> {
        self.requires.and_then(|requirement| requirement.unmet(facts))
    }

    /// Checks it.
    ///
    /// # Errors
    /// Why it did not pass; [`Trouble::Skip`] if the device does not have what it requires.
    pub fn check(&self, backend: &B, effort: &Effort) -> Verdict {
        match self.unmet(&backend.facts()) {
            Some(reason) => Err(Trouble::Skip(reason.to_owned())),
            None => (self.check)(backend, effort),
        }
    }

    /// Group and name, as a filter sees them.
    #[must_use]
    pub fn title(&self) -> String {
        format!("{}/{}", self.group.name(), self.name)
    }
}
