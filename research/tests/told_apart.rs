//! Tests that a sweep in fine steps tells apart two policies whose needs differ by a thousandth.

use parkade::policy::{Policy, Wrapper};
use parkade::units::Bytes;
use parkade_policies::{Entry, Policies, named};
use parkade_research::study::sweep::{Capacity, Plan, PlannedWorkload, PreparedWorkload, Row, Summary};
use parkade_research::workload::parse;

/// A policy of the catalogue with blocks that are larger by a thousandth.
struct Wasteful(Box<dyn Policy + Send>);

impl Wrapper for Wasteful {
    type Inner = dyn Policy + Send;

    fn inner(&self) -> &Self::Inner {
        &*self.0
    }

    fn inner_mut(&mut self) -> &mut Self::Inner {
        &mut *self.0
    }

    fn round(&self, requested: Bytes) -> Option<Bytes> {
        self.inner().round(Bytes(requested.get() + requested.get() / 1000))
    }
}

const WASTEFUL: &[Entry] = &[Entry::new("wasteful", "best fit with blocks larger by a thousandth", "this test", |_| {
    Box::new(Wasteful(named("best-fit-remap").expect("in the catalogue").make()))
})];

/// Programs of 8 GiB and more, for which a step of 1/4096 is more than a page.
const PROGRAM: &str = "varlen:preset=gpt2-medium,batch=16,mixed=on,steps=2";
/// With these, the least p of one comparison is 2 / 2^7.
const SEEDS: u64 = 7;

/// Returns the summary of a sweep with two policies over the seeds, the plan, and the number of runs that it took.
fn swept(precision: &str) -> (Summary, Plan, u32) {
    let known = Policies::with(WASTEFUL).expect("a new name");
    let policies = ["best-fit-remap", "wasteful"].map(|name| known.named(name).expect("a policy"));
    let plan = Plan {
        workloads: vec![PlannedWorkload { name: "program".into(), seeds: SEEDS, hash: None }],
        policies: policies.iter().map(|policy| policy.name.to_string()).collect(),
        capacities: vec![Capacity::Smallest],
        addresses: "driver".into(),
        preallocate: None,
        precision: precision.parse().expect("a precision"),
    };
    let programs: Vec<PreparedWorkload> =
        (1..=SEEDS).map(|seed| PreparedWorkload::new(parse(&format!("{PROGRAM},seed={seed}")).expect("a workload"))).collect();
    assert!(programs.iter().all(|program| program.load_bytes > 8 << 30));
    let row = |number| {
        let job = plan.job(number).expect("a job");
        Row::of(&plan, number, &programs[job.seed as usize - 1], &policies[job.policy]).expect("a row")
    };
    let rows: Vec<Row> = (0..plan.jobs()).map(row).collect();
    let runs = rows.iter().map(|row| row.runs).sum();
    (Summary::of(&plan, &rows, 0), plan, runs)
}

#[test]
fn a_thousandth_is_told_apart_in_fine_steps() {
    let (fine, plan, runs_of_fine) = swept("1/4096");
    let versus = fine.cells[1][0].versus.expect("a comparison");
    assert_eq!(versus.counts, [0, 0, SEEDS as usize], "each program needs more");
    let ratio = versus.ratio.expect("it fits");
    assert!(1.0005 < ratio.low && ratio.high < 1.0015, "{ratio:?}");
    assert_eq!(Some(versus.corrected_p), fine.least_p(&plan), "no p value can be smaller");
    assert!(versus.corrected_p < 0.02, "{}", versus.corrected_p);
    let (_, _, runs) = swept("1/256");
    assert!(runs_of_fine <= runs + 5 * plan.jobs() as u32, "{runs_of_fine} runs instead of {runs}");
}
