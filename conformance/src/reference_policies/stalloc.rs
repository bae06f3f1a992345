//! The rules of STAlloc, from the first paragraphs of `policies/src/stalloc.rs`: the plan places a request if the planned
//! place is free; if not, PyTorch's rules apply.
//!
//! The planner finds the place of each request of a program's first step by trying every possible offset: each recurring
//! request of more than 512 bytes gets the lowest free offset in the area of its stream and PyTorch collection, in whichever of
//! three orders needs the least memory.

use std::cell::RefCell;

use parkade::policy::{Attempt, Placement, Policy, PyTorch, Relief, Request, Rung};
use parkade::settings::Settings;
use parkade::units::{Bytes, PoolClass, StreamId};
use parkade::{BlockId, BlockView, Heap, PoolSlot};
use parkade_policies::FirstStep;

use super::lists::sufficient;

/// A planned request.
#[derive(Clone, Debug)]
pub(crate) struct Planned {
    pub(crate) size: u64,
    pub(crate) stream: StreamId,
    /// The position of its area in the list of areas.
    pub(crate) area: usize,
    pub(crate) offset: u64,
    class: PoolClass,
    /// Whether it is live after each of the program's requests.
    live: Vec<bool>,
}

/// An area of memory.
#[derive(Clone, Debug)]
pub(crate) struct Area {
    pub(crate) class: PoolClass,
    pub(crate) stream: StreamId,
    pub(crate) bytes: u64,
}

/// A plan.
#[derive(Clone, Default, Debug)]
pub(crate) struct Plan {
    pub(crate) requests: Vec<Planned>,
    pub(crate) areas: Vec<Area>,
    pub(crate) repeats_from: usize,
}

impl Plan {
    /// Plans a program's first step. The plan is empty if no request of the step is planned, or if there are more than 20,000
    /// requests.
    pub(crate) fn of(step: &FirstStep) -> Plan {
        let (begin, end) = (step.repeats_from, step.requests.len());
        if begin >= end || end > 20_000 {
            return Plan::default();
        }
        let pytorch = PyTorch::new(Settings::default());
        let (mut requests, mut repeats_from) = (Vec::new(), 0);
        for (number, request) in step.requests.iter().enumerate() {
            if number == begin {
                repeats_from = requests.len();
            }
            let Some(size) = pytorch.round(request.bytes).filter(|size| size.get() > 512 && request.comes_again) else {
                continue;
            };
            let (class, stream) = (pytorch.classify(size), request.stream);
            let live = moments(begin, end, number, request.freed_after);
            requests.push(Planned { size: size.get(), stream, area: 0, offset: 0, class, live });
        }
        if repeats_from == requests.len() {
            return Plan::default();
        }
        let mut areas: Vec<Area> = Vec::new();
        for request in &requests {
            if !areas.iter().any(|area| (area.class, area.stream) == (request.class, request.stream)) {
                areas.push(Area { class: request.class, stream: request.stream, bytes: 0 });
            }
        }
        areas.sort_by_key(|area| (area.class, area.stream));
        for (place, area) in areas.iter_mut().enumerate() {
            let own = |request: &Planned| (request.class, request.stream) == (area.class, area.stream);
            let members: Vec<usize> = (0..requests.len()).filter(|&request| own(&requests[request])).collect();
            let offsets = best_offsets(&requests, &members);
            for (&member, &offset) in members.iter().zip(&offsets) {
                (requests[member].area, requests[member].offset) = (place, offset);
            }
            area.bytes = height(&requests, &members, &offsets);
        }
        Plan { requests, areas, repeats_from }
    }

    /// Returns the bytes of all areas.
    pub(crate) fn bytes(&self) -> Bytes {
        Bytes(self.areas.iter().fold(0, |sum, area| sum.saturating_add(area.bytes)))
    }
}

/// Returns, for each request of the program, whether the given request is live after it. The requests from `begin` to `end`
/// repeat forever.
fn moments(begin: usize, end: usize, number: usize, freed_after: Option<usize>) -> Vec<bool> {
    let mut live = vec![false; end];
    // A request before the step that is not freed lives until the end of the step.
    let freed = freed_after.unwrap_or(usize::MAX).max(number + 1);
    if number < begin {
        live[number..freed.min(end)].fill(true);
        return live;
    }
    let mut moment = number;
    for _ in 0..(freed - number).min(end - begin) {
        live[moment] = true;
        moment = if moment + 1 == end { begin } else { moment + 1 };
    }
    live
}

fn meet(one: &Planned, other: &Planned) -> bool {
    one.live.iter().zip(&other.live).any(|(one, other)| *one && *other)
}

/// Returns the memory that these offsets need.
fn height(requests: &[Planned], members: &[usize], offsets: &[u64]) -> u64 {
    members.iter().zip(offsets).map(|(&member, offset)| offset.saturating_add(requests[member].size)).max().unwrap_or(0)
}

