//! A policy wrapper that answers like the wrapped policy and records the answers, so that they can be compared with the
//! allocator's actions.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use parkade::policy::{Attempt, Placement, Policy, PyTorch, Relief, Request, Rung, Wrapper};
use parkade::settings::Settings;
use parkade::trace::TraceEntry;
use parkade::units::{Bytes, DeviceAddress, MIB, StreamId};
use parkade::{Allocator, BlockId, FreePair, Heap, LiveBlock, PoolSlot};

use super::lending;
use crate::backend::{AnyDevice, WitnessedDevice};
use crate::law::{Broken, Law, ensure};

/// The allocator under test.
pub(crate) type Core = Allocator<WitnessedDevice<AnyDevice>, Watched, Vec<TraceEntry>>;

/// A heap as a policy sees it: reserved bytes, and each free block's address, size and stream.
type Picture = (u64, Vec<(u64, u64, u64)>);

/// The newest answer to a request.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    /// Reuse of a block, with its address if it is a free block.
    Reuse(Option<u64>),
    /// A block of another stream, with its address if it is a free block.
    Transfer(Option<u64>),
    /// A part of a block of another stream, starting at its first byte.
    TransferPart(Option<u64>),
    /// Memory that the default pool lends, starting with this byte if there is any.
    Lend(Option<u64>),
    /// A segment of this many bytes, after this many blocks are released.
    Segment(u64, usize),
    /// Another rung of the ladder, with the number of blocks it names.
    Rung(usize),
}

/// The number of times that a policy took each kind of action, and the driver time. Transfers and remaps count only if
/// they were performed and served a request.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Reached {
    pub(crate) reuses: u64,
    pub(crate) transfers: u64,
    pub(crate) remaps: u64,
    pub(crate) releases: u64,
    pub(crate) refusals: u64,
    /// Requests that a private pool has served, and checkpoints that were loaded.
    pub(crate) private: u64,
    pub(crate) loads: u64,
    /// The time of the driver calls in nanoseconds, if the device reports it.
    pub(crate) driver_ns: u64,
}

impl Reached {
    /// Returns the sum of both.
    pub(crate) fn and(self, other: Reached) -> Reached {
        Reached {
            reuses: self.reuses + other.reuses,
            transfers: self.transfers + other.transfers,
            remaps: self.remaps + other.remaps,
            releases: self.releases + other.releases,
            refusals: self.refusals + other.refusals,
            private: self.private + other.private,
            loads: self.loads + other.loads,
            driver_ns: self.driver_ns + other.driver_ns,
        }
    }
}

/// An entirely free handle that the policy moves: its addresses, and the stream and the pool of the free block around it.
#[derive(Clone, Debug)]
pub(crate) struct Moved {
    pub(crate) addresses: Range<u64>,
    pub(crate) stream: StreamId,
    pub(crate) pool: PoolSlot,
}

impl Moved {
    /// Finds the handle that begins at an address.
    fn at(heap: &Heap, address: DeviceAddress) -> Option<Moved> {
        heap.pool_slots().find_map(|pool| {
            heap.free_blocks(pool).find_map(|block| {
                let handle = heap.handles_in(block.id).find(|handle| handle.address == address)?;
                let addresses = address.get()..address.get() + handle.size.get();
                Some(Moved { addresses, stream: block.stream, pool })
            })
        })
    }
}

/// A policy's answers for the current request.
#[derive(Clone, Default, Debug)]
pub(crate) struct Notes {
    pub(crate) answer: Option<Answer>,
    /// The pool of the current request; pools that serve when memory runs out may be searched too.
    pool: Option<PoolSlot>,
    /// The size of the segment that `place` last requested in that pool.
    segment: u64,
    /// The heap at the time when the policy was asked.
    picture: Picture,
    /// A free block that the policy would have taken when it gave up.
    pub(crate) overlooked: Option<String>,
    /// Memory that the default pool could have lent for the request.
    pub(crate) unlent: Option<String>,
    /// Whether the step before the newest one was to lend, and there was nothing to lend.
    follows_lending: bool,
    /// The number of handles that moved for the request since its rescue began.
    pub(crate) rescued_with: Option<u64>,
    /// The handles that were to move for the request.
    moved: Vec<Moved>,
    /// The addresses of handles that were to be broken for it, and of blocks whose pages were to be mapped elsewhere.
    named: Vec<Range<u64>>,
    /// Whether all free blocks were to be coalesced for it.
    coalesced: bool,
    pub(crate) reached: Reached,
    /// Whether the policy has ever requested that a block change streams.
    has_transferred: bool,
}

