//! `parkade sweep`: workloads x policies x capacities x seeds, and their summary.
//!
//! `names` turns the arguments into a plan, `lists` divides lists of workloads, `list` shows the names, `rows` keeps the file of rows. `finished` is the result; `show` prints
//! it as JSON (`json`), tables (`grids`, `memory_grids`, `driver_grids`, `grid`) or a page (`html`, `plot`). `builds` tells which builds made the rows.
//! `largest_batch` answers the other question that a sweep can be asked.

pub(crate) mod builds;
mod driver_grids;
pub(crate) mod finished;
mod grid;
mod grids;
mod html;
pub mod jobs;
mod json;
mod largest_batch;
mod list;
mod lists;
mod memory_grids;
mod names;
mod plot;
pub(crate) mod rows;
pub(crate) mod show;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::io::Write;
use std::path::Path;

use anyhow::{Result, bail};
use clap::Parser;
use parkade_research::study::sweep::{BoundRatios, PreparedWorkload, Row, Share, bound_ratios, run_jobs};
use rayon::prelude::*;

use crate::terminal::json_struct::view;
use crate::terminal::output::{self, Stream};
use crate::terminal::outputs::{Target, Wanted};
use crate::terminal::progress;
use crate::terminal::runner::{Command, Form, Lines, Outcome};
use builds::Overlap;
use finished::Finished;
use names::Study;
use rows::{Header, Shard};
use show::Shown;

/// Run programs under allocation policies on simulated devices, and compare how much memory they need and what the driver costs.
///
/// Each workload is run under each policy in each capacity and with plenty of memory, and the smallest memory in which it fits is
/// searched for. LOAD is the most bytes live at once, each request rounded up to 512 bytes: nothing can need less. The search goes in
/// steps of 1/256 of LOAD (at least one page of 2 MiB) and takes the smallest memory tried in which the program fits; a program that
/// fits may still fail with slightly more, and how often that happened is reported. Each workload is shown first; then come geometric
/// means over the workloads, also without the one that makes the largest part of the excess. Workloads are chosen by hand, so there are
/// no tests over them. With several seeds, policies are compared over the seeds of each workload: bootstrap intervals (BCa, 95 %) and
/// Wilcoxon's signed-rank test with Holm's correction. A program that fits in no memory under a policy is left out of its means.
///
/// Beside the policies there is LOAD with pools, a lower bound: until the graphs of a private pool are reset, the pool counts for the
/// most that has lived in it. Two more columns are results and no bounds: what an ideal allocator needs that remaps pages of 2 MiB at
/// will, and the best packing found offline, with every lifetime known in advance.
///
/// A row depends on its job alone, so any number of threads or machines gives the same bytes.
///
/// With --largest-batch the question is another: how large a batch fits? For each training of a transformer, device and policy the largest
/// batch is found by bisection: it fits, and one more sample does not. Whether a batch fits need not be monotone, so some larger batches
/// are tried too, and how often one fits although a smaller one does not is reported. Also shown are the largest batch whose live bytes
/// fit at all, which no policy exceeds, and why the next one fails. Cards have the memory that a CUDA program sees in total: A100-40GB
/// (42,298,834,944 bytes, 39.39 GiB, as reported), H100-80GB (81,082 MiB, 79.18 GiB, as reported), H200-141GB (150,109,880,320 bytes,
/// 139.80 GiB, measured). The driver's context is taken off each device first.
#[derive(Parser)]
#[command(after_help = "Examples:
  parkade sweep --list
  parkade sweep
  parkade sweep --workloads all,snapshot.pickle --policies pytorch,pytorch-expandable --capacities 1.02,1.1,80GiB
  parkade sweep --workloads snapshot.pickle --policies pytorch-expandable,floating-handles,breaking-handles
  parkade sweep --seeds 5 -o rows.jsonl --html study.html --csv rows.csv
  parkade sweep --shard 1/3 -o part1.jsonl
  parkade merge part1.jsonl part2.jsonl part3.jsonl -o rows.jsonl
  parkade sweep --largest-batch
  parkade sweep --largest-batch --workloads transformer:preset=7b,checkpointing=layer,steps=3 --capacities H100-80GB,24GB

A file of rows (-o) is continued where it ends: after an interruption the same command does only what is missing. Each row names the \
build that made it, by its version and a hash of the sources that decide. Rows of another build are not continued without --force; \
the result then says how many rows each build made.

