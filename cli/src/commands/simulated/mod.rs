//! A run of a program under a policy, which `report`, `stats` and `export` show in place of the run that was recorded.
//!
//! `program` makes programs from recordings, request traces and generated workloads; `run` runs them and turns a run into a
//! recording, as PyTorch's memory history would contain it; `packing` compares a policy's need with the best packing and names
//! the blocks that are in the way.

// Without the feature, only the option and its checks are used.
#![cfg_attr(not(feature = "native"), allow(dead_code, reason = "the page for browsers shows recorded runs only"))]

pub(crate) mod packing;
pub(crate) mod program;
pub(crate) mod run;

use std::path::Path;

use anyhow::{Error, Result, anyhow};
use clap::Args;
use parkade_policies::Named;
use parkade_research::packing::COMPARED_STEPS;

use self::program::Programs;
use self::run::Memory;
use crate::terminal::args;
use crate::terminal::progress::WrongArgument;
use crate::terminal::recording::IsSimulation;

/// `--policy`, and the program to run under it.
#[derive(Args, Clone, Default)]
pub(crate) struct UnderPolicy {
    /// Show the program under a parkade policy, such as bfc or compaction: a simulation in place of the recorded run, with the same
    /// requests, as in parkade replay --policy. FILE may then also be a request trace (docs/trace.md). --limit and --capacity are the
    /// policy's memory. parkade sweep --list lists all policies.
    #[arg(long, value_name = "NAME", group = "other_run")]
    pub(crate) policy: Option<String>,
    /// Show a workload instead of FILE: a name of the catalogue or a description of a generated workload, as in parkade sweep.
    /// Seed 1, unless the description sets the seed.
    #[cfg(feature = "native")]
    #[arg(short, long, value_name = "WORKLOAD")]
    workload: Option<std::ffi::OsString>,
}

/// `--bounds`.
#[derive(Args, Clone, Copy, Default)]
pub(crate) struct PackingSteps {
    /// With --policy: the steps spent on packing the program offline, which shows where the policy first needs more memory; 0 omits
    /// this [default: 100000000].
    #[arg(long, value_name = "STEPS", requires = "policy")]
    bounds: Option<u64>,
}

impl PackingSteps {
    /// Returns the steps that the packer may take; 0 if it is not wanted.
    pub(crate) fn steps(self) -> u64 {
        self.bounds.unwrap_or(COMPARED_STEPS)
    }
}

impl UnderPolicy {
    /// Returns the policy; `None` if the recorded run is to be shown.
    ///
    /// # Errors
    /// There is no policy of this name.
    pub(crate) fn named(&self) -> Result<Option<Named>> {
        self.policy.as_deref().map(args::policy).transpose()
    }

    /// Returns the policy, unless the recorded run of `file` is to be shown.
    ///
    /// # Errors
    /// The program has no recorded run, or there is no policy of this name.
    pub(crate) fn policy_for(&self, file: &Path) -> Result<Option<Named>> {
        let policy = self.named()?;
        let what = match policy {
            None if self.is_workload() => "workload",
            None if program::is_request_trace(file) => "request trace",
            _ => return Ok(policy),
        };
        let why =
            format!("a {what} has no recorded run: --policy NAME chooses the policy to show it under (parkade sweep --list)");
        Err(WrongArgument(why).into())
    }

    /// Returns the policy under which parkade simulated a file, as option and by name, and the memory there, if this is why the file
    /// cannot be replayed.
    ///
    /// # Errors
    /// The given error, if it has a different cause; or this program does not have the policy.
    pub(crate) fn of_simulation(&self, error: Error) -> Result<(UnderPolicy, Named, Memory)> {
        let IsSimulation(simulated) = error.downcast()?;
        let policy = simulated.policy.to_string();
        let named = args::policy(&policy).map_err(|_| {
            anyhow!(
                "the file is parkade's simulation of the policy {policy}, which this program does not have: run the program that \
                 declares it, or show the requests under a different policy with --policy NAME (parkade sweep --list)"
            )
        })?;
        let memory = Memory { capacity_bytes: simulated.capacity_bytes, limit_bytes: simulated.limit_bytes };
        let mut under = self.clone();
        under.policy = Some(policy);
        Ok((under, named, memory))
    }

    /// Refuses `option`, which applies to PyTorch's allocator, beside a policy.
    ///
    /// # Errors
    /// Both are given.
    pub(crate) fn excludes(&self, option: &str, is_given: bool) -> Result<()> {
        args::excluded_by(self.policy.as_deref(), option, is_given)
    }

    /// Whether the program is a workload, and not in the file.
    #[cfg(feature = "native")]
    pub(crate) fn is_workload(&self) -> bool {
        self.workload.is_some()
    }

    /// Whether the program is a workload, and not in the file.
    #[cfg(not(feature = "native"))]
    pub(crate) const fn is_workload(&self) -> bool {
        false
    }

    /// Returns the workload, as it was given.
    #[cfg(feature = "native")]
    pub(crate) fn workload_name(&self) -> String {
        self.workload.as_ref().map_or_else(String::new, |workload| workload.display().to_string())
    }

    /// Returns the programs of the file, or the workload.
    ///
    /// # Errors
    /// There is no such program, or it cannot be read.
    pub(crate) fn programs(&self, file: &Path, asked: &program::Asked) -> Result<Programs> {
        #[cfg(feature = "native")]
        if let Some(workload) = &self.workload {
            if !file.as_os_str().is_empty() {
                let why = format!("{} and --workload are two programs: leave one out", file.display());
                return Err(WrongArgument(why).into());
            }
            return Programs::of_workload(workload, asked);
        }
        Programs::of_file(file, asked)
    }
}
