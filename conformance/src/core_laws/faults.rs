//! What a policy may answer, at the borders: each answer that cannot be carried out is refused with the words for it, and changes
//! nothing; the nearest one that can is carried out.

use parkade::policy::{Attempt, Placement, Policy, Relief, Request};
use parkade::units::{Bytes, DeviceAddress, MIB, PoolClass, PoolId, StreamId};
use parkade::{AllocError, Allocation, Allocator, BlockId, Heap, PoolFilter, PoolSlot};
use parkade_sim::SimOptions;

use crate::core_laws::devices::Kept;
use crate::core_laws::run::{Draws, Outcome};
use crate::law::{Broken, Law, ensure};

type Core = Allocator<Kept, Scripted>;
type Place = fn(&Scripted, &Heap, &Request) -> Placement;
type Relieve = fn(&Scripted, &Heap, &Request, u32) -> Relief;

/// Blocks of at most this many bytes are small.
const SMALL: u64 = MIB;

/// A policy that answers as it is told.
#[derive(Clone)]
struct Scripted {
    /// A block that some answers name.
    block: Option<BlockId>,
    round: fn(u64) -> u64,
    place: Place,
    relieve: Relieve,
    splits: bool,
    is_expandable: bool,
    page: u64,
    reservation: u64,
    /// How many bytes are mapped for a request of so many.
    growth: fn(u64) -> u64,
    has_own_segments: bool,
    /// The size of handles, unless each is a page.
    handle: Option<u64>,
}

/// Answers that can be carried out.
const SOUND: Scripted = Scripted {
    block: None,
    round: |bytes| bytes.next_multiple_of(512),
    place: |_, heap, request| {
        let found = heap.first_at_least(request.pool, request.stream, request.size);
        found.map_or(Placement::Segment(request.size.max(Bytes(2 * MIB))), |block| Placement::Reuse(block.id))
    },
    relieve: |_, _, _, rung| if rung == 0 { ask(Attempt::Ask) } else { Relief::GiveUp },
    splits: true,
    is_expandable: false,
    page: 2 * MIB,
    reservation: 64 * MIB,
    growth: |size| size,
    has_own_segments: false,
    handle: None,
};

fn ask(attempt: Attempt) -> Relief {
    Relief::Release { blocks: Vec::new(), attempt }
}

fn new_segment(_: &Scripted, _: &Heap, request: &Request) -> Placement {
    Placement::Segment(request.size)
}

impl Scripted {
    fn blocks(&self) -> Vec<BlockId> {
        self.block.into_iter().collect()
    }
}

impl Policy for Scripted {
    fn name(&self) -> &'static str {
        "scripted"
    }

    fn round(&self, requested: Bytes) -> Option<Bytes> {
        Some(Bytes((self.round)(requested.get())))
    }

    fn classify(&self, size: Bytes) -> PoolClass {
        if size.get() <= SMALL { PoolClass::Small } else { PoolClass::Large }
    }

    fn is_expandable(&self, _: PoolSlot) -> bool {
        self.is_expandable
    }

    fn page(&self, _: PoolSlot) -> Bytes {
        Bytes(self.page)
    }

    fn reservation(&self, _: Bytes) -> Bytes {
        Bytes(self.reservation)
    }

    fn growth(&self, request: &Request) -> Bytes {
        Bytes((self.growth)(request.size.get()))
    }

    fn has_own_segments(&self) -> bool {
        self.has_own_segments
    }

    fn handle(&self, _: &Heap, _: &Request, _: Bytes) -> Option<Bytes> {
        self.handle.map(Bytes)
    }

    fn place(&mut self, heap: &Heap, request: &Request) -> Placement {
        (self.place)(self, heap, request)
    }

    fn splits(&self, _: Bytes, _: &Request) -> bool {
        self.splits
    }

    fn releasable(&self, heap: &Heap) -> Vec<BlockId> {
        self.block.map_or_else(|| heap.releasable(), |block| vec![block])
    }

    fn relieve(&mut self, heap: &Heap, request: &Request, rung: u32) -> Relief {
        (self.relieve)(self, heap, request, rung)
    }
}

/// The block that the answers name.
#[derive(Clone, Copy)]
enum Named {
    /// None is needed.
    Nothing,
    /// A free segment of 4 MiB on stream 0.
    Whole,
    /// A block of such a segment, of which the rest is in use.
    Part,
    /// That segment, handed out again.
    Used,
    /// That segment, released.
    Gone,
    /// The same as [`Named::Whole`] of a private pool in use.
    Private,
    /// A free segment with pages.
    Expandable,
    /// [`Named::Whole`], while a graph is captured.
    Capturing,
}

