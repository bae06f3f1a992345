//! Policies that are drawn at random: valid ones, and one that returns random answers.
//!
//! The valid ones are assembled from everything that a policy may do: how it searches and splits, and which rungs its ladder
//! has in which order. They are not useful, but they cover combinations that the named policies use rarely or not at all.
//!
//! The answers of the other policy are valid and invalid: the heap must stay intact, whatever the policy answers.

use std::cell::RefCell;

use parkade::policy::{Attempt, Placement, Policy, Relief, Request, Rung};
use parkade::profile::Profile;
use parkade::units::{Bytes, DeviceAddress, MIB, PoolClass, StreamId};
use parkade::{BlockId, BlockView, FreePair, Heap, PoolSlot};

use crate::program::search::Draws;

/// The number of policies of each kind that moves memory.
const MOVERS: usize = 10;

/// The way in which a block is split.
#[derive(Clone, Copy, Debug)]
enum Cutting {
    /// Down to the request's size.
    Exact,
    /// Down to the request's size, unless the remainder would be smaller than this.
    Rest(u64),
    /// No split.
    Never,
}

/// One step of the ladder.
#[derive(Clone, Copy, Debug)]
enum OwnStep {
    Ask,
    AskFor(u64),
    /// Takes a block from another stream, either with a wait or only if the stream's work happens
    /// to be done.
    Transfer(bool),
    /// Takes from another stream's block only the part that the request needs.
    TransferPart,
    /// Takes all blocks of the first other stream that has any.
    TransferAll,
    /// Takes a new segment that is this much larger than the request, on the default stream.
    Provide(u64),
    /// Remaps this many free blocks of expandable segments, starting with the first; from all default pools, or only
    /// from the request's.
    Remap(usize, bool),
    /// Moves this many free handles of the default pool, starting with the first, or replaces them if the number is
    /// odd.
    Move(usize),
    /// Releases this many releasable blocks, starting with the first.
    Release(usize),
    /// Takes free memory from the default pool for a private one.
    Lend,
    Borrow,
    Wait,
}

impl OwnStep {
    /// Whether a block from another stream may serve a request.
    fn takes_from_others(&self) -> bool {
        matches!(self, OwnStep::Transfer(_) | OwnStep::TransferPart | OwnStep::TransferAll)
    }
}

/// A randomly assembled policy.
#[derive(Clone, Debug)]
pub(super) struct Drawn {
    unit: u64,
    segment: u64,
    /// The pages of small and of large blocks.
    pages: [u64; 2],
    /// The handles of expandable segments, unless each is a page.
    handle: Option<u64>,
    /// Whether requests of an odd number of units take the high end of a block.
    takes_high_end: bool,
    is_expandable: [bool; 2],
    small: u64,
    /// 0 chooses the smallest block that fits, 1 the largest, and 2 the one at the lowest address.
    fit: u64,
    cutting: Cutting,
    rungs: Vec<OwnStep>,
    profile: &'static Profile,
    /// Whether private pools may take the default pool's memory.
    lends_to_pools: bool,
    joining: Joining,
}

/// Which adjacent free blocks coalesce.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Joining {
    All,
    None,
    /// Blocks of the same size.
    Alike,
    /// Blocks that together have at most this many bytes.
    UpTo(u64),
}