impl Notes {
    /// Keeps the memory that a step names.
    fn keep_named(&mut self, heap: &Heap, step: &Relief) {
        match step {
            Relief::Move { handles } | Relief::Replace { handles } => {
                self.moved.extend(handles.iter().filter_map(|&handle| Moved::at(heap, handle)));
            }
            Relief::Break { handles } => {
                let parts = heap.pool_slots().flat_map(|pool| heap.partly_free(pool, Bytes(2 * MIB))).map(|part| part.handle);
                let own = parts.filter(|handle| handles.contains(&handle.address));
                self.named.extend(own.map(|handle| handle.address.get()..handle.address.get() + handle.size.get()));
            }
            Relief::Remap { blocks } => {
                let free = heap.pool_slots().flat_map(|pool| heap.free_blocks(pool));
                let own = free.filter(|block| blocks.contains(&block.id));
                self.named.extend(own.map(|block| block.address.get()..block.address.get() + block.size.get()));
            }
            Relief::Coalesce => self.coalesced = true,
            _ => {}
        }
    }

    /// Counts the handles that move for a rescued request.
    fn count_moved(&mut self, step: &Relief) {
        match (step, &mut self.rescued_with) {
            (Relief::Rescue { .. }, moved) => drop(moved.get_or_insert(0)),
            (Relief::Move { handles } | Relief::Replace { handles }, Some(moved)) => *moved += handles.len() as u64,
            _ => {}
        }
    }
}

/// A policy under test.
pub(crate) enum Tested {
    /// PyTorch's, whose settings a program may change.
    PyTorch(Box<PyTorch>),
    /// Any other one.
    Other(Box<dyn Policy>),
    /// Any other one that can be cloned.
    Clonable(Box<dyn Clonable>),
}

/// A policy that can be cloned although its type is erased.
pub(crate) trait Clonable: Policy {
    fn clone_boxed(&self) -> Box<dyn Clonable>;
}

impl<P: Policy + Clone + 'static> Clonable for P {
    fn clone_boxed(&self) -> Box<dyn Clonable> {
        Box::new(self.clone())
    }
}

impl Clone for Tested {
    /// # Panics
    /// If the policy cannot be cloned. The law about clones makes its policies so that they can.
    fn clone(&self) -> Tested {
        match self {
            Tested::PyTorch(policy) => Tested::PyTorch(policy.clone()),
            Tested::Clonable(policy) => Tested::Clonable((**policy).clone_boxed()),
            Tested::Other(policy) => panic!("the policy {} cannot be cloned", (**policy).name()),
        }
    }
}

/// A block of which the policy has learned that it is handed out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Told {
    id: BlockId,
    pub(crate) address: u64,
    pub(crate) requested: u64,
    size: u64,
    pub(crate) stream: StreamId,
    pub(crate) pool: PoolSlot,
}

impl Told {
    pub(crate) fn of(block: LiveBlock<'_>) -> Told {
        let (address, requested, size) = (block.address().get(), block.requested().get(), block.size().get());
        Told { id: block.id(), address, requested, size, stream: block.stream(), pool: block.pool() }
    }
}

/// A policy that records its answers, if they are to be compared with the allocator's actions.
#[derive(Clone)]
pub(crate) struct Watched {
    policy: Tested,
    is_watched: bool,
    notes: RefCell<Notes>,
    /// The size that the block must have according to the policy's answers about splitting; 0 if the policy was not
    /// asked.
    kept: Cell<u64>,
    /// The size of the request if it gets the high end of its block.
    high: Cell<Option<u64>>,
    /// The next rung of the policy's ladder, and the number of the policy's own steps so far.
    rung: usize,
    own_turn: u32,
    /// The blocks of which the policy has learned that they are handed out, by address, and the first call that does not
    /// fit those before it.
    told: BTreeMap<u64, Told>,
    mistold: Option<String>,
    /// Whether the policy has ever chosen the size of a handle, and whether it has ever left memory in pages.
    handles: Cell<(bool, bool)>,
    /// The blocks that private pools have handed out since the last call of [`Watched::take_handed_out`]: first byte and end.
    handed_out: Vec<(u64, u64)>,
    /// Where the policy has kept two free blocks apart: the first bytes of the high blocks. Asked again, it may have changed
    /// its answer.
    apart: RefCell<BTreeSet<u64>>,
    /// The first bytes of the reserved ranges before the current step.
    ranges: BTreeSet<u64>,
}

