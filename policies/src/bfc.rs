//! BFC, best fit with coalescing: the allocator of TensorFlow and XLA.
//!
//! From openxla/xla, xla/tsl/framework/bfc_allocator.cc and .h at commit 00df9ee:
//! - sizes are multiples of 256 bytes. A request gets the smallest chunk in any region that is large enough; if
//!   several have the same size, the one with the lowest address. The bins that speed up the search do not change its
//!   result;
//! - a chunk is split if it has at least twice the bytes needed, or at least 128 MiB more;
//! - the first region has 2 MiB, and each further region is twice as large as the previous one. If a request needs
//!   more, the size is doubled until it is large enough, and is then not doubled for the next region. If the device
//!   refuses, the allocator tries nine tenths of the size, repeatedly, down to the size of the request;
//! - with `garbage_collection`, the allocator releases all entirely free regions before it gives up, and tries to grow
//!   once more. It keeps the regions if the released memory and the rest of the limit would still be too small for the
//!   request.
//!
//! There are four configurations, which correspond to the options that TensorFlow and XLA use:
//! - `bfc`: TensorFlow's GPU allocator with `allow_growth`, which collects garbage;
//! - `bfc:kind=one-region`: the same without `allow_growth`: the first region takes the entire limit;
//! - `bfc:kind=xla`: the configuration of XLA and therefore of JAX: one region with 75 % of the device's memory
//!   (xla/pjrt/gpu/gpu_helpers.cc; JAX's documentation, GPU memory allocation), and no garbage collection;
//! - `bfc:kind=xla-growth`: the same with preallocation off: regions as needed, up to 75 %, never released.
//!
//! On a single stream, each decision equals the original's: `conformance/other_allocators` compares them. There are
//! some differences. The original has one set of bins, because a single stream orders everything. Here, as the last
//! step before the pool grows, a request takes a chunk of another stream, to be used after that stream's work.
//! Adjacent chunks of different streams do not coalesce until the allocator has waited for all work, which it does
//! before it releases regions. A private pool, which the original does not have, is a separate allocator: it begins
//! with 2 MiB and grows, even if the default pool has a single region, and it releases all its memory when the program
//! drops it. In the original, the next size wraps to 0 after 43 regions, and the allocator hangs; here, the size stays
//! at its maximum. This policy does not model spatial partitioning and timestamps.

use alloc::borrow::Cow;
use alloc::boxed::Box;
use alloc::vec::Vec;

use parkade::policy::{Attempt, Placement, Policy, Relief, Request, Rung};
use parkade::units::{Bytes, MIB, PoolClass};
use parkade::{BlockId, Heap, PoolSlot};

use crate::entry::{Entry, Named};
use crate::parameter::Parameter;
use crate::shared_steps;

/// Sizes are multiples of this.
const UNIT: u64 = 256;
/// The size of the first region.
const FIRST_REGION: u64 = 2 * MIB;
/// A remainder of at least this many bytes is always split off, unless a parameter says more.
const MOST_WASTE: Bytes = Bytes::mib(128);

pub(crate) const ENTRY: Entry = Entry::new(
    "bfc",
    "TensorFlow's best fit with coalescing; each new region is twice as large as the last",
    "openxla/xla, xla/tsl/framework/bfc_allocator.cc",
    |values| {
        let kind = match values.text("kind") {
            "one-region" => BfcKind::OneRegion,
            "xla" => BfcKind::Xla,
            "xla-growth" => BfcKind::XlaGrowth,
            _ => BfcKind::Growth,
        };
        Box::new(Bfc::new(kind).with_waste(values.bytes("waste")))
    },
)
.with_parameters(&[
    Parameter::choice(
        "kind",
        "the allocator whose rules apply, and whether regions grow",
        "growth",
        &["growth", "one-region", "xla", "xla-growth"],
    ),
    Parameter::size("waste", "a remainder of at least this size is always split off", "128MiB", Bytes(256), Bytes::mib(1 << 24)),
])
.keeping_memory_if(|values| values.text("kind") != "growth");

