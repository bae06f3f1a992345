//! Tests the answers that policies may return: every answer, at the limits of what the allocator can carry out;
//! policies that implement only the required methods; and questions that the allocator repeats while a request is in
//! progress.

use std::cell::Cell;
use std::rc::Rc;

use parkade::device::{BackendError, DeviceBackend, MemoryInfo};
use parkade::policy::{Attempt, Placement, Policy, PyTorch, Relief, Request, Rung};
use parkade::profile::Profile;
use parkade::settings::Settings;
use parkade::stats::Family;
use parkade::units::{Bytes, DeviceAddress, MIB, PoolClass, PoolId, StreamId};
use parkade::{AllocError, Allocation, BlockId, Heap, PoolFilter, PoolSlot};
use parkade_sim::{CallName, LogLevel, SimOptions};

use crate::backend::MadeCall;
use crate::core_laws::devices::{Paged, PagedCore as Core, Paper};
use crate::drawn::{Draws, Outcome};
use crate::law::{Broken, Law, ensure};

type Place = fn(&Scripted, &Heap, &Request) -> Placement;
type Relieve = fn(&Scripted, &Heap, &Request, u32) -> Relief;

/// Blocks of at most this many bytes are small.
const SMALL: u64 = MIB;

/// A policy that answers as instructed.
#[derive(Clone)]
struct Scripted {
    /// The block that some answers name.
    block: Option<BlockId>,
    round: fn(u64) -> u64,
    place: Place,
    relieve: Relieve,
    splits: bool,
    is_expandable: bool,
    page: u64,
    reservation: u64,
    /// Returns how many bytes to map for a request of a given size.
    growth: fn(u64) -> u64,
    has_own_segments: bool,
    /// The size of handles, unless each handle is a page.
    handle: Option<u64>,
}

/// Returns answers that the allocator can carry out.
const SOUND: Scripted = Scripted {
    block: None,
    round: |bytes| bytes.next_multiple_of(512),
    place: |_, heap, request| {
        let found = heap.first_at_least(request.pool, request.stream, request.size);
        found.map_or(Placement::Segment(request.size.max(Bytes(2 * MIB))), |block| Placement::Reuse(block.id))
    },
    relieve: |_, _, _, rung| if rung == 0 { ask(Attempt::Ask) } else { Relief::Done },
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

    fn ladder(&self) -> &'static [Rung] {
        &[Rung::Own]
    }

    fn relieve(&mut self, heap: &Heap, request: &Request, rung: u32) -> Relief {
        (self.relieve)(self, heap, request, rung)
    }
}

/// The kinds of block that the answers name.
#[derive(Clone, Copy)]
enum Named {
    /// The answers need no block.
    Nothing,
    /// A free 4 MiB segment on stream 0.
    Whole,
    /// A block in a 4 MiB segment; the rest of the segment is in use.
    Part,
    /// That segment after it was handed out again.
    Used,
    /// That segment after it was released.
    Gone,
    /// Like [`Named::Whole`], but in a private pool in use.
    Private,
    /// A free segment with pages.
    Expandable,
    /// [`Named::Whole`] while a graph is captured.
    Capturing,
}

