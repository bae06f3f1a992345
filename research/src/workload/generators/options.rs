//! The interface between a generator and a description: options that are set by key, and the workload that is created from
//! them. Also defines how option values are read from text and bounded, why a workload may not be generated, and how large
//! one may be.
//!
//! A generator writes a [`Program`]: a list of events, with buffers that are numbered, counted and bounded here. No generator
//! can use a number twice or free a buffer twice.

use std::fmt;

use crate::workload::{Event, Workload};

/// The key of an option.
pub(super) type Key = &'static str;
/// Whether an option could be set.
pub(super) type Done = Result<(), WorkloadError>;

/// A generator is configured by key and value and then creates a workload.
pub(super) trait Generator {
    /// Returns the keys of the options. One of them is `seed`.
    fn keys(&self) -> Vec<Key>;
    /// Sets the option with one of the keys.
    fn set(&mut self, key: Key, value: &str) -> Done;
    /// Creates the workload.
    fn make(&self) -> Result<Workload, WorkloadError>;
}

/// A model that is trained for a number of steps.
pub(super) struct Trained<M> {
    pub(super) model: M,
    pub(super) steps: u64,
}

/// The maximum size of a buffer, and of all buffers live at once: 16 TiB. The simulated device keeps a record of every page.
pub const MAX_BYTES: u64 = 1 << 44;

/// The maximum number of events in a generated workload.
pub const MAX_EVENTS: usize = 20_000_000;

/// An error in a description or in a generator's options.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum WorkloadError {
    /// The value of an option is not allowed.
    #[error("{option} is {value}; allowed: {allowed}")]
    Option {
        /// The option's name, as in [`parse`](crate::workload::parse).
        option: &'static str,
        /// Its value.
        value: String,
        /// The allowed values.
        allowed: String,
    },
    /// The generator has no such option.
    #[error("{generator} has no option {option}; its options: {allowed}")]
    UnknownOption {
        /// The generator.
        generator: &'static str,
        /// The option that was requested.
        option: String,
        /// The generator's options.
        allowed: String,
    },
    /// An option is given twice.
    #[error("{option} is given twice")]
    Twice {
        /// The option.
        option: String,
    },
    /// An adversary's numbers are not valid, or the policy refused a request.
    #[error("{0}")]
    Attack(AttackError),
    /// An option without `=`.
    #[error("{text:?} is not of the form option=value")]
    NoValue {
        /// The text.
        text: String,
    },
    /// No generator or workload has this name.
    #[error("there is no workload {name:?}; known: {allowed}")]
    UnknownWorkload {
        /// The name.
        name: String,
        /// The valid names.
        allowed: String,
    },
    /// A size beyond [`MAX_BYTES`].
    #[error("{what} would take more than {} bytes: choose smaller sizes", MAX_BYTES)]
    TooLarge {
        /// The buffer or sum that would be that large.
        what: &'static str,
    },
    /// More than [`MAX_EVENTS`] events.
    #[error("the workload would have more than {} events: choose fewer steps, layers or requests", MAX_EVENTS)]
    TooManyEvents,
}

/// The reason why an attack or a pattern cannot be generated.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AttackError {
    /// One of the numbers that describe the attack or pattern is not allowed.
    Shape(&'static str),
    /// The policy refused a request although memory was available; the text is one line.
    Refused(String),
}

impl fmt::Display for AttackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AttackError::Shape(problem) => write!(f, "there is no such adversary: {problem}"),
            AttackError::Refused(why) => write!(f, "the policy refused a request although memory was available: {why}"),
        }
    }
}

impl std::error::Error for AttackError {}

impl From<AttackError> for WorkloadError {
    fn from(error: AttackError) -> WorkloadError {
        WorkloadError::Attack(error)
    }
}

/// Returns the error for a value that is not allowed.
pub(super) fn refused<T>(option: Key, value: &str, allowed: impl Into<String>) -> Result<T, WorkloadError> {
    Err(WorkloadError::Option { option, value: value.into(), allowed: allowed.into() })
}

/// Reads a whole number.
pub(super) fn number(option: Key, value: &str) -> Result<u64, WorkloadError> {
    value.parse().or_else(|_| refused(option, value, "a whole number"))
}

/// Checks a whole number that has no effect: the seed of a generator that draws no random numbers.
pub(super) fn unused_seed(option: Key, value: &str) -> Result<(), WorkloadError> {
    number(option, value).map(drop)
}

/// Reads a finite real number.
pub(super) fn real(option: Key, value: &str) -> Result<f64, WorkloadError> {
    let finite = value.parse().ok().filter(|number: &f64| number.is_finite());
    finite.map_or_else(|| refused(option, value, "a number"), Ok)
}

/// Reads a number of bytes, with or without the unit `KiB`, `MiB` or `GiB`.
pub(super) fn bytes(option: Key, value: &str) -> Result<u64, WorkloadError> {
    let units = [("KiB", 10), ("MiB", 20), ("GiB", 30)];
    let (digits, shift) = units.iter().find_map(|&(unit, shift)| Some((value.strip_suffix(unit)?, shift))).unwrap_or((value, 0));
    let parsed = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
    parsed.map_or_else(|| refused(option, value, "bytes, such as 512, 64KiB, 20MiB or 3GiB"), Ok)
}

/// Reads `on` or `off`.
pub(super) fn switch(option: Key, value: &str) -> Result<bool, WorkloadError> {
    one_of(option, value, &[("on", true), ("off", false)])
}

