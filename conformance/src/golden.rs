//! Golden files: scripts with the real allocator's answers, written by `differential/golden.py` and kept in `golden/`.
//!
//! A file, compressed with xz, consists of the line `golden answers 1` followed by runs; each run is a header line
//! followed by one answer per line. The text of an operation is in its answer. Stats are written as differences from
//! the values that the same run last printed; the reader adds them up.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fmt, io};

use parkade::profile::{Profile, TieBreak};
use parkade::settings::SettingsError;
use parkade_recording::compression;
use parkade_recording::compression::DecompressError;
use parkade_replay::ops::{Addresses, OpsOptions, OpsRunner};
use serde_json::{Map, Value};
use thiserror::Error;

/// One script in one configuration, with the real allocator's answers.
#[derive(Clone, Debug)]
pub struct GoldenRun {
    /// The kind of script: the name of the file.
    pub flavour: String,
    /// The name of the settings in `CONFIGS` in `differential/programs.py`.
    pub config: String,
    /// The options with which the script ran.
    pub options: OpsOptions,
    /// The real allocator's answers, one line per operation.
    pub answers: Vec<String>,
}

/// The degree to which a run agrees with the real allocator's run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Agreement {
    /// Every byte is equal, apart from the registration counters of 2.11.
    Exact,
    /// Equal except for an order that depends on the addresses of the real allocator's objects, in this many
    /// operations.
    UpToHashOrder(u64),
}

impl GoldenRun {
    /// Returns the run's flavour and configuration, for messages.
    #[must_use]
    pub fn title(&self) -> String {
        format!("{}.{}", self.flavour, self.config)
    }

    /// Returns the operation of each line, as text.
    ///
    /// # Errors
    /// [`GoldenError::NoOperation`] for an answer without an operation.
    pub fn script(&self) -> Result<Vec<String>, GoldenError> {
        let operation = |(line, answer): (usize, &String)| {
            let value: Option<Value> = serde_json::from_str(answer).ok();
            let operation = value.and_then(|value| value["op"].as_str().map(str::to_owned));
            operation.ok_or_else(|| GoldenError::NoOperation { run: self.title(), line, answer: answer.clone() })
        };
        self.answers.iter().enumerate().map(operation).collect()
    }

    /// Runs the script on the core and returns its answers.
    ///
    /// # Errors
    /// [`GoldenError::Settings`] if the settings are refused, [`GoldenError::NoOperation`] if a line contains no
    /// operation.
    pub fn replay(&self) -> Result<Vec<String>, GoldenError> {
        let mut runner = OpsRunner::new(&self.options).map_err(|cause| GoldenError::Settings { run: self.title(), cause })?;
        let answer = |(line, operation): (usize, &String)| {
            let answer = runner.run_line(operation);
            answer.ok_or_else(|| GoldenError::NoOperation { run: self.title(), line, answer: self.answers[line].clone() })
        };
        self.script()?.iter().enumerate().map(answer).collect()
    }

    /// Compares the real answers with `ours`, the core's.
    ///
    /// # Errors
    /// The first line that differs, and the difference.
    pub fn compare(&self, ours: &[String]) -> Result<Agreement, Difference> {
        if self.answers.len() != ours.len() {
            let (theirs, ours) = (self.answers.len(), ours.len());
            return Err(Difference::new(format!("{}: {theirs} answers were recorded, but {ours} were produced", self.title())));
        }
        let pairs = || self.answers.iter().zip(ours);
        let is_exact = |(theirs, ours): (&String, &String)| match self.options.profile.tie_break {
            TieBreak::Address => without_registration(theirs) == *ours,
            TieBreak::SegmentAge | TieBreak::BlockAge => theirs == ours,
        };
        if pairs().all(is_exact) {
            return Ok(Agreement::Exact);
        }
        let mut comparison = Comparison::new(self.options.profile);
        for (number, (theirs, ours)) in pairs().enumerate() {
            let place = |difference: Difference| {
                Difference::new(format!("{}, line {number}: {difference}\n    {theirs:.200}", self.title()))
            };
            comparison.line(theirs, ours).map_err(place)?;
        }
        Ok(Agreement::UpToHashOrder(comparison.tolerated))
    }

    /// Runs the script on the core and compares the answers.
    ///
    /// # Errors
    /// Those of [`GoldenRun::replay`], and [`GoldenError::Differs`] with the first line that
    /// differs.
    pub fn check(&self) -> Result<Agreement, GoldenError> {
        Ok(self.compare(&self.replay()?)?)
    }
}

