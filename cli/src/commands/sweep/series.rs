//! `--series`: the heap over the course of each run, as CSV.
//!
//! The runs have plenty of memory, so that nothing is released for lack of it. A few of them run at a time, and each is written
//! before later ones are run, so the memory that this takes does not grow with the sweep.

use std::fmt::Write as _;
use std::io;

use anyhow::Result;
use parkade_policies::Named;
use parkade_research::study::{FreeList, Point, Share as Heap, series};
use rayon::prelude::*;

use super::plan::{self, Args};
use super::rows::{Finished, plenty};
use crate::terminal::outputs::Outputs;
use crate::terminal::progress;

/// The columns.
const HEADER: &str = "workload,policy,seed,event,pool,collection,stream,live_bytes,allocated_bytes,pending_bytes,reserved_bytes,mapped_bytes,\
                      largest_hole_bytes,holes";

/// Writes the series, if it is wanted.
pub(super) fn write(args: &Args, finished: &Finished, outputs: Outputs) -> Result<()> {
    let Some(target) = &args.series.series else { return Ok(()) };
    let step = args.series.series_step.map(|step| usize::try_from(step).unwrap_or(usize::MAX));
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
                let options = plenty(&finished.plan, &workload);
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

fn writeln_to(out: &mut dyn io::Write, line: &str) -> io::Result<()> {
    out.write_all(line.as_bytes())?;
    out.write_all(b"\n")
}

/// A name as a field of CSV: names of policies may have commas.
fn quoted(name: &str) -> String {
    if name.contains([',', '"']) { format!("\"{}\"", name.replace('"', "\"\"")) } else { name.to_owned() }
}

/// A line for the heap, and one for each pool, collection and stream.
fn add_lines(lines: &mut String, key: &str, point: &Point) {
    let mut add = |part: &str, heap: &Heap| {
        let Heap { live_bytes, allocated_bytes, pending_bytes, reserved_bytes, mapped_bytes, largest_hole_bytes, holes } = heap;
        let _ = writeln!(
            lines,
            "{key},{},{part},{live_bytes},{allocated_bytes},{pending_bytes},{reserved_bytes},{mapped_bytes},{largest_hole_bytes},{holes}",
            point.event
        );
    };
    add(",,", &point.all);
    for (FreeList { pool, collection, stream }, heap) in &point.parts {
        add(&format!("{pool},{},{stream}", collection.name()), heap);
    }
}
