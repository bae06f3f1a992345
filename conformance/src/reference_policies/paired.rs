//! A policy and its reference policy, side by side: the pair asks both every question, compares the answers, and returns the
//! policy's own answer.

use std::cell::{Cell, RefCell};
use std::fmt::Debug;
use std::rc::Rc;

use parkade::policy::{Attempt, Placement, Policy, Relief, Request, Rung};
use parkade::profile::Profile;
use parkade::units::{Bytes, DeviceAddress, MIB, PoolClass};
use parkade::{BlockId, FreePair, Heap, LiveBlock, PoolSlot};

use crate::law::{Broken, Law};
use crate::program::search::Draws;

/// The first answer of a policy that differs from its reference policy's answer. Clones share it.
#[derive(Clone, Default, Debug)]
pub(crate) struct Choices(Rc<RefCell<Option<String>>>);

impl Choices {
    /// Checks that all answers so far were equal.
    ///
    /// # Errors
    /// The first difference.
    pub(crate) fn check(&self) -> Result<(), Broken> {
        self.0.borrow().as_ref().map_or(Ok(()), |difference| Err(Broken::new(Law::Choices, difference)))
    }
}

/// A policy and its reference policy, both without state.
pub(crate) type Pair = (Box<dyn Policy>, Box<dyn Policy>);

/// The policy under test and its reference policy.
pub(crate) struct Paired {
    tested: Box<dyn Policy>,
    reference: Box<dyn Policy>,
    /// Creates both anew.
    make: Box<dyn Fn() -> Option<Pair>>,
    choices: Choices,
    /// The number of requests so far. The extra questions depend on it.
    requests: Cell<u64>,
}

/// Sizes of remainders at which the rules for splitting may change.
const REMAINDERS: [u64; 7] = [256, 512, MIB, 2 * MIB, 20 * MIB, 128 * MIB, 1024 * MIB];
/// Policies without state are asked at every n-th request.
const EVERY: u64 = 3;
/// The maximum number of turns of a ladder.
const MOST_TURNS: u32 = 300;
/// The smallest unit of any policy.
const UNIT: u64 = 256;

impl Paired {
    /// Pairs a policy with its reference policy. Also returns the place where the first difference appears.
    pub(crate) fn new(make: impl Fn() -> Option<Pair> + 'static) -> Option<(Paired, Choices)> {
        let (tested, reference) = make()?;
        let choices = Choices::default();
        let paired = Paired { tested, reference, make: Box::new(make), choices: choices.clone(), requests: Cell::new(0) };
        paired.compare("name", String::new, paired.tested.name(), paired.reference.name());
        Some((paired, choices))
    }

    /// Asks policies without state about a drawn request on the same heap, up to the end of their ladder: nothing is carried
    /// out, as if each step failed.
    fn ask_anew(&self, heap: &Heap) {
        let Some((mut tested, mut reference)) = (self.make)() else { return };
        let mut draws = Draws::new(self.requests.get());
        let Some(request) = drawn_request(heap, &*reference, &mut draws) else { return };
        let about = |turn: u32| format!(" without state, in turn {turn}{}", situation(heap, &request));
        let placed = self.compare("place", || about(0), tested.place(heap, &request), reference.place(heap, &request));
        if matches!(placed, Placement::Reuse(_)) && draws.below(4) > 0 {
            return;
        }
        let (own, mut turn) = (tested.ladder().iter().filter(|&&rung| rung == Rung::Own).count(), 0);
        for _ in 0..own {
            while turn < MOST_TURNS {
                let answers = (tested.relieve(heap, &request, turn), reference.relieve(heap, &request, turn));
                let relief = self.compare("relieve", || about(turn), answers.0, answers.1);
                turn += 1;
                if relief == Relief::Done || self.choices.0.borrow().is_some() {
                    break;
                }
            }
        }
    }

    /// Compares two answers and returns the tested policy's answer.
    fn compare<T: PartialEq + Debug>(&self, question: &str, about: impl FnOnce() -> String, tested: T, reference: T) -> T {
        if tested != reference && self.choices.0.borrow().is_none() {
            let text = format!("{question}: the policy answers {tested:?}, but its rules say {reference:?}{}", about());
            self.choices.0.replace(Some(text));
        }
        tested
    }

