//! The rows of a sweep: the file that keeps them; and all of them, with the builds that made them and notes for reading them.
//!
//! A file is a header line with the plan, then a line for each row. Reading any file takes at most one line of memory beyond its rows.
//! Only a file whose jobs are all requested is continued. It may grow: the rows that it has are kept under their new numbers, and the
//! missing ones follow, until the finished file is written in the order of the jobs. If the last line has no line break, an interruption
//! cut it, and it is dropped. Each row names its build, because another build may decide differently.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result, anyhow, bail};
use parkade_policies::{Named, base};
use parkade_research::policies::policies;
use parkade_research::study::sweep::{
    Ablations, BoundRatios, Capacity, CourseOfAll, Plan, PolicySummary, Precision, Row, Share, Source, Summary, build_of,
    needs_by_construction, takes_a_share_at_first,
};
use parkade_research::study::{Addresses, Excess, LOAD_UNIT_BYTES, RunOptions};
use parkade_research::workload::Workload;
use serde::{Deserialize, Serialize};

use crate::terminal::args::{policy, program};
use crate::terminal::json_struct::{all, view};
use crate::terminal::output;
use crate::terminal::outputs::{Outputs, Target};

/// The version of the file format.
const FORM: u32 = 4;
/// The longest header line and the longest row, in bytes.
const LONGEST_HEADER: u64 = 4 << 20;
const LONGEST_ROW: u64 = 16 << 10;

/// A part of a sweep's jobs: those whose number modulo `parts` is `part - 1`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct Shard {
    pub(crate) part: u64,
    pub(crate) parts: u64,
}

impl Shard {
    /// All jobs.
    pub(crate) const WHOLE: Shard = Shard { part: 1, parts: 1 };

    /// The numbers of its jobs.
    pub(crate) fn jobs(self, plan: &Plan) -> impl Iterator<Item = u64> + use<> {
        let step = usize::try_from(self.parts).unwrap_or(usize::MAX);
        (self.part - 1..plan.jobs()).step_by(step)
    }

    /// Whether it has the job with this number.
    fn has(self, job: u64) -> bool {
        job % self.parts == self.part - 1
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.part, self.parts)
    }
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Shard, String> {
        let refused = || format!("{text:?} is not a part: write 2/3 for the second of three, counted from 1");
        let (part, parts) = text.split_once('/').ok_or_else(refused)?;
        let number = |text: &str| text.parse::<u64>().map_err(|_| refused());
        let shard = Shard { part: number(part)?, parts: number(parts)? };
        if shard.part == 0 || shard.part > shard.parts { Err(refused()) } else { Ok(shard) }
    }
}

impl From<Shard> for String {
    fn from(shard: Shard) -> String {
        shard.to_string()
    }
}

impl TryFrom<String> for Shard {
    type Error = String;

    fn try_from(text: String) -> Result<Shard, String> {
        text.parse()
    }
}

/// The first line.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Header {
    parkade_sweep: u32,
    pub(crate) shard: Shard,
    pub(crate) plan: Plan,
}

impl Header {
    pub(crate) fn of(plan: Plan, shard: Shard) -> Header {
        Header { parkade_sweep: FORM, shard, plan }
    }

    pub(crate) fn line(&self) -> serde_json::Result<Vec<u8>> {
        Ok((output::json(self)? + "\n").into_bytes())
    }

