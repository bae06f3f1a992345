//! Where first, next, best and worst fit, TLSF, the buddy system and RMM's arenas put blocks, worked out by
//! hand from their rules.

mod policy_run;

use parkade::units::{Bytes, MIB};
use parkade_policies::FirstFit;
use parkade_sim::{CallName, SimOptions};
use policy_run::{KIB, Run};

/// Three holes of 6, 4 and 8 MiB at 0, 8 and 14 MiB, with blocks of 2 MiB between and behind them; nothing
/// else is mapped.
fn three_holes(policy: &str) -> Run {
    let mut run = Run::new(policy, 1024);
    let places = [('a', 6), ('b', 2), ('c', 4), ('d', 2), ('e', 8), ('f', 2)].map(|(name, mib)| run.take_mib(name, mib));
    assert_eq!(places, [0, 6, 8, 12, 14, 22], "a region grows by whole pages of 2 MiB, each block behind the one before");
    run.give("ace");
    run
}

/// 3, 2, 4 and, after the first of them was given back, 2 MiB.
fn places(policy: &str) -> [u64; 4] {
    let mut run = three_holes(policy);
    let first = [('u', 3), ('v', 2), ('w', 4)].map(|(name, mib)| run.take_mib(name, mib));
    run.give("u");
    let last = run.take_mib('x', 2);
    assert_eq!(run.reserved_mib(), 24, "nothing was mapped for what the holes have room for");
    [first[0], first[1], first[2], last]
}

#[test]
fn first_fit_takes_the_lowest_address() {
    // 3 from the 6 at 0; 2 from the 3 at 3; 4: the 1 at 5 is too small, the 4 at 8; then the hole at 0 is back.
    assert_eq!(places("first-fit-remap"), [0, 3, 8, 0]);
}

#[test]
fn next_fit_goes_on_behind_the_block_taken_last() {
    // As first fit until the pointer is at 12: the hole at 0 is not seen, the 8 at 14 is.
    assert_eq!(places("next-fit-remap"), [0, 3, 8, 14]);
    let mut run = three_holes("next-fit-remap");
    assert_eq!(run.take_mib('u', 8), 14);
    // The pointer is at 22 with nothing free behind it: it wraps around to the lowest address.
    assert_eq!(run.take_mib('v', 4), 0);
    run.give("bd");
    // The pointer is at 4. The 2 at 4 has merged with the hole behind it, and the search begins inside of
    // that block: it is taken from its start.
    assert_eq!(run.take_mib('w', 10), 4);
}

#[test]
fn best_fit_takes_the_tightest() {
    // 3 from the 4 at 8; 2: 1 at 11 is too small, 6 is tighter than 8; 4: exactly what is left of the 6; then
    // the 3 and 1 at 8 are one again.
    assert_eq!(places("best-fit-remap"), [8, 0, 2, 8]);
}

#[test]
fn worst_fit_takes_the_largest() {
    // 3 from the 8 at 14 leaves 5 at 17; 2 from the 6 at 0; 4 from the 5; then 4 at 2 and 4 at 8 are the
    // largest, the lower one counts.
    assert_eq!(places("worst-fit-remap"), [14, 0, 17, 2]);
}

#[test]
fn a_region_grows_by_what_its_free_end_misses() {
    for policy in ["first-fit-remap", "next-fit-remap", "best-fit-remap", "worst-fit-remap", "tlsf-remap"] {
        let mut run = Run::new(policy, 64);
        assert_eq!(run.take_mib('a', 3), 0);
        assert_eq!(run.reserved_mib(), 4, "{policy}");
        // 1 MiB is free at the end: 4 MiB are missing, two pages.
        assert_eq!(run.take_mib('b', 5), 3, "{policy}");
        assert_eq!(run.reserved_mib(), 8, "{policy}");
        // Another stream has a region of its own.
        assert_eq!(run.take_on(7, 'c', MIB), 0, "{policy}");
        assert_eq!(run.segments_mib(), [8, 2], "{policy}");
    }
}

