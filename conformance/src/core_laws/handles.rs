//! What two allocations have in common: equality means the same block, and a restored pool's old allocations stay void, even where
//! a new block has their address.

use crate::law::{Broken, Law, ensure};
use parkade::device::DeviceBackend;
use parkade::policy::PyTorch;
use parkade::settings::Settings;
use parkade::units::{Bytes, MIB, PoolId, StreamId};
use parkade::{Allocation, Allocator, FreeError, PoolFilter};
use proptest::prelude::*;

use crate::core_laws::paper::Paper;
use crate::core_laws::run::{Draws, Outcome, run};

/// The pool that is saved and restored.
const POOL: PoolId = PoolId(0, 1);

fn failed(error: impl std::fmt::Display) -> Broken {
    Broken::new(Law::Reference, error)
}

/// The same requests in two allocators take the same slots: the allocations are equal if the addresses are.
fn across_allocators() -> Result<(), Broken> {
    let make = |skipped: u64| -> Result<Vec<Allocation>, Broken> {
        let mut device = Paper::new(1 << 40);
        (0..skipped).try_for_each(|_| device.malloc(Bytes(1)).map(drop)).map_err(failed)?;
        let mut core = Allocator::new(device, PyTorch::new(Settings::default()), Vec::new());
        [512, 3 * MIB, 512].map(|size| core.allocate(Bytes(size), StreamId::DEFAULT).map_err(failed)).into_iter().collect()
    };
    let (first, same, other) = (make(0)?, make(0)?, make(1)?);
    let is_right = first == same && first.iter().zip(&other).all(|(a, b)| a != b && a.address() != b.address());
    ensure(Law::Reference, is_right, || format!("{first:?} and {same:?} are to be equal, {other:?} to be different"))?;
    let text = format!("{:?}", first[0]);
    let names = text.starts_with("Allocation {") && text.contains("id: ") && text.contains(&format!("{:?}", first[0].address()));
    ensure(Law::Reference, names, || format!("an allocation at {} is shown as {text}", first[0].address()))
}

pub(crate) fn check(draws: &Draws) -> Outcome {
    across_allocators()?;
    let sizes = prop::sample::select(vec![1, 512, 5000, MIB, 3 * MIB, 30 * MIB]);
    let strategy = (prop::collection::vec(sizes, 1..8), 1..4_usize, any::<u64>());
    run(&draws.each_for(2), 354, &strategy, |(sizes, turns, which)| one(sizes, *turns, *which))
}

fn one(sizes: &[u64], turns: usize, which: u64) -> Result<u64, Broken> {
    let mut core = Allocator::new(Paper::new(1 << 40), PyTorch::new(Settings::default()), Vec::new());
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
        ensure(Law::Reference, held.len() == sizes.len(), || format!("{} of {} blocks are restored", held.len(), sizes.len()))?;
        for (place, allocation) in held.iter().enumerate() {
            let same = allocation.in_a_clone() == *allocation && core.segment_of(allocation).is_some();
            ensure(Law::Reference, same, || format!("{allocation:?} is not equal to itself"))?;
            let twin = held[place + 1..].iter().chain(&void).find(|other| *other == allocation);
            ensure(Law::Reference, twin.is_none(), || format!("{allocation:?} is equal to another block, {twin:?}"))?;
        }
        for old in &void {
            let is_known = core.segment_of(old).is_some();
            core.record_stream(old, StreamId(1));
            let answer = core.free(old.in_a_clone());
            let refused = answer == Err(FreeError::NotAllocated) && !is_known;
            ensure(Law::Reference, refused, || format!("{old:?}, which a restore took back, was accepted: {answer:?}"))?;
        }
        core.check().map_err(|violation| Broken::new(Law::Sweep, violation))?;
    }
    Ok((sizes.len() * turns) as u64)
}
