//! `parkade enable`: the line that sets allocator settings in the environment, if PyTorch's parser accepts them.
//!
//! It adds notes on what the settings do, based on how the parser read the string, which may not be what was meant.
//!
//! [`Usable`] says how a program that runs PyTorch can use a policy: by a setting, through `parkade.enable`, or not.

use std::io::Write;

use anyhow::{Result, ensure};
use clap::{Parser, ValueEnum};
use parkade::profile::{Profile as Rules, RELEASES};
use parkade::settings::{Backend, ErrorKind, Settings, SettingsError};
use parkade::texts::format_double;
use parkade_analysis::caution::{Caution, Evidence, InUse, cautions};
use parkade_policies::base;

use crate::commands::beside::{enable_call, is_in_catalogue};
use crate::terminal::args::{self, Profile};
use crate::terminal::output;
use crate::terminal::runner::{Command, Form, Outcome};
use crate::terminal::size::show_bytes;

/// The variable that is set: the one of PyTorch's names that takes precedence.
const VARIABLE: &str = "PYTORCH_CUDA_ALLOC_CONF";

/// Print the line that sets PyTorch's allocator settings in a shell.
///
/// The settings are checked as a PyTorch process checks them when it starts, with its own messages. Standard output has only
/// the line; standard error explains what it does. Exit code: 0, or 1 if PyTorch rejects the settings.
///
/// The variable is PYTORCH_CUDA_ALLOC_CONF. PYTORCH_ALLOC_CONF is the newer name, but if both are set, PYTORCH_CUDA_ALLOC_CONF
/// overrides it completely in PyTorch 2.11 and 2.15. PyTorch reads it once, at startup.
#[derive(Parser)]
#[command(after_help = "Examples:
  parkade enable expandable_segments
  parkade enable max_split_size_mb=128 garbage_collection_threshold=0.8
  parkade enable max_split_size_mb:128,roundup_power2_divisions:4 --shell fish
  eval \"$(parkade enable expandable_segments)\" && python train.py
  parkade enable 'roundup_power2_divisions:[256:2,512:4,>:8]'")]
pub(crate) struct Args {
    /// KEY=VALUE, KEY alone for KEY=True, or an entire string KEY:VALUE,KEY:VALUE as PyTorch takes it.
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
    type Found = Result<Line, String>;

    fn compute(&self) -> Result<Result<Line, String>> {
        let text = self.settings.iter().map(|setting| as_pytorch_writes(setting)).collect::<Vec<_>>().join(",");
        // A shell would end the command at a line break.
        let is_one_line = !text.contains(char::is_control);
        ensure!(is_one_line, "the settings {:?} contain a control character", output::shorten(&text, 200));
        Ok(match parse(self.profile, &text) {
            Ok(settings) => Ok(Line { notes: of(&settings, self.profile.rules()), line: self.shell.line(VARIABLE, &text) }),
            Err(error) => Err(refusal(self.profile, &text, &error)),
        })
    }

    fn outcome(&self, line: &Result<Line, String>) -> Outcome {
        if line.is_ok() { Outcome::Good } else { Outcome::CheckFailed }
    }

    fn form(&self) -> Form {
        Form::Data
    }