Exit code: 0 done, 1 with --largest-batch if no batch fits anywhere, 2 could not run.")]
pub struct Args {
    /// Workloads: names, descriptions of generated ones, recordings, or all. Separated by commas, or given several times. Recordings of
    /// the same name are told apart by their folders. [default: all; with --largest-batch transformer:preset=7b,mixed=on,steps=3]
    #[arg(short, long, value_name = "LIST")]
    workloads: Vec<OsString>,
    /// Policies, or all, which leaves out floating-handles and breaking-handles. Those that end in -remap take the size of the driver's
    /// handles as an option, first-fit-remap:handle=20MiB (2MiB unless given), and floating-handles the largest size,
    /// floating-handles:handle=32MiB.
    #[arg(short, long, value_name = "LIST", default_value = "all")]
    policies: Vec<String>,
    /// The device's memory, as factors of LOAD (1.05) or sizes (80GiB). [default: 1.0,1.02,1.05,1.1,1.25; with --largest-batch all cards]
    #[arg(short, long, value_name = "LIST")]
    capacities: Vec<String>,
    /// How many seeds to generate each workload from (1, 2 and so on). A workload that ignores its seed is run once.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seeds: u64,
    /// Before each program, reserve this many times LOAD in one piece and leave it in the allocator's cache.
    #[arg(long, value_name = "FACTOR")]
    prealloc: Option<Share>,
    /// Steps spent on the packings shown beside the policies, for each program; 0 omits the ideal remapper and the offline packer.
    #[arg(long, value_name = "STEPS", default_value_t = 100_000_000)]
    bounds: u64,
    /// Where the device places segments: driver (as measured of NVIDIA's), ascending, descending, lowest-hole.
    #[arg(long, value_name = "MODEL", default_value = "driver")]
    addresses: String,
    /// Run only this part of the jobs: 2/3 is the second of three parts.
    #[arg(long, value_name = "I/N", default_value = "1/1")]
    shard: Shard,
    /// Write the rows here, a line of JSON each, or continue the file; `-` is standard output. Any other file is left as it is, also with
    /// --force.
    #[arg(short, long, value_name = "FILE")]
    output: Option<Target>,
    /// Overwrite existing files of --csv and --html, but never an input. Also continue the file of --output even if another build of
    /// parkade made some of its rows.
    #[arg(long)]
    force: bool,
    /// How many jobs to run at once, at most the number of processors [default: that number].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
    #[command(flatten)]
    asked: largest_batch::Asked,
    #[command(flatten)]
    shown: Shown,
    /// List the workloads, generators, policies and address models; with --json as one object.
    #[arg(long)]
    list: bool,
}

/// What to print.
pub enum Answer {
    /// The names that `--list` shows.
    List,
    /// The rows of one part.
    Part(Vec<Row>),
    /// The whole sweep.
    Whole(Box<Finished>),
    /// The largest batches.
    Batches(largest_batch::Found),
}

impl Command for Args {
    type Answer = Answer;

    fn compute(&self) -> Result<Answer> {
        if self.list {
            return Ok(Answer::List);
        }
        if self.asked.largest_batch {
            return largest_batch::find(self).map(Answer::Batches);
        }
        let study = names::study(self)?;
        if self.force && self.output.is_none() && !self.shown.writes() {
            bail!("--force has nothing to overwrite or to continue: it is for --output, --csv and --html");
        }
        if self.shard.parts > 1 && self.output.is_none() {
            bail!("--shard needs a file for the rows (-o): parkade merge puts the parts together");
        }
        if self.shard.parts > 1 {
            show::check_part(&self.shown)?;
        }
        show::check(&self.shown, &study.plan)?;
        let wanted = Wanted::new(self.force, self.form()).reads(&study.files).continues("--output", self.output.as_ref());
        let outputs = self.shown.add_to(wanted).check()?;
        warn_of_same_programs(&study);
        let rows = do_jobs(self, &study)?;
        if self.shard.parts > 1 {
            return Ok(Answer::Part(rows));
        }
        let beside = find_bounds(self, &study)?;
        let Study { plan, sources, policies, .. } = study;
        let finished = Finished { sources, policies, beside, ..self.shown.finish(plan, rows, Overlap::default())? };
        self.shown.made(&finished)?.iter().try_for_each(|(target, bytes)| outputs.write(target, bytes))?;
        Ok(Answer::Whole(Box::new(finished)))
    }

    fn outcome(&self, answer: &Answer) -> Outcome {
        match answer {
            Answer::Batches(found) if !found.is_any() => Outcome::CheckFailed,
            _ => Outcome::Good,
        }
    }

    fn form(&self) -> Form {
        self.shown.form()
    }

    fn text(&self, answer: &Answer, out: &mut dyn Write) -> Result<()> {
        match answer {
            Answer::List => Ok(list::print(out)?),
            Answer::Whole(finished) => self.shown.text(finished, out),
            Answer::Batches(found) => found.print(self, out),
            Answer::Part(rows) => {
                let (path, count) = (output::one_line(&self.path()), output::count(rows.len() as u64, "row"));
                writeln!(out, "part {}: {count} in {path}; parkade merge puts the parts together", self.shard)?;
                for line in builds::lines(rows, &Overlap::default()) {
                    writeln!(out, "{}", output::one_line(&line))?;
                }
                Ok(())
            }
        }
    }

    fn json(&self, answer: &Answer, lines: &mut Lines) -> Result<()> {
        match answer {
            Answer::List => lines.add(&list::Object::of()),
            Answer::Whole(finished) => Shown::json(finished, lines),
            Answer::Batches(found) => lines.add(&largest_batch::Object::of(found)),
            Answer::Part(rows) => lines.add(&Part::of(self, rows)),
        }
    }
}

