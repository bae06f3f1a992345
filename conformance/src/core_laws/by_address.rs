//! Free blocks by address that coalesce: hundreds of small blocks side by side, freed in any order. A list of units that are free says
//! what the heap answers to a search from any address, also from inside a block and from where one began that has coalesced.

use crate::law::{Broken, Law, ensure};
use crate::ordered::Ordered;
use parkade::policy::{FreeOrder, PyTorch};
use parkade::settings::Settings;
use parkade::units::{Bytes, DeviceAddress, PoolClass, PoolId, StreamId};
use parkade::{AdoptedBlock, AdoptedContent, AdoptedSegment, Allocation, PoolSlot};
use proptest::prelude::*;

use crate::core_laws::index::OrderedCore;
use crate::core_laws::paper::Paper;
use crate::core_laws::run::{Draws, Outcome, run};

/// The bytes of a block before any coalesces.
const UNIT: u64 = 512;

/// Where the segment begins.
const BASE: u64 = 1 << 40;

fn failed(error: impl std::fmt::Display) -> Broken {
    Broken::new(Law::Reference, error)
}

/// How many blocks there are, how far apart those are that are freed first, and what decides the order of the others.
pub(crate) fn check(draws: &Draws) -> Outcome {
    let strategy = (70..400_usize, 2..4_usize, any::<u64>());
    run(&draws.each_for(4), 358, &strategy, |&(count, apart, seed)| play(count, apart, seed))
}

fn play(count: usize, apart: usize, seed: u64) -> Result<u64, Broken> {
    let policy = Ordered { rules: PyTorch::new(Settings::default()), order: FreeOrder::ByAddress };
    let mut core = OrderedCore::new(Paper::new(1 << 50), policy, Vec::new());
    let block = AdoptedBlock { size: Bytes(UNIT), content: AdoptedContent::Allocated(Bytes(UNIT)) };
    let (pool, class, stream) = (PoolId::DEFAULT, PoolClass::Small, StreamId::DEFAULT);
    let segment = AdoptedSegment { address: DeviceAddress(BASE), stream, pool, class, page: None, blocks: vec![block; count] };
    let adopted = core.adopt(&segment, &mut |_, _| ((), 1)).map_err(failed)?;
    let mut held: Vec<Option<Allocation>> = adopted.into_iter().map(Some).collect();
    let mut state = seed;
    let mut draw = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below.max(1)
    };
    let mut order: Vec<usize> = (0..count).step_by(apart).collect();
    let mut others: Vec<usize> = (0..count).filter(|place| place % apart != 0).collect();
    while !others.is_empty() {
        order.push(others.swap_remove(draw(others.len())));
    }
    let mut free = vec![false; count];
    for (step, &place) in order.iter().enumerate() {
        if let Some(allocation) = held[place].take() {
            core.free(allocation).map_err(failed)?;
        }
        free[place] = true;
        // Every address around the block that grew last, and one anywhere.
        let first = (0..place).rev().take_while(|&before| free[before]).last().unwrap_or(place);
        let behind = (place..count).find(|&next| !free[next]).unwrap_or(count);
        let near = (first..behind).flat_map(|unit| [0, UNIT / 2].map(|more| unit as u64 * UNIT + more)).take(12);
        let anywhere = draw(count) as u64 * UNIT;
        let size = 1 + draw(4) as u64;
        for from in near.chain([0, anywhere, behind as u64 * UNIT]) {
            ask(&core, &free, size, from).map_err(|broken| broken.during(format!("step {step}, unit {place} is freed")))?;
        }
    }
    core.check().map_err(|violation| Broken::new(Law::Sweep, violation))?;
    Ok(count as u64)
}

/// The lowest free block of so many units that ends behind an address, counted from the first unit.
fn ask(core: &OrderedCore, free: &[bool], units: u64, from: u64) -> Result<(), Broken> {
    let slot = PoolSlot::default_pool(PoolClass::Small);
    let seen = core.heap().lowest_at_least(slot, StreamId::DEFAULT, Bytes(units * UNIT), DeviceAddress(BASE + from));
    let seen = seen.map(|block| block.address.get() - BASE);
    let mut begin = 0;
    let mut expected = None;
    for run in free.chunk_by(|one, other| one == other) {
        let (bytes, end) = (run.len() as u64 * UNIT, begin + run.len() as u64 * UNIT);
        if run[0] && bytes >= units * UNIT && end > from {
            expected = Some(begin);
            break;
        }
        begin = end;
    }
    ensure(Law::Reference, seen == expected, || {
        format!("the lowest block of {units} units that ends behind {from:#x} begins at {seen:x?}, expected {expected:x?}")
    })
}