    /// The first difference from another header, in words.
    pub(crate) fn difference(&self, other: &Header) -> Option<&'static str> {
        let (own, others) = (&self.plan, &other.plan);
        let differs = [
            (own.workloads != others.workloads, "has different workloads or seeds"),
            (own.policies != others.policies, "has different policies"),
            (own.capacities != others.capacities, "has different capacities"),
            (own.addresses != others.addresses, "has a different address model"),
            (own.preallocate != others.preallocate, "has a different pre-allocation"),
            (own.precision != others.precision, "searches with a different precision"),
            (self.shard.parts != other.shard.parts, "is divided into a different number of parts"),
        ];
        differs.into_iter().find(|(differs, _)| *differs).map(|(_, what)| what)
    }

    /// Refuses to turn a file with this header into one with another by adding rows, if that is not possible.
    fn check_growth(&self, wanted: &Header) -> Result<()> {
        let (own, plan) = (&self.plan, &wanted.plan);
        let other = Plan { workloads: own.workloads.clone(), policies: own.policies.clone(), ..plan.clone() };
        if let Some(difference) = self.difference(&Header { plan: other, ..wanted.clone() }) {
            bail!("{difference} than requested: choose a different file, or remove it");
        }
        if self.shard != wanted.shard {
            bail!("is part {}, not {}: choose a different file", self.shard, wanted.shard);
        }
        let policies: Vec<&str> =
            own.policies.iter().filter(|policy| !plan.policies.contains(policy)).map(String::as_str).collect();
        if !policies.is_empty() {
            bail!("also has rows of {}: request these policies too, or choose a different file", output::enumerated(&policies));
        }
        for workload in &own.workloads {
            match plan.workloads.iter().find(|wanted| wanted.name == workload.name) {
                None => bail!("also has rows of {}: request this workload too, or choose a different file", workload.name),
                Some(wanted) if wanted.hash != workload.hash => {
                    bail!("has rows of a different {}: choose a different file, or remove it", workload.name)
                }
                Some(wanted) if wanted.seeds < workload.seeds => bail!(
                    "has {} of {}: request as many (--seeds {}), or choose a different file",
                    output::count(workload.seeds, "seed"),
                    workload.name,
                    workload.seeds
                ),
                Some(_) => {}
            }
        }
        if self.shard.parts > 1 && own != plan {
            bail!(
                "is part {} of a smaller sweep, and parts do not grow: merge the parts, then add to the merged file",
                self.shard
            );
        }
        Ok(())
    }
}

/// The contents of a file.
pub(crate) struct Contents {
    pub(crate) header: Header,
    pub(crate) rows: Vec<Row>,
    /// The bytes of its complete lines.
    whole_bytes: u64,
}

/// Reads a file of rows.
pub(crate) fn read(path: &Path) -> Result<Contents> {
    let name = || path.display().to_string();
    let file = File::open(path).map_err(|cause| anyhow!("cannot be read: {cause}")).with_context(name)?;
    if !file.metadata().is_ok_and(|data| data.is_file()) {
        return Err(anyhow!("is not a file of rows")).with_context(name);
    }
    contents(&mut BufReader::new(file)).with_context(name)
}

fn contents(file: &mut impl BufRead) -> Result<Contents> {
    let foreign = "is not a file of rows made by parkade sweep";
    let cut = "its first line is missing or cut short, as after an early interruption: remove it, or choose a different file";
    let line = next_line(file, LONGEST_HEADER)?.ok_or_else(|| anyhow!("{foreign}: {cut}"))?;
    let form = serde_json::from_slice::<serde_json::Value>(&line).ok().and_then(|value| value.get("parkade_sweep")?.as_u64());
    match form {
        None => bail!("{foreign}"),
        Some(form) if form != u64::from(FORM) => bail!("has format {form}, but this version reads format {FORM}"),
        Some(_) => {}
    }
    let header: Header = serde_json::from_slice(&line).map_err(|error| anyhow!("line 1: {error}"))?;
    header.plan.check().map_err(|error| anyhow!("line 1: {error}"))?;
    for name in &header.plan.policies {
        let made_anew = "parkade has changed since the rows were made: choose a different file, or remove it";
        let known = policy(name).map_err(|error| anyhow!("line 1: {error}; {made_anew}"))?;
        if known.name != *name {
            bail!("line 1: the policy {name:?} is called {}; {made_anew}", known.name);
        }
    }
    let (mut rows, mut whole_bytes, jobs) = (Vec::new(), line.len() as u64, header.plan.jobs());
    let mut seen = BTreeSet::new();
    while let Some(line) = next_line(file, LONGEST_ROW).with_context(|| format!("line {}", rows.len() + 2))? {
        let place = rows.len() + 2;
        let row: Row = serde_json::from_slice(&line).map_err(|error| anyhow!("line {place} is not a row: {error}"))?;
        match row.job {
            job if job >= jobs => bail!("line {place} is job {job}, but line 1 has only {}", output::count(jobs, "job")),
            job if !header.shard.has(job) => bail!("line {place} is job {job}, which is not in part {}", header.shard),
            job if !seen.insert(job) => bail!("line {place} is job {job} again"),
            job if !row.belongs_to(&header.plan) => bail!("line {place} contradicts line 1 about what job {job} is"),
            _ => rows.push(row),
        }
        whole_bytes += line.len() as u64;
    }
    Ok(Contents { header, rows, whole_bytes })
}

