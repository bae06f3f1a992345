//! Compaction: memory in use keeps its addresses and contents, and the free pages of a handle are used where
//! they are needed.

use parkade::policy::Policy;
use parkade::stats::Family;
use parkade::units::{Bytes, DeviceAddress, MIB, PoolId, StreamId};
use parkade::{AllocError, Allocation, Allocator, PoolFilter};
use parkade_policies::Compaction;
use parkade_sim::{CallName, FaultError, FaultPlan, SimDevice, SimOptions, When};

type Compacting = Allocator<SimDevice, Compaction>;

fn on(capacity_mib: u64) -> Compacting {
    Allocator::new(SimDevice::new(SimOptions::new(Bytes::mib(capacity_mib))), Compaction::default(), ())
}

fn take<P: Policy>(allocator: &mut Allocator<SimDevice, P>, mib: u64) -> Allocation {
    allocator.allocate(Bytes::mib(mib), StreamId::DEFAULT).unwrap()
}

/// Fills a block with a different word at each position.
fn fill(allocator: &mut Compacting, block: &Allocation, mib: u64, word: u32) {
    allocator.device_mut().fill(block.address(), Bytes::mib(mib), word, StreamId::DEFAULT).unwrap();
}

/// Whether the block still has these words, including its first and last word.
fn has(allocator: &mut Compacting, block: &Allocation, mib: u64, word: u32) -> bool {
    (0..mib).all(|place| {
        let mut found = [0; 8];
        // Checks the middle of each MiB, and therefore of each page, and both ends.
        let offset = (place * MIB + MIB / 2).min(mib * MIB - 8) / 8 * 8;
        let ends = [0, offset, mib * MIB - 8];
        ends.into_iter().all(|offset| {
            allocator.device_mut().read(DeviceAddress(block.address().get() + offset), &mut found).unwrap();
            found.chunks_exact(4).all(|chunk| chunk == word.to_le_bytes())
        })
    })
}

/// A full device with 512 MiB. Its handles contain 8 MiB blocks, of which every fourth stays allocated, so no
/// handle is entirely free.
fn scattered() -> (Compacting, Vec<Allocation>) {
    let mut allocator = on(512);
    let blocks: Vec<Allocation> = (0..64).map(|_| take(&mut allocator, 8)).collect();
    assert_eq!(allocator.heap().reserved(), Bytes::mib(512));
    let (mut kept, mut gone) = (Vec::new(), Vec::new());
    for (place, block) in blocks.into_iter().enumerate() {
        if place % 4 == 1 {
            fill(&mut allocator, &block, 8, 1 + place as u32);
            kept.push(block);
        } else {
            gone.push(block);
        }
    }
    gone.into_iter().for_each(|block| allocator.free(block).unwrap());
    (allocator, kept)
}

fn give_all(mut allocator: Compacting, blocks: Vec<Allocation>) {
    blocks.into_iter().for_each(|block| allocator.free(block).unwrap());
    allocator.release_cached().unwrap();
    allocator.check().unwrap();
    let device = allocator.device();
    assert_eq!((device.used_bytes(), device.live_physical()), (Bytes::ZERO, 0));
}

#[test]
fn a_request_gets_all_that_is_free_and_nothing_in_use_changes() {
    let (mut allocator, mut kept) = scattered();
    let addresses: Vec<_> = kept.iter().map(Allocation::address).collect();
    let large = take(&mut allocator, 384);
    allocator.check().unwrap();
    assert_eq!(allocator.heap().reserved(), Bytes::mib(512), "no more memory than the device has");
    fill(&mut allocator, &large, 384, 0xffff);
    for (place, block) in kept.iter().enumerate() {
        assert!(has(&mut allocator, block, 8, 2 + 4 * place as u32), "block {place}");
    }
    assert!(has(&mut allocator, &large, 384, 0xffff));
    assert_eq!(kept.iter().map(Allocation::address).collect::<Vec<_>>(), addresses);
    kept.push(large);
    give_all(allocator, kept);
}

#[test]
fn only_as_many_handles_are_broken_as_the_request_needs() {
    let (mut allocator, mut kept) = scattered();
    let before = allocator.device().totals(CallName::MemUnmap).calls;
    kept.push(take(&mut allocator, 30));
    assert_eq!(allocator.device().totals(CallName::MemUnmap).calls - before, 1);
    kept.push(take(&mut allocator, 16));
    assert_eq!(allocator.device().totals(CallName::MemUnmap).calls - before, 1, "a free block serves the request");
    give_all(allocator, kept);
}

/// Returns the numbers of creations, mappings and releases so far.
fn calls(allocator: &Compacting) -> [u64; 3] {
    [CallName::MemCreate, CallName::MemMap, CallName::MemRelease].map(|call| allocator.device().totals(call).calls)
}