#[test]
fn whole_pages_of_a_region_move_to_another_stream_when_memory_is_out() {
    for policy in ["first-fit-remap", "next-fit-remap", "best-fit-remap", "worst-fit-remap", "tlsf-remap"] {
        let mut run = Run::new(policy, 16);
        for (name, mib) in [('a', 6), ('b', 1), ('c', 8)] {
            run.take_mib(name, mib);
        }
        run.give("ac");
        // 16 MiB are mapped for the default stream, of which 1 is in use: 14 go back in pages of 2 MiB.
        assert!(run.is_out_on(7, 15 * MIB), "{policy}");
        assert_eq!(run.take_on(7, 'd', 14 * MIB), 0, "{policy}");
        assert_eq!(run.reserved_mib(), 16, "{policy}");
    }
}

/// A search rounds 1 MiB and 512 bytes up to the start of a list, 1,056 KiB: lists are 32 KiB wide there.
#[test]
fn tlsf_remap_passes_over_a_block_that_shares_its_list_with_smaller_ones() {
    let size = MIB + 512;
    let hole = |policy| {
        let mut run = Run::new(policy, 64);
        assert_eq!(run.take('a', size), 0);
        run.take('b', 512);
        run.give("a");
        let place = run.take('c', size);
        (run, place)
    };
    assert_eq!(hole("best-fit-remap").1, 0);
    let (mut run, place) = hole("tlsf-remap");
    // The free block behind b has 1 KiB less than 1 MiB: too small, so the region grows by a page there.
    assert_eq!(place, size + 512);
    // Smaller by the width of a list, so the list before guarantees it.
    run.give("c");
    assert_eq!(run.take('d', size - 32 * KIB), 0);
    run.give("d");
    // When there is nothing else, the block that was skipped is taken.
    run.core.set_limit(Some(run.core.heap().reserved()));
    assert_eq!(run.take('e', 2 * MIB), size + 512);
    assert_eq!(run.take('f', size), 0);
}

#[test]
fn tlsf_remap_takes_the_block_that_became_free_last() {
    for (order, expected) in [("ac", 'c'), ("ca", 'a')] {
        let mut run = Run::new("tlsf-remap", 64);
        // 1,100 and 1,110 KiB are in the list from 1,088 KiB on.
        let (low, _, high) = (run.take('a', 1100 * KIB), run.take('b', 512), run.take('c', 1110 * KIB));
        run.take('d', 512);
        run.give(order);
        let place = run.take('x', 1080 * KIB);
        assert_eq!(place, if expected == 'a' { low } else { high }, "{order}");
    }
}

#[test]
fn buddies_are_cut_in_halves_and_become_one_again() {
    let mut run = Run::new("buddy", 64);
    // 512 KiB: a segment of 2 MiB is split to 1 MiB and to 512 KiB, keeping the low half each time.
    assert_eq!(run.take('a', 300 * KIB), 0);
    assert_eq!(run.take('b', 600 * KIB), MIB);
    assert_eq!(run.take('c', 100 * KIB), 512 * KIB);
    assert_eq!(run.segments_mib(), [2]);
    // 128 KiB at 512 KiB merge with 128 and 256 KiB behind them, not with a; then a and they are 1 MiB, b
    // still stands beside it.
    run.give("c");
    assert_eq!(run.take('d', 512 * KIB), 512 * KIB);
    run.give("da");
    assert_eq!(run.take('e', MIB), 0);
    run.give("be");
    assert_eq!(run.take('f', 2 * MIB), 0);
    assert_eq!(run.segments_mib(), [2]);
    // 3 MiB get a segment of 4 MiB.
    run.take('g', 3 * MIB);
    assert_eq!(run.segments_mib(), [2, 4]);
}

