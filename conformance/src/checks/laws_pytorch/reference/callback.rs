//! Free-memory callbacks of programs: each does one thing when it is called, and notes what it was answered.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use parkade::trace::TraceEntry;
use parkade::units::{Bytes, StreamId};
use parkade::{Allocation, FreeMemoryCallback};

use super::compare::Answer;
use super::play::Tested;
use crate::backend::{AnyDevice, WitnessedDevice};
use crate::ordered::Ordered;
use crate::reference_model::allocator::Deed;

/// What a callback does to the allocator.
#[derive(Debug)]
pub(super) enum Doing {
    Free(Allocation),
    Order(Deed),
}

impl Doing {
    /// The allocation that it would have freed.
    pub(super) fn allocation(self) -> Option<Allocation> {
        match self {
            Doing::Free(allocation) => Some(allocation),
            Doing::Order(_) => None,
        }
    }
}

/// What a callback does, oldest first, each with whether it says that it freed something.
pub(super) type Stock = Arc<Mutex<VecDeque<(Doing, bool)>>>;

/// What callbacks were answered.
pub(super) type Log = Arc<Mutex<Vec<Answer>>>;

/// A callback that does the oldest deed of its stock. Those that it registers take theirs from `spare`.
pub(super) fn callback(
    stock: &Stock,
    log: &Log,
    spare: &Stock,
) -> FreeMemoryCallback<WitnessedDevice<AnyDevice>, Ordered, Vec<TraceEntry>> {
    let (stock, log, spare) = (Arc::clone(stock), Arc::clone(log), Arc::clone(spare));
    Box::new(move |core| {
        let next = stock.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        let Some((doing, says)) = next else { return false };
        let answer = if let Doing::Order(Deed::Register(_)) = doing {
            core.register_free_memory_callback(callback(&spare, &log, &spare));
            Answer::Pool(Ok(()))
        } else {
            perform(core, doing)
        };
        log.lock().unwrap_or_else(PoisonError::into_inner).push(answer);
        says
    })
}

fn perform(core: &mut Tested<AnyDevice>, doing: Doing) -> Answer {
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
