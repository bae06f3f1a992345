//! A policy that is watched: it answers as the one inside, and remembers what that one said, so that what the allocator made of
//! the answers can be compared.

use std::cell::{Cell, RefCell};

use parkade::device::DeviceBackend;
use parkade::policy::{Attempt, Placement, Policy, Relief, Request, Wrapper};
use parkade::trace::Observer;
use parkade::units::Bytes;
use parkade::{Allocator, BlockId, Heap, PoolSlot};

/// What a heap looks like to a policy: reserved bytes, and each free block's first byte, size and stream.
type Picture = (u64, Vec<(u64, u64, u64)>);

/// The newest answer to "where from?".
#[derive(Clone, Debug)]
pub(super) enum Answer {
    /// A free block, with its first byte if it is one.
    Reuse(Option<u64>),
    /// A block of another stream, likewise.
    Transfer(Option<u64>),
    /// A segment of so many bytes, after so many blocks went back.
    Segment(u64, usize),
    /// Something else of the ladder; of how many blocks it speaks.
    Rung(usize),
}

/// How often a policy did what it may do, and what that cost. Transfers and remaps are those that were carried out and served a
/// request.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Reached {
    pub(super) reuses: u64,
    pub(super) transfers: u64,
    pub(super) remaps: u64,
    pub(super) releases: u64,
    pub(super) refusals: u64,
    /// Requests that a private pool served, and checkpoints that were loaded.
    pub(super) private: u64,
    pub(super) loads: u64,
    /// What the calls of the driver took, in nanoseconds, where the device says so.
    pub(super) driver_ns: u64,
}

impl Reached {
    /// Both together.
    pub(super) fn and(self, other: Reached) -> Reached {
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

/// What a policy said about the request under way.
#[derive(Clone, Default, Debug)]
pub(super) struct Notes {
    pub(super) answer: Option<Answer>,
    /// The pool that the request under way is for; it may be looked for in others too, which serve when memory is out.
    pool: Option<PoolSlot>,
    /// The bytes of the segment that `place` named last for that pool.
    segment: u64,
    /// What the heap looked like when the answer was asked for.
    picture: Picture,
    /// A free block that it would have taken when it said that there is none.
    pub(super) overlooked: Option<String>,
    pub(super) reached: Reached,
    /// It said at some time that a block should change streams.
    has_transferred: bool,
}

/// A policy that is watched.
pub(super) struct Watched<P> {
    policy: P,
    notes: RefCell<Notes>,
    /// How large the block handed out must be, by what was said of cutting; 0 if nothing was.
    kept: Cell<u64>,
}

impl<P: Policy> Watched<P> {
    pub(super) fn new(policy: P) -> Watched<P> {
        Watched { policy, notes: RefCell::default(), kept: Cell::new(0) }
    }

    /// Forgets what was said of the last request.
    pub(super) fn begin(&mut self) {
        let notes = self.notes.get_mut();
        (notes.answer, notes.overlooked, notes.pool) = (None, None, None);
        self.kept.set(0);
    }

    /// Whether it ever said that a block should change streams.
    pub(super) fn has_transferred(&self) -> bool {
        self.notes.borrow().has_transferred
    }

    /// What it said.
    pub(super) fn notes(&self) -> Notes {
        self.notes.borrow().clone()
    }

    /// How large the block handed out for a request of `size` bytes must be.
    pub(super) fn kept(&self, size: u64) -> u64 {
        if self.kept.get() == 0 { size } else { self.kept.get() }
    }

    /// A request was served by a block that changed streams, or by pages that were mapped elsewhere before.
    pub(super) fn carried_out(&mut self, transfer: bool, remap: bool) {
        let reached = &mut self.notes.get_mut().reached;
        reached.transfers += u64::from(transfer);
        reached.remaps += u64::from(remap);
    }

    /// A private pool served a request, or was loaded.
    pub(super) fn used_pool(&mut self, served: bool, loaded: bool) {
        let reached = &mut self.notes.get_mut().reached;
        reached.private += u64::from(served);
        reached.loads += u64::from(loaded);
    }

    fn saw(&self, heap: &Heap) {
        let mut notes = self.notes.borrow_mut();
        notes.picture = picture(heap);
        self.kept.set(0);
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

/// What changed of a heap since the newest answer, of what the policy sees; `None` if nothing did.
pub(super) fn changed_since_answer<D: DeviceBackend, P: Policy, O: Observer>(
    core: &Allocator<D, Watched<P>, O>,
) -> Option<String> {
    let notes = core.policy().notes.borrow();
    let now = picture(core.heap());
    (now != notes.picture).then(|| format!("the policy saw {:x?}, and there is {now:x?}", notes.picture))
}

impl<P: Policy> Wrapper for Watched<P> {
    type Inner = P;

    fn inner(&self) -> &P {
        &self.policy
    }

    fn inner_mut(&mut self) -> &mut P {
        &mut self.policy
    }

    fn place(&mut self, heap: &Heap, request: &Request) -> Placement {
        self.saw(heap);
        let placement = self.policy.place(heap, request);
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
        let splits = self.policy.splits(whole, request);
        if !splits {
            self.kept.set(whole.get());
        }
        splits
    }

    fn cut(&self, whole: Bytes, request: &Request) -> Bytes {
        let part = self.policy.cut(whole, request);
        self.kept.set(part.get());
        part
    }

    fn relieve(&mut self, heap: &Heap, request: &Request, rung: u32) -> Relief {
        self.saw(heap);
        let relief = self.policy.relieve(heap, request, rung);
        let segment = self.notes.get_mut().segment;
        let reached = &mut self.notes.get_mut().reached;
        let answer = match &relief {
            Relief::Release { blocks, attempt } => {
                reached.releases += u64::from(!blocks.is_empty());
                match attempt {
                    Attempt::No => Answer::Rung(blocks.len()),
                    Attempt::Ask | Attempt::AskAgain => Answer::Segment(segment, blocks.len()),
                    Attempt::AskFor(bytes) => Answer::Segment(bytes.get(), blocks.len()),
                }
            }
            Relief::Transfer { block, .. } => {
                self.notes.get_mut().has_transferred = true;
                Answer::Transfer(address_of(heap, request, *block))
            }
            Relief::Remap { blocks } => Answer::Rung(blocks.len()),
            Relief::Reuse(id) => Answer::Reuse(address_of(heap, request, *id)),
            Relief::Borrow | Relief::Wait => Answer::Rung(0),
            Relief::GiveUp => {
                reached.refusals += 1;
                // Asked once more, as after a callback that freed something.
                if let Placement::Reuse(id) = self.policy.place(heap, request) {
                    let at = address_of(heap, request, id);
                    self.notes.get_mut().overlooked =
                        Some(format!("for {request:?} it gives up, and would take {id:?} at {at:x?}"));
                }
                Answer::Rung(0)
            }
        };
        self.says(answer);
        relief
    }
}
