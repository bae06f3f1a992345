//! The laws as entries of the suite: random sequences under every law at once, and the laws that need programs of their own.

mod campaign;
mod cases;
mod faults;
mod fixed;
pub mod operation;
mod races;
mod remap;
mod repeats;
pub mod trial;

use std::sync::Arc;

use crate::backend::Backend;
use crate::checks::draw::timings;
use crate::law::Law;
use crate::suite::{Entry, Group, Requirement};
use campaign::Campaign;

/// The laws that are checked after every operation of a random sequence.
const AFTER_EVERY_OPERATION: [(Law, &str); 15] = [
    (Law::NoOverlap, "no two live allocations share a byte"),
    (Law::Alignment, "addresses are multiples of 512"),
    (Law::Accounting, "every reserved byte is live, rounding, pending, stranded or whole, and the statistics say so"),
    (Law::Counters, "what came minus what went is there, peaks are not below it, pools add up"),
    (Law::Coalescing, "no two free neighbours are left"),
    (Law::NoEarlyReuse, "nothing is reused before the events of the streams that used it are done"),
    (Law::Placement, "each request goes where the rules put it, and is cut to the size that they say"),
    (Law::NoFalseOutOfMemory, "a request is refused only when neither cache, limit nor device has room"),
    (Law::Ladder, "nothing is given back, waited for or asked of the device before its turn"),
    (Law::Pools, "requests go where they are routed, and a pool in use keeps its memory"),
    (Law::Limit, "reserved memory does not grow beyond the limit"),
    (Law::Sweep, "the whole-heap sweep finds nothing"),
    (Law::History, "what the observer is told makes sense by itself"),
    (Law::Contents, "memory holds what was written until it is freed"),
    (Law::Endings, "a released heap returns every page, reservation and event"),
];

/// The entries of this group.
pub fn entries<B: Backend + 'static>(backend: &B) -> Vec<Entry<B>> {
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
    entries.extend(fixed::entries(backend));
    entries.extend(repeats::entries(backend));
    entries.extend(faults::entries());
    entries.extend(races::entries(backend));
    entries.extend(remap::entries());
    entries
}
