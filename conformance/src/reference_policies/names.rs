//! A second reader of the names of policies: `NAME` or `NAME:key=value;key=value`, former names, and grids.
//!
//! It repeats the declarations of the catalogue and shares no code with it. Every text is read from its beginning to its end, and
//! nothing is remembered.

use std::fmt;

use parkade::profile::RELEASES;
use parkade::settings::Backend;

use crate::reference_model::settings::{at_load, defaults};

/// The values that a parameter accepts.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// One of these words.
    Word(&'static [&'static str]),
    /// A number from the first to the second one.
    Number(u64, u64),
    /// A number of bytes from the first to the second one, and the word for no limit, which may be empty.
    Size(u64, u64, &'static str),
    /// Any text.
    Text,
}

/// A parameter: its key, its default and the values that it accepts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Key(pub &'static str, pub &'static str, pub Kind);

/// A policy with its parameters, in the order in which names list them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Declared(pub &'static str, pub &'static [Key]);

const RELEASE: Key = Key("release", "2.11", Kind::Text);
const SETTINGS: Key = Key("settings", "", Kind::Text);
const HANDLES: &[&str] = &["2MiB", "4MiB", "8MiB", "16MiB", "20MiB", "32MiB", "64MiB", "128MiB", "256MiB", "512MiB", "1GiB"];
const OF_COMPACTION: Kind = Kind::Size(8 << 20, 16 << 30, "");

/// The policies of the catalogue.
pub(crate) const DECLARED: [Declared; 9] = [
    Declared("pytorch", &[RELEASE, SETTINGS]),
    Declared(
        "best-fit-remap",
        &[Key("fit", "best", Kind::Word(&["best", "first", "next", "worst"])), Key("handle", "2MiB", Kind::Word(HANDLES))],
    ),
    Declared(
        "bfc",
        &[
            Key("kind", "growth", Kind::Word(&["growth", "one-region", "xla", "xla-growth"])),
            Key("waste", "128MiB", Kind::Size(256, 16 << 40, "")),
        ],
    ),
    Declared("stalloc", &[]),
    Declared("rmm-pool", &[Key("initial_percent", "50", Kind::Number(0, 100))]),
    Declared("cuda-async", &[Key("threshold", "unlimited", Kind::Size(0, 16 << 40, "unlimited"))]),
    Declared("gmlake-like", &[Key("fragment", "512MiB", Kind::Size(2 << 20, 16 << 40, ""))]),
    Declared("pytorch-rescue", &[RELEASE, SETTINGS, Key("reach", "breaks", Kind::Word(&["breaks", "free"]))]),
    Declared("compaction", &[Key("first", "384MiB", OF_COMPACTION), Key("most", "512MiB", OF_COMPACTION)]),
];

/// Former names and what they are called now.
pub(crate) const RENAMED: [(&str, &str); 15] = [
    ("first-fit", "best-fit-remap:fit=first"),
    ("next-fit", "best-fit-remap:fit=next"),
    ("best-fit", "best-fit-remap"),
    ("worst-fit", "best-fit-remap:fit=worst"),
    ("first-fit-remap", "best-fit-remap:fit=first"),
    ("next-fit-remap", "best-fit-remap:fit=next"),
    ("worst-fit-remap", "best-fit-remap:fit=worst"),
    ("bfc-one-region", "bfc:kind=one-region"),
    ("bfc-prealloc", "bfc:kind=xla"),
    ("bfc-xla", "bfc:kind=xla"),
    ("bfc-xla-growth", "bfc:kind=xla-growth"),
    ("breaking-handles", "compaction"),
    ("gmlake", "gmlake-like"),
    ("pytorch-2.15", "pytorch:release=2.15"),
    ("pytorch-2.15-expandable", "pytorch:release=2.15;settings=[expandable_segments:True]"),
];

/// Names of policies that were removed, and what to use instead.
pub(crate) const REMOVED: [(&str, &str); 7] = [
    ("buddy", "best-fit-remap"),
    ("floating-handles", "pytorch-rescue:reach=free"),
    ("pytorch-expandable-reuse", "pytorch-expandable"),
    ("rmm-arena", "rmm-pool"),
    ("slab", "best-fit-remap"),
    ("tlsf", "bfc:kind=one-region"),
    ("tlsf-remap", "best-fit-remap"),
];

