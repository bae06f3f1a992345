//! A sweep with all its rows, and what to know when reading it.

use std::fmt::Write as _;

use parkade_policies::{Named, named};
use parkade_research::study::sweep::{BoundRatios, Capacity, Plan, Row, Source, Summary};

use super::builds::{self, Overlap};
use parkade_terminal::output;

/// A sweep with all its rows.
pub struct Finished {
    pub(crate) plan: Plan,
    pub(crate) rows: Vec<Row>,
    /// The plan's workloads and policies, or nothing where they cannot be made.
    pub(crate) sources: Vec<Source>,
    pub(crate) policies: Vec<&'static Named>,
    /// Bounds of the plan's workloads, or nothing.
    pub(crate) beside: Vec<Option<BoundRatios>>,
    /// The jobs that several builds did.
    pub(crate) overlap: Overlap,
    /// The summary of the rows.
    pub(crate) summary: Summary,
}

impl Finished {
    /// Notes on the builds that made the rows; none if this build made all.
    pub(super) fn about_builds(&self) -> Vec<String> {
        builds::lines(&self.rows, &self.overlap)
    }
}

/// The summary of the rows, compared with the policy at the index `baseline`.
pub(crate) fn summary(plan: &Plan, rows: &[Row], baseline: usize) -> Summary {
    let mut summary = Summary::of(plan, rows, baseline);
    leave_artefacts_out(plan, &mut summary);
    summary
}

/// Whether a policy reserves memory up front, so that its figures with plenty of memory mean nothing.
pub(super) fn takes_everything(policy: &str) -> bool {
    named(policy).is_some_and(|policy| policy.keeps_memory)
}

/// With plenty of memory such a policy pays for 4 TiB.
fn leave_artefacts_out(plan: &Plan, summary: &mut Summary) {
    let Some(plenty) = plan.capacities.iter().position(|capacity| *capacity == Capacity::Plenty) else { return };
    for (policy, cells) in
        summary.policies.iter_mut().zip(&mut summary.cells).filter(|(policy, _)| takes_everything(&policy.name))
    {
        let costs = cells.iter_mut().map(|cell| &mut cell.driver_ns).chain([&mut policy.driver_ns]);
        costs.for_each(|driver_ns| driver_ns[plenty] = None);
    }
}

/// A sentence on the policies concerned; empty if there are none.
pub(super) fn about_artefacts(plan: &Plan) -> String {
    let names: Vec<&str> = plan.policies.iter().map(String::as_str).filter(|name| takes_everything(name)).collect();
    let what = "which would reserve a share of all memory before the program begins";
    let listed = match names.as_slice() {
        [] => return String::new(),
        [only] => (*only).to_owned(),
        [others @ .., last] => format!("{} and {last}", others.join(", ")),
    };
    format!(" With plenty without {listed}, {what}.")
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