#[test]
fn neighbours_that_are_no_buddies_stay_apart() {
    let mut run = Run::new("buddy", 64);
    let places = ['a', 'b', 'c', 'd'].map(|name| run.take(name, 512 * KIB));
    assert_eq!(places, [0, 512 * KIB, MIB, 1536 * KIB]);
    // 1 MiB in a row is free from 512 KiB on, which is not a multiple of its size.
    run.give("bc");
    run.take('e', MIB);
    assert_eq!(run.segments_mib(), [2, 2]);
    assert_eq!(run.segment_of('e'), 1);
}

#[test]
fn arenas_keep_small_blocks_in_superblocks_of_their_stream() {
    let mut run = Run::new("rmm-arena", 64);
    assert_eq!(run.take('a', 100), 0);
    assert_eq!(run.take('b', 1000), 256, "sizes are multiples of 256 bytes");
    assert_eq!(run.take_on(7, 'c', 100), MIB, "another stream has a superblock of its own");
    // More than a superblock: the global arena, of which that much becomes one.
    assert_eq!(run.take('d', MIB + 1), 2 * MIB);
    // The remainder of a superblock is too small for 1 MiB: one more.
    assert_eq!(run.take('e', MIB), 3 * MIB + 256);
    assert_eq!((run.segments_mib(), run.calls(CallName::Malloc)), (vec![32], 1), "half of the device");
    // The lowest address that is large enough, not the tightest: the hole of 1,024 bytes at 256, not the one of
    // 256 at 1,536.
    assert_eq!(['f', 'g', 'h'].map(|name| run.take(name, 256)), [1280, 1536, 1792]);
    run.give("bg");
    assert_eq!(run.take('i', 100), 256);
}

#[test]
fn arenas_keep_empty_superblocks_until_memory_is_out() {
    let mut run = Run::new("rmm-arena", 64);
    let names: Vec<char> = ('a'..='p').collect();
    for &name in &names {
        run.take(name, MIB);
    }
    run.give("bcd");
    // 16 MiB are left behind them, and the stream's three empty superblocks do not coalesce.
    run.take_mib('r', 14);
    assert_eq!(run.take_mib('q', 2), 30);
    assert_eq!(run.take_mib('s', 1), 1);
    assert_eq!(run.take_mib('t', 2), 2, "all superblocks have returned to the global arena");
    assert!(run.is_out(MIB + 1));
}

#[test]
fn an_arena_that_is_told_its_size_takes_that() {
    let mut run = Run::new("rmm-arena", 64);
    run.core.set_limit(Some(Bytes::mib(50)));
    run.take_mib('a', 40);
    assert_eq!(run.segments_mib(), [50]);
    assert!(run.is_out(11 * MIB));
    run.give("a");
    assert_eq!(run.take_mib('b', 50), 0);
}

#[test]
fn arenas_take_the_lowest_address_for_large_blocks_too() {
    let mut run = three_holes("rmm-arena");
    assert_eq!([('u', 3), ('v', 2), ('w', 4)].map(|(name, mib)| run.take_mib(name, mib)), [0, 3, 8]);
    run.give("u");
    assert_eq!(run.take_mib('x', 2), 0);
    assert_eq!(run.segments_mib(), [512]);
}

/// With a page of all the memory there is, free pages in the middle of the region cannot serve at its end.
#[test]
fn larger_pages_are_remapped_less() {
    let served = |page| {
        let policy = FirstFit::default().with_page(page);
        let mut run = Run::of(Box::new(policy), SimOptions::new(Bytes::mib(16)));
        for (name, mib) in [('a', 6), ('b', 2), ('c', 6), ('d', 2)] {
            run.take_mib(name, mib);
        }
        run.give("ac");
        !run.is_out(10 * MIB)
    };
    assert_eq!([Bytes(0), Bytes::mib(2), Bytes::mib(16)].map(served), [true, true, false]);
}