/// Returns the offsets in the first of the three orders that need the least memory: by size, by size and lifetime, and by
/// lifetime, each the largest first.
fn best_offsets(requests: &[Planned], members: &[usize]) -> Vec<u64> {
    let mut best: Option<(u64, Vec<u64>)> = None;
    for order in 0..3 {
        let key = |request: &Planned| {
            let (size, time) = (u128::from(request.size), request.live.iter().filter(|live| **live).count() as u128);
            [(size, time), (size * time, size), (time, size)][order]
        };
        let mut left: Vec<usize> = (0..members.len()).collect();
        let (mut offsets, mut done) = (vec![0; members.len()], Vec::new());
        while !left.is_empty() {
            // Among equal keys, the first request comes first.
            let largest = left.iter().map(|&place| key(&requests[members[place]])).max();
            let next = left.iter().position(|&place| Some(key(&requests[members[place]])) == largest).unwrap_or(0);
            let place = left.remove(next);
            offsets[place] = lowest_offset(requests, members, &offsets, &done, place);
            done.push(place);
        }
        let bytes = height(requests, members, &offsets);
        if best.as_ref().is_none_or(|(least, _)| bytes < *least) {
            best = Some((bytes, offsets));
        }
    }
    best.map(|(_, offsets)| offsets).unwrap_or_default()
}

/// Returns the lowest offset at which a request does not overlap any request that is live at the same time.
fn lowest_offset(requests: &[Planned], members: &[usize], offsets: &[u64], done: &[usize], place: usize) -> u64 {
    let own = &requests[members[place]];
    let others: Vec<(u64, u64)> = done
        .iter()
        .filter(|&&other| meet(own, &requests[members[other]]))
        .map(|&other| (offsets[other], offsets[other].saturating_add(requests[members[other]].size)))
        .collect();
    let is_free = |from: u64| others.iter().all(|&(start, end)| end <= from || from.saturating_add(own.size) <= start);
    let ends = others.iter().map(|&(_, end)| end);
    std::iter::once(0).chain(ends).filter(|&from| is_free(from)).min().unwrap_or(0)
}

/// The number of entries in the plan that are searched for a request.
const LOOKAHEAD: usize = 64;

/// The rules with a plan.
#[derive(Debug)]
pub(crate) struct Stalloc {
    pytorch: PyTorch,
    plan: Plan,
    /// The first byte of each area that is allocated.
    bases: Vec<Option<u64>>,
    /// For each area, whether the device has refused it. It is then never allocated.
    refused: Vec<bool>,
    /// The areas that were entirely free when the cache was released.
    leaving: RefCell<Vec<usize>>,
    /// The entry from which the search for the next request begins.
    expected: usize,
    /// The value of `expected` after the current request.
    after: usize,
    /// The current request's entry.
    entry: Option<usize>,
    /// Whether the current request has asked for its area.
    has_provided: bool,
    is_in_area: bool,
}

impl Stalloc {
    pub(crate) fn new(plan: Plan) -> Stalloc {
        let areas = plan.areas.len();
        Stalloc {
            pytorch: PyTorch::new(Settings::default()),
            plan,
            bases: vec![None; areas],
            refused: vec![false; areas],
            leaving: RefCell::default(),
            expected: 0,
            after: 0,
            entry: None,
            has_provided: false,
            is_in_area: false,
        }
    }

