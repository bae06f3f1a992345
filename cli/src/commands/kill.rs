//! Ends one process that holds memory on a GPU. It is the only command that acts on anything other than its own files.
//!
//! - The process must be in the driver's list (NVML) of those that use a GPU.
//! - Any doubt ends the command before the signal: a different process with the same id, a process namespace that the
//!   driver does not see, an ancestor of this process.
//! - Only "yes", typed on a terminal, or `--yes` leads to a signal.

use std::fs;
use std::io::{self, BufRead, IsTerminal, Write};
use std::os::unix::fs::MetadataExt;

use crate::terminal::output;
use crate::terminal::runner::{Command, Outcome};
use crate::terminal::size::show_bytes;
use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use parkade_gpu::nvml::{Nvml, NvmlLibrary};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::{self, Pid, PidfdFlags, Signal};

/// The time that the process has to end, in seconds.
const PATIENCE_SECONDS: i64 = 10;
/// The initial pid namespace, whose pids the driver uses (the kernel's PROC_PID_INIT_INO).
const FIRST_PID_NAMESPACE: &str = "pid:[4026531836]";

/// End one process that holds memory on a GPU.
///
/// The process must be in the driver's list (NVML) of those that use a GPU, and is shown with its memory before you are asked. Only
/// "yes", typed on a terminal, ends it, with SIGTERM: it can save its work. Exit code: 0 it has ended, 1 it has not ended within 10 s, 2 no
/// signal was sent.
#[derive(Parser)]
#[command(after_help = "Examples:
  parkade info                which processes hold memory
  parkade kill 4242           ask it to end, after a question
  parkade kill 4242 --yes     without the question, in a script")]
pub(crate) struct Args {
    /// The process's id.
    #[arg(allow_hyphen_values = true)]
    pid: String,
    /// Do not ask; all other checks are made as usual.
    #[arg(long)]
    yes: bool,
}

impl Command for Args {
    type Found = Outcome;

    /// Prints each step at once. Whether the process is ended does not depend on whether this can be written.
    fn compute(&self) -> Result<Outcome> {
        let pid = process_id(&self.pid)?;
        ensure_not_an_ancestor(pid)?;
        let nvml = NvmlLibrary::open().context("only processes that NVML lists can be ended")?;
        // The process is held before it is checked, so that only the checked process can get the signal.
        let held = pid_of(pid).and_then(|pid| process::pidfd_open(pid, PidfdFlags::empty()));
        let holdings = holdings(&nvml, pid)?;
        let can_ask = io::stdin().is_terminal() && io::stderr().is_terminal();
        ensure!(self.yes || can_ask, "there is no terminal to ask for confirmation: --yes ends process {pid} without asking");
        let held = held.with_context(|| {
            format!(
                "NVML lists process {pid}, but parkade cannot open it here: it has ended, or this is a container and the id \
                 belongs to the host"
            )
        })?;
        ensure_pid_is_the_drivers(pid)?;
        let who = format!("{}, user id {}", name(pid)?, fs::metadata(format!("/proc/{pid}"))?.uid());
        let who = output::one_line(&who);
        let mut out = output::stdout();
        let mut say = |line: &str| drop(writeln!(out, "{line}").and_then(|()| out.flush()));
        say(&format!("process {pid} ({who}) holds"));
        holdings.iter().for_each(|holding| say(&format!("  {}", output::one_line(holding))));
        let outcome = if !self.yes && !ask(&format!("End process {pid} ({who}) with SIGTERM?"))? {
            say(&format!("no signal was sent to process {pid}"));
            Outcome::CouldNotRun
        } else {
            let ended_how = match process::pidfd_send_signal(&held, Signal::TERM) {
                Ok(()) => "has ended",
                Err(Errno::SRCH) => "ended on its own: no signal was sent",
                Err(error) => return Err(error).with_context(|| format!("SIGTERM cannot be sent to process {pid} ({who})")),
            };
            // It becomes readable once its process has ended.
            let patience = Timespec { tv_sec: PATIENCE_SECONDS, tv_nsec: 0 };
            let ended = retry_on_intr(|| poll(&mut [PollFd::new(&held, PollFlags::IN)], Some(&patience)))?;
            if ended > 0 {
                say(&format!("process {pid} {ended_how}"));
                Outcome::Good
            } else {
                say(&format!(
                    "process {pid} has not ended {PATIENCE_SECONDS} s after SIGTERM: it may be cleaning up, or ignoring the \
                     signal; it cannot ignore kill -9"
                ));
                Outcome::CheckFailed
            }
        };
        // What could not be written is kept, and fails again.
        out.flush().context("the result cannot be written")?;
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
        _ => bail!("{shown} is not the id of a process that can be ended: these ids begin at 2"),
    }
}