/// Returns the repository's folder with golden files. It exists only in a checkout of the
/// repository.
#[must_use]
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("oracle/golden")
}

/// Reads the repository's golden file for a flavour of scripts, for example `oom`.
///
/// # Errors
/// [`GoldenError::NoFolder`] without a checkout of the repository; all other errors are those of [`read_file`].
pub fn read(flavour: &str) -> Result<Vec<GoldenRun>, GoldenError> {
    let folder = folder();
    if !folder.is_dir() {
        return Err(GoldenError::NoFolder { folder });
    }
    read_file(&folder.join(format!("{flavour}.jsonl.xz")))
}

/// Reads a golden file.
///
/// # Errors
/// If the file cannot be read, is a different kind of file, or is damaged.
pub fn read_file(path: &Path) -> Result<Vec<GoldenRun>, GoldenError> {
    let path = path.to_owned();
    let packed = match std::fs::read(&path) {
        Ok(packed) => packed,
        Err(cause) => return Err(GoldenError::Io { path, cause }),
    };
    let unpacked = match compression::decompress(&packed) {
        Ok(unpacked) => unpacked,
        Err(cause) => return Err(GoldenError::Decompress { path, cause }),
    };
    let Ok(text) = std::str::from_utf8(&unpacked) else { return Err(GoldenError::NotGolden { path }) };
    let mut lines = text.lines();
    if lines.next() != Some("golden answers 1") {
        return Err(GoldenError::NotGolden { path });
    }
    let mut runs = Vec::new();
    while let Some(header) = lines.next() {
        let parsed: Option<Value> = serde_json::from_str(header).ok();
        match parsed.and_then(|parsed| run(&parsed["run"], &mut lines)) {
            Some(run) => runs.push(run),
            None => return Err(GoldenError::Damaged { path, header: header.to_owned() }),
        }
    }
    Ok(runs)
}

fn run<'a>(header: &Value, lines: &mut impl Iterator<Item = &'a str>) -> Option<GoldenRun> {
    let text = |key: &str| header[key].as_str().map(str::to_owned);
    let addresses = match header["addresses"].as_str()? {
        "up" => Addresses::Up,
        "down" => Addresses::Down,
        _ => return None,
    };
    let options = OpsOptions {
        settings: text("settings")?,
        capacity_bytes: header["capacity"].as_u64()?,
        addresses,
        profile: Profile::of(header["profile"].as_str().unwrap_or("2.11")).ok()?,
    };
    let count = usize::try_from(header["lines"].as_u64()?).ok()?;
    let mut printed = BTreeMap::new();
    let answers = lines.take(count).map(|line| with_sums(line, &mut printed)).collect::<Option<Vec<String>>>()?;
    (answers.len() == count).then_some(GoldenRun { flavour: text("flavour")?, config: text("config")?, options, answers })
}

/// Replaces the differences in the stats at the end of a line with values, by adding them up.
fn with_sums(line: &str, printed: &mut BTreeMap<String, Vec<i64>>) -> Option<String> {
    let Some((head, rest)) = line.rsplit_once("\"st\":{") else { return Some(line.to_owned()) };
    let mut out = format!("{head}\"st\":{{");
    let mut rest = rest.strip_suffix("}}")?;
    while !rest.is_empty() {
        let (name, after) = rest.strip_prefix('"')?.split_once("\":")?;
        let (numbers, after, is_list) = match after.strip_prefix('[') {
            Some(list) => list.split_once(']').map(|(numbers, after)| (numbers, after, true))?,
            None => {
                let end = after.find(',').unwrap_or(after.len());
                (&after[..end], &after[end..], false)
            }
        };
        let differences = numbers.split(',').map(|number| number.parse().ok()).collect::<Option<Vec<i64>>>()?;
        let sums = printed.entry(name.to_owned()).or_insert_with(|| vec![0; differences.len()]);
        sums.iter_mut().zip(&differences).for_each(|(sum, difference)| *sum += difference);
        let values = sums.iter().map(i64::to_string).collect::<Vec<_>>().join(",");
        out.push_str(&if is_list { format!("\"{name}\":[{values}]") } else { format!("\"{name}\":{values}") });
        rest = after.strip_prefix(',').unwrap_or(after);
        if !rest.is_empty() {
            out.push(',');
        }
    }
    out.push_str("}}");
    Some(out)
}

