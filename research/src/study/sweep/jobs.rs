//! Does jobs on several threads, with the rows in the order of the jobs.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, mpsc};

use parkade_policies::Named;

use super::plan::Plan;
use super::prepared::PreparedWorkload;
use super::row::Row;
use crate::workload::Workload;

/// The source of a workload.
pub struct Source {
    /// The workload's name.
    pub name: String,
    /// One sentence: what the workload is.
    pub says: String,
    /// Whether different seeds make different workloads.
    pub is_seeded: bool,
    /// Makes the workload from a seed.
    pub make: Box<dyn Fn(u64) -> Workload + Send + Sync>,
}

/// Does jobs of a plan, as many at a time as the pool has threads. `sources` and `policies` are the plan's, in its
/// order. `take` gets each row in the order of `jobs`; an error from it ends everything. Jobs are started in
/// order, so few rows have to wait for an earlier one.
///
/// # Errors
/// The error of `take`.
pub fn run_jobs<E>(
    plan: &Plan,
    sources: &[Source],
    policies: &[&Named],
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

/// Passes rows on as soon as all earlier ones are done.
fn in_order<E>(receiver: &mpsc::Receiver<(usize, Option<Row>)>, take: &mut impl FnMut(Row) -> Result<(), E>) -> Result<(), E> {
    let (mut early, mut due) = (BTreeMap::new(), 0);
    while let Ok((place, row)) = receiver.recv() {
        early.insert(place, row);
        while let Some(row) = early.remove(&due) {
            due += 1;
            // `None` is a job that the plan does not have.
            row.map_or(Ok(()), &mut *take)?;
        }
    }
    Ok(())
}

fn row(plan: &Plan, number: u64, workloads: &Workloads<'_>, policies: &[&Named]) -> Option<Row> {
    let job = plan.job(number)?;
    let source = workloads.sources.get(job.workload)?;
    let place = workloads.place(job.workload, job.seed);
    let workload = place.get_or_init(|| PreparedWorkload::new((source.make)(job.seed)));
    Row::of(plan, number, workload, policies.get(job.policy)?)
}

/// A workload and a seed.
type Key = (usize, u64);

/// The workloads that are being run. Jobs with the same workload follow one another, so few are kept.
struct Workloads<'a> {
    sources: &'a [Source],
    kept: Mutex<VecDeque<(Key, Arc<OnceLock<PreparedWorkload>>)>>,
    most: usize,
}

impl Workloads<'_> {
    /// The place of a workload, which the first thread that needs it fills.
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
