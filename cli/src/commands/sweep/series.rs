//! `--series`: the heap over the course of each run, as CSV.
//!
//! The runs have plenty of memory, so that nothing is released for lack of it. A few of them run at a time, and each is written
//! before later ones are run, so the memory that this takes does not grow with the sweep.

use std::fmt::Write as _;
use std::io;

use anyhow::{Result, bail};
use clap::Args as Options;
use parkade_policies::Named;
use parkade_research::study::sweep::{Plan, Share};
use parkade_research::study::{Addresses, LOAD_UNIT_BYTES, Point, RunOptions, Share as Heap, series};
use parkade_research::workload::Workload;
use rayon::prelude::*;

use super::plan::{self, Args};
use super::rows::Finished;
use crate::terminal::outputs::{Outputs, Target, Wanted};
use crate::terminal::progress;

/// The options of the series.
#[derive(Options)]
pub(super) struct Series {
    /// Write the heap over the course of each run here, as CSV: live, reserved and mapped bytes, the largest hole and the number of
    /// holes, by pool and stream, for each workload, policy and seed, with plenty of memory. A run has at most about 1,000 points,
    /// which include every peak; --html then also draws the holes. `-` is standard output. An existing file is not overwritten
    /// without --force.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["largest_batch", "list"])]
    series: Option<Target>,
    /// The number of events in each part of a run, with --series: a part has a point at its most reserved and at its most allocated
    /// bytes. 1 is a point for each event [default: a five-hundredth of the run].
    #[arg(long, value_name = "EVENTS", requires = "series", value_parser = clap::value_parser!(u64).range(1..))]
    series_step: Option<u64>,
}

/// The columns.
const HEADER: &str = "workload,policy,seed,event,pool,stream,live_bytes,allocated_bytes,pending_bytes,reserved_bytes,mapped_bytes,\
                      largest_hole_bytes,holes";

impl Series {
    /// Whether the series is wanted.
    pub(super) const fn is_wanted(&self) -> bool {
        self.series.is_some()
    }

    /// Refuses a series of a part of the sweep.
    pub(super) fn check(&self, parts: u64) -> Result<()> {
        if self.is_wanted() && parts > 1 {
            bail!("--series describes all runs of a sweep, whatever --shard selects: leave --shard out");
        }
        Ok(())
    }

    /// Adds the file to those that the command writes.
    pub(super) fn add_to<'a>(&'a self, wanted: Wanted<'a>) -> Wanted<'a> {
        wanted.writes("--series", self.series.as_ref())
    }

    /// Writes the series.
    pub(super) fn write(&self, args: &Args, finished: &Finished, outputs: Outputs) -> Result<()> {
        let Some(target) = &self.series else { return Ok(()) };
        let step = self.series_step.map(|step| usize::try_from(step).unwrap_or(usize::MAX));
        let left_out: Vec<&str> = finished.taking_a_share().collect();
        let policies: Vec<&Named> = finished.policies.iter().filter(|policy| !left_out.contains(&&*policy.name)).collect();
        let programs: u64 = finished.plan.workloads.iter().map(|workload| workload.seeds).sum();
        let pool = plan::threads(args, policies.len())?;
        let bar = progress::of("series", args.shown.json.json);
        bar.set_length(programs * policies.len() as u64);
        outputs.write_with(target, |out| {
            writeln_to(out, HEADER)?;
            for (place, planned) in finished.plan.workloads.iter().enumerate() {
                for seed in 1..=planned.seeds {
                    let workload = (finished.sources[place].make)(seed);
                    let options = options(&finished.plan, &workload);
                    for some in policies.chunks(pool.current_num_threads().max(1)) {
                        let of_policy = |policy: &&Named| {
                            let found = series(&workload, policy, &options, step);
                            let key = format!("{},{},{seed}", planned.name, quoted(&policy.name));
                            found.points.iter().fold(String::new(), |mut lines, point| {
                                add_lines(&mut lines, &key, point);
                                lines
                            })
                        };
                        let texts: Vec<String> = pool.install(|| some.par_iter().map(of_policy).collect());
                        texts.iter().try_for_each(|text| out.write_all(text.as_bytes()))?;
                        bar.inc(some.len() as u64);
                    }
                }
            }
            Ok(())
        })?;
        bar.finish_and_clear();
        Ok(())
    }
}

fn writeln_to(out: &mut dyn io::Write, line: &str) -> io::Result<()> {
    out.write_all(line.as_bytes())?;
    out.write_all(b"\n")
}

/// A name as a field of CSV: names of policies may have commas.
fn quoted(name: &str) -> String {
    if name.contains([',', '"']) { format!("\"{}\"", name.replace('"', "\"\"")) } else { name.to_owned() }
}

/// A line for the heap, and one for each pool and stream.
fn add_lines(lines: &mut String, key: &str, point: &Point) {
    let mut add = |part: &str, heap: &Heap| {
        let Heap { live_bytes, allocated_bytes, pending_bytes, reserved_bytes, mapped_bytes, largest_hole_bytes, holes } = heap;
        let _ = writeln!(
            lines,
            "{key},{},{part},{live_bytes},{allocated_bytes},{pending_bytes},{reserved_bytes},{mapped_bytes},{largest_hole_bytes},{holes}",
            point.event
        );
    };
    add(",", &point.all);
    point.parts.iter().for_each(|((pool, stream), heap)| add(&format!("{pool},{stream}"), heap));
}

/// The device of the runs: with plenty of memory, and as the plan says.
pub(super) fn options(plan: &Plan, workload: &Workload) -> RunOptions {
    RunOptions {
        addresses: Addresses::named(&plan.addresses).unwrap_or_default(),
        preallocated_bytes: plan.preallocate.map_or(0, |share: Share| share.of(workload.load_bytes(LOAD_UNIT_BYTES))),
        ..RunOptions::plenty()
    }
}
