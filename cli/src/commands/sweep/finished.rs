//! A sweep with all its rows, and what to know when reading it.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use parkade_policies::{Named, named};
use parkade_research::study::sweep::{
    BoundRatios, Capacity, CourseOfAll, Plan, Row, Source, Summary, needs_by_construction, takes_a_share_at_first,
};

use super::builds::{self, Overlap};
use crate::terminal::output;

/// A sweep with all its rows.
pub struct Finished {
    pub(crate) plan: Plan,
    pub(crate) rows: Vec<Row>,
    /// The plan's workloads and policies, or nothing where they cannot be made.
    pub(crate) sources: Vec<Source>,
    pub(crate) policies: Vec<&'static Named>,
    /// What ideal allocators need for the plan's workloads, or nothing.
    pub(crate) beside: Vec<Option<BoundRatios>>,
    /// The jobs that several builds did.
    pub(crate) overlap: Overlap,
    /// The summary of the rows.
    pub(crate) summary: Summary,
    /// What each policy needs for equal buffers that stay, over their sum.
    pub(crate) equal_buffers: Vec<Option<f64>>,
    /// The policies that take a share of all memory before the program begins.
    pub(crate) takes_a_share: BTreeSet<&'static str>,
}

impl Finished {
    /// The rows of a plan, compared with the policy at the index `baseline`; without sources and ideal allocators.
    pub(crate) fn of(plan: Plan, rows: Vec<Row>, baseline: usize, overlap: Overlap) -> Finished {
        let known: Vec<Option<&'static Named>> = plan.policies.iter().map(|name| named(name)).collect();
        let takes_a_share: BTreeSet<&'static str> =
            known.iter().flatten().filter(|policy| takes_a_share_at_first(policy)).map(|policy| policy.name).collect();
        let equal_buffers = known.iter().map(|policy| policy.and_then(needs_by_construction)).collect();
        let mut summary = Summary::of(&plan, &rows, baseline);
        leave_artefacts_out(&plan, &takes_a_share, &mut summary);
        let (sources, policies, beside) = (Vec::new(), Vec::new(), Vec::new());
        Finished { plan, rows, sources, policies, beside, overlap, summary, equal_buffers, takes_a_share }
    }

    /// Notes on the builds that made the rows; none if this build made all.
    pub(super) fn about_builds(&self) -> Vec<String> {
        builds::lines(&self.rows, &self.overlap)
    }

    /// The policies that take a share of all memory before the program begins, so that their figures with plenty of
    /// memory mean nothing.
    pub(super) fn taking_a_share(&self) -> impl Iterator<Item = &str> {
        self.plan.policies.iter().map(String::as_str).filter(|name| self.takes_a_share.contains(name))
    }
}

/// With plenty of memory such a policy pays for a part of 4 TiB.
fn leave_artefacts_out(plan: &Plan, takes_a_share: &BTreeSet<&'static str>, summary: &mut Summary) {
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
