//! A user-defined policy that first fills segments that are in use, and gives each large request its own segment.
//!
//! A segment can be returned to the device only when nothing in it is in use. A small request therefore takes the smallest
//! block that fits in a segment that is partly in use, and uses an entirely free segment only if there is no other. A large
//! request gets an entire segment, which is never split and is reused only for requests that leave at most an eighth unused.

use parkade::policy::{Attempt, Placement, Policy, Relief, Request, Rung};
use parkade::units::{Bytes, PoolClass};
use parkade::{BlockView, Heap};
use parkade_conformance::checks::laws_any_policy::check;
use parkade_conformance::suite::Effort;

/// Requests of at least this size are large.
const LARGE: Bytes = Bytes::mib(16);
/// Small requests share segments of this size.
const SHARED: Bytes = Bytes::mib(32);

/// The policy has no state: everything it needs is in the heap.
#[derive(Clone)]
struct FillFirst;

impl FillFirst {
    fn find(heap: &Heap, request: &Request) -> Option<BlockView> {
        // The smallest blocks are first; all belong to the request's pool and stream.
        let mut free = heap.at_least(request.pool, request.stream, request.size);
        let tightest = heap.first_at_least(request.pool, request.stream, request.size)?;
        if request.size >= LARGE {
            return (tightest.size.get() - request.size.get() <= tightest.size.get() / 8).then_some(tightest);
        }
        // A split block is part of a segment that is partly in use.
        Some(free.find(|block| block.is_split).unwrap_or(tightest))
    }
}

impl Policy for FillFirst {
    fn name(&self) -> &'static str {
        "fill-first"
    }

    /// How large is the block that serves a request of this many bytes?
    fn round(&self, requested: Bytes) -> Option<Bytes> {
        requested.checked_round_up(Bytes(512))
    }

    /// Which of the two pools serves blocks of this size? A block in one pool never serves the other.
    fn classify(&self, size: Bytes) -> PoolClass {
        if size >= LARGE { PoolClass::Large } else { PoolClass::Small }
    }

    /// Which free block serves the request, or how large is the new segment?
    fn place(&mut self, heap: &Heap, request: &Request) -> Placement {
        let segment = if request.size >= LARGE { request.size.checked_round_up(Bytes::mib(2)) } else { Some(SHARED) };
        match FillFirst::find(heap, request) {
            Some(block) => Placement::Reuse(block.id),
            None => Placement::Segment(segment.unwrap_or(Bytes::MAX)),
        }
    }

    /// Is a block split if it is larger than the request?
    fn splits(&self, _whole: Bytes, request: &Request) -> bool {
        request.size < LARGE
    }

    /// What does the allocator try, in which order, if no free block serves the request?
    fn ladder(&self) -> &'static [Rung] {
        &[Rung::Grow, Rung::WaitForEvents, Rung::ReuseFreed, Rung::ReleaseAll, Rung::GrowAgain, Rung::Own]
    }

    /// The policy's own steps: the device has no room for a shared segment, but may have room for only the request.
    fn relieve(&mut self, _heap: &Heap, request: &Request, turn: u32) -> Relief {
        match turn {
            0 => Relief::Release { blocks: Vec::new(), attempt: Attempt::AskFor(request.size) },
            _ => Relief::Done,
        }
    }
}

#[test]
fn it_obeys_every_policy_law() {
    let report = check(|| FillFirst, &Effort::new(50, 0)).unwrap_or_else(|report| panic!("{report}"));
    assert!(report.rows.len() >= 6, "{report}");
}