/// The next line including its line break; `None` at the end of the file, even within a line.
fn next_line(file: &mut impl BufRead, longest: u64) -> Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    file.take(longest).read_until(b'\n', &mut line).map_err(|cause| anyhow!("cannot be read: {cause}"))?;
    if line.ends_with(b"\n") {
        return Ok(Some(line));
    }
    if line.len() as u64 == longest {
        bail!("a line is longer than {longest} bytes, which parkade sweep never writes");
    }
    Ok(None)
}

/// The build that makes rows of the policy with this name, which may have parameters.
pub fn current_build(policy: &str) -> String {
    build_of(policies().named(policy).map_or_else(|_| base(policy), |known| known.entry.name))
}

/// The builds that would make these rows now, by the policy's name.
fn current_builds(rows: &[Row]) -> BTreeMap<&str, String> {
    let mut builds = BTreeMap::new();
    for row in rows {
        builds.entry(row.policy.as_str()).or_insert_with(|| current_build(&row.policy));
    }
    builds
}

/// The jobs of the rows that another build made.
pub(crate) fn outdated(rows: &[Row]) -> BTreeSet<u64> {
    let builds = current_builds(rows);
    rows.iter().filter(|row| builds[row.policy.as_str()] != row.build).map(|row| row.job).collect()
}

/// Refuses rows made by another build; `instead` says what to do.
pub(crate) fn check_program(path: &Path, rows: &[Row], instead: &str) -> Result<()> {
    let outdated = outdated(rows);
    match rows.iter().find(|row| outdated.contains(&row.job)) {
        Some(row) => bail!(
            "{} has rows of {} made by parkade {}, which may decide differently from this {}: {instead}",
            path.display(),
            row.policy,
            output::shorten(&row.build, LONGEST_NAME),
            current_build(&row.policy)
        ),
        None => Ok(()),
    }
}

/// Opens or creates a file and locks it.
fn locked(path: &Path) -> Result<File> {
    let opened = OpenOptions::new().write(true).create(true).truncate(false).open(path);
    let file = opened.with_context(|| format!("cannot write {}", path.display()))?;
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => bail!("{} is being written by another sweep", path.display()),
        // The file system has no locks.
        Ok(()) | Err(TryLockError::Error(_)) => Ok(file),
    }
}

/// The text of a file with these rows.
pub(crate) fn text(header: &Header, rows: &[Row]) -> Result<Vec<u8>> {
    let mut bytes = header.line()?;
    for row in rows {
        bytes.extend((output::json(row)? + "\n").into_bytes());
    }
    Ok(bytes)
}

/// A file of rows that is being continued.
pub(crate) struct Continued {
    /// The rows that it has, in the order of their jobs.
    pub(crate) rows: Vec<Row>,
    /// The file at its end.
    pub(crate) file: File,
    /// Whether its rows are in that order in the file.
    pub(crate) is_in_order: bool,
}

