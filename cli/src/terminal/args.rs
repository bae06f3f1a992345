//! Arguments that several commands share, and settings and policies by name, with hints on how to correct wrong ones.
//!
//! Settings are parsed as a PyTorch release parses them. An option that people guess when they mean the memory of a GPU, such as
//! `--card 24GiB` or `--vram 24GiB`, is an error that names the right one. None is an alias of `--capacity`: that is the memory that the
//! allocator may use, and a card has more, of which the driver takes a part.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::error::{ContextKind, ContextValue};
use clap::{Args, Command, Error};
use parkade::profile::{Profile as Rules, UnknownRelease};
use parkade::settings::{ErrorKind, Settings, SettingsError};
use parkade_analysis::advise::MemoryBudget;
use parkade_policies::{BESIDE, CATALOGUE, Named, Unknown, items};
use parkade_recording::{LimitSource, Recording, RunLimit};
use parkade_replay::recognition::{Asked, Recognition, find_limit};
use parkade_replay::{ReplaySettings, VerifyOptions};
use parkade_research::policies::policies;
use parkade_research::study::largest_batch::CONTEXT_BYTES;

use super::progress::WrongArgument;
use super::runner::Form;
use super::{output, recording, size};

/// `--json`.
#[derive(Args, Clone)]
pub struct Json {
    /// Print JSON, one object per line.
    #[arg(long)]
    pub json: bool,
}

impl Json {
    /// Returns JSON if it was requested, else text.
    pub fn form(&self) -> Form {
        Form::json_if(self.json)
    }
}

/// The output format of a command.
#[derive(Args, Clone, Copy, Default)]
pub struct Print {
    /// Print JSON, one object per line.
    #[arg(long)]
    pub json: bool,
    /// Print Markdown, for example for a comment on a pull request or the summary of a CI job.
    #[arg(long, conflicts_with = "json")]
    pub markdown: bool,
}

impl Print {
    /// Returns the requested format; the default is text.
    pub fn form(self) -> Form {
        if self.markdown { Form::Markdown } else { Form::json_if(self.json) }
    }
}

/// The recordings of commands that answer about each one separately.
#[derive(Args, Clone)]
pub struct Files {
    /// The recordings, or folders of them. Files that are numbered, such as rank0.pickle and rank1.pickle, and those of a folder are also
    /// compared as ranks of one job.
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Show everything that was found, not only the answer; for ranks, also the answer about each of them.
    #[arg(long)]
    pub all: bool,
}

/// `--force`, for commands that write files.
#[derive(Args, Clone, Copy)]
pub struct Force {
    /// Overwrite existing files, but never an input.
    #[arg(long)]
    pub force: bool,
}

/// `--recorded-limit`.
#[derive(Args, Clone)]
pub struct RecordedLimit {
    /// The memory limit of the recorded run, which the recording does not contain unless parkade run wrote it. It
    /// distinguishes calls to empty_cache from memory released because of the limit.
    #[arg(long, value_name = "SIZE", value_parser = size::parse, allow_hyphen_values = true)]
    pub recorded_limit: Option<u64>,
}

impl RecordedLimit {
    /// Returns the given limit, or else the one that the file records as a fraction of memory.
    pub fn bytes(&self, recording: &Recording) -> Option<u64> {
        let kept = || recording::kept_limit(recording).filter(|limit| limit.source == LimitSource::Fraction);
        self.recorded_limit.or_else(|| Some(kept()?.bytes))
    }

    /// Returns the recorded run's own settings with this limit, and the release that made the recording.
    ///
    /// # Errors
    /// The recorded settings are invalid, or no release could have made the recording.
    pub fn own(&self, recording: &Recording) -> Result<(VerifyOptions, Recognition)> {
        let limit_bytes = self.bytes(recording);
        let found = recording::made_by(recording, &Asked { limit_bytes, ..Asked::default() })?;
        Ok((VerifyOptions { settings: found.settings.clone(), limit_bytes, stats_file: None }, found))
    }

    /// Does the same, but infers the limit from garbage collections if none is given. Returns the options, the inferred limit and the
    /// release.
    ///
    /// # Errors
    /// The errors of [`RecordedLimit::own`], or the recording cannot be replayed.
    pub fn own_or_found(&self, recording: &Recording) -> Result<(VerifyOptions, Option<u64>, Recognition)> {
        let (own, made_by) = self.own(recording)?;
        // The collections on one device do not show the limits of the others.
        let found = match recording::traced(recording).as_slice() {
            [device] => find_limit(device, &own)?,
            _ => None,
        };
        Ok((VerifyOptions { limit_bytes: own.limit_bytes.or(found), ..own }, found, made_by))
    }
}

