//! One execution: its input, which depends only on the seed, the target and the execution's number; whether the input
//! was survived, with its peak memory and its time; and the handling of failed inputs, which are written to files,
//! minimised and run again.

use std::any::Any;
use std::cell::RefCell;
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fs, io};

use rayon::ThreadPoolBuilder;
use rustix::time::{ClockId, clock_gettime};

use crate::choices::Choices;
use crate::targets::{CASES, Reached, TARGETS, Target};

/// The input of a target.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Input {
    /// The choices from which the bytes were made.
    pub choices: Vec<u8>,
    /// The bytes that the target reads.
    pub bytes: Vec<u8>,
    /// The number of the case, which selects a command's options.
    pub case: u8,
}

/// Returns the input with this number.
#[must_use]
pub fn input(target: &Target, seed: u64, number: u64) -> Input {
    let name =
        target.name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    let mut random = fastrand::Rng::with_seed(name ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ number.rotate_left(32));
    // Short inputs are simple and fast, so only a few are long.
    let longest = if random.u8(..8) == 0 { 4096 } else { 512 };
    let mut choices = vec![0; random.usize(16..longest)];
    random.fill(&mut choices);
    let case = random.u8(..CASES);
    let bytes = (target.make)(&mut Choices::new(&choices));
    Input { choices, bytes, case }
}

/// The highest peak of memory that an input of less than 1 MB may reach: 1 GiB.
pub const LARGEST_PEAK_BYTES: u64 = 1 << 30;
/// The maximum processor time that an input of less than 100 KB may take.
pub const LONGEST: Duration = Duration::from_secs(10);

const LARGE_INPUT: usize = 1_000_000;
const LONG_INPUT: usize = 100_000;

/// The ways in which an input can fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FailureKind {
    /// A panic, for example from a broken law, an overflow or an index out of bounds.
    Panic,
    /// More memory than [`LARGEST_PEAK_BYTES`].
    Memory,
    /// More time than [`LONGEST`].
    Time,
    /// The process ended: an allocation failed, or a stack overflowed.
    Abort,
    /// The execution did not end.
    Hang,
}

impl FailureKind {
    /// Returns its name as used in file names.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            FailureKind::Panic => "panic",
            FailureKind::Memory => "memory",
            FailureKind::Time => "time",
            FailureKind::Abort => "abort",
            FailureKind::Hang => "hang",
        }
    }
}

/// An input that failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// The way in which it failed.
    pub kind: FailureKind,
    /// The place in the code, for a panic.
    pub place: String,
    /// The panic's message, or the figure that is too large.
    pub message: String,
}

/// The outcome of an execution.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Execution {
    /// How far the input got.
    pub reached: Result<Reached, Failure>,
    /// The peak of memory, in bytes.
    pub peak_bytes: u64,
    /// The processor time.
    pub time: Duration,
}

thread_local! {
    static PANIC: RefCell<Option<(String, String)>> = const { RefCell::new(None) };
}

/// Prepares this thread: work that is normally shared between threads runs on this thread, so that its memory and time
/// are counted.
///
/// # Panics
/// If this thread has already been prepared.
pub fn prepare_thread() {
    let pool = ThreadPoolBuilder::new().num_threads(1).use_current_thread().build().expect("a thread is prepared once");
    // From here on, the thread belongs to the pool.
    std::mem::forget(pool);
}

/// Records panics instead of printing them. This applies to the entire process.
pub(super) fn note_panics() {
    panic::set_hook(Box::new(|info| {
        let place = info.location().map(|place| format!("{}:{}", place.file(), place.line())).unwrap_or_default();
        PANIC.with(|noted| *noted.borrow_mut() = Some((place, text(info.payload()))));
    }));
}

fn text(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().map(String::as_str).or_else(|| payload.downcast_ref::<&str>().copied());
    text.unwrap_or("a panic without a message").to_owned()
}

