//! `parkade sweep`: workloads x policies x capacities x seeds, and their summary; and a sweep as numbered jobs.
//!
//! Jobs are for programs that distribute them to other processes and machines: a number goes in, the bytes of a row come out. The header
//! and the rows of all jobs, in the order of their numbers, make up the file that `parkade sweep -o` writes.
//!
//! `plan` has the arguments, turns them into a plan and lists the names; `rows` keeps the file of rows, and the result with the builds that
//! made them; `show` prints it as JSON, tables (`grids`) or a page (`html`); `plenty` runs the programs in plenty of
//! memory, for `--series` and to find where policies first need more than a packing. `largest_batch` answers the other question of a sweep.

mod grids;
mod html;
mod largest_batch;
pub(super) mod plan;
mod plenty;
pub(crate) mod rows;
pub(crate) mod show;
pub(in crate::commands) mod traces;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;

use anyhow::{Result, bail};
use clap::Parser;
use parkade_research::study::sweep::{BoundRatios, PreparedWorkload, Row, bound_ratios, run_jobs};
use rayon::ThreadPoolBuilder;
use rayon::prelude::*;

use self::plan::{Study, threads};
use self::rows::{Finished, Header, Overlap, Shard};
use self::show::Shown;
use crate::terminal::answer::Answer;
use crate::terminal::json_struct::{sections, view};
use crate::terminal::output::{self, Stream};
use crate::terminal::outputs::{Outputs, Wanted};
use crate::terminal::progress::{self, WrongArgument};
use crate::terminal::runner::{Command, Form, Lines, Outcome, argument_error};

pub use self::plan::Args;
pub use self::rows::current_build;
pub use parkade_research::study::sweep::entire_build;

/// What to print.
pub enum Found {
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
    type Found = Found;

    fn compute(&self) -> Result<Found> {
        if self.list {
            return Ok(Found::List);
        }
        if self.asked.largest_batch {
            return largest_batch::find(self).map(Found::Batches);
        }
        let study = plan::study(self)?;
        if self.force && self.output.is_none() && !self.shown.writes() && !self.series.is_wanted() {
            bail!("--force has nothing to overwrite or to continue: it applies only to --output, --csv, --html and --series");
        }
        self.series.check(self.shard.parts)?;
        if self.shard.parts > 1 && self.output.is_none() {
            bail!("--shard needs a file for the rows (-o): parkade merge puts the parts together");
        }
        if self.shard.parts > 1 {
            show::check_part(&self.shown)?;
        }
        show::check(&self.shown, &study.plan)?;
        let wanted = Wanted::new(self.force, self.form()).reads(&study.files).continues("--output", self.output.as_ref());
        let outputs = self.series.add_to(self.shown.add_to(wanted)).check()?;
        warn_of_same_programs(&study);
        let rows = do_jobs(self, &study, outputs)?;
        if self.shard.parts > 1 {
            return Ok(Found::Part(rows));
        }
        let beside = find_bounds(self, &study)?;
        let excesses = plenty::excesses(self, &study, &beside)?;
        let Study { plan, sources, policies, .. } = study;
        let draws_holes = self.series.is_wanted();
        let finished = self.shown.finish(plan, rows, Overlap::default())?;
        let finished = Finished { sources, policies, beside, excesses, draws_holes, ..finished };
        plenty::write_series(self, &finished, outputs)?;
        self.shown.made(&finished)?.iter().try_for_each(|(target, bytes)| outputs.write(target, bytes))?;
        Ok(Found::Whole(Box::new(finished)))
    }

    fn outcome(&self, found: &Found) -> Outcome {
        match found {
            Found::Batches(found) if !found.is_any() => Outcome::CheckFailed,
            Found::Whole(finished) if !finished.about_faults().is_empty() => Outcome::CheckFailed,
            Found::Part(rows) if rows.iter().any(|row| row.is_fault) => Outcome::CheckFailed,
            _ => Outcome::Good,
        }
    }

    fn form(&self) -> Form {
        self.shown.form()
    }

