//! Runs targets for a given time or number of executions, with bounds on time and memory.
//!
//! One process does the work on several threads; a second process watches it. The workers record their position in a
//! file, so that the watcher knows which input caused an abort or a hang, can record that input, and can restart the
//! work after it.
//!
//! The input of an execution depends only on the seed, the target and the execution's number. Inputs that were not survived,
//! or that took too much memory or time, are written to files, minimised and run again.

use std::any::Any;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::thread::sleep;
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use anyhow::{Context, Result, bail};
use clap::Parser;
use rayon::ThreadPoolBuilder;
use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};

use crate::choices::Choices;
use crate::targets::{CASES, Kind, Reached, TARGETS, Target, prepare};

/// Fuzz parkade.
///
/// Runs parkade's readers and commands on hostile input.
///
/// An input is written to a file if it causes a panic, an abort or a hang, or if it takes more than 1 GiB (for inputs
/// below 1 MB) or more than 10 s (for inputs below 100 KB).
#[derive(Parser, Clone, Debug)]
#[command(
    name = "parkade-fuzz",
    after_help = "Exit code: 0 if parkade survived every input, 1 if it did not survive at least one, 2 if the fuzzer could \
                                               not run."
)]
pub struct Options {
    /// Run only these targets: names, or `readers`, `commands` or `all`.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "all")]
    pub target: Vec<String>,
    /// Stop each target after this many executions [default: no limit except the time].
    #[arg(long, value_name = "NUMBER")]
    pub executions: Option<u64>,
    /// Stop after this many seconds, shared evenly between the targets.
    #[arg(long, value_name = "SECONDS", default_value_t = 20)]
    pub seconds: u64,
    /// The seed of the inputs; the same seed produces the same inputs.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// The number of threads, all in one process.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    pub threads: u16,
    /// The folder with inputs that once failed; they are run first.
    #[arg(long, value_name = "FOLDER")]
    pub corpus: Option<PathBuf>,
    /// The folder to which inputs that fail are written.
    #[arg(long, value_name = "FOLDER", default_value = "fuzz-failures")]
    pub failures: PathBuf,
    /// Run the single chosen target on this file, in every case, and print the outcome.
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Run only the execution with this number.
    #[arg(long, value_name = "NUMBER")]
    pub number: Option<u64>,
    /// The maximum address space of a process, in GiB per thread.
    #[arg(long, value_name = "GIB", default_value_t = 3)]
    pub address_space: u64,
    /// The file that records the workers' positions; the watcher passes it.
    #[arg(long, hide = true)]
    pub account: Option<PathBuf>,
}

impl Options {
    /// Returns the chosen targets, in the order of the list.
    ///
    /// # Errors
    /// If a name does not belong to a target.
    pub fn targets(&self) -> Result<Vec<&'static Target>, String> {
        let is_group = |name: &str, target: &Target| match name {
            "all" => true,
            "readers" => target.kind == Kind::Reader,
            "commands" => target.kind == Kind::Command,
            _ => target.name == name,
        };
        for name in &self.target {
            if !TARGETS.iter().any(|target| is_group(name, target)) {
                let known: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
                return Err(format!("there is no target {name:?}; the targets are readers, commands, all, {}", known.join(", ")));
            }
        }
        Ok(TARGETS.iter().filter(|target| self.target.iter().any(|name| is_group(name, target))).collect())
    }
}

/// The maximum number of inputs written for one place in the code.
const MOST_FOR_A_PLACE: u32 = 3;

/// The process that does the work on several threads.
///
/// The state that all threads share.
struct Work<'o> {
    options: &'o Options,
    targets: Vec<&'static Target>,
    account: Account,
    /// The number of inputs that failed at each place in the code.
    places: Mutex<BTreeMap<String, u32>>,
}

/// Runs the chosen targets, continuing from the positions in the account file.
///
/// # Errors
/// If the account file cannot be read or written, or a failed input cannot be written.
pub fn work(options: &Options, account: &Path) -> Result<()> {
    bound_address_space(options)?;
    let targets = options.targets().map_err(anyhow::Error::msg)?;
    let account = Account::open(account, targets.len())?;
    prepare();
    note_panics();
    let work = Work { options, targets, account, places: Mutex::default() };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..usize::from(options.threads))
            .map(|thread| {
                scope.spawn({
                    let work = &work;
                    move || work.run(thread)
                })
            })
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(|_| Err(io::Error::other("a worker panicked"))))
    })
    .context("the file that records the work cannot be opened")
}

