//! Why a recording cannot be replayed at all.

use parkade::settings::SettingsError;
use parkade_recording::Action;
use thiserror::Error;

/// A recording that cannot be replayed. Each names the place and what is wrong there.
#[derive(Clone, Debug, Error)]
pub enum VerifyError {
    /// The trace contradicts itself.
    #[error("entry {entry}: {action} at {address:#x}, {problem}")]
    Contradiction {
        /// The entry's number, from 0.
        entry: usize,
        /// What the entry says happened.
        action: &'static str,
        /// The entry's address.
        address: u64,
        /// What cannot be.
        problem: &'static str,
    },
    /// The state before the first entry contradicts itself.
    #[error("before entry 0: the {what} at {address:#x} {problem}")]
    Start {
        /// Segment or block.
        what: &'static str,
        /// Its first byte.
        address: u64,
        /// What cannot be.
        problem: &'static str,
    },
    /// The recording uses something that is not simulated.
    #[error("{place}: {what} are not replayed by this version")]
    Unsupported {
        /// Entry or segment.
        place: String,
        /// What it is.
        what: &'static str,
    },
    /// The settings of the recording cannot be read.
    #[error("the recording's settings string {:?} is refused: {} (--settings gives others)", cut(text, 200), cut(&error.to_string(), 500))]
    Settings {
        /// The settings string.
        text: String,
        /// PyTorch's message.
        error: SettingsError,
    },
    /// The settings that the caller gave cannot be read.
    #[error("the settings {:?} are refused: {}", cut(text, 200), cut(&error.to_string(), 500))]
    GivenSettings {
        /// The settings string.
        text: String,
        /// PyTorch's message.
        error: SettingsError,
    },
    /// The file has no trace: memory history was off.
    #[error("the file has no trace entries to verify: record it with torch.cuda.memory._record_memory_history()")]
    NoTrace,
    /// More entries than a 32-bit number counts.
    #[error("the trace has {0} entries, more than 4294967295")]
    TooLong(usize),
}

/// A text as a message shows it: a file may state a settings string of a megabyte, and PyTorch repeats what it does not know.
fn cut(text: &str, longest: usize) -> String {
    match text.char_indices().nth(longest) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

impl VerifyError {
    pub(crate) fn contradiction(entry: usize, action: Action, address: u64, problem: &'static str) -> VerifyError {
        VerifyError::Contradiction { entry, action: action.name(), address, problem }
    }
}
