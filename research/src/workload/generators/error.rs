//! Why a workload could not be generated, and how large one may be.

use super::adversaries::AttackError;

/// The most bytes of a buffer, and of all buffers live at once: 16 TiB. The simulated device keeps a record of
/// every page.
pub const MAX_BYTES: u64 = 1 << 44;

/// The most events of a generated workload.
pub const MAX_EVENTS: usize = 20_000_000;

/// What is wrong with a description or with the options of a generator.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum WorkloadError {
    /// The value of an option is not allowed.
    #[error("{option} is {value}; allowed: {allowed}")]
    Option {
        /// The option's name, as in [`parse`](crate::workload::parse).
        option: &'static str,
        /// Its value.
        value: String,
        /// What is allowed.
        allowed: String,
    },
    /// The generator has no such option.
    #[error("{generator} has no option {option}; its options: {allowed}")]
    UnknownOption {
        /// The generator.
        generator: &'static str,
        /// What was asked for.
        option: String,
        /// The options that there are.
        allowed: String,
    },
    /// An option is given twice.
    #[error("{option} is given twice")]
    Twice {
        /// The option.
        option: String,
    },
    /// An adversary's numbers do not make one, or the policy refused a request.
    #[error("{0}")]
    Attack(AttackError),
    /// An option without `=`.
    #[error("{text:?} is not of the form option=value")]
    NoValue {
        /// The text.
        text: String,
    },
    /// There is no generator or workload of this name.
    #[error("there is no workload {name:?}; known: {allowed}")]
    UnknownWorkload {
        /// The name.
        name: String,
        /// The names that there are.
        allowed: String,
    },
    /// A size beyond [`MAX_BYTES`].
    #[error("{what} would take more than {} bytes: choose smaller sizes", MAX_BYTES)]
    TooLarge {
        /// What would be so large.
        what: &'static str,
    },
    /// More than [`MAX_EVENTS`] events.
    #[error("the workload would have more than {} events: choose fewer steps, layers or requests", MAX_EVENTS)]
    TooManyEvents,
}

impl From<AttackError> for WorkloadError {
    fn from(error: AttackError) -> WorkloadError {
        WorkloadError::Attack(error)
    }
}