/// Opens or creates a file to append rows, without those that `drops` names. The function writes nothing before `check` accepts the
/// rows.
pub(crate) fn continue_file(
    (target, path): (&Target, &Path),
    header: &Header,
    outputs: Outputs,
    drops: impl FnOnce(&[Row]) -> BTreeSet<u64>,
    check: impl FnOnce(&[Row]) -> Result<()>,
) -> Result<Continued> {
    let mut file = locked(path)?;
    if file.metadata().is_ok_and(|data| data.is_file() && data.len() == 0) {
        file.write_all(&header.line()?).with_context(|| format!("cannot write {}", path.display()))?;
        return Ok(Continued { rows: Vec::new(), file, is_in_order: true });
    }
    let Contents { header: old, mut rows, whole_bytes } = read(path)?;
    old.check_growth(header).map_err(|why| anyhow!("{} {why}", path.display()))?;
    let dropped = drops(&rows);
    rows.retain(|row| !dropped.contains(&row.job));
    let grows = old.plan != header.plan;
    for row in rows.iter_mut().filter(|_| grows) {
        let job = old.plan.job(row.job).and_then(|job| header.plan.same_job(&old.plan, &job));
        row.job = header.plan.number(&job.ok_or_else(|| anyhow!("{}: job {} is not requested", path.display(), row.job))?);
    }
    let is_in_order = rows.is_sorted_by_key(|row| row.job);
    rows.sort_by_key(|row| row.job);
    check(&rows)?;
    if grows || !dropped.is_empty() {
        outputs.replace(target, &text(header, &rows)?)?;
        // The lock of the file that has been replaced is held until the new one is locked.
        file = locked(path)?;
        file.seek(SeekFrom::End(0)).with_context(|| format!("cannot write {}", path.display()))?;
        return Ok(Continued { rows, file, is_in_order: true });
    }
    let mut prepare = || file.set_len(whole_bytes).and_then(|()| file.seek(SeekFrom::End(0)));
    prepare().with_context(|| format!("cannot write {}", path.display()))?;
    Ok(Continued { rows, file, is_in_order })
}

/// A sweep with all its rows.
pub struct Finished {
    pub(crate) plan: Plan,
    pub(crate) rows: Vec<Row>,
    /// The plan's workloads, or empty if they cannot be made.
    pub(crate) sources: Vec<Source>,
    pub(crate) policies: Vec<Named>,
    /// The need of ideal allocators for the plan's workloads, or empty.
    pub(crate) beside: Vec<Option<BoundRatios>>,
    /// The first request that a policy cannot serve in the memory of the packing, by policy and workload, or empty.
    pub(crate) excesses: Vec<Vec<Option<Excess>>>,
    /// Whether the page draws the holes over the course of a run.
    pub(crate) draws_holes: bool,
    /// The jobs that several builds did.
    pub(crate) overlap: Overlap,
    /// The summary of the rows.
    pub(crate) summary: Summary,
    /// What each parameter does whose values the sweep varies.
    pub(crate) ablations: Ablations,
    /// Each policy's need for equal buffers that stay, relative to their sum.
    pub(crate) equal_buffers: Vec<Option<f64>>,
    /// The policies that take a share of all memory before the program begins.
    pub(super) takes_a_share: BTreeSet<String>,
}

impl Finished {
    /// The rows of a plan, compared with the policy at index `baseline`; without sources and ideal allocators.
    pub(crate) fn of(plan: Plan, rows: Vec<Row>, baseline: usize, overlap: Overlap) -> Finished {
        let known: Vec<Option<Named>> = plan.policies.iter().map(|name| policies().named(name).ok()).collect();
        let takes_a_share: BTreeSet<String> = known
            .iter()
            .flatten()
            .filter(|policy| takes_a_share_at_first(policy))
            .map(|policy| policy.name.to_string())
            .collect();
        let equal_buffers = known.iter().map(|policy| policy.as_ref().and_then(needs_by_construction)).collect();
        let mut summary = Summary::of(&plan, &rows, baseline);
        leave_artefacts_out(&plan, &takes_a_share, &mut summary);
        let (sources, policies, beside, excesses) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let ablations = Ablations::of(&plan, &rows, &summary);
        Finished {
            plan,
            rows,
            sources,
            policies,
            beside,
            excesses,
            draws_holes: false,
            overlap,
            summary,
            ablations,
            equal_buffers,
            takes_a_share,
        }
    }