impl Watched {
    pub(crate) fn new(policy: Tested, is_watched: bool) -> Watched {
        let (kept, high) = (Cell::new(0), Cell::new(None));
        let (notes, apart, handles) = (RefCell::default(), RefCell::default(), Cell::default());
        let (told, handed_out, ranges) = (BTreeMap::new(), Vec::new(), BTreeSet::new());
        let (rung, own_turn, mistold) = (0, 0, None);
        Watched { policy, is_watched, notes, kept, high, rung, own_turn, told, mistold, handles, handed_out, apart, ranges }
    }

    /// Returns the blocks of which the policy has learned that they are handed out, by address.
    ///
    /// # Errors
    /// The first call that does not fit those before it.
    pub(crate) fn told(&self) -> Result<impl Iterator<Item = &Told>, String> {
        self.mistold.clone().map_or_else(|| Ok(self.told.values()), Err)
    }

    /// Returns whether the policy has kept any free blocks apart.
    pub(crate) fn keeps_apart(&self) -> bool {
        !self.apart.borrow().is_empty()
    }

    /// Returns whether the policy has kept the free block that begins at this address apart from the one before it.
    pub(crate) fn is_apart(&self, address: u64) -> bool {
        self.apart.borrow().contains(&address)
    }

    /// Returns whether the default pool has lent nothing for the current request, and the next step was to ask for new memory: in
    /// handles, for one collection in which all free neighbours coalesce.
    pub(crate) fn asked_after_lending(&self) -> bool {
        let notes = self.notes.borrow();
        let is_asked = notes.follows_lending && matches!(notes.answer, Some(Answer::Segment(..))) && self.own_turn == 2;
        let is_one_collection = self.inner().classify(Bytes(1)) == self.inner().classify(Bytes(1 << 40));
        is_asked && is_one_collection && self.chooses_handles() && self.apart.borrow().is_empty()
    }

    /// Returns whether a step for the current request named this memory.
    pub(crate) fn names(&self, addresses: &Range<u64>) -> bool {
        let notes = self.notes.borrow();
        let mut named = notes.named.iter().chain(notes.moved.iter().map(|moved| &moved.addresses));
        named.any(|named| named.start <= addresses.start && addresses.end <= named.end)
    }

    /// Returns the handles that the policy moved for the current request.
    pub(crate) fn moved(&self) -> Vec<Moved> {
        self.notes.borrow().moved.clone()
    }

    /// Returns whether the policy coalesced all free blocks for the current request.
    pub(crate) fn has_coalesced(&self) -> bool {
        self.notes.borrow().coalesced
    }

    /// Returns whether the default pool lent memory for the current request in the policy's first step.
    pub(crate) fn has_just_lent(&self) -> bool {
        matches!(self.notes.borrow().answer, Some(Answer::Lend(_))) && self.own_turn == 1
    }

    /// Returns the blocks that private pools have handed out since the last call: the first byte and the end of each.
    pub(crate) fn take_handed_out(&mut self) -> Vec<(u64, u64)> {
        std::mem::take(&mut self.handed_out)
    }

    /// Returns whether all memory is in handles; `false` if none is, and `None` if the policy has left some of it in pages.
    pub(crate) fn has_handles(&self, heap: &Heap) -> Option<bool> {
        match self.handles.get() {
            (_, false) => Some(true),
            _ if heap.refined_page().is_some() => Some(true),
            (false, true) => Some(false),
            (true, true) => None,
        }
    }

    /// Returns whether the policy has chosen the size of every handle so far.
    pub(crate) fn chooses_handles(&self) -> bool {
        self.handles.get() == (true, false)
    }

    /// Returns whether the answers are recorded.
    pub(crate) fn is_watched(&self) -> bool {
        self.is_watched
    }

    /// Returns PyTorch's policy, if that is the one under test.
    pub(crate) fn pytorch(&self) -> Option<&PyTorch> {
        match &self.policy {
            Tested::PyTorch(policy) => Some(policy),
            Tested::Other(_) | Tested::Clonable(_) => None,
        }
    }

    /// Returns PyTorch's settings, if its policy is the one under test.
    pub(crate) fn settings_mut(&mut self) -> Option<&mut Settings> {
        match &mut self.policy {
            Tested::PyTorch(policy) => Some(&mut policy.settings),
            Tested::Other(_) | Tested::Clonable(_) => None,
        }
    }