/// Bounds the address space: beyond the bound, an allocation fails and ends the process, which is better than
/// exhausting the machine's memory.
///
/// # Errors
/// If the system refuses the bound.
pub fn bound_address_space(options: &Options) -> Result<()> {
    let bytes = (options.address_space * u64::from(options.threads) + 2) << 30;
    Ok(setrlimit(Resource::As, Rlimit { current: Some(bytes), maximum: Some(bytes) })?)
}

impl Work<'_> {
    fn run(&self, thread: usize) -> io::Result<()> {
        prepare_thread();
        let all = Duration::from_secs(self.options.seconds);
        let start = Instant::now();
        for (place, target) in self.targets.iter().enumerate() {
            let mut row = self.account.read(thread, place)?;
            if row.state == 0 {
                row.number = thread as u64;
            }
            if row.state != Row::FINISHED {
                // If the number of executions is limited, the time is only a bound on their total.
                let is_counted = self.options.executions.is_some();
                let each = if is_counted { all.saturating_sub(start.elapsed()) } else { all / self.targets.len() as u32 };
                self.run_target(thread, place, target, row, each)?;
            }
        }
        Ok(())
    }

    fn run_target(&self, thread: usize, place: usize, target: &Target, mut row: Row, each: Duration) -> io::Result<()> {
        let start = Instant::now();
        let spent_before = Duration::from_millis(row.spent_ms);
        let end = self.options.executions.unwrap_or(u64::MAX);
        row.state = Row::RUNNING;
        loop {
            let spent = spent_before + start.elapsed();
            row.spent_ms = u64::try_from(spent.as_millis()).unwrap_or(u64::MAX);
            if row.number >= end || spent >= each {
                break;
            }
            self.account.write(thread, place, row)?;
            self.one(target, &mut row)?;
            row.number += u64::from(self.options.threads);
        }
        row.state = Row::FINISHED;
        self.account.write(thread, place, row)
    }

    fn one(&self, target: &Target, row: &mut Row) -> io::Result<()> {
        let input = input(target, self.options.seed, row.number);
        let execution = execute(target, &input.bytes, input.case);
        row.executions += 1;
        row.input_bytes += input.bytes.len() as u64;
        row.peak_bytes = row.peak_bytes.max(execution.peak_bytes);
        row.slowest_us = row.slowest_us.max(u64::try_from(execution.time.as_micros()).unwrap_or(u64::MAX));
        match execution.reached {
            Ok(Reached::Read) => row.read += 1,
            Ok(Reached::Refused) => {}
            Err(failure) => {
                row.failures += 1;
                let known = self.count(target, &failure);
                if known < MOST_FOR_A_PLACE {
                    let small = smaller(target, &input, &failure);
                    let origin = format!("--target {} --seed {} --number {}", target.name, self.options.seed, row.number);
                    let file = write(&self.options.failures, target, &small, &failure, &origin)?;
                    let length = fs::metadata(&file)?.len();
                    eprintln!("{} ({length} bytes): {} {}", file.display(), failure.place, first_line(&failure.message));
                }
            }
        }
        Ok(())
    }

    /// Returns the number of earlier inputs that failed like this one.
    fn count(&self, target: &Target, failure: &Failure) -> u32 {
        let mut places = self.places.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let count = places.entry(format!("{} {} {}", target.name, failure.kind.name(), failure.place)).or_default();
        *count += 1;
        *count - 1
    }
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().chars().take(300).collect()
}

/// The maximum wall-clock time of an execution before it counts as a hang. Processor time has a tighter bound, which is
/// checked only after the execution has ended.
const PATIENCE: Duration = Duration::from_secs(40);
/// The interval at which the watcher reads the account file.
const PERIOD: Duration = Duration::from_millis(100);
/// The maximum number of restarts; if the worker ends more often, something else is wrong.
const MOST_RESTARTS: u32 = 200;

