//! The runs of a sweep in plenty of memory, in which nothing is released for lack of it.
//!
//! `--series` writes the heap over the course of each run, as CSV. A few runs go on at a time, and each is written before later ones are
//! run, so the memory that this takes does not grow with the sweep. [`excesses`] finds where each policy first needs more memory than
//! the offline packing of a workload, with its first seed.

use std::fmt::Write as _;
use std::io;

use anyhow::Result;
use parkade_policies::Named;
use parkade_research::study::sweep::BoundRatios;
use parkade_research::study::{Excess, FreeList, Point, Share, first_excess, series};
use rayon::prelude::*;

use super::plan::{self, Args, Study};
use super::rows::{Finished, plenty};
use crate::terminal::outputs::Outputs;
use crate::terminal::progress;

/// The columns of a series.
const HEADER: &str = "workload,policy,seed,event,pool,collection,stream,live_bytes,allocated_bytes,pending_bytes,reserved_bytes,mapped_bytes,\
                      largest_hole_bytes,holes";

/// Writes the series, if it is wanted.
pub(super) fn write_series(args: &Args, finished: &Finished, outputs: Outputs) -> Result<()> {
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
    let mut add = |part: &str, heap: &Share| {
        let Share { live_bytes, allocated_bytes, pending_bytes, reserved_bytes, mapped_bytes, largest_hole_bytes, holes } = heap;
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

/// Returns the first request that a policy cannot serve in the memory of the packing, by policy and workload. The result is empty
/// if nothing was packed.
pub(super) fn excesses(args: &Args, study: &Study, beside: &[Option<BoundRatios>]) -> Result<Vec<Vec<Option<Excess>>>> {
    if beside.is_empty() {
        return Ok(Vec::new());
    }
    let pool = plan::threads(args, study.policies.len())?;
    let mut found: Vec<Vec<Option<Excess>>> = vec![Vec::new(); study.policies.len()];
    for (source, beside) in study.sources.iter().zip(beside) {
        let workload = (source.make)(1);
        let options = plenty(&study.plan, &workload);
        let of_policy = |policy| first_excess(&workload, policy, &options, beside.as_ref()?.packing_bytes);
        let excesses: Vec<Option<Excess>> = pool.install(|| study.policies.par_iter().map(of_policy).collect());
        found.iter_mut().zip(excesses).for_each(|(of_policy, excess)| of_policy.push(excess));
    }
    Ok(found)
}