impl Drawn {
    /// Returns the policy for a seed.
    pub(super) fn new(seed: u64) -> Drawn {
        let mut draws = Draws::new(seed);
        let mut of = |options: &[u64]| options[draws.below(options.len() as u64) as usize];
        let unit = of(&[512, 512, 256, 4096, MIB]);
        let (segment, page) = (of(&[2 * MIB, 16 * MIB, 20 * MIB, 64 * MIB]), of(&[2 * MIB, 2 * MIB, 16 * MIB]));
        let is_expandable = [of(&[0, 0, 0, 1]) == 1, of(&[0, 0, 1]) == 1];
        let cutting = match of(&[0, 1, 1, 2]) {
            0 => Cutting::Exact,
            1 => Cutting::Rest(of(&[512, 8192, MIB])),
            _ => Cutting::Never,
        };
        let rungs = (0..of(&[0, 1, 2, 4]))
            .map(|_| match of(&[0, 1, 2, 2, 3, 4, 4, 5, 6, 7, 7, 8, 9]) {
                0 => OwnStep::Ask,
                1 => OwnStep::AskFor(of(&[0, 2 * MIB, 30 * MIB])),
                2 => OwnStep::Transfer(of(&[0, 1, 1]) == 1),
                3 => OwnStep::Release(of(&[0, 1, 3]) as usize),
                4 => OwnStep::Remap(of(&[1, 2, 100]) as usize, of(&[0, 1]) == 1),
                5 => OwnStep::Borrow,
                7 => OwnStep::TransferPart,
                8 => OwnStep::TransferAll,
                9 => OwnStep::Provide(of(&[0, 2 * MIB, 30 * MIB])),
                _ => OwnStep::Wait,
            })
            .collect();
        let (small, fit) = (of(&[0, MIB]), of(&[0, 1, 2]));
        let profile = [&Profile::PYTORCH_2_11, &Profile::PYTORCH_2_15][of(&[0, 1]) as usize];
        // Small pages for small blocks, or the same page size for both.
        let pages = [of(&[page, 2 * MIB]), page];
        let (handle, takes_high_end) = (of(&[0, 0, 16 * MIB, 48 * MIB]), of(&[0, 0, 1]) == 1);
        let handle = (handle > 0).then_some(handle);
        // With handles, pages do not move.
        let with_handles = |rung| match rung {
            OwnStep::Remap(most, _) if handle.is_some() => OwnStep::Move(most),
            rung => rung,
        };
        let rungs: Vec<OwnStep> = rungs;
        // Some policies take only new memory.
        let lends_to_pools = of(&[0, 0, 1]) == 1;
        let first = (lends_to_pools && of(&[0, 1, 1]) == 1).then_some(OwnStep::Lend);
        let rungs = first.into_iter().chain(rungs.into_iter().map(with_handles)).collect();
        // Drawn from different numbers, so that the other draws stay the same.
        let joining = match Draws::new(!seed).below(6) {
            0 => Joining::None,
            1 => Joining::Alike,
            2 => Joining::UpTo(8 * MIB),
            _ => Joining::All,
        };
        Drawn {
            unit,
            segment,
            pages,
            handle,
            takes_high_end,
            is_expandable,
            small,
            fit,
            cutting,
            rungs,
            profile,
            lends_to_pools,
            joining,
        }
    }

    /// Returns the same policy, without expandable segments unless `holds` is true.
    pub(super) fn expandable_only_if(self, holds: bool) -> Drawn {
        Drawn { is_expandable: self.is_expandable.map(|expandable| expandable && holds), ..self }
    }

    /// Returns seeds of policies that take other streams' blocks (of expandable segments or not), that remap pages,
    /// that move handles, and whose private pools take the default pool's memory: [`MOVERS`] of each kind.
    pub(super) fn seeds_that_move_memory() -> Vec<u64> {
        let transfers =
            |drawn: &Drawn| drawn.rungs.iter().any(|rung| matches!(rung, OwnStep::Transfer(true) | OwnStep::TransferPart));
        let remaps = |drawn: &Drawn| {
            drawn.is_expandable[1] && drawn.rungs.iter().any(|rung| matches!(rung, OwnStep::Remap(most, _) if *most > 1))
        };
        let moves_handles = |drawn: &Drawn| {
            drawn.is_expandable[1] && drawn.rungs.iter().any(|rung| matches!(rung, OwnStep::Move(most) if *most > 1))
        };
        let moves_parts = |drawn: &Drawn| transfers(drawn) && drawn.is_expandable[1];
        let lends_to_pools = |drawn: &Drawn| drawn.is_expandable[1] && matches!(drawn.rungs.first(), Some(OwnStep::Lend));
        let those = |which: &dyn Fn(&Drawn) -> bool| -> Vec<u64> {
            (0..).filter(|&seed| which(&Drawn::new(seed))).take(MOVERS).collect()
        };
        [
            those(&|drawn| transfers(drawn) && !drawn.is_expandable[1]),
            those(&remaps),
            those(&moves_handles),
            those(&moves_parts),
            those(&lends_to_pools),
        ]
        .concat()
    }

