#![doc = include_str!("../README.md")]
#![cfg(target_os = "linux")]
#![forbid(unsafe_code)]

mod host;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io::{self, BufRead, IsTerminal, Write};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::{Parser, ValueEnum};
use parkade_gpu::nvml::{GpuProcess, Nvml, NvmlDevice, NvmlLibrary};
use parkade_terminal::args::interval;
use parkade_terminal::output;
use parkade_terminal::runner::{Command, Outcome};
use parkade_terminal::size::show_bytes;

pub use host::name_of;
use host::{Host, Linux, Process};

/// How often to check whether the process has ended.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// The most ancestors of this process that are followed.
const MOST_ANCESTORS: usize = 1000;

/// End one process that holds memory on a GPU.
///
/// The process must be in the driver's list (NVML) of those that use a GPU, and is shown with its user and its memory before you are
/// asked. Only "yes", typed on a terminal, ends it. Exit code: 0 it has ended, 1 it has not, 2 no signal was sent.
#[derive(Parser)]
#[command(after_help = "Examples:
  parkade info                       which processes hold memory
  parkade kill 4242                  ask it to end (SIGTERM): it can save its work
  parkade kill 4242 --signal KILL    end it if it does not respond
  parkade kill 4242 --yes            without asking, in a script")]
pub struct Args {
    /// The process's id.
    #[arg(allow_hyphen_values = true)]
    pid: String,
    /// Do not ask; all other checks are made as usual.
    #[arg(long)]
    yes: bool,
    /// The signal: TERM lets the process clean up, KILL does not.
    #[arg(long, value_enum, ignore_case = true, default_value_t)]
    signal: Signal,
    /// How long to wait for the process to end and the driver to reclaim its memory.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = interval, allow_hyphen_values = true)]
    wait: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub(crate) enum Signal {
    #[default]
    #[value(name = "TERM")]
    Term,
    #[value(name = "KILL")]
    Kill,
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Signal::Term => "SIGTERM",
            Signal::Kill => "SIGKILL",
        })
    }
}

impl Command for Args {
    type Answer = Outcome;

    /// Prints each step at once.
    fn compute(&self) -> Result<Outcome> {
        let pid = process_id(&self.pid)?;
        let can_ask = io::stdin().is_terminal() && io::stderr().is_terminal();
        ensure!(self.yes || can_ask, "there is no terminal to ask on: --yes ends process {pid} without the question");
        let nvml = NvmlLibrary::open().context("only processes that NVML lists can be ended")?;
        let killing = Killing { nvml: &nvml, host: &Linux, pid, signal: self.signal, patience: self.wait };
        let mut out = output::stdout();
        let outcome = killing.run(&mut out, |question| if self.yes { Ok(true) } else { ask(question) })?;
        // What could not be written is kept, and fails again.
        out.flush().context("the process was dealt with, and that cannot be said")?;
        Ok(outcome)
    }

    fn outcome(&self, outcome: &Outcome) -> Outcome {
        *outcome
    }
}

/// A pid of a single process: neither a process group nor init.
fn process_id(text: &str) -> Result<u32> {
    let shown = output::shorten(text, 40);
    let Ok(number) = text.parse::<i64>() else { bail!("{shown:?} is not a process id: `parkade info` lists them") };
    match u32::try_from(number) {
        Ok(pid) if pid > 1 && i32::try_from(pid).is_ok() => Ok(pid),
        _ => bail!("{shown} is never ended: a process id is a number from 2 on"),
    }
}

/// Asks on the terminal. Anything but "yes" is no.
fn ask(question: &str) -> Result<bool> {
    write!(io::stderr(), "{question} Type yes: ")?;
    io::stderr().flush()?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(answer.trim_end_matches(['\r', '\n']) == "yes")
}

/// One process, to be ended.
struct Killing<'a, H: Host> {
    nvml: &'a dyn Nvml,
    host: &'a H,
    pid: u32,
    signal: Signal,
    patience: Duration,
}

/// What a process has on a device.
struct Holding {
    device: NvmlDevice,
    process: GpuProcess,
}

