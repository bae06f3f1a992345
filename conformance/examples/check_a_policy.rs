//! Checks two user-defined policies: a correct one, and one that searches for free blocks only every other time.
//!
//! `cargo run --release -p parkade-conformance --example check_a_policy`

use parkade::Heap;
use parkade::policy::{Placement, Policy, Request};
use parkade::units::{Bytes, PoolClass};
use parkade_conformance::checks::laws_any_policy::check;
use parkade_conformance::suite::Effort;

/// Takes the free block that fits best, or a new segment of the request's size.
#[derive(Clone, Default)]
struct Tightest {
    overlooks: bool,
    requests: u64,
}

impl Policy for Tightest {
    fn name(&self) -> &'static str {
        if self.overlooks { "forgetful" } else { "tightest" }
    }

    fn round(&self, requested: Bytes) -> Option<Bytes> {
        requested.checked_round_up(Bytes(512))
    }

    fn classify(&self, _: Bytes) -> PoolClass {
        PoolClass::Large
    }

    fn place(&mut self, heap: &Heap, request: &Request) -> Placement {
        self.requests += 1;
        let found = heap.first_at_least(request.pool, request.stream, request.size);
        match found.filter(|_| !self.overlooks || self.requests.is_multiple_of(2)) {
            Some(block) => Placement::Reuse(block.id),
            None => Placement::Segment(request.size),
        }
    }

    fn splits(&self, _: Bytes, _: &Request) -> bool {
        true
    }
}

#[expect(clippy::print_stdout, reason = "an example prints")]
fn main() {
    let effort = Effort::new(40, 0);
    for overlooks in [false, true] {
        let (Ok(report) | Err(report)) = check(move || Tightest { overlooks, requests: 0 }, &effort);
        println!("{}\n\n{report}", if report.passed() { "every law holds" } else { "a law is violated" });
    }
}
