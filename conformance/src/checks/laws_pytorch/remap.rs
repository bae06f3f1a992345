//! Memory survives remapping bit for bit, at whatever addresses it is mapped next.
//!
//! `driver` moves handles directly: mapped elsewhere, in another order, at two addresses, or after their handle was released.
//! `allocator` lets expandable segments do it: neighbours of live allocations are unmapped and their addresses mapped again. Both
//! read all bytes; the random sequences of the other laws read only the ends of blocks.

mod allocator;
mod driver;
mod pattern;

use super::cases;
use crate::backend::AnyBackend;
use crate::suite::{Effort, Entry, Group, Requirement};

/// The entries of this law.
pub(super) fn entries() -> Vec<Entry> {
    let says = "memory keeps every byte when it is unmapped, mapped elsewhere and mapped at two addresses";
    let driver = Entry::new(Group::Law, "contents/remapped-by-hand", says, |backend: &AnyBackend, effort: &Effort| {
        cases::run(&fewer(effort), 0x3e3a, &driver::plans(), |plan| driver::run(backend, plan))
    });
    let says = "live allocations keep every byte while neighbouring pages are unmapped and mapped again";
    let allocator =
        Entry::new(Group::Law, "contents/remapped-by-the-allocator", says, |backend: &AnyBackend, effort: &Effort| {
            cases::run(&fewer(effort), 0x3e3b, &allocator::programs(), |steps| allocator::run(backend, steps))
        });
    vec![driver.requires(Requirement::VirtualMemory), allocator.requires(Requirement::ExpandableSegments)]
}

/// Fewer cases than other laws have, because all bytes are read.
fn fewer(effort: &Effort) -> Effort {
    Effort { cases: effort.cases.div_ceil(6), ..*effort }
}
