//! `parkade kill` on real processes, with the test's own driver, which lists them.

mod common;
mod nvml;

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use common::trials::{self, Needs};
use common::{Folder, call, call_with};
use nvml::{call_fake, fake, with_fake};

/// A process that sleeps, and is noticed as soon as it ends.
struct Sleeper {
    pid: String,
    waiter: JoinHandle<ExitStatus>,
}

impl Sleeper {
    /// One that has CUDA's library in its memory, like a process that uses a GPU.
    fn on_gpu(folder: &Folder) -> Sleeper {
        Sleeper::spawn("exec sleep 60", Some(folder))
    }

    /// One that has not.
    fn elsewhere() -> Sleeper {
        Sleeper::spawn("exec sleep 60", None)
    }

    /// One on the GPU that ignores SIGTERM.
    fn stubborn(folder: &Folder) -> Sleeper {
        Sleeper::spawn("trap '' TERM; exec sleep 60", Some(folder))
    }

    fn spawn(script: &str, driver: Option<&Folder>) -> Sleeper {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::null());
        if let Some(folder) = driver {
            command.env("LD_PRELOAD", format!("{}/libcuda.so.1", folder.path()));
        }
        let mut child = command.spawn().expect("it starts");
        let pid = child.id().to_string();
        let proc = |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
        while proc("comm") != "sleep\n" || (driver.is_some() && !proc("maps").contains("/libcuda.so.1")) {
            thread::sleep(Duration::from_millis(1));
        }
        Sleeper { pid, waiter: thread::spawn(move || child.wait().expect("it ends")) }
    }

    fn is_running(&self) -> bool {
        !self.waiter.is_finished()
    }

    /// The signal that ended it.
    fn ended_by(self) -> Option<i32> {
        self.waiter.join().expect("no panic").signal()
    }

    fn end(self) {
        let sent = Command::new("sh").args(["-c", &format!("kill -9 {}", self.pid)]).status().expect("sh runs");
        assert!(sent.success());
        assert_eq!(self.ended_by(), Some(9));
    }
}

fn main() -> ExitCode {
    trials::run(&[
        ("a_listed_process_ends_by_sigterm", Needs::Compiler, a_listed_process_ends_by_sigterm),
        ("without_a_terminal_or_a_yes_nothing_is_sent", Needs::Compiler, without_a_terminal_or_a_yes_nothing_is_sent),
        ("a_process_that_only_shares_the_pid_is_left_alone", Needs::Compiler, a_process_that_only_shares_the_pid_is_left_alone),
        ("what_was_done_and_cannot_be_written_is_said", Needs::Compiler, what_was_done_and_cannot_be_written_is_said),
        ("a_process_that_stays_is_a_failed_check", Needs::Compiler, a_process_that_stays_is_a_failed_check),
        ("what_parkade_runs_in_is_never_ended", Needs::Compiler, what_parkade_runs_in_is_never_ended),
        ("ids_that_mean_more_than_a_process_are_refused", Needs::Nothing, ids_that_mean_more_than_a_process_are_refused),
        ("without_a_driver_nothing_is_ended", Needs::Nothing, without_a_driver_nothing_is_ended),
    ])
}

fn a_listed_process_ends_by_sigterm() {
    let folder = fake("kill-ends");
    let sleeper = Sleeper::on_gpu(&folder);
    let run = call_fake(&folder, &["kill", &sleeper.pid, "--yes"], &[("FAKE_NVML_PID", &sleeper.pid)]);
    assert_eq!((run.code, run.err.as_str()), (0, ""), "{}", run.out);
    assert!(run.out.starts_with(&format!("process {} (sleep, user id ", sleeper.pid)), "{}", run.out);
    assert!(run.out.ends_with(&format!("\n  3.00 GiB on GPU 0 (Fake GPU)\nprocess {} has ended\n", sleeper.pid)), "{}", run.out);
    assert_eq!(sleeper.ended_by(), Some(15));
}

fn without_a_terminal_or_a_yes_nothing_is_sent() {
    let folder = fake("kill-no-terminal");
    let sleeper = Sleeper::on_gpu(&folder);
    let run = call_fake(&folder, &["kill", &sleeper.pid], &[("FAKE_NVML_PID", &sleeper.pid)]);
    assert_eq!((run.code, run.out.as_str()), (2, ""));
    assert!(run.err.starts_with("parkade: there is no terminal to ask for confirmation: --yes ends process "), "{}", run.err);
    // A "yes" from a pipe does not come from a person.
    assert_eq!(call_with(&["kill", &sleeper.pid], b"yes\n").code, 2);
    assert!(sleeper.is_running());
    sleeper.end();
}