    /// Notes on the builds that made the rows; empty if this build made all of them.
    pub(super) fn about_builds(&self) -> Vec<String> {
        lines_about_builds(&self.rows, &self.overlap)
    }

    /// What each policy that broke did first; empty if none did.
    pub(crate) fn about_faults(&self) -> Vec<String> {
        let broken = self.summary.policies.iter().filter(|policy| policy.faults > 0);
        let line = |policy: &PolicySummary| {
            let first = self.rows.iter().find(|row| row.is_fault && row.policy == policy.name)?;
            let seed = if first.seed == 0 { String::new() } else { format!(", seed {}", first.seed) };
            let event = first.failed_at_event.map_or_else(String::new, |event| format!(" at event {event}"));
            Some(format!(
                "{} broke in {}{seed}{event}: {}. It has no figures. For the shortest program that shows why: {} conform --policy {}",
                policy.name,
                first.workload,
                output::one_line(first.problem.as_deref().unwrap_or("a fault").trim_end_matches('.')),
                program(),
                policy.name
            ))
        };
        broken.filter_map(line).collect()
    }

    /// The policies that take a share of all memory before the program begins, so that their figures with plenty of memory are
    /// meaningless.
    pub(super) fn taking_a_share(&self) -> impl Iterator<Item = &str> {
        self.plan.policies.iter().map(String::as_str).filter(|name| self.takes_a_share.contains(*name))
    }
}

/// A device with plenty of memory, as the plan says.
pub(super) fn plenty(plan: &Plan, workload: &Workload) -> RunOptions {
    RunOptions {
        addresses: Addresses::named(&plan.addresses).unwrap_or_default(),
        preallocated_bytes: plan.preallocate.map_or(0, |share: Share| share.of(workload.load_bytes(LOAD_UNIT_BYTES))),
        ..RunOptions::plenty()
    }
}

/// With plenty of memory such a policy pays for a share of 4 TiB.
fn leave_artefacts_out(plan: &Plan, takes_a_share: &BTreeSet<String>, summary: &mut Summary) {
    let Some(plenty) = plan.capacities.iter().position(|capacity| *capacity == Capacity::Plenty) else { return };
    for (policy, cells) in summary.policies.iter_mut().zip(&mut summary.cells) {
        if takes_a_share.contains(policy.name.as_str()) {
            (policy.driver_ns[plenty], policy.courses[plenty]) = (None, CourseOfAll::default());
            cells.iter_mut().for_each(|cell| (cell.driver_ns[plenty], cell.courses[plenty]) = (None, None));
        }
    }
}

/// What was compared, in one line.
pub(super) fn subject(plan: &Plan) -> String {
    let seeds = plan.workloads.iter().map(|workload| workload.seeds).max().unwrap_or(0);
    let mut line = format!(
        "{} x {}, {}; addresses: {}",
        output::count(plan.workloads.len() as u64, "workload"),
        output::count(plan.policies.len() as u64, "policy"),
        output::count(seeds, "seed"),
        plan.addresses
    );
    if let Some(share) = plan.preallocate {
        let _ = write!(line, "; {share} LOAD reserved before the program begins");
    }
    if plan.precision != Precision::default() {
        let _ = write!(line, "; found to within {} of LOAD", plan.precision);
    }
    line
}

/// Longer names of builds are cut, in characters.
const LONGEST_NAME: usize = 60;

/// Jobs done by different builds in several files: the row of the first file is kept.
#[derive(Default)]
pub(crate) struct Overlap {
    /// The number of such jobs.
    pub(crate) jobs: u64,
    /// For each file, the number of kept rows that differ from another build's.
    pub(crate) kept: Vec<(PathBuf, u64)>,
}

