//! The recordings that a command is given: files, and folders of them.

use std::fs;
use std::path::{Path, PathBuf};

use parkade_recording::begins_as_snapshot;

use super::rank_numbers::{RankNumbers, RanksFrom};
use crate::terminal::output;

/// What snapshot files are called; each may have a compression's ending too.
const ENDINGS: [&str; 2] = [".pickle", ".pkl"];
const COMPRESSIONS: [&str; 5] = ["", ".xz", ".gz", ".zst", ".zstd"];
/// How many skipped files are named.
const NAMED: usize = 3;

/// Something to read, or why there is nothing.
#[derive(Debug)]
pub struct Input {
    /// The file, or the folder without files.
    pub path: PathBuf,
    /// Why there is nothing to read.
    pub refusal: Option<String>,
}

/// All that was given, in its order; what is in folders in the natural order of names, so that rank2 comes before rank10.
#[derive(Debug)]
pub struct Inputs {
    /// The files.
    pub all: Vec<Input>,
    /// What to say about them on standard error.
    pub remarks: Vec<String>,
    has_folder: bool,
}

impl Inputs {
    /// The files that these paths mean.
    pub fn of(paths: &[PathBuf]) -> Inputs {
        let mut inputs = Inputs { all: Vec::new(), remarks: Vec::new(), has_folder: false };
        for path in paths {
            if path.is_dir() {
                inputs.has_folder = true;
                inputs.add_folder(path);
            } else {
                inputs.all.push(Input { path: path.clone(), refusal: None });
            }
        }
        inputs
    }

    /// Whether there is more than one.
    pub fn are_several(&self) -> bool {
        self.all.len() > 1
    }

    /// The paths.
    pub fn paths(&self) -> Vec<&Path> {
        self.all.iter().map(|input| input.path.as_path()).collect()
    }

    /// The ranks that the files are of; `None` if nothing says that they are ranks of one job: neither a folder nor numbers in their names.
    pub fn ranks(&self) -> Option<RankNumbers> {
        let numbers = RankNumbers::of(&self.paths());
        (self.are_several() && (self.has_folder || numbers.from == RanksFrom::Names)).then_some(numbers)
    }

    fn add_folder(&mut self, folder: &Path) {
        let entries = match fs::read_dir(folder).and_then(Iterator::collect::<Result<Vec<_>, _>>) {
            Ok(entries) => entries,
            Err(error) => return self.refuse(folder, format!("cannot be read: {error}")),
        };
        let mut paths: Vec<PathBuf> = entries.into_iter().map(|entry| entry.path()).collect();
        alphanumeric_sort::sort_path_slice(&mut paths);
        let (folders, files): (Vec<_>, Vec<_>) = paths.into_iter().partition(|path| path.is_dir());
        let (found, skipped): (Vec<_>, Vec<_>) = files.into_iter().partition(|path| is_snapshot(path));
        if found.is_empty() {
            return self.refuse(folder, nothing_found(&skipped, &folders));
        }
        let others = [others(&skipped, "other file"), others(&folders, "folder")];
        let others: Vec<String> = others.into_iter().flatten().collect();
        if !others.is_empty() {
            self.remarks.push(format!("{}: skipped {}", folder.display(), others.join(" and ")));
        }
        self.all.extend(found.into_iter().map(|path| Input { path, refusal: None }));
    }

    fn refuse(&mut self, folder: &Path, refusal: String) {
        self.all.push(Input { path: folder.to_owned(), refusal: Some(refusal) });
    }
}

/// Whether a file of a folder is a snapshot, by its name or else by how it begins. Hidden files are not: editors and downloads leave them.
fn is_snapshot(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    let has_ending =
        || ENDINGS.iter().any(|ending| COMPRESSIONS.iter().any(|packed| name.ends_with(&format!("{ending}{packed}"))));
    // Not pipes, which may never say anything.
    !name.starts_with('.') && path.is_file() && (has_ending() || begins_as_snapshot(path).unwrap_or(false))
}

fn nothing_found(skipped: &[PathBuf], folders: &[PathBuf]) -> String {
    let looked_for = "no snapshots in this folder: neither files called *.pickle or *.pkl (or these with .xz, .gz, .zst) nor \
                      others that begin as PyTorch's snapshots do";
    let has = [others(skipped, "other file"), others(folders, "folder")];
    let has: Vec<String> = has.into_iter().flatten().collect();
    let has = if has.is_empty() { "it is empty".to_owned() } else { format!("it has {}", has.join(" and ")) };
    let advice = if folders.is_empty() { "" } else { " (folders within it are not searched: give them instead)" };
    format!("{looked_for}; {has}{advice}")
}

/// Some files with the names of the first: `4 other files (a, b, c ...)`.
fn others(paths: &[PathBuf], thing: &str) -> Option<String> {
    let name = |path: &PathBuf| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let named = output::list(paths.iter().take(NAMED).map(name));
    let more = if paths.len() > NAMED { " ..." } else { "" };
    (!paths.is_empty()).then(|| format!("{} ({named}{more})", output::count(paths.len() as u64, thing)))
}