/// A request in this state, and the expected error; `""` means that the request is served.
type Case = (&'static str, Named, Scripted, u64, u64);

fn reuse(scripted: &Scripted) -> Placement {
    scripted.block.map_or(Placement::Segment(Bytes(4 * MIB)), Placement::Reuse)
}

/// Returns every case, with policies that answer through `place` and through `relieve`.
fn cases() -> Vec<Case> {
    use Named::{Capturing, Expandable, Gone, Nothing, Part, Private, Used, Whole};
    const BLOCK: u64 = 4 * MIB;
    let placing = |place: Place| Scripted { place, ..SOUND };
    let relieving = |relieve: Relieve| Scripted { place: new_segment, relieve, ..SOUND };
    let reusing = placing(|own, _, _| reuse(own));
    let reusing_late = relieving(|own, _, _, _| own.block.map_or(Relief::Done, Relief::Reuse));
    let mut cases = Vec::new();
    for scripted in [reusing, reusing_late] {
        let all: [(&str, Named, u64, u64); 8] = [
            ("", Whole, BLOCK, 0),
            ("", Whole, BLOCK - 512, 0),
            ("reuses a block that is too small", Whole, BLOCK + 1, 0),
            ("reuses a block that does not exist", Gone, BLOCK, 0),
            ("reuses a block that is not free", Used, BLOCK, 0),
            ("reuses a block of a different pool or stream", Whole, BLOCK, 9),
            ("reuses a block of a different pool or stream", Whole, SMALL, 0),
            ("reuses a block of a different pool or stream", Private, BLOCK, 0),
        ];
        cases.extend(all.map(|(says, named, bytes, stream)| (says, named, scripted.clone(), bytes, stream)));
    }
    let releasing = relieving(|own, _, _, rung| match rung {
        0 => Relief::Release { blocks: own.blocks(), attempt: Attempt::Ask },
        _ => Relief::Done,
    });
    let transferring = relieving(|own, _, _, rung| match (rung, own.block) {
        (0, Some(block)) => Relief::Transfer { block, waits: true },
        (1, _) => ask(Attempt::Ask),
        _ => Relief::Done,
    });
    let remapping = relieving(|own, _, _, rung| match rung {
        0 => Relief::Remap { blocks: own.blocks() },
        1 => ask(Attempt::Ask),
        _ => Relief::Done,
    });
    let all = [
        ("", Whole, &releasing, BLOCK, 0),
        ("releases a block that does not exist", Gone, &releasing, BLOCK, 0),
        ("releases a block that is not free", Used, &releasing, BLOCK, 0),
        ("releases a part of a segment", Part, &releasing, BLOCK, 0),
        ("releases memory while a graph is captured, or memory of a private pool in use", Private, &releasing, BLOCK, 0),
        ("releases memory while a graph is captured, or memory of a private pool in use", Capturing, &releasing, BLOCK, 0),
        ("", Whole, &transferring, BLOCK, 9),
        ("", Whole, &transferring, SMALL + 512, 9),
        ("", Capturing, &transferring, BLOCK, 9),
        ("transfers a block that does not exist", Gone, &transferring, BLOCK, 9),
        ("transfers a block that is not free", Used, &transferring, BLOCK, 9),
        ("transfers a block that is too small", Whole, &transferring, BLOCK + 512, 9),
        ("transfers a block of a different pool, or of the request's own stream", Whole, &transferring, BLOCK, 0),
        ("transfers a block of a different pool, or of the request's own stream", Whole, &transferring, SMALL, 9),
        ("transfers a block of a different pool, or of the request's own stream", Private, &transferring, BLOCK, 9),
        ("", Expandable, &transferring, BLOCK, 9),
        ("", Expandable, &transferring, SMALL + 512, 9),
        ("transfers a block that is too small", Expandable, &transferring, BLOCK + 512, 9),
        ("", Expandable, &remapping, BLOCK, 9),
        ("remaps a block that does not exist", Gone, &remapping, BLOCK, 9),
        ("remaps a block that is not free", Used, &remapping, BLOCK, 9),
        ("remaps a block that is not in an expandable segment", Whole, &remapping, BLOCK, 9),
        ("releases memory while a graph is captured, or memory of a private pool in use", Private, &remapping, BLOCK, 9),
    ];
    cases.extend(all.map(|(says, named, scripted, bytes, stream)| (says, named, scripted.clone(), bytes, stream)));
    cases.extend(moving_cases());
    cases.extend(borders().map(|(says, scripted)| (says, Nothing, scripted, 700, 0)));
    cases.push(("", Whole, Scripted { splits: false, ..SOUND }, BLOCK - 8 * 512, 0));
    cases
}

/// Returns cases with segments, rungs and ranges of addresses exactly at the limit, and one beyond
/// it.
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
        ("CUDA out of memory", relieving(|_, _, _, rung| if rung < 512 { Relief::Wait } else { Relief::Done })),
        ("", expandable()),
        ("chooses a page size of 0 bytes", Scripted { page: 0, ..expandable() }),
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

/// Returns an allocator in this state, the allocations that are held, and the named block.
fn prepared(named: Named) -> Result<(Core, Vec<Allocation>, Option<BlockId>), Broken> {
    let is_expandable = matches!(named, Named::Expandable);
    let policy = Scripted { is_expandable, ..SOUND };
    let mut core = Core::new(Paged::new(SimOptions::new(Bytes(600 * MIB))), Box::new(policy), Vec::new());
    let mut held = Vec::new();
    if matches!(named, Named::Nothing) {
        return Ok((core, held, None));
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
    Ok((core, held, block))
}

/// Tests the answers that a policy may return, at the limits: each answer that cannot be carried out is refused with
/// the right message and changes nothing; the nearest possible answer is carried out.
pub(crate) fn check_borders(_: &Draws) -> Outcome {
    let cases = cases();
    for (number, case) in cases.iter().enumerate() {
        one(case)
            .map_err(|broken| broken.during(format!("case {number}, a request for {} bytes on stream {}", case.3, case.4)))?;
    }
    released()?;
    remapped()?;
    Ok(cases.len() as u64)
}

/// Small remapped pages do not count for a request with larger pages.
fn remapped() -> Result<(), Broken> {
    let (mut core, _, block) = prepared(Named::Expandable)?;
    let relieve: Relieve = |own, _, _, rung| match rung {
        0 => Relief::Remap { blocks: own.blocks() },
        1 => ask(Attempt::Ask),
        _ => Relief::Done,
    };
    let remapping = Scripted { block, is_expandable: true, page: 20 * MIB, place: new_segment, relieve, ..SOUND };
    *core.policy_mut() = Box::new(remapping);
    let held = core.allocate(Bytes(5 * MIB), StreamId(9)).map_err(failed)?;
    let (reserved, used) = (core.heap().reserved(), core.device().sim.used_bytes());
    ensure(Law::Accounting, reserved == used, || {
        format!("{reserved} bytes count as reserved, but the device handed out {used}")
    })?;
    core.free(held).map_err(failed)
}

/// Blocks that a policy names when the cache is released are checked in the same way as those that it names in the
/// ladder.
fn released() -> Result<(), Broken> {
    let in_use = "policy scripted releases memory while a graph is captured, or memory of a private pool in use";
    let cases = [(Named::Private, in_use), (Named::Capturing, in_use), (Named::Whole, "")];
    for (named, says) in cases {
        let (mut core, held, block) = prepared(named)?;
        *core.policy_mut() = Box::new(Scripted { block, ..SOUND });
        let before = core.heap().reserved();
        let text = core.release_cached().err().map_or(String::new(), |error| error.to_string());
        let kept = core.heap().reserved() == before;
        ensure(Law::Answers, text == says && kept != says.is_empty() && held.is_empty(), || {
            format!("releasing the cache returned {text:?}, expected {says:?}")
        })?;
    }
    Ok(())
}

fn one((says, named, scripted, bytes, stream): &Case) -> Result<(), Broken> {
    let (mut core, mut held, block) = prepared(*named)?;
    *core.policy_mut() = Box::new(Scripted { block, ..scripted.clone() });
    let before = (core.segments(), core.heap().reserved(), core.device().held());
    match core.allocate(Bytes(*bytes), StreamId(*stream)) {
        Ok(allocation) => {
            held.push(allocation);
            ensure(Law::Answers, says.is_empty(), || {
                format!("the request was served, although this error was expected: {says}")
            })?;
        }
        Err(error) => {
            let text = error.to_string();
            let expected = match &error {
                AllocError::Policy(_) => format!("policy scripted {says}"),
                _ => (*says).to_owned(),
            };
            let is_same = !says.is_empty() && (text == expected || (*says == "CUDA out of memory" && text.starts_with(says)));
            ensure(Law::Answers, is_same, || format!("the error is: {text}; expected: {expected}"))?;
            // A range of addresses may remain for the next request.
            let after = (core.segments(), core.heap().reserved(), core.device().held());
            let same = (&after.0, after.1, after.2[0]) == (&before.0, before.1, before.2[0]);
            ensure(Law::Answers, same, || format!("the error {text:?} changed the heap from {before:?} to {after:?}"))?;
        }
    }
    core.check().map_err(|violation| Broken::new(Law::Sweep, violation))?;
    // The same allocator with a valid policy.
    *core.policy_mut() = Box::new(SOUND);
    for bytes in [512, 3 * MIB] {
        held.push(core.allocate(Bytes(bytes), StreamId(3)).map_err(failed)?);
    }
    held.into_iter().try_for_each(|allocation| core.free(allocation)).map_err(failed)?;
    core.check().map_err(|violation| Broken::new(Law::Sweep, violation))
}

/// Returns cases in which memory moves between streams: part of a block, all blocks of a stream, and a segment that
/// serves no request at first.
///
/// The cases.
fn moving_cases() -> Vec<Case> {
    use Named::{Capturing, Expandable, Gone, Nothing, Part, Private, Used, Whole};
    const BLOCK: u64 = 4 * MIB;
    let first = |first: Relieve| Scripted { place: new_segment, relieve: first, ..SOUND };
    let parting = first(|own, _, _, rung| match (rung, own.block) {
        (0, Some(block)) => Relief::TransferPart { block },
        (1, _) => ask(Attempt::Ask),
        _ => Relief::Done,
    });
    let moving_from_0 = first(|own, heap, _, rung| match (rung, own.block) {
        (0, _) => Relief::TransferAll { from: StreamId::DEFAULT },
        (1, Some(block)) if !heap.is_deferring() => Relief::Reuse(block),
        (1 | 2, _) => ask(Attempt::Ask),
        _ => Relief::Done,
    });
    let moving_from_77 = first(|_, _, _, _| Relief::TransferAll { from: StreamId(77) });
    let providing = first(|_, heap, request, rung| match rung {
        0 => Relief::Provide { bytes: request.size, stream: request.stream },
        _ => {
            heap.first_at_least(request.pool, request.stream, request.size).map_or(Relief::Done, |block| Relief::Reuse(block.id))
        }
    });
    let to_77 = first(|_, _, request, _| Relief::Provide { bytes: request.size, stream: StreamId(77) });
    let nothing = first(|_, _, _, _| Relief::Provide { bytes: Bytes::ZERO, stream: StreamId::DEFAULT });
    let high = first(|own, _, _, _| own.block.map_or(Relief::Done, |block| Relief::ReuseAt { block, offset: Bytes(1024) }));
    let unsplit = Scripted { splits: false, ..parting.clone() };
    let of_another = "transfers a block of a different pool, or of the request's own stream";
    let unknown = "transfers the blocks of an unknown stream, or of the request's own stream";
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
        ("reuses a block from an offset that leaves too little room", Whole, high.clone(), BLOCK - 512, 0),
        ("reuses a block that is too small", Whole, high.clone(), BLOCK + 512, 0),
        ("reuses a block of a different pool or stream", Whole, high, BLOCK - 1024, 9),
        ("", Nothing, providing.clone(), BLOCK, 9),
        ("CUDA out of memory", Nothing, providing.clone(), 601 * MIB, 9),
        ("provides a segment although segments are expandable", Nothing, Scripted { is_expandable: true, ..providing }, BLOCK, 9),
        ("provides a segment of 0 bytes", Nothing, nothing, BLOCK, 9),
        ("provides a segment for an unknown stream", Nothing, to_77, BLOCK, 9),
    ];
    all.into_iter().chain(handle_cases()).collect()
}

/// Returns cases with different handle sizes, for segments that do not grow.
fn handle_cases() -> [Case; 7] {
    let with_handles = |handle| Scripted { is_expandable: true, handle: Some(handle), ..SOUND };
    let of_pages = "takes a handle that does not consist of whole pages";
    let own = "chooses handle sizes for segments that do not grow";
    let move_one: Relieve = |_, _, _, _| Relief::Move { handles: vec![DeviceAddress(512)] };
    let missing = Scripted { place: new_segment, relieve: move_one, ..SOUND };
    let with_sizes = [
        ("", with_handles(2 * MIB)),
        ("", with_handles(8 * MIB)),
        ("", with_handles(1 << 40)),
        (of_pages, with_handles(0)),
        (of_pages, with_handles(2 * MIB + 512)),
        (own, Scripted { has_own_segments: true, ..with_handles(8 * MIB) }),
        ("moves a handle that does not exist", missing),
    ];
    with_sizes.map(|(says, scripted)| (says, Named::Nothing, scripted, 4 * MIB, 0))
}

/// Creates a simulated device with 200 MiB.
fn simulated() -> Paged {
    Paged::new(SimOptions::new(Bytes(200 * MIB)))
}

/// A device and a policy with only the required methods.
struct Plain;

impl DeviceBackend for Plain {
    type Event = ();
    type Physical = ();

    fn index(&self) -> u32 {
        0
    }

    fn total_memory(&self) -> Bytes {
        Bytes::ZERO
    }

    fn memory_info(&mut self) -> Result<MemoryInfo, BackendError> {
        Ok(MemoryInfo { free: Bytes::ZERO, total: Bytes::ZERO })
    }

    fn malloc(&mut self, requested: Bytes) -> Result<DeviceAddress, BackendError> {
        Err(BackendError::OutOfMemory { requested })
    }

    fn free(&mut self, _: DeviceAddress) -> Result<(), BackendError> {
        Ok(())
    }

    fn create_event(&mut self) -> Result<(), BackendError> {
        Ok(())
    }

    fn record_event(&mut self, (): &mut (), _: StreamId) -> Result<(), BackendError> {
        Ok(())
    }

    fn is_complete(&mut self, (): &()) -> Result<bool, BackendError> {
        Ok(true)
    }

    fn wait(&mut self, (): &()) -> Result<(), BackendError> {
        Ok(())
    }

    fn destroy_event(&mut self, (): ()) {}
}

impl Policy for Plain {
    fn name(&self) -> &'static str {
        "plain"
    }

    fn round(&self, requested: Bytes) -> Option<Bytes> {
        Some(requested)
    }

    fn classify(&self, _: Bytes) -> PoolClass {
        PoolClass::Large
    }

    fn place(&mut self, _: &Heap, request: &Request) -> Placement {
        Placement::Segment(request.size)
    }

    fn splits(&self, _: Bytes, _: &Request) -> bool {
        true
    }

    fn ladder(&self) -> &'static [Rung] {
        &[Rung::Own]
    }

    fn relieve(&mut self, _: &Heap, _: &Request, rung: u32) -> Relief {
        if rung == 0 { Relief::Release { blocks: Vec::new(), attempt: Attempt::Ask } } else { Relief::Done }
    }
}

