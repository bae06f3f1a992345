//! A row: the numbers of one job.

use parkade_policies::Named;
use serde::{Deserialize, Serialize};

use super::plan::{Capacity, Plan};
use super::prepared::PreparedWorkload;
use crate::study::capacity::smallest_capacity;
use crate::study::first_step::make_for;
use crate::study::options::{Addresses, PLENTY_BYTES, RunOptions};
use crate::study::run::{Ending, Outcome, run};

/// The longest description of a problem that a row keeps, in characters.
const LONGEST_PROBLEM: usize = 200;

/// The build that makes rows: the version, and a hash of the sources and releases that decide a row's numbers
/// (`build.rs`). Rows of different builds cannot be compared.
pub const BUILD: &str = concat!(env!("CARGO_PKG_VERSION"), "-", env!("PARKADE_SOURCES"));

/// The outcome of a job.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// The job's number in the plan.
    pub job: u64,
    /// The workload's name.
    pub workload: String,
    /// The seed of the workload.
    pub seed: u64,
    /// The policy's name.
    pub policy: String,
    /// The capacity, as in the plan.
    pub capacity: Capacity,
    /// The load: the most bytes live at once, each request rounded up to 512 bytes.
    pub load_bytes: u64,
    /// The load with pools: the same, with each private pool counted for the most bytes that have lived in it, until it
    /// is dropped.
    pub load_with_pools_bytes: u64,
    /// The number of the workload's events.
    pub events: u64,
    /// The number of its steps; 0 if they are not known.
    pub steps: u64,
    /// How much work it gives the device, in nanoseconds; 0 if it does not say, and then no call can wait.
    pub work_ns: u64,
    /// [`PreparedWorkload::hash`], which tells workloads apart.
    pub hash: String,
    /// The device's memory, found or given. Absent with plenty of memory, and if the workload fits in none.
    pub capacity_bytes: Option<u64>,
    /// If memory was searched: the largest capacity above the result that was tried and was not enough, if any.
    pub fails_above_bytes: Option<u64>,
    /// Every request was served.
    pub fits: bool,
    /// Why it did not fit.
    pub problem: Option<String>,
    /// The event that failed.
    pub failed_at_event: Option<u64>,
    /// The most bytes taken from the device at once.
    pub peak_reserved_bytes: u64,
    /// The most bytes of blocks allocated at once.
    pub peak_allocated_bytes: u64,
    /// How many times the device was asked again after the whole cache had been released.
    pub retries: u64,
    /// The number of driver calls.
    pub driver_calls: u64,
    /// The cost of the driver calls in nanoseconds, without waiting.
    pub driver_ns: u64,
    /// How long driver calls waited for work on the device, in nanoseconds.
    pub waited_ns: u64,
    /// The number of driver calls that return only when work on the device is done.
    pub waiting_calls: u64,
    /// The number of steps in the later half of the workload; 0 if it has fewer than two.
    pub later_steps: u64,
    /// The number of driver calls in the later half.
    pub later_driver_calls: u64,
    /// Their cost in nanoseconds, without waiting.
    pub later_driver_ns: u64,
    /// How long they waited, in nanoseconds.
    pub later_waited_ns: u64,
    /// The number of runs that the job took: more than one if memory was searched.
    pub runs: u32,
    /// [`BUILD`] of the build that made the row; files of rows call it `program`.
    #[serde(rename = "program")]
    pub build: String,
}

impl Row {
    /// Does the job of this number, with the workload and the policy that the plan names for it. `None` if the
    /// plan has no such job.
    #[must_use]
    pub fn of(plan: &Plan, number: u64, workload: &PreparedWorkload, policy: &Named) -> Option<Row> {
        let job = plan.job(number)?;
        let capacity = *plan.capacities.get(job.capacity)?;
        let options = RunOptions {
            addresses: Addresses::named(&plan.addresses)?,
            preallocated_bytes: plan.preallocate.map_or(0, |share| share.of(workload.load_bytes)),
            ..RunOptions::plenty()
        };
        let make = make_for(policy, &workload.workload);
        let (capacity_bytes, outcome, fails_above_bytes, runs) = match capacity {
            Capacity::Smallest => {
                let given: Vec<u64> = plan.capacities.iter().filter_map(|capacity| capacity.bytes(workload.load_bytes)).collect();
                match smallest_capacity(&workload.workload, &make, &options, &given) {
                    Ok(found) => (Some(found.capacity_bytes), found.outcome, found.fails_above_bytes, found.runs),
                    Err(outcome) => (None, outcome, None, 1),
                }
            }
            capacity => {
                let bytes = capacity.bytes(workload.load_bytes);
                let options = options.with_capacity(bytes.unwrap_or(PLENTY_BYTES));
                (bytes, run(&workload.workload, make(), &options), None, 1)
            }
        };
        let mut row = Row::empty(plan, number)?;
        row.take(workload, &outcome);
        Some(Row { capacity_bytes, fails_above_bytes, runs, ..row })
    }

