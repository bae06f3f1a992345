//! Golden files: scripts with the real allocator's answers, as `conformance/oracle/differential/golden.py` writes them.
//!
//! A file is the line `golden answers 1` and a sequence of runs, packed with xz. A run is a header line, then one answer a line. The text of each operation is in its
//! answer. Statistics are written as differences from the last time in the same run; reading adds them up again.

mod compare;
mod difference;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use parkade::profile::{Profile, TieBreak};
use parkade_recording::compression;
use serde_json::Value;

use crate::ops::{Addresses, OpsOptions, OpsRunner};
use difference::ensure;

pub use compare::{Comparison, without_registration};
pub use difference::Difference;

/// One script on one configuration, with the real allocator's answers.
#[derive(Clone, Debug)]
pub struct GoldenRun {
    /// Which kind of script.
    pub flavour: String,
    /// The name of its settings.
    pub config: String,
    /// What it ran on.
    pub options: OpsOptions,
    /// One line for each operation.
    pub answers: Vec<String>,
}

/// How a run compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Agreement {
    /// Every byte is the same, registration counters apart.
    Exact,
    /// The same but for what the order of streams decides, in so many operations.
    UpToStreamOrder(u64),
}

/// The folder of golden files.
#[must_use]
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("golden")
}

/// Reads the golden file of a flavour.
///
/// # Errors
/// If it is not one.
pub fn read(flavour: &str) -> Result<Vec<GoldenRun>, Difference> {
    let path = folder().join(format!("{flavour}.jsonl.xz"));
    let broken = |what: String| Difference::new(format!("{}: {what}", path.display()));
    let packed = std::fs::read(&path).map_err(|error| broken(error.to_string()))?;
    let unpacked = compression::decompress(&packed).map_err(|error| broken(error.to_string()))?;
    let text = std::str::from_utf8(&unpacked).map_err(|error| broken(error.to_string()))?;
    let mut lines = text.lines();
    ensure(lines.next() == Some("golden answers 1"), || format!("{} is no golden file", path.display()))?;
    let mut runs = Vec::new();
    while let Some(header) = lines.next() {
        let header: Value = serde_json::from_str(header).map_err(|error| broken(error.to_string()))?;
        runs.push(run(&header["run"], &mut lines).ok_or_else(|| broken(format!("damaged at {header}")))?);
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
        profile: match header["profile"].as_str() {
            None | Some("2.11") => &Profile::PYTORCH_2_11,
            Some("2.15") => &Profile::PYTORCH_2_15,
            Some(_) => return None,
        },
    };
    let count = usize::try_from(header["lines"].as_u64()?).ok()?;
    let mut printed = BTreeMap::new();
    let answers = lines.take(count).map(|line| with_sums(line, &mut printed)).collect::<Option<Vec<String>>>()?;
    (answers.len() == count).then_some(GoldenRun { flavour: text("flavour")?, config: text("config")?, options, answers })
}

/// A line whose statistics, which end it, are values again instead of differences.
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

impl GoldenRun {
    /// The operation of each line, as text.
    ///
    /// # Errors
    /// If an answer has none.
    pub fn script(&self) -> Result<Vec<String>, Difference> {
        let operation = |answer: &String| {
            let value: Option<Value> = serde_json::from_str(answer).ok();
            value
                .and_then(|value| value["op"].as_str().map(str::to_owned))
                .ok_or_else(|| Difference::new(format!("no operation in {answer}")))
        };
        self.answers.iter().map(operation).collect()
    }

    /// Runs the script on the core.
    ///
    /// # Errors
    /// If the settings are refused, or an operation is not one.
    pub fn replay(&self) -> Result<Vec<String>, Difference> {
        let mut runner = OpsRunner::new(&self.options).map_err(|error| Difference::new(error))?;
        let answer = |line: &String| runner.run_line(line).ok_or_else(|| Difference::new(format!("no operation: {line:?}")));
        self.script()?.iter().map(answer).collect()
    }

    /// Compares the real answers with the core's.
    ///
    /// # Errors
    /// The first line that differs, and how.
    pub fn compare(&self, ours: &[String]) -> Result<Agreement, Difference> {
        ensure(self.answers.len() == ours.len(), || format!("{} lines, {} answers", self.answers.len(), ours.len()))?;
        let pairs = || self.answers.iter().zip(ours);
        let is_exact = |(theirs, ours): (&String, &String)| match self.options.profile.tie_break {
            TieBreak::Address => without_registration(theirs) == *ours,
            TieBreak::SegmentAge => theirs == ours,
        };
        if pairs().all(is_exact) {
            return Ok(Agreement::Exact);
        }
        let mut comparison = Comparison::new(self.options.profile);
        for (number, (theirs, ours)) in pairs().enumerate() {
            let place = |broken: Difference| {
                Difference::new(format!("{}.{}, line {number}: {broken}\n    {theirs:.200}", self.flavour, self.config))
            };
            comparison.line(theirs, ours).map_err(place)?;
        }
        Ok(Agreement::UpToStreamOrder(comparison.tolerated))
    }
}
