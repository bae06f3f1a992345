//! Request traces as files: which files are traces, by name or by beginning, and how they are opened (docs/trace.md).

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, Error, Result};
use flate2::read::MultiGzDecoder;
use parkade_recording::compression::{self, Compression};
use parkade_research::workload::Workload;
use parkade_research::workload::trace::{self, TraceError};

/// The endings of files that are traces of any allocator.
const TRACES: [&str; 3] = ["jsonl", "ndjson", "csv"];
/// The endings of the two files that XLA writes about a program's memory.
const XLA: [&str; 2] = ["-buffer-assignment.txt", "-live-range.txt"];

/// Whether a file is a trace of any allocator, by its name or, for some traces of other programs, by its beginning.
pub(in crate::commands) fn is_trace(path: &Path) -> bool {
    let is_named = TRACES.iter().any(|end| path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case(end)));
    let is_recognized = || {
        let (compression, head) = beginning(path);
        matches!(compression, Compression::None | Compression::Gzip) && trace::is_recognized(&head)
    };
    is_named || is_recognized()
}

/// Returns the reason why a file cannot be read, which is neither a recording nor a trace.
pub(in crate::commands) fn why_unread(path: &Path, error: Error) -> Error {
    trace::without_lifetimes(&beginning(path).1).map_or(error, |says| TraceError::NoLifetimes(says).into())
}

/// The programs of a trace: one, except for a profile of several devices.
///
/// # Errors
/// The file cannot be read.
pub(super) fn read(path: &Path) -> Result<Vec<Workload>> {
    let unread = "cannot be read";
    let name = name(path);
    let open = |path: &Path| File::open(path).map(BufReader::new).context(unread);
    if beginning(path).0 == Compression::Gzip {
        let file = open(path)?;
        let limit = compression::decompressed_limit(file.get_ref().metadata().context(unread)?.len());
        return Ok(trace::read(&name, BufReader::new(MultiGzDecoder::new(file).take(limit)))?);
    }
    let file = open(path)?;
    let programs = match other_of_xla(path).filter(|other| other.is_file()) {
        Some(other) => trace::read(&name, file.chain(open(&other)?)),
        None => trace::read(&name, file),
    };
    Ok(programs?)
}

/// A file's compression and its first decompressed bytes; none if it may be readable only once.
fn beginning(path: &Path) -> (Compression, Vec<u8>) {
    const LOOKED_AT_BYTES: u64 = 64 << 10;
    let mut bytes = Vec::new();
    if path.is_file()
        && let Ok(file) = File::open(path)
        && file.take(LOOKED_AT_BYTES).read_to_end(&mut bytes).is_ok()
    {
        return (compression::detect(&bytes), compression::beginning(&bytes, LOOKED_AT_BYTES));
    }
    (Compression::None, Vec::new())
}

/// The file that XLA writes beside this one.
fn other_of_xla(path: &Path) -> Option<PathBuf> {
    let name = path.file_name()?.to_str()?;
    let [sizes, ranges] = XLA;
    let other = |own: &str, other: &str| name.strip_suffix(own).map(|program| path.with_file_name(format!("{program}{other}")));
    other(sizes, ranges).or_else(|| other(ranges, sizes))
}

/// The name of a trace's program: the file's, without endings.
fn name(path: &Path) -> String {
    let file = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    if let Some(program) = XLA.iter().find_map(|end| file.strip_suffix(end)) {
        return program.to_owned();
    }
    let unpacked = file.strip_suffix(".gz").unwrap_or(&file);
    Path::new(unpacked).file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned())
}
