//! `parkade run` runs and records a Python program, and explains an out-of-memory error. The Python package runs it; this
//! starts Python.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::Parser;
use parkade_policies::base;
use parkade_research::policies::policies;

use crate::terminal::output;
use crate::terminal::runner::Outcome;

/// Run a Python program, and explain an out-of-memory error.
///
/// The program runs as Python runs it, with a history of its last 1,000,000 allocations. At every out-of-memory error in
/// PyTorch, even one that the program catches, parkade writes the snapshot and prints a line about it, at most once a minute.
/// If the error ends the program, parkade prints on standard error, after the program's own traceback: the cause, the line to
/// set and how likely it completes the run, what to check first, and the command that opens the page.
///
/// The first python3 or python on the path that can import parkade runs it, as `python -m parkade run` does, also under torchrun:
/// torchrun --nproc-per-node 8 -m parkade run train.py
#[derive(Parser)]
#[command(
    override_usage = "parkade run [OPTIONS] PROGRAM.py [ARGUMENTS]...\n       parkade run [OPTIONS] -m MODULE [ARGUMENTS]...",
    after_help = "Examples:
  parkade run train.py --batch-size 64
  parkade run --limit 14GiB --snapshot '/scratch/oom-{host}-{rank}.pickle' train.py
  parkade run --rescue --serial train.py
  parkade run --always --snapshot run.pickle -m package.train

Exit code: the program's own; 2 if it could not be started."
)]
pub(crate) struct Args {
    /// The memory that the process may reserve, which the snapshot records; auto asks PyTorch [default: auto].
    #[arg(long, value_name = "SIZE")]
    limit: Option<OsString>,
    /// Where the snapshot is written; {host} and {rank} are filled in, and an existing file is replaced
    /// [default: oom-{host}-{rank}.pickle].
    #[arg(long, value_name = "FILE")]
    snapshot: Option<OsString>,
    /// Also write the snapshot at the end of a run without an out-of-memory error.
    #[arg(long)]
    always: bool,
    /// Run the program on one of parkade's policies, in place of PyTorch's allocator; parkade sweep --list lists them.
    #[arg(long, value_name = "NAME")]
    policy: Option<OsString>,
    /// Run the program on parkade with PyTorch's rules, and continue where PyTorch would raise an out-of-memory error although enough
    /// memory is free in pieces. Without --serial only free memory moves.
    #[arg(long, conflicts_with = "policy")]
    rescue: bool,
    /// Promise that only one thread at a time uses the GPU, so that live tensors can be copied to new memory.
    #[arg(long)]
    serial: bool,
    /// Run this module instead of a file. What follows is its arguments.
    #[arg(short, value_name = "MODULE", num_args = 1.., allow_hyphen_values = true)]
    module: Vec<OsString>,
    /// The program, and its arguments.
    #[arg(trailing_var_arg = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// The check that a Python must pass before it gets the program.
const CAN_RUN: &str = "import importlib.util, sys; sys.exit(importlib.util.find_spec('parkade._run_program') is None)";
/// The names of Python.
const NAMES: [&str; 2] = ["python3", "python"];

impl Args {
    /// Becomes Python, which runs the program. Returns only if that fails.
    pub(crate) fn run(&self) -> Outcome {
        let name = self.policy.as_deref().map(OsStr::to_string_lossy).unwrap_or_default();
        if policies().own().any(|policy| policy.entry.name == base(&name)) {
            output::complain(&format!(
                "a PyTorch program cannot run on {name}: it would run on the Python package's library, which has only the policies of the \
                 catalogue; in the program, parkade.enable(library=...) takes a library with your policies"
            ));
            return Outcome::CouldNotRun;
        }
        let Some(python) = pythons().find(|python| can_run(python)) else {
            output::complain(
                "parkade run needs the Python package parkade, and no python3 or python on the path can import it: run `pip install .` in \
                 parkade's sources, in the environment of the program",
            );
            return Outcome::CouldNotRun;
        };
        let mut command = Command::new(&python);
        command.args(["-m", "parkade", "run"]).args(self.arguments());
        let error = become_it(&mut command);
        output::complain(&format!("cannot run {}: {error}", python.display()));
        Outcome::CouldNotRun
    }
}

impl Args {
    /// The arguments for Python: the options, and then the program with its arguments.
    fn arguments(&self) -> Vec<OsString> {
        let values = [("--limit", &self.limit), ("--snapshot", &self.snapshot), ("--policy", &self.policy)];
        let flags = [("--always", self.always), ("--rescue", self.rescue), ("--serial", self.serial)];
        let given = values.into_iter().filter_map(|(name, value)| Some([name.into(), value.clone()?]));
        let set = flags.into_iter().filter(|&(_, is_set)| is_set).map(|(name, _)| OsString::from(name));
        let (mark, program) = if self.module.is_empty() { ("--", &self.program) } else { ("-m", &self.module) };
        let mark = Some(OsString::from(mark)).filter(|_| !program.is_empty());
        given.flatten().chain(set).chain(mark).chain(program.iter().cloned()).collect()
    }
}

/// Every Python on the path, in order.
fn pythons() -> impl Iterator<Item = PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let files =
        folders.into_iter().flat_map(|folder| NAMES.map(|name| folder.join(format!("{name}{}", std::env::consts::EXE_SUFFIX))));
    files.filter(|file| file.is_file())
}

/// Whether this Python has the package.
fn can_run(python: &Path) -> bool {
    let mut asks = Command::new(python);
    asks.args(["-c", CAN_RUN]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    asks.status().is_ok_and(|status| status.success())
}

/// Replaces this process with the command, so that signals and the exit code are its own.
#[cfg(unix)]
fn become_it(command: &mut Command) -> std::io::Error {
    use std::os::unix::process::CommandExt;

    command.exec()
}

/// Runs the command, and ends with its exit code.
#[cfg(not(unix))]
fn become_it(command: &mut Command) -> std::io::Error {
    match command.status() {
        Ok(status) => std::process::exit(status.code().unwrap_or(Outcome::CouldNotRun as i32)),
        Err(error) => error,
    }
}
