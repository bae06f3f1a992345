//! Fixed programs for an allocator under any policy. They reach cases that random programs rarely reach, and driver calls are
//! made to fail in them.

use parkade::units::MIB;

use crate::backend::EventTiming;
use crate::program::step::{Setup, Step};

/// Returns a program with a bit of everything: free blocks on three streams, running work, two requests for more memory
/// than the device has, and fragmented device memory.
pub(super) fn every_rung() -> (Setup, Vec<Step>) {
    use Step::{Allocate, Free, Launch, Limit, ProcessEvents, ReleaseCached, Replace, Use};
    let fill = [Allocate(16 * MIB, 0), Allocate(12 * MIB, 1), Allocate(16 * MIB, 2), Launch(1, 4_000_000), Use(1, 2), Use(0, 1)];
    let pieces = (0..4).map(|_| Allocate(2 * MIB, 0)).chain([Free(0), Free(0)]);
    let rest = [
        Free(4),
        Allocate(700, 3),
        Free(2),
        Allocate(14 * MIB, 3),
        Launch(3, 4_000_000),
        Free(2),
        Allocate(11 * MIB, 0),
        Use(0, 3),
        Free(0),
        Allocate(24 * MIB, 1),
        ProcessEvents,
        Limit(Some(38 * MIB)),
        Allocate(40 * MIB, 2),
        Replace(1),
        Free(3),
        Free(3),
        Allocate(28 * MIB, 1),
        Limit(None),
        Allocate(100 * MIB, 0),
        ReleaseCached,
        Allocate(5 * MIB, 0),
    ];
    let setup = Setup { capacity: 64 * MIB, timing: EventTiming::Lazy, free_waits: true, ..Setup::PLAIN };
    (setup, fill.into_iter().chain(pieces).chain(rest).collect())
}

/// Returns a program whose last request can be served only by remapping the pages of two separate blocks and is larger
/// than the requests of other programs.
pub(super) fn stitching() -> (Setup, Vec<Step>) {
    use Step::{Allocate, Free};
    let fill = [400, 2, 300, 2].map(|mib| Allocate(mib * MIB, 0));
    let steps = fill.into_iter().chain([Free(0), Free(1), Allocate(600 * MIB, 0)]).collect();
    let setup = Setup { capacity: 1024 * MIB, timing: EventTiming::Lazy, free_waits: true, ..Setup::PLAIN };
    (setup, steps)
}

/// Returns a program with private pools: requests are routed to one pool while blocks are pending, that pool runs out
/// of memory, another serves requests when memory runs out, a checkpoint is loaded twice, and a pool is no longer used.
pub(super) fn captures() -> (Setup, Vec<Step>) {
    use Step::{
        Allocate, BeginPool, CompleteAll, CreatePool, EndPool, Free, Launch, ProcessEvents, ReleaseCached, ReleaseCachedPool,
        ReleasePool, Restore, Save, Use, UseOnOom,
    };
    let steps = vec![
        Allocate(6 * MIB, 0),
        Launch(1, 4_000_000),
        Use(0, 1),
        Allocate(3 * MIB, 0),
        Use(1, 1),
        // Free in the heap, although the stream still writes to it: a different stream must not get it.
        Allocate(4 * MIB, 1),
        Use(2, 1),
        Free(2),
        CreatePool(0),
        Free(1),
        BeginPool(0, Some(0)),
        // Another stream used the block earlier: its events are recorded once the capture has
        // ended.
        Free(0),
        Allocate(4 * MIB, 0),
        Allocate(700, 0),
        Allocate(2 * MIB, 1),
        Use(2, 2),
        ProcessEvents,
        Free(0),
        // This is more than the device has, and no wait is allowed during the capture.
        Allocate(60 * MIB, 0),
        ReleaseCached,
        Allocate(3 * MIB, 0),
        EndPool(0),
        Save(0),
        Allocate(8 * MIB, 0),
        BeginPool(0, None),
        Allocate(5 * MIB, 0),
        EndPool(0),
        CompleteAll,
        Free(0),
        Restore(0),
        UseOnOom(0, true),
        Allocate(48 * MIB, 1),
        Allocate(600, 0),
        Free(0),
        ReleasePool(0),
        Free(0),
        Free(0),
        Free(0),
        ReleaseCachedPool(0),
        BeginPool(1, Some(1)),
        Allocate(20 * MIB, 1),
        Free(0),
        ReleasePool(1),
        EndPool(1),
        Allocate(30 * MIB, 0),
    ];
    let setup = Setup { capacity: 64 * MIB, timing: EventTiming::Lazy, free_waits: true, ..Setup::PLAIN };
    (setup, steps)
}