    /// Discards the answers for the last request. `ranges` are the first bytes of the reserved ranges.
    pub(crate) fn begin(&mut self, ranges: BTreeSet<u64>) {
        self.ranges = ranges;
        let notes = self.notes.get_mut();
        (notes.answer, notes.overlooked, notes.pool) = (None, None, None);
        (notes.unlent, notes.rescued_with) = (None, None);
        (notes.moved, notes.named, notes.coalesced) = (Vec::new(), Vec::new(), false);
        self.kept.set(0);
        self.high.set(None);
    }

    /// Returns whether the policy has ever requested that a block change streams.
    pub(crate) fn has_transferred(&self) -> bool {
        self.notes.borrow().has_transferred
    }

    /// Returns the answers for the current request.
    pub(crate) fn notes(&self) -> Notes {
        self.notes.borrow().clone()
    }

    /// Returns the size that the block for a request of `size` bytes must have.
    pub(crate) fn kept(&self, size: u64) -> u64 {
        if self.kept.get() == 0 { size } else { self.kept.get() }
    }

    /// Returns the address that the request gets if its block, or the block's usable part, begins here: the high end if
    /// the policy chose that.
    pub(crate) fn expected_at(&self, place: u64) -> u64 {
        let notes = self.notes.borrow();
        let holds = |&&(address, size, _): &&(u64, u64, u64)| address <= place && place - address < size;
        let end = notes.picture.1.iter().find(holds).map(|(address, size, _)| address + size);
        self.high.get().zip(end).map_or(place, |(bytes, end)| end - bytes)
    }

    /// Returns whether the request got the high end of its block.
    pub(crate) fn took_high_end(&self) -> bool {
        self.high.get().is_some()
    }

    /// Counts a request that was served from a block that changed streams, or from remapped pages.
    pub(crate) fn carried_out(&mut self, transfer: bool, remap: bool) {
        let reached = &mut self.notes.get_mut().reached;
        reached.transfers += u64::from(transfer);
        reached.remaps += u64::from(remap);
    }

    /// Counts a request served by a private pool, or a loaded checkpoint.
    pub(crate) fn used_pool(&mut self, served: bool, loaded: bool) {
        let reached = &mut self.notes.get_mut().reached;
        reached.private += u64::from(served);
        reached.loads += u64::from(loaded);
    }

    /// Returns the step that does the same as the next rung of the policy's ladder.
    fn next_step(&mut self, heap: &Heap, request: &Request) -> Relief {
        let policy: &mut dyn Policy = match &mut self.policy {
            Tested::PyTorch(policy) => &mut **policy,
            Tested::Other(policy) => &mut **policy,
            Tested::Clonable(policy) => &mut **policy,
        };
        let release = |blocks, attempt| Relief::Release { blocks, attempt };
        while let Some(&rung) = policy.ladder().get(self.rung) {
            if rung == Rung::Own {
                self.own_turn += 1;
                match policy.relieve(heap, request, self.own_turn - 1) {
                    Relief::Done => self.rung += 1,
                    step => return step,
                }
                continue;
            }
            self.rung += 1;
            return match rung {
                Rung::CollectGarbage => release(policy.garbage(heap), Attempt::No),
                Rung::Grow => release(Vec::new(), Attempt::Ask),
                Rung::BorrowFromPools => Relief::Borrow,
                Rung::ReleaseOversize => {
                    let (blocks, attempt) = policy.oversize(heap, request);
                    release(blocks, attempt)
                }
                _ if heap.is_deferring() => continue,
                Rung::WaitForEvents => Relief::Wait,
                Rung::ReuseFreed => match policy.place(heap, request) {
                    Placement::Reuse(id) => Relief::Reuse(id),
                    Placement::Segment(_) => continue,
                },
                Rung::ReleaseAll => Relief::ReleaseAll,
                Rung::GrowAgain => release(Vec::new(), Attempt::AskAgain),
                Rung::Own => continue,
            };
        }
        Relief::Done
    }

    /// Returns the first byte of what the default pool lends for a request.
    fn lent(&self, heap: &Heap, request: &Request) -> Option<u64> {
        lending::place(heap, request, &self.ranges).filter(|_| self.inner().lends_to_pools())
    }

    fn saw(&self, heap: &Heap) {
        let mut notes = self.notes.borrow_mut();
        notes.picture = picture(heap);
        self.kept.set(0);
        self.high.set(None);
    }

    /// Returns whether the heap has more memory than when the policy last saw it.
    pub(crate) fn saw_less_than(&self, heap: &Heap) -> bool {
        self.notes.borrow().picture.0 < heap.reserved().get()
    }

