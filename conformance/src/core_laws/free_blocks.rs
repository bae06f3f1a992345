//! Tests large numbers of free blocks: by size, in PyTorch's order, and by address, where they coalesce.

use std::collections::BTreeSet;

use parkade::policy::{Policy, PyTorch, Wrapper};
use parkade::profile::Profile;
use parkade::settings::Settings;
use parkade::units::{Bytes, DeviceAddress, MIB, PoolClass, PoolId, StreamId};
use parkade::{AdoptedBlock, AdoptedContent, AdoptedSegment, Allocation, BlockView, PoolFilter, PoolSlot};
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
    skew: Skew,
    count: usize,
    /// The number of blocks in a segment.
    per_segment: usize,
    is_descending: bool,
    streams: usize,
    seed: u64,
}

/// Which sizes are frequent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Skew {
    None,
    /// All blocks but a few have the smallest size, or the largest one.
    Smallest,
    Largest,
}

/// In a skewed case, one block in this many has any size.
const RARE: usize = 40;

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
/// far apart; often a few blocks among many equal ones have a different size. The collection is often filled and emptied.
pub(crate) fn check(draws: &Draws) -> Outcome {
    let base = (0..48_u32, any::<u64>()).prop_map(|(bits, low)| (1 << bits) | low & ((1 << bits) - 1));
    let sizes = prop::sample::select(vec![1, 1, 2, 2, 3, 5, 40, 3000]);
    let count = one_of![12 => 30..130_usize, 20 => 130..400_usize, 7 => 400..1000_usize, 1 => 1000..3000_usize];
    let per_segment = prop::sample::select(vec![1, 2, 7, 100, 100, 5000]);
    let skew = prop::sample::select(vec![Skew::None, Skew::Smallest, Skew::Largest]);
    let streams = one_of![Just(1), 1..=STREAMS.len()];
    let flags = (any::<bool>(), prop::bool::weighted(0.2), any::<bool>());
    let strategy = (flags, base, (sizes, skew), count, per_segment, streams, any::<u64>()).prop_map(
        |((is_newer, is_wide, is_descending), base, (sizes, skew), count, per_segment, streams, seed)| Case {
            is_newer,
            base,
            sizes,
            is_wide,
            skew,
            count,
            per_segment,
            is_descending,
            streams,
            seed,
        },
    );
    run_law(&draws.each_for(4), 355, strategy, |case| Play::new(case)?.run())
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
    /// The block that was freed last.
    newest: Option<Key>,
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
        let mut play = Play { case, core, slot, items, free, held, newest: None, state: case.seed, steps: 0, order: Order::Any };
        play.fill(class)?;
        Ok(play)
    }

    fn draw(&mut self, below: usize) -> usize {
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.state >> 33) as usize % below.max(1)
    }

    fn size(&mut self, class: PoolClass) -> u64 {
        let any = self.draw(self.case.sizes as usize) as u64;
        let is_rare = self.draw(RARE) == 0;
        let number = match self.case.skew {
            Skew::Smallest if !is_rare => 0,
            Skew::Largest if !is_rare => self.case.sizes - 1,
            _ => any,
        };
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
            // Half of the phases that only take or only free go on until nothing is left.
            let is_whole = takes % 100 == 0 && self.draw(2) == 0;
            let steps = if phase == 0 || is_whole { 2 * count } else { 1 + self.draw(count) };
            for _ in 0..steps {
                if self.play(takes)? {
                    break;
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

    /// Takes or frees a block, and asks the heap about its free blocks. Returns whether there is nothing left to take or to free.
    fn play(&mut self, takes: usize) -> Result<bool, Broken> {
        self.steps += 1;
        let size_before = self.newest.map(|key| key.1);
        if self.draw(100) < takes {
            self.take()?;
        } else {
            self.give()?;
        }
        // Where most sizes are equal, the other ones matter.
        let is_other = self.case.skew != Skew::None && self.newest.map(|key| key.1) != size_before;
        if is_other || self.steps.is_multiple_of(3) {
            self.ask()?;
        }
        Ok(if takes == 0 { self.held.is_empty() } else { takes == 100 && self.free.is_empty() })
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
        self.newest = Some(item.key);
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
            self.newest = self.newest.filter(|newest| *newest != key);
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
        let one = |view: Option<BlockView>| view.map(|view| view.address.get());
        let places = |views: Vec<BlockView>| views.iter().map(|view| view.address.get()).collect::<Vec<_>>();
        let keys = |keys: Vec<&Key>| keys.iter().map(|key| key.3).collect::<Vec<_>>();
        let few = 1 + number % 300;
        let above = || self.free.range(from..).take_while(|key| key.0 == stream);
        let below = || self.free.range((stream, 0, 0, 0, 0)..from).rev();
        let largest = self.free.range(own).next_back().map(|key| key.1);
        let largest = largest.and_then(|size| self.free.range((stream, size, 0, 0, 0)..).next()).map(|key| key.3);
        let lowest = || above().filter(|key| key.3 + key.1 > address).map(|key| key.3).min();
        let seen_lowest = || one(heap.lowest_at_least(slot, handle, Bytes(size), DeviceAddress(address)));
        let elsewhere = STREAMS.iter().copied().collect::<BTreeSet<u64>>().into_iter().filter(|other| *other != stream);
        let elsewhere =
            elsewhere.filter_map(|other| self.free.range((other, size, 0, 0, 0)..).next().filter(|key| key.0 == other));
        // The block after the last one of a walk, and after the one that was freed last.
        let last = heap.at_least(slot, handle, Bytes(size)).take(few).last();
        let newest = self.newest.and_then(|key| {
            let equal = heap.at_least(slot, StreamId(key.0), Bytes(key.1)).find(|view| view.address.get() == key.3);
            equal.map(|view| (view, key))
        });
        let behind_newest =
            newest.map(|(_, key)| self.free.range(key..).nth(1).filter(|next| next.0 == key.0).map(|next| next.3));
        let checks = [
            ("following", last.is_none_or(|last| one(heap.following(last.id)) == above().nth(few).map(|key| key.3))),
            ("following of the newest block", newest.map(|(view, _)| one(heap.following(view.id))) == behind_newest),
            ("first_at_least", one(heap.first_at_least(slot, handle, Bytes(size))) == above().next().map(|key| key.3)),
            (
                "at_least",
                places(heap.at_least(slot, handle, Bytes(size)).take(few).collect()) == keys(above().take(few).collect()),
            ),
            ("below", places(heap.below(slot, handle, Bytes(size)).take(few).collect()) == keys(below().take(few).collect())),
            ("largest", one(heap.largest(slot, handle)) == largest),
            // This one looks at all blocks.
            ("lowest_at_least", !number.is_multiple_of(4) || seen_lowest() == lowest()),
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

/// Free blocks by address that coalesce: hundreds of small blocks side by side, freed in any order, and taken again in parts. A
/// list of free units determines which block a request gets, and how the heap answers a search from any address, including
/// addresses inside a block and the former beginning of a block that has been coalesced. The heap must give the same answers
/// whether or not it keeps free blocks in the order of their addresses.
///
/// The number of blocks, the distance between those that are freed first, whether the heap keeps that order, and the
/// number that determines everything else.
pub(crate) fn by_address(draws: &Draws) -> Outcome {
    let strategy = (70..400_usize, 2..4_usize, any::<bool>(), any::<u64>());
    run_law(&draws.each_for(4), 358, strategy, |&(count, apart, is_ordered, seed)| {
        let mut units = Units::new(count, is_ordered, seed)?;
        units.free_all(apart)?;
        for _ in 0..TURNS {
            units.turn()?;
        }
        units.core.check().map_err(|violation| Broken::new(Law::Sweep, violation))?;
        Ok(units.steps)
    })
}

/// The number of times that a program by address changes how often it takes blocks.
const TURNS: usize = 4;

/// A segment of units, each of which is free or in use.
struct Units {
    core: PagedCore,
    base: u64,
    free: Vec<bool>,
    /// The allocations, each with its first unit and its number of units.
    held: Vec<(usize, usize, Allocation)>,
    /// The allocation of the rest of the segment.
    _behind: [Allocation; 2],
    state: u64,
    steps: u64,
}

impl Units {
    fn new(count: usize, is_ordered: bool, seed: u64) -> Result<Units, Broken> {
        let rules = PyTorch::new(Settings::default());
        let policy: Box<dyn Policy> = if is_ordered { Box::new(Ordered(rules)) } else { Box::new(rules) };
        let mut core = PagedCore::new(Paged::new(SimOptions::new(Bytes(1 << 40))), policy, Vec::new());
        let mut allocate = |bytes: u64| core.allocate(Bytes(bytes), StreamId::DEFAULT).map_err(failed);
        // The units are what is left of a segment.
        let behind = [allocate(MIB)?, allocate(MIB - count as u64 * UNIT)?];
        let base = behind[1].address().get() + MIB - count as u64 * UNIT;
        let mut units = Units { core, base, free: vec![true; count], held: Vec::new(), _behind: behind, state: seed, steps: 0 };
        let mut left = count;
        while left > 0 {
            let own = if units.draw(3) == 0 { 1 + units.draw(8) } else { 1 }.min(left);
            units.allocate(own)?;
            left -= own;
        }
        Ok(units)
    }

    fn draw(&mut self, below: usize) -> usize {
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.state >> 33) as usize % below.max(1)
    }

    /// The free blocks: the first unit and the number of units of each.
    fn blocks(&self) -> Vec<(usize, usize)> {
        let mut begin = 0;
        let runs = self.free.chunk_by(|one, other| one == other).map(|run| {
            begin += run.len();
            (run[0], (begin - run.len(), run.len()))
        });
        runs.filter(|(is_free, _)| *is_free).map(|(_, block)| block).collect()
    }

    /// Frees every block: first those that are a distance apart, so that they do not coalesce, from one end or in any order; then
    /// the others in any order.
    fn free_all(&mut self, apart: usize) -> Result<(), Broken> {
        let mut first: Vec<usize> = self.held.iter().step_by(apart).map(|(unit, ..)| *unit).collect();
        let order = self.draw(3);
        while !first.is_empty() {
            let place = [0, first.len() - 1, self.draw(first.len())][order];
            let unit = first.remove(place);
            let place = self.held.iter().position(|(own, ..)| *own == unit).ok_or_else(|| failed("the block is gone"))?;
            self.give(place)?;
        }
        while !self.held.is_empty() {
            let place = self.draw(self.held.len());
            self.give(place)?;
        }
        Ok(())
    }

    /// Takes and frees blocks for a while.
    fn turn(&mut self) -> Result<(), Broken> {
        let takes = [100, 80, 50, 20][self.draw(4)];
        for _ in 0..self.draw(self.free.len() / 2) {
            if self.draw(100) < takes || self.held.is_empty() {
                self.take()?;
            } else {
                let place = self.draw(self.held.len());
                self.give(place)?;
            }
        }
        Ok(())
    }

    fn give(&mut self, place: usize) -> Result<(), Broken> {
        let (unit, units, allocation) = self.held.swap_remove(place);
        self.core.free(allocation).map_err(failed)?;
        self.free[unit..unit + units].fill(true);
        self.ask_around(unit).map_err(|broken| broken.during(format!("step {}, unit {unit} is freed", self.steps)))
    }

    /// Requests a few units, mostly one.
    fn take(&mut self) -> Result<(), Broken> {
        let units = if self.draw(3) == 0 { 1 + self.draw(30) } else { 1 };
        let Some(unit) = self.allocate(units)? else { return Ok(()) };
        self.ask_around(unit).map_err(|broken| broken.during(format!("step {}, {units} units are taken", self.steps)))
    }

    /// Requests units, unless no block is large enough. The smallest one that is serves the request, of equal ones the lowest.
    /// Returns the first unit.
    fn allocate(&mut self, units: usize) -> Result<Option<usize>, Broken> {
        let serving = self.blocks().into_iter().filter(|(_, own)| *own >= units).min_by_key(|&(unit, own)| (own, unit));
        let Some((unit, _)) = serving else { return Ok(None) };
        let allocation = self.core.allocate(Bytes(units as u64 * UNIT), StreamId::DEFAULT).map_err(failed)?;
        let (seen, expected) = (allocation.address().get(), self.base + unit as u64 * UNIT);
        ensure(Law::Reference, seen == expected, || {
            format!("step {}: {units} units begin at {seen:#x}, expected {expected:#x}", self.steps)
        })?;
        self.free[unit..unit + units].fill(false);
        self.held.push((unit, units, allocation));
        Ok(Some(unit))
    }

    /// Asks from the addresses around the block that changed last, and from a random one: for a few units, for as many as a block
    /// has, and for one more.
    fn ask_around(&mut self, unit: usize) -> Result<(), Broken> {
        self.steps += 1;
        let blocks = self.blocks();
        let first = (0..unit).rev().take_while(|&before| self.free[before]).last().unwrap_or(unit);
        let behind = (unit..self.free.len()).find(|&next| !self.free[next]).unwrap_or(self.free.len());
        let near = (first..behind).flat_map(|unit| [0, UNIT / 2].map(|more| unit as u64 * UNIT + more)).take(8);
        let anywhere = self.draw(self.free.len()) as u64 * UNIT;
        let own = if blocks.is_empty() { 0 } else { blocks[self.draw(blocks.len())].1 + self.draw(2) };
        let largest = blocks.iter().map(|block| block.1).max().unwrap_or(0) + self.draw(2);
        let sizes = [1 + self.draw(4), own, largest];
        for (number, from) in near.chain([0, 0, 0, anywhere, anywhere, behind as u64 * UNIT]).enumerate() {
            self.ask(&blocks, sizes[number % sizes.len()] as u64, from)?;
        }
        Ok(())
    }

    /// Asks for the lowest free block of this many units that ends after an address, which is counted from the first unit.
    fn ask(&self, blocks: &[(usize, usize)], units: u64, from: u64) -> Result<(), Broken> {
        let (slot, from_address) = (PoolSlot::default_pool(PoolClass::Small), DeviceAddress(self.base + from));
        let seen = self.core.heap().lowest_at_least(slot, StreamId::DEFAULT, Bytes(units * UNIT), from_address);
        let seen = seen.map(|block| block.address.get() - self.base);
        let mut blocks = blocks.iter().map(|&(unit, own)| (unit as u64 * UNIT, own as u64));
        let expected = blocks.find(|&(begin, own)| own >= units && begin + own * UNIT > from).map(|(begin, _)| begin);
        ensure(Law::Reference, seen == expected, || {
            format!("the lowest block of {units} units that ends after {from:#x} begins at {seen:x?}, expected {expected:x?}")
        })
    }
}
