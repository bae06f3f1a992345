//! A policy that gives random answers, valid and invalid: the heap must stay intact whatever it answers.

use std::cell::RefCell;

use parkade::policy::{Attempt, FreeOrder, Placement, Policy, Relief, Request};
use parkade::profile::Profile;
use parkade::units::{Bytes, DeviceAddress, MIB, PoolClass, StreamId};
use parkade::{BlockId, Heap, PoolSlot};

use crate::checks::draw::Draws;

/// A policy that gives random answers.
#[derive(Debug)]
pub(super) struct Wrong {
    draws: RefCell<Draws>,
    /// Blocks that were free at some point; some may be in use or released by now.
    seen: RefCell<Vec<BlockId>>,
    profile: &'static Profile,
    free_order: FreeOrder,
    /// The probability of a plausible answer, in hundredths.
    right: u64,
    /// Whether the policy rarely gives up, so that ladders have hundreds of rungs.
    is_patient: bool,
    may_expand: bool,
}

/// Sizes that are likely to reveal mistakes.
const ODD: [u64; 12] = [0, 1, 511, 512, 4096, MIB, 2 * MIB, 2 * MIB + 1, 3 * MIB, 1 << 40, u64::MAX - 511, u64::MAX];

impl Wrong {
    /// Returns the policy for a seed.
    pub(super) fn new(seed: u64) -> Wrong {
        let mut draws = Draws::new(seed);
        let profile = [&Profile::PYTORCH_2_11, &Profile::PYTORCH_2_15][draws.below(2) as usize];
        let free_order = if draws.below(2) == 0 { FreeOrder::ByAddress } else { FreeOrder::BySize };
        let right = [30, 60, 80, 95][draws.below(4) as usize];
        let is_patient = draws.below(8) == 0;
        Wrong { draws: RefCell::new(draws), seen: RefCell::default(), profile, free_order, right, is_patient, may_expand: true }
    }

    /// Returns the same policy, without expandable segments unless `may_expand` is true.
    pub(super) fn expandable_only_if(self, may_expand: bool) -> Wrong {
        Wrong { may_expand, ..self }
    }

    fn below(&self, bound: u64) -> u64 {
        self.draws.borrow_mut().below(bound)
    }

    fn is_right(&self) -> bool {
        self.below(100) < self.right
    }

    /// Returns `right`, or an arbitrary size.
    fn size(&self, right: u64) -> Bytes {
        Bytes(match self.below(100) {
            number if number < self.right => right,
            number if number % 4 == 0 => right.wrapping_add(self.below(2048)).wrapping_sub(1024),
            number if number % 4 == 1 => right / 2,
            _ => ODD[self.below(ODD.len() as u64) as usize],
        })
    }

    /// Remembers the free blocks and chooses one: one that fits, or any seen so far.
    fn block(&self, heap: &Heap, fits: impl Fn(&parkade::BlockView) -> bool) -> Option<BlockId> {
        let blocks = || heap.pool_slots().flat_map(|pool| heap.free_blocks(pool));
        let mut seen = self.seen.borrow_mut();
        for block in blocks() {
            if !seen.contains(&block.id) {
                seen.push(block.id);
            }
        }
        if self.is_right() {
            let fitting: Vec<BlockId> = blocks().filter(fits).map(|block| block.id).collect();
            return (!fitting.is_empty()).then(|| fitting[self.below(fitting.len() as u64) as usize]);
        }
        (!seen.is_empty()).then(|| seen[self.below(seen.len() as u64) as usize])
    }

    /// Returns a stream that the heap knows (usually not the request's own), or any stream.
    fn stream(&self, heap: &Heap, request: &Request) -> StreamId {
        if !self.is_right() {
            return StreamId(self.below(9));
        }
        let others = || heap.streams_seen().iter().filter(|&&stream| stream != request.stream);
        others().nth(self.below(others().count().max(1) as u64) as usize).copied().unwrap_or(request.stream)
    }

    /// Returns up to three handles, mostly those of free blocks.
    fn handles(&self, heap: &Heap) -> Vec<DeviceAddress> {
        let blocks = self.blocks(heap, |block| block.is_expandable);
        let free: Vec<DeviceAddress> =
            blocks.into_iter().flat_map(|block| heap.handles_in(block)).map(|handle| handle.address).collect();
        let odd = |address: DeviceAddress| if self.is_right() { address } else { DeviceAddress(self.size(address.get()).get()) };
        free.into_iter().take(3).map(odd).collect()
    }

    fn blocks(&self, heap: &Heap, fits: impl Fn(&parkade::BlockView) -> bool) -> Vec<BlockId> {
        (0..self.below(4)).filter_map(|_| self.block(heap, &fits)).collect()
    }
}

