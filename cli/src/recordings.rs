//! Several recordings: finds the files, derives their ranks from their names, and processes them.
//!
//! The files are processed on all cores, with bounded memory and with the results in order. Each thread takes the next file when it has
//! finished its last one. A file waits while those being read probably need more than a fixed amount of memory together, but one is always
//! read.

use std::collections::BTreeSet;
use std::io::Read;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;

use anyhow::{Result, anyhow};
use parkade_recording::compression::{Compression, detect};
use parkade_recording::opened_as_snapshot;

use crate::terminal::surroundings::are_provided;
use crate::terminal::{output, progress, surroundings};

/// The endings of snapshot files, which the ending of a compression may follow.
const ENDINGS: [&str; 2] = [".pickle", ".pkl"];
const COMPRESSIONS: [&str; 5] = ["", ".xz", ".gz", ".zst", ".zstd"];
/// The maximum number of skipped files that are named.
const NAMED: usize = 3;

/// A file to read, or the reason why there is none.
#[derive(Debug)]
pub struct Input {
    /// The file, or the folder without files.
    pub path: PathBuf,
    /// The reason why there is nothing to read.
    pub refusal: Option<String>,
}

/// All given inputs, in their order. Files in a folder are in the natural order of their names: rank2 precedes rank10.
#[derive(Debug)]
pub struct Inputs {
    /// The files.
    pub all: Vec<Input>,
    /// Messages about them for standard error.
    pub remarks: Vec<String>,
    has_folder: bool,
}

impl Inputs {
    /// Finds the files at these paths.
    pub fn of(paths: &[PathBuf]) -> Inputs {
        let mut inputs = Inputs { all: Vec::new(), remarks: Vec::new(), has_folder: false };
        for path in paths {
            if surroundings::is_folder(path) {
                inputs.has_folder = true;
                inputs.add_folder(path);
            } else {
                inputs.all.push(Input { path: path.clone(), refusal: None });
            }
        }
        inputs
    }

    /// Returns whether there is more than one file.
    pub fn are_several(&self) -> bool {
        self.all.len() > 1
    }

    /// Returns the paths.
    pub fn paths(&self) -> Vec<&Path> {
        self.all.iter().map(|input| input.path.as_path()).collect()
    }

    /// Returns the ranks of the files; `None` if neither a folder nor numbers in their names show that they are ranks of one job.
    pub fn ranks(&self) -> Option<RankNumbers> {
        let numbers = RankNumbers::of(&self.paths());
        (self.are_several() && (self.has_folder || numbers.from == RanksFrom::Names)).then_some(numbers)
    }

    fn add_folder(&mut self, folder: &Path) {
        let mut paths = match surroundings::entries(folder) {
            Ok(paths) => paths,
            Err(error) => return self.refuse(folder, format!("cannot be read: {error}")),
        };
        alphanumeric_sort::sort_path_slice(&mut paths);
        let (folders, files): (Vec<_>, Vec<_>) = paths.into_iter().partition(|path| surroundings::is_folder(path));
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

/// Returns whether a file in a folder is a snapshot, judging by its name or else by its first bytes. Hidden files are not: editors and
/// downloads leave them.
fn is_snapshot(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    let has_ending =
        || ENDINGS.iter().any(|ending| COMPRESSIONS.iter().any(|packed| name.ends_with(&format!("{ending}{packed}"))));
    // Pipes are left out, because they may never deliver anything.
    !name.starts_with('.') && surroundings::is_file(path) && (has_ending() || begins_as_snapshot(path))
}

fn begins_as_snapshot(path: &Path) -> bool {
    surroundings::open(path).and_then(|(file, _)| opened_as_snapshot(file)).unwrap_or(false)
}

fn nothing_found(skipped: &[PathBuf], folders: &[PathBuf]) -> String {
    let looked_for = "this folder contains no snapshots: no file is named *.pickle or *.pkl (also with .xz, .gz or .zst), and \
                      no other file begins like a PyTorch snapshot";
    let has = [others(skipped, "other file"), others(folders, "folder")];
    let has: Vec<String> = has.into_iter().flatten().collect();
    let has = if has.is_empty() { "it is empty".to_owned() } else { format!("it has {}", has.join(" and ")) };
    let advice = if folders.is_empty() { "" } else { " (subfolders are not searched: pass them instead)" };
    format!("{looked_for}; {has}{advice}")
}

/// Counts files and names the first ones: `4 other files (a, b, c ...)`.
fn others(paths: &[PathBuf], thing: &str) -> Option<String> {
    let name = |path: &PathBuf| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let named = output::list(paths.iter().take(NAMED).map(name));
    let more = if paths.len() > NAMED { " ..." } else { "" };
    (!paths.is_empty()).then(|| format!("{} ({named}{more})", output::count(paths.len() as u64, thing)))
}

/// Words before the number of a rank, and of a device, which replaces the rank if no name has one.
const RANK_WORDS: [&str; 1] = ["rank"];
/// An abbreviation of rank that also has other meanings.
const SHORT_WORDS: [&str; 1] = ["r"];
const DEVICE_WORDS: [&str; 4] = ["device", "dev", "gpu", "cuda"];
/// Words before a number that counts points in time of one run.
const MOMENT_WORDS: [&str; 6] = ["step", "iter", "iteration", "epoch", "batch", "entry"];

/// The source of the numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RanksFrom {
    /// The files' names.
    #[default]
    Names,
    /// Their order, because their names have no distinct numbers.
    Positions,
}

parkade_recording::names! {
    RanksFrom {
        RanksFrom::Names => "names",
        RanksFrom::Positions => "positions",
    }
}

/// The rank of each file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RankNumbers {
    /// In the order of the files.
    pub of_files: Vec<u64>,
    /// Their source.
    pub from: RanksFrom,
}