/// Returns, as text, all answers that need no heap with blocks.
fn answers(policy: &dyn Policy, request: &Request) -> String {
    let sizes = [512, 700, MIB, 20 * MIB, u64::MAX].map(Bytes);
    let slots = [PoolClass::Small, PoolClass::Large].map(PoolSlot::default_pool);
    let of_size = sizes.map(|size| {
        let (rounded, class) = (policy.round(size), policy.classify(size));
        let cut = (size > request.size).then(|| policy.splits(size, request));
        (rounded, class, cut, policy.reservation(size), policy.is_oversize(size), policy.rejects(Bytes(1), size, Bytes(MIB)))
    });
    let of_slot = slots.map(|slot| (policy.is_expandable(slot), policy.page(slot), policy.stamp(slot)));
    let rules = (policy.releases_during_captures(), policy.max_split_size());
    format!("{} {} {of_size:?} {of_slot:?} {rules:?}", policy.name(), policy.profile().name)
}

/// Tests a device and a policy that implement only the required methods, and that a boxed policy answers like the policy
/// itself.
pub(crate) fn check_defaults(_: &Draws) -> Outcome {
    devices()?;
    policies()?;
    boxes()?;
    Ok(3)
}

fn devices() -> Result<(), Broken> {
    let mut device = Plain;
    let (at, size, stream) = (DeviceAddress(1 << 30), Bytes(2 * MIB), StreamId::DEFAULT);
    let answers = [
        device.reserve(size).map(drop),
        device.unreserve(at, size),
        device.create(size),
        device.map(at, size, &()),
        device.set_access(at, size),
        device.unmap(at, size),
        device.release(()).map_err(|((), error)| error),
        device.create_run(size, 2).map(drop),
        device.split_run(&mut (), size, 1),
        device.unmap_run(at, size, 2),
        device.synchronize_stream(stream),
        device.stream_wait(stream, &()),
    ];
    let refused = |call| Err(BackendError::Driver { call, code: 801 });
    let is_right = answers[..11].iter().all(|answer| *answer == refused("virtual memory"));
    ensure(Law::Faults, is_right && answers[11] == refused("cudaStreamWaitEvent"), || {
        format!("a device without virtual memory returned {answers:?}")
    })?;
    let others = (device.run_pages(), device.processes().len(), device.answers_are_checked(), device.completes_by_handle());
    ensure(Law::Faults, others == (1, 0, true, false), || format!("the default answers of a device are {others:?}"))?;
    let mut device = Paper::new(1 << 30).with_virtual_memory();
    let taken = device.create_run(size, 5);
    let unmapped = device.unmap_run(at, size, 3);
    let calls = device.take_calls();
    let made =
        [MadeCall::to(CallName::MemCreate).of(size.get()), MadeCall::to(CallName::MemUnmap).of(3 * size.get()).at(at.get())];
    let is_right = taken == Ok(((), 1)) && unmapped.is_ok() && calls.iter().copied().map(MadeCall::asked).eq(made);
    ensure(Law::Faults, is_right, || format!("of five pages, {taken:?} are taken and three unmapped, with the calls {calls:?}"))
}

