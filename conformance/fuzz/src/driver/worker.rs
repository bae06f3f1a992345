//! The process that does the work, on several threads.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{Resource, Rlimit, setrlimit};

use super::account::{Account, Row};
use super::execute::{Failure, execute, note_panics, prepare_thread};
use super::failures::{smaller, write};
use super::input::input;
use super::options::Options;
use crate::targets::{Reached, Target, prepare};

/// How many inputs are written for one place in the code.
const MOST_FOR_A_PLACE: u32 = 3;

/// What all threads share.
struct Work<'o> {
    options: &'o Options,
    targets: Vec<&'static Target>,
    account: Account,
    /// How many inputs failed at each place.
    places: Mutex<BTreeMap<String, u32>>,
}

/// Runs the chosen targets, from where the account says that they were.
///
/// # Errors
/// The account cannot be read or written, or an input that failed cannot be written.
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
    .context("the account of the work")
}

/// Beyond this an allocation fails, which ends the process: better than all memory of the machine.
///
/// # Errors
/// The system refuses the bound.
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
                // Where executions are counted, the time only bounds them all.
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

    /// How often an input failed like this before.
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
