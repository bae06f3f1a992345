//! The reason why a recording cannot be replayed.

use parkade::settings::SettingsError;
use parkade_recording::Action;
use thiserror::Error;

/// The kinds of entries that may be missing from a trace that contradicts itself. All kinds in at least one of these sets
/// must be missing.
///
/// If the trace has no entries of these kinds, the program did not record them (`skip_actions`).
pub type Missing = &'static [&'static [Action]];

/// The reason why a recording cannot be replayed. Displayed as one line that states where the problem is and what it
/// is.
#[derive(Clone, Debug, Error)]
pub enum VerifyError {
    /// The trace contradicts itself.
    #[error("entry {entry}: {action} at {address:#x}, {problem}")]
    Contradiction {
        /// The entry's number, from 0.
        entry: usize,
        /// The action of the entry.
        action: &'static str,
        /// The entry's address.
        address: u64,
        /// The contradiction.
        problem: &'static str,
        /// The kinds of entries whose absence would explain it.
        missing: Missing,
    },
    /// The state before the first entry contradicts itself.
    #[error("before entry 0: the {what} at {address:#x} {problem}")]
    Start {
        /// The kind of memory: a segment or a block.
        what: &'static str,
        /// Its first byte.
        address: u64,
        /// The contradiction.
        problem: &'static str,
        /// The kinds of entries whose absence would explain it.
        missing: Missing,
    },
    /// PyTorch refuses the recording's settings string.
    #[error(
        "PyTorch rejects the recording's settings string {:?}: {} (use --settings to specify different settings)",
        cut(text, 200),
        cut(&error.to_string(), 500)
    )]
    Settings {
        /// The settings string.
        text: String,
        /// PyTorch's message.
        error: SettingsError,
    },
    /// PyTorch refuses the settings string that the caller gave.
    #[error("the settings {:?} are refused: {}", cut(text, 200), cut(&error.to_string(), 500))]
    GivenSettings {
        /// The settings string.
        text: String,
        /// PyTorch's message.
        error: SettingsError,
    },
    /// The recording has no trace: memory history was off.
    #[error("the file has no trace entries to verify: record it with torch.cuda.memory._record_memory_history()")]
    NoTrace,
    /// The trace has more entries than a 32-bit number can count.
    #[error("the trace has {0} entries; the maximum is 4294967295")]
    TooLong(usize),
}

/// Truncates a string to at most `longest` characters. A settings string may be a megabyte long, and PyTorch's messages
/// repeat it.
fn cut(text: &str, longest: usize) -> String {
    match text.char_indices().nth(longest) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

impl VerifyError {
    /// Returns a contradiction that is not explained by any missing kind of entry.
    pub(crate) fn contradiction(entry: usize, action: Action, address: u64, problem: &'static str) -> VerifyError {
        VerifyError::Contradiction { entry, action: action.name(), address, problem, missing: &[] }
    }

    /// Returns the same contradiction, which is explained if the trace has no entries of these kinds.
    pub(crate) fn unless_missing(mut self, kinds: Missing) -> VerifyError {
        if let VerifyError::Contradiction { missing, .. } | VerifyError::Start { missing, .. } = &mut self {
            *missing = kinds;
        }
        self
    }
}
