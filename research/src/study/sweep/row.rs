//! A row contains the numbers for one job; [`run_jobs`] runs jobs on several threads and returns the rows in job order.
//!
//! A workload is prepared once for all its jobs: its load and its hash are computed.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, mpsc};

use parkade_policies::Named;
use serde::{Deserialize, Serialize};

use super::build::build_of;
use super::{Capacity, Plan};
use crate::study::capacity::{LOAD_UNIT_BYTES, smallest_capacity};
use crate::study::run::{Addresses, Ending, Outcome, PLENTY_BYTES, RunOptions, make_for, run};
use crate::workload::{Event, Workload};

/// The maximum length of a problem's description in a row, in characters.
const LONGEST_PROBLEM: usize = 200;

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
    /// The capacity, as stated in the plan.
    pub capacity: Capacity,
    /// The load: the most bytes live at once, with each request rounded up to 512 bytes.
    pub load_bytes: u64,
    /// The load with pools: the same, but with each private pool counted for the most bytes that have lived in it, until it
    /// is dropped.
    pub load_with_pools_bytes: u64,
    /// The number of events in the workload.
    pub events: u64,
    /// The number of steps in the workload; 0 if they are not known.
    pub steps: u64,
    /// The work that the workload puts on the device, in nanoseconds; 0 if this is not stated, in which case no call can
    /// wait.
    pub work_ns: u64,
    /// [`PreparedWorkload::hash`], which identifies the workload.
    pub hash: String,
    /// The device's memory, found or specified. Absent with plenty of memory, and if the workload does not fit in any amount.
    pub capacity_bytes: Option<u64>,
    /// The largest capacity above the result that was tried and was not enough, if the memory was searched for and there is
    /// one.
    pub fails_above_bytes: Option<u64>,
    /// Whether every request was served.
    pub fits: bool,
    /// The reason why the workload did not fit.
    pub problem: Option<String>,
    /// Whether the problem is a fault rather than a lack of memory: an answer that the policy must not give, or an error of the
    /// device. The numbers then say nothing about memory.
    #[serde(default)]
    pub is_fault: bool,
    /// The event that failed.
    pub failed_at_event: Option<u64>,
    /// The peak of bytes taken from the device.
    pub peak_reserved_bytes: u64,
    /// The peak of bytes in allocated blocks.
    pub peak_allocated_bytes: u64,
    /// The number of times that the allocator asked the device again after releasing the entire cache.
    pub retries: u64,
    /// The number of driver calls.
    pub driver_calls: u64,
    /// The cost of the driver calls, in nanoseconds, without waiting.
    pub driver_ns: u64,
    /// The time that driver calls waited for work on the device, in nanoseconds.
    pub waited_ns: u64,
    /// The number of driver calls that return only when work on the device is done.
    pub waiting_calls: u64,
    /// The number of steps in the later half of the workload; 0 if it has fewer than two.
    pub later_steps: u64,
    /// The number of driver calls in the later half.
    pub later_driver_calls: u64,
    /// Their cost in nanoseconds, without waiting.
    pub later_driver_ns: u64,
    /// The time that they waited, in nanoseconds.
    pub later_waited_ns: u64,
    /// The number of runs that the job took: more than one if the memory was searched for.
    pub runs: u32,
    /// The build that created the row ([`build_of`]); files of rows call this column `program`.
    #[serde(rename = "program")]
    pub build: String,
}