/// Reads a fixed number of whole numbers, separated by `/`.
pub(super) fn numbers<const N: usize>(option: Key, value: &str) -> Result<[u64; N], WorkloadError> {
    let numbers = list(option, value)?;
    numbers.try_into().or_else(|_| refused(option, value, format!("{N} whole numbers separated by /")))
}

/// Reads one or more whole numbers, separated by `/`.
pub(super) fn list(option: Key, value: &str) -> Result<Vec<u64>, WorkloadError> {
    let numbers: Result<Vec<u64>, _> = value.split('/').map(str::parse).collect();
    numbers.or_else(|_| refused(option, value, "whole numbers separated by /"))
}

/// Reads one of several words.
pub(super) fn one_of<T: Copy>(option: Key, value: &str, choices: &[(&str, T)]) -> Result<T, WorkloadError> {
    let found = choices.iter().find(|choice| choice.0 == value);
    let names = || choices.iter().map(|choice| choice.0).collect::<Vec<_>>().join(", ");
    found.map_or_else(|| refused(option, value, names()), |choice| Ok(choice.1))
}

/// Returns the product of sizes, as the size of `what` in bytes.
pub(super) fn bytes_of(what: &'static str, factors: &[u64]) -> Result<u64, WorkloadError> {
    let product = factors.iter().try_fold(1_u64, |product, &factor| product.checked_mul(factor));
    product.filter(|&bytes| bytes <= MAX_BYTES).ok_or(WorkloadError::TooLarge { what })
}

/// Checks that an option is between two bounds, inclusive.
pub(super) fn within(option: &'static str, value: u64, least: u64, most: u64) -> Result<(), WorkloadError> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(WorkloadError::Option { option, value: value.to_string(), allowed: format!("{least} to {most}") })
}

/// Like [`within`], but for real numbers.
pub(super) fn within_real(option: &'static str, value: f64, least: f64, most: f64) -> Result<(), WorkloadError> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(WorkloadError::Option { option, value: value.to_string(), allowed: format!("{least} to {most}") })
}

/// Divides `whole` into `parts` of nearly equal size: the number of parts of each size, with the larger size first.
pub(super) fn shares(whole: u64, parts: u64) -> Vec<(u64, u64)> {
    let (small, larger) = (whole / parts, whole % parts);
    [(larger, small + 1), (parts - larger, small)].into_iter().filter(|&(count, size)| count > 0 && size > 0).collect()
}

/// A live buffer. Freeing it consumes it, so it cannot be freed twice.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Tensor {
    number: u32,
    bytes: u64,
}

impl Tensor {
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// A program: the events of a workload so far.
#[derive(Default, Debug)]
pub(super) struct Program {
    events: Vec<Event>,
    steps: Vec<u32>,
    buffers: u32,
    live_bytes: u64,
    /// The stream of the next allocations and of the next work.
    stream: u16,
}

impl Program {
    /// Appends an event.
    pub(super) fn push(&mut self, event: Event) -> Result<(), WorkloadError> {
        if self.events.len() >= MAX_EVENTS {
            return Err(WorkloadError::TooManyEvents);
        }
        self.events.push(event);
        Ok(())
    }

    /// Begins a step with the next event.
    pub(super) fn begin_step(&mut self) {
        let next = u32::try_from(self.events.len()).unwrap_or(u32::MAX);
        if self.steps.last() != Some(&next) {
            self.steps.push(next);
        }
    }

    /// Requests memory on the current stream. PyTorch requests no memory for an empty tensor; here, an empty tensor gets one
    /// byte.
    pub(super) fn allocate(&mut self, bytes: u64) -> Result<Tensor, WorkloadError> {
        let bytes = bytes.max(1);
        self.live_bytes = self.live_bytes.saturating_add(bytes);
        if self.live_bytes > MAX_BYTES {
            return Err(WorkloadError::TooLarge { what: "the live buffers" });
        }
        let tensor = Tensor { number: self.buffers, bytes };
        self.push(Event::Allocate { buffer: tensor.number, bytes, stream: self.stream })?;
        self.buffers += 1;
        Ok(tensor)
    }

    /// Frees a buffer.
    pub(super) fn free(&mut self, tensor: Tensor) -> Result<(), WorkloadError> {
        self.live_bytes -= tensor.bytes;
        self.push(Event::Free { buffer: tensor.number })
    }

    /// Records the use of a buffer on another stream.
    pub(super) fn record(&mut self, tensor: &Tensor, stream: u16) -> Result<(), WorkloadError> {
        self.push(Event::Use { buffer: tensor.number, stream })
    }

    /// Puts work on the current stream; its duration is in microseconds and at least 1.
    pub(super) fn launch(&mut self, us: u64) -> Result<(), WorkloadError> {
        self.push(Event::Launch { stream: self.stream, us: u32::try_from(us).unwrap_or(u32::MAX).max(1) })
    }

    /// Makes another stream the current one. Returns the previous one.
    pub(super) fn switch(&mut self, stream: u16) -> u16 {
        std::mem::replace(&mut self.stream, stream)
    }

    /// The bytes that are currently live.
    #[cfg(test)]
    pub(super) fn live_bytes(&self) -> u64 {
        self.live_bytes
    }

    /// Returns the workload.
    pub(super) fn finish(self, name: &str, says: String) -> Workload {
        Workload { name: name.into(), says, events: self.events, steps: self.steps }
    }
}
