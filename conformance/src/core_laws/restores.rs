//! Restores of private pools, and what happens to the allocations that they take back.

use std::collections::BTreeSet;

use parkade::device::DeviceBackend;
use parkade::policy::PyTorch;
use parkade::settings::Settings;
use parkade::units::{Bytes, MIB, PoolId, StreamId};
use parkade::{Allocation, CheckpointError, FreeError, PoolFilter};
use parkade_sim::{CallName, EventTiming, FaultError, FaultPlan, SimOptions, When};
use proptest::prelude::*;

use crate::core_laws::devices::{Paged, PagedCore as Core, Paper, PaperCore};
use crate::drawn::{Draws, Outcome, run_law};
use crate::law::{Broken, Law, ensure};

/// The pool that is saved and restored.
const POOL: PoolId = PoolId(0, 1);

/// A stream that uses other streams' blocks.
const USER: StreamId = StreamId(9);

/// The size in bytes of a page, and of a block that fills it.
const PAGE: u64 = 20 * MIB;

fn failed(error: impl std::fmt::Display) -> Broken {
    Broken::new(Law::Reference, error)
}

fn begin(is_expandable: bool) -> Result<Core, Broken> {
    let settings = Settings { expandable_segments: is_expandable, ..Settings::default() };
    let device = Paged::new(SimOptions::new(Bytes(200 * MIB)).event_timing(EventTiming::Lazy));
    let mut core = Core::new(device, Box::new(PyTorch::new(settings)), Vec::new());
    core.begin_pool(POOL, PoolFilter::All).map_err(failed)?;
    Ok(core)
}

fn allocate(core: &mut Core, bytes: u64) -> Result<Allocation, Broken> {
    core.allocate(Bytes(bytes), StreamId::DEFAULT).map_err(failed)
}

/// Restores that fail midway, and expandable segments that have grown since they were saved: every short sequence of
/// blocks is tried.
pub(crate) fn check(_: &Draws) -> Outcome {
    let mut restores = 0;
    for used in 0..1_u32 << 4 {
        for nth in 1..=4 {
            interrupted(used, nth)?;
            restores += 1;
        }
    }
    for kinds in (0..3_usize.pow(3)).map(|number| [number % 3, number / 3 % 3, number / 9]) {
        for count in 0..=kinds.len() {
            grown(&kinds[..count])?;
            restores += 1;
        }
    }
    Ok(restores)
}

/// Another stream uses some of four blocks, and one event cannot be recorded while a restore takes the blocks back: all
/// of them are freed anyway, and nothing is handed out.
fn interrupted(used: u32, nth: u64) -> Result<(), Broken> {
    let mut core = begin(false)?;
    let checkpoint = core.checkpoint_pool(POOL).map_err(failed)?;
    let mut held = Vec::new();
    for place in 0..4_u64 {
        let allocation = allocate(&mut core, 3 * MIB + place * MIB)?;
        if used >> place & 1 == 1 {
            core.record_stream(&allocation, USER);
        }
        held.push(allocation);
    }
    // Routing requests defers all events.
    core.end_pool(POOL).map_err(failed)?;
    core.device_mut().sim.set_fault_plan(FaultPlan::none().and(When::NthOf(CallName::EventRecord, nth), FaultError::Code(700)));
    let answer = core.restore_pool(&checkpoint);
    let fails = nth <= u64::from(used.count_ones());
    let is_right = if fails { matches!(answer, Err(CheckpointError::Device(_))) } else { answer.is_ok() };
    let during = || format!("event number {nth} cannot be recorded, and blocks {used:#b} are in use");
    ensure(Law::Faults, is_right, || format!("{}: {answer:?}", during()))?;
    let live = core.pool_live_allocations_are(POOL, &[]);
    let allocated = core.stats().entries().iter().find(|(key, _)| key == "allocation.all.current").map(|(_, value)| *value);
    ensure(Law::Faults, live == Ok(true) && allocated == Some(0), || {
        format!("{}: {allocated:?} blocks are still allocated", during())
    })?;
    core.check().map_err(|violation| Broken::new(Law::Sweep, violation))?;
    for allocation in held {
        let answer = core.free(allocation);
        ensure(Law::Faults, matches!(answer, Err(FreeError::NotAllocated(_))), || {
            format!(
                "{}: a block from before the restore is \
                                                                                accepted",
                during()
            )
        })?;
    }
    core.release_pool(POOL).map_err(failed)?;
    core.device_mut().sim.complete_all();
    core.release_cached().map_err(failed)?;
    let left = core.heap().reserved();
    ensure(Law::Endings, left == Bytes::ZERO, || format!("{}: {left} bytes are still reserved", during()))
}