fn policies() -> Result<(), Broken> {
    let slots = [PoolClass::Small, PoolClass::Large].map(PoolSlot::default_pool);
    let of_slot = slots.map(|slot| (Plain.is_expandable(slot), Plain.page(slot).get(), Plain.stamp(slot)));
    let rules = (Plain.releases_during_captures(), Plain.max_split_size());
    let others = (Plain.is_oversize(Bytes::MAX), Plain.rejects(Bytes::MAX, Bytes::MAX, Bytes(0)), Plain.profile().name);
    let is_right = of_slot == [(false, 2 * MIB, 0); 2] && rules == (false, -1) && others == (false, false, "2.11");
    ensure(Law::Answers, is_right, || format!("the default answers of a policy are {of_slot:?}, {rules:?} and {others:?}"))?;
    // The greatest total whose nine eighths fit into 64 bits.
    let greatest = ((1_u128 << 64) * 8 / 9) as u64;
    let borders = (0..64).map(|bits| 1_u64 << bits).chain([801, greatest, greatest + 8, u64::MAX - (1 << 32)]);
    for total in borders.flat_map(|total| [total - 1, total, total + 1]).chain([u64::MAX]) {
        let expected = u64::try_from(u128::from(total) + u128::from(total / 8)).unwrap_or(u64::MAX);
        let seen = Plain.reservation(Bytes(total)).get();
        ensure(Law::Answers, seen == expected, || {
            format!("on a device of {total} bytes, {seen} bytes of addresses are reserved by default, expected {expected}")
        })?;
    }
    // A cache with two segments, both of which may be released.
    let mut core = Core::new(simulated(), Box::new(Plain), Vec::new());
    let held = [3 * MIB, 5 * MIB].map(|size| core.allocate(Bytes(size), StreamId::DEFAULT));
    for allocation in held {
        let freed = allocation.map_err(|error| Broken::new(Law::Answers, error)).map(|allocation| core.free(allocation));
        ensure(Law::Answers, freed == Ok(Ok(())), || format!("{freed:?}"))?;
    }
    let (named, all) = (core.policy().releasable(core.heap()), core.heap().releasable());
    ensure(Law::Answers, named == all && all.len() == 2, || format!("by default, {named:?} out of {all:?} may be released"))
}