    fn data(&self, line: &Result<Line, String>, out: &mut dyn Write) -> Result<()> {
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
    let message = args::settings_refusal(rules, text, error);
    let mut says = format!("PyTorch {} refuses {:?}: {exception}: {message}", rules.name, output::shorten(text, 200));
    let other = RELEASES.iter().rev().find(|other| Settings::from_environment_as(&other.profile.dialect, text).is_ok());
    if let Some(other) = other {
        says += &format!(" (PyTorch {} accepts it: --profile {0})", other.profile.name);
    } else if error.message().starts_with("Unrecognized key") && args::settings_hint(rules, text).is_none() {
        let mut keys: Vec<&str> = rules.dialect.keys().collect();
        keys.sort_unstable();
        says += &format!(" (known: {})", keys.join(", "));
    } else if error.kind() == ErrorKind::InvalidNumber {
        says += " (a number was expected)";
    }
    says
}

/// A line for each setting, and one for each known issue of these settings that concerns every program.
fn of(settings: &Settings, rules: &Rules) -> Vec<String> {
    let usual = Settings::default();
    let mut notes = Vec::new();
    if settings.backend == Backend::CudaMallocAsync {
        notes.push(String::from(
            "backend: CUDA's own allocator instead of PyTorch's; max_split_size_mb, roundup_power2_divisions and \
             garbage_collection_threshold have no effect with it",
        ));
    }
    if settings.expandable_segments {
        notes.push(String::from(
            "expandable_segments: a segment grows in place, so its free memory stays in one piece; garbage collection does not touch \
             it",
        ));
    }
    notes.extend(max_split(settings, &usual));
    notes.extend(garbage_collection(settings));
    if settings.per_process_memory_fraction < 1.0 {
        let percent = format_double(settings.per_process_memory_fraction * 100.0);
        notes.push(format!(
            "per_process_memory_fraction: no more than {percent} % of the device's total memory, not counting the CUDA context (about \
             500 MiB); a request beyond that runs out of memory even if the device has room"
        ));
    }
    if settings.large_segment_bytes != usual.large_segment_bytes {
        let size = show_bytes(settings.large_segment_bytes);
        notes.push(format!("large_segment_size_mb: requests of 1 to 10 MiB share segments of {size}"));
    }
    if settings.roundup_power2_divisions != usual.roundup_power2_divisions {
        notes.push(String::from(
            "roundup_power2_divisions: sizes are rounded up to steps between powers of two; blocks of fewer different sizes \
             are easier to reuse, but larger than their requests",
        ));
    }
    if notes.is_empty() {
        notes.push(String::from("this changes nothing: PyTorch manages the device's memory this way by default"));
    }
    let known = cautions(&InUse::unknown(), settings, rules).into_iter().filter(|caution| caution.in_use == Evidence::Shown);
    notes.extend(known.map(|caution| {
        let Caution { setting, what, instead, source, .. } = caution;
        format!("warning, {setting}: {what} {instead} [{source}]")
    }));
    notes
}

/// The most misunderstood setting.
fn max_split(settings: &Settings, usual: &Settings) -> Option<String> {
    if settings.max_split_bytes == usual.max_split_bytes {
        return None;
    }
    let size = show_bytes(settings.max_split_bytes);
    let slack = show_bytes(settings.max_non_split_rounding_bytes);
    Some(format!(
        "max_split_size_mb: free blocks of {size} or more never serve smaller requests, not even whole; a larger request takes \
         such a block if it leaves less than {slack} unused. A lower value keeps more blocks whole, a higher one fewer (the \
         minimum is 20)"
    ))
}

fn garbage_collection(settings: &Settings) -> Option<String> {
    let threshold = settings.garbage_collection_threshold;
    if threshold <= 0.0 {
        return None;
    }
    let percent = format_double(threshold * 100.0);
    let does = format!(
        "garbage_collection_threshold: before memory runs out, old free segments are released once more than {percent} % of"
    );
    Some(if settings.per_process_memory_fraction < 1.0 {
        format!("{does} the memory limit is reserved")
    } else {
        format!(
            "{does} a memory limit is reserved. Without a limit it does nothing: set per_process_memory_fraction too, or call \
             torch.cuda.set_per_process_memory_fraction"
        )
    })
}

/// A shell.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
enum Shell {
    /// sh, bash, zsh.
    #[default]
    Sh,
    /// fish.
    Fish,
    /// PowerShell.
    #[value(name = "powershell")]
    Power,
}

impl Shell {
    /// The line that exports an environment variable. The value has no control characters.
    fn line(self, variable: &str, value: &str) -> String {
        match self {
            Shell::Sh => format!("export {variable}={}", quote_if_needed(value, |value| value.replace('\'', "'\\''"))),
            Shell::Fish => {
                let escape = |value: &str| value.replace('\\', "\\\\").replace('\'', "\\'");
                format!("set -gx {variable} {}", quote_if_needed(value, escape))
            }
            Shell::Power => format!("$env:{variable} = '{}'", double_quotes(value)),
        }
    }
}

/// The line that sets PyTorch's settings in sh, bash and zsh.
fn shell_line(settings: &str) -> String {
    Shell::Sh.line(VARIABLE, settings)
}

/// The value in single quotes, unless no shell treats any of its characters specially.
fn quote_if_needed(value: &str, escape: impl FnOnce(&str) -> String) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ':' | ',' | '.');
    if !value.is_empty() && value.chars().all(is_plain) { value.to_owned() } else { format!("'{}'", escape(value)) }
}