/// The arguments of commands that replay a recording under different settings.
#[derive(Args, Clone)]
pub struct Replay {
    /// The settings to replay under, as in PYTORCH_CUDA_ALLOC_CONF; '' means the default settings [default: the recording's own].
    #[arg(long, value_name = "SETTINGS")]
    pub settings: Option<String>,
    /// The device memory available to the allocator (excluding the driver's own, about 500 MiB). It is also the limit unless
    /// --limit is given. Without this option, as much as is needed.
    #[arg(long, value_name = "SIZE", value_parser = size::parse, allow_hyphen_values = true)]
    pub capacity: Option<u64>,
    /// The memory limit (set_per_process_memory_fraction).
    #[arg(long, value_name = "SIZE", value_parser = size::parse, allow_hyphen_values = true)]
    pub limit: Option<u64>,
    /// The limit of the recorded run.
    #[command(flatten)]
    pub recorded: RecordedLimit,
    /// The PyTorch release whose allocator decides, such as 2.11 or 2.11.0 [default: the one that made the recording].
    #[arg(long, value_name = "RELEASE")]
    pub profile: Option<Profile>,
}

impl Replay {
    /// Returns the given settings, as the named release parses them, or else the release `otherwise`.
    ///
    /// # Errors
    /// They are invalid.
    pub fn given(&self, otherwise: &'static Rules) -> Result<Option<ReplaySettings>> {
        let rules = self.rules(otherwise);
        self.settings.as_deref().map(|text| given_settings(rules, text)).transpose()
    }

    /// Returns the limit in bytes under settings with this memory fraction.
    ///
    /// # Errors
    /// The limit is a fraction of an unknown capacity.
    pub fn limit(&self, fraction: f64, otherwise: &'static Rules) -> Result<Option<u64>> {
        limit(self.limit, self.capacity, fraction, self.rules(otherwise))
    }

    /// Calls [`RecordedLimit::own_or_found`], and adds the release that `--profile` names to the recognition.
    ///
    /// # Errors
    /// Those of [`RecordedLimit::own_or_found`].
    pub fn own_or_found(&self, recording: &Recording) -> Result<(VerifyOptions, Option<u64>, Recognition)> {
        let (own, found, made_by) = self.recorded.own_or_found(recording)?;
        Ok((own, found, Recognition { decides_as: self.profile.map(Profile::rules), ..made_by }))
    }

    /// Returns the rules of the named release, or else `otherwise`.
    pub fn rules(&self, otherwise: &'static Rules) -> &'static Rules {
        self.profile.map_or(otherwise, Profile::rules)
    }
}

/// Returns the limit in bytes: the given one, or else the fraction of the capacity.
///
/// # Errors
/// The limit is a fraction of an unknown capacity.
pub fn limit(limit: Option<u64>, capacity: Option<u64>, fraction: f64, profile: &Rules) -> Result<Option<u64>> {
    match (limit, capacity) {
        (Some(limit), _) => Ok(Some(limit)),
        (None, Some(capacity)) if fraction < 1.0 => Ok(Some(profile.limit_rounding.limit(fraction, capacity))),
        (None, capacity) if fraction >= 1.0 => Ok(capacity),
        _ => bail!("per_process_memory_fraction:{fraction} is a fraction of the device's memory, which --capacity gives"),
    }
}

/// Returns the memory given by `--capacity` and `--limit`; without either option, the memory that the file records.
pub fn memory(capacity_bytes: Option<u64>, limit_bytes: Option<u64>, recording: &Recording) -> MemoryBudget {
    let given = MemoryBudget { capacity_bytes, limit_bytes };
    if given != MemoryBudget::default() {
        return given;
    }
    match recording::kept_limit(recording) {
        Some(RunLimit { bytes, source: LimitSource::Device }) => MemoryBudget { capacity_bytes: Some(bytes), limit_bytes: None },
        Some(RunLimit { bytes, .. }) => MemoryBudget { capacity_bytes: None, limit_bytes: Some(bytes) },
        None => given,
    }
}

/// The rules of a PyTorch release, selected by name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Profile(&'static Rules);

impl Profile {
    /// Returns the rules.
    pub const fn rules(self) -> &'static Rules {
        self.0
    }
}

