//! `parkade conform`: the conformance suite, on the simulated device or on a real one.
//!
//! A run is shown as text, JSON or a Markdown report; entries that hang have a time limit.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use clap::{Parser, ValueEnum};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use parkade_conformance::backend::{AnyBackend, Cuda, Needs};
use parkade_conformance::checks;
use parkade_conformance::checks::laws_any_policy::{self, Share};
use parkade_conformance::scenarios::everything;
use parkade_conformance::suite::{self, Again, Effort, Entry, Group, PROGRAM, Progress, Reference, Row, Status, Summary};
use parkade_research::policies::policies;

use crate::terminal::answer::Answer;
use crate::terminal::args::{Force, Json, grid, policy, program};
use crate::terminal::json_struct::{Word, sections, view};
use crate::terminal::output;
use crate::terminal::outputs::{Target, Wanted};
use crate::terminal::runner::{Command, Form, Lines, Outcome, Subject};

/// Run the suite: laws, device contract, scenarios, PyTorch's own tests.
///
/// On the simulated device (the default) this needs no GPU. On a real one, some entries fill the device's memory and release it
/// again; nothing else should use the device during the run. A broken law is shown with the shortest sequence found that breaks
/// it, as a script: `parkade conform --script` checks the same sequence again, and `parkade ops` shows what the allocator does.
#[derive(Parser)]
#[command(after_help = "Examples:
  parkade conform
  parkade conform --filter scenario/A5
  parkade conform --cases 20000 --seed 7
  parkade conform --policy bfc
  parkade conform --policy compaction
  parkade conform --policy bfc:waste=1MiB/64MiB
  parkade conform --script failure.txt
  parkade conform --script failure.txt --policy best-fit-remap
  parkade conform --backend cuda --device 1 --report conformance.md
  parkade conform --json > conformance.jsonl

Exit code: 0 everything passed or was skipped, 1 something failed, 2 could not run.")]
pub(crate) struct Args {
    /// What to run on.
    #[arg(long, value_enum, default_value_t)]
    backend: BackendName,
    /// The index of the CUDA device.
    #[arg(long, default_value_t = 0, value_name = "N")]
    device: u32,
    /// Run only entries whose group/name contains this text.
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// Check only the laws of policies, for this policy or for `all`, which includes pytorch-rescue and compaction, with
    /// every sequence [default: everything, with a tenth of the sequences for each policy]. A grid (NAME:key=value/value) checks
    /// each combination as a policy; a name without values also checks each parameter at its least and greatest value and at
    /// each word, with a tenth of the sequences. parkade sweep --list lists the policies and their parameters.
    #[arg(long, value_name = "NAME")]
    policy: Option<String>,
    /// Run only the failing sequence in this file: the script of a failure, as the suite prints it; `-` reads standard input. With
    /// --policy, the same sequence under that policy.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["filter", "cases", "list"])]
    script: Option<PathBuf>,
    /// Random sequences for each law and event timing [default: 1200 simulated, 60 on a real device].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    cases: Option<u32>,
    /// The seed of the random sequences.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    #[command(flatten)]
    json: Json,
    /// Write a report (Markdown): what was checked on which device, then every entry; `-` is standard output. An existing file
    /// is not overwritten without --force.
    #[arg(long, value_name = "FILE")]
    report: Option<Target>,
    #[command(flatten)]
    force: Force,
    /// List the entries without running them.
    #[arg(long)]
    list: bool,
}

#[derive(Clone, Copy, ValueEnum, Default, PartialEq, Eq)]
enum BackendName {
    /// The simulated device.
    #[default]
    Sim,
    /// A CUDA device.
    Cuda,
}