/// A request in that state, and what is said to it; `""`: it is served.
type Case = (&'static str, Named, Scripted, u64, u64);

fn reuse(scripted: &Scripted) -> Placement {
    scripted.block.map_or(Placement::Segment(Bytes(4 * MIB)), Placement::Reuse)
}

/// Every case, with policies that answer through `place` and through `relieve`.
fn cases() -> Vec<Case> {
    use Named::{Capturing, Expandable, Gone, Nothing, Part, Private, Used, Whole};
    const BLOCK: u64 = 4 * MIB;
    let placing = |place: Place| Scripted { place, ..SOUND };
    let relieving = |relieve: Relieve| Scripted { place: new_segment, relieve, ..SOUND };
    let reusing = placing(|own, _, _| reuse(own));
    let reusing_late = relieving(|own, _, _, _| own.block.map_or(Relief::GiveUp, Relief::Reuse));
    let mut cases = Vec::new();
    for scripted in [reusing, reusing_late] {
        let all: [(&str, Named, u64, u64); 8] = [
            ("", Whole, BLOCK, 0),
            ("", Whole, BLOCK - 512, 0),
            ("reuses a block that is too small", Whole, BLOCK + 1, 0),
            ("reuses a block that does not exist", Gone, BLOCK, 0),
            ("reuses a block that is not free", Used, BLOCK, 0),
            ("reuses a block of another pool or stream", Whole, BLOCK, 9),
            ("reuses a block of another pool or stream", Whole, SMALL, 0),
            ("reuses a block of another pool or stream", Private, BLOCK, 0),
        ];
        cases.extend(all.map(|(says, named, bytes, stream)| (says, named, scripted.clone(), bytes, stream)));
    }
    let releasing = relieving(|own, _, _, rung| match rung {
        0 => Relief::Release { blocks: own.blocks(), attempt: Attempt::Ask },
        _ => Relief::GiveUp,
    });
    let transferring = relieving(|own, _, _, rung| match (rung, own.block) {
        (0, Some(block)) => Relief::Transfer { block, waits: true },
        (1, _) => ask(Attempt::Ask),
        _ => Relief::GiveUp,
    });
    let remapping = relieving(|own, _, _, rung| match rung {
        0 => Relief::Remap { blocks: own.blocks() },
        1 => ask(Attempt::Ask),
        _ => Relief::GiveUp,
    });
    let all = [
        ("", Whole, &releasing, BLOCK, 0),
        ("releases a block that does not exist", Gone, &releasing, BLOCK, 0),
        ("releases a block that is not free", Used, &releasing, BLOCK, 0),
        ("releases a part of a segment", Part, &releasing, BLOCK, 0),
        ("releases memory while a graph is captured, or of a private pool in use", Private, &releasing, BLOCK, 0),
        ("releases memory while a graph is captured, or of a private pool in use", Capturing, &releasing, BLOCK, 0),
        ("", Whole, &transferring, BLOCK, 9),
        ("", Whole, &transferring, SMALL + 512, 9),
        ("", Capturing, &transferring, BLOCK, 9),
        ("transfers a block that does not exist", Gone, &transferring, BLOCK, 9),
        ("transfers a block that is not free", Used, &transferring, BLOCK, 9),
        ("transfers a block that is too small", Whole, &transferring, BLOCK + 512, 9),
        ("transfers a block of another pool, or of the request's own stream", Whole, &transferring, BLOCK, 0),
        ("transfers a block of another pool, or of the request's own stream", Whole, &transferring, SMALL, 9),
        ("transfers a block of another pool, or of the request's own stream", Private, &transferring, BLOCK, 9),
        ("", Expandable, &transferring, BLOCK, 9),
        ("", Expandable, &transferring, SMALL + 512, 9),
        ("transfers a block that is too small", Expandable, &transferring, BLOCK + 512, 9),
        ("", Expandable, &remapping, BLOCK, 9),
        ("remaps a block that does not exist", Gone, &remapping, BLOCK, 9),
        ("remaps a block that is not free", Used, &remapping, BLOCK, 9),
        ("remaps a block that is not of an expandable segment", Whole, &remapping, BLOCK, 9),
        ("releases memory while a graph is captured, or of a private pool in use", Private, &remapping, BLOCK, 9),
    ];
    cases.extend(all.map(|(says, named, scripted, bytes, stream)| (says, named, scripted.clone(), bytes, stream)));
    cases.extend(moving_cases());
    cases.extend(borders().map(|(says, scripted)| (says, Nothing, scripted, 700, 0)));
    cases.push(("", Whole, Scripted { splits: false, ..SOUND }, BLOCK - 8 * 512, 0));
    cases
}

/// Segments, rungs and ranges of addresses just as they may be, and one beyond.
fn borders() -> [(&'static str, Scripted); 18] {
    let sound = || SOUND;
    let expandable = || Scripted { is_expandable: true, ..SOUND };
    let placing = |place: Place| Scripted { place, ..SOUND };
    let relieving = |relieve: Relieve| Scripted { relieve, ..SOUND };
    let too_small = "asks for a segment that is smaller than the block";
    [
        ("", sound()),
        ("", placing(|_, _, request| Placement::Segment(request.size))),
        (too_small, placing(|_, _, request| Placement::Segment(Bytes(request.size.get() - 1)))),
        ("", relieving(|_, _, request, _| ask(Attempt::AskFor(request.size)))),
        (too_small, relieving(|_, _, request, _| ask(Attempt::AskFor(Bytes(request.size.get() - 1))))),
        ("", relieving(|_, _, _, rung| ask(if rung < 512 { Attempt::No } else { Attempt::Ask }))),
        ("never gives up", relieving(|_, _, _, rung| ask(if rung < 513 { Attempt::No } else { Attempt::Ask }))),
        ("CUDA out of memory", relieving(|_, _, _, rung| if rung < 512 { Relief::Wait } else { Relief::GiveUp })),
        ("", expandable()),
        ("names pages of no bytes", Scripted { page: 0, ..expandable() }),
        ("reserves no addresses", Scripted { reservation: 0, ..expandable() }),
        ("", Scripted { growth: |size| size + 4 * MIB, ..expandable() }),
        ("maps less than the request needs", Scripted { growth: |size| size - 1, ..expandable() }),
        ("", Scripted { has_own_segments: true, ..expandable() }),
        ("", Scripted { has_own_segments: true, growth: |_| 64 * MIB, ..expandable() }),
        ("reserves fewer addresses than it maps", Scripted { has_own_segments: true, growth: |_| 64 * MIB + 1, ..expandable() }),
        ("reserves no addresses", Scripted { has_own_segments: true, reservation: 0, ..expandable() }),
        ("CUDA out of memory. Tried to allocate more than 1EB memory.", Scripted { round: |bytes| bytes - 1, ..SOUND }),
    ]
}

fn failed(error: impl std::fmt::Display) -> Broken {
    Broken::new(Law::Answers, error)
}

/// An allocator in this state, and what is held of it.
fn prepared(named: Named) -> Result<(Core, Vec<Allocation>), Broken> {
    let is_expandable = matches!(named, Named::Expandable);
    let policy = Scripted { is_expandable, ..SOUND };
    let mut core = Allocator::new(Kept::new(SimOptions::new(Bytes(600 * MIB))), policy, ());
    let mut held = Vec::new();
    if matches!(named, Named::Nothing) {
        return Ok((core, held));
    }
    let pool = PoolId(0, 1);
    if matches!(named, Named::Private) {
        core.begin_pool(pool, PoolFilter::All).map_err(failed)?;
    }
    let whole = core.allocate(Bytes(4 * MIB), StreamId::DEFAULT).map_err(failed)?;
    core.free(whole).map_err(failed)?;
    let slots: Vec<PoolSlot> = core.heap().pool_slots().collect();
    let first = |core: &Core| slots.iter().find_map(|&slot| core.heap().free_blocks(slot).next()).map(|block| block.id);
    let mut block = first(&core);
    match named {
        Named::Private => core.end_pool(pool).map_err(failed)?,
        Named::Part => {
            held.push(core.allocate(Bytes(2 * MIB), StreamId::DEFAULT).map_err(failed)?);
            block = first(&core);
        }
        Named::Used => held.push(core.allocate(Bytes(4 * MIB), StreamId::DEFAULT).map_err(failed)?),
        Named::Gone => core.release_cached().map_err(failed)?,
        Named::Capturing => core.begin_pool(PoolId(0, 2), PoolFilter::Stream(StreamId(77))).map_err(failed)?,
        _ => {}
    }
    core.policy_mut().block = block;
    Ok((core, held))
}

pub(crate) fn check(_: &Draws) -> Outcome {
    let cases = cases();
    for (number, case) in cases.iter().enumerate() {
        one(case)
            .map_err(|broken| broken.during(format!("case {number}, a request of {} bytes on stream {}", case.3, case.4)))?;
    }
    released()?;
    remapped()?;
    Ok(cases.len() as u64)
}

/// Small pages that are remapped for a request with larger ones do not stand for those.
fn remapped() -> Result<(), Broken> {
    let (mut core, _) = prepared(Named::Expandable)?;
    let relieve: Relieve = |own, _, _, rung| match rung {
        0 => Relief::Remap { blocks: own.blocks() },
        1 => ask(Attempt::Ask),
        _ => Relief::GiveUp,
    };
    let block = core.policy().block;
    *core.policy_mut() = Scripted { block, is_expandable: true, page: 20 * MIB, place: new_segment, relieve, ..SOUND };
    let held = core.allocate(Bytes(5 * MIB), StreamId(9)).map_err(failed)?;
    let (reserved, used) = (core.heap().reserved(), core.device().look().used_bytes());
    ensure(Law::Accounting, reserved == used, || format!("{reserved} bytes are counted, and the device gave {used}"))?;
    core.free(held).map_err(failed)
}

/// What a policy names when the cache is released is checked like what it names in the ladder.
fn released() -> Result<(), Broken> {
    let in_use = "the policy scripted releases memory while a graph is captured, or of a private pool in use";
    let cases = [(Named::Private, in_use), (Named::Capturing, in_use), (Named::Whole, "")];
    for (named, says) in cases {
        let (mut core, held) = prepared(named)?;
        let before = core.heap().reserved();
        let text = core.release_cached().err().map_or(String::new(), |error| error.to_string());
        let kept = core.heap().reserved() == before;
        ensure(Law::Answers, text == says && kept != says.is_empty() && held.is_empty(), || {
            format!("to release the cache is answered {text:?}, expected {says:?}")
        })?;
    }
    Ok(())
}

fn one((says, named, scripted, bytes, stream): &Case) -> Result<(), Broken> {
    let (mut core, mut held) = prepared(*named)?;
    let block = core.policy().block;
    *core.policy_mut() = Scripted { block, ..scripted.clone() };
    let before = (core.segments(), core.heap().reserved(), core.device().held());
    match core.allocate(Bytes(*bytes), StreamId(*stream)) {
        Ok(allocation) => {
            held.push(allocation);
            ensure(Law::Answers, says.is_empty(), || format!("it is served, expected: {says}"))?;
        }
        Err(error) => {
            let text = error.to_string();
            let expected = match &error {
                AllocError::Policy(_) => format!("the policy scripted {says}"),
                _ => (*says).to_owned(),
            };
            let is_same = !says.is_empty() && (text == expected || (*says == "CUDA out of memory" && text.starts_with(says)));
            ensure(Law::Answers, is_same, || format!("{text}, expected: {expected}"))?;
            // A range of addresses may be left for the next request.
            let after = (core.segments(), core.heap().reserved(), core.device().held());
            let same = (&after.0, after.1, after.2[0]) == (&before.0, before.1, before.2[0]);
            ensure(Law::Answers, same, || format!("after {text}: {after:?}, before: {before:?}"))?;
        }
    }
    core.check().map_err(|violation| Broken::new(Law::Sweep, violation))?;
    // The same allocator with a policy that is sound.
    *core.policy_mut() = Scripted { is_expandable: false, block: None, ..SOUND };
    for bytes in [512, 3 * MIB] {
        held.push(core.allocate(Bytes(bytes), StreamId(3)).map_err(failed)?);
    }
    held.into_iter().try_for_each(|allocation| core.free(allocation)).map_err(failed)?;
    core.check().map_err(|violation| Broken::new(Law::Sweep, violation))
}

/// Answers about memory between streams: a part of a block, all blocks of a stream, and a segment that serves nobody at first.
///
/// The cases.
fn moving_cases() -> Vec<Case> {
    use Named::{Capturing, Expandable, Gone, Nothing, Part, Private, Used, Whole};
    const BLOCK: u64 = 4 * MIB;
    let first = |first: Relieve| Scripted { place: new_segment, relieve: first, ..SOUND };
    let parting = first(|own, _, _, rung| match (rung, own.block) {
        (0, Some(block)) => Relief::TransferPart { block },
        (1, _) => ask(Attempt::Ask),
        _ => Relief::GiveUp,
    });
    let moving_from_0 = first(|own, heap, _, rung| match (rung, own.block) {
        (0, _) => Relief::TransferAll { from: StreamId::DEFAULT },
        (1, Some(block)) if !heap.is_deferring() => Relief::Reuse(block),
        (1 | 2, _) => ask(Attempt::Ask),
        _ => Relief::GiveUp,
    });
    let moving_from_77 = first(|_, _, _, _| Relief::TransferAll { from: StreamId(77) });
    let providing = first(|_, heap, request, rung| match rung {
        0 => Relief::Provide { bytes: request.size, stream: request.stream },
        _ => heap
            .first_at_least(request.pool, request.stream, request.size)
            .map_or(Relief::GiveUp, |block| Relief::Reuse(block.id)),
    });
    let to_77 = first(|_, _, request, _| Relief::Provide { bytes: request.size, stream: StreamId(77) });
    let nothing = first(|_, _, _, _| Relief::Provide { bytes: Bytes::ZERO, stream: StreamId::DEFAULT });
    let high = first(|own, _, _, _| own.block.map_or(Relief::GiveUp, |block| Relief::ReuseAt { block, offset: Bytes(1024) }));
    let unsplit = Scripted { splits: false, ..parting.clone() };
    let of_another = "transfers a block of another pool, or of the request's own stream";
    let unknown = "transfers the blocks of an unknown stream, or of the request's own";
    let all = [
        ("", Whole, parting.clone(), BLOCK, 9),
        ("", Whole, parting.clone(), SMALL + 512, 9),
        ("", Part, parting.clone(), SMALL + 512, 9),
        ("", Capturing, parting.clone(), BLOCK, 9),
        ("", Whole, unsplit, SMALL + 512, 9),
        ("transfers a block that does not exist", Gone, parting.clone(), BLOCK, 9),
        ("transfers a block that is not free", Used, parting.clone(), BLOCK, 9),
        ("transfers a block that is too small", Whole, parting.clone(), BLOCK + 512, 9),
        (of_another, Whole, parting.clone(), BLOCK, 0),
        (of_another, Private, parting.clone(), BLOCK, 9),
        ("", Expandable, parting.clone(), BLOCK, 9),
        ("", Expandable, parting.clone(), SMALL + 512, 9),
        ("transfers a block that is too small", Expandable, parting.clone(), BLOCK + 512, 9),
        ("", Whole, moving_from_0.clone(), BLOCK - 512, 9),
        ("", Part, moving_from_0.clone(), SMALL + 512, 9),
        ("", Nothing, moving_from_0.clone(), BLOCK, 9),
        ("", Capturing, moving_from_0.clone(), BLOCK, 9),
        (unknown, Whole, moving_from_0, BLOCK, 0),
        (unknown, Whole, moving_from_77, BLOCK, 9),
        ("", Whole, high.clone(), BLOCK - 1024, 0),
        ("", Whole, high.clone(), BLOCK - 2048, 0),
        ("", Part, high.clone(), SMALL + 512, 0),
        ("reuses a block from where too little of it is left", Whole, high.clone(), BLOCK - 512, 0),
        ("reuses a block that is too small", Whole, high.clone(), BLOCK + 512, 0),
        ("reuses a block of another pool or stream", Whole, high, BLOCK - 1024, 9),
        ("", Nothing, providing.clone(), BLOCK, 9),
        ("CUDA out of memory", Nothing, providing.clone(), 601 * MIB, 9),
        ("provides a segment where segments are expandable", Nothing, Scripted { is_expandable: true, ..providing }, BLOCK, 9),
        ("provides a segment of no bytes", Nothing, nothing, BLOCK, 9),
        ("provides a segment for an unknown stream", Nothing, to_77, BLOCK, 9),
    ];
    let with_handles = |handle| Scripted { is_expandable: true, handle: Some(handle), ..SOUND };
    let of_pages = "takes a handle that is not of whole pages";
    let own = "takes handles of its own for segments that do not grow";
    let missing = first(|_, _, _, _| Relief::Move { handles: vec![DeviceAddress(512)] });
    let with_sizes = [
        ("", with_handles(2 * MIB)),
        ("", with_handles(8 * MIB)),
        ("", with_handles(1 << 40)),
        (of_pages, with_handles(0)),
        (of_pages, with_handles(2 * MIB + 512)),
        (own, Scripted { has_own_segments: true, ..with_handles(8 * MIB) }),
        ("moves a handle that does not exist", missing),
    ];
    let with_sizes = with_sizes.map(|(says, scripted)| (says, Nothing, scripted, BLOCK, 0));
    all.into_iter().chain(with_sizes).collect()
}