/// The process that starts the work and restarts it after an input that ended it.
///
/// Runs the chosen targets and prints the table. Returns whether every input was survived.
///
/// # Errors
/// If the work cannot be started, or if it ends repeatedly.
pub fn watch(options: &Options) -> Result<bool> {
    let targets = options.targets().map_err(anyhow::Error::msg)?;
    let kept_failures = options.corpus.as_deref().map(|corpus| run_corpus(corpus, &targets)).transpose()?.unwrap_or(0);
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("account");
    let watched = Watched { options, account: Account::open(&path, targets.len())?, targets };
    let start = Instant::now();
    let mut restarts = 0;
    loop {
        let (status, stuck) = watched.wait(&mut worker(options, &path)?)?;
        if status.success() {
            break;
        }
        if status.code() == Some(2) {
            bail!("the worker could not run");
        }
        watched.note_end(status, stuck)?;
        restarts += 1;
        if restarts > MOST_RESTARTS {
            bail!("the worker ended {restarts} times");
        }
    }
    let rows = watched.rows()?;
    print_table(options, &watched.targets, &rows, start.elapsed());
    Ok(kept_failures == 0 && rows.iter().all(|row| row.failures == 0))
}

fn worker(options: &Options, account: &Path) -> Result<Child> {
    let mut command = Command::new(env::current_exe()?);
    // A backtrace of a failed allocation adds nothing that the input does not show.
    command.env("RUST_BACKTRACE", "0");
    command.args(env::args_os().skip(1)).arg("--account").arg(account).stdin(Stdio::null());
    command.spawn().with_context(|| format!("starting a worker for {:?}", options.target))
}

struct Watched<'o> {
    options: &'o Options,
    targets: Vec<&'static Target>,
    account: Account,
}

/// A thread and the index of a target.
type Place = (usize, usize);

impl Watched<'_> {
    fn places(&self) -> impl Iterator<Item = Place> + use<'_> {
        (0..usize::from(self.options.threads)).flat_map(|thread| (0..self.targets.len()).map(move |target| (thread, target)))
    }

    /// Waits until the worker ends; kills it if one of its executions hangs.
    fn wait(&self, child: &mut Child) -> Result<(ExitStatus, Option<Place>)> {
        let mut since: Vec<(u64, Instant)> = self.places().map(|_| (u64::MAX, Instant::now())).collect();
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok((status, None));
            }
            sleep(PERIOD);
            for (seen, (thread, target)) in since.iter_mut().zip(self.places()) {
                let row = self.account.read(thread, target)?;
                if row.state != Row::RUNNING || seen.0 != row.number {
                    *seen = (row.number, Instant::now());
                } else if seen.1.elapsed() > PATIENCE {
                    child.kill()?;
                    return Ok((child.wait()?, Some((thread, target))));
                }
            }
        }
    }

    /// Finds the input that ended the worker, writes it, and lets the work continue after it.
    fn note_end(&self, status: ExitStatus, stuck: Option<Place>) -> Result<()> {
        if let Some(place) = stuck {
            return self.note(place, FailureKind::Hang, &format!("the execution did not finish within {} s", PATIENCE.as_secs()));
        }
        let running: Vec<Place> = self
            .places()
            .filter(|&(thread, target)| self.account.read(thread, target).is_ok_and(|row| row.state == Row::RUNNING))
            .collect();
        if running.is_empty() {
            bail!("the worker ended with {status} before its first execution");
        }
        let mut is_found = false;
        for &(thread, target) in &running {
            let number = self.account.read(thread, target)?.number;
            if let Some(ended) = self.ends_alone(self.targets[target], number)? {
                is_found = true;
                self.note(
                    (thread, target),
                    FailureKind::Abort,
                    &format!("when the input is run on its own, it ends with {ended}"),
                )?;
            }
        }
        if !is_found {
            eprintln!(
                "the worker ended with {status}, but none of the {} inputs in progress ends a process when it is run on its own",
                running.len()
            );
            for place in running {
                self.note(
                    place,
                    FailureKind::Abort,
                    "the input was in progress when the worker ended, but when it is run on its own, it does not end a process",
                )?;
            }
        }
        Ok(())
    }

    /// Runs one execution in a separate process. Returns the exit status if the execution failed.
    fn ends_alone(&self, target: &Target, number: u64) -> Result<Option<ExitStatus>> {
        let mut command = Command::new(env::current_exe()?);
        // The process has the same bounds as the worker.
        command.args(["--address-space", &self.options.address_space.to_string()]);
        command.args(["--target", target.name, "--seed", &self.options.seed.to_string(), "--number", &number.to_string()]);
        let mut child = command.env("RUST_BACKTRACE", "0").stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            if let Some(status) = child.try_wait()? {
                return Ok(Some(status).filter(|status| status.code().is_none()));
            }
            sleep(PERIOD);
        }
        child.kill()?;
        Ok(Some(child.wait()?))
    }

    fn note(&self, (thread, place): Place, kind: FailureKind, message: &str) -> Result<()> {
        let (mut row, target) = (self.account.read(thread, place)?, self.targets[place]);
        let origin = format!("--target {} --seed {} --number {}", target.name, self.options.seed, row.number);
        let failure = Failure { kind, place: String::new(), message: message.to_owned() };
        let input = input(target, self.options.seed, row.number);
        let file = write(&self.options.failures, target, &input, &failure, &origin)?;
        eprintln!("{} ({} bytes): {message}", file.display(), input.bytes.len());
        row.failures += 1;
        row.executions += 1;
        row.number += u64::from(self.options.threads);
        Ok(self.account.write(thread, place, row)?)
    }

    /// The work done for each target.
    fn rows(&self) -> Result<Vec<Row>> {
        let of_target = |target| {
            let rows = (0..usize::from(self.options.threads)).map(|thread| self.account.read(thread, target));
            Ok(rows.collect::<io::Result<Vec<Row>>>()?.into_iter().reduce(Row::and).unwrap_or_default())
        };
        (0..self.targets.len()).map(of_target).collect()
    }
}

