//! Floating handles: which free block serves a request, and how fine the handles are.

use parkade::stats::Family;
use parkade::units::{Bytes, MIB, StreamId};
use parkade::{Allocation, Allocator};
use parkade_policies::named;
use parkade_sim::{CallName, SimDevice, SimOptions};

type Floating = Allocator<SimDevice, Box<dyn parkade::policy::Policy + Send>>;

fn on(capacity_mib: u64) -> Floating {
    named_on("floating-handles", capacity_mib)
}

fn named_on(name: &str, capacity_mib: u64) -> Floating {
    let policy = (named(name).unwrap().make)();
    Allocator::new(SimDevice::new(SimOptions::new(Bytes::mib(capacity_mib))), policy, ())
}

fn take(allocator: &mut Floating, mib: u64) -> Allocation {
    allocator.allocate(Bytes::mib(mib), StreamId::DEFAULT).unwrap()
}

#[test]
fn a_small_request_leaves_a_handle_whole_where_a_broken_one_has_room() {
    let mut allocator = named_on("floating-handles:handle=64MiB", 8192);
    // Handles of 64 MiB, by address: two blocks, a whole one, two blocks, a whole one, two blocks.
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
    let small = take(&mut allocator, 16);
    assert_ne!(small.address(), whole_at, "the tightest block is a whole handle");
    assert_eq!(small.address(), rest_at);
    for block in edge.into_iter().chain(end).chain([kept, small]) {
        allocator.free(block).unwrap();
    }
    allocator.check().unwrap();
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
        let mut allocator = named_on(name, 16384);
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
