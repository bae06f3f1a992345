use parkade_policies::{Named, named};

use super::*;
use crate::workload::{Event, Workload};

const MIB: u64 = 1 << 20;

fn policies() -> [&'static Named; 2] {
    ["pytorch", "pytorch-expandable"].map(|name| named(name).expect("a policy"))
}

/// Buffers come and go, in sizes that depend on the seed.
fn made(seed: u64) -> Workload {
    let mut random = crate::packing::random::Random::new(seed);
    let mut events = Vec::new();
    for buffer in 0..40 {
        events.push(Event::Allocate { buffer, bytes: (1 + random.below(50) as u64) * MIB, stream: 0 });
        if buffer >= 5 {
            events.push(Event::Free { buffer: buffer - 5 });
        }
    }
    Workload { name: "made".into(), says: "a test's".into(), events, ..Workload::default() }
}

fn sources() -> Vec<Source> {
    ["one", "two", "three"]
        .into_iter()
        .zip([10, 20, 30])
        .map(|(name, base)| Source {
            name: name.into(),
            says: String::new(),
            is_seeded: true,
            make: Box::new(move |seed| made(base + seed)),
        })
        .collect()
}

fn plan() -> Plan {
    Plan {
        workloads: ["one", "two", "three"].map(|name| PlannedWorkload { name: name.into(), seeds: 2, hash: None }).into(),
        policies: policies().map(|policy| policy.name.to_owned()).into(),
        capacities: ["smallest", "plenty", "1.1"].map(|text| text.parse().expect("a capacity")).into(),
        addresses: "driver".into(),
        preallocate: None,
    }
}

fn rows(jobs: &[u64], threads: usize) -> Vec<Row> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads");
    let mut rows = Vec::new();
    let taken: Result<(), ()> = run_jobs(&plan(), &sources(), &policies(), jobs, &pool, |row| {
        rows.push(row);
        Ok(())
    });
    assert_eq!(taken, Ok(()));
    rows
}

#[test]
fn jobs_are_numbered_by_workload_seed_policy_capacity() {
    let plan = plan();
    assert_eq!((plan.check(), plan.jobs()), (Ok(()), 3 * 2 * 2 * 3));
    let job = |number| plan.job(number).expect("a job");
    assert_eq!(job(0), Job { workload: 0, seed: 1, policy: 0, capacity: 0 });
    assert_eq!(job(5), Job { workload: 0, seed: 1, policy: 1, capacity: 2 });
    assert_eq!(job(6), Job { workload: 0, seed: 2, policy: 0, capacity: 0 });
    assert_eq!(job(35), Job { workload: 2, seed: 2, policy: 1, capacity: 2 });
    assert_eq!(plan.job(36), None);
}

#[test]
fn plans_that_cannot_be_carried_out_say_why() {
    let bad = |change: fn(&mut Plan)| {
        let mut plan = plan();
        change(&mut plan);
        plan.check().expect_err("a bad plan").to_string()
    };
    assert!(bad(|plan| plan.workloads.clear()).contains("no workloads"));
    assert!(bad(|plan| plan.policies.clear()).contains("no policies"));
    assert!(bad(|plan| plan.capacities.clear()).contains("no capacities"));
    assert!(bad(|plan| plan.workloads[0].seeds = 0).contains("no seeds"));
    assert!(bad(|plan| plan.workloads[0].seeds = u64::MAX).contains("more than 1000000 jobs"));
    assert!(bad(|plan| plan.workloads[0].name = "two".into()).contains("\"two\" is given twice"));
    assert!(bad(|plan| plan.addresses = "up".into()).contains("no address model"));
}

