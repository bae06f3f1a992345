//! `parkade sweep`: workloads x policies x capacities x seeds, and what they say together.
//!
//! `names` makes a plan of the arguments, `list` says what can be named, `rows` keeps the file of rows, `show` puts out what all rows
//! say: `grids` are its tables, in four notations by `grid`; `page` and `plot` its page, `csv` its rows; `builds` says who made the rows.

pub(crate) mod builds;
mod csv;
mod grid;
mod grids;
mod list;
mod names;
mod page;
mod plot;
pub(crate) mod rows;
pub(crate) mod show;

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Parser;
use parkade_research::study::sweep::{BoundRatios, PreparedWorkload, Row, Share, bound_ratios, run_jobs};
use rayon::prelude::*;
use serde_json::json;

use crate::verify::progress_bar_of;
use crate::{Outcome, output};

use builds::Overlap;
use names::Study;
use rows::{Header, Shard};
use show::{Finished, Shown};

/// Run programs under allocation policies on simulated devices, and compare how much memory they need and what the driver costs.
///
/// Each workload is run under each policy in each capacity, and in plenty; and the smallest memory in which it fits is searched. LOAD is
/// the most bytes that live at once, each request rounded up to 512 bytes: nothing can need less. The smallest memory is looked for in
/// steps of 1/256 of LOAD (at least one page of 2 MiB), and is the smallest of those tried in which the program fits: a program
/// that fits may fail with a little more, and how many showed that is said. Policies are compared workload by workload, seeds averaged before: geometric means with
/// bootstrap intervals (BCa, 95 %), Wilcoxon's signed-rank test with Holm's correction, matched-pairs rank-biserial effects. A program that
/// fits in no memory under a policy counts in none of its means, and as worse than all that fits in the test.
///
/// BoundRatios the policies stand two bounds over LOAD: the page ideal, which is enough for one that remaps pages of 2 MiB as it likes, and
/// the best packing found offline, every lifetime known beforehand.
///
/// A row depends on its job alone: any number of threads, and any spread over machines, gives the same bytes.
#[derive(Parser)]
#[command(after_help = "Examples:
  parkade sweep --list
  parkade sweep
  parkade sweep --workloads all,snapshot.pickle --policies pytorch,pytorch-expandable --capacities 1.02,1.1,80GiB
  parkade sweep --seeds 5 -o rows.jsonl --html study.html --csv rows.csv
  parkade sweep --shard 1/3 -o part1.jsonl
  parkade merge part1.jsonl part2.jsonl part3.jsonl -o rows.jsonl

A file of rows (-o) is continued where it ends: the same command after an interruption does only what is missing. Each row names the
build that made it, by version and a hash of the sources and releases that decide: rows of another build are not continued without
--force, and then the result says how many there are of which build.

Exit code: 0 done, 2 it could not be run.")]
pub(crate) struct Args {
    /// Workloads: names, descriptions of generated ones, recordings, or all. Separated by commas, or given several times.
    #[arg(short, long, value_name = "LIST", default_value = "all")]
    workloads: Vec<String>,
    /// Policies, or all.
    #[arg(short, long, value_name = "LIST", default_value = "all")]
    policies: Vec<String>,
    /// The device's memory, as factors of LOAD (1.05) or sizes (80GiB).
    #[arg(short, long, value_name = "LIST", default_value = "1.0,1.02,1.05,1.1,1.25")]
    capacities: Vec<String>,
    /// How many seeds each generated workload is made from: 1, 2 and so on. Once only where the seed decides about nothing.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seeds: u64,
    /// Before each program, take so many times LOAD from the device in one piece and give it back to the allocator.
    #[arg(long, value_name = "FACTOR")]
    prealloc: Option<Share>,
    /// How hard to look for the packing that is shown beside the policies, in steps for each program; 0 for no bounds.
    #[arg(long, value_name = "STEPS", default_value_t = 100_000_000)]
    bounds: u64,
    /// Where the device places segments: driver (as NVIDIA's was measured to), ascending, descending, lowest-hole.
    #[arg(long, value_name = "MODEL", default_value = "driver")]
    addresses: String,
    /// Do only the jobs whose number leaves this rest: 2/3 is the second of three parts.
    #[arg(long, value_name = "I/N", default_value = "1/1")]
    shard: Shard,
    /// Write the rows here, a line of JSON each, or continue the file.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Continue a file although another build of parkade made rows of it, which then stand beside this one's.
    #[arg(long, requires = "output")]
    force: bool,
    /// How many jobs at once; as many as there are processors if not given.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
    #[command(flatten)]
    shown: Shown,
    /// Say which workloads, generators, policies and address models there are; with --json as one object.
    #[arg(long)]
    list: bool,
}

pub(crate) fn run(args: &Args) -> Result<Outcome> {
    sweep(args).map_err(|error| args.shown.say_failed(error))
}

fn sweep(args: &Args) -> Result<Outcome> {
    if args.list {
        return list::show(args.shown.json).map(|()| Outcome::Good);
    }
    let study = names::study(args)?;
    if args.shard.parts > 1 && args.output.is_none() {
        bail!("--shard needs a file for the rows (-o): parkade merge puts the parts together");
    }
    if args.shard.parts > 1 {
        show::check_part(&args.shown)?;
    }
    show::check(&args.shown, &study.plan)?;
    show::check_files(&args.shown, args.output.as_deref(), &study.files)?;
    warn_of_same_programs(&study);
    let rows = do_jobs(args, &study)?;
    if args.shard.parts > 1 {
        return say_part(args, &rows);
    }
    let beside = find_bounds(args, &study)?;
    let (plan, sources, policies, overlap) = (&study.plan, &study.sources, &study.policies, &Overlap::default());
    let finished = Finished { plan, rows: &rows, sources, policies, beside: &beside, overlap };
    show::show(&args.shown, &finished).map(|()| Outcome::Good)
}