/// Runs the inputs that once failed. Returns the number of those that fail again.
fn run_corpus(corpus: &Path, targets: &[&'static Target]) -> Result<usize> {
    let (mut runs, mut failures) = (0, 0);
    for (file, all) in kept(corpus).with_context(|| corpus.display().to_string())? {
        for target in all.into_iter().filter(|target| targets.iter().any(|chosen| chosen.name == target.name)) {
            for (case, execution) in run_kept(target, &file)? {
                runs += 1;
                if let Err(failure) = execution.reached {
                    failures += 1;
                    eprintln!("{} {} in case {case}: {} {}", target.name, file.display(), failure.place, failure.message);
                }
            }
        }
    }
    eprintln!("{runs} executions of inputs that failed in the past; {failures} of them fail now");
    Ok(failures)
}

/// The work of one thread on one target.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Row {
    /// 0: not begun; 1: an execution is running; 2: finished.
    state: u64,
    /// The number of the execution that is running or of the next one.
    number: u64,
    /// The number of executions that have ended.
    executions: u64,
    /// The number of these executions in which the reader accepted the input.
    read: u64,
    /// The number of inputs that failed.
    failures: u64,
    /// The highest memory peak of an execution, in bytes.
    peak_bytes: u64,
    /// The longest processor time of an execution, in microseconds.
    slowest_us: u64,
    /// The total size of all inputs, in bytes.
    input_bytes: u64,
    /// The wall-clock time spent, in milliseconds.
    spent_ms: u64,
}

impl Row {
    const RUNNING: u64 = 1;
    const FINISHED: u64 = 2;
    const WORDS: usize = 9;
    const BYTES: usize = Row::WORDS * 8;

    fn words(self) -> [u64; Row::WORDS] {
        let Row { state, number, executions, read, failures, peak_bytes, slowest_us, input_bytes, spent_ms } = self;
        [state, number, executions, read, failures, peak_bytes, slowest_us, input_bytes, spent_ms]
    }

    fn of_words(words: [u64; Row::WORDS]) -> Row {
        let [state, number, executions, read, failures, peak_bytes, slowest_us, input_bytes, spent_ms] = words;
        Row { state, number, executions, read, failures, peak_bytes, slowest_us, input_bytes, spent_ms }
    }

    /// Returns the combined work of two threads.
    fn and(self, other: Row) -> Row {
        Row {
            state: self.state.min(other.state),
            number: self.number.max(other.number),
            executions: self.executions + other.executions,
            read: self.read + other.read,
            failures: self.failures + other.failures,
            peak_bytes: self.peak_bytes.max(other.peak_bytes),
            slowest_us: self.slowest_us.max(other.slowest_us),
            input_bytes: self.input_bytes + other.input_bytes,
            spent_ms: self.spent_ms.max(other.spent_ms),
        }
    }
}

/// The account file that workers keep: for each thread and target, the position and the results.
///
/// A row is written before each execution, so that after an abort the rows show which inputs were being executed.
///
/// The file.
struct Account {
    file: File,
    targets: usize,
}

