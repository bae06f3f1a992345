//! Fixed programs: they reach what random ones rarely do, and are the programs in which driver calls are made to fail.

use parkade::units::MIB;

use super::pool_step::PoolStep;
use super::step::{Setup, Step};
use crate::backend::{EventTiming, Places};

/// A program with a bit of everything: free blocks of three streams, running work, two requests for more than there is, and
/// fragmented device memory.
pub(super) fn every_rung() -> (Setup, Vec<Step>) {
    use Step::{Allocate, Free, Launch, Limit, ProcessEvents, ReleaseCached, Replace, Use};
    let fill = [Allocate(16 * MIB, 0), Allocate(12 * MIB, 1), Allocate(16 * MIB, 2), Launch(1, 4_000_000), Use(1, 2), Use(0, 1)];
    let pieces = (0..4).map(|_| Allocate(2 * MIB, 0)).chain((0..2).map(Free));
    let rest = [
        Free(0),
        Allocate(700, 3),
        Free(0),
        Allocate(14 * MIB, 3),
        Launch(3, 4_000_000),
        Free(1),
        Allocate(11 * MIB, 0),
        Use(2, 3),
        Free(2),
        Allocate(24 * MIB, 1),
        ProcessEvents,
        Limit(60),
        Allocate(40 * MIB, 2),
        Replace(0),
        Free(0),
        Free(0),
        Allocate(28 * MIB, 1),
        Limit(100),
        Allocate(100 * MIB, 0),
        ReleaseCached,
        Allocate(5 * MIB, 0),
    ];
    let setup = Setup { capacity: 64 * MIB, timing: EventTiming::Lazy, places: Places::Ascending, policy_seed: 0 };
    (setup, fill.into_iter().chain(pieces).chain(rest).collect())
}

/// A program whose last request can only be served by remapping the pages of two separate blocks, and is larger than the
/// requests of other programs.
pub(super) fn stitching() -> (Setup, Vec<Step>) {
    use Step::{Allocate, Free};
    let fill = [400, 2, 300, 2].map(|mib| Allocate(mib * MIB, 0));
    // Free the 400 MiB first; the last allocation then takes its index, so the 300 MiB are still at index 2.
    let steps = fill.into_iter().chain([Free(0), Free(2), Allocate(600 * MIB, 0)]).collect();
    let setup = Setup { capacity: 1024 * MIB, timing: EventTiming::Lazy, places: Places::Ascending, policy_seed: 0 };
    (setup, steps)
}

/// A program with private pools: requests routed to one while blocks are pending, out of memory there, a pool that serves when
/// memory runs out, a checkpoint that is loaded twice, and a pool that is no longer used.
pub(super) fn captures() -> (Setup, Vec<Step>) {
    use PoolStep::{Begin, Create, End, Load, Release, ReleaseCached, Save, Serve};
    use Step::{Allocate, CompleteAll, Free, Launch, Pool, ProcessEvents, Use};
    let steps = vec![
        Allocate(6 * MIB, 0),
        Launch(1, 4_000_000),
        Use(0, 1),
        Allocate(3 * MIB, 0),
        Use(1, 1),
        Pool(Create(1)),
        Free(1),
        Pool(Begin(1, Some(0))),
        // Another stream used it before: its events are recorded once the capture is over.
        Free(0),
        Allocate(4 * MIB, 0),
        Allocate(700, 0),
        Allocate(2 * MIB, 1),
        Use(2, 2),
        ProcessEvents,
        Free(0),
        // More than there is: nothing may be waited for during the capture.
        Allocate(60 * MIB, 0),
        Step::ReleaseCached,
        Allocate(3 * MIB, 0),
        Pool(End(1)),
        Pool(Save(1)),
        Allocate(8 * MIB, 0),
        Pool(Begin(1, None)),
        Allocate(5 * MIB, 0),
        Pool(End(1)),
        CompleteAll,
        Free(1),
        Pool(Load(1)),
        Pool(Serve(1)),
        Allocate(48 * MIB, 1),
        Allocate(600, 0),
        Free(0),
        Pool(Release(1)),
        Free(0),
        Free(0),
        Free(0),
        Pool(ReleaseCached(1)),
        Pool(Begin(2, Some(1))),
        Allocate(20 * MIB, 1),
        Free(0),
        Pool(Release(2)),
        Pool(End(2)),
        Allocate(30 * MIB, 0),
    ];
    let setup = Setup { capacity: 64 * MIB, timing: EventTiming::Lazy, places: Places::Ascending, policy_seed: 0 };
    (setup, steps)
}
