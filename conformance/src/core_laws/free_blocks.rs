//! Tests large numbers of free blocks: by size, in PyTorch's order, and by address, where they coalesce.

use std::collections::BTreeSet;

use parkade::policy::{Policy, PyTorch, Wrapper};
use parkade::profile::Profile;
use parkade::settings::Settings;
use parkade::units::{Bytes, DeviceAddress, MIB, PoolClass, PoolId, StreamId};
use parkade::{AdoptedBlock, AdoptedContent, AdoptedSegment, Allocation, BlockView, Heap, PoolFilter, PoolSlot};
use parkade_sim::SimOptions;
use proptest::prelude::*;

use crate::core_laws::devices::{Paged, PagedCore, Paper, PaperCore as Core};
use crate::drawn::one_of;
use crate::drawn::{Draws, Outcome, run_law};
use crate::law::{Broken, Law, ensure};

/// The pool that is never split.
const POOL: PoolId = PoolId(0, 1);

/// Stream handles that are not in the order of their first use.
const STREAMS: [u64; 3] = [0x3000, 0, u64::MAX - 4095];

/// The number of times that a case changes its predominant operation.
const PHASES: usize = 8;

/// The maximum total size of all blocks, in bytes.
const MOST_BYTES: u64 = 1 << 61;

/// A collection of blocks, and the operations on it.
#[derive(Clone, Debug)]
struct Case {
    is_newer: bool,
    /// The smallest size in units of 512 bytes, and the number of sizes that start from it.
    base: u64,
    sizes: u64,
    /// Whether consecutive sizes differ by one unit or by a quarter of their size.
    is_wide: bool,
    count: usize,
    /// The number of blocks in a segment.
    per_segment: usize,
    is_descending: bool,
    streams: usize,
    seed: u64,
}

/// The blocks that are freed first.
#[derive(Clone, Copy, Debug)]
enum Order {
    Lowest,
    Highest,
    Newest,
    Any,
}

/// A position in PyTorch's order of free blocks (stream, size, age of the segment in 2.15, address), and the number of
/// the block.
type Key = (u64, u64, u64, u64, usize);

struct Item {
    key: Key,
    held: Option<Allocation>,
}

/// Thousands of free blocks: a private pool that is never split is adopted with blocks of chosen sizes, and a program
/// frees and allocates many of them. A sorted set determines which block a request gets and how the heap answers every
/// query about free blocks.
///
/// Sizes reach 2^57, with many blocks of equal size, of neighbouring sizes and of sizes that are
/// far apart.
pub(crate) fn check(draws: &Draws) -> Outcome {
    let base = (0..48_u32, any::<u64>()).prop_map(|(bits, low)| (1 << bits) | low & ((1 << bits) - 1));
    let sizes = prop::sample::select(vec![1, 1, 1, 2, 3, 5, 40, 3000]);
    let count = one_of![3 => 30..400_usize, 2 => 400..1600_usize, 1 => 1600..5000_usize];
    let per_segment = prop::sample::select(vec![1, 2, 7, 100, 100, 5000]);
    let flags = (any::<bool>(), prop::bool::weighted(0.2), any::<bool>());
    let strategy = (flags, base, sizes, count, per_segment, 1..=STREAMS.len(), any::<u64>()).prop_map(
        |((is_newer, is_wide, is_descending), base, sizes, count, per_segment, streams, seed)| Case {
            is_newer,
            base,
            sizes,
            is_wide,
            count,
            per_segment,
            is_descending,
            streams,
            seed,
        },
    );
    run_law(&draws.each_for(12), 355, strategy, |case| Play::new(case)?.run())
}

/// The allocator, its blocks, and the free blocks in order.
struct Play<'a> {
    case: &'a Case,
    core: Core,
    slot: PoolSlot,
    items: Vec<Item>,
    free: BTreeSet<Key>,
    /// The numbers of the blocks that are held.
    held: Vec<usize>,
    state: u64,
    steps: u64,
    order: Order,
}

fn failed(error: impl std::fmt::Display) -> Broken {
    Broken::new(Law::Reference, error)
}

impl<'a> Play<'a> {
    fn new(case: &'a Case) -> Result<Play<'a>, Broken> {
        let profile = if case.is_newer { &Profile::PYTORCH_2_15 } else { &Profile::PYTORCH_2_11 };
        let mut core = Core::new(Paper::new(1 << 62), PyTorch::of(profile, Settings::default()), Vec::new());
        core.set_pool_no_split(POOL);
        core.begin_pool(POOL, PoolFilter::All).map_err(failed)?;
        // Requests for which no block exists are refused.
        core.set_limit(Some(Bytes::ZERO));
        let class = if case.base * 512 > MIB { PoolClass::Large } else { PoolClass::Small };
        let of_class = |slot: &PoolSlot| slot.class() == class && *slot != PoolSlot::default_pool(class);
        let slot = core.heap().pool_slots().find(of_class).ok_or_else(|| failed("the pool has no slot"))?;
        let (items, free, held) = (Vec::new(), BTreeSet::new(), Vec::new());
        let mut play = Play { case, core, slot, items, free, held, state: case.seed, steps: 0, order: Order::Any };
        play.fill(class)?;
        Ok(play)
    }

    fn draw(&mut self, below: usize) -> usize {
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.state >> 33) as usize % below.max(1)
    }

