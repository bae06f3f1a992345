//! STAlloc: a plan made before the program runs determines where the requests that the program repeats are placed;
//! PyTorch's policy serves all other requests.
//!
//! Huang and others, STAlloc: Enhancing Memory Efficiency in Large-Scale Model Training with Spatio-Temporal Planning
//! (arXiv 2507.16274), and the code of infinigence/STAlloc at commit 3a9f97f:
//! - a program is run once to trace its requests (`utils/`, three iterations), and an offline planner assigns each
//!   request an offset in a static area (`Synthesizer/`): memory that lives longer than an iteration gets a separate
//!   place, other requests share places by size and lifetime, and the plan for the iteration repeats
//!   (`plan_generator.py`, `allocator.py`);
//! - the program is run again: the area is allocated at its first request, and the n-th request of an iteration is
//!   placed at the plan's n-th offset if it has the planned size (`StaticAllocator.hpp`);
//! - PyTorch's allocator serves a request of a different size, or one whose place is still occupied
//!   (`STALLOC_STATIC_FALLBACK`);
//! - requests of at most 512 bytes have a separate pool (`main.cpp`);
//! - requests of layers whose sizes vary reuse ranges of the static area that are idle while the layer runs
//!   (`OnlineDynamicManager.hpp`).
//!
//! Of the paper, only the abstract was available. There are some differences:
//! - the trace covers the program's first step ([`FirstStep`]), and no later one;
//! - the planner is simpler: it does not know layers and phases, for which the original has hooks in Megatron, so it
//!   does not group requests by them. It places the requests one by one at the lowest free offset: by size, by size
//!   and lifetime, or by lifetime, whichever order needs the least memory. A block that survives into the next step
//!   keeps its place there;
//! - there is an area for each stream and each of PyTorch's two collections, because blocks do not move between them;
//! - if a request is not the next one in the plan, the policy searches the following 64 entries for one with its size
//!   and stream, so that extra requests do not shift the rest of the step;
//! - the policy does not know how long an idle range stays idle, so unplanned requests take one only when the device
//!   has no room; if a planned request then finds its place occupied, PyTorch's policy serves it;
//! - the small pool is PyTorch's, and requests to private pools are not planned.
//!
//! Without a plan ([`Stalloc::new`]), it is exactly PyTorch's policy. When the device is out of memory, areas that are
//! entirely free are also released, and are allocated again later.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::cmp::Reverse;

use parkade::policy::{Attempt, Placement, Policy, PyTorch, Relief, Request, Rung};
use parkade::settings::Settings;
use parkade::units::{Bytes, PoolClass, StreamId};
use parkade::{BlockId, BlockView, Heap, PoolSlot};

use crate::entry::Entry;

/// The number of entries in the plan to search if a request is not the next one.
const LOOKAHEAD: usize = 64;

pub(crate) const ENTRY: Entry = Entry::new(
    "stalloc",
    "STAlloc: in studies, the program's first step is planned in advance; PyTorch's policy serves everything else",
    "STAlloc, arXiv 2507.16274; infinigence/STAlloc",
    |_| Box::new(Stalloc::new()),
);

/// The rules of STAlloc.
#[derive(Clone, Debug)]
pub struct Stalloc {
    pytorch: PyTorch,
    plan: Arc<Plan>,
    areas: Vec<Held>,
    /// The plan's entry for the next request.
    next: usize,
    /// The plan's entry for the request after the current one.
    then: usize,
    /// The current request's entry, if its place is free or its area is not allocated yet.
    found: Option<usize>,
    /// The number of rungs of the current ladder that come before PyTorch's own.
    rungs_before: u32,
    /// Whether the current request is served from an area, where every remainder is split off.
    is_in_area: bool,
    /// The areas that were entirely free when the cache was about to be released.
    leaving: RefCell<Vec<usize>>,
}

/// The state of an area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Held {
    NotYet,
    /// The area is allocated; this is its first byte.
    At(u64),
    Refused,
}

impl Stalloc {
    /// Creates a policy without a plan.
    #[must_use]
    pub fn new() -> Stalloc {
        Stalloc::with_plan(Arc::default())
    }

    /// Creates a policy with a plan for the program that is about to run.
    #[must_use]
    pub fn with_plan(plan: Arc<Plan>) -> Stalloc {
        Stalloc {
            pytorch: PyTorch::new(Settings::default()),
            areas: alloc::vec![Held::NotYet; plan.areas.len()],
            plan,
            next: 0,
            then: 0,
            found: None,
            rungs_before: 0,
            is_in_area: false,
            leaving: RefCell::default(),
        }
    }