fn boxes() -> Result<(), Broken> {
    let text = "expandable_segments:True,max_split_size_mb:21,large_segment_size_mb:12,throw_on_cudamalloc_oom:True,\
                per_process_memory_fraction:0.5,expandable_segments_reserve:0.25,roundup_power2_divisions:8";
    let profile = &Profile::PYTORCH_2_15;
    let settings = Settings::from_environment_as(&profile.dialect, text).map_err(|error| Broken::new(Law::Settings, error))?;
    let plain = PyTorch::of(profile, settings);
    let boxed: Box<dyn Policy> = Box::new(plain.clone());
    let (stream, size) = (StreamId::DEFAULT, Bytes(600));
    let pool = PoolSlot::default_pool(PoolClass::Small);
    let request = Request { requested: size, size, pool, stream, is_expandable: true };
    let (seen, expected) = (answers(&boxed, &request), answers(&plain, &request));
    ensure(Law::Answers, seen == expected, || format!("in a box, a policy answers {seen}, outside it {expected}"))?;
    let [mut seen, mut expected] = [Core::new(simulated(), boxed, Vec::new()).stats().clone(), Default::default()];
    expected.max_split_size = 21 << 20;
    ensure(Law::Counters, seen == expected, || format!("max_split_size is {} at first", seen.max_split_size))?;
    seen.reset_accumulated();
    ensure(Law::Counters, seen == expected, || "a reset changes max_split_size".to_owned())
}