impl Default for Profile {
    fn default() -> Profile {
        Profile(&Rules::PYTORCH_2_11)
    }
}

impl FromStr for Profile {
    type Err = UnknownRelease;

    fn from_str(name: &str) -> Result<Profile, UnknownRelease> {
        Rules::of(name).map(Profile)
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.name)
    }
}

/// Parses a number of seconds, at most a day.
///
/// # Errors
/// A one-line description of the accepted values.
pub fn interval(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.01..=86_400.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| format!("{text:?} is not a number of seconds from 0.01 to 86400"))
}

/// Parses settings.
///
/// # Errors
/// PyTorch refuses the settings. If possible, the error explains how to correct them.
pub fn given_settings(rules: &'static Rules, text: &str) -> Result<ReplaySettings> {
    ReplaySettings::given_as(rules, text).map_err(|error| match Settings::from_environment_as(&rules.dialect, text) {
        Err(refused) => {
            let (text, why) = (output::shorten(text, 200), settings_refusal(rules, text, &refused));
            WrongArgument(format!("the settings {text:?} are refused: {why}")).into()
        }
        Ok(_) => error.into(),
    })
}

/// Explains why PyTorch refuses settings and how to correct them. The reason is PyTorch's message, unless that is an
/// internal assertion.
pub fn settings_refusal(rules: &Rules, text: &str, error: &SettingsError) -> String {
    let why = match error.kind() {
        ErrorKind::Internal => "PyTorch stops with an internal error".to_owned(),
        _ => output::shorten(error.message(), 500),
    };
    match settings_hint(rules, text) {
        Some(hint) => format!("{why} ({hint})"),
        None => why,
    }
}

/// Returns a correction for the first wrong part of the text.
pub fn settings_hint(rules: &Rules, text: &str) -> Option<String> {
    let mut keys: Vec<&str> = rules.dialect.keys().collect();
    keys.sort_unstable();
    items(text).find_map(|part| hint_for(&keys, part))
}

fn hint_for(keys: &[&str], part: &str) -> Option<String> {
    let Some((key, value)) = part.split_once([':', '=']).map(|(key, value)| (key.trim(), value.trim())) else {
        let is_switch = keys.contains(&part) && SWITCHES.contains(&part);
        let value = if is_switch { "True" } else { "VALUE" };
        return keys.contains(&part).then(|| format!("write {part}:{value}"));
    };
    if !keys.contains(&key) {
        return nearest(keys, key).map(|near| format!("did you mean {near}?"));
    }
    let value = match value.to_ascii_lowercase().as_str() {
        "true" | "1" | "on" | "yes" if SWITCHES.contains(&key) => "True",
        "false" | "0" | "off" | "no" if SWITCHES.contains(&key) => "False",
        _ => value,
    };
    let right = format!("{key}:{value}");
    (part != right && part.replace(' ', "") != right).then(|| format!("write {right}"))
}

/// The keys with the values True and False.
const SWITCHES: [&str; 6] = [
    "expandable_segments",
    "graph_capture_record_stream_reuse",
    "pinned_use_background_threads",
    "pinned_use_cuda_host_register",
    "release_lock_on_cudamalloc",
    "throw_on_cudamalloc_oom",
];

/// Returns the key with the most similar spelling.
fn nearest<'a>(keys: &[&'a str], key: &str) -> Option<&'a str> {
    let begins = keys.iter().find(|known| !key.is_empty() && known.starts_with(key)).copied();
    let near = keys.iter().map(|known| (distance(key, known), *known)).min()?;
    begins.or((near.0 <= 3).then_some(near.1))
}

/// Returns the policy with this name, which may have parameters.
///
/// # Errors
/// There is none; the text states the reason or names similar policies.
pub fn policy(name: &str) -> Result<Named> {
    policies().named(name).map_err(|why| no_policy(name, &why))
}

/// Refuses `option`, which applies to PyTorch's allocator, beside a policy, which `--policy` or the file names.
///
/// # Errors
/// Both are given.
pub(crate) fn excluded_by(policy: Option<&str>, option: &str, is_given: bool) -> Result<()> {
    let Some(policy) = policy.filter(|_| is_given) else { return Ok(()) };
    let why = "it applies to PyTorch's allocator, which the policy replaces: leave it out";
    Err(WrongArgument(format!("{option} cannot be combined with the policy {policy}: {why}")).into())
}