#[test]
fn a_few_handles_move_and_many_become_few() {
    let (mut allocator, small) = scattered();
    let mut kept = vec![take(&mut allocator, 384)];
    // Each is now a separate handle, with no memory behind it.
    small.into_iter().for_each(|block| allocator.free(block).unwrap());
    let before = calls(&allocator);
    kept.push(take(&mut allocator, 24));
    let [created, mapped, released] = calls(&allocator);
    assert_eq!([created - before[0], mapped - before[1], released - before[2]], [0, 2, 0], "after the stream's own 8 MiB");
    let before = calls(&allocator);
    kept.push(take(&mut allocator, 80));
    let [created, mapped, released] = calls(&allocator);
    let around = "two of the stream's own handles are between the new ones";
    assert_eq!([created - before[0], mapped - before[1], released - before[2]], [3, 3, 7], "{around}");
    assert_eq!(allocator.heap().reserved(), Bytes::mib(512));
    give_all(allocator, kept);
}

#[test]
fn after_the_limit_was_lowered_all_handles_move() {
    let (mut allocator, small) = scattered();
    let mut kept = vec![take(&mut allocator, 384)];
    small.into_iter().for_each(|block| allocator.free(block).unwrap());
    allocator.set_limit(Some(Bytes::mib(500)));
    let before = calls(&allocator);
    kept.push(take(&mut allocator, 80));
    let [created, _, released] = calls(&allocator);
    assert_eq!([created - before[0], released - before[2]], [0, 0], "memory is not released and then created again");
    give_all(allocator, kept);
}

#[test]
fn work_under_way_ends_before_its_memory_moves() {
    let (mut allocator, mut kept) = scattered();
    allocator.device_mut().spin(StreamId(0x1000), 5_000_000);
    let before = allocator.device().now_ns();
    kept.push(take(&mut allocator, 64));
    assert!(allocator.device().now_ns() - before >= 5_000_000);
    give_all(allocator, kept);
}

#[test]
fn what_a_private_pool_has_cached_stays_mapped() {
    let mut allocator = on(256);
    let pool = PoolId(1, 0);
    allocator.begin_pool(pool, PoolFilter::All).unwrap();
    let inside = [take(&mut allocator, 20), take(&mut allocator, 20)];
    allocator.end_pool(pool).unwrap();
    let addresses = inside.each_ref().map(Allocation::address);
    inside.into_iter().for_each(|block| allocator.free(block).unwrap());
    let largest = (1..=256).rev().find_map(|mib| allocator.allocate(Bytes::mib(mib), StreamId::DEFAULT).ok()).unwrap();
    allocator.check().unwrap();
    for address in addresses {
        allocator.device_mut().fill(address, Bytes::mib(20), 7, StreamId::DEFAULT).unwrap();
    }
    allocator.free(largest).unwrap();
    allocator.release_pool(pool).unwrap();
    give_all(allocator, Vec::new());
}

#[test]
fn nothing_is_broken_while_a_graph_is_captured() {
    let (mut allocator, mut kept) = scattered();
    // The memory that is freed during the capture was in use when the capture began.
    kept.push(take(&mut allocator, 384));
    let pool = PoolId(1, 0);
    allocator.begin_pool(pool, PoolFilter::All).unwrap();
    let before = allocator.device().totals(CallName::MemUnmap).calls;
    kept.drain(8..).for_each(|block| allocator.free(block).unwrap());
    assert!(matches!(allocator.allocate(Bytes::mib(64), StreamId::DEFAULT), Err(AllocError::OutOfMemory(_))));
    assert_eq!(allocator.device().totals(CallName::MemUnmap).calls, before);
    allocator.end_pool(pool).unwrap();
    allocator.release_pool(pool).unwrap();
    give_all(allocator, kept);
}

/// Other processes may hold more memory than the device has, for example after they took memory that this process
/// released. In that case, they get the memory that breaking a handle frees.
#[test]
fn a_handle_whose_memory_others_would_take_stays() {
    let (mut allocator, kept) = scattered();
    allocator.device_mut().set_external_bytes(Bytes::mib(4096));
    assert!(allocator.allocate(Bytes::mib(64), StreamId::DEFAULT).is_err());
    allocator.check().unwrap();
    for (place, block) in kept.iter().enumerate() {
        assert!(has(&mut allocator, block, 8, 2 + 4 * place as u32), "block {place}");
    }
    allocator.device_mut().set_external_bytes(Bytes::ZERO);
    give_all(allocator, kept);
}