    fn answer(&self, found: &Found) -> Answer {
        let mut answer = Answer::new();
        match found {
            Found::List => answer.drawing(plan::names_text(output::Width::of_output().words)),
            Found::Whole(finished) => answer = self.shown.answer(finished),
            Found::Batches(found) => answer = found.answer(),
            Found::Part(rows) => {
                let (path, count) = (self.path(), output::count(rows.len() as u64, "row"));
                answer.paragraph(format!("part {}: {count} in {path}; parkade merge joins the parts", self.shard));
                let faults = rows.iter().filter(|row| row.is_fault).count() as u64;
                if faults > 0 {
                    let runs = output::count(faults, "run");
                    answer.paragraph(format!("{runs} ended with a fault; parkade merge names the policies"));
                }
                answer.paragraphs(rows::lines_about_builds(rows, &Overlap::default()));
            }
        }
        answer
    }

    fn data(&self, found: &Found, out: &mut dyn Write) -> Result<()> {
        let tables = match found {
            Found::Whole(finished) => self.shown.tables(finished),
            Found::Batches(found) => found.tables(self),
            Found::List | Found::Part(_) => return Ok(out.write_all(self.answer(found).markdown().as_bytes())?),
        };
        Ok(out.write_all(tables.as_bytes())?)
    }

    fn json(&self, found: &Found, lines: &mut Lines) -> Result<()> {
        match found {
            Found::List => lines.add(&plan::NamesObject::of()),
            Found::Whole(finished) => Shown::json(finished, lines),
            Found::Batches(found) => lines.add(&largest_batch::Object::of(found)),
            Found::Part(rows) => lines.add(&Part::of(self, rows)),
        }
    }
}

impl Args {
    /// The file of rows.
    fn path(&self) -> String {
        self.output.as_ref().map_or_else(String::new, |target| target.path().display().to_string())
    }
}

sections! {
    "sweep": show::Object<'_>;
    "sweep --largest-batch": largest_batch::Object<'_>;
    "sweep --list": plan::NamesObject;
    "sweep --shard": Part<'_>;
}

view! {
    struct Part<'a>(args: &Args, rows: &'a [Row]) {
        /// The part, as `1/3`.
        part: String = args.shard.to_string(),
        /// The file of rows.
        file: String = args.path(),
        /// The number of rows in it.
        jobs: usize = rows.len(),
        /// How many rows each build made.
        programs: BTreeMap<&'a str, u64> = rows::rows_by_build(rows),
        /// Whether different builds made rows that are compared: rows of one policy, or with a different core.
        mixed: bool = rows::are_mixed(rows),
    }
}

/// Warns in one line.
fn warn_of_same_programs(study: &Study) {
    let same: Vec<String> =
        plan::same_programs(&study.sources).into_iter().map(|(one, other)| format!("{one} and {other}")).collect();
    if !same.is_empty() {
        let _ =
            writeln!(io::stderr(), "the same program under several names, each counted: {}", output::one_line(&same.join("; ")));
    }
}

/// Runs all jobs of the shard that the file lacks, and returns the rows of all.
fn do_jobs(args: &Args, study: &Study, outputs: Outputs) -> Result<Vec<Row>> {
    let header = Header::of(study.plan.clone(), args.shard);
    let mut is_in_order = true;
    let (mut rows, mut sink) = match args.output.as_ref().map(|target| (target, target.file())) {
        None => (Vec::new(), None),
        Some((target, Some(path))) => {
            let drops = |rows: &[Row]| if args.renew { rows::outdated(rows) } else { BTreeSet::new() };
            let continued = rows::continue_file((target, path), &header, outputs, drops, |rows| {
                if !args.force {
                    rows::check_program(path, rows, RENEW)?;
                }
                check_programs(path, study, rows)
            })?;
            is_in_order = continued.is_in_order;
            (continued.rows, Some(Box::new(Stream::named(continued.file, target)) as Box<dyn Write>))
        }
        Some((_, None)) => {
            let mut out = output::stdout();
            out.write_all(&header.line()?)?;
            out.flush()?;
            (Vec::new(), Some(Box::new(out) as Box<dyn Write>))
        }
    };
    let done: BTreeSet<u64> = rows.iter().map(|row| row.job).collect();
    let jobs: Vec<u64> = args.shard.jobs(&study.plan).filter(|job| !done.contains(job)).collect();
    is_in_order &= jobs.first() > done.last() || jobs.is_empty();
    let pool = threads(args, jobs.len())?;
    let bar = progress::of("jobs", args.shown.json.json);
    bar.set_length((rows.len() + jobs.len()) as u64);
    bar.set_position(rows.len() as u64);
    let ran = run_jobs(&study.plan, &study.sources, &study.policies, &jobs, &pool, |row| {
        if let Some(out) = &mut sink {
            append(out, &row)?;
        }
        rows.push(row);
        bar.inc(1);
        Ok::<(), anyhow::Error>(())
    });
    bar.finish_and_clear();
    ran?;
    rows.sort_by_key(|row| row.job);
    if let Some(target) = args.output.as_ref().filter(|target| target.file().is_some() && !is_in_order) {
        outputs.replace(target, &rows::text(&header, &rows)?)?;
    }
    Ok(rows)
}