impl Account {
    /// Opens the account, which is empty if the file is empty.
    fn open(path: &Path, targets: usize) -> io::Result<Account> {
        let file = File::options().read(true).write(true).create(true).truncate(false).open(path)?;
        Ok(Account { file, targets })
    }

    fn place(&self, thread: usize, target: usize) -> u64 {
        ((thread * self.targets + target) * Row::BYTES) as u64
    }

    fn write(&self, thread: usize, target: usize, row: Row) -> io::Result<()> {
        let mut bytes = [0; Row::BYTES];
        for (chunk, word) in bytes.chunks_exact_mut(8).zip(row.words()) {
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        self.file.write_all_at(&bytes, self.place(thread, target))
    }

    /// Reads a row; it is empty if none was written.
    fn read(&self, thread: usize, target: usize) -> io::Result<Row> {
        let mut bytes = [0; Row::BYTES];
        match self.file.read_exact_at(&mut bytes, self.place(thread, target)) {
            Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => return Err(error),
            _ => {}
        }
        let mut words = [0; Row::WORDS];
        for (word, chunk) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = chunk.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte));
        }
        Ok(Row::of_words(words))
    }
}

/// The final table.
///
/// Prints a row for each target, one for all readers and one for all commands.
fn print_table(options: &Options, targets: &[&Target], rows: &[Row], elapsed: Duration) {
    let mut out = io::stdout().lock();
    // A closed pipe does not affect the results.
    let _ = write_table(&mut out, options, targets, rows, elapsed);
}

fn write_table(out: &mut impl Write, options: &Options, targets: &[&Target], rows: &[Row], elapsed: Duration) -> io::Result<()> {
    let Options { seed, threads, .. } = options;
    writeln!(out, "seed {seed}, {threads} threads, {:.0} s", elapsed.as_secs_f64())?;
    writeln!(out, "| target | executions | read | failures | peak memory | slowest | mean input |")?;
    writeln!(out, "|---|--:|--:|--:|--:|--:|--:|")?;
    for (target, &row) in targets.iter().zip(rows) {
        write_row(out, target.name, row)?;
    }
    for (kind, name) in [(Kind::Reader, "**all readers**"), (Kind::Command, "**all commands**")] {
        let of_kind = targets.iter().zip(rows).filter(|(target, _)| target.kind == kind);
        if let Some(row) = of_kind.map(|(_, &row)| row).reduce(Row::and) {
            write_row(out, name, row)?;
        }
    }
    Ok(())
}

fn write_row(out: &mut impl Write, name: &str, row: Row) -> io::Result<()> {
    let of_all = |part: u64| part as f64 / row.executions.max(1) as f64;
    writeln!(
        out,
        "| {name} | {} | {:.1} % | {} | {:.1} MiB | {:.1} ms | {:.0} B |",
        row.executions,
        100.0 * of_all(row.read),
        row.failures,
        row.peak_bytes as f64 / f64::from(1 << 20),
        row.slowest_us as f64 / 1000.0,
        of_all(row.input_bytes),
    )
}

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
    /// The stage that the input reached.
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
fn note_panics() {
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
const LONGEST_MINIMISING: Duration = Duration::from_secs(5);

/// Returns the input with the fewest choices, among those found, that fails in the same way at the same place.
fn smaller(target: &Target, input: &Input, failure: &Failure) -> Input {
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
    while cut > 0 && start.elapsed() < LONGEST_MINIMISING {
        match fails(&best.choices[..best.choices.len().saturating_sub(cut)]) {
            Some(found) if found.bytes.len() <= best.bytes.len() => best = found,
            _ => cut /= 2,
        }
    }
    let mut width = best.choices.len().div_ceil(4).max(1);
    loop {
        for at in (0..best.choices.len()).step_by(width) {
            let end = (at + width).min(best.choices.len());
            if start.elapsed() > LONGEST_MINIMISING || best.choices[at..end].iter().all(|&byte| byte == 0) {
                continue;
            }
            let mut choices = best.choices.clone();
            choices[at..end].fill(0);
            best = fails(&choices).filter(|found| found.bytes.len() <= best.bytes.len()).unwrap_or(best);
        }
        if width == 1 || start.elapsed() > LONGEST_MINIMISING {
            return best;
        }
        width = width.div_ceil(4);
    }
}

/// Writes an input and a description of its failure, and returns the input's file.
fn write(folder: &Path, target: &Target, input: &Input, failure: &Failure, origin: &str) -> io::Result<PathBuf> {
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
