//! What is asked on the command line.

use std::path::PathBuf;

use clap::Parser;

use crate::targets::{Kind, TARGETS, Target};

/// Runs parkade's readers and commands on hostile input.
///
/// An input that panics, aborts, hangs, takes more than 1 GiB (below 1 MB of input) or more than 10 s (below 100 KB) is written to a file.
#[derive(Parser, Clone, Debug)]
#[command(name = "parkade-fuzz", after_help = "Exit code: 0 every input was survived, 1 one was not, 2 could not run.")]
pub struct Options {
    /// Only these targets: by name, or `readers`, `commands`, `all`.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "all")]
    pub target: Vec<String>,
    /// Stop each target after so many executions [default: only the time counts].
    #[arg(long, value_name = "NUMBER")]
    pub executions: Option<u64>,
    /// Stop after so many seconds, shared evenly between the targets.
    #[arg(long, value_name = "SECONDS", default_value_t = 20)]
    pub seconds: u64,
    /// The same seed gives the same inputs.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Threads, all of one process.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    pub threads: u16,
    /// The folder of inputs that once failed; they are run first.
    #[arg(long, value_name = "FOLDER")]
    pub corpus: Option<PathBuf>,
    /// Where inputs that fail are written.
    #[arg(long, value_name = "FOLDER", default_value = "fuzz-failures")]
    pub failures: PathBuf,
    /// Run the one target on this file, in every case, and say how it went.
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Run only the execution of this number.
    #[arg(long, value_name = "NUMBER")]
    pub number: Option<u64>,
    /// The most address space of a process, in GiB for each thread.
    #[arg(long, value_name = "GIB", default_value_t = 3)]
    pub address_space: u64,
    /// The account of a worker; the watcher passes it.
    #[arg(long, hide = true)]
    pub account: Option<PathBuf>,
}

impl Options {
    /// The targets that were chosen, in the order of the list.
    ///
    /// # Errors
    /// A name that is no target's.
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