fn pid_of(pid: u32) -> Result<Pid, Errno> {
    i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)
}

/// Asks on the terminal. Anything but "yes" is no.
fn ask(question: &str) -> Result<bool> {
    write!(io::stderr(), "{question} Type yes: ")?;
    io::stderr().flush()?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(answer.trim_end_matches(['\r', '\n']) == "yes")
}

/// Refuses this process and its ancestors: its shell, terminal and session.
fn ensure_not_an_ancestor(pid: u32) -> Result<()> {
    let mut relative = std::process::id();
    while relative > 0 {
        ensure!(relative != pid, "process {pid} cannot be ended from here: parkade runs in it");
        let status = match read(relative, "status") {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            status => status?,
        };
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:")).and_then(|parent| parent.trim().parse().ok());
        relative = parent.with_context(|| format!("cannot tell whether parkade runs in process {pid}"))?;
    }
    Ok(())
}

/// What the process holds on each device according to the driver, in words.
fn holdings(nvml: &dyn Nvml, pid: u32) -> Result<Vec<String>> {
    let (mut holdings, mut unknown) = (Vec::new(), String::new());
    for device in nvml.devices()? {
        let index = device.index;
        match &device.processes {
            // Unknown is not zero.
            Ok(processes) => holdings.extend(processes.iter().filter(|it| it.pid == pid && it.used_bytes != Some(0)).map(|it| {
                let bytes = it.used_bytes.map_or_else(|| String::from("an unknown number of bytes"), show_bytes);
                format!("{bytes} on GPU {index} ({})", device.name.as_deref().unwrap_or("name unknown"))
            })),
            Err(error) => unknown += &format!("; not known for GPU {index} ({error})"),
        }
    }
    let listed = "NVML does not list it (in a container NVML may see no processes: run parkade on the host)";
    ensure!(!holdings.is_empty(), "process {pid} holds no memory on a GPU, so parkade leaves it alone: {listed}{unknown}");
    Ok(holdings)
}

/// Refuses if the pid that NVML lists may belong to a process on the host and to a different one here.
fn ensure_pid_is_the_drivers(pid: u32) -> Result<()> {
    ensure!(
        sees_driver_pids().with_context(|| format!("cannot check whether process {pid} is the one that NVML lists"))?,
        "parkade runs in a separate pid namespace, as in a container, so process {pid} in NVML's list may be a process of the \
         host and not process {pid} here: run parkade on the host, or in a container that shares the host's pids (--pid=host)"
    );
    let has_driver = has_driver(pid).with_context(|| {
        format!("cannot check whether process {pid} is the one that NVML lists: run parkade as its user or as root")
    })?;
    ensure!(
        has_driver,
        "process {pid} does not use the driver, so it is not the process that NVML lists: in a container NVML lists the host's \
         ids; run parkade on the host"
    );
    Ok(())
}

/// The process's name, if the driver's pids are those of this machine: outside containers, or if the process uses the driver.
pub(crate) fn name_of(pid: u32) -> Option<String> {
    let is_it = sees_driver_pids().unwrap_or(false) || has_driver(pid).unwrap_or(false);
    is_it.then(|| name(pid).ok()).flatten()
}

fn name(pid: u32) -> io::Result<String> {
    read(pid, "comm").map(|name| name.trim_end_matches('\n').to_owned())
}

