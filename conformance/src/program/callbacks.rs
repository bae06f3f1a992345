//! Free-memory callbacks: each performs one action when it is called, and records the answer.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use parkade::trace::TraceEntry;
use parkade::units::{Bytes, StreamId};
use parkade::{Allocation, FreeMemoryCallback};

use super::answer::Answer;
use super::step::CALLBACKS;
use super::watched::{Core, Watched};
use crate::backend::{AnyDevice, WitnessedDevice};
use crate::reference_model::Reference;
use crate::reference_model::allocator::Deed;

/// An action of a callback on the allocator.
#[derive(Debug)]
enum Doing {
    Free(Allocation),
    Order(Deed),
}

impl Doing {
    /// The allocation that the action would have freed.
    fn allocation(self) -> Option<Allocation> {
        match self {
            Doing::Free(allocation) => Some(allocation),
            Doing::Order(_) => None,
        }
    }
}

/// The actions of a callback, oldest first. Each is stored with whether the callback reports that it freed something.
type Stock = Arc<Mutex<VecDeque<(Doing, bool)>>>;

/// The answers that callbacks received.
type Log = Arc<Mutex<Vec<Answer>>>;

/// A callback that performs the oldest action in its stock. Callbacks that it registers take their actions from
/// `spare`.
fn callback(stock: &Stock, log: &Log, spare: &Stock) -> FreeMemoryCallback<WitnessedDevice<AnyDevice>, Watched, Vec<TraceEntry>> {
    let (stock, log, spare) = (Arc::clone(stock), Arc::clone(log), Arc::clone(spare));
    Box::new(move |core| {
        let next = lock(&stock).pop_front();
        let Some((doing, says)) = next else { return false };
        let answer = if let Doing::Order(Deed::Register(_)) = doing {
            core.register_free_memory_callback(callback(&spare, &log, &spare));
            Answer::Pool(Ok(()))
        } else {
            perform(core, doing)
        };
        lock(&log).push(answer);
        says
    })
}

fn perform(core: &mut Core, doing: Doing) -> Answer {
    match doing {
        Doing::Free(allocation) => {
            let address = allocation.address().get();
            Answer::Freed(address, core.free(allocation).err())
        }
        Doing::Order(Deed::Free(_) | Deed::Register(_)) => Answer::Nothing,
        Doing::Order(Deed::Allocate(bytes, stream)) => Answer::allocated(core.allocate(Bytes(bytes), StreamId(stream))),
        Doing::Order(Deed::ReleaseCached) => Answer::done(core.release_cached()),
        Doing::Order(Deed::Create(pool)) => Answer::Pool(core.create_pool(pool)),
        Doing::Order(Deed::Begin(pool, filter)) => Answer::Pool(core.begin_pool(pool, filter)),
        Doing::Order(Deed::End(pool)) => Answer::Pool(core.end_pool(pool)),
        Doing::Order(Deed::Release(pool)) => Answer::Pool(core.release_pool(pool)),
        Doing::Order(Deed::ReleaseCachedPool(pool)) => Answer::done(core.release_cached_pool(pool)),
    }
}

/// The callbacks of an allocator.
#[derive(Default)]
pub(super) struct Callbacks {
    stocks: Vec<Stock>,
    log: Log,
    /// The answers that they received during the step.
    pub(super) heard: Vec<Answer>,
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Callbacks {
    /// Registers all callbacks but the last, which only callbacks register.
    pub(super) fn register(core: &mut Core) -> Callbacks {
        let stocks: Vec<Stock> = (0..CALLBACKS).map(|_| Stock::default()).collect();
        let log = Log::default();
        if let Some((spare, first)) = stocks.split_last() {
            first.iter().for_each(|stock| core.register_free_memory_callback(callback(stock, &log, spare)));
        }
        Callbacks { stocks, log, heard: Vec::new() }
    }

    /// Gives the reference allocator the same callbacks.
    pub(super) fn describe_to(&self, reference: &mut Reference) {
        reference.stocks = vec![VecDeque::new(); self.stocks.len()];
        reference.registered = (0..self.stocks.len().saturating_sub(1)).collect();
    }

    /// Returns whether there is a callback with this number.
    pub(super) fn has(&self, callback: usize) -> bool {
        callback < self.stocks.len()
    }

    /// Gives a callback an allocation, which it frees when called.
    pub(super) fn stock(&self, callback: usize, allocation: Allocation) {
        lock(&self.stocks[callback]).push_back((Doing::Free(allocation), true));
    }

    /// Gives a callback an action, and the value that it reports.
    pub(super) fn command(&self, callback: usize, deed: Deed, says: bool) {
        lock(&self.stocks[callback]).push_back((Doing::Order(deed), says));
    }

    /// Collects the answers that the callbacks received during the step.
    pub(super) fn listen(&mut self) {
        self.heard = std::mem::take(&mut *lock(&self.log));
    }

    /// Returns the allocations that no callback has freed, and forgets all actions.
    pub(super) fn leave(&self) -> Vec<Allocation> {
        self.stocks
            .iter()
            .flat_map(|stock| std::mem::take(&mut *lock(stock)))
            .filter_map(|(doing, _)| doing.allocation())
            .collect()
    }
}
