//! BFC, best fit with coalescing: the allocator of TensorFlow and XLA.
//!
//! From openxla/xla, xla/tsl/framework/bfc_allocator.cc and .h at commit 00df9ee, whose defaults are TensorFlow's and JAX's:
//! - sizes are multiples of 256 bytes; the smallest fitting chunk of all regions serves, of equal ones the lowest address. The
//!   bins that speed up the search do not change its result;
//! - a chunk is split if it has at least twice the bytes that are needed, or at least 128 MiB more;
//! - regions: the first has 2 MiB, each further one twice as much as the previous one. If a request needs more, the size is
//!   doubled until it is large enough, and then not doubled again afterwards. If the device refuses, nine tenths are tried
//!   repeatedly, down to what the request needs;
//! - before it gives up it gives back all entirely free regions and tries to grow once more (TensorFlow's GPU allocator;
//!   `garbage_collection`), and waits for memory that is being freed.
//!
//! With preallocation, as in JAX (JAX's documentation, GPU memory allocation: 75 % of the device's memory; newer versions take
//! other fractions), there is only one region, and nothing is given back.
//!
//! Different here: the original has one set of bins, because one stream orders everything. Here a chunk of another stream is used
//! after that stream's work, as a last choice before the pool grows, and neighbours of different streams stay separate until all
//! work was waited for. The wait comes before regions are given back; the original does it the other way round. Its estimate of
//! whether giving back can help at all is left out: where it says no, the original fails but keeps its regions, and a program
//! that continues can reuse them. A private pool, which the original does not have, grows even if the default pool was
//! preallocated. Spatial partitioning and timestamps are not modelled.

use alloc::vec::Vec;

use crate::ladder;
use parkade::BlockId;
use parkade::policy::{Attempt, Placement, Policy, Relief, Request};
use parkade::units::{Bytes, MIB, PoolClass};
use parkade::{Heap, PoolSlot};

/// The unit of sizes.
const UNIT: u64 = 256;
/// The size of the first region, in bytes.
const FIRST_REGION: u64 = 2 * MIB;
/// A remainder of at least this many bytes is always split off.
const MOST_WASTE: u64 = 128 * MIB;

/// The rules of TensorFlow's and XLA's allocator.
#[derive(Clone, Debug)]
pub struct Bfc {
    preallocates: bool,
    /// The size of the next region, by pool.
    next_region: Vec<(PoolSlot, u64)>,
    step: Step,
}

/// Where on the ladder a request is.
#[derive(Clone, Debug)]
enum Step {
    /// Take a chunk of another stream.
    Others,
    /// Grow; the flag says whether everything has been given back already.
    Grow(bool),
    /// The device refused this many bytes; the flag says whether the next region's size was doubled for them.
    Refused {
        bytes: u64,
        doubled: bool,
        again: bool,
    },
    Borrow,
    Wait,
    Look,
    LookElsewhere,
    Collect,
    GiveUp,
}

impl Bfc {
    /// Regions as needed, each twice as large as the previous one (TensorFlow's `allow_growth`).
    #[must_use]
    pub fn growing() -> Bfc {
        Bfc { preallocates: false, next_region: Vec::new(), step: Step::GiveUp }
    }

    /// One region of three quarters of the device's memory (JAX's default).
    #[must_use]
    pub fn preallocating() -> Bfc {
        Bfc { preallocates: true, ..Bfc::growing() }
    }

    fn is_preallocated(&self, pool: PoolSlot) -> bool {
        self.preallocates && pool == PoolSlot::default_pool(PoolClass::Large)
    }

    /// Bytes that the pool may still take: of the limit, or of the device's memory.
    fn available(&self, heap: &Heap, pool: PoolSlot) -> u64 {
        let total = heap.device_total();
        let most = heap.limit().map_or(total, |limit| limit.min(total)).0;
        let left = if self.is_preallocated(pool) {
            (most / 4 * 3).saturating_sub(heap.reserved_in(pool).0)
        } else {
            most.saturating_sub(heap.reserved().0)
        };
        left / UNIT * UNIT
    }

    /// The next region's size, which the caller may change.
    fn next_region(&mut self, pool: PoolSlot) -> &mut u64 {
        let place = self.next_region.iter().position(|(own, _)| *own == pool).unwrap_or_else(|| {
            self.next_region.push((pool, FIRST_REGION));
            self.next_region.len() - 1
        });
        &mut self.next_region[place].1
    }