/// Runs a target on an input.
#[must_use]
pub fn execute(target: &Target, bytes: &[u8], case: u8) -> Execution {
    let start = processor_time();
    let mut ended = None;
    let memory = allocation_counter::measure(|| {
        ended = Some(panic::catch_unwind(AssertUnwindSafe(|| (target.run)(bytes, case))));
    });
    let time = processor_time().saturating_sub(start);
    let peak_bytes = memory.bytes_max;
    let failed = |kind, message| Err(Failure { kind, place: String::new(), message });
    let reached = match ended.expect("the target was run") {
        Err(payload) => {
            let noted = PANIC.with(|noted| noted.borrow_mut().take());
            let (place, message) = noted.unwrap_or_else(|| (String::new(), text(payload.as_ref())));
            Err(Failure { kind: FailureKind::Panic, place, message })
        }
        Ok(_) if peak_bytes > LARGEST_PEAK_BYTES && bytes.len() < LARGE_INPUT => {
            failed(FailureKind::Memory, format!("a peak of {peak_bytes} bytes for an input of {} bytes", bytes.len()))
        }
        Ok(_) if time > LONGEST && bytes.len() < LONG_INPUT => {
            failed(FailureKind::Time, format!("{:.1} s for an input of {} bytes", time.as_secs_f64(), bytes.len()))
        }
        Ok(reached) => Ok(reached),
    };
    Execution { reached, peak_bytes, time }
}

/// Returns the processor time that this thread has used. Other programs on the machine do not
/// count.
fn processor_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

/// The time spent on minimising an input.
const PATIENCE: Duration = Duration::from_secs(5);

/// Returns the input with the fewest choices, among those found, that fails in the same way at the same place.
pub(super) fn smaller(target: &Target, input: &Input, failure: &Failure) -> Input {
    let start = Instant::now();
    let fails = |choices: &[u8]| {
        let bytes = (target.make)(&mut Choices::new(choices));
        let found = execute(target, &bytes, input.case).reached;
        let is_same = found.is_err_and(|found| (found.kind, &found.place) == (failure.kind, &failure.place));
        is_same.then(|| Input { choices: choices.to_vec(), bytes, case: input.case })
    };
    let mut best = input.clone();
    // Shorten the input by halves, then set parts to zero, because zero is the first choice.
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

/// Writes an input and a description of its failure, and returns the input's file.
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

/// Returns the files of a corpus, each with its targets, which are determined by the name of its
/// folder.
///
/// # Errors
/// If the folder cannot be read, or contains a folder that is not named after a target.
pub fn kept(corpus: &Path) -> io::Result<Vec<(PathBuf, Vec<&'static Target>)>> {
    let mut found = Vec::new();
    let mut folders: Vec<PathBuf> =
        fs::read_dir(corpus)?.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<_>>()?;
    folders.sort();
    for folder in folders.iter().filter(|path| path.is_dir()) {
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        // A recording is run on every target that reads recordings.
        let is_for = |target: &&Target| if name == "recordings" { target.ending == "pickle" } else { target.name == name };
        let targets: Vec<&'static Target> = TARGETS.iter().filter(is_for).collect();
        if targets.is_empty() {
            return Err(io::Error::other(format!("the folder {} does not belong to a target", folder.display())));
        }
        let mut files: Vec<PathBuf> =
            fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<_>>()?;
        files.sort();
        found.extend(files.into_iter().map(|file| (file, targets.clone())));
    }
    Ok(found)
}

/// Runs a file in the case that its name specifies (`.case7.pickle`), or in the first eight cases.
///
/// # Errors
/// If the file cannot be read.
pub fn run_kept(target: &Target, file: &Path) -> io::Result<Vec<(u8, Execution)>> {
    let bytes = fs::read(file)?;
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let case = name.split('.').find_map(|part| part.strip_prefix("case")?.parse().ok());
    let cases = case.map_or(0..8, |case: u8| case..case + 1);
    Ok(cases.map(|case| (case, execute(target, &bytes, case))).collect())
}