/// In one line.
fn warn_of_same_programs(study: &Study) {
    let same: Vec<String> =
        names::same_programs(&study.sources).into_iter().map(|(one, other)| format!("{one} and {other}")).collect();
    if !same.is_empty() {
        let _ = writeln!(
            io::stderr(),
            "one program under several names, each of which counts: {}",
            output::one_line(&same.join("; "))
        );
    }
}

/// The rows of all jobs of the shard, those included that the file already has.
fn do_jobs(args: &Args, study: &Study) -> Result<Vec<Row>> {
    let header = Header::of(study.plan.clone(), args.shard);
    let (mut rows, mut file) = match &args.output {
        None => (Vec::new(), None),
        Some(path) => {
            let (rows, file) = rows::continue_file(path, &header, |rows| {
                rows::check_program(path, rows, args.force)?;
                check_programs(path, study, rows)
            })?;
            (rows, Some((path, file)))
        }
    };
    let jobs: Vec<u64> = args.shard.jobs(&study.plan).skip(rows.len()).collect();
    let pool = threads(args, jobs.len())?;
    let bar = progress_bar_of("jobs", args.shown.json);
    bar.set_length((rows.len() + jobs.len()) as u64);
    bar.set_position(rows.len() as u64);
    let done = run_jobs(&study.plan, &study.sources, &study.policies, &jobs, &pool, |row| {
        if let Some((path, file)) = &mut file {
            append(file, &row).with_context(|| format!("cannot write {}", path.display()))?;
        }
        rows.push(row);
        bar.inc(1);
        Ok::<(), anyhow::Error>(())
    });
    bar.finish_and_clear();
    done.map(|()| rows)
}

/// Refuses rows whose workload is made otherwise now, which the plan names but does not hold.
fn check_programs(path: &Path, study: &Study, rows: &[Row]) -> Result<()> {
    let same = |one: &Row, other: &Row| (&one.workload, one.seed) == (&other.workload, other.seed);
    let of_one_program: Vec<&[Row]> = rows.chunk_by(same).collect();
    let check = |rows: &&[Row]| {
        let Some(job) = rows.first().and_then(|row| study.plan.job(row.job)) else { return Ok(()) };
        let program = PreparedWorkload::new((study.sources[job.workload].make)(job.seed));
        match rows.iter().find(|row| !row.is_of(&program)) {
            None => Ok(()),
            Some(row) => bail!(
                "{}: job {} was run on another {} (seed {}) than is made now: choose another file, or remove it",
                path.display(),
                row.job,
                row.workload,
                row.seed
            ),
        }
    };
    // The first in the file, whichever thread is done first.
    of_one_program.par_iter().map(check).collect::<Vec<_>>().into_iter().collect()
}

/// Threads for so many things to do: never more than these.
fn threads(args: &Args, jobs: usize) -> Result<rayon::ThreadPool> {
    let wanted = args.threads.map_or_else(rayon::current_num_threads, usize::from);
    Ok(rayon::ThreadPoolBuilder::new().num_threads(wanted.min(jobs).max(1)).build()?)
}

/// What stands beside the policies; nothing where nobody asks.
fn find_bounds(args: &Args, study: &Study) -> Result<Vec<Option<BoundRatios>>> {
    if args.bounds == 0 {
        return Ok(Vec::new());
    }
    let bar = progress_bar_of("bounds", args.shown.json);
    bar.enable_steady_tick(std::time::Duration::from_millis(200));
    let programs: u64 = study.plan.workloads.iter().map(|workload| workload.seeds).sum();
    let pool = threads(args, usize::try_from(programs).unwrap_or(usize::MAX))?;
    let bounds = bound_ratios(&study.plan, &study.sources, args.bounds, &pool);
    bar.finish_and_clear();
    Ok(bounds?)
}

/// A row in one write: what is cut by an interruption is the last line at most.
fn append(file: &mut File, row: &Row) -> io::Result<()> {
    let mut line = serde_json::to_vec(row)?;
    line.push(b'\n');
    file.write_all(&line)
}

fn say_part(args: &Args, rows: &[Row]) -> Result<Outcome> {
    let mut out = output::stdout();
    let path = args.output.as_deref().unwrap_or(Path::new("")).display().to_string();
    if args.shown.json {
        let part = json!({ "part": args.shard.to_string(), "file": path, "jobs": rows.len(), "programs": builds::rows_by_build(rows),
                           "mixed": builds::are_mixed(rows) });
        writeln!(out, "{part}")?;
    } else {
        let (path, count) = (output::one_line(&path), output::count(rows.len() as u64, "row"));
        writeln!(out, "part {}: {count} in {path}; parkade merge puts the parts together", args.shard)?;
        for line in builds::lines(rows, &Overlap::default()) {
            writeln!(out, "{}", output::one_line(&line))?;
        }
    }
    out.flush()?;
    Ok(Outcome::Good)
}
