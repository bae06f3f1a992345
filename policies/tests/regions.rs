//! Tests where first, next, best and worst fit place blocks. The expected positions were worked out by hand from the
//! rules.

use crate::policy_run::Run;
use parkade::units::{Bytes, MIB};
use parkade_policies::{Fit, GrowingRegion};
use parkade_sim::SimOptions;

/// Three holes of 6, 4 and 8 MiB at 0, 8 and 14 MiB, with 2 MiB blocks between and after them; no other memory is
/// mapped.
fn three_holes(policy: &str) -> Run {
    let mut run = Run::new(policy, 1024);
    let places = [('a', 6), ('b', 2), ('c', 4), ('d', 2), ('e', 8), ('f', 2)].map(|(name, mib)| run.take_mib(name, mib));
    assert_eq!(places, [0, 6, 8, 12, 14, 22], "a region grows by whole 2 MiB pages, and each block follows the previous one");
    run.give("ace");
    run
}

/// The positions of requests for 3, 2 and 4 MiB and, after the first of these has been freed, for 2 MiB.
fn places(policy: &str) -> [u64; 4] {
    let mut run = three_holes(policy);
    let first = [('u', 3), ('v', 2), ('w', 4)].map(|(name, mib)| run.take_mib(name, mib));
    run.give("u");
    let last = run.take_mib('x', 2);
    assert_eq!(run.reserved_mib(), 24, "nothing was mapped for requests for which the holes have room");
    [first[0], first[1], first[2], last]
}

#[test]
fn first_fit_takes_the_lowest_address() {
    // The request for 3 MiB takes part of the hole of 6 at 0, and the one for 2 takes part of the 3 left at 3. For 4,
    // the 1 left at 5 is too small, so the hole at 8 is used. Then the hole at 0 is free again.
    assert_eq!(places("best-fit-remap:fit=first"), [0, 3, 8, 0]);
}

#[test]
fn next_fit_goes_on_behind_the_block_taken_last() {
    // The same as first fit until the pointer is at 12; the search then skips the hole at 0 and finds the 8 at 14.
    assert_eq!(places("best-fit-remap:fit=next"), [0, 3, 8, 14]);
    let mut run = three_holes("best-fit-remap:fit=next");
    assert_eq!(run.take_mib('u', 8), 14);
    // The pointer is at 22 with nothing free after it, so it wraps around to the lowest address.
    assert_eq!(run.take_mib('v', 4), 0);
    run.give("bd");
    // The pointer is at 4. The 2 at 4 has coalesced with the hole after it, and the search begins inside that block,
    // so the request gets the block's beginning.
    assert_eq!(run.take_mib('w', 10), 4);
}

#[test]
fn best_fit_takes_the_tightest() {
    // The request for 3 MiB takes part of the 4 at 8. For 2, the 1 at 11 is too small, and the 6 is the tightest. The
    // request for 4 takes exactly the rest of the 6. Then the 3 and the 1 at 8 coalesce.
    assert_eq!(places("best-fit-remap"), [8, 0, 2, 8]);
}

#[test]
fn worst_fit_takes_the_largest() {
    // The request for 3 MiB takes part of the 8 at 14, which leaves 5 at 17. The one for 2 takes part of the 6 at 0,
    // and the one for 4 takes part of the 5. Then the 4 at 2 and the 4 at 8 are the largest, and the lower one is
    // used.
    assert_eq!(places("best-fit-remap:fit=worst"), [14, 0, 17, 2]);
}

#[test]
fn a_region_grows_by_what_its_free_end_misses() {
    for policy in ["best-fit-remap:fit=first", "best-fit-remap:fit=next", "best-fit-remap", "best-fit-remap:fit=worst"] {
        let mut run = Run::new(policy, 64);
        assert_eq!(run.take_mib('a', 3), 0);
        assert_eq!(run.reserved_mib(), 4, "{policy}");
        // 1 MiB is free at the end, so 4 MiB are missing, which is two pages.
        assert_eq!(run.take_mib('b', 5), 3, "{policy}");
        assert_eq!(run.reserved_mib(), 8, "{policy}");
        // Another stream has a separate region.
        assert_eq!(run.take_on(7, 'c', MIB), 0, "{policy}");
        assert_eq!(run.segments_mib(), [8, 2], "{policy}");
    }
}

#[test]
fn whole_pages_of_a_region_move_to_another_stream_when_memory_is_out() {
    for policy in ["best-fit-remap:fit=first", "best-fit-remap:fit=next", "best-fit-remap", "best-fit-remap:fit=worst"] {
        let mut run = Run::new(policy, 16);
        for (name, mib) in [('a', 6), ('b', 1), ('c', 8)] {
            run.take_mib(name, mib);
        }
        run.give("ac");
        // 16 MiB are mapped for the default stream, of which 1 MiB is in use, so 14 MiB are released in pages of 2
        // MiB.
        assert!(run.is_out_on(7, 15 * MIB), "{policy}");
        assert_eq!(run.take_on(7, 'd', 14 * MIB), 0, "{policy}");
        assert_eq!(run.reserved_mib(), 16, "{policy}");
    }
}

/// With a page as large as the entire memory, free pages in the middle of the region cannot be used at its end.
#[test]
fn larger_pages_are_remapped_less() {
    let served = |page| {
        let policy = GrowingRegion::new(Fit::First).with_page(page);
        let mut run = Run::of(Box::new(policy), SimOptions::new(Bytes::mib(16)));
        for (name, mib) in [('a', 6), ('b', 2), ('c', 6), ('d', 2)] {
            run.take_mib(name, mib);
        }
        run.give("ac");
        !run.is_out(10 * MIB)
    };
    assert_eq!([Bytes(0), Bytes::mib(2), Bytes::mib(16)].map(served), [true, true, false]);
}