impl RankNumbers {
    /// Returns the ranks of these files by the first rule that gives every file a distinct number, or else their positions. A number after
    /// a word for rank or device is a rank. Other numbers may count anything, as in `run_100` and `run_200`, so they are ranks only if they
    /// are consecutive from 0.
    pub fn of(paths: &[&Path]) -> RankNumbers {
        let stems: Vec<String> = paths.iter().map(|path| stem(path)).collect();
        type Rule = fn(&str) -> Option<u64>;
        let rules: [(Rule, bool); 4] = [
            (|stem| after(stem, &RANK_WORDS), true),
            (|stem| after(stem, &DEVICE_WORDS), true),
            (|stem| after(stem, &SHORT_WORDS), false),
            (last_number, false),
        ];
        for (rule, is_certain) in rules {
            let numbers: Option<Vec<u64>> = stems.iter().map(|stem| rule(stem)).collect();
            let are_ranks = |numbers: &Vec<u64>| {
                let distinct: BTreeSet<u64> = numbers.iter().copied().collect();
                distinct.len() == numbers.len() && (is_certain || distinct.into_iter().eq(0..numbers.len() as u64))
            };
            let numbers = numbers.filter(are_ranks);
            if let Some(of_files) = numbers {
                return RankNumbers { of_files, from: RanksFrom::Names };
            }
        }
        RankNumbers::positions(paths.len())
    }

    /// Returns the positions of this many files.
    pub fn positions(files: usize) -> RankNumbers {
        RankNumbers { of_files: (0..files as u64).collect(), from: RanksFrom::Positions }
    }
}

/// Returns the file's name in lower case, without its ending.
fn stem(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    let end = [".pickle", ".pkl"].iter().filter_map(|ending| name.rfind(ending)).min().unwrap_or(name.len());
    name[..end].to_owned()
}

/// Returns the number after one of the words: `rank3`, `rank_3`, `rank-3`, `rank=3`. The word begins the name or follows a
/// character that is not a letter.
fn after(stem: &str, words: &[&str]) -> Option<u64> {
    let of_word = |word: &&str| {
        stem.match_indices(word).find_map(|(at, _)| {
            let begins = !stem[..at].ends_with(|c: char| c.is_alphabetic());
            let rest = &stem[at + word.len()..];
            let rest = rest.strip_prefix(['_', '-', '.', '=', ' ']).unwrap_or(rest);
            begins.then(|| leading_number(rest)).flatten()
        })
    };
    words.iter().find_map(of_word)
}

fn leading_number(text: &str) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text[..end].parse().ok()
}

/// Returns the number at the end of the name after a separator, as in `snapshot_3`, unless it counts points in time of a run.
fn last_number(stem: &str) -> Option<u64> {
    let start =
        stem.rfind(|c: char| !c.is_ascii_digit()).map_or(0, |at| at + stem[at..].chars().next().map_or(1, char::len_utf8));
    let before = &stem[..start];
    let separated = before.is_empty() || before.ends_with(['_', '-', '.']);
    let word = before.trim_end_matches(['_', '-', '.']);
    let is_moment = MOMENT_WORDS.iter().any(|moment| word.ends_with(moment));
    if separated && !is_moment { stem[start..].parse().ok() } else { None }
}

/// The maximum total size of the files being read, decompressed. A single file may be larger.
const MOST_BYTES: u64 = 4 << 30;
/// The factor by which a compressed file grows, near the maximum for recordings.
const RATIO: u64 = 60;