/// The reason why a golden file could not be read or its runs could not be checked.
#[derive(Debug, Error)]
pub enum GoldenError {
    /// There is no folder with golden files. They are part of the repository, not of the published crate.
    #[error("no golden files: there is no folder {}; the files are part of parkade's repository, not of the published crate", folder.display())]
    NoFolder {
        /// The folder.
        folder: PathBuf,
    },
    /// The file could not be read.
    #[error("{}: {cause}", path.display())]
    Io {
        /// Its path.
        path: PathBuf,
        /// The system's error; part of the message.
        cause: io::Error,
    },
    /// The file could not be decompressed.
    #[error("{}: {cause}", path.display())]
    Decompress {
        /// Its path.
        path: PathBuf,
        /// The error; part of the message.
        cause: DecompressError,
    },
    /// The file does not begin with the line `golden answers 1`.
    #[error("{}: not a golden file: its first line is not `golden answers 1`", path.display())]
    NotGolden {
        /// Its path.
        path: PathBuf,
    },
    /// A run in the file cannot be read.
    #[error("{}: damaged in the run with the header {header:.300}", path.display())]
    Damaged {
        /// The file's path.
        path: PathBuf,
        /// The header line of the run.
        header: String,
    },
    /// An answer does not name its operation.
    #[error("line {line} of {run} is not the answer to an operation: {answer:.300}")]
    NoOperation {
        /// The run: its flavour and configuration.
        run: String,
        /// The answer's index in the run, from 0.
        line: usize,
        /// The answer.
        answer: String,
    },
    /// The settings of the run were refused.
    #[error("{run}: {cause}")]
    Settings {
        /// The run: its flavour and configuration.
        run: String,
        /// PyTorch's error; part of the message.
        cause: SettingsError,
    },
    /// An answer differs from the real allocator's.
    #[error(transparent)]
    Differs(#[from] Difference),
}

/// The difference, as text of one line or more.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Difference(String);

impl Difference {
    fn new(what: impl fmt::Display) -> Difference {
        Difference(what.to_string())
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Difference {}

/// Returns a line without the registration counters of its segments: every `"reg":N,` is removed.
fn without_registration(line: &str) -> String {
    let mut parts = line.split("\"reg\":");
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        out.push_str(part.trim_start_matches(|c: char| c.is_ascii_digit()).trim_start_matches(','));
    }
    out
}

type Counters = BTreeMap<String, Value>;

/// Compares two runs of a script line by line: the real allocator's answers and the core's.
///
/// The rules are a subset of those in `differential/compare.py`. Everything must be equal except what depends on the
/// addresses of the real allocator's own objects, which some of its hash tables use as keys. No recorded script frees
/// blocks during a capture while other streams use them, so the order in which blocks become free must be equal
/// everywhere.
///
/// Restoring a checkpoint visits its pool's segments in the hash order of the blocks. In a `ckpt_load`,
/// - the order of segments in the entries, in `freed` and in `allocd` may differ, but not the order within a segment;
///   if several segments are missing, a different one may be named;
/// - after that, peaks may differ until they are reset.
///
/// The registration counter of segments (`reg`) is internal to the real allocator in 2.11 and is not compared; in 2.15 it orders
/// blocks.
///
/// A comparison in progress: the two runs' stats so far, and the orders that have been seen.
#[derive(Clone, Default, Debug)]
pub struct Comparison {
    theirs: Counters,
    ours: Counters,
    restore_order_showed: bool,
    compares_registration: bool,
    /// The number of operations in which a different order was tolerated.
    pub tolerated: u64,
}

/// Stats whose peaks depend on the order in which a pool's segments are restored.
const RESTORE_PEAKS: [&str; 8] = [
    "allocation.",
    "active.",
    "allocated_bytes.",
    "active_bytes.",
    "requested_bytes.",
    "oversize_allocations",
    "inactive_split.",
    "inactive_split_bytes.",
];

/// PyTorch's message for a missing segment in a checkpoint, up to the address.
const MISSING: &str = " could not find 0x";

impl Comparison {
    /// Creates a comparison under the rules of a PyTorch release.
    #[must_use]
    pub fn new(profile: &Profile) -> Comparison {
        Comparison { compares_registration: profile.tie_break != TieBreak::Address, ..Comparison::default() }
    }