    /// How many bytes to ask for first, and whether the next region's size was doubled in advance. `None` if the pool may not
    /// have that many.
    fn region_for(&mut self, heap: &Heap, request: &Request) -> Option<(u64, bool)> {
        let available = self.available(heap, request.pool);
        if request.size.0 > available {
            return None;
        }
        if self.is_preallocated(request.pool) {
            return Some((available, false));
        }
        let next = self.next_region(request.pool);
        let mut increased = false;
        while request.size.0 > *next {
            *next = next.saturating_mul(2);
            increased = true;
        }
        let bytes = (*next).min(available);
        if !increased {
            *next = next.saturating_mul(2);
        }
        Some((bytes, !increased))
    }

    /// Nine tenths, rounded up to a whole unit, but always less than before; `None` below what the request needs.
    fn backed_off(bytes: u64, needed: u64) -> Option<u64> {
        // The original multiplies in single precision.
        let less = ((bytes as f32 * 0.9_f32) as u64).next_multiple_of(UNIT);
        let less = if less >= bytes { bytes.saturating_sub(UNIT) } else { less };
        (less >= needed).then_some(less)
    }

    /// The rung of this step, and the next step; `None` goes on to the next step at once.
    fn climb(&mut self, heap: &Heap, request: &Request) -> (Option<Relief>, Step) {
        let ask = |bytes: u64, blocks: Vec<BlockId>| Relief::Release { blocks, attempt: Attempt::AskFor(Bytes(bytes)) };
        let take = |waits| {
            let found = ladder::elsewhere(heap, request).first().map(|block| block.id);
            found.map(|block| Relief::Transfer { block, waits })
        };
        match self.step {
            Step::Others => (take(true), Step::Grow(false)),
            Step::Grow(again) => match self.region_for(heap, request) {
                Some((bytes, doubled)) => {
                    let released = if again { heap.releasable() } else { Vec::new() };
                    (Some(ask(bytes, released)), Step::Refused { bytes, doubled, again })
                }
                None => (None, if again { Step::GiveUp } else { Step::Borrow }),
            },
            Step::Refused { bytes, doubled, again } => match Bfc::backed_off(bytes, request.size.0) {
                Some(bytes) => (Some(ask(bytes, Vec::new())), Step::Refused { bytes, doubled, again }),
                None => {
                    if doubled {
                        *self.next_region(request.pool) /= 2;
                    }
                    (None, if again { Step::GiveUp } else { Step::Borrow })
                }
            },
            Step::Borrow => (Some(Relief::Borrow), Step::Wait),
            // While a graph is captured nothing waits and nothing is given back.
            Step::Wait if heap.is_deferring() => (None, Step::GiveUp),
            Step::Wait => (Some(Relief::Wait), Step::Look),
            Step::Look => {
                let found = heap.first_at_least(request.pool, request.stream, request.size);
                (found.map(|block| Relief::Reuse(block.id)), Step::LookElsewhere)
            }
            Step::LookElsewhere => (take(true), Step::Collect),
            Step::Collect if self.preallocates => (None, Step::GiveUp),
            Step::Collect => {
                let released = heap.releasable();
                (Some(Relief::Release { blocks: released, attempt: Attempt::No }), Step::Grow(true))
            }
            Step::GiveUp => (Some(Relief::GiveUp), Step::GiveUp),
        }
    }
}

impl Policy for Bfc {
    fn name(&self) -> &'static str {
        if self.preallocates { "bfc-prealloc" } else { "bfc" }
    }

    #[inline]
    fn round(&self, requested: Bytes) -> Option<Bytes> {
        requested.checked_round_up(Bytes(UNIT))
    }

    fn classify(&self, _: Bytes) -> PoolClass {
        PoolClass::Large
    }

    #[inline]
    fn place(&mut self, heap: &Heap, request: &Request) -> Placement {
        match heap.first_at_least(request.pool, request.stream, request.size) {
            Some(block) => Placement::Reuse(block.id),
            None => Placement::Segment(request.size),
        }
    }

    #[inline]
    fn splits(&self, whole: Bytes, request: &Request) -> bool {
        whole.0 / 2 >= request.size.0 || whole.0 - request.size.0 >= MOST_WASTE
    }

    fn relieve(&mut self, heap: &Heap, request: &Request, rung: u32) -> Relief {
        if rung == 0 {
            self.step = Step::Others;
        }
        loop {
            let (relief, next) = self.climb(heap, request);
            self.step = next;
            if let Some(relief) = relief {
                return relief;
            }
        }
    }
}