    /// The plan's entry for this request, at or after `next`.
    fn planned(&self, request: &Request) -> Option<usize> {
        let entries = &self.plan.entries;
        if request.size <= MOST_UNPLANNED || request.pool != PoolSlot::default_pool(request.pool.class()) {
            return None;
        }
        let mut at = self.next;
        for _ in 0..LOOKAHEAD.min(entries.len()) {
            if entries[at].size == request.size.get() && entries[at].stream == request.stream {
                return Some(at);
            }
            at = self.behind(at);
        }
        None
    }

    /// The entry after this one.
    fn behind(&self, entry: usize) -> usize {
        if entry + 1 < self.plan.entries.len() { entry + 1 } else { self.plan.repeats_from }
    }

    /// The free block that contains the request's planned place, and the offset in that block. `None` if another block
    /// occupies the place, or if its area is not allocated.
    fn place_of(&self, heap: &Heap, request: &Request, entry: usize) -> Option<(BlockId, Bytes)> {
        let entry = self.plan.entries[entry];
        let Held::At(base) = self.areas[entry.area] else { return None };
        let (start, end) = (base + entry.offset, base + entry.offset + entry.size);
        let mut blocks = heap.at_least(request.pool, request.stream, request.size);
        let block = blocks.find(|block| block.address.get() <= start && end <= block.address.get() + block.size.get())?;
        Some((block.id, Bytes(start - block.address.get())))
    }

    fn is_in_areas(&self, block: &BlockView) -> bool {
        let mut areas = self.areas.iter().zip(&self.plan.areas);
        areas.any(|(held, area)| match held {
            Held::At(base) => (*base..base + area.bytes).contains(&block.address.get()),
            Held::NotYet | Held::Refused => false,
        })
    }

    /// The tightest free block, inside an area or outside all areas.
    fn tightest(&mut self, heap: &Heap, request: &Request, in_area: bool) -> Option<BlockId> {
        let mut blocks = heap.at_least(request.pool, request.stream, request.size);
        let found = blocks.find(|block| self.is_in_areas(block) == in_area).map(|block| block.id);
        if found.is_some() {
            self.is_in_area = in_area;
        }
        found
    }

    /// The entirely free segment of an area, or one of the same size on its stream.
    fn whole(&self, heap: &Heap, area: usize, base: Option<u64>) -> Option<u64> {
        let area = self.plan.areas[area];
        let pool = PoolSlot::default_pool(area.class);
        let blocks = heap.at_least(pool, area.stream, Bytes(area.bytes)).take_while(|block| block.size.get() == area.bytes);
        let mut whole = blocks.filter(|block| !block.is_split).map(|block| block.address.get());
        whole.find(|&address| base.is_none_or(|base| base == address))
    }

    /// Forgets the areas that have been released.
    fn forget_released(&mut self, heap: &Heap) {
        for area in core::mem::take(self.leaving.get_mut()) {
            if let Held::At(base) = self.areas[area]
                && self.whole(heap, area, Some(base)).is_none()
            {
                self.areas[area] = Held::NotYet;
            }
        }
    }

    /// The rung for a planned request, if there is one. It serves the request from its place, or allocates its area.
    fn climb_planned(&mut self, heap: &Heap, request: &Request, rung: u32) -> Option<Relief> {
        let entry = self.found?;
        let area = self.plan.entries[entry].area;
        if self.areas[area] == Held::NotYet {
            match self.whole(heap, area, None) {
                Some(base) => self.areas[area] = Held::At(base),
                None if rung > 0 => self.areas[area] = Held::Refused,
                None => {
                    self.rungs_before = 1;
                    return Some(Relief::Provide { bytes: Bytes(self.plan.areas[area].bytes), stream: request.stream });
                }
            }
        }
        self.found = None;
        let (block, offset) = self.place_of(heap, request, entry)?;
        self.is_in_area = true;
        Some(Relief::ReuseAt { block, offset })
    }
}

impl Default for Stalloc {
    fn default() -> Stalloc {
        Stalloc::new()
    }
}