    fn size(&mut self, class: PoolClass) -> u64 {
        let number = self.draw(self.case.sizes as usize) as u64;
        let units = if self.case.is_wide { self.case.base + self.case.base / 4 * (number % 8) } else { self.case.base + number };
        let most = if class == PoolClass::Small { MIB } else { 1 << 57 };
        (units * 512).min(most)
    }

    /// Adopts the segments: allocated blocks of the chosen sizes, each followed by a block that stays allocated and
    /// keeps them apart.
    fn fill(&mut self, class: PoolClass) -> Result<(), Broken> {
        let (mut address, mut left, mut rank) = (if self.case.is_descending { 1 << 63 } else { 1 << 21 }, MOST_BYTES, 0);
        while self.items.len() < self.case.count {
            let (mut blocks, mut sizes) = (Vec::new(), Vec::new());
            let spacer = AdoptedBlock { size: Bytes(512), content: AdoptedContent::Allocated(Bytes(1)) };
            for _ in 0..self.case.per_segment.min(self.case.count - self.items.len()) {
                let size = self.size(class);
                if size + 512 > left {
                    break;
                }
                left -= size + 512;
                blocks.extend([AdoptedBlock { size: Bytes(size), content: AdoptedContent::Allocated(Bytes(size)) }, spacer]);
                sizes.push(size);
            }
            if sizes.is_empty() {
                break;
            }
            if self.case.per_segment == 1 {
                blocks.pop();
            }
            let total: u64 = blocks.iter().map(|block| block.size.get()).sum();
            let gap = (1 + self.draw(3) as u64) * 512;
            let base = if self.case.is_descending { address - total - gap } else { address };
            address = if self.case.is_descending { base } else { base + total + gap };
            let stream = STREAMS[self.draw(self.case.streams)];
            let segment =
                AdoptedSegment { address: DeviceAddress(base), stream: StreamId(stream), pool: POOL, class, page: None, blocks };
            let adopted = self.core.adopt(&segment, &mut |_, _| ((), 1)).map_err(failed)?;
            for (allocation, size) in adopted.into_iter().step_by(2).zip(sizes) {
                let number = self.items.len();
                let key = (stream, size, if self.case.is_newer { rank } else { 0 }, allocation.address().get(), number);
                self.held.push(number);
                self.items.push(Item { key, held: Some(allocation) });
            }
            rank += 1;
        }
        Ok(())
    }

    /// Frees everything, then frees and allocates many blocks in turn, in orders that suit a sorted sequence to varying
    /// degrees.
    fn run(mut self) -> Result<u64, Broken> {
        let count = self.items.len();
        for phase in 0..PHASES {
            let takes = if phase == 0 { 0 } else { [0, 0, 100, 100, 50, 30, 70, 95][self.draw(8)] };
            self.order = [Order::Lowest, Order::Highest, Order::Newest, Order::Any][self.draw(4)];
            let steps = if phase == 0 { count } else { 1 + self.draw(count) };
            for _ in 0..steps {
                self.steps += 1;
                if self.draw(100) < takes {
                    self.take()?;
                } else {
                    self.give()?;
                }
                if self.steps.is_multiple_of(3) {
                    self.ask()?;
                }
            }
            self.compare_all()?;
            if phase == PHASES / 2 {
                self.continue_on_a_clone();
            }
        }
        self.core.check().map_err(|violation| Broken::new(Law::Sweep, violation))?;
        Ok(self.steps)
    }

    fn continue_on_a_clone(&mut self) {
        self.core = self.core.clone();
        for item in &mut self.items {
            item.held = item.held.as_ref().map(Allocation::in_a_clone);
        }
    }

    fn give(&mut self) -> Result<(), Broken> {
        if self.held.is_empty() {
            return Ok(());
        }
        let numbers = self.held.iter().enumerate();
        let place = match self.order {
            Order::Lowest => numbers.min_by_key(|(_, number)| **number).map_or(0, |(place, _)| place),
            Order::Highest => numbers.max_by_key(|(_, number)| **number).map_or(0, |(place, _)| place),
            Order::Newest => self.held.len() - 1,
            Order::Any => self.draw(self.held.len()),
        };
        let number = self.held.swap_remove(place);
        let item = &mut self.items[number];
        if let Some(allocation) = item.held.take() {
            self.core.free(allocation).map_err(failed)?;
        }
        self.free.insert(item.key);
        Ok(())
    }