/// The size of a page in bytes.
const PAGE: u64 = 20 * MIB;

/// The maximum number of pages that a case moves or requests.
const MOST: u64 = 4;

/// PyTorch's rules, except that each failed search requests a segment that is 2 MiB larger than the previous one.
#[derive(Debug)]
struct Growing(PyTorch, Rc<Cell<u64>>);

impl parkade::policy::Wrapper for Growing {
    type Inner = PyTorch;

    fn inner(&self) -> &PyTorch {
        &self.0
    }

    fn inner_mut(&mut self) -> &mut PyTorch {
        &mut self.0
    }

    fn place(&mut self, heap: &Heap, request: &Request) -> Placement {
        self.1.update(|searches| searches + 1);
        match Policy::place(&mut self.0, heap, request) {
            Placement::Segment(bytes) => Placement::Segment(Bytes(bytes.get() + self.1.get() * 2 * MIB)),
            found @ Placement::Reuse(_) => found,
        }
    }
}

/// PyTorch's rules, except that the first rung remaps every free block.
#[derive(Debug)]
struct Remapping(PyTorch);

impl parkade::policy::Wrapper for Remapping {
    type Inner = PyTorch;

    fn inner(&self) -> &PyTorch {
        &self.0
    }

    fn inner_mut(&mut self) -> &mut PyTorch {
        &mut self.0
    }