impl Policy for Stalloc {
    fn name(&self) -> &'static str {
        "stalloc"
    }

    #[inline]
    fn round(&self, requested: Bytes) -> Option<Bytes> {
        self.pytorch.round(requested)
    }

    #[inline]
    fn classify(&self, size: Bytes) -> PoolClass {
        self.pytorch.classify(size)
    }

    fn place(&mut self, heap: &Heap, request: &Request) -> Placement {
        self.forget_released(heap);
        self.found = self.planned(request);
        self.then = self.found.map_or(self.next, |entry| self.behind(entry));
        let segment = Placement::Segment(self.pytorch.segment_for(request.size).unwrap_or(Bytes::MAX));
        if let Some(entry) = self.found {
            match (self.areas[self.plan.entries[entry].area], self.place_of(heap, request, entry)) {
                (_, Some((block, Bytes::ZERO))) => {
                    self.is_in_area = true;
                    self.next = self.then;
                    return Placement::Reuse(block);
                }
                (Held::NotYet, _) | (_, Some(_)) => return segment,
                (Held::At(_) | Held::Refused, None) => self.found = None,
            }
        }
        match self.tightest(heap, request, false) {
            Some(block) => {
                self.next = self.then;
                Placement::Reuse(block)
            }
            None => segment,
        }
    }

    #[inline]
    fn splits(&self, whole: Bytes, request: &Request) -> bool {
        self.is_in_area || self.pytorch.splits(whole, request)
    }

    fn ladder(&self) -> &'static [Rung] {
        &[Rung::Own]
    }

    fn relieve(&mut self, heap: &Heap, request: &Request, rung: u32) -> Relief {
        if rung == 0 {
            self.next = self.then;
            self.rungs_before = 0;
        }
        if let Some(relief) = self.climb_planned(heap, request, rung) {
            return relief;
        }
        self.is_in_area = false;
        match rung - self.rungs_before {
            0 => match self.tightest(heap, request, false) {
                Some(block) => Relief::Reuse(block),
                None => Relief::Release { blocks: Vec::new(), attempt: Attempt::Ask },
            },
            1 => Relief::Borrow,
            2 => match self.tightest(heap, request, true) {
                Some(block) => Relief::Reuse(block),
                None if heap.is_deferring() => Relief::Done,
                None => Relief::Wait,
            },
            3 => match self.tightest(heap, request, false).or_else(|| self.tightest(heap, request, true)) {
                Some(block) => Relief::Reuse(block),
                None => Relief::Release { blocks: self.releasable(heap), attempt: Attempt::AskAgain },
            },
            _ => Relief::Done,
        }
    }

    fn releasable(&self, heap: &Heap) -> Vec<BlockId> {
        let areas = self.areas.iter().enumerate();
        let leaving = areas.filter_map(|(area, held)| match held {
            Held::At(base) => self.whole(heap, area, Some(*base)).map(|_| area),
            Held::NotYet | Held::Refused => None,
        });
        self.leaving.borrow_mut().extend(leaving);
        heap.releasable()
    }
}

/// Requests of at most this many bytes are not planned: the original serves them from a separate pool.
const MOST_UNPLANNED: Bytes = Bytes(512);
/// Longer traces are not planned: the planner compares each request with all others.
const MOST_REQUESTS: usize = 20_000;

/// A traced request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Traced {
    /// The requested bytes.
    pub bytes: Bytes,
    /// The request's stream.
    pub stream: StreamId,
    /// The number of requests, including this one, that the program made before it freed this one. `None` if it was
    /// not freed during the trace.
    pub freed_after: Option<usize>,
    /// Whether this request recurs in the next repetition of the step. Requests that do not recur are not planned.
    pub comes_again: bool,
}

/// The trace of a program up to the end of its first step. A step is the part that the program repeats.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FirstStep {
    /// The requests in order, without those to private pools.
    pub requests: Vec<Traced>,
    /// The index at which the step begins. The requests from this index recur.
    pub repeats_from: usize,
}

/// One planned request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Planned {
    /// The size of its block in bytes.
    size: u64,
    stream: StreamId,
    /// The area that contains it.
    area: usize,
    /// Its offset in the area.
    offset: u64,
}

/// A range of memory for the planned requests of one stream and one collection of free blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Area {
    class: PoolClass,
    stream: StreamId,
    bytes: u64,
}

/// Offsets for the requests of a [`FirstStep`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Plan {
    entries: Vec<Planned>,
    areas: Vec<Area>,
    repeats_from: usize,
}