/// A finished run.
pub(crate) struct Run {
    facts: Vec<(&'static str, String)>,
    effort: Effort,
    filter: Option<String>,
    rows: Vec<Row>,
    took: Duration,
}

impl Run {
    fn summary(&self) -> Summary {
        Summary::of(&self.rows)
    }
}

/// What to print.
pub(crate) enum Found {
    /// The title and claim of each entry.
    List(Vec<(String, &'static str)>),
    Run(Run),
}

impl Command for Args {
    type Found = Found;

    fn compute(&self) -> Result<Found> {
        match self.backend {
            BackendName::Sim => run_on(&AnyBackend::simulated(), Vec::new(), self, 1200),
            BackendName::Cuda => {
                let cuda = Cuda::new(self.device);
                let backend = AnyBackend::new(cuda.clone());
                if !self.list {
                    // This is done first, so that a missing device is reported in one line.
                    backend.open(&Needs::default()).map_err(|unable| anyhow!("cannot run on CUDA: {unable}"))?;
                }
                run_on(&backend, checks::cuda_entries(&cuda), self, 60)
            }
        }
    }

    fn outcome(&self, found: &Found) -> Outcome {
        match found {
            Found::Run(run) if run.summary().failed > 0 => Outcome::CheckFailed,
            _ => Outcome::Good,
        }
    }

    fn form(&self) -> Form {
        if self.list { Form::Text } else { self.json.form() }
    }

    fn subject(&self) -> Subject<'_> {
        Subject::Command
    }

    fn answer(&self, found: &Found) -> Answer {
        let mut answer = Answer::new();
        answer.drawing(match found {
            Found::Run(run) => text(run),
            Found::List(entries) => {
                // The longest names have their own lines.
                const COLUMN: usize = 34;
                let columns = output::Width::of_output().words;
                entries.iter().map(|(title, says)| output::listed(title, COLUMN, says, columns)).collect()
            }
        });
        answer
    }

    fn json(&self, found: &Found, lines: &mut Lines) -> Result<()> {
        let Found::Run(run) = found else { return Ok(()) };
        run.rows.iter().try_for_each(|row| lines.add_as_declared(&Line::of(row)))
    }
}

/// The entry of a failure's script, and the sequence to run in it.
fn again(backend: &AnyBackend, args: &Args, script: &Path) -> Result<(Vec<Entry>, Effort)> {
    let read = if script.as_os_str() == "-" { io::read_to_string(io::stdin()) } else { std::fs::read_to_string(script) };
    let name = script.display();
    let text = read.with_context(|| format!("cannot read {name}"))?;
    let Again { title, effort } = Again::read(&text).map_err(|why| anyhow!("{name}: {why}; is it the script of a failure?"))?;
    let title = match args.policy.as_deref() {
        None => title,
        Some("all") => bail!("--script runs one sequence under one policy: name the policy"),
        Some(other) => match grid(other)?.as_slice() {
            [one] => format!("law/policy/{}/{}", one.name, of_policy(&title).map_or("seeded", |(_, what)| what)),
            several => bail!("--script runs one sequence under one policy, and {other} is {}: name one of them", several.len()),
        },
    };
    // A policy with parameters is not in the catalogue.
    let given = of_policy(&title).map(|(name, _)| policy(name));
    let own = given.iter().flatten().flat_map(|given| laws_any_policy::entries(backend, Some(given), Share::Whole));
    let mut all = own.chain(everything(backend, own_path().as_deref()));
    match (all.find(|entry| entry.title() == title), &given) {
        (Some(entry), _) => Ok((vec![entry], effort)),
        (None, Some(Err(why))) => {
            bail!("{name}: {why:#}; if a program of yours declares the policy, run that program's conform --script")
        }
        (None, _) => bail!("{name}: there is no entry {title}: `{} conform --list` names them", program()),
    }
}

/// The policy and the law that an entry's title names, if it is one of a policy.
fn of_policy(title: &str) -> Option<(&str, &str)> {
    title.strip_prefix("law/policy/")?.rsplit_once('/')
}

/// The entries of the policies that a name stands for: each combination of a grid, as a policy. With a name without values, the
/// borders of the policy's parameters follow, with a part of the sequences each; a real device is too slow for them.
fn entries_of(backend: &AnyBackend, name: &str) -> Result<Vec<Entry>> {
    let points = grid(name)?;
    let borders = match points.as_slice() {
        [only] if backend.is_simulated() => policies().borders(only),
        _ => Vec::new(),
    };
    let whole = points.iter().map(|point| (point, Share::Whole));
    let all = whole.chain(borders.iter().map(|border| (border, Share::Part)));
    Ok(all.flat_map(|(policy, share)| laws_any_policy::entries(backend, Some(policy), share)).collect())
}

fn run_on(backend: &AnyBackend, own: Vec<Entry>, args: &Args, cases: u32) -> Result<Found> {
    if let Some(script) = &args.script {
        let (entries, effort) = again(backend, args, script)?;
        return run_entries(backend, &entries, args, effort);
    }
    let mut entries = match args.policy.as_deref() {
        None => everything(backend, own_path().as_deref()).into_iter().chain(own).collect(),
        Some("all") => {
            let own = policies().own().flat_map(|policy| laws_any_policy::entries(backend, Some(&policy), Share::Whole));
            laws_any_policy::entries(backend, None, Share::Whole).into_iter().chain(own).collect()
        }
        Some(name) => entries_of(backend, name)?,
    };
    if let Some(filter) = &args.filter {
        entries.retain(|entry| entry.title().contains(filter.as_str()));
        if entries.is_empty() {
            bail!("no entry's name contains {filter:?}: `{} conform --list` names them", program());
        }
    }
    if args.list {
        return Ok(Found::List(entries.iter().map(|entry| (entry.title(), entry.says)).collect()));
    }
    run_entries(backend, &entries, args, Effort::new(args.cases.unwrap_or(cases), args.seed))
}

fn run_entries(backend: &AnyBackend, entries: &[Entry], args: &Args, effort: Effort) -> Result<Found> {
    // Before minutes are spent. An earlier report stays until the new one is complete.
    let wanted = Wanted::new(args.force.force, args.form()).reads(args.script.as_deref());
    let outputs = wanted.writes("--report", args.report.as_ref()).check()?;
    let start = Instant::now();
    let hangs_after = (!backend.is_simulated()).then(|| hangs_after(&effort));
    let watch = Watch::new(entries.len(), args.json.json, hangs_after);
    let reference =
        (!backend.is_simulated()).then(|| Reference::new(AnyBackend::simulated(), everything(&AnyBackend::simulated(), None)));
    let mut rows = suite::run(backend, entries, reference.as_ref(), &effort, &watch);
    rows.iter_mut().filter_map(|row| row.script.as_mut()).for_each(|script| *script = run_by(&program(), script));
    watch.finish();
    let run = Run { facts: backend.describe(), effort, filter: args.filter.clone(), rows, took: start.elapsed() };
    if let Some(target) = &args.report {
        outputs.write(target, markdown(&run).as_bytes())?;
    }
    Ok(Found::Run(run))
}

/// A failure's script, whose comments name the commands of this program.
fn run_by(program: &str, script: &str) -> String {
    let line = |line: &str| line.strip_prefix("# parkade ").map_or_else(|| line.to_owned(), |rest| format!("# {program} {rest}"));
    script.lines().map(|text| line(text) + "\n").collect()
}

/// This binary, whose commands some scenarios run. In the Python package's command the program is an interpreter, which has no such commands.
fn own_path() -> Option<PathBuf> {
    std::env::current_exe().ok().filter(|path| path.file_stem().is_some_and(|name| name == "parkade"))
}

/// The time limit of an entry on a real device, plus one second for each sequence. A driver may stop answering.
const LONGEST: Duration = Duration::from_secs(1200);

/// Shows progress on a terminal, and ends the process if an entry hangs; the driver then reclaims everything.
struct Watch {
    bar: ProgressBar,
    running: Arc<Mutex<BTreeMap<String, Instant>>>,
    over: Arc<AtomicBool>,
}

/// The time after which an entry counts as hanging.
fn hangs_after(effort: &Effort) -> Duration {
    LONGEST + Duration::from_secs(u64::from(effort.cases))
}

impl Watch {
    fn new(entries: usize, is_quiet: bool, hangs_after: Option<Duration>) -> Watch {
        let bar = ProgressBar::new(entries as u64);
        if is_quiet || !io::stderr().is_terminal() {
            bar.set_draw_target(ProgressDrawTarget::hidden());
        }
        if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed} {msg}") {
            bar.set_style(style);
        }
        let (running, over) = (Arc::new(Mutex::new(BTreeMap::new())), Arc::new(AtomicBool::new(false)));
        let watch = Watch { bar, running: Arc::clone(&running), over: Arc::clone(&over) };
        let Some(longest) = hangs_after else { return watch };
        thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_secs(1));
                end_if_hanging(&running, longest);
            }
        });
        watch
    }

    fn finish(&self) {
        self.over.store(true, Ordering::Relaxed);
        self.bar.finish_and_clear();
    }
}

