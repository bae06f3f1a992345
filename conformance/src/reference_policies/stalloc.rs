//! The rules of STAlloc, from the first paragraphs of `policies/src/stalloc.rs`: the plan places a request if the planned
//! place is free; if not, PyTorch's rules apply.

use std::cell::RefCell;

use parkade::policy::{Attempt, Placement, Policy, PyTorch, Relief, Request, Rung};
use parkade::settings::Settings;
use parkade::units::{Bytes, PoolClass};
use parkade::{BlockId, BlockView, Heap, PoolSlot};

use super::lists::sufficient;
use super::plan::Plan;

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
