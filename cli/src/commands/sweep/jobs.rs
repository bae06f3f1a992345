//! A sweep as numbered jobs, for programs that distribute them to other processes and machines: a number goes in, the bytes of
//! a row come out.
//!
//! The header and the rows of all jobs, in the order of their numbers, make up the file that `parkade sweep -o` writes.

use std::ffi::OsString;

use crate::terminal::{output, progress};
use anyhow::{Result, bail};
use clap::Parser;
pub use parkade_research::study::sweep::BUILD;
use parkade_research::study::sweep::run_jobs;
use rayon::ThreadPoolBuilder;

use super::args::Args;
use super::names::{self, Study};
use super::rows::{Header, Shard};

/// The jobs of a sweep.
pub struct Jobs {
    study: Study,
}

impl Jobs {
    /// The jobs that `parkade sweep` does with these arguments, the first of which is the program's name. Options about files and
    /// threads are ignored.
    ///
    /// # Errors
    /// If the arguments are wrong, or a recording cannot be read.
    pub fn of(arguments: impl IntoIterator<Item = OsString>) -> Result<Jobs> {
        Ok(Jobs { study: names::study(&Args::try_parse_from(arguments)?)? })
    }

    /// The number of jobs; they are numbered from 0.
    pub fn number(&self) -> u64 {
        self.study.plan.jobs()
    }

    /// The number of jobs of each program, which are consecutive: doing them together generates the program only once.
    pub fn of_one_program(&self) -> u64 {
        let plan = &self.study.plan;
        let programs: u64 = plan.workloads.iter().map(|workload| workload.seeds).sum();
        plan.jobs() / programs.max(1)
    }

    /// The first line of the file of rows, including its line break.
    ///
    /// # Errors
    /// If it cannot be serialised.
    pub fn header(&self) -> Result<Vec<u8>> {
        Ok(Header::of(self.study.plan.clone(), Shard::WHOLE).line()?)
    }

    /// Does these jobs on one thread. The result has one line of the file for each job, including its line break, in the order of
    /// `jobs`.
    ///
    /// # Errors
    /// If a number is not that of a job, or no thread can be started.
    pub fn rows(&self, jobs: &[u64]) -> Result<Vec<Vec<u8>>> {
        let Study { plan, sources, policies, .. } = &self.study;
        if let Some(unknown) = jobs.iter().find(|job| **job >= plan.jobs()) {
            bail!("there is no job {unknown}: the sweep has {}", output::count(plan.jobs(), "job"));
        }
        let pool = ThreadPoolBuilder::new().num_threads(1).build()?;
        let (mut lines, bar) = (Vec::new(), progress::of("jobs", true));
        bar.set_length(jobs.len() as u64);
        run_jobs(plan, sources, policies, jobs, &pool, |row| {
            lines.push((output::json(&row)? + "\n").into_bytes());
            bar.inc(1);
            Ok::<(), anyhow::Error>(())
        })?;
        Ok(lines)
    }
}

#[cfg(test)]
mod tests {
    use crate::terminal::runner::Command;

    use super::*;

    const ARGUMENTS: [&str; 7] = [
        "sweep",
        "-w",
        "transformer:layers=2,hidden=64,heads=2,vocabulary=100,sequence=64,batch=8,steps=2",
        "-p",
        "pytorch,best-fit-remap",
        "-c",
        "1.1",
    ];

    fn jobs() -> Jobs {
        Jobs::of(ARGUMENTS.map(OsString::from)).expect("arguments")
    }

    #[test]
    fn rows_of_jobs_in_any_order_are_the_file_of_one_machine() {
        let file = std::env::temp_dir().join(format!("parkade-jobs-{}.jsonl", std::process::id()));
        let output = ["--bounds", "0", "-o", file.to_str().expect("UTF-8")];
        let args = Args::try_parse_from(ARGUMENTS.iter().chain(&output)).expect("arguments");
        args.compute().expect("a sweep");
        let whole = std::fs::read(&file).expect("rows");
        std::fs::remove_file(&file).expect("the file is there");
        let jobs = jobs();
        let mut bytes = jobs.header().expect("a header");
        let later = jobs.rows(&(3..jobs.number()).collect::<Vec<_>>()).expect("rows");
        let earlier = jobs.rows(&[0, 1, 2]).expect("rows");
        bytes.extend(earlier.concat());
        bytes.extend(later.concat());
        assert!(jobs.number() > 3 && bytes == whole, "{}", jobs.number());
        assert_eq!(jobs.of_one_program(), jobs.number());
    }

    #[test]
    fn a_job_that_is_not_there_is_refused() {
        let error = jobs().rows(&[u64::MAX]).expect_err("no such job");
        assert!(error.to_string().contains("there is no job 18446744073709551615"), "{error}");
    }
}