fn end_if_hanging(running: &Mutex<BTreeMap<String, Instant>>, longest: Duration) {
    let hanging = lock(running).iter().find(|(_, since)| since.elapsed() > longest).map(|(title, _)| title.clone());
    if let Some(title) = hanging {
        // Standard error may be closed.
        let _ = writeln!(io::stderr(), "parkade: {title} has not finished after {} s: giving up", longest.as_secs());
        std::process::exit(1);
    }
}

fn lock(running: &Mutex<BTreeMap<String, Instant>>) -> MutexGuard<'_, BTreeMap<String, Instant>> {
    running.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Progress for Watch {
    fn begins(&self, title: &str) {
        lock(&self.running).insert(title.to_owned(), Instant::now());
        self.bar.set_message(title.to_owned());
    }

    fn ends(&self, row: &Row) {
        lock(&self.running).remove(&format!("{}/{}", row.group.name(), row.name));
        self.bar.inc(1);
    }
}

/// Longer scripts are cut; `--json` and the report contain all of it.
const SCRIPT_LINES: usize = 40;

/// A line for each entry, then failures, and the number that passed.
fn text(run: &Run) -> String {
    let mut text = String::new();
    let out = &mut text;
    let width = run.rows.iter().map(|row| row.name.len()).max().unwrap_or(0);
    let mut group = None;
    for row in &run.rows {
        if group != Some(row.group) {
            group = Some(row.group);
            let _ = writeln!(out, "{}", output::dim(row.group.name()));
        }
        let status = match row.status {
            Status::Pass => output::good("pass"),
            Status::Fail => output::bad("FAIL"),
            Status::Skip => output::dim("skip"),
        };
        let name = format!("{:width$}", row.name);
        let _ = writeln!(out, "  {name}  {status}  {:>7.3} s  {}", row.took.as_secs_f64(), note(row));
    }
    for row in run.rows.iter().filter(|row| row.status == Status::Fail) {
        add_failure(out, row);
    }
    let summary = run.summary();
    let failed = format!("{} failed", summary.failed);
    let failed = if summary.failed == 0 { failed } else { output::bad(&failed) };
    let _ = writeln!(
        out,
        "{} passed, {failed}, {} skipped; {} random operations, seed {}, {:.1} s",
        summary.passed,
        summary.skipped,
        summary.operations,
        run.effort.seed,
        run.took.as_secs_f64()
    );
    text
}

