//! One job's numbers.

use parkade_policies::Named;
use serde::{Deserialize, Serialize};

use super::plan::{Capacity, Plan};
use crate::study::capacity::{LOAD_UNIT_BYTES, smallest_capacity};
use crate::study::options::{Addresses, PLENTY_BYTES, RunOptions};
use crate::study::run::{Ending, Outcome, run};
use crate::workload::{Event, Workload};

/// The longest text about a problem that a row keeps, in characters.
const LONGEST_PROBLEM: usize = 200;

/// Which program makes rows: the version, and a hash of the sources and releases that decide their numbers (`build.rs`). Rows of different
/// programs do not compare.
pub const PROGRAM: &str = concat!(env!("CARGO_PKG_VERSION"), "-", env!("PARKADE_SOURCES"));

/// What is known of a workload before it is run.
#[derive(Clone, Debug)]
pub struct Program {
    /// The workload.
    pub workload: Workload,
    /// The most bytes that live at once, each request rounded up to 512 bytes.
    pub load_bytes: u64,
    /// A number of 64 bits that two workloads only share if they have the same events, but for bad luck; in hexadecimal.
    pub hash: String,
}

impl Program {
    /// A workload, looked at.
    #[must_use]
    pub fn new(workload: Workload) -> Program {
        let load_bytes = workload.load_bytes(LOAD_UNIT_BYTES);
        let hash = format!("{:016x}", workload.events.iter().fold(0xcbf2_9ce4_8422_2325, mix));
        Program { workload, load_bytes, hash }
    }
}

/// FNV-1a, in words of 64 bits.
fn mix(hash: u64, event: &Event) -> u64 {
    let [kind, one, two, three] = match *event {
        Event::Allocate { buffer, bytes, stream } => [1, u64::from(buffer), bytes, u64::from(stream)],
        Event::Free { buffer } => [2, u64::from(buffer), 0, 0],
        Event::Use { buffer, stream } => [3, u64::from(buffer), u64::from(stream), 0],
        Event::Launch { stream, us } => [4, u64::from(stream), u64::from(us), 0],
        Event::Synchronize { stream } => [5, u64::from(stream), 0, 0],
        Event::EmptyCache => [6, 0, 0, 0],
        Event::BeginPool { pool } => [7, u64::from(pool), 0, 0],
        Event::EndPool { pool } => [8, u64::from(pool), 0, 0],
        Event::DropPool { pool } => [9, u64::from(pool), 0, 0],
    };
    [kind, one, two, three].iter().fold(hash, |hash, word| {
        let mixed = (hash ^ word).wrapping_mul(0x0100_0000_01b3);
        mixed ^ (mixed >> 32)
    })
}

/// What came of a job.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// The job's number in the plan.
    pub job: u64,
    /// The workload.
    pub workload: String,
    /// The seed that it was made from.
    pub seed: u64,
    /// The policy.
    pub policy: String,
    /// The capacity, as the plan has it.
    pub capacity: Capacity,
    /// The most bytes that live at once, each request rounded up to 512 bytes.
    pub load_bytes: u64,
    /// The workload's events.
    pub events: u64,
    /// What tells workloads apart.
    pub hash: String,
    /// The device's memory: what was searched, or given. Absent with plenty, and where it does not fit in any.
    pub capacity_bytes: Option<u64>,
    /// Where memory was searched: the most above what was found that was tried and does not suffice, if any.
    pub fails_above_bytes: Option<u64>,
    /// Every request was served.
    pub fits: bool,
    /// Why not.
    pub problem: Option<String>,
    /// The event that failed.
    pub failed_at_event: Option<u64>,
    /// The most bytes that the allocator had taken from the device at once.
    pub peak_reserved_bytes: u64,
    /// The most bytes of blocks that were handed out at once.
    pub peak_allocated_bytes: u64,
    /// How often the device was asked again after everything cached had been given back.
    pub retries: u64,
    /// Calls of the driver.
    pub driver_calls: u64,
    /// What they cost, waiting not included.
    pub driver_ns: u64,
    /// How long they waited for work on the device.
    pub waited_ns: u64,
    /// How many runs the job took: more than one where memory was searched.
    pub runs: u32,
    /// [`PROGRAM`] of the build that made it.
    pub program: String,
}

impl Row {
    /// Does a job: this number of this plan, with the program and the policy that it names. `None` if the plan has no such job.
    #[must_use]
    pub fn of(plan: &Plan, number: u64, program: &Program, policy: &Named) -> Option<Row> {
        let job = plan.job(number)?;
        let capacity = *plan.capacities.get(job.capacity)?;
        let options = RunOptions {
            addresses: Addresses::named(&plan.addresses)?,
            preallocated_bytes: plan.preallocate.map_or(0, |share| share.of(program.load_bytes)),
            ..RunOptions::plenty()
        };
        let (capacity_bytes, outcome, fails_above_bytes, runs) = match capacity {
            Capacity::Smallest => {
                let given: Vec<u64> = plan.capacities.iter().filter_map(|capacity| capacity.bytes(program.load_bytes)).collect();
                match smallest_capacity(&program.workload, &policy.make, &options, &given) {
                    Ok(found) => (Some(found.capacity_bytes), found.outcome, found.fails_above_bytes, found.runs),
                    Err(outcome) => (None, outcome, None, 1),
                }
            }
            capacity => {
                let bytes = capacity.bytes(program.load_bytes);
                let options = options.with_capacity(bytes.unwrap_or(PLENTY_BYTES));
                (bytes, run(&program.workload, (policy.make)(), &options), None, 1)
            }
        };
        let mut row = Row::empty(plan, number)?;
        row.take(program, &outcome);
        Some(Row { capacity_bytes, fails_above_bytes, runs, ..row })
    }

    /// The row of a job of which nothing is known yet but what it is.
    pub(super) fn empty(plan: &Plan, number: u64) -> Option<Row> {
        let job = plan.job(number)?;
        Some(Row {
            job: number,
            workload: plan.workloads.get(job.workload)?.name.clone(),
            seed: job.seed,
            policy: plan.policies.get(job.policy)?.clone(),
            capacity: *plan.capacities.get(job.capacity)?,
            load_bytes: 0,
            events: 0,
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
            runs: 0,
            program: PROGRAM.to_owned(),
        })
    }

    fn take(&mut self, program: &Program, outcome: &Outcome) {
        self.load_bytes = program.load_bytes;
        self.events = program.workload.events.len() as u64;
        self.hash.clone_from(&program.hash);
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
    }

    /// Whether it was made from this program's workload, by hash, load and events.
    #[must_use]
    pub fn is_of(&self, program: &Program) -> bool {
        (&self.hash, self.load_bytes, self.events) == (&program.hash, program.load_bytes, program.workload.events.len() as u64)
    }

    /// Whether this is a row of the job of its number: workload, seed, policy and capacity are those of the plan.
    #[must_use]
    pub fn belongs_to(&self, plan: &Plan) -> bool {
        Row::empty(plan, self.job).is_some_and(|own| {
            (own.workload, own.seed, own.policy, own.capacity)
                == (self.workload.clone(), self.seed, self.policy.clone(), self.capacity)
        })
    }
}