pub(crate) const ONE_REGION: Named = Named::listed(
    &ENTRY,
    "bfc:kind=one-region",
    "bfc without allow_growth: a single region that takes the entire limit",
    "openxla/xla, xla/tsl/framework/bfc_allocator.cc",
    &[("kind", Cow::Borrowed("one-region"))],
);
pub(crate) const XLA: Named = Named::listed(
    &ENTRY,
    "bfc:kind=xla",
    "bfc as configured by XLA and, by default, JAX: a single region with 75 % of the device's memory",
    "openxla/xla, xla/tsl/framework/bfc_allocator.cc; xla/pjrt/gpu/gpu_helpers.cc",
    &[("kind", Cow::Borrowed("xla"))],
);
pub(crate) const XLA_GROWTH: Named = Named::listed(
    &ENTRY,
    "bfc:kind=xla-growth",
    "bfc as in XLA without preallocation: growing regions, up to 75 % of the device; never releases memory",
    "openxla/xla, xla/tsl/framework/bfc_allocator.cc; xla/pjrt/gpu/gpu_helpers.cc",
    &[("kind", Cow::Borrowed("xla-growth"))],
);

/// The origin of the rules, and whether regions grow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BfcKind {
    /// TensorFlow's rules with `allow_growth`: regions as needed, each twice as large as the previous one.
    Growth,
    /// TensorFlow's rules without `allow_growth`: the first region takes everything that the limit allows.
    OneRegion,
    /// XLA's rules, which are JAX's default: one region with three quarters of the device's memory.
    Xla,
    /// XLA's rules with preallocation off: regions as needed, up to three quarters of the device's memory.
    XlaGrowth,
}

/// The rules of the allocator of TensorFlow and XLA.
#[derive(Clone, Debug)]
pub struct Bfc {
    /// Whether regions are taken as needed, each twice as large as the previous one.
    grows: bool,
    /// Whether free regions are released before the policy gives up.
    collects: bool,
    /// The number of quarters of the device's memory, or of the limit if that is lower, that the pool may have.
    quarters: u64,
    /// A remainder of at least this many bytes is always split off.
    waste: Bytes,
    /// The size of the next region, by pool.
    next_region: Vec<(PoolSlot, u64)>,
    step: Step,
}

/// The next step of the ladder for the current request.
#[derive(Clone, Debug)]
enum Step {
    /// Take a chunk of another stream.
    Others,
    /// Grow; the flag says whether everything has been released.
    Grow(bool),
    /// The device refused `bytes`. `doubled` says whether the next region's size was doubled in advance; `again` is
    /// the flag of `Grow`.
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
    /// The rules of one kind, without state.
    #[must_use]
    pub const fn new(kind: BfcKind) -> Bfc {
        let (grows, collects, quarters) = match kind {
            BfcKind::Growth => (true, true, 4),
            BfcKind::OneRegion => (false, true, 4),
            BfcKind::Xla => (false, false, 3),
            BfcKind::XlaGrowth => (true, false, 3),
        };
        Bfc { grows, collects, quarters, waste: MOST_WASTE, next_region: Vec::new(), step: Step::GiveUp }
    }

    /// The same rules, but a remainder of at least this many bytes is always split off. The original's value is 128 MiB.
    #[must_use]
    pub fn with_waste(self, waste: Bytes) -> Bfc {
        Bfc { waste, ..self }
    }

    /// The maximum number of bytes that the pool may have.
    fn most(&self, heap: &Heap, pool: PoolSlot) -> u64 {
        let total = heap.device_total();
        let most = heap.limit().map_or(total, |limit| limit.min(total)).0;
        if is_default(pool) { most / 4 * self.quarters + most % 4 * self.quarters / 4 } else { most }
    }

    /// The number of bytes that the pool may still take.
    fn available(&self, heap: &Heap, pool: PoolSlot) -> u64 {
        // Only the default pool is limited to a share of the device's memory.
        let shares = self.quarters < 4 && is_default(pool);
        let taken = if shares { heap.reserved_in(pool) } else { heap.reserved() };
        self.most(heap, pool).saturating_sub(taken.0)
    }

    /// The next region's size.
    fn next_region(&mut self, heap: &Heap, pool: PoolSlot) -> &mut u64 {
        let place = self.next_region.iter().position(|(own, _)| *own == pool).unwrap_or_else(|| {
            let most = self.most(heap, pool);
            let first = if self.grows || !is_default(pool) { most.min(FIRST_REGION) } else { most };
            self.next_region.push((pool, first.checked_next_multiple_of(UNIT).unwrap_or(FIRST_REGION)));
            self.next_region.len() - 1
        });
        &mut self.next_region[place].1
    }

