//! `parkade enable`: the line that sets allocator settings in the environment, if PyTorch's parser accepts them.

mod notes;
mod shell;

use std::io::Write;

use anyhow::{Result, ensure};
use clap::Parser;
use parkade::profile::RELEASES;
use parkade::settings::{ErrorKind, Settings, SettingsError};

use crate::terminal::args::Profile;
use crate::terminal::output;
use crate::terminal::runner::{Command, Form, Outcome};
use shell::Shell;

/// The variable that is set: the one of PyTorch's names that takes precedence.
const VARIABLE: &str = "PYTORCH_CUDA_ALLOC_CONF";

/// Print the line that sets PyTorch's allocator settings in a shell.
///
/// The settings are checked as a PyTorch process checks them when it starts, with its own messages. Standard output has only the line,
/// standard error explains what it does. Exit code: 0, or 1 if PyTorch rejects the settings.
///
/// The variable is PYTORCH_CUDA_ALLOC_CONF. PYTORCH_ALLOC_CONF is the newer name, but if both are set PYTORCH_CUDA_ALLOC_CONF wins
/// entirely, in PyTorch 2.11 and 2.15. PyTorch reads it once, at start.
#[derive(Parser)]
#[command(after_help = "Examples:
  parkade enable expandable_segments
  parkade enable max_split_size_mb=128 garbage_collection_threshold=0.8
  parkade enable expandable_segments:True,max_split_size_mb:128 --shell fish
  eval \"$(parkade enable expandable_segments)\" && python train.py
  parkade enable 'roundup_power2_divisions:[256:1,512:2,>:4]'")]
pub(crate) struct Args {
    /// KEY=VALUE, KEY alone for KEY=True, or a whole string KEY:VALUE,KEY:VALUE as PyTorch takes it.
    #[arg(required = true, value_name = "SETTING")]
    settings: Vec<String>,
    /// The shell to write the line for.
    #[arg(long, value_enum, default_value_t)]
    shell: Shell,
    /// The PyTorch version that will read them.
    #[arg(long, value_name = "RELEASE", default_value_t)]
    profile: Profile,
}

impl Command for Args {
    type Answer = Result<Line, String>;

    fn compute(&self) -> Result<Result<Line, String>> {
        let text = self.settings.iter().map(|setting| as_pytorch_writes(setting)).collect::<Vec<_>>().join(",");
        // A shell would end the command at a line break.
        let is_one_line = !text.contains(char::is_control);
        ensure!(is_one_line, "the settings {:?} have a control character in them", output::shorten(&text, 200));
        Ok(match parse(self.profile, &text) {
            Ok(settings) => Ok(Line { notes: notes::of(&settings), line: self.shell.line(VARIABLE, &text) }),
            Err(error) => Err(refusal(self.profile, &text, &error)),
        })
    }

    fn outcome(&self, line: &Result<Line, String>) -> Outcome {
        if line.is_ok() { Outcome::Good } else { Outcome::CheckFailed }
    }

    fn form(&self) -> Form {
        Form::Data
    }

    fn text(&self, line: &Result<Line, String>, out: &mut dyn Write) -> Result<()> {
        let Ok(line) = line else { return Ok(()) };
        let mut err = std::io::stderr().lock();
        for note in &line.notes {
            // Standard error may be closed.
            let _ = writeln!(err, "# {}", output::one_line(note));
        }
        Ok(writeln!(out, "{}", line.line)?)
    }

    fn remarks(&self, line: &Result<Line, String>) -> Vec<String> {
        line.as_ref().err().into_iter().cloned().collect()
    }
}

/// The line to run, and what it does.
pub(crate) struct Line {
    notes: Vec<String>,
    line: String,
}

fn parse(profile: Profile, text: &str) -> Result<Settings, SettingsError> {
    Settings::from_environment_as(&profile.rules().dialect, text)
}

/// A setting in PyTorch's notation. A key alone means True; KEY:VALUE is PyTorch's notation already.
fn as_pytorch_writes(setting: &str) -> String {
    match setting.find([':', '=']) {
        Some(place) if setting[place..].starts_with('=') => setting.replacen('=', ":", 1),
        None if !setting.trim().is_empty() => format!("{setting}:True"),
        _ => setting.to_owned(),
    }
}

/// PyTorch's refusal in its own words, and a hint if there is one.
fn refusal(profile: Profile, text: &str, error: &SettingsError) -> String {
    let exception = match error.kind() {
        ErrorKind::Value | ErrorKind::InvalidNumber => "ValueError",
        ErrorKind::Check | ErrorKind::Internal => "RuntimeError",
        ErrorKind::NumberOutOfRange => "IndexError",
    };
    let rules = profile.rules();
    let message = output::shorten(error.message(), 500);
    let mut says = format!("PyTorch {} refuses {:?}: {exception}: {message}", rules.name, output::shorten(text, 200));
    let other = RELEASES.iter().rev().find(|other| Settings::from_environment_as(&other.profile.dialect, text).is_ok());
    if let Some(other) = other {
        says += &format!(" (PyTorch {} accepts it: --profile {0})", other.profile.name);
    } else if error.message().starts_with("Unrecognized key") {
        let mut keys: Vec<&str> = rules.dialect.keys().collect();
        keys.sort_unstable();
        says += &format!(" (known: {})", keys.join(", "));
    } else if error.kind() == ErrorKind::InvalidNumber {
        says += " (a number was expected)";
    }
    says
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_may_be_written_in_three_ways() {
        for (written, text) in [
            ("expandable_segments", "expandable_segments:True"),
            ("max_split_size_mb=128", "max_split_size_mb:128"),
            ("expandable_segments:True,max_split_size_mb:128", "expandable_segments:True,max_split_size_mb:128"),
            ("roundup_power2_divisions=[256:1,>:4]", "roundup_power2_divisions:[256:1,>:4]"),
            ("a:b=c", "a:b=c"),
            ("", ""),
            (" ", " "),
        ] {
            assert_eq!(as_pytorch_writes(written), text);
        }
    }
}