    fn find(&self, heap: &Heap, request: &Request) -> Option<BlockId> {
        let suffices = |block: &BlockView| block.stream == request.stream && block.size >= request.size;
        let blocks = heap.free_blocks(request.pool).filter(suffices);
        let found = match self.fit {
            0 => blocks.min_by_key(|block| (block.size, block.address)),
            1 => blocks.max_by_key(|block| (block.size, block.address)),
            _ => blocks.min_by_key(|block| block.address),
        };
        found.map(|block| block.id)
    }

    /// Reuses the block; some policies use its high end.
    fn reuse(&self, heap: &Heap, request: &Request, id: BlockId) -> Relief {
        let found = heap.free_blocks(request.pool).find(|block| block.id == id && self.fit == 2);
        found.map_or(Relief::Reuse(id), |block| {
            let room = block.size.get() - request.size.get();
            Relief::ReuseAt { block: id, offset: Bytes(room / self.unit * self.unit) }
        })
    }

    fn climb(&self, heap: &Heap, request: &Request, rung: OwnStep) -> Relief {
        let ask = |blocks, attempt| Relief::Release { blocks, attempt };
        let nothing = || ask(Vec::new(), Attempt::No);
        let other_block = || {
            let legal = |block: &BlockView| block.stream != request.stream && block.size >= request.size;
            heap.free_blocks(request.pool).find(legal).map(|block| block.id)
        };
        match rung {
            OwnStep::Ask => ask(Vec::new(), Attempt::Ask),
            OwnStep::AskFor(more) => ask(Vec::new(), Attempt::AskFor(Bytes(request.size.get().saturating_add(more)))),
            OwnStep::Transfer(waits) => other_block().map_or_else(nothing, |block| Relief::Transfer { block, waits }),
            OwnStep::TransferPart => other_block().map_or_else(nothing, |block| Relief::TransferPart { block }),
            OwnStep::TransferAll => {
                let other = heap.free_blocks(request.pool).find(|block| block.stream != request.stream);
                other.map_or_else(nothing, |block| Relief::TransferAll { from: block.stream })
            }
            OwnStep::Provide(_) if request.is_expandable => nothing(),
            OwnStep::Provide(more) => {
                Relief::Provide { bytes: Bytes(request.size.get().saturating_add(more)), stream: StreamId::DEFAULT }
            }
            OwnStep::Remap(most, of_all) => {
                // Excludes segments of a private pool in use, because its graphs still need them.
                let may_go = heap.releasable();
                let all = [PoolClass::Small, PoolClass::Large].map(PoolSlot::default_pool);
                let pools = if of_all { all.to_vec() } else { vec![request.pool] };
                let free = pools
                    .into_iter()
                    .flat_map(|pool| heap.free_blocks(pool))
                    .filter(|block| block.is_expandable && may_go.contains(&block.id));
                Relief::Remap { blocks: free.take(most).map(|block| block.id).collect() }
            }
            OwnStep::Move(most) => {
                let may_go = heap.releasable();
                let free = [PoolClass::Small, PoolClass::Large].map(PoolSlot::default_pool);
                let free = free.into_iter().flat_map(|pool| heap.free_blocks(pool)).filter(|block| may_go.contains(&block.id));
                let handles = free.flat_map(|block| heap.handles_in(block.id)).map(|handle| handle.address);
                let handles = handles.take(most).collect();
                if most % 2 == 0 { Relief::Move { handles } } else { Relief::Replace { handles } }
            }
            OwnStep::Release(most) => ask(heap.releasable().into_iter().take(most).collect(), Attempt::Ask),
            OwnStep::Lend => Relief::Lend,
            OwnStep::Borrow => Relief::Borrow,
            OwnStep::Wait => Relief::Wait,
        }
    }
}