    /// Compares the next line of each run.
    ///
    /// # Errors
    /// The difference, or the fact that a line is not a JSON object.
    pub fn line(&mut self, theirs: &str, ours: &str) -> Result<(), Difference> {
        let (mut theirs, mut ours) = (object(theirs)?, object(ours)?);
        update(&mut self.theirs, &mut theirs);
        update(&mut self.ours, &mut ours);
        match theirs.get("op").and_then(Value::as_str).unwrap_or_default() {
            "reset_peak" => self.restore_order_showed = false,
            operation if operation.starts_with("ckpt_load") => self.restore(&theirs, &mut ours),
            _ => {}
        }
        if theirs.get("ev") != ours.get("ev") {
            let [theirs, ours] = [theirs, ours].map(|mut line| line.remove("ev").unwrap_or_default());
            return Err(differ("ev", &theirs, &ours));
        }
        if let (Some(_), Some(_)) = (theirs.get("snapshot"), ours.get("snapshot")) {
            let pair = (theirs.remove("snapshot").unwrap_or_default(), ours.remove("snapshot").unwrap_or_default());
            self.snapshot(pair.0, pair.1)?;
        }
        if let (Some(Value::Object(their)), Some(Value::Object(our))) = (theirs.get("stats"), ours.get("stats")) {
            let collect = |map: &Map<String, Value>| map.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
            self.counters(&collect(their), &collect(our))?;
            theirs.remove("stats");
            ours.remove("stats");
        }
        if theirs != ours {
            return Err(differ("fields", &Value::Object(theirs), &Value::Object(ours)));
        }
        self.counters(&self.theirs, &self.ours)
    }

    /// Puts the segments of a restore in the real allocator's order if only the order differs.
    fn restore(&mut self, theirs: &Map<String, Value>, ours: &mut Map<String, Value>) {
        let says_missing =
            |line: &Map<String, Value>| line.get("msg").and_then(Value::as_str).is_some_and(|m| m.contains(MISSING));
        if says_missing(theirs) && says_missing(ours) {
            ours["msg"] = theirs["msg"].clone();
        }
        let fields = ["ev", "freed", "allocd"];
        let differ: Vec<&str> = fields.into_iter().filter(|&field| theirs.get(field) != ours.get(field)).collect();
        let only_order = |field: &&str| match (theirs.get(*field), ours.get(*field)) {
            (Some(theirs), Some(ours)) => by_segment(theirs) == by_segment(ours),
            _ => false,
        };
        if differ.is_empty() || !differ.iter().all(only_order) {
            return;
        }
        for field in differ {
            ours[field] = theirs[field].clone();
        }
        self.restore_order_showed = true;
        self.tolerated += 1;
    }

    fn snapshot(&self, mut theirs: Value, ours: Value) -> Result<(), Difference> {
        for segment in theirs["segments"].as_array_mut().into_iter().flatten().filter(|_| !self.compares_registration) {
            segment.as_object_mut().and_then(|segment| segment.remove("reg"));
        }
        if theirs == ours { Ok(()) } else { Err(differ("snapshot", &theirs, &ours)) }
    }

    fn counters(&self, theirs: &Counters, ours: &Counters) -> Result<(), Difference> {
        if theirs == ours {
            return Ok(());
        }
        let zero = Value::from(vec![0; 4]);
        for key in theirs.keys().chain(ours.keys()) {
            let (their, our) = (theirs.get(key).unwrap_or(&zero), ours.get(key).unwrap_or(&zero));
            let has_peak = RESTORE_PEAKS.iter().any(|name| key.starts_with(name));
            let peaks_differ = self.restore_order_showed && has_peak && [0, 2, 3].iter().all(|&value| their[value] == our[value]);
            if their != our && !peaks_differ {
                return Err(differ(key, their, our));
            }
        }
        Ok(())
    }
}

/// Groups trace entries, pointers or names of restored blocks by their segment.
fn by_segment(items: &Value) -> BTreeMap<String, Vec<&Value>> {
    let mut segments: BTreeMap<String, Vec<&Value>> = BTreeMap::new();
    for item in items.as_array().into_iter().flatten() {
        let pointer = item.as_str().or_else(|| item[1].as_str()).unwrap_or_default();
        let segment = pointer.rsplit('_').next().and_then(|pointer| pointer.split('+').next()).unwrap_or_default();
        segments.entry(segment.to_owned()).or_default().push(item);
    }
    segments
}

fn object(line: &str) -> Result<Map<String, Value>, Difference> {
    match serde_json::from_str(line) {
        Ok(Value::Object(object)) => Ok(object),
        _ => Err(Difference::new(format!("not a JSON object: {line}"))),
    }
}

fn differ(what: &str, theirs: &Value, ours: &Value) -> Difference {
    Difference::new(format!("{what}\n    real    {theirs:.600}\n    parkade {ours:.600}"))
}

/// Merges a line's changed stats into the stats so far.
fn update(counters: &mut Counters, line: &mut Map<String, Value>) {
    if let Some(Value::Object(changes)) = line.remove("st") {
        counters.extend(changes);
    }
}
