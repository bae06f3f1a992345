//! What advice comes to: does the program fit?

use super::advised_option::AdvisedOption;
use super::evaluate::DeviceOutcome;
use super::memory::DeviceMemory;
use super::program::Program;
use crate::continuation::Doubt;

/// Whether the program fits with the recommended settings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It fits. If the recorded run died: what would have followed is estimated, and nothing is in doubt.
    Fits,
    /// The request of which the recorded run died is served. What would have followed is not in the file.
    GetsPast,
    /// No settings that were tried serve every recorded request.
    DoesNotFit,
    /// It cannot be said: the memory is unknown, or was somewhere in a range of which one part is enough and another is not, or the part
    /// that the recording lost needed more than there is.
    Unknown,
}

impl Outcome {
    /// Its name in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Outcome::Fits => "fits",
            Outcome::GetsPast => "gets_past",
            Outcome::DoesNotFit => "does_not_fit",
            Outcome::Unknown => "unknown",
        }
    }
}

/// An option serves every recorded request in so much memory, on each device of which only a range is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Enough {
    /// The option's index in [`Advice::options`](super::Advice::options).
    pub option: usize,
    /// The bytes.
    pub bytes: u64,
}

/// By what an outcome is judged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Judge<'a> {
    pub(super) programs: &'a [Program],
    pub(super) memories: &'a [DeviceMemory],
    /// The part that the recording lost needed more than there is.
    pub(super) hides_more: bool,
}

/// Why the rest of each program that died is in doubt with this option, by device.
pub(super) fn doubts(programs: &[Program], option: &AdvisedOption) -> Vec<(u32, Doubt)> {
    let free = |device: u32| {
        let outcome = option.devices.iter().find(|outcome| outcome.device == device);
        outcome.map_or(0, |outcome| outcome.sure_bytes.unwrap_or(0).saturating_sub(outcome.smallest_bytes))
    };
    let of = |program: &Program| {
        Doubt::about(program.continuation.as_ref(), free(program.device)).map(|doubt| (program.device, doubt))
    };
    programs.iter().filter(|program| program.died()).filter_map(of).collect()
}

impl Judge<'_> {
    /// The outcome with an option; with none, no option serves every recorded request in the memory that they were tried with. `enough` is
    /// what the option was found to need for the recorded requests.
    pub(super) fn outcome(&self, option: Option<&AdvisedOption>, enough: Option<Enough>) -> Outcome {
        if self.memories.iter().all(|memory| memory.budget == super::MemoryBudget::default()) {
            return Outcome::Unknown;
        }
        let Some(option) = option.filter(|option| option.gets_past()) else {
            return if self.is_short() { Outcome::DoesNotFit } else { Outcome::Unknown };
        };
        if self.hides_more {
            return Outcome::Unknown;
        }
        // Tried with the assumed memory, it may need more than the least that was possible.
        let is_sure = |outcome: &DeviceOutcome, bytes: u64| outcome.sure_bytes.is_none_or(|sure| bytes <= sure);
        let serves = |(outcome, memory): (&DeviceOutcome, &DeviceMemory)| {
            let needed = enough.map_or(outcome.smallest_bytes, |enough| enough.bytes.min(outcome.smallest_bytes));
            memory.range.is_none() || is_sure(outcome, needed)
        };
        let serves_rest = |(outcome, memory): (&DeviceOutcome, &DeviceMemory)| {
            memory.range.is_none() || is_sure(outcome, outcome.smallest_bytes)
        };
        let devices = || option.devices.iter().zip(self.memories);
        if !devices().all(serves) {
            Outcome::Unknown
        } else if !self.programs.iter().any(Program::died)
            || (option.fits() && devices().all(serves_rest) && doubts(self.programs, option).is_empty())
        {
            Outcome::Fits
        } else {
            Outcome::GetsPast
        }
    }

    /// Whether the memory is too small, however much it was.
    fn is_short(&self) -> bool {
        let is_short = |(program, memory): (&Program, &DeviceMemory)| {
            memory.range.is_some_and(|range| program.live.bytes >= range.below_bytes)
        };
        self.memories.iter().all(|memory| memory.range.is_none()) || self.programs.iter().zip(self.memories).any(is_short)
    }
}