    /// The number of bytes to request first, and whether the next region's size was doubled in advance. `None` if the
    /// pool may not have as many bytes as the request needs.
    fn region_for(&mut self, heap: &Heap, request: &Request) -> Option<(u64, bool)> {
        if !is_default(request.pool) && heap.reserved_in(request.pool) == Bytes::ZERO {
            // The pool is new, possibly with the number of a pool that no longer exists.
            self.next_region.retain(|(own, _)| *own != request.pool);
        }
        let available = self.available(heap, request.pool) / UNIT * UNIT;
        if request.size.0 > available {
            return None;
        }
        let next = self.next_region(heap, request.pool);
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

    /// The blocks that can be released, by address, if releasing them may make room for the request.
    fn collectable(&self, heap: &Heap, request: &Request) -> Option<Vec<BlockId>> {
        let mut blocks = heap.releasable();
        let pools = [PoolSlot::default_pool(PoolClass::Large), request.pool];
        let regions = pools[usize::from(is_default(request.pool))..].iter().flat_map(|pool| heap.free_blocks(*pool));
        let mut regions: Vec<_> = regions.filter(|region| blocks.contains(&region.id)).collect();
        let free: u64 = regions.iter().map(|region| region.size.0).sum();
        let enough = request.size.0 <= self.available(heap, request.pool).saturating_add(free);
        regions.sort_unstable_by_key(|region| region.address);
        let place = |block: &BlockId| regions.iter().position(|region| region.id == *block).unwrap_or(usize::MAX);
        blocks.sort_by_key(place);
        (self.collects && !blocks.is_empty() && enough).then_some(blocks)
    }

    /// Nine tenths of the bytes, rounded up to a unit but always less than before; `None` if this is less than the
    /// request needs.
    fn backed_off(bytes: u64, needed: u64) -> Option<u64> {
        // Single precision, as in the original.
        let less = ((bytes as f32 * 0.9_f32) as u64).next_multiple_of(UNIT);
        let less = if less >= bytes { bytes.saturating_sub(UNIT) } else { less };
        (less >= needed).then_some(less)
    }

    /// The rung of this step, if it has one, and the next step.
    fn climb(&mut self, heap: &Heap, request: &Request) -> (Option<Relief>, Step) {
        let ask = |bytes: u64, blocks: Vec<BlockId>| Relief::Release { blocks, attempt: Attempt::AskFor(Bytes(bytes)) };
        let take = |waits| {
            let found = shared_steps::elsewhere(heap, request).first().map(|block| block.id);
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
                        *self.next_region(heap, request.pool) /= 2;
                    }
                    (None, if again { Step::GiveUp } else { Step::Borrow })
                }
            },
            Step::Borrow => (Some(Relief::Borrow), Step::Wait),
            // While a graph is captured, nothing waits and nothing is released.
            Step::Wait if heap.is_deferring() => (None, Step::GiveUp),
            Step::Wait => (Some(Relief::Wait), Step::Look),
            Step::Look => {
                let found = heap.first_at_least(request.pool, request.stream, request.size);
                (found.map(|block| Relief::Reuse(block.id)), Step::LookElsewhere)
            }
            Step::LookElsewhere => (take(true), Step::Collect),
            Step::Collect => match self.collectable(heap, request) {
                Some(blocks) => (Some(Relief::Release { blocks, attempt: Attempt::No }), Step::Grow(true)),
                None => (None, Step::GiveUp),
            },
            Step::GiveUp => (Some(Relief::Done), Step::GiveUp),
        }
    }
}

fn is_default(pool: PoolSlot) -> bool {
    pool == PoolSlot::default_pool(PoolClass::Large)
}

impl Policy for Bfc {
    fn name(&self) -> &'static str {
        "bfc"
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
        whole.0 / 2 >= request.size.0 || whole.0 - request.size.0 >= self.waste.0
    }

    fn ladder(&self) -> &'static [Rung] {
        &[Rung::Own]
    }

    fn relieve(&mut self, heap: &Heap, request: &Request, rung: u32) -> Relief {
        let left_behind = shared_steps::left_behind(heap, request);
        if rung == 0 || left_behind.is_some() {
            self.step = Step::Others;
        }
        if let Some(relief) = left_behind {
            return relief;
        }
        shared_steps::first_relief(|| {
            let (relief, next) = self.climb(heap, request);
            self.step = next;
            relief
        })
    }
}