    fn says(&self, answer: Answer) {
        self.notes.borrow_mut().answer = Some(answer);
    }
}

fn picture(heap: &Heap) -> Picture {
    let blocks = heap.pool_slots().flat_map(|pool| heap.free_blocks(pool));
    (heap.reserved().get(), blocks.map(|block| (block.address.get(), block.size.get(), block.stream.get())).collect())
}

fn address_of(heap: &Heap, request: &Request, id: BlockId) -> Option<u64> {
    heap.free_blocks(request.pool).find(|block| block.id == id).map(|block| block.address.get())
}

/// Returns the changes that the policy can see in the heap since the newest answer, or `None` if there are none.
pub(crate) fn changed_since_answer(core: &Core) -> Option<String> {
    let notes = core.policy().notes.borrow();
    let now = picture(core.heap());
    (now != notes.picture).then(|| format!("the policy saw the heap as {:x?}, but it is now {now:x?}", notes.picture))
}

/// Checks that the policy has learned of exactly the live allocations, each with its address, requested bytes and stream, and
/// that the heap shows it the same ones.
pub(super) fn check_told(core: &Core, mut live: Vec<(u64, u64, u64)>) -> Result<(), Broken> {
    let told: Vec<Told> = match core.policy().told() {
        Ok(told) => told.copied().collect(),
        Err(mistold) => return Err(Broken::new(Law::Accounting, mistold)),
    };
    live.sort_unstable();
    let plain: Vec<(u64, u64, u64)> = told.iter().map(|told| (told.address, told.requested, told.stream.get())).collect();
    ensure(Law::Accounting, plain == live, || {
        format!("the policy has learned that {plain:x?} are handed out, but these are: {live:x?}")
    })?;
    let heap = core.heap();
    for pool in heap.pool_slots() {
        let shown: Vec<Told> = heap.live_blocks(pool).map(Told::of).collect();
        let expected: Vec<Told> = told.iter().copied().filter(|told| told.pool == pool).collect();
        ensure(Law::Accounting, shown == expected, || {
            format!("the heap shows {shown:x?} as handed out in {pool:?}, but the policy has learned of {expected:x?}")
        })?;
    }
    Ok(())
}

impl Wrapper for Watched {
    type Inner = dyn Policy;

    fn inner(&self) -> &(dyn Policy + 'static) {
        match &self.policy {
            Tested::PyTorch(policy) => &**policy,
            Tested::Other(policy) => &**policy,
            Tested::Clonable(policy) => &**policy,
        }
    }

    fn inner_mut(&mut self) -> &mut (dyn Policy + 'static) {
        match &mut self.policy {
            Tested::PyTorch(policy) => &mut **policy,
            Tested::Other(policy) => &mut **policy,
            Tested::Clonable(policy) => &mut **policy,
        }
    }

    fn place(&mut self, heap: &Heap, request: &Request) -> Placement {
        if !self.is_watched {
            return self.inner_mut().place(heap, request);
        }
        self.saw(heap);
        let placement = self.inner_mut().place(heap, request);
        let notes = self.notes.get_mut();
        notes.answer = Some(match placement {
            Placement::Reuse(id) => Answer::Reuse(address_of(heap, request, id)),
            Placement::Segment(bytes) => {
                if *notes.pool.get_or_insert(request.pool) == request.pool {
                    notes.segment = bytes.get();
                }
                Answer::Segment(bytes.get(), 0)
            }
        });
        notes.reached.reuses += u64::from(matches!(placement, Placement::Reuse(_)));
        placement
    }

    fn splits(&self, whole: Bytes, request: &Request) -> bool {
        let splits = self.inner().splits(whole, request);
        self.kept.set(if splits { request.size.get() } else { whole.get() });
        splits
    }

    fn takes_high_end(&self, request: &Request) -> bool {
        let takes = self.inner().takes_high_end(request);
        self.high.set(takes.then_some(request.size.get()));
        takes
    }

    fn coalesces(&self, pair: &FreePair) -> bool {
        let joins = self.inner().coalesces(pair);
        let high = pair.address.get() + pair.low.get();
        let mut apart = self.apart.borrow_mut();
        if joins {
            apart.remove(&high)
        } else {
            apart.insert(high)
        };
        joins
    }

    fn handle(&self, heap: &Heap, request: &Request, missing: Bytes) -> Option<Bytes> {
        let size = self.inner().handle(heap, request, missing);
        let (sizes, pages) = self.handles.get();
        self.handles.set((sizes || size.is_some(), pages || size.is_none()));
        size
    }