impl<H: Host> Killing<'_, H> {
    fn run(&self, out: &mut impl Write, confirm: impl FnOnce(&str) -> Result<bool>) -> Result<Outcome> {
        let pid = self.pid;
        self.ensure_not_an_ancestor()?;
        let holdings = self.holdings()?;
        self.ensure_pids_are_the_drivers()?;
        // Opened before it is checked, so that the process checked is the one signalled.
        let target = self.host.target(pid).or_else(|error| self.no_such_process(error))?;
        let process = self.identify()?;
        let who = output::one_line(&process.to_string());
        say(out, &format!("process {pid} ({who}) holds"));
        for holding in &holdings {
            say(out, &format!("  {}", output::one_line(&holding.to_string())));
        }
        if !self.host.is_held(&target) {
            say(
                out,
                "this kernel or sandbox has no pidfd: should the process end now and its id pass to another, that one is hit",
            );
        }
        if !confirm(&format!("End process {pid} ({who}) with {}?", self.signal))? {
            say(out, &format!("nothing was sent to process {pid}"));
            return Ok(Outcome::CouldNotRun);
        }
        match self.host.look(pid)? {
            Some(now) if now.start != process.start => {
                bail!("process {pid} ended before the answer, and its id now belongs to another process: nothing was sent")
            }
            Some(now) if !now.has_ended => {}
            _ => {
                say(out, &format!("process {pid} ended by itself: nothing was sent"));
                return Ok(Outcome::Good);
            }
        }
        self.host
            .send(&target, self.signal)
            .with_context(|| format!("{} cannot be sent to process {pid} ({who})", self.signal))?;
        self.report(out, &process, &holdings)
    }

    /// Refuses the ancestors of this process: its shell, terminal and session.
    fn ensure_not_an_ancestor(&self) -> Result<()> {
        let mut relative = self.host.own_pid();
        for _ in 0..MOST_ANCESTORS {
            ensure!(relative != self.pid, "process {} is never ended: parkade runs in it", self.pid);
            match self.host.look(relative)? {
                Some(process) if process.parent > 0 => relative = process.parent,
                _ => return Ok(()),
            }
        }
        bail!("more than {MOST_ANCESTORS} processes above this one: whether {} is one of them is not known", self.pid)
    }

    /// The memory of the process on each device, according to the driver.
    fn holdings(&self) -> Result<Vec<Holding>> {
        let (mut holdings, mut others, mut refusals) = (Vec::new(), Vec::new(), String::new());
        for device in self.nvml.devices()? {
            match &device.processes {
                Ok(processes) => {
                    others.extend(processes.iter().map(|process| process.pid).filter(|&pid| pid != self.pid));
                    // Unknown is not zero.
                    let is_it = |process: &&GpuProcess| process.pid == self.pid && process.used_bytes != Some(0);
                    if let Some(&process) = processes.iter().find(is_it) {
                        holdings.push(Holding { device, process });
                    }
                }
                Err(error) => refusals += &format!("; not known for GPU {} ({error})", device.index),
            }
        }
        others.sort_unstable();
        others.dedup();
        let listed = match others.as_slice() {
            [] => String::from("NVML lists none (in a container it may see none: run it on the host)"),
            others => format!("NVML lists {}", output::list(others)),
        };
        ensure!(!holdings.is_empty(), "process {} holds no memory on a GPU and is left alone: {listed}{refusals}", self.pid);
        Ok(holdings)
    }

    /// Refuses where a pid that NVML lists may be a process of the host and, here, another one: even one that uses the driver.
    fn ensure_pids_are_the_drivers(&self) -> Result<()> {
        let pid = self.pid;
        let are_the_drivers = self.host.sees_driver_pids().with_context(|| {
            format!(
                "whether process {pid} is the one that NVML means cannot be checked: this process's pid namespace is not known"
            )
        })?;
        ensure!(
            are_the_drivers,
            "parkade runs in a pid namespace of its own, as in a container, where NVML's process {pid} may be one of the host's and \
             {pid} here another: run it on the host, or in a container that shares the host's pids (--pid=host)"
        );
        Ok(())
    }

    /// The process with this pid, if it uses the driver.
    fn identify(&self) -> Result<Process> {
        let pid = self.pid;
        let look = self.host.look(pid)?.filter(|process| !process.has_ended);
        let Some(process) = look else { return self.no_such_process(io::ErrorKind::NotFound.into()) };
        let has_driver = self.host.has_driver(pid).with_context(|| {
            format!(
                "whether process {pid} ({process}) is the one that NVML means cannot be checked: run it as {} or root",
                process.user
            )
        })?;
        ensure!(
            has_driver,
            "process {pid} is {process} here and does not use the driver, so NVML means another process: in a container it lists \
             the host's ids; run it on the host"
        );
        Ok(process)
    }

    fn no_such_process<T>(&self, error: io::Error) -> Result<T> {
        let pid = self.pid;
        Err(error).with_context(|| {
            format!("NVML lists process {pid}, which does not exist here: it has ended, or this is a container and the id is the host's")
        })
    }

    /// Waits until the process has ended and the driver no longer lists it, and reports the memory it freed.
    fn report(&self, out: &mut impl Write, process: &Process, holdings: &[Holding]) -> Result<Outcome> {
        let (pid, sent) = (self.pid, Instant::now());
        while !self.has_ended(process)? {
            if sent.elapsed() >= self.patience {
                let seconds = self.patience.as_secs_f64();
                let way_out = match self.signal {
                    Signal::Term => "it may be cleaning up, or ignore it; --signal KILL cannot be ignored",
                    Signal::Kill => "the kernel ends it once a call of the driver's returns",
                };
                say(out, &format!("process {pid} has not ended {seconds} s after {}: {way_out}", self.signal));
                return Ok(Outcome::CheckFailed);
            }
            std::thread::sleep(LOOK_EVERY.min(self.patience));
        }
        say(out, &format!("process {pid} ended {:.1} s after {}", sent.elapsed().as_secs_f64(), self.signal));
        while self.is_listed() && sent.elapsed() < self.patience {
            std::thread::sleep(LOOK_EVERY.min(self.patience));
        }
        let after = self.nvml.devices()?;
        for holding in holdings {
            let now = after.iter().find(|device| device.index == holding.device.index);
            say(out, &format!("  GPU {}: {}", holding.device.index, came_back(&holding.device, now)));
        }
        Ok(Outcome::Good)
    }

    fn has_ended(&self, process: &Process) -> Result<bool> {
        Ok(self.host.look(self.pid)?.is_none_or(|now| now.has_ended || now.start != process.start))
    }

    fn is_listed(&self) -> bool {
        self.nvml.devices().is_ok_and(|devices| {
            let mut processes = devices.iter().filter_map(|device| device.processes.as_ref().ok()).flatten();
            processes.any(|process| process.pid == self.pid)
        })
    }
}

/// Prints a line at once. A process is ended, or not, whether this can be written or not.
fn say(out: &mut impl Write, line: &str) {
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// How a device's free memory changed.
fn came_back(before: &NvmlDevice, after: Option<&NvmlDevice>) -> String {
    let free = |device: &NvmlDevice| device.memory.as_ref().ok().map(|memory| memory.free_bytes);
    match (free(before), after.and_then(free)) {
        (Some(before), Some(after)) => {
            let gained = match after.checked_sub(before) {
                Some(gained) => format!("{} came back", show_bytes(gained)),
                None => String::from("nothing came back: others have allocated more meanwhile"),
            };
            format!("{gained} (free before {}, now {})", show_bytes(before), show_bytes(after))
        }
        _ => String::from("how much came back is unknown: NVML does not report the device's memory"),
    }
}

impl fmt::Display for Holding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.process.used_bytes.map_or_else(|| String::from("an unknown number of bytes"), show_bytes);
        let name = self.device.name.as_deref().unwrap_or("name unknown");
        write!(f, "{bytes} on GPU {} ({name})", self.device.index)
    }
}