/// The advice about rows that another build made.
const RENEW: &str = "run their jobs again with --renew, accept them with --force, or choose a different file";

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
                "{}: job {} ran on a different {} (seed {}) than the one generated now: choose a different file, or remove it",
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

/// The need of ideal allocators, shown beside the policies; empty if not wanted.
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

/// Writes a row immediately, so that an interruption cuts at most the last line.
fn append(out: &mut dyn Write, row: &Row) -> io::Result<()> {
    let line = output::json(row)? + "\n";
    out.write_all(line.as_bytes())?;
    out.flush()
}

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
        let args = Args::try_parse_from(arguments).map_err(|error| WrongArgument(argument_error(&error)))?;
        let study = plan::study(&args)?;
        show::check(&args.shown, &study.plan)?;
        Ok(Jobs { study })
    }

    /// The number of jobs; they are numbered from 0.
    pub fn number(&self) -> u64 {
        self.study.plan.jobs()
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
    use super::*;
    use crate::terminal::runner::Command;

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
    }

    #[test]
    fn a_policy_that_broke_is_loud_and_has_no_numbers() {
        let args = Args::try_parse_from(ARGUMENTS.iter().chain(&["--bounds", "0"])).expect("arguments");
        let Found::Whole(finished) = args.compute().expect("a sweep") else { panic!("a whole sweep") };
        assert_eq!(args.outcome(&Found::Whole(finished)), Outcome::Good);
        let Found::Whole(finished) = args.compute().expect("a sweep") else { panic!("a whole sweep") };
        let Finished { plan, mut rows, .. } = *finished;
        for row in rows.iter_mut().filter(|row| row.policy == "best-fit-remap") {
            (row.is_fault, row.problem, row.fits) = (true, Some("policy best-fit-remap never gives up".to_owned()), false);
            row.failed_at_event = Some(7);
        }
        let found = Found::Whole(Box::new(Finished::of(plan, rows, 0, Overlap::default())));
        assert_eq!(args.outcome(&found), Outcome::CheckFailed);
        let text = args.answer(&found).markdown();
        assert!(
            text.contains("best-fit-remap broke in") && text.contains("at event 7: policy best-fit-remap never gives up"),
            "{text}"
        );
        let Found::Whole(finished) = &found else { panic!("a whole sweep") };
        assert_eq!(args.outcome(&Found::Part(finished.rows.clone())), Outcome::CheckFailed);
        let tables = args.shown.tables(finished);
        let rows: Vec<&str> = tables.lines().filter(|line| line.starts_with("| best-fit-remap |")).collect();
        assert!(
            !rows.is_empty() && rows.iter().all(|row| row.matches(" fault ").count() + 2 == row.split('|').count() - 1),
            "{rows:?}"
        );
        assert!(!tables.contains("| best-fit-remap | –"), "{tables}");
    }

    #[test]
    fn a_job_that_is_not_there_is_refused() {
        let error = jobs().rows(&[u64::MAX]).expect_err("no such job");
        assert!(error.to_string().contains("there is no job 18446744073709551615"), "{error}");
    }
}
