//! The process that starts the work, and starts it again behind an input that ended it.

use std::env;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::account::{Account, Row};
use super::execute::{Failure, FailureKind};
use super::failures::{kept, run_kept, write};
use super::input::input;
use super::options::Options;
use super::table;
use crate::targets::Target;

/// How long an execution may take by the clock, before it counts as one that does not end. Processor time is bounded more tightly, but only
/// after the execution has ended.
const PATIENCE: Duration = Duration::from_secs(40);
/// How often the account is looked at.
const PERIOD: Duration = Duration::from_millis(100);
/// After so many ends of the worker something else is wrong.
const MOST_RESTARTS: u32 = 200;

/// Runs the chosen targets and prints the table. Returns whether every input was survived.
///
/// # Errors
/// The work cannot be started, or ends again and again.
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
    table::print(options, &watched.targets, &rows, start.elapsed());
    Ok(kept_failures == 0 && rows.iter().all(|row| row.failures == 0))
}

fn worker(options: &Options, account: &Path) -> Result<Child> {
    let mut command = Command::new(env::current_exe()?);
    // A backtrace of an allocation that fails says nothing that the input does not.
    command.env("RUST_BACKTRACE", "0");
    command.args(env::args_os().skip(1)).arg("--account").arg(account).stdin(Stdio::null());
    command.spawn().with_context(|| format!("a worker for {:?}", options.target))
}

struct Watched<'o> {
    options: &'o Options,
    targets: Vec<&'static Target>,
    account: Account,
}

/// A thread and the place of a target.
type Place = (usize, usize);

impl Watched<'_> {
    fn places(&self) -> impl Iterator<Item = Place> + use<'_> {
        (0..usize::from(self.options.threads)).flat_map(|thread| (0..self.targets.len()).map(move |target| (thread, target)))
    }

    /// Waits until the worker ends; ends it if one of its executions does not.
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

    /// Finds the input that ended the worker, writes it, and lets the work go on behind it.
    fn note_end(&self, status: ExitStatus, stuck: Option<Place>) -> Result<()> {
        if let Some(place) = stuck {
            return self.note(place, FailureKind::Hang, &format!("it did not end within {} s", PATIENCE.as_secs()));
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
                self.note((thread, target), FailureKind::Abort, &format!("alone it ends with {ended}"))?;
            }
        }
        if !is_found {
            eprintln!("the worker ended with {status}, and none of the {} inputs in progress ends one alone", running.len());
            for place in running {
                self.note(place, FailureKind::Abort, "it was in progress when the worker ended, and does not end one alone")?;
            }
        }
        Ok(())
    }

    /// Runs one execution in a process of its own. Returns how that ended, if not as it should.
    fn ends_alone(&self, target: &Target, number: u64) -> Result<Option<ExitStatus>> {
        let mut command = Command::new(env::current_exe()?);
        // It is bounded like the worker.
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

    /// What was done for each target.
    fn rows(&self) -> Result<Vec<Row>> {
        let of_target = |target| {
            let rows = (0..usize::from(self.options.threads)).map(|thread| self.account.read(thread, target));
            Ok(rows.collect::<std::io::Result<Vec<Row>>>()?.into_iter().reduce(Row::and).unwrap_or_default())
        };
        (0..self.targets.len()).map(of_target).collect()
    }
}

/// Runs the inputs that once failed. Returns how many fail.
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
    eprintln!("{runs} executions of inputs that once failed, {failures} fail");
    Ok(failures)
}