/// Runs `work` on each file, and passes the results to `done` in the order of the files, each as soon as all earlier ones are complete.
/// Errors do not name the file.
///
/// # Errors
/// The error of `done`, which ends the work.
///
/// # Panics
/// If `work` unwinds, including because it was cancelled, this unwinds too.
pub fn each<T: Send>(
    inputs: &Inputs,
    is_hidden: bool,
    work: impl Fn(&Path) -> Result<T> + Sync,
    mut done: impl FnMut(usize, Result<T>) -> Result<()>,
) -> Result<()> {
    let results: Vec<Mutex<Option<Result<T>>>> = inputs.all.iter().map(|_| Mutex::default()).collect();
    let slot = |place: usize| results[place].lock().unwrap_or_else(PoisonError::into_inner);
    let run = |place: usize| {
        let result = work(&inputs.all[place].path);
        *slot(place) = Some(result);
    };
    let mut pass_on = |place: usize| {
        let result = slot(place).take();
        let refusal = || inputs.all[place].refusal.clone().unwrap_or_else(|| "the file was not read".to_owned());
        done(place, result.unwrap_or_else(|| Err(anyhow!(refusal()))))
    };
    let bar = progress::of("files", is_hidden);
    bar.set_length(inputs.all.len() as u64);
    let outcome =
        if are_provided() { in_turn(inputs, &bar, &run, &mut pass_on) } else { on_threads(inputs, &bar, &run, &mut pass_on) };
    bar.finish_and_clear();
    outcome
}

/// Runs `work` on the place of each file that is not refused, and `done` on each place, one after the other.
fn in_turn(inputs: &Inputs, bar: &progress::Bar, work: &dyn Fn(usize), done: &mut dyn FnMut(usize) -> Result<()>) -> Result<()> {
    for (place, input) in inputs.all.iter().enumerate() {
        if input.refusal.is_none() {
            work(place);
        }
        done(place)?;
        bar.set_position(place as u64 + 1);
    }
    Ok(())
}

/// Runs `work` on the place of each file that is not refused, on all cores, and `done` on each place in order.
fn on_threads(
    inputs: &Inputs,
    bar: &progress::Bar,
    work: &(dyn Fn(usize) + Sync),
    done: &mut dyn FnMut(usize) -> Result<()>,
) -> Result<()> {
    let threads = thread::available_parallelism().map_or(1, usize::from).min(inputs.all.len());
    let (next, memory) = (AtomicUsize::new(0), Memory::default());
    let (sender, places) = mpsc::channel();
    let worker = |sender: mpsc::Sender<(usize, thread::Result<()>)>| {
        progress::hush_thread();
        loop {
            let place = next.fetch_add(1, Ordering::Relaxed);
            let Some(input) = inputs.all.get(place) else { break };
            let outcome = if input.refusal.is_some() {
                Ok(())
            } else {
                let _share = memory.take(likely_size(&input.path));
                // Nothing that it has touched is used again: unwinding continues below.
                catch_unwind(AssertUnwindSafe(|| work(place)))
            };
            // Nobody receives places any more after an error or a panic.
            if sender.send((place, outcome)).is_err() {
                break;
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..threads {
            let sender = sender.clone();
            scope.spawn(|| worker(sender));
        }
        drop(sender);
        let mut waiting = BTreeSet::new();
        let mut place = 0;
        for (at, outcome) in places {
            outcome.unwrap_or_else(|unwound| resume_unwind(unwound));
            waiting.insert(at);
            while waiting.remove(&place) {
                bar.suspend(|| done(place))?;
                place += 1;
                bar.set_position(place as u64);
            }
        }
        Ok(())
    })
}

/// Estimates the decompressed size of a file; 0 if it cannot be read, because reading it reports the error.
fn likely_size(path: &Path) -> u64 {
    let length = surroundings::length(path);
    let mut head = [0; 8];
    // Anything that is not a regular file may have nothing to read, or may be readable only once.
    let is_compressed = length > 0
        && surroundings::open(path)
            .and_then(|(mut file, _)| file.read(&mut head))
            .is_ok_and(|read| detect(&head[..read]) != Compression::None);
    length.saturating_mul(if is_compressed { RATIO } else { 1 })
}

/// The memory of the files being read, by their estimated sizes.
#[derive(Default)]
struct Memory {
    in_use: Mutex<u64>,
    freed: Condvar,
}

/// A reserved part of the memory, until it is dropped.
struct Share<'m> {
    memory: &'m Memory,
    bytes: u64,
}

