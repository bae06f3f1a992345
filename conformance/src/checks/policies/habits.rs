//! What a law must know of a policy that the allocator never asks.

use parkade_policies::Named;

/// When a policy's "out of memory" is a false alarm.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Habits {
    /// Its rules forbid giving memory back to the device before it says that there is none left.
    pub keeps_memory: bool,
    /// It looks for a free block again once it has waited for events ([`Relief::Wait`](parkade::policy::Relief::Wait)). One that
    /// does not may say that memory is out beside a block that the wait has just made free.
    pub looks_after_waiting: bool,
}

impl Default for Habits {
    /// It gives memory back, and looks again.
    fn default() -> Habits {
        Habits { keeps_memory: false, looks_after_waiting: true }
    }
}

impl Habits {
    /// The habits of a policy of the catalogue.
    ///
    /// PyTorch's, once it has waited, gives free segments back and asks the device; a part of a segment that the wait made free
    /// is only found by the next request (spec 2.4, step 6e; pytorch#189504).
    pub(super) fn of(named: &Named) -> Habits {
        Habits { keeps_memory: named.keeps_memory, looks_after_waiting: !named.name.starts_with("pytorch") }
    }
}