/// The name of PyTorch's policy with expandable segments and nothing else.
pub(crate) const EXPANDABLE: &str = "pytorch-expandable";
const EXPANDABLE_ONLY: &str = "expandable_segments:True";

/// The largest number of policies in a grid.
const MOST_OF_A_GRID: usize = 10_000;

/// What a name leads to.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Found {
    /// The only form of the name.
    pub name: String,
    /// The policy's name without parameters.
    pub stem: &'static str,
    /// The values of all parameters, in the order of the declaration: the key, the value, and its number or bytes.
    pub values: Vec<(&'static str, String, u64)>,
}

/// The reason why a name leads to no policy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Refusal {
    Unknown,
    Renamed(String),
    Removed(&'static str),
    /// A parameter is wrong; the message contains these texts.
    Parameter(Vec<String>),
}

fn wrong<T>(mentions: &[&str]) -> Result<T, Refusal> {
    Err(Refusal::Parameter(mentions.iter().map(ToString::to_string).collect()))
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Word(words) => write!(f, "one of {}", words.join(", ")),
            Kind::Number(least, most) => write!(f, "a whole number from {least} to {most}"),
            Kind::Size(least, most, "") => write!(f, "a size from {} to {}", size_text(*least), size_text(*most)),
            Kind::Size(least, most, word) => {
                write!(f, "a size from {} to {} with its unit, or {word}", size_text(*least), size_text(*most))
            }
            Kind::Text => Ok(()),
        }
    }
}

impl Kind {
    /// Returns the only form of a value, and its number or bytes; `None` if it is not accepted.
    pub(crate) fn form(self, value: &str) -> Option<(String, u64)> {
        match self {
            Kind::Text => Some((value.to_owned(), 0)),
            Kind::Word(words) => words.contains(&value).then(|| (value.to_owned(), 0)),
            Kind::Size(_, _, word) if !word.is_empty() && value == word => Some((word.to_owned(), u64::MAX)),
            Kind::Number(least, most) => within(whole(value)?, least, most).map(|number| (number.to_string(), number)),
            Kind::Size(least, most, _) => {
                let letters = value.chars().rev().take_while(char::is_ascii_alphabetic).count();
                let (number, unit) = value.split_at(value.len() - letters);
                let (_, bytes) = UNITS.iter().find(|(name, _)| *name == unit)?;
                within(whole(number)? * u128::from(*bytes), least, most).map(|bytes| (size_text(bytes), bytes))
            }
        }
    }

    /// Returns the values at the borders: every word, or the least and the greatest value and the word for no limit.
    pub(crate) fn borders(self) -> Vec<String> {
        match self {
            Kind::Text => Vec::new(),
            Kind::Word(words) => words.iter().map(ToString::to_string).collect(),
            Kind::Number(least, most) => vec![format!("{least}"), format!("{most}")],
            Kind::Size(least, most, "") => vec![size_text(least), size_text(most)],
            Kind::Size(least, most, word) => vec![size_text(least), size_text(most), word.to_owned()],
        }
    }
}

