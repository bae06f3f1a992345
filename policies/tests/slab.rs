//! The slab allocator's rules, worked out by hand: which class, which slab, and what goes back.

mod policy_run;

use parkade::units::{Bytes, MIB};
use parkade_policies::named;
use policy_run::{KIB, Run};

#[test]
fn there_are_eight_classes_between_two_powers_of_two() {
    let slab = (named("slab").expect("it is in the catalogue").make)();
    let class = |bytes| slab.round(Bytes(bytes)).map(Bytes::get);
    assert_eq!(class(1), Some(512));
    assert_eq!(class(513), Some(1024));
    // An eighth of 4 KiB is the least step.
    assert_eq!((class(4097), class(8192), class(8193)), (Some(4096 + 512), Some(8192), Some(8192 + 1024)));
    assert_eq!(class(MIB + 1), Some(MIB + 128 * KIB));
    // Two mebibytes are the widest step.
    assert_eq!((class(16 * MIB + 1), class(100 * MIB + 1)), (Some(18 * MIB), Some(102 * MIB)));
    assert_eq!(class(u64::MAX), None);
}

#[test]
fn a_slab_has_one_class_and_a_free_slab_takes_another() {
    let mut run = Run::new("slab", 1024);
    // Blocks of 512 KiB: four to a slab of 2 MiB, side by side.
    assert_eq!([('a', 0), ('b', 1), ('c', 2)].map(|(name, _)| run.take(name, 512 * KIB) / KIB), [0, 512, 1024]);
    assert_eq!(run.segments_mib(), [2]);
    // There is room, but a slab in use serves its own class only.
    run.take('d', 100);
    assert_eq!(run.segments_mib(), [2, 2]);
    // 256 KiB have slabs of a page, 288 KiB of four blocks in whole pages.
    run.take('e', 256 * KIB);
    run.take('f', 288 * KIB);
    assert_eq!(run.segments_mib(), [2, 2, 2, 2]);
    // Entirely free: its 2 MiB are right for any class with slabs of that size.
    run.give("abc");
    assert_eq!(run.take('g', 3000), 0);
    assert_eq!(run.take('h', 3000), 3072);
    assert_eq!((run.segment_of('g'), run.segment_of('h'), run.segments_mib().len()), (0, 0, 4));
}

#[test]
fn large_blocks_share_by_four_and_larger_ones_have_slabs_of_their_own() {
    let mut run = Run::new("slab", 1024);
    assert_eq!([run.take_mib('a', 8), run.take_mib('b', 8)], [0, 8]);
    run.take_mib('c', 9);
    assert_eq!(run.segments_mib(), [32, 10]);
    // The smallest run first: the hole of one block before the rest of the slab.
    run.take_mib('d', 8);
    run.give("a");
    assert_eq!(run.take_mib('e', 8), 0);
    // Another stream has slabs of its own.
    run.take_on(7, 'f', 8 * MIB);
    assert_eq!(run.reserved_mib(), 32 + 10 + 32);
}

#[test]
fn when_memory_is_out_free_slabs_go_back_and_one_block_is_enough() {
    let mut run = Run::new("slab", 40);
    run.take_mib('a', 8);
    run.take_mib('b', 6);
    assert_eq!(run.segments_mib(), [32, 6], "24 MiB do not fit, 6 do");
    run.give("a");
    // The slab of 32 MiB goes back, and there is room for four of 6 MiB.
    assert_eq!(run.take_mib('c', 6), 0);
    assert_eq!(run.segments_mib(), [6, 24]);
    // 10 MiB are left; 7 MiB in whole pages.
    run.take_mib('d', 7);
    assert_eq!(run.reserved_mib(), 38);
}

#[test]
fn at_last_a_free_run_of_another_class_serves() {
    let mut run = Run::new("slab", 32);
    run.take_mib('a', 8);
    assert_eq!(run.segments_mib(), [32]);
    assert_eq!(run.take_mib('b', 5), 8, "behind the first block");
    assert_eq!(run.segments_mib(), [32]);
    assert!(run.is_out(20 * MIB));
    run.give("ab");
    assert_eq!(run.take_mib('c', 32), 0, "one free slab as large as one of its own");
}