    fn allocated(&mut self, heap: &Heap, block: LiveBlock<'_>) {
        let told = Told::of(block);
        if told.pool != PoolSlot::default_pool(told.pool.class()) {
            self.handed_out.push((told.address, told.address + told.size));
        }
        if let Some(before) = self.told.insert(told.address, told) {
            self.mistold.get_or_insert(format!("the policy learned twice that a block is handed out: {before:?}, then {told:?}"));
        }
        self.inner_mut().allocated(heap, block);
    }

    fn freed(&mut self, heap: &Heap, block: LiveBlock<'_>) {
        let told = Told::of(block);
        let before = self.told.remove(&told.address);
        if before != Some(told) {
            self.mistold.get_or_insert(format!("the policy learned that {told:?} is freed, but what it knew was {before:?}"));
        }
        self.inner_mut().freed(heap, block);
    }

    /// The allocator asks for every rung as an own step, so that each one is recorded.
    fn ladder(&self) -> &'static [Rung] {
        if self.is_watched { &[Rung::Own] } else { self.inner().ladder() }
    }

    fn relieve(&mut self, heap: &Heap, request: &Request, turn: u32) -> Relief {
        if !self.is_watched {
            return self.inner_mut().relieve(heap, request, turn);
        }
        self.saw(heap);
        if turn == 0 {
            (self.rung, self.own_turn) = (0, 0);
        }
        let relief = self.next_step(heap, request);
        let releasable = if relief == Relief::ReleaseAll { self.inner().releasable(heap).len() } else { 0 };
        let notes = self.notes.get_mut();
        if let Some(Answer::Lend(Some(place))) = notes.answer {
            notes.unlent = Some(format!("the default pool has lent nothing for {request:?}, although it could at {place:#x}"));
        }
        notes.follows_lending = matches!(notes.answer, Some(Answer::Lend(None)));
        let segment = notes.segment;
        notes.count_moved(&relief);
        notes.keep_named(heap, &relief);
        let reached = &mut notes.reached;
        let answer = match &relief {
            Relief::Release { blocks, attempt } => {
                reached.releases += u64::from(!blocks.is_empty());
                match attempt {
                    Attempt::No | Attempt::Fail => Answer::Rung(blocks.len()),
                    Attempt::Ask | Attempt::AskAgain => Answer::Segment(segment, blocks.len()),
                    Attempt::AskFor(bytes) => Answer::Segment(bytes.get(), blocks.len()),
                }
            }
            Relief::Transfer { block, .. } => {
                self.notes.get_mut().has_transferred = true;
                Answer::Transfer(address_of(heap, request, *block))
            }
            Relief::TransferPart { block } => {
                self.notes.get_mut().has_transferred = true;
                Answer::TransferPart(address_of(heap, request, *block))
            }
            Relief::TransferAll { .. } => {
                self.notes.get_mut().has_transferred = true;
                Answer::Rung(0)
            }
            Relief::Remap { blocks } => Answer::Rung(blocks.len()),
            Relief::Move { handles } | Relief::Replace { handles } | Relief::Break { handles } => Answer::Rung(handles.len()),
            Relief::Reuse(id) => Answer::Reuse(address_of(heap, request, *id)),
            Relief::ReuseAt { block, offset } => {
                Answer::Reuse(address_of(heap, request, *block).map(|address| address.wrapping_add(offset.get())))
            }
            // The lent memory would join all the free blocks before it that were kept apart.
            Relief::Lend if self.apart.borrow().is_empty() => Answer::Lend(self.lent(heap, request)),
            Relief::Lend | Relief::Borrow | Relief::Rescue { .. } | Relief::Provide { .. } => Answer::Rung(0),
            Relief::ReleaseAll => {
                reached.releases += u64::from(releasable > 0);
                Answer::Rung(releasable)
            }
            Relief::Coalesce | Relief::Wait => Answer::Rung(0),
            Relief::Done => {
                reached.refusals += 1;
                // Ask once more, as the allocator does after a callback has freed something.
                if let Placement::Reuse(id) = self.inner_mut().place(heap, request) {
                    let at = address_of(heap, request, id);
                    self.notes.get_mut().overlooked =
                        Some(format!("the policy refuses {request:?}, although it would place the request in {id:?} at {at:x?}"));
                }
                Answer::Rung(0)
            }
        };
        self.says(answer);
        relief
    }
}