impl Row {
    /// Runs the job with this number, with the workload and the policy that the plan names for it. Returns `None` if the plan
    /// does not contain the job.
    #[must_use]
    pub fn of(plan: &Plan, number: u64, workload: &PreparedWorkload, policy: &Named) -> Option<Row> {
        let job = plan.job(number)?;
        let capacity = *plan.capacities.get(job.capacity)?;
        let options = RunOptions {
            addresses: Addresses::named(&plan.addresses)?,
            preallocated_bytes: plan.preallocate.map_or(0, |share| share.of(workload.load_bytes)),
            precision: plan.precision.parts(),
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
        Some(Row { capacity_bytes, fails_above_bytes, runs, build: build_of(policy.entry.name), ..row })
    }

    /// Returns the row of a job that has not been run.
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
            is_fault: false,
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
            build: String::new(),
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
        self.is_fault = matches!(outcome.ending, Ending::Fault(_));
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

    /// Returns whether the row was created from this workload, judging by the hash, the loads, and the numbers of events and
    /// steps.
    #[must_use]
    pub fn is_of(&self, workload: &PreparedWorkload) -> bool {
        let Workload { events, steps, .. } = &workload.workload;
        self.hash == workload.hash
            && (self.load_bytes, self.load_with_pools_bytes) == (workload.load_bytes, workload.load_with_pools_bytes)
            && (self.events, self.steps) == (events.len() as u64, steps.len() as u64)
    }

    /// Returns whether the workload, seed, policy and capacity match the plan's job with this number.
    #[must_use]
    pub fn belongs_to(&self, plan: &Plan) -> bool {
        Row::empty(plan, self.job).is_some_and(|own| {
            (own.workload, own.seed, own.policy, own.capacity)
                == (self.workload.clone(), self.seed, self.policy.clone(), self.capacity)
        })
    }
}

/// A workload, and the facts that are known before it runs.
#[derive(Clone, Debug)]
pub struct PreparedWorkload {
    /// The workload.
    pub workload: Workload,
    /// The load: the most bytes live at once, with each request rounded up to 512 bytes.
    pub load_bytes: u64,
    /// The load with pools ([`Workload::load_with_pools_bytes`]), rounded in the same way.
    pub load_with_pools_bytes: u64,
    /// [`Workload::work_ns`].
    pub work_ns: u64,
    /// A 64-bit hash of the events, in hexadecimal.
    pub hash: String,
}

impl PreparedWorkload {
    /// Measures and hashes a workload.
    #[must_use]
    pub fn new(workload: Workload) -> PreparedWorkload {
        let load_bytes = workload.load_bytes(LOAD_UNIT_BYTES);
        let hash = format!("{:016x}", workload.events.iter().fold(0xcbf2_9ce4_8422_2325, mix));
        let load_with_pools_bytes = workload.load_with_pools_bytes(LOAD_UNIT_BYTES);
        PreparedWorkload { load_with_pools_bytes, work_ns: workload.work_ns(), workload, load_bytes, hash }
    }
}

/// Mixes an event into a hash: FNV-1a over words of 64 bits, with a shift that mixes the high bits into the low ones.
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

/// The source of a workload.
pub struct Source {
    /// The workload's name.
    pub name: String,
    /// One sentence that describes the workload.
    pub says: String,
    /// Whether different seeds produce different workloads.
    pub is_seeded: bool,
    /// Creates the workload from a seed.
    pub make: Box<dyn Fn(u64) -> Workload + Send + Sync>,
}

/// Runs jobs from a plan, as many at a time as the pool has threads. `sources` and `policies` are the plan's, in its order.
/// `take` receives the rows in the order of `jobs`; an error from it stops all jobs. Jobs are started in order, so few rows
/// have to wait for an earlier one.
///
/// # Errors
/// Returns any error from `take`.
pub fn run_jobs<E>(
    plan: &Plan,
    sources: &[Source],
    policies: &[Named],
    jobs: &[u64],
    pool: &rayon::ThreadPool,
    mut take: impl FnMut(Row) -> Result<(), E>,
) -> Result<(), E> {
    let threads = pool.current_num_threads();
    let workloads = Workloads { sources, kept: Mutex::new(VecDeque::new()), most: threads + 1 };
    let (next, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let (sender, receiver) = mpsc::channel();
    pool.in_place_scope(|scope| {
        for _ in 0..threads {
            let (sender, workloads, next, is_over) = (sender.clone(), &workloads, &next, &is_over);
            scope.spawn(move |_| {
                while !is_over.load(Ordering::Relaxed) {
                    let place = next.fetch_add(1, Ordering::Relaxed);
                    let Some(&number) = jobs.get(place) else { return };
                    let row = row(plan, number, workloads, policies);
                    if sender.send((place, row)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        let result = in_order(&receiver, &mut take);
        is_over.store(true, Ordering::Relaxed);
        result
    })
}

/// Passes each row on as soon as all earlier rows are done.
fn in_order<E>(receiver: &mpsc::Receiver<(usize, Option<Row>)>, take: &mut impl FnMut(Row) -> Result<(), E>) -> Result<(), E> {
    let (mut early, mut due) = (BTreeMap::new(), 0);
    while let Ok((place, row)) = receiver.recv() {
        early.insert(place, row);
        while let Some(row) = early.remove(&due) {
            due += 1;
            // `None` means that the plan does not contain the job.
            row.map_or(Ok(()), &mut *take)?;
        }
    }
    Ok(())
}

fn row(plan: &Plan, number: u64, workloads: &Workloads<'_>, policies: &[Named]) -> Option<Row> {
    let job = plan.job(number)?;
    let source = workloads.sources.get(job.workload)?;
    let place = workloads.place(job.workload, job.seed);
    let workload = place.get_or_init(|| PreparedWorkload::new((source.make)(job.seed)));
    Row::of(plan, number, workload, policies.get(job.policy)?)
}

/// A workload and a seed.
type Key = (usize, u64);

/// The workloads that are being run. Jobs with the same workload are consecutive, so few workloads are kept.
struct Workloads<'a> {
    sources: &'a [Source],
    kept: Mutex<VecDeque<(Key, Arc<OnceLock<PreparedWorkload>>)>>,
    most: usize,
}

impl Workloads<'_> {
    /// Returns the slot of a workload, which the first thread that needs it fills.
    fn place(&self, workload: usize, seed: u64) -> Arc<OnceLock<PreparedWorkload>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, place)) = kept.iter().find(|(key, _)| *key == (workload, seed)) {
            return Arc::clone(place);
        }
        let place = Arc::new(OnceLock::new());
        kept.push_back(((workload, seed), Arc::clone(&place)));
        if kept.len() > self.most {
            kept.pop_front();
        }
        place
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::sweep::tests::{plan, policies};

    const MIB: u64 = 1 << 20;

    /// Buffers are allocated and freed, with sizes that depend on the seed.
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
                    assert_eq!(
                        bytes.map(|bytes| bytes.div_ceil(2 * MIB)),
                        Some((row.load_bytes * 11).div_ceil(20 * MIB)),
                        "{row:?}"
                    )
                }
            }
        }
    }
}