fn a_process_that_only_shares_the_pid_is_left_alone() {
    let folder = fake("kill-other");
    let sleeper = Sleeper::elsewhere();
    let run = call_fake(&folder, &["kill", &sleeper.pid, "--yes"], &[("FAKE_NVML_PID", &sleeper.pid)]);
    assert_eq!((run.code, run.out.as_str()), (2, ""));
    assert!(run.err.contains("does not use the driver, so it is not the process that NVML lists"), "{}", run.err);
    let run = call_fake(&folder, &["kill", &sleeper.pid, "--yes"], &[]);
    assert_eq!(run.code, 2);
    assert!(run.err.contains("holds no memory on a GPU, so parkade leaves it alone: NVML does not list it"), "{}", run.err);
    assert!(sleeper.is_running());
    sleeper.end();
}

/// The process is ended anyway, although nobody reads the output.
fn what_was_done_and_cannot_be_written_is_said() {
    let folder = fake("kill-full");
    let full = || std::fs::OpenOptions::new().write(true).open("/dev/full").expect("it is there").into();
    let unread = || std::io::pipe().expect("a pipe").1.into();
    let said = "parkade: the result cannot be written: cannot write standard output: No space left on device";
    for (stdout, code, said) in [(full as fn() -> Stdio, 2, said), (unread, 0, "")] {
        let sleeper = Sleeper::on_gpu(&folder);
        let mut command = with_fake(&folder, &["kill", &sleeper.pid, "--yes"], &[("FAKE_NVML_PID", &sleeper.pid)]);
        let output = command.stdout(stdout()).output().expect("the binary runs");
        let err = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(code) && err.starts_with(said) && err.is_empty() == said.is_empty(), "{err}");
        assert_eq!(sleeper.ended_by(), Some(15));
    }
}

fn a_process_that_stays_is_a_failed_check() {
    let folder = fake("kill-stays");
    let sleeper = Sleeper::stubborn(&folder);
    let run = call_fake(&folder, &["kill", &sleeper.pid, "--yes"], &[("FAKE_NVML_PID", &sleeper.pid)]);
    assert_eq!(run.code, 1, "{}{}", run.out, run.err);
    assert!(run.out.contains("has not ended 10 s after SIGTERM: it may be cleaning up"), "{}", run.out);
    assert!(sleeper.is_running());
    sleeper.end();
}

fn what_parkade_runs_in_is_never_ended() {
    let folder = fake("kill-parent");
    let own = std::process::id().to_string();
    let run = call_fake(&folder, &["kill", &own, "--yes"], &[("FAKE_NVML_PID", &own)]);
    assert_eq!(run.code, 2);
    assert_eq!(run.err, format!("parkade: process {own} cannot be ended from here: parkade runs in it\n"));
}

fn ids_that_mean_more_than_a_process_are_refused() {
    for pid in ["0", "1", "-1", "-9", "4294967298"] {
        let run = call(&["kill", pid, "--yes"]);
        assert_eq!(
            (run.code, run.err),
            (2, format!("parkade: {pid} is not the id of a process that can be ended: these ids begin at 2\n"))
        );
    }
    let run = call(&["kill", "python3", "--yes"]);
    assert_eq!(run.err, "parkade: \"python3\" is not a process id: `parkade info` lists them\n");
    for args in [&["kill"][..], &["kill", "5", "6"], &["kill", "5", "--signal", "HUP"]] {
        assert_eq!(call(args).code, 2, "{args:?}");
    }
}

/// On a machine with a GPU the same process is not listed.
fn without_a_driver_nothing_is_ended() {
    let run = call(&["kill", "4000000", "--yes"]);
    assert_eq!((run.code, run.out.as_str()), (2, ""));
    let reasons = ["only processes that NVML lists can be ended: no NVML (", "holds no memory on a GPU"];
    assert!(reasons.iter().any(|reason| run.err.contains(reason)), "{}", run.err);
    let help = call(&["kill", "--help"]);
    assert!(help.code == 0 && help.out.contains("Examples:\n  parkade info "), "{}", help.out);
}