/// PowerShell treats typographic quotes as quotes too.
fn double_quotes(value: &str) -> String {
    value.chars().flat_map(|c| std::iter::repeat_n(c, if matches!(c, '\'' | '\u{2018}'..='\u{201b}') { 2 } else { 1 })).collect()
}

/// How PyTorch can use a policy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Usable {
    /// It is what PyTorch does without settings.
    Default,
    /// With PyTorch's own settings.
    Setting(String),
    /// With a different release of PyTorch.
    Release,
    /// Through `parkade.enable`.
    Enable(String),
    /// It exists only in the simulator.
    Simulator,
}

parkade_recording::names! {
    Usable {
        Usable::Default => "default",
        Usable::Setting(_) => "setting",
        Usable::Release => "release",
        Usable::Enable(_) => "enable",
        Usable::Simulator => "simulator",
    }
}

/// Explains the words in the table.
pub(crate) const USABLE_LEGEND: &str = "in PyTorch: default and setting need only PyTorch; release needs the release that the \
                                        name states; enable needs parkade.enable (PyTorch 2.8 to 2.15); no means that the policy \
                                        exists only in the simulator";

impl Usable {
    /// How PyTorch can use the policy of this name.
    pub(crate) fn of(policy: &str) -> Usable {
        let parameter = |key: &str| {
            let (_, text) = policy.split_once(':')?;
            let (_, value) = text.split_once(&format!("{key}="))?;
            Some(value)
        };
        let settings = || parameter("settings").and_then(|value| value.strip_prefix('[')?.strip_suffix(']'));
        match base(policy) {
            "pytorch" if parameter("release").is_some() => Usable::Release,
            "pytorch" => settings().map_or(Usable::Default, |settings| Usable::Setting(shell_line(settings))),
            "pytorch-expandable" => Usable::Setting(shell_line("expandable_segments:True")),
            // Its plan comes from the program's first step, which the study knows and PyTorch does not.
            "stalloc" => Usable::Simulator,
            // The Python package has only the catalogue's policies.
            _ if !is_in_catalogue(policy) => Usable::Simulator,
            _ => Usable::Enable(enable_call(policy)),
        }
    }