/// The rest of the line, which is cut only on a terminal.
fn note(row: &Row) -> String {
    let text = match row.status {
        Status::Pass => row.evidence.measured.lines().next().unwrap_or(""),
        Status::Fail => "see below",
        Status::Skip => &row.reason,
    };
    let text = output::one_line(text);
    if output::terminal().is_some() { output::shorten(&text, 90) } else { text }
}

fn add_failure(out: &mut String, row: &Row) {
    let _ = writeln!(out, "\n{} {}/{}: {}", output::bad("FAIL"), row.group.name(), row.name, row.says);
    for line in row.reason.lines() {
        let _ = writeln!(out, "  {}", output::one_line(line));
    }
    let Some(script) = &row.script else { return };
    let _ = writeln!(out, "  the shortest sequence found (`{} conform --script FILE` runs it again):", program());
    let lines = script.lines().count();
    for (number, line) in script.lines().enumerate() {
        if number == SCRIPT_LINES {
            let _ = writeln!(out, "    # ... {lines} lines in all (--json or --report has them)");
        }
        // The program is what runs again, so it is never cut.
        if number < SCRIPT_LINES || line.starts_with(PROGRAM) {
            let _ = writeln!(out, "    {}", output::one_line(line));
        }
    }
}

/// The groups in the order of the report.
const GROUPS: [Group; 5] = [Group::Law, Group::Contract, Group::Scenario, Group::PyTorchTest, Group::Lockstep];

/// What a group shows if all of it passes.
fn proves(group: Group) -> &'static str {
    match group {
        Group::Law => {
            "in random programs, the allocator follows the rules, loses no memory, and never wrongly shares or reuses any"
        }
        Group::Contract => "each call of the device behaves as measured on an H200",
        Group::Scenario => "the out-of-memory stories of the source documents happen as told",
        Group::PyTorchTest => "the allocator tests from PyTorch's own suite pass",
        Group::Lockstep => "the device and the simulated device lead to the same decisions, call by call",
    }
}

// Writing to a string does not fail.
fn markdown(run: &Run) -> String {
    let mut out = String::from("# Conformance report\n\n");
    let summary = run.summary();
    let device = run.facts.iter().find(|(name, _)| *name == "device").map_or("this device", |(_, value)| value.as_str());
    let verdict = if summary.failed == 0 { "Every check that ran passed" } else { "Some checks failed" };
    let _ = writeln!(
        out,
        "{verdict} on {}: **{} passed, {} failed, {} skipped**.\n",
        cell(device),
        summary.passed,
        summary.failed,
        summary.skipped
    );
    let _ = writeln!(out, "| what was checked | passed | failed | skipped | seconds |\n|---|--:|--:|--:|--:|");
    for group in GROUPS {
        let of = |status| run.rows.iter().filter(|row| row.group == group && row.status == status).count();
        let (passed, failed, skipped) = (of(Status::Pass), of(Status::Fail), of(Status::Skip));
        if passed + failed + skipped > 0 {
            let seconds: f64 = run.rows.iter().filter(|row| row.group == group).map(|row| row.took.as_secs_f64()).sum();
            let what = format!("{}: {}", group.name(), proves(group));
            let _ = writeln!(out, "| {what} | {passed} | {failed} | {skipped} | {seconds:.1} |");
        }
    }
    out.push('\n');
    for (name, value) in &run.facts {
        let _ = writeln!(out, "- {name}: {}", cell(value));
    }
    let (cases, seed) = (run.effort.cases, run.effort.seed);
    let _ = writeln!(
        out,
        "- parkade {}, seed {seed}, {cases} random sequences for each law and event timing",
        env!("CARGO_PKG_VERSION")
    );
    if let Some(filter) = &run.filter {
        let _ = writeln!(out, "- only entries whose name contains `{}`", cell(filter));
    }
    let _ = writeln!(out, "- {} random operations; {:.1} s\n", summary.operations, run.took.as_secs_f64());
    for group in GROUPS {
        let rows: Vec<&Row> = run.rows.iter().filter(|row| row.group == group).collect();
        if !rows.is_empty() {
            write_group(&mut out, group, &rows);
        }
    }
    write_texts(&mut out, run);
    out
}