/// Regardless of which call fails, all memory in use keeps its contents, and the next request is served.
#[test]
fn a_failing_call_loses_nothing() {
    let mut fired = 0;
    for call in [CallName::MemUnmap, CallName::MemRelease, CallName::MemCreate, CallName::MemMap, CallName::MemSetAccess] {
        for nth in 1..=12 {
            let (mut allocator, mut kept) = scattered();
            allocator.device_mut().set_fault_plan(FaultPlan::none().and(When::NthOf(call, nth), FaultError::Code(719)));
            let outcome = allocator.allocate(Bytes::mib(128), StreamId::DEFAULT);
            fired += u32::from(outcome.is_err());
            kept.extend(outcome.ok());
            allocator.check().unwrap_or_else(|violation| panic!("{call:?} {nth}: {violation}"));
            allocator.device_mut().set_fault_plan(FaultPlan::none());
            for (place, block) in kept.iter().take(16).enumerate() {
                assert!(has(&mut allocator, block, 8, 2 + 4 * place as u32), "{call:?} {nth}: block {place}");
            }
            kept.push(take(&mut allocator, 128));
            allocator.check().unwrap();
            give_all(allocator, kept);
        }
    }
    assert!(fired > 20, "{fired}");
}

/// Draws numbers from a seed.
fn drawing(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut draws = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    move |bound| {
        draws ^= draws << 13;
        draws ^= draws >> 7;
        draws ^= draws << 17;
        draws % bound
    }
}

/// On three streams, with two large blocks at a time and small ones that stay allocated, the free memory can serve a
/// request, regardless of the layout.
#[test]
fn no_request_fails_while_enough_is_free() {
    let (limit, streams) = (Bytes::mib(700), [StreamId(0x1000), StreamId(0x2000), StreamId(0x3000)]);
    // A block makes two pages unavailable: those at its ends.
    let slack = |blocks: usize| (blocks as u64 + 1) * 4 * MIB;
    let mut refused = 0;
    for seed in 1..=60 {
        let mut below = drawing(seed);
        let mut allocator = on(4096);
        allocator.set_limit(Some(limit));
        let mut live: Vec<(Allocation, u64)> = Vec::new();
        for _ in 0..120 {
            let sizes = [256 * 1024 + below(375 * MIB), 1 + below(8 * MIB)];
            for size in [sizes[0], sizes[0], sizes[1]] {
                let taken: u64 = live.iter().map(|(_, size)| size.next_multiple_of(512)).sum();
                match allocator.allocate(Bytes(size), streams[below(3) as usize]) {
                    Ok(block) => live.push((block, size)),
                    Err(error) => {
                        refused += 1;
                        let has_room = taken + size + slack(live.len()) <= limit.get();
                        assert!(!has_room, "seed {seed}: {size} bytes with {taken} taken: {error}");
                    }
                }
            }
            let (large, small): (Vec<_>, Vec<_>) = live.into_iter().partition(|(_, size)| *size > 8 * MIB);
            live = small;
            large.into_iter().for_each(|(block, _)| allocator.free(block).unwrap());
            while live.len() as u64 > 2 + below(6) {
                let (block, _) = live.swap_remove(below(live.len() as u64) as usize);
                allocator.free(block).unwrap();
            }
        }
        allocator.check().unwrap();
    }
    assert!(refused > 0, "memory was never short");
}

/// Random requests on two streams of a nearly full device: contents are kept, and the reserved bytes never exceed the
/// device's memory.
#[test]
fn contents_stay_whatever_is_broken() {
    let mut broken = 0;
    for seed in 1..=40_u64 {
        let mut below = drawing(seed);
        let mut allocator = on(192 + 32 * below(6));
        let mut live: Vec<(Allocation, u64, u32)> = Vec::new();
        for step in 0..400 {
            if live.is_empty() || below(5) < 3 {
                let most = if below(4) == 0 { 90 } else { 12 };
                let (mib, stream) = (1 + below(most), StreamId(0x1000 * below(2)));
                if let Ok(block) = allocator.allocate(Bytes::mib(mib), stream) {
                    allocator.device_mut().fill(block.address(), Bytes::mib(mib), step, stream).unwrap();
                    live.push((block, mib, step));
                }
            } else {
                let (block, _, _) = live.swap_remove(below(live.len() as u64) as usize);
                allocator.free(block).unwrap();
            }
            if step % 50 == 49 {
                allocator.check().unwrap();
                allocator.device_mut().synchronize();
                for (block, mib, word) in &live {
                    assert!(has(&mut allocator, block, *mib, *word), "seed {seed}, step {step}");
                }
            }
        }
        assert!(allocator.device().peak_used_bytes() <= allocator.device().capacity());
        let totals = |call| allocator.device().totals(call).calls;
        broken += u64::from(totals(CallName::DeviceSynchronize) > 8);
        give_all(allocator, live.into_iter().map(|(block, _, _)| block).collect());
    }
    assert!(broken > 20, "handles were broken in {broken} of 40 programs");
}

/// Begins a capture into a private pool, as a program does.
fn capture(allocator: &mut Compacting) {
    allocator.begin_pool(PoolId(0, 1), PoolFilter::All).unwrap();
    allocator.set_capturing(true);
}