impl Memory {
    /// Waits until there is room for a file of this size, or nothing is in use.
    fn take(&self, bytes: u64) -> Share<'_> {
        let has_no_room = |in_use: &mut u64| *in_use > 0 && in_use.saturating_add(bytes) > MOST_BYTES;
        let in_use = self.freed.wait_while(self.lock(), has_no_room);
        *in_use.unwrap_or_else(PoisonError::into_inner) += bytes;
        Share { memory: self, bytes }
    }

    fn lock(&self) -> MutexGuard<'_, u64> {
        self.in_use.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        let mut in_use = self.memory.lock();
        *in_use = in_use.saturating_sub(self.bytes);
        self.memory.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::time::Duration;

    use super::*;

    fn numbers(names: &[&str]) -> (Vec<u64>, RanksFrom) {
        let paths: Vec<&Path> = names.iter().map(Path::new).collect();
        let found = RankNumbers::of(&paths);
        (found.of_files, found.from)
    }

    #[test]
    fn names_number_ranks_in_many_ways() {
        for names in [
            ["a/rank3.pickle", "a/rank12.pickle"],
            ["Rank_3_step_100.pickle", "Rank_12_step_100.pickle"],
            ["rank3_memory_snapshot.pickle", "rank12_memory_snapshot.pickle.xz"],
            ["run.rank-3.pkl", "run.rank-12.pkl.gz"],
            ["node0_gpu7_rank3.pickle", "node1_gpu7_rank12.pickle"],
            ["dev3.pickle", "dev12.pickle"],
        ] {
            assert_eq!(numbers(&names), (vec![3, 12], RanksFrom::Names), "{names:?}");
        }
    }

    #[test]
    fn numbers_without_a_word_are_ranks_if_they_are_all_from_0_on() {
        for names in [
            ["snapshot_1.pickle", "snapshot_0.pickle"],
            ["1.pickle", "0.pickle"],
            ["r1.pickle", "r0.pickle"],
            ["mem-r1_step_100.pickle", "mem-r0_step_100.pickle"],
        ] {
            assert_eq!(numbers(&names), (vec![1, 0], RanksFrom::Names), "{names:?}");
        }
        for names in [
            ["run100.pickle", "run150.pickle", "run200.pickle"],
            ["run_100.pickle", "run_150.pickle", "run_200.pickle"],
            ["100.pickle", "150.pickle", "200.pickle"],
            ["snapshot_1.pickle", "snapshot_2.pickle", "snapshot_3.pickle"],
            ["r18.pickle", "r50.pickle", "r101.pickle"],
        ] {
            assert_eq!(numbers(&names), (vec![0, 1, 2], RanksFrom::Positions), "{names:?}");
        }
    }

    #[test]
    fn else_the_position_does() {
        for names in [
            ["before.pickle", "after.pickle"],
            ["rank0.pickle", "rank0.pickle"],
            ["rank0.pickle", "other.pickle"],
            ["step_100.pickle", "step_200.pickle"],
            ["gpt2.pickle", "gpt3.pickle"],
            ["crank3.pickle", "frank4.pickle"],
            ["x_99999999999999999999999.pickle", "x_1.pickle"],
            ["ü.pickle", "ö.pickle"],
        ] {
            assert_eq!(numbers(&names), (vec![0, 1], RanksFrom::Positions), "{names:?}");
        }
    }

    fn inputs(names: impl IntoIterator<Item = String>) -> Inputs {
        Inputs::of(&names.into_iter().map(PathBuf::from).collect::<Vec<_>>())
    }

    #[test]
    fn results_come_in_order_however_long_each_takes() {
        let inputs = inputs((0..40).map(|number| format!("/nowhere/{number}")));
        let work = |path: &Path| {
            let number: u64 =
                path.file_name().and_then(|name| name.to_str()).and_then(|name| name.parse().ok()).expect("a number");
            thread::sleep(Duration::from_millis(if number.is_multiple_of(7) { 15 } else { 0 }));
            if number == 5 { Err(anyhow!("five")) } else { Ok(number) }
        };
        let mut seen = Vec::new();
        let run = each(&inputs, true, work, |place, result| {
            seen.push((place as u64, result.ok()));
            Ok(())
        });
        assert!(run.is_ok());
        assert_eq!(seen, (0..40).map(|number| (number, Some(number).filter(|&number| number != 5))).collect::<Vec<_>>());
    }

    #[test]
    fn an_error_of_the_receiver_ends_it() {
        let inputs = inputs((0..1000).map(|number| format!("/nowhere/{number}")));
        let worked = AtomicUsize::new(0);
        let work = |_: &Path| {
            thread::sleep(Duration::from_millis(1));
            Ok(worked.fetch_add(1, Ordering::Relaxed))
        };
        assert!(each(&inputs, true, work, |_, _| Err(anyhow!("closed"))).is_err());
        assert!(worked.load(Ordering::Relaxed) < 500);
    }

    #[test]
    fn only_one_file_of_any_size_is_read_beside_others_that_leave_room() {
        let memory = Memory::default();
        let large = memory.take(MOST_BYTES * 3);
        thread::scope(|scope| {
            let second = scope.spawn(|| drop(memory.take(1)));
            thread::sleep(Duration::from_millis(20));
            assert!(!second.is_finished());
            drop(large);
        });
        let _both = (memory.take(MOST_BYTES / 2), memory.take(MOST_BYTES / 2));
    }
}
