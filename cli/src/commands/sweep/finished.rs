//! A sweep with all its rows, the builds that made them, and notes for reading it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use parkade_policies::{Named, named};
use parkade_research::study::sweep::{
    BUILD, BoundRatios, Capacity, CourseOfAll, Plan, Row, Source, Summary, needs_by_construction, takes_a_share_at_first,
};

use crate::terminal::json_struct::{all, view};
use crate::terminal::output;

/// A sweep with all its rows.
pub struct Finished {
    pub(crate) plan: Plan,
    pub(crate) rows: Vec<Row>,
    /// The plan's workloads, or empty if they cannot be made.
    pub(crate) sources: Vec<Source>,
    pub(crate) policies: Vec<Named>,
    /// The need of ideal allocators for the plan's workloads, or empty.
    pub(crate) beside: Vec<Option<BoundRatios>>,
    /// The jobs that several builds did.
    pub(crate) overlap: Overlap,
    /// The summary of the rows.
    pub(crate) summary: Summary,
    /// Each policy's need for equal buffers that stay, relative to their sum.
    pub(crate) equal_buffers: Vec<Option<f64>>,
    /// The policies that take a share of all memory before the program begins.
    pub(crate) takes_a_share: BTreeSet<String>,
}

impl Finished {
    /// The rows of a plan, compared with the policy at index `baseline`; without sources and ideal allocators.
    pub(crate) fn of(plan: Plan, rows: Vec<Row>, baseline: usize, overlap: Overlap) -> Finished {
        let known: Vec<Option<Named>> = plan.policies.iter().map(|name| named(name).ok()).collect();
        let takes_a_share: BTreeSet<String> = known
            .iter()
            .flatten()
            .filter(|policy| takes_a_share_at_first(policy))
            .map(|policy| policy.name.to_string())
            .collect();
        let equal_buffers = known.iter().map(|policy| policy.as_ref().and_then(needs_by_construction)).collect();
        let mut summary = Summary::of(&plan, &rows, baseline);
        leave_artefacts_out(&plan, &takes_a_share, &mut summary);
        let (sources, policies, beside) = (Vec::new(), Vec::new(), Vec::new());
        Finished { plan, rows, sources, policies, beside, overlap, summary, equal_buffers, takes_a_share }
    }

    /// Notes on the builds that made the rows; empty if this build made all of them.
    pub(super) fn about_builds(&self) -> Vec<String> {
        lines_about_builds(&self.rows, &self.overlap)
    }

    /// The policies that take a share of all memory before the program begins, so that their figures with plenty of memory are
    /// meaningless.
    pub(super) fn taking_a_share(&self) -> impl Iterator<Item = &str> {
        self.plan.policies.iter().map(String::as_str).filter(|name| self.takes_a_share.contains(*name))
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
    let builds = rows_by_build(rows);
    let named = |(build, rows): (&&str, &u64)| {
        let this = if *build == BUILD { " (this one)" } else { "" };
        format!("{rows} by {}{this}", output::shorten(build, LONGEST_NAME))
    };
    let all = builds.iter().map(named).collect::<Vec<_>>().join(", ");
    let mixed = match builds.len() {
        0 => None,
        1 if builds.contains_key(BUILD) => None,
        1 => Some(format!("All rows were made by a build other than this {BUILD}, which may decide differently: {all}.")),
        _ => Some(format!("The rows come from different builds, which may decide differently: {all}.")),
    };
    mixed.into_iter().chain(overlap.line()).collect()
}

/// Whether more than one build made the rows.
pub(crate) fn are_mixed(rows: &[Row]) -> bool {
    rows_by_build(rows).len() > 1
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