    /// Asks further questions about this request and about sizes near it. None of them changes the policy's state.
    fn ask_more(&self, heap: &Heap, request: &Request) {
        let turn = self.requests.replace(self.requests.get() + 1);
        let size = request.size.get();
        let remainder = REMAINDERS[turn as usize % REMAINDERS.len()];
        for whole in [size.saturating_mul(2), size.saturating_add(remainder)] {
            for whole in [whole.saturating_sub(UNIT), whole, whole.saturating_add(UNIT)] {
                if whole > size {
                    self.splits(Bytes(whole), request);
                }
            }
        }
        for requested in [size.saturating_add(1), size.saturating_sub(1), size.saturating_add(remainder), u64::MAX - turn % 1024]
        {
            let requested = Bytes(requested.max(1));
            self.round(requested);
            self.classify(requested);
        }
        for pool in [request.pool, PoolSlot::default_pool(PoolClass::Small), PoolSlot::default_pool(PoolClass::Large)] {
            self.is_expandable(pool);
            self.page(pool);
            self.stamp(pool);
        }
        for missing in [size.checked_next_multiple_of(2 * MIB).unwrap_or(2 * MIB), remainder.max(2 * MIB)] {
            self.handle(heap, request, Bytes(missing));
        }
        self.takes_high_end(request);
        self.growth(request);
        self.reservation(heap.device_total());
        self.lends_to_pools();
        self.waits_for_pools(heap);
        self.releases_during_captures();
        self.reuses_in_captures();
        self.is_oversize(request.size);
        self.max_split_size();
        if turn.is_multiple_of(8) {
            self.breaks_for_pools(heap);
            self.oversize(heap, request);
        }
    }
}

/// Draws a request on one of the heap's streams. Its size is that of a free block or of the unreserved memory, or a sum of two of
/// these, and often a few bytes more or less.
fn drawn_request(heap: &Heap, policy: &dyn Policy, draws: &mut Draws) -> Option<Request> {
    let memory = heap.limit().unwrap_or(Bytes::MAX).min(heap.device_total()).get();
    let reserved = heap.reserved().get();
    let mut sizes = vec![memory, reserved, memory.saturating_sub(reserved), memory / 4, 2 * MIB, 20 * MIB, 512 * MIB];
    sizes.extend(heap.pool_slots().flat_map(|pool| heap.free_blocks(pool)).map(|block| block.size.get()));
    let mut any = |bound: usize| draws.below(bound as u64) as usize;
    let mut bytes = sizes[any(sizes.len())];
    if any(2) == 0 {
        bytes = bytes.saturating_add(sizes[any(sizes.len())]);
    }
    let offset = [0, 0, 0, 1, -1, 512, -512, 2 << 20, -(2 << 20)][any(9)];
    let requested = Bytes(bytes.saturating_add_signed(offset).max(1));
    let size = policy.round(requested)?;
    let class = policy.classify(size);
    let pools: Vec<PoolSlot> = heap.pool_slots().filter(|pool| pool.class() == class).collect();
    let pool = if any(3) == 0 { pools[any(pools.len())] } else { PoolSlot::default_pool(class) };
    let stream = *heap.streams_seen().get(any(heap.streams_seen().len().max(1)))?;
    Some(Request { requested, size, pool, stream, is_expandable: policy.is_expandable(pool) })
}

/// Describes a request and the free blocks of its pool.
fn situation(heap: &Heap, request: &Request) -> String {
    let free: Vec<String> = heap
        .free_blocks(request.pool)
        .map(|block| {
            format!("{:?} at {:#x}, {} bytes, stream {:#x}", block.id, block.address.get(), block.size, block.stream.get())
        })
        .collect();
    let (limit, total) = (heap.limit(), heap.device_total());
    format!("; {request:?}, {} bytes reserved, limit {limit:?} of {total}, free blocks: [{}]", heap.reserved(), free.join("; "))
}

