//! What an entry of the suite is, and running a list of them: each has a name, runs on a backend and ends with a verdict.
//!
//! Nothing here knows what is checked: that is in [`checks`](crate::checks).

mod progress;
mod run;

use crate::backend::{Backend, Unable};
use crate::law::Broken;

pub use progress::{Progress, Silent};
pub use run::{Row, Status, Summary, check, run};

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

/// How much to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Effort {
    /// Random sequences a law.
    pub cases: u32,
    /// From which they are drawn.
    pub seed: u64,
}

/// What an entry has to show for itself.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Evidence {
    /// What was seen, as text: statistics, pictures of the heap, errors. The same on every backend and in every run.
    pub text: String,
    /// What was measured, which differs from run to run.
    pub measured: String,
    /// How many operations were carried out.
    pub operations: u64,
}

impl Evidence {
    /// Text alone.
    #[must_use]
    pub fn text(text: impl Into<String>) -> Evidence {
        Evidence { text: text.into(), ..Evidence::default() }
    }

    /// So many operations, nothing to show.
    #[must_use]
    pub fn operations(operations: u64) -> Evidence {
        Evidence { operations, ..Evidence::default() }
    }
}

/// Why an entry did not pass.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Trouble {
    /// It cannot be run here.
    Skip(String),
    /// What should hold does not.
    Fail {
        /// What was seen.
        reason: String,
        /// The shortest sequence found that shows it, as a script for `parkade ops`.
        script: Option<String>,
    },
}

impl Trouble {
    /// A failure in words.
    #[must_use]
    pub fn fail(reason: impl Into<String>) -> Trouble {
        Trouble::Fail { reason: reason.into(), script: None }
    }
}

impl From<Unable> for Trouble {
    fn from(unable: Unable) -> Trouble {
        match unable {
            Unable::Absent(reason) => Trouble::Skip(reason),
            Unable::Lost(reason) => Trouble::fail(reason),
        }
    }
}

impl From<Broken> for Trouble {
    fn from(broken: Broken) -> Trouble {
        Trouble::fail(broken.to_string())
    }
}

impl From<parkade::device::BackendError> for Trouble {
    fn from(error: parkade::device::BackendError) -> Trouble {
        Trouble::fail(error.to_string())
    }
}

/// What an entry came to.
pub type Verdict = Result<Evidence, Trouble>;

/// One thing to check.
pub struct Entry<B> {
    /// Its kind.
    pub group: Group,
    /// Its name, unique in its group.
    pub name: String,
    /// What holds, in a line.
    pub says: &'static str,
    check: Check<B>,
}

type Check<B> = Box<dyn Fn(&B, &Effort) -> Verdict + Send + Sync>;

impl<B: Backend> Entry<B> {
    /// An entry of the list.
    pub fn new(
        group: Group,
        name: impl Into<String>,
        says: &'static str,
        check: impl Fn(&B, &Effort) -> Verdict + Send + Sync + 'static,
    ) -> Entry<B> {
        Entry { group, name: name.into(), says, check: Box::new(check) }
    }

    /// Checks it.
    ///
    /// # Errors
    /// Why it did not pass.
    pub fn check(&self, backend: &B, effort: &Effort) -> Verdict {
        (self.check)(backend, effort)
    }

    /// Group and name, as a filter sees them.
    #[must_use]
    pub fn title(&self) -> String {
        format!("{}/{}", self.group.name(), self.name)
    }
}