/// A block of one page is saved, and the segment then grows by blocks that are free (0), allocated (1) or pending (2).
/// The segment can be restored if at most one mapped block follows the saved one after everything is freed.
fn grown(kinds: &[usize]) -> Result<(), Broken> {
    let mut core = begin(true)?;
    let mut held = vec![allocate(&mut core, PAGE)?];
    let checkpoint = core.checkpoint_pool(POOL).map_err(failed)?;
    let later = kinds.iter().map(|_| allocate(&mut core, PAGE)).collect::<Result<Vec<_>, _>>()?;
    core.end_pool(POOL).map_err(failed)?;
    for (allocation, kind) in later.into_iter().zip(kinds) {
        if *kind == 2 {
            core.record_stream(&allocation, USER);
        }
        if *kind == 1 { held.push(allocation) } else { core.free(allocation).map_err(failed)? }
    }
    // Adjacent free blocks coalesce; pending blocks stay separate.
    let waits: Vec<bool> = kinds.iter().map(|kind| *kind == 2).collect();
    let blocks = waits.chunk_by(|before, after| !before && !after).count();
    let before: BTreeSet<_> = held.iter().map(Allocation::address).collect();
    let answer = core.restore_pool(&checkpoint);
    match answer {
        Ok(restored) => {
            let freed: BTreeSet<_> = restored.freed.iter().copied().collect();
            let is_right = blocks <= 1 && freed == before && restored.allocations.len() == 1;
            ensure(Law::Reference, is_right, || {
                format!("the saved block is followed by {kinds:?}, and the restore returned {restored:?}")
            })?;
            let same =
                restored.allocations.iter().all(|allocation| held.first().map(Allocation::address) == Some(allocation.address()));
            ensure(Law::Reference, same, || format!("{restored:?} was restored, but {held:?} had been saved"))?;
        }
        Err(error) => {
            let tail = matches!(error, CheckpointError::TailInUse(_));
            ensure(Law::Reference, tail && blocks > 1, || {
                format!("the saved block is followed by {kinds:?}, and the restore failed: {error}")
            })?;
            // Nothing has changed.
            let live: Vec<_> = before.into_iter().collect();
            let same = core.pool_live_allocations_are(POOL, &live);
            ensure(Law::Reference, same == Ok(true), || format!("a failed restore changed {live:?}"))?;
        }
    }
    core.check().map_err(|violation| Broken::new(Law::Sweep, violation))
}

/// The same requests in two allocators take the same slots, so the allocations are equal if and only if their addresses
/// are equal.
fn across_allocators() -> Result<(), Broken> {
    let make = |skipped: u64| -> Result<Vec<Allocation>, Broken> {
        let mut device = Paper::new(1 << 40);
        (0..skipped).try_for_each(|_| device.malloc(Bytes(1)).map(drop)).map_err(failed)?;
        let mut core = PaperCore::new(device, PyTorch::new(Settings::default()), Vec::new());
        [512, 3 * MIB, 512].map(|size| core.allocate(Bytes(size), StreamId::DEFAULT).map_err(failed)).into_iter().collect()
    };
    let (first, same, other) = (make(0)?, make(0)?, make(1)?);
    let is_right = first == same && first.iter().zip(&other).all(|(a, b)| a != b && a.address() != b.address());
    ensure(Law::Reference, is_right, || format!("{first:?} and {same:?} should be equal, and {other:?} should be different"))?;
    let text = format!("{:?}", first[0]);
    let names = text.starts_with("Allocation {") && text.contains("id: ") && text.contains(&format!("{:?}", first[0].address()));
    ensure(Law::Reference, names, || format!("an allocation at {} is shown as {text}", first[0].address()))
}

/// Tests the identity of allocations: equality means the same block, and a restored pool's old allocations stay void
/// even if a new block has the same address.
pub(crate) fn handles(draws: &Draws) -> Outcome {
    across_allocators()?;
    let sizes = prop::sample::select(vec![1, 512, 5000, MIB, 3 * MIB, 30 * MIB]);
    let strategy = (prop::collection::vec(sizes, 1..8), 1..4_usize, any::<u64>());
    run_law(&draws.each_for(2), 354, strategy, |(sizes, turns, which)| void_after_restores(sizes, *turns, *which))
}

fn void_after_restores(sizes: &[u64], turns: usize, which: u64) -> Result<u64, Broken> {
    let mut core = PaperCore::new(Paper::new(1 << 40), PyTorch::new(Settings::default()), Vec::new());
    core.begin_pool(POOL, PoolFilter::All).map_err(failed)?;
    let (mut held, mut void): (Vec<Allocation>, Vec<Allocation>) = (Vec::new(), Vec::new());
    for &size in sizes {
        held.push(core.allocate(Bytes(size), StreamId::DEFAULT).map_err(failed)?);
    }
    for turn in 0..turns {
        let checkpoint = core.checkpoint_pool(POOL).map_err(failed)?;
        if which >> turn & 1 == 1 && !held.is_empty() {
            let allocation = held.remove(which as usize % held.len());
            core.free(allocation).map_err(failed)?;
        }
        void.append(&mut held);
        held = core.restore_pool(&checkpoint).map_err(failed)?.allocations;
        ensure(Law::Reference, held.len() == sizes.len(), || format!("{} of {} blocks were restored", held.len(), sizes.len()))?;
        for (place, allocation) in held.iter().enumerate() {
            let same = allocation.in_a_clone() == *allocation && core.segment_of(allocation).is_some();
            ensure(Law::Reference, same, || format!("{allocation:?} is not equal to itself"))?;
            let twin = held[place + 1..].iter().chain(&void).find(|other| *other == allocation);
            ensure(Law::Reference, twin.is_none(), || format!("{allocation:?} is equal to a different block, {twin:?}"))?;
        }
        for old in &void {
            let is_known = core.segment_of(old).is_some();
            core.record_stream(old, StreamId(1));
            let answer = core.free(old.in_a_clone());
            let refused = matches!(answer, Err(FreeError::NotAllocated(_))) && !is_known;
            ensure(Law::Reference, refused, || format!("{old:?}, which a restore had taken back, was accepted: {answer:?}"))?;
        }
        core.check().map_err(|violation| Broken::new(Law::Sweep, violation))?;
    }
    Ok((sizes.len() * turns) as u64)
}