    fn ladder(&self) -> &'static [Rung] {
        &[Rung::Own]
    }

    fn relieve(&mut self, heap: &Heap, _: &Request, rung: u32) -> Relief {
        let blocks: Vec<BlockId> = heap.pool_slots().flat_map(|slot| heap.free_blocks(slot)).map(|block| block.id).collect();
        match rung {
            0 => Relief::Remap { blocks },
            1 => Relief::Release { blocks: Vec::new(), attempt: Attempt::Ask },
            _ => Relief::Done,
        }
    }
}

/// PyTorch's rules, except that the policy takes parts of other streams' blocks, and that it refuses to split a block when
/// it is asked for the first time, but not afterwards.
#[derive(Debug)]
struct Wavering(PyTorch, Rc<Cell<u64>>);

impl parkade::policy::Wrapper for Wavering {
    type Inner = PyTorch;

    fn inner(&self) -> &PyTorch {
        &self.0
    }

    fn inner_mut(&mut self) -> &mut PyTorch {
        &mut self.0
    }

    fn splits(&self, _: Bytes, _: &Request) -> bool {
        self.1.update(|questions| questions + 1);
        self.1.get() > 1
    }

    fn ladder(&self) -> &'static [Rung] {
        &[Rung::Own, Rung::Grow]
    }

    fn relieve(&mut self, heap: &Heap, request: &Request, turn: u32) -> Relief {
        let mut elsewhere = heap.first_at_least_elsewhere(request.pool, request.stream, request.size);
        match elsewhere.next() {
            Some(block) if turn == 0 => Relief::TransferPart { block: block.id },
            _ => Relief::Done,
        }
    }
}

/// Tests what can happen during a request: a callback frees memory and the policy is asked again, or memory moves to the
/// request.
///
/// The device calls show what was requested: the size of the segment, and how many pages were created, mapped, unmapped
/// and released.
pub(crate) fn check_on_the_way(_: &Draws) -> Outcome {
    let mut cases = 0;
    for answers in (0..8_u32).map(|bits| [bits & 1 == 1, bits & 2 == 2, bits & 4 == 4]) {
        for count in 0..=answers.len() {
            searched_again(&answers[..count])?;
            cases += 1;
        }
    }
    whole_block_of_another_stream()?;
    for free in (1..=MOST).flat_map(|first| (0..=MOST).map(move |second| [first, second])) {
        for wanted in 1..=2 * MOST {
            remapped_pages(free, wanted)?;
            cases += 1;
        }
    }
    Ok(cases)
}

