//! Floating handles: which free block serves a request, and how fine the handles are.

use parkade::policy::Policy;
use parkade::stats::Family;
use parkade::units::{Bytes, MIB, PoolId, StreamId};
use parkade::{Allocation, Allocator, PoolFilter};
use parkade_policies::{FloatingHandles, named};
use parkade_sim::{CallName, SimDevice, SimOptions};

type Floating = Allocator<SimDevice, FloatingHandles>;

fn on(capacity_mib: u64) -> Floating {
    Allocator::new(SimDevice::new(SimOptions::new(Bytes::mib(capacity_mib))), FloatingHandles::default(), ())
}

fn with_handles(mib: u64, capacity_mib: u64) -> Floating {
    Allocator::new(SimDevice::new(SimOptions::new(Bytes::mib(capacity_mib))), FloatingHandles::with_handles(Bytes::mib(mib)), ())
}

fn take<P: Policy>(allocator: &mut Allocator<SimDevice, P>, mib: u64) -> Allocation {
    allocator.allocate(Bytes::mib(mib), StreamId::DEFAULT).unwrap()
}

#[test]
fn a_small_request_leaves_a_handle_whole_where_a_broken_one_has_room() {
    let mut allocator = with_handles(64, 8192);
    // A size that was seen before takes the low end.
    let seen = take(&mut allocator, 12);
    allocator.free(seen).unwrap();
    // Handles of 64 MiB, by address: two with blocks, a free one, two with blocks, a free one, two with blocks.
    let edge = [take(&mut allocator, 16), take(&mut allocator, 48)];
    let whole = take(&mut allocator, 64);
    let kept = take(&mut allocator, 16);
    let rest = take(&mut allocator, 48);
    let behind = take(&mut allocator, 64);
    let end = [take(&mut allocator, 16), take(&mut allocator, 48)];
    assert_eq!((allocator.heap().reserved(), allocator.device().totals(CallName::MemCreate).calls), (Bytes::mib(320), 5));
    let (whole_at, rest_at) = (whole.address(), rest.address());
    assert_eq!(behind.address().get() - rest_at.get(), 48 * MIB);
    for block in [whole, rest, behind] {
        allocator.free(block).unwrap();
    }
    let small = take(&mut allocator, 12);
    assert_ne!(small.address(), whole_at, "the tightest block is a whole handle");
    assert_eq!(small.address(), rest_at);
    for block in edge.into_iter().chain(end).chain([kept, small]) {
        allocator.free(block).unwrap();
    }
    allocator.check().unwrap();
}

#[test]
fn the_first_request_of_a_size_takes_the_high_end() {
    let mut allocator = on(8192);
    let [first, second, third] = [40, 3, 3].map(|mib| take(&mut allocator, mib));
    assert_eq!(first.address().get() - second.address().get(), 3 * MIB);
    assert_eq!(first.address().get() - third.address().get(), 344 * MIB, "the low end of a handle of 384 MiB");
    for block in [first, second, third] {
        allocator.free(block).unwrap();
    }
}

/// The handles that a request of 768 MiB takes.
fn handles(capacity_mib: u64) -> u64 {
    let mut allocator = on(capacity_mib);
    let block = take(&mut allocator, 768);
    allocator.free(block).unwrap();
    allocator.device().totals(CallName::MemCreate).calls
}

#[test]
fn handles_are_fine_once_a_request_takes_much_of_the_memory() {
    assert_eq!(handles(16384), 6, "of 1/128 of the memory");
    assert_eq!(handles(4096), 12, "of 64 MiB, which is more");
    assert_eq!(handles(32768), 2, "the request is a smaller part of the memory");
}

#[test]
fn a_wide_request_pins_nothing_behind_it_where_memory_is_short() {
    let mut allocator = on(450);
    let first = take(&mut allocator, 300);
    assert_eq!(allocator.heap().reserved(), Bytes::mib(300), "handles of just what it misses");
    allocator.free(first).unwrap();
    let second = take(&mut allocator, 200);
    allocator.check().unwrap();
    assert_eq!(allocator.heap().reserved(), Bytes::mib(244), "the handle in which it ends is replaced by one of 8 MiB");
    assert_eq!(allocator.device().totals(CallName::MemRelease).calls, 1);
    let third = take(&mut allocator, 200);
    allocator.check().unwrap();
    for block in [second, third] {
        allocator.free(block).unwrap();
    }
    allocator.release_cached().unwrap();
    assert_eq!(allocator.device().used_bytes(), Bytes::ZERO);
}

#[test]
fn handles_stay_as_they_are_where_another_such_request_has_room() {
    let mut allocator = on(512);
    let first = take(&mut allocator, 300);
    allocator.free(first).unwrap();
    let second = take(&mut allocator, 200);
    assert_eq!(allocator.heap().reserved(), Bytes::mib(300));
    assert_eq!(allocator.device().totals(CallName::MemUnmap).calls, 0);
    allocator.free(second).unwrap();
}