    /// Makes a request for roughly the size of one of the blocks.
    fn take(&mut self) -> Result<(), Broken> {
        let number = self.draw(self.items.len());
        let (stream, size, ..) = self.items[number].key;
        let size = match self.draw(4) {
            0 => size - (size > 512 && size != MIB + 512) as u64 * 512,
            1 => size + if size == MIB { 0 } else { 512 },
            _ => size,
        };
        let expected = self.free.range((stream, size, 0, 0, 0)..).next().filter(|key| key.0 == stream).copied();
        let answer = self.core.raw_allocate(Bytes(size), StreamId(stream));
        let seen = answer.as_ref().ok().map(|allocation| allocation.address().get());
        ensure(Law::Reference, seen == expected.map(|key| key.3), || {
            format!("step {}: {size} bytes on {stream:#x} are at {seen:x?}, expected {expected:x?}", self.steps)
        })?;
        if let (Ok(allocation), Some(key)) = (answer, expected) {
            self.free.remove(&key);
            self.items[key.4].held = Some(allocation);
            self.held.push(key.4);
        }
        Ok(())
    }

    /// Queries the heap for sizes around the size of one of the blocks.
    fn ask(&mut self) -> Result<(), Broken> {
        let number = self.draw(self.items.len());
        let (stream, size, _, address, _) = self.items[number].key;
        let size = (size + 512 * self.draw(3) as u64).saturating_sub(512);
        let own = (stream, 0, 0, 0, 0)..=(stream, u64::MAX, u64::MAX, u64::MAX, usize::MAX);
        let from = (stream, size, 0, 0, 0);
        let (heap, slot, handle) = (self.core.heap(), self.slot, StreamId(stream));
        let places = |views: Vec<BlockView>| views.iter().map(|view| view.address.get()).collect::<Vec<_>>();
        let keys = |keys: Vec<&Key>| keys.iter().map(|key| key.3).collect::<Vec<_>>();
        let few = 1 + number % 300;
        let above = || self.free.range(from..).take_while(|key| key.0 == stream);
        let below = || self.free.range((stream, 0, 0, 0, 0)..from).rev();
        let largest = self.free.range(own).next_back().map(|key| key.1);
        let largest = largest.and_then(|size| self.free.range((stream, size, 0, 0, 0)..).next()).map(|key| key.3);
        let lowest = above().filter(|key| key.3 + key.1 > address).map(|key| key.3).min();
        let elsewhere = STREAMS.iter().copied().collect::<BTreeSet<u64>>().into_iter().filter(|other| *other != stream);
        let elsewhere =
            elsewhere.filter_map(|other| self.free.range((other, size, 0, 0, 0)..).next().filter(|key| key.0 == other));
        let one = |view: Option<BlockView>| view.map(|view| view.address.get());
        let checks = [
            ("first_at_least", one(heap.first_at_least(slot, handle, Bytes(size))) == above().next().map(|key| key.3)),
            (
                "at_least",
                places(heap.at_least(slot, handle, Bytes(size)).take(few).collect()) == keys(above().take(few).collect()),
            ),
            ("below", places(heap.below(slot, handle, Bytes(size)).take(few).collect()) == keys(below().take(few).collect())),
            ("largest", one(heap.largest(slot, handle)) == largest),
            ("lowest_at_least", one(heap.lowest_at_least(slot, handle, Bytes(size), DeviceAddress(address))) == lowest),
            (
                "first_at_least_elsewhere",
                places(heap.first_at_least_elsewhere(slot, handle, Bytes(size)).collect()) == keys(elsewhere.collect()),
            ),
        ];
        let wrong = checks.iter().find(|(_, holds)| !holds).map(|(name, _)| *name);
        ensure(Law::Reference, wrong.is_none(), || {
            let name = wrong.unwrap_or("");
            format!(
                "step {}: {name} of {size} bytes on stream {stream:#x} does not match the {} free blocks",
                self.steps,
                self.free.len()
            )
        })
    }

    /// Compares the entire order and the sums.
    fn compare_all(&self) -> Result<(), Broken> {
        let heap = self.core.heap();
        let seen: Vec<(u64, u64, u64)> =
            heap.free_blocks(self.slot).map(|block| (block.stream.get(), block.size.get(), block.address.get())).collect();
        let expected: Vec<(u64, u64, u64)> = self.free.iter().map(|key| (key.0, key.1, key.3)).collect();
        let place = (0..seen.len().max(expected.len())).find(|&place| seen.get(place) != expected.get(place));
        ensure(Law::Reference, place.is_none(), || {
            let place = place.unwrap_or(0);
            format!("step {}: free block {place} is {:x?}, expected {:x?}", self.steps, seen.get(place), expected.get(place))
        })?;
        let largest = self.free.iter().map(|key| key.1).max().unwrap_or(0);
        ensure(Law::Reference, heap.largest_free().get() == largest, || {
            format!("the largest free block has {} bytes, expected {largest}", heap.largest_free())
        })
    }
}

