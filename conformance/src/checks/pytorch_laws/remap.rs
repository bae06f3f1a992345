//! Memory survives remapping bit for bit: what was written is there, whichever addresses it is mapped at next.
//!
//! `driver` moves handles themselves: unmapped and mapped elsewhere, in another order, at two addresses, without their handle.
//! `allocator` lets expandable segments do it: neighbours of live allocations are unmapped and their addresses filled anew. Both
//! read all bytes, where the random sequences of the other laws read the ends of blocks.

mod allocator;
mod driver;
mod pattern;

use super::cases;
use crate::backend::Backend;
use crate::suite::{Effort, Entry, Group, Requirement};

/// The entries of this law.
pub(super) fn entries<B: Backend + 'static>() -> Vec<Entry<B>> {
    let says = "memory keeps every byte when it is unmapped, mapped elsewhere and seen through two addresses";
    let driver = Entry::new(Group::Law, "contents/remapped-by-hand", says, |backend: &B, effort: &Effort| {
        cases::run(&fewer(effort), 0x3e3a, &driver::plans(), |plan| driver::run(backend, plan))
    });
    let says = "live allocations keep every byte while their neighbours' pages are unmapped and mapped anew";
    let allocator = Entry::new(Group::Law, "contents/remapped-by-the-allocator", says, |backend: &B, effort: &Effort| {
        cases::run(&fewer(effort), 0x3e3b, &allocator::programs(), |steps| allocator::run(backend, steps))
    });
    vec![driver.requires(Requirement::VirtualMemory), allocator.requires(Requirement::ExpandableSegments)]
}

/// All bytes are read, so there are fewer cases than of other laws.
fn fewer(effort: &Effort) -> Effort {
    Effort { cases: effort.cases.div_ceil(6), ..*effort }
}
