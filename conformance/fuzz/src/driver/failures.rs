//! Inputs that failed: written to files, made smaller, and run again.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::execute::{Execution, Failure, execute};
use super::input::Input;
use crate::choices::Choices;
use crate::targets::{TARGETS, Target};

/// How long an input is made smaller.
const PATIENCE: Duration = Duration::from_secs(5);

/// The input with the fewest choices found that fails in the same way at the same place.
pub(super) fn smaller(target: &Target, input: &Input, failure: &Failure) -> Input {
    let start = Instant::now();
    let fails = |choices: &[u8]| {
        let bytes = (target.make)(&mut Choices::new(choices));
        let found = execute(target, &bytes, input.case).reached;
        let is_same = found.is_err_and(|found| (found.kind, &found.place) == (failure.kind, &failure.place));
        is_same.then(|| Input { choices: choices.to_vec(), bytes, case: input.case })
    };
    let mut best = input.clone();
    // Shorter by halves, then with parts that are zero, which is the first choice.
    let mut cut = best.choices.len() / 2;
    while cut > 0 && start.elapsed() < PATIENCE {
        match fails(&best.choices[..best.choices.len().saturating_sub(cut)]) {
            Some(found) if found.bytes.len() <= best.bytes.len() => best = found,
            _ => cut /= 2,
        }
    }
    let mut width = best.choices.len().div_ceil(4).max(1);
    loop {
        for at in (0..best.choices.len()).step_by(width) {
            let end = (at + width).min(best.choices.len());
            if start.elapsed() > PATIENCE || best.choices[at..end].iter().all(|&byte| byte == 0) {
                continue;
            }
            let mut choices = best.choices.clone();
            choices[at..end].fill(0);
            best = fails(&choices).filter(|found| found.bytes.len() <= best.bytes.len()).unwrap_or(best);
        }
        if width == 1 || start.elapsed() > PATIENCE {
            return best;
        }
        width = width.div_ceil(4);
    }
}

/// Writes an input and what is known of it, and returns the input's file.
pub(super) fn write(folder: &Path, target: &Target, input: &Input, failure: &Failure, origin: &str) -> io::Result<PathBuf> {
    fs::create_dir_all(folder)?;
    let hash =
        input.bytes.iter().fold(u64::from(input.case), |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    let name = format!("{}.{}.{:08x}.case{}", target.name, failure.kind.name(), hash as u32, input.case);
    let path = folder.join(format!("{name}.{}", target.ending));
    fs::write(&path, &input.bytes)?;
    let Failure { place, message, .. } = failure;
    fs::write(folder.join(format!("{name}.txt")), format!("{origin}\n{place}\n{message}\n"))?;
    Ok(path)
}

/// The files of a corpus: each with the targets that it is for, which the folder that it is in names.
///
/// # Errors
/// The folder cannot be read, or has a folder that is no target's.
pub fn kept(corpus: &Path) -> io::Result<Vec<(PathBuf, Vec<&'static Target>)>> {
    let mut found = Vec::new();
    let mut folders: Vec<PathBuf> =
        fs::read_dir(corpus)?.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<_>>()?;
    folders.sort();
    for folder in folders.iter().filter(|path| path.is_dir()) {
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        // A recording is for every target that reads one.
        let is_for = |target: &&Target| if name == "recordings" { target.ending == "pickle" } else { target.name == name };
        let targets: Vec<&'static Target> = TARGETS.iter().filter(is_for).collect();
        if targets.is_empty() {
            return Err(io::Error::other(format!("{} is no target's folder", folder.display())));
        }
        let mut files: Vec<PathBuf> =
            fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<_>>()?;
        files.sort();
        found.extend(files.into_iter().map(|file| (file, targets.clone())));
    }
    Ok(found)
}

/// Runs a file: in the case that its name ends with (`.case7.pickle`), else in the first eight.
///
/// # Errors
/// The file cannot be read.
pub fn run_kept(target: &Target, file: &Path) -> io::Result<Vec<(u8, Execution)>> {
    let bytes = fs::read(file)?;
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let case = name.split('.').find_map(|part| part.strip_prefix("case")?.parse().ok());
    let cases = case.map_or(0..8, |case: u8| case..case + 1);
    Ok(cases.map(|case| (case, execute(target, &bytes, case))).collect())
}