impl Policy for Drawn {
    fn name(&self) -> &'static str {
        "drawn"
    }

    fn profile(&self) -> &'static Profile {
        self.profile
    }

    fn round(&self, requested: Bytes) -> Option<Bytes> {
        requested.checked_round_up(Bytes(self.unit))
    }

    fn classify(&self, size: Bytes) -> PoolClass {
        if size.get() <= self.small { PoolClass::Small } else { PoolClass::Large }
    }

    fn is_expandable(&self, pool: PoolSlot) -> bool {
        self.is_expandable[usize::from(pool.class() == PoolClass::Large)]
    }

    fn page(&self, pool: PoolSlot) -> Bytes {
        Bytes(self.pages[usize::from(pool.class() == PoolClass::Large)])
    }

    fn handle(&self, _: &Heap, request: &Request, _: Bytes) -> Option<Bytes> {
        let page = self.pages[usize::from(request.pool.class() == PoolClass::Large)];
        self.handle.map(|handle| Bytes(handle.next_multiple_of(page)))
    }

    fn coalesces(&self, pair: &FreePair) -> bool {
        match self.joining {
            Joining::All => true,
            Joining::None => false,
            Joining::Alike => pair.low == pair.high,
            Joining::UpTo(bytes) => pair.low + pair.high <= Bytes(bytes),
        }
    }

    fn lends_to_pools(&self) -> bool {
        self.lends_to_pools
    }

    fn searches_by_address(&self) -> bool {
        self.fit == 2
    }

    /// This is decided by an existing draw, so that the other draws stay the same.
    fn waits_for_pools(&self, heap: &Heap) -> bool {
        self.takes_high_end && (heap.reserved().get() / self.segment.max(1)).is_multiple_of(2)
    }

    fn breaks_for_pools(&self, heap: &Heap) -> Vec<DeviceAddress> {
        let slots = [PoolClass::Small, PoolClass::Large].map(PoolSlot::default_pool).into_iter();
        let partly = slots.flat_map(|slot| heap.partly_free(slot, self.page(slot)));
        partly.map(|part| part.handle.address).take(2).collect()
    }

    fn takes_high_end(&self, request: &Request) -> bool {
        self.takes_high_end && !(request.size.get() / self.unit).is_multiple_of(2)
    }

    fn place(&mut self, heap: &Heap, request: &Request) -> Placement {
        let segment = request.size.max(Bytes(self.segment));
        self.find(heap, request).map_or(Placement::Segment(segment), Placement::Reuse)
    }

    fn splits(&self, whole: Bytes, request: &Request) -> bool {
        let (whole, size) = (whole.get(), request.size.get());
        match self.cutting {
            Cutting::Exact => true,
            Cutting::Rest(least) => whole - size >= least,
            Cutting::Never => false,
        }
    }

    fn ladder(&self) -> &'static [Rung] {
        &[Rung::Own]
    }

    /// The policy's own rungs; then a wait and another search, other streams' blocks, and a release of everything.
    fn relieve(&mut self, heap: &Heap, request: &Request, rung: u32) -> Relief {
        if let Some(&rung) = self.rungs.get(rung as usize) {
            return self.climb(heap, request, rung);
        }
        // Blocks that were kept apart coalesce after the wait, and before everything is released.
        let turn = match rung as usize - self.rungs.len() {
            2 if self.joining != Joining::All => return Relief::Coalesce,
            turn if turn > 2 && self.joining != Joining::All => turn - 1,
            turn => turn,
        };
        match turn {
            0 => self.climb(heap, request, OwnStep::Ask),
            1 => Relief::Wait,
            2 => self
                .find(heap, request)
                .map_or_else(|| self.climb(heap, request, OwnStep::Borrow), |block| self.reuse(heap, request, block)),
            // A policy that takes other streams' blocks once their work is done must do so now, because all work is done.
            3 if self.rungs.iter().any(OwnStep::takes_from_others) => self.climb(heap, request, OwnStep::Transfer(true)),
            3 | 4 => Relief::Release { blocks: heap.releasable(), attempt: Attempt::AskFor(request.size) },
            _ => Relief::Done,
        }
    }
}