impl Args {
    /// The file of rows.
    fn path(&self) -> String {
        self.output.as_ref().map_or_else(String::new, |target| target.path().display().to_string())
    }
}

view! {
    struct Part<'a>(args: &Args, rows: &'a [Row]) {
        part: String = args.shard.to_string(),
        file: String = args.path(),
        jobs: usize = rows.len(),
        programs: BTreeMap<&'a str, u64> = builds::rows_by_build(rows),
        mixed: bool = builds::are_mixed(rows),
    }
}

/// Warns in one line.
fn warn_of_same_programs(study: &Study) {
    let same: Vec<String> =
        names::same_programs(&study.sources).into_iter().map(|(one, other)| format!("{one} and {other}")).collect();
    if !same.is_empty() {
        let _ =
            writeln!(io::stderr(), "the same program under several names, each counted: {}", output::one_line(&same.join("; ")));
    }
}

/// The rows of all jobs of the shard, including those already in the file.
fn do_jobs(args: &Args, study: &Study) -> Result<Vec<Row>> {
    let header = Header::of(study.plan.clone(), args.shard);
    let (mut rows, mut sink) = match args.output.as_ref().map(|target| (target, target.file())) {
        None => (Vec::new(), None),
        Some((target, Some(path))) => {
            let (rows, file) = rows::continue_file(path, &header, |rows| {
                rows::check_program(path, rows, args.force)?;
                check_programs(path, study, rows)
            })?;
            (rows, Some(Box::new(Stream::named(file, target)) as Box<dyn Write>))
        }
        Some((_, None)) => {
            let mut out = output::stdout();
            out.write_all(&header.line()?)?;
            out.flush()?;
            (Vec::new(), Some(Box::new(out) as Box<dyn Write>))
        }
    };
    let jobs: Vec<u64> = args.shard.jobs(&study.plan).skip(rows.len()).collect();
    let pool = threads(args, jobs.len())?;
    let bar = progress::of("jobs", args.shown.json.json);
    bar.set_length((rows.len() + jobs.len()) as u64);
    bar.set_position(rows.len() as u64);
    let done = run_jobs(&study.plan, &study.sources, &study.policies, &jobs, &pool, |row| {
        if let Some(out) = &mut sink {
            append(out, &row)?;
        }
        rows.push(row);
        bar.inc(1);
        Ok::<(), anyhow::Error>(())
    });
    bar.finish_and_clear();
    done.map(|()| rows)
}

/// Refuses rows whose workload is generated differently now.
fn check_programs(path: &Path, study: &Study, rows: &[Row]) -> Result<()> {
    let same = |one: &Row, other: &Row| (&one.workload, one.seed) == (&other.workload, other.seed);
    let of_one_program: Vec<&[Row]> = rows.chunk_by(same).collect();
    let check = |rows: &&[Row]| {
        let Some(job) = rows.first().and_then(|row| study.plan.job(row.job)) else { return Ok(()) };
        let program = PreparedWorkload::new((study.sources[job.workload].make)(job.seed));
        match rows.iter().find(|row| !row.is_of(&program)) {
            None => Ok(()),
            Some(row) => bail!(
                "{}: job {} ran on a different {} (seed {}) than is generated now: choose another file, or remove it",
                path.display(),
                row.job,
                row.workload,
                row.seed
            ),
        }
    };
    // The first error in the file, whichever thread finishes first.
    of_one_program.par_iter().map(check).collect::<Vec<_>>().into_iter().collect()
}

/// A pool with no more threads than jobs and processors.
fn threads(args: &Args, jobs: usize) -> Result<rayon::ThreadPool> {
    let most = std::thread::available_parallelism().map_or(1, usize::from);
    let wanted = args.threads.map_or_else(rayon::current_num_threads, usize::from);
    Ok(rayon::ThreadPoolBuilder::new().num_threads(wanted.min(most).min(jobs).max(1)).build()?)
}

/// What ideal allocators need, shown beside the policies; none if not wanted.
fn find_bounds(args: &Args, study: &Study) -> Result<Vec<Option<BoundRatios>>> {
    if args.bounds == 0 {
        return Ok(Vec::new());
    }
    let bar = progress::of("bounds", args.shown.json.json);
    bar.enable_steady_tick(std::time::Duration::from_millis(200));
    let programs: u64 = study.plan.workloads.iter().map(|workload| workload.seeds).sum();
    let pool = threads(args, usize::try_from(programs).unwrap_or(usize::MAX))?;
    let bounds = bound_ratios(&study.plan, &study.sources, args.bounds, &pool);
    bar.finish_and_clear();
    Ok(bounds?)
}

/// Writes a row at once, so that an interruption cuts at most the last line.
fn append(out: &mut dyn Write, row: &Row) -> io::Result<()> {
    let line = output::json(row)? + "\n";
    out.write_all(line.as_bytes())?;
    out.flush()
}
