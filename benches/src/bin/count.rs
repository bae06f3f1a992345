//! Runs one case of the `pairs` benchmark a given number of times so that another program can count its instructions:
//! `count CASE STEPS`. The cost of a step is the difference between two counts divided by the difference in steps.
//!
//! `4KiB`, `2MiB` and `32MiB` allocate a block and free it; `mix100` to `mix100000` replace a random one of that many
//! blocks; `expandable` is `2MiB` with expandable segments, and `streams` is `2MiB` with one other stream recorded. A
//! step of `replay` allocates a block or frees a random one, with about a thousand live. `pointer` is `4KiB`, and
//! `pointer-mix1000` is `mix1000`, but both identify blocks by address, through the wrapper for several threads. The
//! prefix `compaction-` runs a case under the policy `compaction`.
#![forbid(unsafe_code)]

use parkade::policy::{Policy, PyTorch};
use parkade::settings::Settings;
use parkade::units::{Bytes, DeviceAddress, StreamId};
use parkade::{Allocation, Allocator};
use parkade_benches::{NullDevice, Random};
use parkade_policies::Compaction;
use parkade_shared::Shared;

type Core<P> = Allocator<NullDevice, P>;

type Done = Result<(), Box<dyn std::error::Error>>;

const USAGE: &str = "usage: count CASE STEPS";

fn main() -> Done {
    let mut arguments = std::env::args().skip(1);
    let case = arguments.next().ok_or(USAGE)?;
    let steps: u64 = arguments.next().ok_or(USAGE)?.parse()?;
    if let Some(case) = case.strip_prefix("compaction-") {
        return count(Allocator::new(NullDevice::default(), Compaction::default(), ()), case, steps);
    }
    let settings = Settings { expandable_segments: case == "expandable", ..Settings::default() };
    let core = Allocator::new(NullDevice::default(), PyTorch::new(settings), ());
    match case.strip_prefix("pointer") {
        Some(case) => by_pointer(&Shared::new(core), case, steps),
        None => count(core, &case, steps),
    }
}

fn count<P: Policy>(mut core: Core<P>, case: &str, steps: u64) -> Done {
    match (case, case.strip_prefix("mix")) {
        ("4KiB", _) => pairs(&mut core, 4 << 10, steps),
        ("2MiB" | "expandable", _) => pairs(&mut core, 2 << 20, steps),
        ("32MiB", _) => pairs(&mut core, 32 << 20, steps),
        ("streams", _) => pairs_used_elsewhere(&mut core, steps),
        ("replay", _) => replay(&mut core, usize::try_from(steps)?),
        (_, Some(live)) => mix(&mut core, live.parse()?, usize::try_from(steps)?),
        _ => Err(USAGE.into()),
    }
}

fn pairs<P: Policy>(core: &mut Core<P>, bytes: u64, steps: u64) -> Done {
    for _ in 0..steps {
        let block = core.raw_allocate(Bytes(bytes), StreamId::DEFAULT)?;
        core.free(block)?;
    }
    Ok(())
}

fn pairs_used_elsewhere<P: Policy>(core: &mut Core<P>, steps: u64) -> Done {
    for _ in 0..steps {
        let block = core.raw_allocate(Bytes(2 << 20), StreamId::DEFAULT)?;
        core.record_stream(&block, StreamId(7));
        core.free(block)?;
    }
    Ok(())
}

fn mix<P: Policy>(core: &mut Core<P>, live: u64, steps: usize) -> Done {
    let mut random = Random(1);
    let mut blocks: Vec<Option<Allocation>> = Vec::new();
    for _ in 0..live {
        blocks.push(Some(core.raw_allocate(Bytes(random.size()), StreamId::DEFAULT)?));
    }
    // The sizes are drawn beforehand, so that only replacing is counted.
    let drawn: Vec<(usize, u64)> = (0..200_000).map(|_| ((random.number() % live) as usize, random.size())).collect();
    for &(place, bytes) in drawn.iter().cycle().take(steps) {
        if let Some(old) = blocks[place].take() {
            core.free(old)?;
        }
        blocks[place] = Some(core.raw_allocate(Bytes(bytes), StreamId::DEFAULT)?);
    }
    Ok(())
}

fn replay<P: Policy>(core: &mut Core<P>, steps: usize) -> Done {
    let mut random = Random(1);
    let mut blocks = Vec::new();
    // The numbers are drawn beforehand, so that only the core is counted. While fewer than a thousand blocks are live,
    // a number below 60 means an allocation; after that, a number below 40 does.
    let drawn: Vec<(u64, usize, u64)> =
        (0..200_000).map(|_| (random.number() % 100, random.number() as usize >> 1, random.size())).collect();
    for &(chance, place, bytes) in drawn.iter().cycle().take(steps) {
        if blocks.is_empty() || chance < if blocks.len() < 1_000 { 60 } else { 40 } {
            blocks.push(core.raw_allocate(Bytes(bytes), StreamId::DEFAULT)?);
        } else {
            core.free(blocks.swap_remove(place % blocks.len()))?;
        }
    }
    Ok(())
}

fn by_pointer(shared: &Shared<NullDevice, PyTorch>, case: &str, steps: u64) -> Done {
    let Some(live) = case.strip_prefix("-mix") else {
        for _ in 0..steps {
            shared.free(shared.raw_allocate(Bytes(4 << 10), StreamId::DEFAULT)?)?;
        }
        return Ok(());
    };
    let (live, mut random): (u64, _) = (live.parse()?, Random(1));
    let mut blocks: Vec<DeviceAddress> = Vec::new();
    for _ in 0..live {
        blocks.push(shared.raw_allocate(Bytes(random.size()), StreamId::DEFAULT)?);
    }
    let drawn: Vec<(usize, u64)> = (0..200_000).map(|_| ((random.number() % live) as usize, random.size())).collect();
    for &(place, bytes) in drawn.iter().cycle().take(usize::try_from(steps)?) {
        shared.free(blocks[place])?;
        blocks[place] = shared.raw_allocate(Bytes(bytes), StreamId::DEFAULT)?;
    }
    Ok(())
}
