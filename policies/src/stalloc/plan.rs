//! The plan: an offset in a static area for each request in a program's start and in the step that it repeats.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::cmp::Reverse;

use parkade::policy::{Policy, PyTorch};
use parkade::settings::Settings;
use parkade::units::{Bytes, PoolClass, StreamId};

/// Requests of at most this many bytes are not planned: the original serves them from a separate pool.
pub(super) const MOST_UNPLANNED: Bytes = Bytes(512);
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
pub(super) struct Entry {
    /// The size of its block in bytes.
    pub(super) size: u64,
    pub(super) stream: StreamId,
    /// The area that contains it.
    pub(super) area: usize,
    /// Its offset in the area.
    pub(super) offset: u64,
}

/// A range of memory for the planned requests of one stream and one collection of free blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Area {
    pub(super) class: PoolClass,
    pub(super) stream: StreamId,
    pub(super) bytes: u64,
}

/// Offsets for the requests of a [`FirstStep`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Plan {
    pub(super) entries: Vec<Entry>,
    pub(super) areas: Vec<Area>,
    pub(super) repeats_from: usize,
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
            plan.entries.push(Entry { size: size.get(), stream: request.stream, area: 0, offset: 0 });
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