#[test]
fn rows_are_the_same_on_any_number_of_threads_and_in_any_parts() {
    let all: Vec<u64> = (0..plan().jobs()).collect();
    let alone = rows(&all, 1);
    assert_eq!(alone.len(), all.len());
    assert!(alone.iter().zip(&all).all(|(row, number)| row.job == *number && row.belongs_to(&plan())), "in order");
    assert_eq!(rows(&all, 2), alone);
    assert_eq!(rows(&all, 4), alone);
    let third: Vec<u64> = all.iter().copied().filter(|number| number % 3 == 1).collect();
    assert!(rows(&third, 2).iter().all(|row| alone[row.job as usize] == *row));
}

#[test]
fn an_error_of_the_taker_ends_the_work() {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().expect("threads");
    let mut taken = 0;
    let all: Vec<u64> = (0..plan().jobs()).collect();
    let result = run_jobs(&plan(), &sources(), &policies(), &all, &pool, |_| {
        taken += 1;
        if taken == 3 { Err("full") } else { Ok(()) }
    });
    assert_eq!((result, taken), (Err("full"), 3));
}

#[test]
fn a_row_is_read_back_from_its_line() {
    for row in rows(&[0, 1, 2, 5], 1) {
        let line = serde_json::to_string(&row).expect("JSON");
        assert_eq!(serde_json::from_str::<Row>(&line).expect("a row"), row, "{line}");
    }
}

#[test]
fn the_smallest_memory_and_the_given_ones_agree() {
    for row in rows(&(0..plan().jobs()).collect::<Vec<_>>(), 2) {
        let bytes = row.capacity_bytes;
        match row.capacity {
            Capacity::Smallest => assert!(row.fits && row.runs > 1 && bytes >= Some(row.load_bytes), "{row:?}"),
            Capacity::Plenty => assert!(row.fits && bytes.is_none(), "{row:?}"),
            _ => {
                assert_eq!(bytes.map(|bytes| bytes.div_ceil(2 * MIB)), Some((row.load_bytes * 11).div_ceil(20 * MIB)), "{row:?}")
            }
        }
    }
}

#[test]
fn capacities_are_written_as_they_are_read() {
    for (text, shown) in [("1", "1.0"), ("1.05", "1.05"), ("1.050", "1.05"), ("80B", "80B"), ("plenty", "plenty"), ("0.5", "0.5")]
    {
        let capacity: Capacity = text.parse().expect("a capacity");
        assert_eq!(capacity.to_string(), shown);
        assert_eq!(shown.parse(), Ok(capacity));
    }
    for text in ["", "0", "0.0", "0B", "-1", "1e3", "1001", "1.0000001", "most", "B", "99999", ".5"] {
        assert!(text.parse::<Capacity>().is_err(), "{text:?}");
    }
    assert_eq!("1.1".parse::<Share>().expect("a factor").of(10), 11);
    assert_eq!("1.1".parse::<Share>().expect("a factor").of(11), 13, "rounded up");
}

/// Rows with these smallest memories and a load of 100: one seed, two policies.
fn written(plan: &Plan, values: &[[Option<u64>; 2]]) -> Vec<Row> {
    (0..plan.jobs())
        .map(|number| {
            let job = plan.job(number).expect("a job");
            let bytes = values[job.workload][job.policy];
            let row = Row::empty(plan, number).expect("a row");
            Row { load_bytes: 100, capacity_bytes: bytes, fits: bytes.is_some(), driver_ns: 500, ..row }
        })
        .collect()
}