    /// Returns the entries in order, beginning with this one. The beginning of the step follows the last entry.
    fn order_from(&self, entry: usize) -> impl Iterator<Item = usize> + '_ {
        let next = |&entry: &usize| Some(if entry + 1 == self.plan.requests.len() { self.plan.repeats_from } else { entry + 1 });
        std::iter::successors(Some(entry), next)
    }

    fn find_entry(&self, request: &Request) -> Option<usize> {
        let is_private = request.pool != PoolSlot::default_pool(request.pool.class());
        if is_private || request.size.get() <= 512 || self.plan.requests.is_empty() {
            return None;
        }
        let most = LOOKAHEAD.min(self.plan.requests.len());
        let is_it = |&entry: &usize| {
            let planned = &self.plan.requests[entry];
            (planned.size, planned.stream) == (request.size.get(), request.stream)
        };
        self.order_from(self.expected).take(most).find(is_it)
    }

    /// Returns the free block that contains the entry's place, and the offset of the place in that block.
    fn free_place(&self, heap: &Heap, request: &Request, entry: usize) -> Option<(BlockId, u64)> {
        let planned = &self.plan.requests[entry];
        let start = self.bases[planned.area]? + planned.offset;
        let blocks = heap.free_blocks(request.pool).filter(|block| block.stream == request.stream);
        let mut around = blocks.filter(|block| {
            let begin = block.address.get();
            begin <= start && start + planned.size <= begin + block.size.get()
        });
        around.next().map(|block| (block.id, start - block.address.get()))
    }

    fn is_in_an_area(&self, block: &BlockView) -> bool {
        let address = block.address.get();
        let areas = self.bases.iter().zip(&self.plan.areas);
        areas
            .filter_map(|(base, area)| base.map(|base| (base, base + area.bytes)))
            .any(|(from, to)| from <= address && address < to)
    }

    /// Returns the tightest block inside or outside the areas.
    fn search(&mut self, heap: &Heap, request: &Request, in_area: bool) -> Option<BlockId> {
        let blocks = sufficient(heap, request, request.stream);
        let block = blocks.iter().find(|block| self.is_in_an_area(block) == in_area)?;
        let id = block.id;
        self.is_in_area = in_area;
        Some(id)
    }

    /// Returns the addresses of the entirely free segments that have an area's size and stream.
    fn whole_segments(&self, heap: &Heap, area: usize) -> Vec<u64> {
        let area = &self.plan.areas[area];
        let is_one = |block: &BlockView| block.stream == area.stream && block.size.get() == area.bytes && !block.is_split;
        heap.free_blocks(PoolSlot::default_pool(area.class)).filter(is_one).map(|block| block.address.get()).collect()
    }

    fn is_whole(&self, heap: &Heap, area: usize) -> bool {
        self.bases[area].is_some_and(|base| self.whole_segments(heap, area).contains(&base))
    }

    /// Serves a planned request on the ladder: from its place or, in the first turn, from an area that is allocated now.
    fn climb_planned(&mut self, heap: &Heap, request: &Request, turn: u32) -> Option<Relief> {
        let entry = self.entry?;
        let area = self.plan.requests[entry].area;
        if self.bases[area].is_none() && !self.refused[area] {
            self.bases[area] = self.whole_segments(heap, area).first().copied();
            if self.bases[area].is_none() {
                if turn == 0 {
                    self.has_provided = true;
                    return Some(Relief::Provide { bytes: Bytes(self.plan.areas[area].bytes), stream: request.stream });
                }
                self.refused[area] = true;
            }
        }
        self.entry = None;
        let (block, offset) = self.free_place(heap, request, entry)?;
        self.is_in_area = true;
        Some(Relief::ReuseAt { block, offset: Bytes(offset) })
    }
}

impl Policy for Stalloc {
    fn name(&self) -> &'static str {
        "stalloc"
    }

    fn round(&self, requested: Bytes) -> Option<Bytes> {
        self.pytorch.round(requested)
    }

    fn classify(&self, size: Bytes) -> PoolClass {
        self.pytorch.classify(size)
    }

    fn place(&mut self, heap: &Heap, request: &Request) -> Placement {
        for area in std::mem::take(self.leaving.get_mut()) {
            if !self.is_whole(heap, area) {
                self.bases[area] = None;
            }
        }
        self.entry = self.find_entry(request);
        self.after = self.entry.map_or(self.expected, |entry| self.order_from(entry).nth(1).unwrap_or(entry));
        let segment = Placement::Segment(self.pytorch.segment_for(request.size).unwrap_or(Bytes::MAX));
        if let Some(entry) = self.entry {
            let area = self.plan.requests[entry].area;
            match self.free_place(heap, request, entry) {
                Some((block, 0)) => {
                    self.is_in_area = true;
                    self.expected = self.after;
                    return Placement::Reuse(block);
                }
                Some(_) => return segment,
                None if self.bases[area].is_none() && !self.refused[area] => return segment,
                None => self.entry = None,
            }
        }
        let Some(block) = self.search(heap, request, false) else { return segment };
        self.expected = self.after;
        Placement::Reuse(block)
    }

    fn splits(&self, whole: Bytes, request: &Request) -> bool {
        self.is_in_area || self.pytorch.splits(whole, request)
    }

    fn ladder(&self) -> &'static [Rung] {
        &[Rung::Own]
    }

    fn relieve(&mut self, heap: &Heap, request: &Request, turn: u32) -> Relief {
        if turn == 0 {
            self.expected = self.after;
            self.has_provided = false;
        }
        if let Some(relief) = self.climb_planned(heap, request, turn) {
            return relief;
        }
        self.is_in_area = false;
        let found = match turn - u32::from(self.has_provided) {
            0 | 3 => self.search(heap, request, false),
            _ => None,
        };
        let found = match (found, turn - u32::from(self.has_provided)) {
            (None, 2 | 3) => self.search(heap, request, true),
            (found, _) => found,
        };
        if let Some(block) = found {
            return Relief::Reuse(block);
        }
        match turn - u32::from(self.has_provided) {
            0 => Relief::Release { blocks: Vec::new(), attempt: Attempt::Ask },
            1 => Relief::Borrow,
            2 if !heap.is_deferring() => Relief::Wait,
            3 => Relief::Release { blocks: self.releasable(heap), attempt: Attempt::AskAgain },
            _ => Relief::Done,
        }
    }

    fn releasable(&self, heap: &Heap) -> Vec<BlockId> {
        let whole = (0..self.bases.len()).filter(|&area| self.is_whole(heap, area));
        self.leaving.borrow_mut().extend(whole);
        heap.releasable()
    }
}