    /// The row of a job that has not been done.
    pub(super) fn empty(plan: &Plan, number: u64) -> Option<Row> {
        let job = plan.job(number)?;
        Some(Row {
            job: number,
            workload: plan.workloads.get(job.workload)?.name.clone(),
            seed: job.seed,
            policy: plan.policies.get(job.policy)?.clone(),
            capacity: *plan.capacities.get(job.capacity)?,
            load_bytes: 0,
            load_with_pools_bytes: 0,
            events: 0,
            steps: 0,
            work_ns: 0,
            hash: String::new(),
            capacity_bytes: None,
            fails_above_bytes: None,
            fits: false,
            problem: None,
            failed_at_event: None,
            peak_reserved_bytes: 0,
            peak_allocated_bytes: 0,
            retries: 0,
            driver_calls: 0,
            driver_ns: 0,
            waited_ns: 0,
            waiting_calls: 0,
            later_steps: 0,
            later_driver_calls: 0,
            later_driver_ns: 0,
            later_waited_ns: 0,
            runs: 0,
            build: BUILD.to_owned(),
        })
    }

    fn take(&mut self, workload: &PreparedWorkload, outcome: &Outcome) {
        self.load_bytes = workload.load_bytes;
        self.load_with_pools_bytes = workload.load_with_pools_bytes;
        self.events = workload.workload.events.len() as u64;
        self.steps = workload.workload.steps.len() as u64;
        self.work_ns = workload.work_ns;
        self.hash.clone_from(&workload.hash);
        self.fits = outcome.fits();
        self.problem = match &outcome.ending {
            Ending::Fits => None,
            Ending::OutOfMemory => Some("out of memory".to_owned()),
            Ending::Fault(fault) => Some(fault.chars().take(LONGEST_PROBLEM).collect()),
        };
        self.failed_at_event = outcome.failed_at_event.map(|event| event as u64);
        self.peak_reserved_bytes = outcome.peak_reserved_bytes;
        self.peak_allocated_bytes = outcome.peak_allocated_bytes;
        self.retries = outcome.retries;
        self.driver_calls = outcome.driver_calls;
        self.driver_ns = outcome.driver_ns;
        self.waited_ns = outcome.waited_ns;
        self.waiting_calls = outcome.waiting_calls;
        self.later_steps = workload.workload.later_steps() as u64;
        self.later_driver_calls = outcome.later.calls;
        self.later_driver_ns = outcome.later.ns;
        self.later_waited_ns = outcome.later.waited_ns;
    }

    /// Whether the row was made from this workload, judged by hash, loads, and numbers of events and steps.
    #[must_use]
    pub fn is_of(&self, workload: &PreparedWorkload) -> bool {
        let crate::workload::Workload { events, steps, .. } = &workload.workload;
        self.hash == workload.hash
            && (self.load_bytes, self.load_with_pools_bytes) == (workload.load_bytes, workload.load_with_pools_bytes)
            && (self.events, self.steps) == (events.len() as u64, steps.len() as u64)
    }

    /// Whether workload, seed, policy and capacity are those of the plan's job of this number.
    #[must_use]
    pub fn belongs_to(&self, plan: &Plan) -> bool {
        Row::empty(plan, self.job).is_some_and(|own| {
            (own.workload, own.seed, own.policy, own.capacity)
                == (self.workload.clone(), self.seed, self.policy.clone(), self.capacity)
        })
    }
}