#[test]
fn policies_are_compared_workload_by_workload() {
    let mut plan = plan();
    plan.workloads.iter_mut().for_each(|workload| workload.seeds = 1);
    plan.capacities.truncate(1);
    let summary =
        Summary::of(&plan, &written(&plan, &[[Some(110), Some(100)], [Some(120), Some(110)], [Some(150), Some(150)]]), 0);
    let [base, other] = &summary.policies[..] else { panic!("two policies") };
    // By hand: (1.1 x 1.2 x 1.5)^(1/3) and (1.0 x 1.1 x 1.5)^(1/3).
    let mean = |policy: &PolicySummary| policy.ratio.expect("a ratio").mean;
    assert!((mean(base) - 1.98_f64.cbrt()).abs() < 1e-12 && (mean(other) - 1.65_f64.cbrt()).abs() < 1e-12);
    let versus = other.versus.expect("a comparison");
    assert_eq!((versus.counts, base.versus), ([2, 1, 0], None));
    assert!((versus.ratio.expect("a ratio").mean - (1.65_f64 / 1.98).cbrt()).abs() < 1e-12);
    assert!(!summary.compares_seeds(), "nothing is tested over workloads");
    // By hand: ln 1.5 of ln 1.98, and of ln 1.65; the third workload's.
    let share = |policy: &PolicySummary| policy.without_outlier.and_then(|without| without.share).expect("a share");
    assert_eq!(summary.outlier, Some(2));
    assert!((share(base) - 1.5_f64.ln() / 1.98_f64.ln()).abs() < 1e-12);
    assert!((other.without_outlier.and_then(|without| without.mean).expect("a mean") - 1.1_f64.sqrt()).abs() < 1e-12);
    assert_eq!((mean(base), base.ratio.map(|level| (level.low, level.high))), (mean(base), Some((1.1, 1.5))));
    assert_eq!(other.driver_ns[0].map(|level| level.count), Some(3));
    assert!((other.driver_ns[0].expect("a cost").mean - 500.0).abs() < 1e-9);
}

#[test]
fn what_fails_with_more_memory_is_counted() {
    let mut plan = plan();
    plan.workloads.iter_mut().for_each(|workload| workload.seeds = 1);
    let mut rows = written(&plan, &[[Some(110), Some(110)], [Some(120), Some(110)], [Some(150), None]]);
    let searched = |workload: usize, policy: usize| (workload * 2 + policy) * 3;
    rows[searched(0, 0)].fails_above_bytes = Some(115);
    let given = |fits, bytes| Row { fits, capacity_bytes: Some(bytes), ..rows[searched(1, 0) + 2].clone() };
    let (more, less) = (given(false, 130), given(false, 100));
    rows[searched(1, 0) + 2] = more;
    rows[searched(2, 0) + 2] = less;
    rows[searched(2, 0) + 2].job = (searched(2, 0) + 2) as u64;
    let summary = Summary::of(&plan, &rows, 0);
    let counts = summary.cells.iter().map(|cells| cells.iter().map(|cell| cell.not_monotone).collect::<Vec<_>>());
    assert_eq!(counts.collect::<Vec<_>>(), [[1, 1, 0], [0, 0, 0]], "searched and given; failing with less memory does not count");
    assert_eq!(summary.not_monotone(), 2);
}

#[test]
fn what_fits_nowhere_counts_as_worse_and_in_no_mean() {
    let mut plan = plan();
    plan.workloads.iter_mut().for_each(|workload| workload.seeds = 1);
    plan.capacities.truncate(1);
    let summary = Summary::of(&plan, &written(&plan, &[[Some(110), None], [Some(120), Some(110)], [None, None]]), 0);
    let [base, other] = &summary.policies[..] else { panic!("two policies") };
    assert_eq!((base.ratio.map(|level| level.count), other.ratio.map(|level| level.count)), (Some(2), Some(1)));
    let versus = other.versus.expect("a comparison");
    assert_eq!((versus.counts, versus.ratio.map(|level| level.count)), ([1, 1, 1], Some(1)));
    assert_eq!(other.fits, [1.0 / 3.0]);
}

/// Rows of one workload with six seeds, two policies and the smallest memory only.
fn seeded(values: [[Option<u64>; 2]; 6]) -> Summary {
    let mut plan = plan();
    plan.capacities.truncate(1);
    plan.workloads.truncate(1);
    plan.workloads[0].seeds = 6;
    let rows = (0..plan.jobs()).map(|number| {
        let job = plan.job(number).expect("a job");
        let bytes = values[job.seed as usize - 1][job.policy];
        Row { load_bytes: 100, capacity_bytes: bytes, fits: bytes.is_some(), ..Row::empty(&plan, number).expect("a row") }
    });
    Summary::of(&plan, &rows.collect::<Vec<_>>(), 0)
}