impl Policy for Wrong {
    fn name(&self) -> &'static str {
        "wrong"
    }

    fn profile(&self) -> &'static Profile {
        self.profile
    }

    fn round(&self, requested: Bytes) -> Option<Bytes> {
        let right = requested.checked_round_up(Bytes(512))?;
        (self.below(50) > 0).then(|| if self.below(8) > 0 { right } else { self.size(right.get()) })
    }

    fn classify(&self, size: Bytes) -> PoolClass {
        if self.is_right() == (size <= Bytes::mib(1)) { PoolClass::Small } else { PoolClass::Large }
    }

    fn annexes(&self) -> bool {
        self.below(2) == 0
    }

    fn waits_for_pools(&self, _: &Heap) -> bool {
        self.below(2) == 0
    }

    fn breaks_for_pools(&self, heap: &Heap) -> Vec<DeviceAddress> {
        self.handles(heap)
    }

    fn is_expandable(&self, _: PoolSlot) -> bool {
        self.below(3) == 0 && self.may_expand
    }

    fn page(&self, _: PoolSlot) -> Bytes {
        self.size(2 * MIB)
    }

    fn reservation(&self, total: Bytes) -> Bytes {
        self.size(total.get())
    }

    fn growth(&self, request: &Request) -> Bytes {
        self.size(request.size.get())
    }

    fn has_own_segments(&self) -> bool {
        self.below(4) == 0
    }

    fn handle(&self, _: &Heap, _: &Request, missing: Bytes) -> Option<Bytes> {
        (self.below(3) == 0).then(|| self.size(missing.get().checked_next_multiple_of(8 * MIB).unwrap_or(u64::MAX)))
    }

    fn takes_high_end(&self, _: &Request) -> bool {
        self.below(4) == 0
    }

    fn rejects(&self, _: Bytes, _: Bytes, _: Bytes) -> bool {
        self.below(50) == 0
    }

    fn place(&mut self, heap: &Heap, request: &Request) -> Placement {
        let fits = |block: &parkade::BlockView| block.size >= request.size && block.stream == request.stream;
        match self.block(heap, fits) {
            Some(block) => Placement::Reuse(block),
            None => Placement::Segment(self.size(request.size.get().max(16 * MIB))),
        }
    }

    fn splits(&self, _: Bytes, _: &Request) -> bool {
        self.below(4) > 0
    }

    fn relieve(&mut self, heap: &Heap, request: &Request, _: u32) -> Relief {
        let attempt = match self.below(5) {
            0 => Attempt::No,
            1 => Attempt::Ask,
            2 => Attempt::AskAgain,
            _ => Attempt::AskFor(self.size(request.size.get())),
        };
        let fits = |block: &parkade::BlockView| block.size >= request.size;
        let is_of_another = |block: &parkade::BlockView| fits(block) && block.stream != request.stream;
        let relief = match self.below(23) {
            0..=4 => Relief::Release { blocks: self.blocks(heap, |block| !block.is_split), attempt },
            5 => Relief::Borrow,
            6..=8 => match self.block(heap, is_of_another) {
                Some(block) => Relief::Transfer { block, waits: self.below(2) == 0 },
                None => Relief::Wait,
            },
            9..=11 => Relief::Remap { blocks: self.blocks(heap, |block| block.is_expandable) },
            12 => Relief::Wait,
            13..=14 => match self.block(heap, |block| fits(block) && block.stream == request.stream) {
                Some(block) if self.below(2) == 0 => Relief::Reuse(block),
                Some(block) => Relief::ReuseAt { block, offset: self.size(self.below(3) * 4096) },
                None => Relief::GiveUp,
            },
            15 | 16 => match self.block(heap, is_of_another) {
                Some(block) => Relief::TransferPart { block },
                None => Relief::Borrow,
            },
            17 => Relief::TransferAll { from: self.stream(heap, request) },
            21 => Relief::Annex,
            19 => Relief::Move { handles: self.handles(heap) },
            20 => Relief::Replace { handles: self.handles(heap) },
            18 => Relief::Provide { bytes: self.size(16 * MIB), stream: self.stream(heap, request) },
            _ => Relief::GiveUp,
        };
        match relief {
            Relief::GiveUp if self.is_patient && self.below(100) > 0 => {
                Relief::Release { blocks: Vec::new(), attempt: Attempt::No }
            }
            relief => relief,
        }
    }

    fn releasable(&self, heap: &Heap) -> Vec<BlockId> {
        if self.is_right() { heap.releasable() } else { self.blocks(heap, |_| true) }
    }

    fn free_order(&self) -> FreeOrder {
        self.free_order
    }

    fn stamp(&self, _: PoolSlot) -> u64 {
        self.below(u64::MAX)
    }

    fn is_oversize(&self, _: Bytes) -> bool {
        self.below(2) == 0
    }
}
