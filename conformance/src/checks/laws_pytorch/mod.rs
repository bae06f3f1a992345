//! The laws as entries: random sequences that are checked against all laws together, laws that need their own programs,
//! and laws about the allocator only, which are the same on every backend.

mod campaign;
mod faults;
pub mod operation;
mod races;
mod reference;
mod remap;
mod repeats;
pub mod trial;

use std::sync::Arc;

use crate::backend::AnyBackend;
use crate::core_laws::{CoreLaw, Draws, LAWS};
use crate::law::Law;
use crate::program::search::timings;
use crate::suite::{Effort, Entry, Evidence, Group, Requirement, Trouble, Verdict};
use campaign::Campaign;

/// The laws that are checked after every operation of a random sequence.
const AFTER_EVERY_OPERATION: [(Law, &str); 15] = [
    (Law::NoOverlap, "no two live allocations share a byte"),
    (Law::Alignment, "addresses are multiples of 512"),
    (
        Law::Accounting,
        "every reserved byte is accounted for: live, rounding, pending, or free in a split or entirely free segment; the \
         statistics agree",
    ),
    (
        Law::Counters,
        "in each statistic, allocated minus freed equals current, the peak is at least current, and the pools add \
                     up to the total",
    ),
    (Law::Coalescing, "adjacent free blocks are always coalesced"),
    (Law::NoEarlyReuse, "no memory is reused before the events of the streams that used it have completed"),
    (Law::Placement, "each request gets the block that the rules choose, split to the size that they specify"),
    (
        Law::NoFalseOutOfMemory,
        "a request is refused only if the cache has no block for it and either the limit or the device \
                               leaves no room",
    ),
    (Law::Ladder, "the allocator releases memory, waits and asks the device for memory only in the order that the rules specify"),
    (Law::Pools, "requests are served by the pool they are routed to, and a pool in use keeps its memory"),
    (Law::Limit, "reserved memory does not grow beyond the limit"),
    (Law::Sweep, "a check of the entire heap finds no violation"),
    (Law::History, "the observer's trace is consistent"),
    (Law::Contents, "memory keeps its contents until it is freed"),
    (Law::Endings, "when the heap is emptied, every page, reservation and event is returned to the device"),
];

/// The entries of this group.
pub fn entries(backend: &AnyBackend) -> Vec<Entry> {
    let mut entries = Vec::new();
    for is_virtual in [false, true] {
        for (name, timing) in timings(backend) {
            let kind = if is_virtual { "virtual" } else { "ordinary" };
            let campaign = Arc::new(Campaign::new(timing, is_virtual));
            for (law, says) in AFTER_EVERY_OPERATION.into_iter().filter(|(law, _)| campaign.checks(*law)) {
                let campaign = Arc::clone(&campaign);
                let title = format!("{}/{kind}/{name}", law.name());
                let entry = Entry::new(Group::Law, title, says, move |backend, effort| campaign.verdict(law, backend, effort));
                entries.push(if is_virtual { entry.requires(Requirement::ExpandableSegments) } else { entry });
            }
        }
    }
    entries.extend(campaign::fixed_entries(backend));
    entries.extend(repeats::entries(backend));
    entries.extend(faults::entries());
    entries.extend(races::entries(backend));
    entries.extend(remap::entries());
    entries.extend(reference::entries(backend));
    entries.extend(core_law_entries());
    entries.extend(faults::wrong_address_entries());
    entries
}

/// The entries of these laws.
fn core_law_entries() -> Vec<Entry> {
    let entry = |law: CoreLaw| {
        Entry::new(Group::Law, law.name, law.says, move |_: &AnyBackend, effort: &Effort| check_core_law(law, effort))
    };
    LAWS.into_iter().map(entry).collect()
}

fn check_core_law(law: CoreLaw, effort: &Effort) -> Verdict {
    let draws = Draws { cases: effort.cases, seed: effort.seed };
    let operations = (law.check)(&draws).map_err(|failure| Trouble::Fail {
        reason: failure.broken.to_string(),
        script: Some(failure.script).filter(|script| !script.is_empty()),
    })?;
    Ok(Evidence { operations, measured: format!("{operations} operations"), text: String::new() })
}