#[test]
fn policies_are_tested_over_the_seeds_of_a_workload() {
    let summary = seeded([110, 120, 130, 140, 150, 160].map(|bytes| [Some(bytes), Some(100)]));
    let versus = summary.cells[1][0].versus.expect("a comparison");
    assert_eq!((versus.counts, versus.test.effect, summary.cells[0][0].versus), ([6, 0, 0], -1.0, None));
    assert!((versus.test.p - 2.0 / 64.0).abs() < 1e-12 && versus.corrected_p.to_bits() == versus.test.p.to_bits());
    let ratio = versus.ratio.expect("a ratio");
    assert!(ratio.low < ratio.mean && ratio.mean < ratio.high && ratio.high < 1.0, "{ratio:?}");
    assert!(summary.compares_seeds());
    let failing = seeded([110, 120, 130, 140, 150, 160].map(|bytes| [Some(bytes), (bytes > 110).then_some(100)]));
    let versus = failing.cells[1][0].versus.expect("a comparison");
    assert_eq!((versus.counts, versus.ratio.map(|level| level.count)), ([5, 0, 1], Some(5)), "what fits nowhere is worse");
    assert_eq!(failing.cells[1][0].ratio, None);
}

#[test]
fn the_course_of_a_run_is_by_step_and_half() {
    let mut plan = plan();
    plan.workloads.iter_mut().for_each(|workload| workload.seeds = 1);
    plan.capacities.truncate(1);
    let with_cost = |row: Row, (steps, work_ns): (u64, u64)| Row {
        steps,
        work_ns,
        later_steps: steps / 2,
        driver_calls: 40,
        driver_ns: 1000,
        later_driver_calls: 10,
        later_driver_ns: 0,
        waited_ns: 70,
        waiting_calls: 3,
        ..row
    };
    let rows: Vec<Row> = written(&plan, &[[Some(110); 2], [Some(120); 2], [Some(150), None]])
        .into_iter()
        .zip([(4, 900), (4, 900), (1, 900), (1, 900), (0, 0), (0, 0)])
        .map(|(row, steps)| with_cost(row, steps))
        .collect();
    let summary = Summary::of(&plan, &rows, 0);
    let mean = |level: Option<Level>| level.map(|level| level.mean);
    let [four, one, none] = [0, 1, 2].map(|workload| summary.cells[0][workload].courses[0].expect("it fits"));
    assert_eq!((mean(four.calls_per_step), mean(four.ns_per_step)), (Some(10.0), Some(250.0)));
    assert_eq!(
        (mean(four.later_calls_per_step), mean(four.later_ns_per_step), mean(four.later_share)),
        (Some(5.0), Some(0.0), Some(0.0))
    );
    assert_eq!((mean(one.calls_per_step), one.later_calls_per_step), (Some(40.0), None), "one step has no halves");
    assert_eq!(
        (none.calls_per_step, none.waited_ns, none.waiting_calls.mean),
        (None, None, 3.0),
        "no steps, and no work to wait for"
    );
    assert_eq!(mean(four.waited_ns), Some(70.0));
    let all = summary.policies[0].courses[0];
    assert!((mean(all.calls_per_step).expect("a mean") - 20.0).abs() < 1e-9, "the geometric mean of 10 and 40");
    let counts =
        [all.calls_per_step, all.later_share, all.waited_ns, all.waiting_calls].map(|level| level.map(|level| level.count));
    assert_eq!(counts, [Some(2), Some(3), Some(2), Some(3)]);
    assert_eq!(summary.cells[1][2].courses[0], None, "it does not fit");
}