#[test]
fn before_a_capture_handles_are_broken_where_memory_is_scarce() {
    let (mut allocator, mut kept) = scattered();
    capture(&mut allocator);
    let unmaps = allocator.device().totals(CallName::MemUnmap).calls;
    kept.push(take(&mut allocator, 200));
    kept.push(take(&mut allocator, 100));
    assert_eq!(allocator.device().totals(CallName::MemUnmap).calls, unmaps, "nothing moves during the capture");
    allocator.check().unwrap();
    for (place, block) in kept[..16].iter().enumerate() {
        assert!(has(&mut allocator, block, 8, 2 + 4 * place as u32), "block {place}");
    }
    allocator.set_capturing(false);
    allocator.end_pool(PoolId(0, 1)).unwrap();
    allocator.release_pool(PoolId(0, 1)).unwrap();
    give_all(allocator, kept);
}

#[test]
fn before_a_capture_nothing_is_broken_where_memory_is_left() {
    let mut allocator = on(4096);
    let blocks: Vec<Allocation> = (0..64).map(|_| take(&mut allocator, 8)).collect();
    let (mut kept, mut gone) = (Vec::new(), Vec::new());
    blocks.into_iter().enumerate().for_each(|(place, block)| if place % 4 == 1 { kept.push(block) } else { gone.push(block) });
    gone.into_iter().for_each(|block| allocator.free(block).unwrap());
    capture(&mut allocator);
    kept.push(take(&mut allocator, 200));
    assert_eq!(allocator.device().totals(CallName::MemUnmap).calls, 0);
}

/// The heap does not know how much memory other processes hold, so it relies on memory that the device does not
/// provide.
#[test]
fn a_request_gets_all_that_is_free_although_others_hold_a_part_of_the_device() {
    let mut allocator = on(512);
    allocator.device_mut().set_external_bytes(Bytes::mib(100));
    let blocks: Vec<Allocation> = std::iter::from_fn(|| allocator.allocate(Bytes::mib(8), StreamId::DEFAULT).ok()).collect();
    assert!(blocks.len() > 48, "{} blocks", blocks.len());
    let (mut kept, mut gone) = (Vec::new(), Vec::new());
    blocks.into_iter().enumerate().for_each(|(place, block)| if place % 4 == 1 { kept.push(block) } else { gone.push(block) });
    let free_mib = 8 * gone.len() as u64;
    gone.into_iter().for_each(|block| allocator.free(block).unwrap());
    kept.push(take(&mut allocator, free_mib));
    allocator.check().unwrap();
    give_all(allocator, kept);
}

/// The program's callback frees memory when no free block can serve the request, and then the policy is asked about
/// the request again.
#[test]
fn the_first_of_its_size_takes_the_high_end_also_of_memory_that_was_freed_for_it() {
    let mut allocator = on(512);
    let all = take(&mut allocator, 512);
    let end = all.address().get() + 512 * MIB;
    let mut held = Some(all);
    allocator.register_free_memory_callback(Box::new(move |core: &mut Compacting| {
        held.take().is_some_and(|block| core.free(block).is_ok())
    }));
    let first = take(&mut allocator, 8);
    let second = take(&mut allocator, 8);
    assert_eq!(first.address().get() + 8 * MIB, end, "the first of its size");
    assert_eq!(second.address().get() + 512 * MIB, end, "the second");
}

/// A program may request a little memory on one stream before it does all its work on another.
#[test]
fn a_stream_that_comes_second_gets_large_handles_once_it_needs_most() {
    let mut allocator = on(32 << 10);
    let first = allocator.allocate(Bytes(512), StreamId::DEFAULT).unwrap();
    // A request that no device could serve does not count as a need.
    allocator.allocate(Bytes::mib(10 << 20), StreamId::DEFAULT).unwrap_err();
    let side = StreamId(7);
    let blocks: Vec<Allocation> = (0..500).map(|_| allocator.allocate(Bytes::mib(20), side).unwrap()).collect();
    let calls = allocator.device().totals(CallName::MemCreate).calls;
    assert!(calls <= 40, "{calls} handles for 10,000 MiB");
    give_all(allocator, blocks.into_iter().chain([first]).collect());
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
fn the_limit_holds_whatever_streams_ask_for() {
    for seed in 1..=200_u64 {
        let mut below = drawing(seed);
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

/// In builds with debug assertions, whenever the core takes the first block without asking the policy, it still asks
/// for a place and compares the two.
#[test]
fn a_block_that_is_taken_unasked_is_the_one_that_would_be_placed() {
    for seed in 1..=120_u64 {
        let mut below = drawing(seed);
        let mut allocator = on(8192);
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
                allocator.set_limit(Some(Bytes::mib([1024, 2048, 4096][below(3) as usize])));
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