/// Returns the policies of a grid, in which slashes separate the values of a parameter.
///
/// # Errors
/// As for [`policy`].
pub fn grid(name: &str) -> Result<Vec<Named>> {
    policies().grid(name).map_err(|why| no_policy(name, &why))
}

/// Returns the name of this program in commands that messages suggest. `parkade` does not know the policies that another program
/// declares.
pub fn program() -> String {
    let own = || Some(std::env::current_exe().ok()?.file_stem()?.to_str()?.to_owned());
    policies().own().next().and_then(|_| own()).unwrap_or_else(|| "parkade".to_owned())
}

fn no_policy(name: &str, why: &Unknown) -> anyhow::Error {
    let listed = CATALOGUE.iter().chain(BESIDE).map(|policy| &*policy.name);
    let own: Vec<&str> = policies().own().map(|policy| policy.entry.name).collect();
    let known = listed.chain(own);
    let why = if *why == Unknown::Name { suggestion(name, known) } else { format!(": {why}") };
    WrongArgument(format!("there is no policy {name:?}{why}")).into()
}

/// Returns up to three similar names as the end of a sentence. Options after the name are ignored.
pub(crate) fn suggestion<'a>(text: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let text = text.split(':').next().unwrap_or(text);
    let mut near: Vec<(usize, &str)> = known.into_iter().map(|name| (distance(text, name), name)).collect();
    near.sort_unstable();
    let close = near
        .iter()
        .filter(|(distance, name)| distance * 2 <= name.len().max(text.len()) || (!text.is_empty() && name.contains(text)));
    let names: Vec<&str> = close.take(3).map(|&(_, name)| name).collect();
    if names.is_empty() {
        "; parkade sweep --list lists all".to_owned()
    } else {
        format!(": did you mean {}?", names.join(" or "))
    }
}

/// The edit distance of the first 60 characters.
fn distance(one: &str, other: &str) -> usize {
    let [one, other] = [one, other].map(|text| text.chars().take(60).collect::<String>());
    strsim::levenshtein(&one, &other)
}

/// The options that people guess, without their hyphens.
const GUESSED: [&str; 14] = [
    "card",
    "gpu",
    "gpu-memory",
    "device-memory",
    "memory",
    "mem",
    "vram",
    "size",
    "gib",
    "gb",
    "max-memory",
    "memory-limit",
    "total",
    "ram",
];

/// Replaces clap's suggestion by the option that the command has for the memory of a GPU.
pub(crate) fn explain_guess(mut error: Error, program: &Command, arguments: &[OsString]) -> Error {
    if error.kind() != clap::error::ErrorKind::UnknownArgument {
        return error;
    }
    let Some(ContextValue::String(unknown)) = error.get(ContextKind::InvalidArg) else { return error };
    let guess = unknown.trim_start_matches('-').split('=').next().unwrap_or_default().to_ascii_lowercase().replace('_', "-");
    let text = |argument: &OsString| argument.to_string_lossy().into_owned();
    let command = arguments.get(1).and_then(|name| program.find_subcommand(name));
    let Some(command) = command.filter(|_| GUESSED.contains(&guess.as_str())) else { return error };
    let place = arguments.iter().position(|argument| text(argument).split('=').next() == unknown.split('=').next());
    let attached = place.and_then(|place| text(&arguments[place]).split_once('=').map(|(_, value)| value.to_owned()));
    let value = attached.or_else(|| arguments.get(place? + 1).map(text)).and_then(|value| size::parse(&value).ok());
    let Some(hint) = hint(command, value) else { return error };
    let styled = ContextValue::StyledStrs(vec![hint.into()]);
    error.remove(ContextKind::SuggestedArg);
    error.remove(ContextKind::Usage);
    error.insert(ContextKind::Suggested, styled);
    error
}