fn write_group(out: &mut String, group: Group, rows: &[&Row]) {
    let _ = writeln!(out, "## {}\n\n| name | what holds | | seconds | measured |\n|---|---|---|---|---|", group.name());
    for row in rows {
        let status = if row.status == Status::Fail { "**FAIL**" } else { row.status.name() };
        let first = row.evidence.measured.lines().next().unwrap_or("");
        let note = if row.status == Status::Pass { cell(first) } else { cell(&row.reason) };
        let _ = writeln!(out, "| {} | {} | {status} | {:.3} | {note} |", cell(&row.name), cell(row.says), row.took.as_secs_f64());
    }
    out.push('\n');
    for row in rows.iter().filter(|row| row.script.is_some()) {
        let script = row.script.as_deref().unwrap_or("");
        let again = format!("{} conform --script", program());
        let _ = writeln!(out, "`{}` fails with this script for `{again}`:\n\n```\n{script}```\n", row.name);
    }
}

/// Measured tables, and what failing scenarios showed. The output of the others is in the repository and in `--json`.
fn write_texts(out: &mut String, run: &Run) {
    let tables = run.rows.iter().filter(|row| row.evidence.measured.lines().count() > 1);
    for row in tables {
        let _ = writeln!(out, "## Measured: {}\n\n```\n{}\n```\n", row.name, row.evidence.measured.trim_end());
    }
    let failed = run.rows.iter().filter(|row| row.status == Status::Fail && row.group == Group::Scenario);
    for row in failed.filter(|row| !row.evidence.text.is_empty()) {
        let _ = writeln!(out, "## What {} showed\n\n```\n{}\n```\n", row.name, row.evidence.text.trim_end());
    }
}

/// Text in a table cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace(['\n', '\r'], " ")
}

sections! {
    "conform": Line<'_>;
}

view! {
    struct Line<'a>(row: &'a Row) {
        /// The entry's group.
        group: Word<Group> = Word::of(&row.group),
        /// The entry's name in its group.
        name: &'a str = &row.name,
        /// What it ran on.
        backend: &'static str = row.backend,
        /// What came of it.
        status: Word<Status> = Word::of(&row.status),
        /// Why it failed or was skipped; empty if it passed.
        reason: &'a str = &row.reason,
        /// What the entry claims.
        says: &'static str = row.says,
        /// The number of random operations done.
        operations: u64 = row.evidence.operations,
        /// The time taken.
        seconds: f64 = row.took.as_secs_f64(),
        /// The measurements, line by line.
        measured: &'a str = &row.evidence.measured,
        /// The output of a scenario, line by line.
        text: &'a str = &row.evidence.text,
        /// The shortest sequence found that breaks a law, for `parkade conform --script` and `parkade ops`.
        script: Option<&'a str> = row.script.as_deref(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `parkade` does not know the policies of another program.
    #[test]
    fn the_script_of_a_failure_names_the_program_that_runs_it_again() {
        let script = "# entry law/policy/mine/seeded\n# parkade conform --script SCRIPT runs it again\n\
                      # parkade ops SCRIPT --policy 'mine' --capacity 9 --addresses up\nalloc a1 512 0\n# program []\n";
        assert_eq!(run_by("parkade", script), script);
        let own = run_by("my-policies", script);
        assert!(
            own.contains("# my-policies conform --script") && own.contains("# my-policies ops SCRIPT --policy 'mine'"),
            "{own}"
        );
        assert!(!own.contains("parkade") && own.lines().count() == script.lines().count(), "{own}");
    }
}
