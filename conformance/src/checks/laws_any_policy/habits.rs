//! What the laws must know about a policy that the allocator does not ask for.

use parkade_policies::Named;

/// Properties of a policy that decide whether its out of memory is justified.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Habits {
    /// Its rules forbid giving memory back to the device before it reports out of memory.
    pub keeps_memory: bool,
    /// It searches for a free block again after waiting for events ([`Relief::Wait`](parkade::policy::Relief::Wait)). A policy
    /// that does not may report out of memory although the wait has just freed a fitting block.
    pub looks_after_waiting: bool,
}

impl Default for Habits {
    /// It gives memory back, and searches again.
    fn default() -> Habits {
        Habits { keeps_memory: false, looks_after_waiting: true }
    }
}

impl Habits {
    /// The habits of a policy of the catalogue.
    ///
    /// PyTorch's policy, after waiting, gives free segments back and asks the device; part of a segment that the wait freed is
    /// only found by the next request (spec 2.4, step 6e; pytorch#189504).
    pub(super) fn of(named: &Named) -> Habits {
        Habits { keeps_memory: named.keeps_memory, looks_after_waiting: !named.name.starts_with("pytorch") }
    }
}
