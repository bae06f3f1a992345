//! What a recording shows of the device's capacity: whether a request for a segment may have been refused.
//!
//! After a refusal the allocator gives its cached segments back and asks again. A call of empty_cache before
//! the request leaves the same entries. The device did not refuse an amount that it is once seen to have had
//! reserved. And a program that often empties its cache without need, as one that captures graphs does, and is
//! never out of memory, probably also did so where it was about to need more than ever before.

use parkade::settings::Settings;
use parkade_recording::{Action, Entry};

use crate::entries::{gives_memory, is_inner, takes_memory};
use crate::pools::{PoolTracker, RecordedPools};

/// If memory is given back this many times as often before requests that the device had room for as before
/// requests that may have been refused, all of those are taken as calls of empty_cache.
///
/// In known recordings the ratio is 4 to 10 where graphs are captured, and less where a limit was near.
const MOSTLY: u64 = 4;

/// What is known of the device's capacity, if there is no limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Capacity {
    /// The most bytes reserved at any entry.
    most_reserved: u64,
    /// Probably nothing was refused.
    is_roomy: bool,
}

impl Capacity {
    /// Learns from a trace that begins with this many bytes reserved.
    pub(crate) fn of(trace: &[Entry], reserved_bytes: u64, pools: &RecordedPools, settings: &Settings) -> Capacity {
        let after = |reserved: u64, entry: &Entry| {
            if takes_memory(entry) {
                reserved.saturating_add(entry.size)
            } else if gives_memory(entry) {
                reserved.saturating_sub(entry.size)
            } else {
                reserved
            }
        };
        let (mut reserved, mut most_reserved) = (reserved_bytes, reserved_bytes);
        for entry in trace {
            reserved = after(reserved, entry);
            most_reserved = most_reserved.max(reserved);
        }
        // Garbage collection, and requests for oversize blocks, give memory back too.
        let is_plain = settings.garbage_collection_threshold <= 0.0 && settings.max_split_bytes == u64::MAX;
        let was_out = trace.iter().any(|entry| entry.action == Action::Oom);
        if !is_plain || was_out || !trace.iter().any(gives_memory) {
            return Capacity { most_reserved, is_roomy: false };
        }
        let (mut reserved, mut pools, mut at) = (reserved_bytes, PoolTracker::new(pools), 0);
        let (mut without_need, mut with_need) = (0_u64, 0_u64);
        for group in trace.chunk_by(|one, _| is_inner(one)) {
            let asked = group.iter().filter(|entry| takes_memory(entry)).fold(0_u64, |sum, entry| sum.saturating_add(entry.size));
            // A private pool that is dropped gives back its own memory.
            if asked > 0 && pools.default_gives(group) {
                let count = if reserved.saturating_add(asked) > most_reserved { &mut with_need } else { &mut without_need };
                *count += 1;
            }
            reserved = group.iter().fold(reserved, after);
            pools.pass(at, group);
            at += group.len();
        }
        Capacity { most_reserved, is_roomy: without_need >= MOSTLY * with_need.max(1) }
    }

    /// Whether the device may have had no room for this many reserved bytes, as there never were so many.
    pub(crate) fn may_lack(&self, bytes: u64) -> bool {
        bytes > self.most_reserved
    }

    /// Whether a request that would have raised the reserved bytes to this was probably refused.
    pub(crate) fn may_refuse(&self, bytes: u64) -> bool {
        self.may_lack(bytes) && !self.is_roomy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn trace(parts: &[(Action, u64)]) -> Vec<Entry> {
        parts.iter().map(|&(action, mib)| Entry::new(action, 1 << 32, mib * MIB, 0)).collect()
    }

    const NEEDED: &[(Action, u64)] = &[(Action::SegmentFree, 10), (Action::SegmentAlloc, 20), (Action::Alloc, 20)];
    const NOT_NEEDED: &[(Action, u64)] = &[(Action::SegmentFree, 4), (Action::SegmentAlloc, 4), (Action::Alloc, 4)];

    /// The capacity seen in a trace that begins with 20 MiB reserved and never has more than 30 MiB.
    fn capacity(parts: &[&[(Action, u64)]], settings: &Settings) -> Capacity {
        Capacity::of(&trace(&parts.concat()), 20 * MIB, &RecordedPools::default(), settings)
    }

    #[test]
    fn an_amount_that_was_reserved_once_is_not_refused() {
        let capacity = capacity(&[NEEDED], &Settings::default());
        assert!(!capacity.may_refuse(30 * MIB));
        assert!(capacity.may_refuse(31 * MIB));
    }

    #[test]
    fn a_program_that_often_empties_its_cache_was_not_refused() {
        let settings = Settings::default();
        let few = [&[NOT_NEEDED; 3][..], &[NEEDED]].concat();
        assert!(capacity(&few, &settings).may_refuse(31 * MIB));
        let mostly = [&[NOT_NEEDED; 4][..], &[NEEDED]].concat();
        assert!(!capacity(&mostly, &settings).may_refuse(31 * MIB));
        let collecting = Settings { garbage_collection_threshold: 0.5, ..settings.clone() };
        assert!(capacity(&mostly, &collecting).may_refuse(31 * MIB), "it may have been garbage collection");
        let out = [&mostly[..], &[&[(Action::Oom, 40)]]].concat();
        assert!(capacity(&out, &settings).may_refuse(31 * MIB), "there is a limit");
    }
}