/// A request that has no offset yet.
struct Item {
    entry: usize,
    size: u64,
    /// The ranges in which it is live, as numbers of requests. The second range is not empty if the request survives
    /// into the next step.
    live: [(usize, usize); 2],
}

impl Plan {
    /// Plans the traced requests. If the trace has no step, or more than 20,000 requests, the plan is empty.
    #[must_use]
    pub fn of(step: &FirstStep) -> Plan {
        let pytorch = PyTorch::new(Settings::default());
        if step.requests.len() > MOST_REQUESTS || step.repeats_from >= step.requests.len() {
            return Plan::default();
        }
        let mut plan = Plan::default();
        let mut items: BTreeMap<(PoolClass, StreamId), Vec<Item>> = BTreeMap::new();
        for (number, request) in step.requests.iter().enumerate() {
            if number == step.repeats_from {
                plan.repeats_from = plan.entries.len();
            }
            let size = pytorch.round(request.bytes).filter(|&size| size > MOST_UNPLANNED && request.comes_again);
            let Some(size) = size else { continue };
            let entry = plan.entries.len();
            plan.entries.push(Planned { size: size.get(), stream: request.stream, area: 0, offset: 0 });
            let live = lifetime(step, number, request.freed_after);
            let key = (pytorch.classify(size), request.stream);
            items.entry(key).or_default().push(Item { entry, size: size.get(), live });
        }
        // No request in the step is planned, so none is ever looked up.
        if plan.repeats_from >= plan.entries.len() {
            return Plan::default();
        }
        for ((class, stream), items) in items {
            let (offsets, bytes) = place_all(&items);
            for (item, offset) in items.iter().zip(offsets) {
                plan.entries[item.entry].offset = offset;
                plan.entries[item.entry].area = plan.areas.len();
            }
            plan.areas.push(Area { class, stream, bytes });
        }
        plan
    }

    /// The total bytes of all areas.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        Bytes(self.areas.iter().map(|area| area.bytes).fold(0, u64::saturating_add))
    }
}

/// The ranges in which a request is live. The step repeats endlessly, so a request that survives into the next step
/// also occupies its place at the beginning of this one.
fn lifetime(step: &FirstStep, number: usize, freed_after: Option<usize>) -> [(usize, usize); 2] {
    let (begin, end) = (step.repeats_from, step.requests.len());
    let freed = freed_after.unwrap_or(usize::MAX).max(number + 1);
    if number < begin || freed <= end {
        return [(number, freed.min(end)), (0, 0)];
    }
    // It lives for at least an entire step.
    if freed - number >= end - begin {
        return [(begin, end), (0, 0)];
    }
    [(number, end), (begin, begin + (freed - end))]
}

/// The offsets of all items in one area, and the area's size, with the best of three orders.
fn place_all(items: &[Item]) -> (Vec<u64>, u64) {
    let keys = |item: &Item| {
        let length = item.live.iter().map(|(from, to)| (to - from) as u128).sum::<u128>();
        let size = u128::from(item.size);
        [(size, length), (size * length, size), (length, size)]
    };
    let placed = (0..3).map(|which| {
        let mut order: Vec<usize> = (0..items.len()).collect();
        order.sort_by_cached_key(|&place| Reverse(keys(&items[place])[which]));
        place_in_order(items, &order)
    });
    placed.min_by_key(|(_, bytes)| *bytes).unwrap_or_default()
}

/// Places each item at the lowest offset that is free while it lives.
fn place_in_order(items: &[Item], order: &[usize]) -> (Vec<u64>, u64) {
    let (mut offsets, mut top) = (alloc::vec![0; items.len()], 0);
    // The items that have an offset, in order of offset.
    let mut placed: Vec<usize> = Vec::with_capacity(items.len());
    for &place in order {
        let item = &items[place];
        let mut offset = 0_u64;
        for &other in &placed {
            if offset.saturating_add(item.size) <= offsets[other] {
                break;
            }
            if meet(item, &items[other]) {
                offset = offset.max(offsets[other].saturating_add(items[other].size));
            }
        }
        offsets[place] = offset;
        top = top.max(offset.saturating_add(item.size));
        let at = placed.partition_point(|&other| offsets[other] <= offset);
        placed.insert(at, place);
    }
    (offsets, top)
}

/// Whether two items are ever live at the same time.
fn meet(one: &Item, other: &Item) -> bool {
    one.live.iter().any(|a| other.live.iter().any(|b| a.0 < b.1 && b.0 < a.1))
}