const UNITS: [(&str, u64); 5] = [("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1 << 40)];

/// Returns a size in its largest whole unit.
fn size_text(bytes: u64) -> String {
    let whole = UNITS.iter().rfind(|(_, unit)| bytes >= *unit && bytes.is_multiple_of(*unit));
    whole.map_or_else(|| format!("{bytes}B"), |(name, unit)| format!("{}{name}", bytes / unit))
}

/// Returns the number that consists of these digits. Numbers far above 64 bits all become the same one.
fn whole(text: &str) -> Option<u128> {
    let mut number = None;
    for letter in text.chars() {
        let digit = letter.is_ascii().then(|| letter.to_digit(10)).flatten()?;
        number = Some((number.unwrap_or(0) * 10 + u128::from(digit)).min(1 << 80));
    }
    number
}

fn within(number: u128, least: u64, most: u64) -> Option<u64> {
    u64::try_from(number).ok().filter(|number| *number >= least && *number <= most)
}

/// Returns the pieces of a text between separators that are outside brackets.
pub(crate) fn pieces(text: &str, separator: char) -> Vec<String> {
    let (mut pieces, mut open) = (vec![String::new()], 0_usize);
    for letter in text.chars() {
        if letter == separator && open == 0 {
            pieces.push(String::new());
            continue;
        }
        if letter == '[' {
            open += 1;
        } else if letter == ']' && open > 0 {
            open -= 1;
        }
        pieces.last_mut().expect("there is a piece").push(letter);
    }
    pieces
}

/// Returns whether each bracket has its partner.
fn is_paired(text: &str) -> bool {
    let mut open = 0;
    for letter in text.chars() {
        match letter {
            '[' => open += 1,
            ']' if open == 0 => return false,
            ']' => open -= 1,
            _ => {}
        }
    }
    open == 0
}

/// Returns the keys and values in a text.
fn pairs(declared: &Declared, text: &str) -> Result<Vec<(String, String)>, Refusal> {
    if declared.1.is_empty() {
        return wrong(&[declared.0, "has no parameters"]);
    }
    if !is_paired(text) {
        return wrong(&["brackets"]);
    }
    let mut pairs = Vec::new();
    for piece in pieces(text, ';') {
        let (key, value) = piece.trim().split_once('=').unwrap_or((piece.trim(), ""));
        if !piece.trim().is_empty() {
            pairs.push((key.trim().to_owned(), value.trim().to_owned()));
        }
    }
    Ok(pairs)
}

/// Reads the name of one of these policies.
pub(crate) fn read(known: &[Declared], text: &str) -> Result<Found, Refusal> {
    let text = text.trim();
    let (stem, parameters) = text.split_once(':').map_or((text, None), |(stem, parameters)| (stem, Some(parameters)));
    if let Some((_, now)) = RENAMED.iter().find(|(before, _)| *before == stem) {
        let parameters = parameters.unwrap_or_default();
        let both = if now.contains(':') { format!("{now};{parameters}") } else { format!("{now}:{parameters}") };
        let keeps = !parameters.is_empty() && read(known, &both).is_ok();
        return Err(Refusal::Renamed(if keeps { both } else { now.to_string() }));
    }
    if let Some((_, instead)) = REMOVED.iter().find(|(before, _)| *before == stem) {
        return Err(Refusal::Removed(instead));
    }
    if stem == EXPANDABLE {
        return match parameters {
            None => read(known, "pytorch:settings=[expandable_segments:True]"),
            Some(_) => wrong(&[EXPANDABLE, "has no parameters; pytorch has"]),
        };
    }
    let Some(declared) = known.iter().find(|declared| declared.0 == stem) else {
        // PyTorch 2.11 reads settings.
        let is_setting = parameters.is_some() && at_load(11, text).is_ok();
        return if is_setting { wrong(&["it is a setting", "brackets"]) } else { Err(Refusal::Unknown) };
    };
    let mut given: Vec<(&'static str, String, u64)> = Vec::new();
    if let Some(parameters) = parameters {
        for (key, value) in pairs(declared, parameters)? {
            given.push(value_of(declared, &given, &key, &value)?);
        }
    }
    let usual = |&Key(key, usual, kind): &Key| {
        let found = given.iter().find(|(given, ..)| *given == key).cloned();
        found.unwrap_or_else(|| (key, usual.to_owned(), kind.form(usual).map_or(0, |(_, number)| number)))
    };
    let mut values: Vec<_> = declared.1.iter().map(usual).collect();
    if stem == "pytorch" || stem == "pytorch-rescue" {
        values[0].1 = release_in_short(&values[0].1)?;
        values[1].1 = settings_in_short(stem == "pytorch-rescue", &values[0].1, &values[1].1)?;
    }
    Ok(in_one_form(declared, values))
}

/// Reads the value of one parameter, after the others.
fn value_of(
    declared: &Declared,
    before: &[(&'static str, String, u64)],
    key: &str,
    value: &str,
) -> Result<(&'static str, String, u64), Refusal> {
    let Some(Key(known, _, kind)) = declared.1.iter().find(|known| known.0 == key) else {
        let keys: Vec<&str> = declared.1.iter().map(|known| known.0).collect();
        return wrong(&[&format!("{key:?}"), &keys.join(", ")]);
    };
    if before.iter().any(|(before, ..)| before == known) {
        return wrong(&[key, "is given twice"]);
    }
    if pieces(value, '/').len() > 1 {
        return wrong(&[key, value, "several values"]);
    }
    let is_closed = value.len() >= 2 && value.starts_with('[') && value.ends_with(']');
    let value = if is_closed { value[1..value.len() - 1].trim() } else { value };
    if value.is_empty() && !matches!(kind, Kind::Text) {
        return wrong(&[key, "has no value", &kind.to_string()]);
    }
    let Some((form, number)) = kind.form(value) else { return wrong(&[key, value, &kind.to_string()]) };
    Ok((known, form, number))
}

/// Returns a release's series, whose releases all have the same rules.
fn release_in_short(release: &str) -> Result<String, Refusal> {
    let public = release.split('+').next().unwrap_or_default();
    for known in RELEASES {
        let series = known.name.rsplit_once('.').map_or("", |(series, _)| series);
        if public == known.name || public == series {
            return Ok(series.to_owned());
        }
    }
    wrong(&[&format!("{release:?}"), "the known releases are"])
}

/// Returns the settings as names contain them: empty if they change nothing.
fn settings_in_short(is_rescue: bool, series: &str, text: &str) -> Result<String, Refusal> {
    let minor = series.split('.').nth(1).and_then(|minor| minor.parse().ok()).expect("the name of a series");
    let mut settings = match at_load(minor, text) {
        Ok(settings) => settings,
        Err((_, says)) => return wrong(&["refuses these settings", &says]),
    };
    let expands = at_load(minor, &format!("{EXPANDABLE_ONLY},{text}")).is_ok_and(|settings| settings.expandable_segments);
    if is_rescue && !expands {
        return wrong(&["a rescue needs expandable segments"]);
    }
    if settings.per_process_memory_fraction < 1.0 {
        return wrong(&["per_process_memory_fraction", "limit"]);
    }
    if settings.backend == Backend::CudaMallocAsync {
        return wrong(&["cudaMallocAsync", "cuda-async"]);
    }
    settings.text.clear();
    let is_expandable = settings.expandable_segments;
    settings.expandable_segments = false;
    Ok(match (settings == defaults(), is_expandable) {
        (true, false) => String::new(),
        (true, true) if is_rescue => String::new(),
        (true, true) => EXPANDABLE_ONLY.to_owned(),
        (false, _) => text.to_owned(),
    })
}

fn in_one_form(declared: &Declared, values: Vec<(&'static str, String, u64)>) -> Found {
    let mut parts = Vec::new();
    for (Key(key, usual, _), (_, value, _)) in declared.1.iter().zip(&values) {
        if value != usual {
            parts.push(if *key == "settings" { format!("{key}=[{value}]") } else { format!("{key}={value}") });
        }
    }
    let name = match parts.as_slice() {
        [] => declared.0.to_owned(),
        [only] if declared.0 == "pytorch" && *only == format!("settings=[{EXPANDABLE_ONLY}]") => EXPANDABLE.to_owned(),
        parts => format!("{}:{}", declared.0, parts.join(";")),
    };
    Found { name, stem: declared.0, values }
}

/// Reads a grid. Returns the names of its policies, each once.
pub(crate) fn read_grid(known: &[Declared], text: &str) -> Result<Vec<String>, Refusal> {
    let text = text.trim();
    let (stem, parameters) = text.split_once(':').unwrap_or((text, ""));
    let declared = known.iter().find(|declared| declared.0 == stem).filter(|_| pieces(parameters, '/').len() > 1);
    let Some(declared) = declared else { return read(known, text).map(|found| vec![found.name]) };
    let choices: Vec<(String, Vec<String>)> =
        pairs(declared, parameters)?.into_iter().map(|(key, values)| (key, pieces(&values, '/'))).collect();
    let count = choices.iter().fold(1, |count: usize, (_, values)| count.saturating_mul(values.len()));
    if count > MOST_OF_A_GRID {
        return wrong(&[&MOST_OF_A_GRID.to_string(), "combinations"]);
    }
    let mut names = Vec::new();
    for number in 0..count {
        // The combinations are counted like the digits of a number, whose last digit is the last parameter.
        let (mut rest, mut parts) = (number, Vec::new());
        for (key, values) in choices.iter().rev() {
            parts.push(format!("{key}={}", values[rest % values.len()].trim()));
            rest /= values.len();
        }
        parts.reverse();
        let name = read(known, &format!("{stem}:{}", parts.join(";")))?.name;
        if !names.contains(&name) {
            names.push(name);
        }
    }
    Ok(names)
}
