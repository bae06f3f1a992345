//! Runs tests that cannot run everywhere; a test that cannot run is listed as ignored, with the reason.

use std::process::{Command, ExitCode};

use libtest_mimic::{Arguments, Trial};

use super::call;

/// What a test needs from the machine.
#[derive(Clone, Copy)]
pub(crate) enum Needs {
    /// Nothing.
    Nothing,
    /// A program that answers `--version`, and what to say if it is missing.
    Program(&'static str, &'static str),
    /// A C compiler, for the test's own driver library.
    Compiler,
    /// The absence of a driver.
    NoDriver,
    /// Python with pytest.
    Pytest,
    /// The shell bash.
    Bash,
}

impl Needs {
    fn missing(self) -> Option<&'static str> {
        match self {
            _ if !cfg!(target_os = "linux") => Some("this is not Linux"),
            Needs::Program(name, missing) if Command::new(name).arg("--version").output().is_err() => Some(missing),
            Needs::Compiler if Command::new("cc").arg("--version").output().is_err() => Some("there is no C compiler (cc)"),
            Needs::Pytest if !succeeds("python3", &["-c", "import pytest"]) => {
                Some("there is no python3 with pytest (pip install pytest)")
            }
            Needs::Bash if !succeeds("bash", &["--version"]) => Some("there is no bash"),
            Needs::NoDriver if call(&["info"]).code == 0 => Some("this machine has a driver"),
            _ => None,
        }
    }
}

/// Whether a program exists and can do this.
fn succeeds(program: &str, args: &[&str]) -> bool {
    Command::new(program).args(args).output().is_ok_and(|output| output.status.success())
}

/// Runs the tests as `cargo test` expects it.
pub(crate) fn run(tests: &[(&'static str, Needs, fn())]) -> ExitCode {
    let trials = tests.iter().map(|&(name, needs, test)| {
        let missing = needs.missing();
        let trial = Trial::test(name, move || {
            test();
            Ok(())
        });
        match missing {
            None => trial,
            Some(reason) => trial.with_kind(format!("ignored: {reason}")).with_ignored_flag(true),
        }
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit_code()
}
