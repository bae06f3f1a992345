//! The rules of BFC, from openxla/xla's bfc_allocator.cc, with the differences that `docs/policies.md` and the first paragraphs of
//! `policies/src/bfc.rs` list.

use std::collections::BTreeMap;

use parkade::policy::{Placement, Policy, Relief, Request, Rung};
use parkade::units::{Bytes, MIB, PoolClass};
use parkade::{BlockId, Heap, PoolSlot};
use parkade_policies::BfcKind;

use super::lists::{Turns, is_default, left_behind, release, release_and_ask, tightest, tightest_of_others};

const UNIT: u64 = 256;

/// The rules of one kind of BFC.
#[derive(Debug)]
pub(super) struct Bfc {
    kind: BfcKind,
    /// A remainder of at least this many bytes is always split off.
    waste: u64,
    /// The size of each pool's next region.
    regions: BTreeMap<PoolSlot, u64>,
    turns: Turns<Turn>,
}

#[derive(Clone, Copy, Debug)]
enum Turn {
    OtherStream,
    Extend {
        after_release: bool,
    },
    /// The device has refused this many bytes.
    BackOff {
        refused: u64,
        was_doubled: bool,
        after_release: bool,
    },
    Borrow,
    Wait,
    Search,
    FreeRegions,
}

impl Bfc {
    pub(super) fn new(kind: BfcKind, waste: u64) -> Bfc {
        Bfc { kind, waste, regions: BTreeMap::new(), turns: Turns::none() }
    }

    fn is_xla(&self) -> bool {
        matches!(self.kind, BfcKind::Xla | BfcKind::XlaGrowth)
    }

    fn allows_growth(&self) -> bool {
        matches!(self.kind, BfcKind::Growth | BfcKind::XlaGrowth)
    }

    /// Returns the memory limit of the pool's allocator: for XLA's default pool, three quarters of the memory.
    fn memory_limit(&self, heap: &Heap, pool: PoolSlot) -> u64 {
        let memory = heap.limit().unwrap_or(Bytes::MAX).min(heap.device_total()).get();
        if self.is_xla() && is_default(pool) { (u128::from(memory) * 3 / 4) as u64 } else { memory }
    }

    /// Returns the bytes that the pool's allocator may still take. XLA's three quarters limit only the default pool; all pools
    /// together are limited by the memory.
    fn available(&self, heap: &Heap, pool: PoolSlot) -> u64 {
        let own = self.is_xla() && is_default(pool);
        let taken = if own { heap.reserved_in(pool) } else { heap.reserved() };
        self.memory_limit(heap, pool).saturating_sub(taken.get())
    }

    /// Returns the size of the next region, and whether the size of the one after it was doubled
    /// (`curr_region_allocation_bytes_`).
    fn extend(&mut self, heap: &Heap, request: &Request) -> Option<(u64, bool)> {
        let pool = request.pool;
        if !is_default(pool) && heap.reserved_in(pool).get() == 0 {
            self.regions.remove(&pool);
        }
        let available = self.available(heap, pool) / UNIT * UNIT;
        let needed = request.size.get();
        if needed > available {
            return None;
        }
        let memory = self.memory_limit(heap, pool);
        let begins_small = self.allows_growth() || !is_default(pool);
        let first = if begins_small { (2 * MIB).min(memory) } else { memory };
        let next = self.regions.entry(pool).or_insert(first.div_ceil(UNIT) * UNIT);
        let is_enough = *next >= needed;
        while *next < needed {
            *next = next.saturating_mul(2);
        }
        let bytes = available.min(*next);
        if is_enough {
            *next = next.saturating_mul(2);
        }
        Some((bytes, is_enough))
    }

    /// Returns nine tenths of the bytes, rounded up to whole units but always less than before. Like the original, it computes
    /// in single precision.
    fn nine_tenths(bytes: u64) -> u64 {
        let tenths = (bytes as f32 * 0.9) as u64;
        (tenths.div_ceil(UNIT) * UNIT).min(bytes.saturating_sub(UNIT))
    }