/// The callbacks report whether they freed something. If any did, the segment has the size that the second search
/// requests.
fn searched_again(answers: &[bool]) -> Result<(), Broken> {
    let asked = Rc::new(Cell::new(0));
    let policy = Box::new(Growing(PyTorch::new(Settings::default()), Rc::clone(&asked)));
    let mut core = Core::new(simulated(), policy, Vec::new());
    for &says in answers {
        core.register_free_memory_callback(Box::new(move |_| says));
    }
    let held = core.allocate(Bytes(3 * MIB), StreamId::DEFAULT).map_err(failed)?;
    let searches = 1 + u64::from(answers.contains(&true));
    let (seen, expected) = (core.heap().reserved().get(), 20 * MIB + searches * 2 * MIB);
    ensure(Law::Answers, asked.get() == searches && seen == expected, || {
        let asked = asked.get();
        format!(
            "callbacks report {answers:?}: {asked} searches and a segment of {seen} bytes, expected {searches} and \
                 {expected}"
        )
    })?;
    core.free(held).map_err(failed)
}

/// A block of another stream that the policy refuses to split is handed out whole: the policy is not asked again.
fn whole_block_of_another_stream() -> Result<(), Broken> {
    let asked = Rc::new(Cell::new(0));
    let policy = Box::new(Wavering(PyTorch::new(Settings::default()), Rc::clone(&asked)));
    let mut core = Core::new(simulated(), policy, Vec::new());
    let lender = core.allocate(Bytes(30 * MIB), StreamId(1)).map_err(failed)?;
    core.free(lender).map_err(failed)?;
    asked.set(0);
    let held = core.allocate(Bytes(12 * MIB), StreamId(2)).map_err(failed)?;
    let (active, questions) = (core.stats().family(Family::ActiveBytes).all.current, asked.get());
    ensure(Law::Answers, (active, questions) == (30 << 20, 1), || {
        format!(
            "a policy that refused to split a block of 30 MiB of another stream was asked {questions} times, and {active} bytes \
             are active"
        )
    })?;
    core.check().map_err(|violation| Broken::new(Law::Sweep, violation))?;
    core.free(held).map_err(failed)
}

/// Two segments have this many free pages, and a request on another stream needs `wanted` pages: each unmapped page is
/// mapped again, pages are created only if there are too few, and released only if there are too many.
fn remapped_pages(free: [u64; 2], wanted: u64) -> Result<(), Broken> {
    let settings = Settings { expandable_segments: true, ..Settings::default() };
    let policy = Box::new(Remapping(PyTorch::new(settings)));
    let mut core = Core::new(Paged::new(SimOptions::new(Bytes(30 * PAGE))), policy, Vec::new());
    let allocate = |core: &mut Core, pages: u64, stream: u64| -> Result<Allocation, Broken> {
        core.allocate(Bytes(pages * PAGE), StreamId(stream)).map_err(failed)
    };
    // Free both together, because otherwise the second request would take the first one's pages.
    let mut held = Vec::new();
    for (pages, stream) in free.into_iter().zip(1..).filter(|(pages, _)| *pages > 0) {
        held.push(allocate(&mut core, pages, stream)?);
    }
    for allocation in held {
        core.free(allocation).map_err(failed)?;
    }
    let before = core.device().sim.used_bytes().get();
    core.device_mut().sim.set_log_level(LogLevel::Memory);
    let held = allocate(&mut core, wanted, 9)?;
    let log = core.device_mut().sim.take_log();
    let seen = [CallName::MemUnmap, CallName::MemMap, CallName::MemCreate, CallName::MemRelease]
        .map(|name| log.iter().filter(|call| call.name == name).count() as u64);
    let unmapped: u64 = free.iter().sum();
    let expected = [unmapped, wanted, wanted.saturating_sub(unmapped), unmapped.saturating_sub(wanted)];
    let during = || format!("{free:?} free pages of other streams are remapped for a request for {wanted}");
    ensure(Law::Answers, seen == expected, || {
        format!("{}: unmapped, mapped, created and released {seen:?} pages, expected {expected:?}", during())
    })?;
    let (used, reserved) = (core.device().sim.used_bytes().get(), core.heap().reserved().get());
    ensure(Law::Accounting, [used, reserved] == [wanted * PAGE; 2], || {
        format!("{}: the device had handed out {before} bytes before and {used} after, but {reserved} are counted", during())
    })?;
    core.check().map_err(|violation| Broken::new(Law::Sweep, violation))?;
    core.free(held).map_err(failed)
}
