//! A policy of one's own: fill what is in use first, and leave the large ones alone.
//!
//! A segment can go back to the device only when nothing in it is in use. So a small request takes the tightest free block of a segment
//! that is in use anyway, and begins a segment that is free as a whole only when there is no other. A large request has a segment to
//! itself, which is never cut, and serves again whoever leaves at most an eighth of it unused.

use parkade::policy::{Attempt, Placement, Policy, Relief, Request};
use parkade::units::{Bytes, PoolClass};
use parkade::{BlockView, Heap};
use parkade_conformance::checks::policy_laws::check;
use parkade_conformance::suite::Effort;

/// Requests of this size and more are large.
const LARGE: Bytes = Bytes::mib(16);
/// Small requests share segments of this size.
const SHARED: Bytes = Bytes::mib(32);

/// It remembers nothing: all that it needs to know is in the heap.
struct FillFirst;

impl FillFirst {
    fn find(heap: &Heap, request: &Request) -> Option<BlockView> {
        // The tightest first; all are of the request's pool and stream.
        let mut free = heap.at_least(request.pool, request.stream, request.size);
        let tightest = heap.first_at_least(request.pool, request.stream, request.size)?;
        if request.size >= LARGE {
            return (tightest.size.get() - request.size.get() <= tightest.size.get() / 8).then_some(tightest);
        }
        // A block that is a part of its segment: somebody else uses the rest.
        Some(free.find(|block| block.is_split).unwrap_or(tightest))
    }
}

impl Policy for FillFirst {
    fn name(&self) -> &'static str {
        "fill-first"
    }

    /// How large is the block that serves so many bytes?
    fn round(&self, requested: Bytes) -> Option<Bytes> {
        requested.checked_round_up(Bytes(512))
    }

    /// Which of the two collections of free blocks serves blocks of this size? What is in one never serves the other.
    fn classify(&self, size: Bytes) -> PoolClass {
        if size >= LARGE { PoolClass::Large } else { PoolClass::Small }
    }

    /// Which free block? Or how large a segment?
    fn place(&mut self, heap: &Heap, request: &Request) -> Placement {
        let segment = if request.size >= LARGE { request.size.checked_round_up(Bytes::mib(2)) } else { Some(SHARED) };
        match FillFirst::find(heap, request) {
            Some(block) => Placement::Reuse(block.id),
            None => Placement::Segment(segment.unwrap_or(Bytes::MAX)),
        }
    }

    /// Is a block cut that is larger than the request?
    fn splits(&self, _whole: Bytes, request: &Request) -> bool {
        request.size < LARGE
    }

    /// No free block serves the request: what now? Asked again, with the next number, until there is a block or it gives up.
    fn relieve(&mut self, heap: &Heap, request: &Request, rung: u32) -> Relief {
        match (rung, FillFirst::find(heap, request)) {
            (0, _) => Relief::Release { blocks: Vec::new(), attempt: Attempt::Ask },
            (1, _) => Relief::Wait,
            (2, Some(block)) => Relief::Reuse(block.id),
            (2, None) => Relief::Release { blocks: heap.releasable(), attempt: Attempt::AskAgain },
            // The device has no room for a shared segment: perhaps for the request alone.
            (3, _) => Relief::Release { blocks: Vec::new(), attempt: Attempt::AskFor(request.size) },
            _ => Relief::GiveUp,
        }
    }
}

#[test]
fn it_obeys_every_law_that_no_policy_may_break() {
    let report = check(|| FillFirst, &Effort { cases: 12, seed: 0 }).unwrap_or_else(|report| panic!("{report}"));
    assert!(report.rows.len() >= 6, "{report}");
}
