//! What advice comes to: does the program fit?

use super::advised_option::AdvisedOption;
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
    /// It cannot be said: the memory is unknown, or the part that the recording lost needed more than there is.
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

/// What is known of the memory there is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Memory {
    /// How much it is.
    Known,
    /// It is at least as much as is assumed.
    AtLeast,
    /// Nothing, or the part that the recording lost needed more than there is.
    Unknown,
}

/// Why the rest of each program that died is in doubt with this option, by device.
pub(super) fn doubts(programs: &[Program], option: &AdvisedOption) -> Vec<(u32, Doubt)> {
    let free = |device: u32| {
        let needed = option.devices.iter().find(|outcome| outcome.device == device).map_or(0, |outcome| outcome.smallest_bytes);
        option.available_bytes.unwrap_or(0).saturating_sub(needed)
    };
    let of = |program: &Program| {
        Doubt::about(program.continuation.as_ref(), free(program.device)).map(|doubt| (program.device, doubt))
    };
    programs.iter().filter(|program| program.died()).filter_map(of).collect()
}

/// The outcome with an option; with none, no option serves every recorded request.
pub(super) fn outcome(programs: &[Program], option: Option<&AdvisedOption>, memory: Memory) -> Outcome {
    let Some(option) = option.filter(|option| option.gets_past()) else {
        return if memory == Memory::Known { Outcome::DoesNotFit } else { Outcome::Unknown };
    };
    if memory == Memory::Unknown {
        Outcome::Unknown
    } else if !programs.iter().any(Program::died) || (option.fits() && doubts(programs, option).is_empty()) {
        Outcome::Fits
    } else {
        Outcome::GetsPast
    }
}