/// A file of the process. Names in it may contain any bytes.
fn read(pid: u32, file: &str) -> io::Result<String> {
    fs::read(format!("/proc/{pid}/{file}")).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// Whether the driver's pids are those seen here: this process is in the first pid namespace.
fn sees_driver_pids() -> io::Result<bool> {
    Ok(fs::read_link("/proc/self/ns/pid")?.as_os_str() == FIRST_PID_NAMESPACE)
}

/// Whether the process has mapped the driver's library or one of its devices.
fn has_driver(pid: u32) -> io::Result<bool> {
    read(pid, "maps").map(|maps| names_driver(&maps))
}

fn names_driver(maps: &str) -> bool {
    maps.lines().any(|line| {
        let path = line.find('/').map_or("", |start| &line[start..]);
        path.starts_with("/dev/nvidia") || path.rsplit('/').next().is_some_and(|file| file.starts_with("libcuda.so"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use parkade_gpu::nvml::{GpuProcess, NvmlDevice, NvmlError};

    /// A driver with one device and this list of its processes.
    struct Lists(Result<Vec<(u32, Option<u64>)>, NvmlError>);

    impl Nvml for Lists {
        fn driver_version(&self) -> Result<String, NvmlError> {
            Ok("580.95.05".into())
        }

        fn devices(&self) -> Result<Vec<NvmlDevice>, NvmlError> {
            let refused = || NvmlError::Refused { call: "nvmlDeviceGetMemoryInfo", code: 4 };
            let process = |&(pid, used_bytes): &(u32, _)| GpuProcess { pid, used_bytes, compute: true, graphics: false };
            let processes = self.0.as_ref().map(|listed| listed.iter().map(process).collect()).map_err(Clone::clone);
            Ok(vec![NvmlDevice { index: 1, name: Ok("H200".into()), uuid: Err(refused()), memory: Err(refused()), processes }])
        }
    }

    #[test]
    fn only_what_holds_memory_is_ended_and_unknown_bytes_are_not_none() {
        let of = |listed: &[(u32, Option<u64>)]| holdings(&Lists(Ok(listed.to_vec())), 42).map_err(|error| error.to_string());
        assert_eq!(of(&[(17, Some(1)), (42, Some(3 << 30))]), Ok(vec!["3.00 GiB on GPU 1 (H200)".to_owned()]));
        assert_eq!(of(&[(42, None)]), Ok(vec!["an unknown number of bytes on GPU 1 (H200)".to_owned()]));
        for listed in [&[][..], &[(17, Some(1))], &[(42, Some(0))]] {
            assert!(
                of(listed).expect_err("refused").starts_with("process 42 holds no memory on a GPU, so parkade leaves it alone: ")
            );
        }
        let refused = Lists(Err(NvmlError::Refused { call: "nvmlDeviceGetComputeRunningProcesses_v3", code: 4 }));
        let said = holdings(&refused, 42).expect_err("refused").to_string();
        assert!(said.contains("; not known for GPU 1 (nvmlDeviceGetComputeRunningProcesses_v3: no permission"), "{said}");
    }

    #[test]
    fn only_the_drivers_files_show_a_gpu() {
        let line = |path| format!("7f00-7f01 r--p 00000000 08:01 99    {path}\n");
        for path in
            ["/dev/nvidia0", "/dev/nvidia-uvm", "/usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05", "/opt/my libs/libcuda.so.1"]
        {
            assert!(names_driver(&(line("/usr/lib/libc.so.6") + &line(path))), "{path}");
        }
        for path in ["/usr/lib/libcudart.so.12", "[heap]", "", "/home/nvidia0/libc.so", "/srv/libcuda.so.1/data"] {
            assert!(!names_driver(&line(path)), "{path}");
        }
    }

    #[test]
    fn pids_that_mean_more_or_less_than_a_process_are_refused() {
        for text in ["0", "1", "-1", "-4242", "2147483648", "4294967298", "-9223372036854775808"] {
            assert!(
                process_id(text).expect_err(text).to_string().contains("is not the id of a process that can be ended"),
                "{text}"
            );
        }
        for text in ["", "python3", "12x", " 12", "99999999999999999999", "0x10"] {
            assert!(process_id(text).expect_err(text).to_string().contains("is not a process id"), "{text}");
        }
        assert_eq!((process_id("2").ok(), process_id("2147483647").ok()), (Some(2), Some(2_147_483_647)));
    }

    #[test]
    fn this_machine_answers() {
        assert!(ensure_not_an_ancestor(std::process::id()).is_err() && ensure_not_an_ancestor(u32::MAX).is_ok());
        assert!(name(std::process::id()).is_ok_and(|name| !name.is_empty()) && name(u32::MAX).is_err());
        assert!(!has_driver(std::process::id()).expect("readable"));
    }
}