    /// The word in the table.
    pub(crate) fn word(&self) -> &'static str {
        if *self == Usable::Simulator { "no" } else { self.name() }
    }

    /// The line to paste.
    pub(crate) fn line(&self) -> Option<&str> {
        match self {
            Usable::Setting(line) | Usable::Enable(line) => Some(line),
            Usable::Default | Usable::Release | Usable::Simulator => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use parkade_policies::{BESIDE, CATALOGUE};

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

    fn notes(text: &str) -> String {
        of(&Settings::from_environment(text).expect("taken"), &Rules::PYTORCH_2_11).join("\n")
    }

    #[test]
    fn a_threshold_is_warned_of_unless_there_is_a_limit() {
        assert!(
            notes("garbage_collection_threshold:0.8")
                .contains("80 % of a memory limit is reserved. Without a limit it does nothing")
        );
        let limited = notes("garbage_collection_threshold:0.8,per_process_memory_fraction:0.5");
        assert!(!limited.contains("does nothing") && limited.contains("no more than 50 %"), "{limited}");
    }

    #[test]
    fn settings_that_are_known_to_go_wrong_are_warned_of() {
        let both = notes("max_split_size_mb:128,expandable_segments:True");
        assert!(
            both.contains("warning, max_split_size_mb, expandable_segments: ") && both.contains("[pytorch/pytorch#123548"),
            "{both}"
        );
        let one = notes("roundup_power2_divisions:[>:1]");
        assert!(one.contains("warning, roundup_power2_divisions: "), "{one}");
        for fine in ["max_split_size_mb:128", "expandable_segments:True", "roundup_power2_divisions:[256:2,>:4]"] {
            assert!(!notes(fine).contains("warning"), "{fine}");
        }
    }

    #[test]
    fn notes_tell_what_was_understood() {
        assert!(notes("max_split_size_mb:128xyz").contains("free blocks of 128.00 MiB or more"));
        assert!(notes("large_segment_size_mb:40,max_split_size_mb:64").contains("less than 40.00 MiB unused"));
        assert!(notes("backend:cudaMallocAsync").contains("have no effect with it"));
        assert!(notes("expandable_segments:True").starts_with("expandable_segments: "));
        assert!(notes("roundup_power2_divisions:[256:2,>:4]").starts_with("roundup_power2_divisions: "));
        for nothing in ["", "expandable_segments:False", "pinned_num_register_threads:4"] {
            assert!(notes(nothing).contains("by default"), "{nothing}");
        }
    }

    const NASTY: &str = "max_split_size_mb:64'; echo \\pwned $(id) `id` \"";

    #[test]
    fn plain_values_stay_plain() {
        let value = "expandable_segments:True,max_split_size_mb:128";
        assert_eq!(Shell::Sh.line("V", value), format!("export V={value}"));
        assert_eq!(Shell::Fish.line("V", value), format!("set -gx V {value}"));
        assert_eq!(Shell::Power.line("V", value), format!("$env:V = '{value}'"));
        assert_eq!(Shell::Sh.line("V", "[256:1,>:4]"), "export V='[256:1,>:4]'");
        assert_eq!(Shell::Sh.line("V", ""), "export V=''");
    }

    #[test]
    fn quotes_do_not_end_the_value() {
        assert_eq!(Shell::Sh.line("V", "a'b"), r"export V='a'\''b'");
        assert_eq!(Shell::Fish.line("V", r"a'b\c"), r"set -gx V 'a\'b\\c'");
        assert_eq!(Shell::Power.line("V", "a'b\u{2019}c"), "$env:V = 'a''b\u{2019}\u{2019}c'");
    }

    /// The shell that is on every Unix machine reads back what was written.
    #[cfg(unix)]
    #[test]
    fn a_real_shell_reads_the_value_back() {
        for value in [NASTY, "'", "''", "\\", "a b", "*", "~", "!x", "#", "-n"] {
            let script = format!("{}; printf %s \"$V\"", Shell::Sh.line("V", value));
            let output = std::process::Command::new("sh").args(["-c", &script]).output().expect("sh runs");
            assert_eq!(String::from_utf8_lossy(&output.stdout), value);
        }
    }

    #[test]
    fn each_policy_has_its_line() {
        let line = |policy: &str| Usable::of(policy).line().map(str::to_owned);
        let export = |value: &str| Some(format!("export PYTORCH_CUDA_ALLOC_CONF={value}"));
        assert_eq!(line("pytorch-expandable"), export("expandable_segments:True"));
        let settings = "roundup_power2_divisions:[256:1,>:4],max_split_size_mb:20";
        assert_eq!(line(&format!("pytorch:settings=[{settings}]")), export(&format!("'{settings}'")));
        assert_eq!(line("best-fit-remap:fit=first").as_deref(), Some("parkade.enable(policy=\"best-fit-remap:fit=first\")"));
        assert_eq!(line("compaction").as_deref(), Some("parkade.enable(policy=\"compaction\", serial=True)"));
        assert_eq!(Usable::of("pytorch:release=2.15;settings=[expandable_segments:True]"), Usable::Release);
        for policy in CATALOGUE.iter().chain(BESIDE) {
            let usable = Usable::of(&policy.name);
            assert_eq!(usable == Usable::Simulator, policy.name == "stalloc", "{}", policy.name);
            assert_eq!(usable.line().is_some(), matches!(usable, Usable::Setting(_) | Usable::Enable(_)), "{}", policy.name);
        }
    }
}