/// Names the options of a command that limit memory, with the value that they should have for a GPU of this size.
fn hint(command: &Command, gpu_bytes: Option<u64>) -> Option<String> {
    let has = |name: &str| command.get_arguments().any(|argument| argument.get_long() == Some(name));
    let usable = gpu_bytes.and_then(|bytes| bytes.checked_sub(CONTEXT_BYTES)).filter(|&bytes| bytes > 0);
    let of = |option: &str| {
        let value = usable.map_or_else(|| "SIZE".to_owned(), size::exact);
        let gpu = gpu_bytes.map_or_else(String::new, |bytes| format!(" for a GPU with {}", size::exact(bytes)));
        format!("--{option} {value}{gpu}")
    };
    let less = "the memory of the GPU minus about 500 MiB for the driver and what other processes use";
    let limit = "--limit SIZE is the limit that the program sets (set_per_process_memory_fraction)";
    match (has("capacity"), has("limit")) {
        (true, true) => Some(format!("use {}: {less}; {limit}", of("capacity"))),
        (true, false) => Some(format!("use {}: {less}", of("capacity"))),
        (false, true) => Some(format!("use {}: what the process may reserve, which is {less}", of("limit"))),
        (false, false) if has("capacities") => Some(format!(
            "use --capacities {}: factors of LOAD or sizes",
            gpu_bytes.map_or_else(|| "SIZE".to_owned(), size::exact)
        )),
        (false, false) if has("fail-above") => Some(format!(
            "use --fail-above {}: the bound on the peak of reserved memory",
            usable.map_or_else(|| "SIZE".to_owned(), size::exact)
        )),
        (false, false) => None,
    }
}

#[cfg(test)]
mod tests {
    use clap::Arg;

    use super::*;

    fn said(text: &str) -> String {
        let error = Settings::from_environment_as(&Rules::PYTORCH_2_11.dialect, text).expect_err("it is refused");
        settings_refusal(&Rules::PYTORCH_2_11, text, &error)
    }

    #[test]
    fn what_is_written_wrongly_is_written_right() {
        for (text, ends) in [
            ("expandable_segments=True", "internal error (write expandable_segments:True)"),
            ("expandable_segments", "internal error (write expandable_segments:True)"),
            ("max_split_size_mb", " (write max_split_size_mb:VALUE)"),
            ("max_split_size_mb:200,expandable_segments:true", " (write expandable_segments:True)"),
            ("expandable_segment:True", " (did you mean expandable_segments?)"),
            ("max_split:3", " (did you mean max_split_size_mb?)"),
        ] {
            assert!(said(text).ends_with(ends) && !said(text).contains("ASSERT"), "{text}: {}", said(text));
        }
        assert!(!said("nonsense:3").contains("did you mean"), "{}", said("nonsense:3"));
    }

    #[test]
    fn similar_names_are_suggested() {
        assert_eq!((distance("kitten", "sitting"), distance("", "ab"), distance("same", "same")), (3, 2, 0));
        assert_eq!(suggestion("pytorhc", ["pytorch", "bfc"]), ": did you mean pytorch?");
        assert_eq!(suggestion("pytorhc:handle=32MiB", ["pytorch", "bfc"]), ": did you mean pytorch?");
        assert_eq!(suggestion(":handle=32MiB", ["pytorch", "bfc"]), "; parkade sweep --list lists all");
        assert_eq!(suggestion("zzz", ["pytorch", "bfc"]), "; parkade sweep --list lists all");
    }

    fn corrected(options: &[&'static str], line: &str) -> String {
        let command = options.iter().fold(Command::new("advise"), |command, option| command.arg(Arg::new(*option).long(*option)));
        let program = Command::new("parkade").subcommand(command.arg(Arg::new("file")));
        let arguments: Vec<OsString> = line.split_whitespace().map(Into::into).collect();
        let error = program.clone().try_get_matches_from(&arguments).expect_err(line);
        explain_guess(error, &program, &arguments).to_string()
    }

    #[test]
    fn a_card_is_not_a_capacity_but_names_it() {
        let both = ["capacity", "limit"];
        for line in ["parkade advise f --card 24GiB", "parkade advise f --vram=24GiB", "parkade advise --GPU_MEMORY 24GiB f"] {
            assert!(
                corrected(&both, line).contains("use --capacity 24076MiB for a GPU with 24GiB: "),
                "{}",
                corrected(&both, line)
            );
        }
        assert!(corrected(&both, "parkade advise f --gpu A100").contains("use --capacity SIZE: "), "no size");
        assert!(corrected(&["limit"], "parkade advise f --memory 8GiB").contains("use --limit 7692MiB for a GPU with 8GiB"));
        assert!(!corrected(&both, "parkade advise f --nonsense 24GiB").contains("--capacity SIZE"));
        assert!(!corrected(&["all"], "parkade advise f --card 24GiB").contains("use --"));
    }
}