    /// Returns all entirely free regions, by address, if the request fits after their release.
    fn free_regions(&self, heap: &Heap, request: &Request) -> Option<Vec<BlockId>> {
        if self.is_xla() {
            return None;
        }
        let mut pools = vec![PoolSlot::default_pool(PoolClass::Large)];
        if !is_default(request.pool) {
            pools.push(request.pool);
        }
        let releasable = heap.releasable();
        let mut regions = Vec::new();
        for pool in pools {
            regions.extend(heap.free_blocks(pool).filter(|block| releasable.contains(&block.id)));
        }
        let free: u64 = regions.iter().map(|region| region.size.get()).sum();
        regions.sort_by_key(|region| region.address);
        let mut blocks: Vec<BlockId> = regions.iter().map(|region| region.id).collect();
        let others: Vec<BlockId> = releasable.into_iter().filter(|id| !blocks.contains(id)).collect();
        blocks.extend(others);
        let fits = request.size.get() <= self.available(heap, request.pool).saturating_add(free);
        (fits && !blocks.is_empty()).then_some(blocks)
    }

    fn take(&mut self, turn: Turn, heap: &Heap, request: &Request) -> Option<Relief> {
        match turn {
            Turn::OtherStream => {
                let block = tightest_of_others(heap, request).first()?.id;
                Some(Relief::Transfer { block, waits: true })
            }
            Turn::Extend { after_release } => match self.extend(heap, request) {
                Some((bytes, was_doubled)) => {
                    self.turns.first([Turn::BackOff { refused: bytes, was_doubled, after_release }]);
                    let blocks = if after_release { heap.releasable() } else { Vec::new() };
                    Some(release_and_ask(blocks, Bytes(bytes)))
                }
                None => self.cannot_extend(after_release),
            },
            Turn::BackOff { refused, was_doubled, after_release } => {
                let less = Bfc::nine_tenths(refused);
                if less >= request.size.get() {
                    self.turns.first([Turn::BackOff { refused: less, was_doubled, after_release }]);
                    return Some(release_and_ask(Vec::new(), Bytes(less)));
                }
                // The next region is larger only if the device has provided this one.
                if let Some(next) = self.regions.get_mut(&request.pool).filter(|_| was_doubled) {
                    *next /= 2;
                }
                self.cannot_extend(after_release)
            }
            Turn::Borrow => Some(Relief::Borrow),
            Turn::Wait if heap.is_deferring() => {
                self.turns.give_up();
                None
            }
            Turn::Wait => Some(Relief::Wait),
            Turn::Search => tightest(heap, request).map(|block| Relief::Reuse(block.id)),
            Turn::FreeRegions => match self.free_regions(heap, request) {
                Some(blocks) => Some(release(blocks)),
                None => {
                    self.turns.give_up();
                    None
                }
            },
        }
    }

    fn cannot_extend(&mut self, after_release: bool) -> Option<Relief> {
        if after_release {
            self.turns.give_up();
        }
        None
    }
}

/// The order in which a request looks for memory.
const LADDER: [Turn; 8] = [
    Turn::OtherStream,
    Turn::Extend { after_release: false },
    Turn::Borrow,
    Turn::Wait,
    Turn::Search,
    Turn::OtherStream,
    Turn::FreeRegions,
    Turn::Extend { after_release: true },
];

impl Policy for Bfc {
    fn name(&self) -> &'static str {
        "bfc"
    }

    fn round(&self, requested: Bytes) -> Option<Bytes> {
        requested.get().div_ceil(UNIT).checked_mul(UNIT).map(Bytes)
    }

    fn classify(&self, _: Bytes) -> PoolClass {
        PoolClass::Large
    }

    fn place(&mut self, heap: &Heap, request: &Request) -> Placement {
        tightest(heap, request).map_or(Placement::Segment(request.size), |block| Placement::Reuse(block.id))
    }

    fn splits(&self, whole: Bytes, request: &Request) -> bool {
        let (whole, size) = (u128::from(whole.get()), u128::from(request.size.get()));
        whole >= 2 * size || whole - size >= u128::from(self.waste)
    }

    fn ladder(&self) -> &'static [Rung] {
        &[Rung::Own]
    }

    fn relieve(&mut self, heap: &Heap, request: &Request, turn: u32) -> Relief {
        let left = left_behind(heap, request);
        if turn == 0 || !left.is_empty() {
            self.turns.begin(LADDER);
        }
        if !left.is_empty() {
            return release(left);
        }
        while let Some(turn) = self.turns.next() {
            if let Some(relief) = self.take(turn, heap, request) {
                return relief;
            }
        }
        Relief::Done
    }
}