/// The size of a block before any blocks coalesce.
const UNIT: u64 = 512;

/// A policy for which the heap keeps free blocks in the order of their addresses.
struct Ordered(PyTorch);

impl Wrapper for Ordered {
    type Inner = PyTorch;

    fn inner(&self) -> &PyTorch {
        &self.0
    }

    fn inner_mut(&mut self) -> &mut PyTorch {
        &mut self.0
    }

    fn searches_by_address(&self) -> bool {
        true
    }
}

/// Free blocks by address that coalesce: hundreds of small blocks side by side, freed in any order. A list of free
/// units determines how the heap answers a search from any address, including addresses inside a block and the former
/// beginning of a block that has been coalesced. The heap must give the same answers whether or not it keeps free blocks
/// in the order of their addresses.
///
/// The number of blocks, the distance between those that are freed first, whether the heap keeps that order, and the
/// number that determines the order in which the other blocks are freed.
pub(crate) fn by_address(draws: &Draws) -> Outcome {
    let strategy = (70..400_usize, 2..4_usize, any::<bool>(), any::<u64>());
    run_law(&draws.each_for(4), 358, strategy, |&(count, apart, is_ordered, seed)| {
        play_by_address(count, apart, is_ordered, seed)
    })
}

fn play_by_address(count: usize, apart: usize, is_ordered: bool, seed: u64) -> Result<u64, Broken> {
    let rules = PyTorch::new(Settings::default());
    let policy: Box<dyn Policy> = if is_ordered { Box::new(Ordered(rules)) } else { Box::new(rules) };
    let mut core = PagedCore::new(Paged::new(SimOptions::new(Bytes(1 << 40))), policy, Vec::new());
    let mut allocate = |bytes: u64| core.allocate(Bytes(bytes), StreamId::DEFAULT).map_err(failed);
    let mut held = (0..count).map(|_| allocate(UNIT).map(Some)).collect::<Result<Vec<Option<Allocation>>, Broken>>()?;
    // The rest of the segment is in use.
    let _behind = [allocate(MIB)?, allocate(MIB - count as u64 * UNIT)?];
    let base = held[0].as_ref().map_or(0, |first| first.address().get());
    let mut state = seed;
    let mut draw = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below.max(1)
    };
    let mut order: Vec<usize> = (0..count).step_by(apart).collect();
    let mut others: Vec<usize> = (0..count).filter(|place| place % apart != 0).collect();
    while !others.is_empty() {
        order.push(others.swap_remove(draw(others.len())));
    }
    let mut free = vec![false; count];
    for (step, &place) in order.iter().enumerate() {
        if let Some(allocation) = held[place].take() {
            core.free(allocation).map_err(failed)?;
        }
        free[place] = true;
        // Queries every address around the block that grew last, and a random one.
        let first = (0..place).rev().take_while(|&before| free[before]).last().unwrap_or(place);
        let behind = (place..count).find(|&next| !free[next]).unwrap_or(count);
        let near = (first..behind).flat_map(|unit| [0, UNIT / 2].map(|more| unit as u64 * UNIT + more)).take(12);
        let anywhere = draw(count) as u64 * UNIT;
        let size = 1 + draw(4) as u64;
        for from in near.chain([0, anywhere, behind as u64 * UNIT]) {
            ask(core.heap(), &free, size, (base, from))
                .map_err(|broken| broken.during(format!("step {step}, unit {place} is freed")))?;
        }
    }
    core.check().map_err(|violation| Broken::new(Law::Sweep, violation))?;
    Ok(count as u64)
}

/// Asks for the lowest free block of this many units that ends after an address, which is counted from the first unit.
fn ask(heap: &Heap, free: &[bool], units: u64, (base, from): (u64, u64)) -> Result<(), Broken> {
    let slot = PoolSlot::default_pool(PoolClass::Small);
    let seen = heap.lowest_at_least(slot, StreamId::DEFAULT, Bytes(units * UNIT), DeviceAddress(base + from));
    let seen = seen.map(|block| block.address.get() - base);
    let mut begin = 0;
    let mut expected = None;
    for run in free.chunk_by(|one, other| one == other) {
        let (bytes, end) = (run.len() as u64 * UNIT, begin + run.len() as u64 * UNIT);
        if run[0] && bytes >= units * UNIT && end > from {
            expected = Some(begin);
            break;
        }
        begin = end;
    }
    ensure(Law::Reference, seen == expected, || {
        format!("the lowest block of {units} units that ends after {from:#x} begins at {seen:x?}, expected {expected:x?}")
    })
}