/// A policy that returns random answers.
#[derive(Debug)]
pub(super) struct Wrong {
    draws: RefCell<Draws>,
    /// Blocks that were free at some point; some may be in use or released by now.
    seen: RefCell<Vec<BlockId>>,
    profile: &'static Profile,
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
        let right = [30, 60, 80, 95][draws.below(4) as usize];
        let is_patient = draws.below(8) == 0;
        Wrong { draws: RefCell::new(draws), seen: RefCell::default(), profile, right, is_patient, may_expand: true }
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
    fn block(&self, heap: &Heap, fits: impl Fn(&BlockView) -> bool) -> Option<BlockId> {
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

    fn blocks(&self, heap: &Heap, fits: impl Fn(&BlockView) -> bool) -> Vec<BlockId> {
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

    fn coalesces(&self, _: &FreePair) -> bool {
        self.below(4) > 0
    }

    fn lends_to_pools(&self) -> bool {
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
        let fits = |block: &BlockView| block.size >= request.size && block.stream == request.stream;
        match self.block(heap, fits) {
            Some(block) => Placement::Reuse(block),
            None => Placement::Segment(self.size(request.size.get().max(16 * MIB))),
        }
    }

    fn splits(&self, _: Bytes, _: &Request) -> bool {
        self.below(4) > 0
    }

    fn ladder(&self) -> &'static [Rung] {
        &[Rung::Own]
    }

    fn relieve(&mut self, heap: &Heap, request: &Request, _: u32) -> Relief {
        let attempt = match self.below(5) {
            0 => Attempt::No,
            1 => Attempt::Ask,
            2 => Attempt::AskAgain,
            _ => Attempt::AskFor(self.size(request.size.get())),
        };
        let fits = |block: &BlockView| block.size >= request.size;
        let is_of_another = |block: &BlockView| fits(block) && block.stream != request.stream;
        let relief = match self.below(24) {
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
                None => Relief::Done,
            },
            15 | 16 => match self.block(heap, is_of_another) {
                Some(block) => Relief::TransferPart { block },
                None => Relief::Borrow,
            },
            17 => Relief::TransferAll { from: self.stream(heap, request) },
            21 => Relief::Lend,
            22 => Relief::Coalesce,
            19 => Relief::Move { handles: self.handles(heap) },
            20 => Relief::Replace { handles: self.handles(heap) },
            18 => Relief::Provide { bytes: self.size(16 * MIB), stream: self.stream(heap, request) },
            _ => Relief::Done,
        };
        match relief {
            Relief::Done if self.is_patient && self.below(100) > 0 => {
                Relief::Release { blocks: Vec::new(), attempt: Attempt::No }
            }
            relief => relief,
        }
    }

    fn releasable(&self, heap: &Heap) -> Vec<BlockId> {
        if self.is_right() { heap.releasable() } else { self.blocks(heap, |_| true) }
    }

    fn stamp(&self, _: PoolSlot) -> u64 {
        self.below(u64::MAX)
    }

    fn is_oversize(&self, _: Bytes) -> bool {
        self.below(2) == 0
    }
}