#[test]
fn streams_beside_the_first_take_little_more_than_they_ask_for() {
    let mut allocator = on(8192);
    let first = take(&mut allocator, 40);
    assert_eq!(allocator.heap().reserved(), Bytes::mib(384));
    let aside = allocator.allocate(Bytes::mib(20), StreamId(0x1000)).unwrap();
    assert_eq!(allocator.heap().reserved(), Bytes::mib(424));
    for block in [first, aside] {
        allocator.free(block).unwrap();
    }
}

#[test]
fn an_option_says_how_large_handles_are_at_most() {
    for (name, handles) in [("floating-handles", 6), ("floating-handles:handle=32MiB", 24), ("floating-handles:handle=4MiB", 192)]
    {
        let device = SimDevice::new(SimOptions::new(Bytes::mib(16384)));
        let mut allocator = Allocator::new(device, named(name).unwrap().make(), ());
        let block = take(&mut allocator, 768);
        assert_eq!(allocator.device().totals(CallName::MemCreate).calls, handles, "{name}");
        allocator.free(block).unwrap();
    }
}

#[test]
fn the_limit_holds_whatever_streams_ask_for() {
    for seed in 1..=200_u64 {
        let mut draws = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut below = |bound: u64| {
            draws ^= draws << 13;
            draws ^= draws >> 7;
            draws ^= draws << 17;
            draws % bound
        };
        let mut allocator = on(16384);
        let limit = [1024, 4096][below(2) as usize] * MIB;
        allocator.set_limit(Some(Bytes(limit)));
        let (mut held, mut peak) = (Vec::new(), 0);
        for step in 0..400 {
            let stream = StreamId(below(4) * 0x1000);
            let bytes = if below(3) == 0 { below(limit / 2) } else { below(limit / 40) } + 1;
            match allocator.allocate(Bytes(bytes), stream) {
                Ok(block) => {
                    if below(2) == 0 {
                        allocator.record_stream(&block, StreamId(below(4) * 0x1000));
                    }
                    held.push(block);
                }
                Err(_) => held.drain(..held.len() / 2).for_each(|block| allocator.free(block).unwrap()),
            }
            while !held.is_empty() && below(5) < 2 {
                let one = held.swap_remove(below(held.len() as u64) as usize);
                allocator.free(one).unwrap();
            }
            if below(30) == 0 {
                allocator.release_cached().unwrap();
            }
            let reserved = allocator.heap().reserved().get();
            peak = peak.max(allocator.stats().family(Family::ReservedBytes).all.peak);
            assert!(reserved <= limit, "seed {seed}, step {step}: {reserved} bytes under a limit of {limit}");
        }
        assert!(peak <= limit as i64, "seed {seed}: {peak}");
        held.into_iter().for_each(|block| allocator.free(block).unwrap());
        allocator.check().unwrap();
    }
}

/// In builds with debug assertions, whenever the core takes the first block without asking, it still asks the policy for a
/// place and compares.
#[test]
fn a_block_that_is_taken_unasked_is_the_one_that_would_be_placed() {
    for seed in 1..=120_u64 {
        let mut draws = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut below = |bound: u64| {
            draws ^= draws << 13;
            draws ^= draws >> 7;
            draws ^= draws << 17;
            draws % bound
        };
        let mut allocator = if seed % 2 == 0 { on(8192) } else { with_handles(16, 8192) };
        let (pool, mut is_routing, mut held) = (PoolId(0, 1), false, Vec::new());
        for _ in 0..1500 {
            let bytes = match below(8) {
                0 => below(600 * MIB),
                1 | 2 => below(20 * MIB),
                3 | 4 => 512 * below(40),
                _ => [3 * MIB, 9 * MIB, 4096][below(3) as usize],
            };
            match allocator.allocate(Bytes(bytes + 1), StreamId(below(2) * 0x1000)) {
                Ok(block) => held.push(block),
                Err(_) => held.drain(..held.len() / 2).for_each(|block| allocator.free(block).unwrap()),
            }
            while !held.is_empty() && below(20) < 9 {
                let one = held.swap_remove(below(held.len() as u64) as usize);
                allocator.free(one).unwrap();
            }
            let choice = below(60);
            if choice == 0 {
                // With a limit of 2 GiB or more, no request below 16 MiB is wide.
                allocator.set_limit(Some(Bytes::mib([1024, 2047, 2048, 4096][below(4) as usize])));
            } else if choice == 1 {
                match is_routing {
                    true => allocator.end_pool(pool).unwrap(),
                    false => allocator.begin_pool(pool, PoolFilter::All).unwrap(),
                }
                is_routing = !is_routing;
            }
        }
        held.into_iter().for_each(|block| allocator.free(block).unwrap());
        allocator.check().unwrap();
    }
}
