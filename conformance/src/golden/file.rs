//! Reading golden files.
//!
//! A file, packed with xz, is the line `golden answers 1` and then runs, each a header line followed by one answer per line.
//! The text of an operation is in its answer. Stats are written as differences from when the same run last printed them;
//! reading adds them up.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use parkade::profile::Profile;
use parkade_recording::compression;
use serde_json::Value;

use super::error::GoldenError;
use super::run::GoldenRun;
use parkade_replay::ops::{Addresses, OpsOptions};

/// The repository's folder of golden files. It exists only in a checkout of the repository.
#[must_use]
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("oracle/golden")
}

/// Reads the repository's golden file for a flavour of scripts, for example `oom`.
///
/// # Errors
/// [`GoldenError::NoFolder`] without a checkout of the repository; otherwise as [`read_file`].
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
/// If it cannot be read, is another kind of file, or is damaged.
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

/// Adds up the stats at the end of a line: values instead of differences.
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
