//! Tests that cannot run everywhere: where they cannot, they are listed as ignored, with the reason.

use std::process::{Command, ExitCode};

use libtest_mimic::{Arguments, Trial};

use super::call;

/// What a test needs of the machine.
#[derive(Clone, Copy)]
pub(crate) enum Needs {
    /// Nothing.
    Nothing,
    /// A C compiler, for a driver library of the test's own.
    Compiler,
    /// That there is no driver.
    NoDriver,
    /// A program, which answers `--version`.
    Program(&'static str),
}

impl Needs {
    fn missing(self) -> Option<String> {
        let lacks = |program: &str| Command::new(program).arg("--version").output().is_err();
        match self {
            _ if !cfg!(target_os = "linux") => Some("this is not Linux".to_owned()),
            Needs::Compiler if lacks("cc") => Some("there is no C compiler (cc)".to_owned()),
            Needs::NoDriver if call(&["info"]).code == 0 => Some("this machine has a driver".to_owned()),
            Needs::Program(name) if lacks(name) => Some(format!("there is no {name}")),
            _ => None,
        }
    }
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
