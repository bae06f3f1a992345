//! Why a workload could not be generated.

use super::adversary::AttackError;

/// What was wrong with the options of a generator.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum WorkloadError {
    /// An option has a value that it cannot have.
    #[error("{option} is {value}; it can be {allowed}")]
    Option {
        /// The option's name, as in [`super::parse`].
        option: &'static str,
        /// Its value.
        value: String,
        /// What is allowed.
        allowed: String,
    },
    /// A generator has no such option.
    #[error("{generator} has no option {option}; it has {allowed}")]
    UnknownOption {
        /// The generator.
        generator: &'static str,
        /// What was asked for.
        option: String,
        /// The options that there are.
        allowed: String,
    },
    /// A list gives an option twice.
    #[error("{option} is there twice: give it once")]
    Twice {
        /// The option.
        option: String,
    },
    /// An adversary's numbers make none, or its policy refused.
    #[error("{0}")]
    Attack(AttackError),
    /// Something that is no `key=value`.
    #[error("{text:?} is not of the form option=value")]
    NoValue {
        /// The text.
        text: String,
    },
    /// There is no generator or workload of this name.
    #[error("there is no workload {name:?}; there are {allowed}")]
    UnknownWorkload {
        /// The name.
        name: String,
        /// The names that there are.
        allowed: String,
    },
    /// Sizes that no machine has.
    #[error("{what} would take more than {} bytes: choose smaller sizes", MAX_BYTES)]
    TooLarge {
        /// What would.
        what: &'static str,
    },
    /// A program that is too long.
    #[error("this would be more than {} events: choose fewer steps, layers or requests", MAX_EVENTS)]
    TooManyEvents,
}

/// The most bytes of a buffer, and of all that live at once: 16 TiB, of which a simulated device knows each page.
pub const MAX_BYTES: u64 = 1 << 44;

/// The most events of a generated workload.
pub const MAX_EVENTS: usize = 20_000_000;

/// The product of sizes, as bytes of `what`.
pub(super) fn bytes_of(what: &'static str, factors: &[u64]) -> Result<u64, WorkloadError> {
    let product = factors.iter().try_fold(1_u64, |product, &factor| product.checked_mul(factor));
    product.filter(|&bytes| bytes <= MAX_BYTES).ok_or(WorkloadError::TooLarge { what })
}

/// Whether an option lies between two bounds, both allowed.
pub(super) fn within(option: &'static str, value: u64, least: u64, most: u64) -> Result<(), WorkloadError> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(WorkloadError::Option { option, value: value.to_string(), allowed: format!("{least} to {most}") })
}

/// As [`within`], for numbers that are no integers.
pub(super) fn within_real(option: &'static str, value: f64, least: f64, most: f64) -> Result<(), WorkloadError> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(WorkloadError::Option { option, value: value.to_string(), allowed: format!("{least} to {most}") })
}