impl Policy for Paired {
    fn name(&self) -> &'static str {
        self.tested.name()
    }

    fn round(&self, requested: Bytes) -> Option<Bytes> {
        let about = || format!(" as the size for {requested} bytes");
        self.compare("round", about, self.tested.round(requested), self.reference.round(requested))
    }

    fn classify(&self, size: Bytes) -> PoolClass {
        let about = || format!(" for {size} bytes");
        self.compare("classify", about, self.tested.classify(size), self.reference.classify(size))
    }

    fn place(&mut self, heap: &Heap, request: &Request) -> Placement {
        let (tested, reference) = (self.tested.place(heap, request), self.reference.place(heap, request));
        let placement = self.compare("place", || situation(heap, request), tested, reference);
        self.ask_more(heap, request);
        if self.requests.get().is_multiple_of(EVERY) {
            self.ask_anew(heap);
        }
        placement
    }

    fn splits(&self, whole: Bytes, request: &Request) -> bool {
        let about = || format!(" about splitting {whole} bytes for {request:?}");
        self.compare("splits", about, self.tested.splits(whole, request), self.reference.splits(whole, request))
    }

    fn profile(&self) -> &'static Profile {
        self.compare("profile", String::new, self.tested.profile(), self.reference.profile())
    }

    fn is_expandable(&self, pool: PoolSlot) -> bool {
        let about = || format!(" for {pool:?}");
        self.compare("is_expandable", about, self.tested.is_expandable(pool), self.reference.is_expandable(pool))
    }

    fn page(&self, pool: PoolSlot) -> Bytes {
        self.compare("page", || format!(" for {pool:?}"), self.tested.page(pool), self.reference.page(pool))
    }

    fn reservation(&self, total: Bytes) -> Bytes {
        let about = || format!(" on a device with {total} bytes");
        self.compare("reservation", about, self.tested.reservation(total), self.reference.reservation(total))
    }

    fn rejects(&self, reserved: Bytes, size: Bytes, total: Bytes) -> bool {
        let (tested, reference) = (self.tested.rejects(reserved, size, total), self.reference.rejects(reserved, size, total));
        self.compare("rejects", || format!(" about {size} bytes, with {reserved} of {total} reserved"), tested, reference)
    }

    fn ladder(&self) -> &'static [Rung] {
        self.compare("ladder", String::new, self.tested.ladder(), self.reference.ladder())
    }

    fn garbage(&mut self, heap: &Heap) -> Vec<BlockId> {
        let (tested, reference) = (self.tested.garbage(heap), self.reference.garbage(heap));
        self.compare("garbage", String::new, tested, reference)
    }

    fn oversize(&self, heap: &Heap, request: &Request) -> (Vec<BlockId>, Attempt) {
        let (tested, reference) = (self.tested.oversize(heap, request), self.reference.oversize(heap, request));
        self.compare("oversize", || situation(heap, request), tested, reference)
    }

    fn releasable(&self, heap: &Heap) -> Vec<BlockId> {
        let (tested, reference) = (self.tested.releasable(heap), self.reference.releasable(heap));
        self.compare("releasable", String::new, tested, reference)
    }

    fn releases_during_captures(&self) -> bool {
        let (tested, reference) = (self.tested.releases_during_captures(), self.reference.releases_during_captures());
        self.compare("releases_during_captures", String::new, tested, reference)
    }

    fn reuses_in_captures(&self) -> bool {
        let (tested, reference) = (self.tested.reuses_in_captures(), self.reference.reuses_in_captures());
        self.compare("reuses_in_captures", String::new, tested, reference)
    }

    fn stamp(&self, pool: PoolSlot) -> u64 {
        self.compare("stamp", || format!(" for {pool:?}"), self.tested.stamp(pool), self.reference.stamp(pool))
    }

    fn is_oversize(&self, size: Bytes) -> bool {
        let about = || format!(" about {size} bytes");
        self.compare("is_oversize", about, self.tested.is_oversize(size), self.reference.is_oversize(size))
    }

    fn max_split_size(&self) -> i64 {
        self.compare("max_split_size", String::new, self.tested.max_split_size(), self.reference.max_split_size())
    }

    fn relieve(&mut self, heap: &Heap, request: &Request, turn: u32) -> Relief {
        let (tested, reference) = (self.tested.relieve(heap, request, turn), self.reference.relieve(heap, request, turn));
        self.compare("relieve", || format!(" in turn {turn}{}", situation(heap, request)), tested, reference)
    }

    fn coalesces(&self, pair: &FreePair) -> bool {
        let about = || format!(" about {pair:?}");
        self.compare("coalesces", about, self.tested.coalesces(pair), self.reference.coalesces(pair))
    }

    fn takes_high_end(&self, request: &Request) -> bool {
        let about = || format!(" for {request:?}");
        self.compare("takes_high_end", about, self.tested.takes_high_end(request), self.reference.takes_high_end(request))
    }

    fn has_own_segments(&self) -> bool {
        self.compare("has_own_segments", String::new, self.tested.has_own_segments(), self.reference.has_own_segments())
    }

    fn growth(&self, request: &Request) -> Bytes {
        self.compare("growth", || format!(" for {request:?}"), self.tested.growth(request), self.reference.growth(request))
    }

    fn handle(&self, heap: &Heap, request: &Request, missing: Bytes) -> Option<Bytes> {
        let about = || format!(" for {missing} missing bytes{}", situation(heap, request));
        let (tested, reference) = (self.tested.handle(heap, request, missing), self.reference.handle(heap, request, missing));
        self.compare("handle", about, tested, reference)
    }

    fn lends_to_pools(&self) -> bool {
        self.compare("lends_to_pools", String::new, self.tested.lends_to_pools(), self.reference.lends_to_pools())
    }

    fn waits_for_pools(&self, heap: &Heap) -> bool {
        let about = || format!(" with {} bytes reserved and the limit {:?}", heap.reserved(), heap.limit());
        self.compare("waits_for_pools", about, self.tested.waits_for_pools(heap), self.reference.waits_for_pools(heap))
    }

    fn breaks_for_pools(&self, heap: &Heap) -> Vec<DeviceAddress> {
        let about = || format!(" with {} bytes reserved and the limit {:?}", heap.reserved(), heap.limit());
        self.compare("breaks_for_pools", about, self.tested.breaks_for_pools(heap), self.reference.breaks_for_pools(heap))
    }

    fn allocated(&mut self, heap: &Heap, block: LiveBlock<'_>) {
        self.tested.allocated(heap, block);
        self.reference.allocated(heap, block);
    }

    fn freed(&mut self, heap: &Heap, block: LiveBlock<'_>) {
        self.tested.freed(heap, block);
        self.reference.freed(heap, block);
    }
}
