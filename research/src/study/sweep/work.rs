//! Doing jobs on several threads, with the rows in the order of the jobs.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, mpsc};

use parkade_policies::Named;

use super::plan::Plan;
use super::row::{Program, Row};
use crate::workload::Workload;

/// Where a workload comes from.
pub struct Source {
    /// Its name.
    pub name: String,
    /// One sentence: what it is.
    pub says: String,
    /// Whether another seed makes another workload.
    pub is_seeded: bool,
    /// Makes it from a seed.
    pub make: Box<dyn Fn(u64) -> Workload + Send + Sync>,
}

/// Does jobs of a plan, in the given order, as many at once as the pool has threads. `sources` and `policies` are the plan's, in its
/// order. `take` gets each row in the order of the jobs, and ends everything by an error.
///
/// Jobs are begun in order, so rows that wait for an earlier one are few.
///
/// # Errors
/// What `take` says.
pub fn work<E>(
    plan: &Plan,
    sources: &[Source],
    policies: &[&Named],
    jobs: &[u64],
    pool: &rayon::ThreadPool,
    mut take: impl FnMut(Row) -> Result<(), E>,
) -> Result<(), E> {
    let threads = pool.current_num_threads();
    let programs = Programs { sources, kept: Mutex::new(VecDeque::new()), most: threads + 1 };
    let (next, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let (sender, receiver) = mpsc::channel();
    pool.in_place_scope(|scope| {
        for _ in 0..threads {
            let (sender, programs, next, is_over) = (sender.clone(), &programs, &next, &is_over);
            scope.spawn(move |_| {
                while !is_over.load(Ordering::Relaxed) {
                    let place = next.fetch_add(1, Ordering::Relaxed);
                    let Some(&number) = jobs.get(place) else { return };
                    let row = row(plan, number, programs, policies);
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

/// Hands the rows over as soon as all before them are there.
fn in_order<E>(receiver: &mpsc::Receiver<(usize, Option<Row>)>, take: &mut impl FnMut(Row) -> Result<(), E>) -> Result<(), E> {
    let (mut early, mut due) = (BTreeMap::new(), 0);
    while let Ok((place, row)) = receiver.recv() {
        early.insert(place, row);
        while let Some(row) = early.remove(&due) {
            due += 1;
            // None is a job that the plan does not have: the caller asked for it.
            row.map_or(Ok(()), &mut *take)?;
        }
    }
    Ok(())
}

fn row(plan: &Plan, number: u64, programs: &Programs<'_>, policies: &[&Named]) -> Option<Row> {
    let job = plan.job(number)?;
    let source = programs.sources.get(job.workload)?;
    let program = programs.place(job.workload, job.seed);
    let program = program.get_or_init(|| Program::new((source.make)(job.seed)));
    Row::of(plan, number, program, policies.get(job.policy)?)
}

/// A workload and a seed.
type Key = (usize, u64);

/// The programs that are being run: jobs of one program follow one another, so few are kept.
struct Programs<'a> {
    sources: &'a [Source],
    kept: Mutex<VecDeque<(Key, Arc<OnceLock<Program>>)>>,
    most: usize,
}

impl Programs<'_> {
    /// Where the program of a workload and a seed is, or is to be made by whoever comes first.
    fn place(&self, workload: usize, seed: u64) -> Arc<OnceLock<Program>> {
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