impl Overlap {
    /// Counts a job whose row was kept from this file.
    pub(crate) fn add(&mut self, file: &Path, is_contradicted: bool) {
        self.jobs += 1;
        if !is_contradicted {
            return;
        }
        match self.kept.iter_mut().find(|(kept, _)| kept == file) {
            Some((_, rows)) => *rows += 1,
            None => self.kept.push((file.to_owned(), 1)),
        }
    }

    fn differing(&self) -> u64 {
        self.kept.iter().map(|(_, rows)| rows).sum()
    }

    fn line(&self) -> Option<String> {
        let files: Vec<String> = self.kept.iter().map(|(file, rows)| format!("{rows} of {}", file.display())).collect();
        match (self.jobs, self.differing()) {
            (0, _) => None,
            (jobs, 0) => Some(format!("{} made by different builds in several files, with the same numbers.", were(jobs))),
            (jobs, differing) => {
                let kept = format!("the rows of the first file were kept: {}", files.join(", "));
                Some(format!(
                    "{} made by different builds in several files, {differing} with different numbers; {kept}.",
                    were(jobs)
                ))
            }
        }
    }
}

fn were(jobs: u64) -> String {
    if jobs == 1 { "1 job was".to_owned() } else { format!("{jobs} jobs were") }
}

/// How many rows each build made: `{"0.1.0-0123456789abcdef": 11, ...}`.
pub(crate) fn rows_by_build(rows: &[Row]) -> BTreeMap<&str, u64> {
    let mut builds = BTreeMap::new();
    for row in rows {
        *builds.entry(row.build.as_str()).or_default() += 1;
    }
    builds
}

/// Notes on rows that this build did not make, one line each.
pub(crate) fn lines_about_builds(rows: &[Row], overlap: &Overlap) -> Vec<String> {
    let outdated = outdated(rows);
    let mut by_build: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for row in rows.iter().filter(|row| outdated.contains(&row.job)) {
        *by_build.entry((&row.policy, &row.build)).or_default() += 1;
    }
    let named = |((policy, build), rows): (&(&str, &str), &u64)| {
        format!("{rows} of {policy} by {}", output::shorten(build, LONGEST_NAME))
    };
    let which = if outdated.len() == rows.len() { "All" } else { "Some" };
    let other = (!by_build.is_empty()).then(|| {
        let all = by_build.iter().map(named).collect::<Vec<_>>().join(", ");
        format!("{which} rows were made by builds other than this one, which may decide differently: {all}.")
    });
    other.into_iter().chain(overlap.line()).collect()
}

/// Whether different builds made rows that are compared: of one policy, or with a different core, simulated device or studies. Builds
/// differ from policy to policy in their last part.
pub(crate) fn are_mixed(rows: &[Row]) -> bool {
    let common = |build: &str| build.splitn(3, '-').take(2).collect::<Vec<_>>().join("-");
    let (mut commons, mut policies) = (BTreeSet::new(), BTreeMap::new());
    for row in rows {
        commons.insert(common(&row.build));
        policies.entry(row.policy.as_str()).or_insert_with(BTreeSet::new).insert(row.build.as_str());
    }
    commons.len() > 1 || policies.values().any(|builds| builds.len() > 1)
}

view! {
    /// `{"jobs": 11, "differ": 2, "kept": [{"file": "a.jsonl", "rows": 2}]}`.
    pub(super) struct OfOverlap(overlap: &Overlap) {
        /// How many such jobs there are.
        jobs: u64 = overlap.jobs,
        /// How many of them have different numbers.
        differ: u64 = overlap.differing(),
        /// The rows kept of these jobs.
        kept: Vec<Kept> = all(&overlap.kept, Kept::of),
    }
}

view! {
    struct Kept(kept: &(PathBuf, u64)) {
        /// The file.
        file: String = kept.0.display().to_string(),
        /// How many rows of the file are kept.
        rows: u64 = kept.1,
    }
}
