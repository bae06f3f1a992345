//! How much work an entry does, what it shows, and why it may not pass.

use parkade::device::BackendError;

use crate::backend::Unable;
use crate::law::Broken;

/// How much work to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Effort {
    /// Random sequences per law.
    pub cases: u32,
    /// The seed that they are drawn from.
    pub seed: u64,
    /// The only sequence to run instead of drawn ones: what an earlier failure printed behind [`PROGRAM`].
    pub program: Option<&'static str>,
}

impl Effort {
    /// So many random sequences per law, drawn from this seed.
    #[must_use]
    pub const fn new(cases: u32, seed: u64) -> Effort {
        Effort { cases, seed, program: None }
    }
}

/// Begins the line of a failure's script that [`Effort::program`] takes to run the failing sequence again.
pub const PROGRAM: &str = "# program ";

/// What an entry shows.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Evidence {
    /// Statistics, pictures of the heap, errors. The same in every run, and on every device with the same facts.
    pub text: String,
    /// Measurements, which differ from run to run.
    pub measured: String,
    /// How many operations were performed.
    pub operations: u64,
}

impl Evidence {
    /// Evidence with text only.
    #[must_use]
    pub fn text(text: impl Into<String>) -> Evidence {
        Evidence { text: text.into(), ..Evidence::default() }
    }

    /// Evidence with a count of operations and no text.
    #[must_use]
    pub fn operations(operations: u64) -> Evidence {
        Evidence { operations, ..Evidence::default() }
    }
}

/// Why an entry did not pass.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Trouble {
    /// It cannot run here.
    Skip(String),
    /// Something that should hold does not.
    Fail {
        /// What was seen.
        reason: String,
        /// The shortest failing sequence found, as a script for `parkade ops`.
        script: Option<String>,
    },
}

impl Trouble {
    /// A failure with this reason.
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

impl From<BackendError> for Trouble {
    fn from(error: BackendError) -> Trouble {
        Trouble::fail(error.to_string())
    }
}

/// The outcome of an entry.
pub type Verdict = Result<Evidence, Trouble>;
