//! What a recording shows about the device's capacity: whether the device may have refused a request for a segment.
//!
//! After a refusal, the allocator releases its cached segments and asks again. A call to `empty_cache` before the request
//! leaves the same entries. The device cannot have refused an amount that the process had reserved at some other time. If
//! that much was never reserved, a call is likelier if a capture follows, because `torch.cuda.graph` empties the cache first.
//! A call is also likelier in a program that often empties its cache without need and never runs out of memory.

use std::collections::{BTreeSet, VecDeque};

use parkade::settings::Settings;
use parkade::units::PoolId;
use parkade_recording::{Action, Entry};

use super::flushes::FlushReason;
use crate::entries::{gives_memory, is_inner, is_request, takes_memory};
use crate::pools::{PoolTracker, RecordedPools};

/// If memory goes back before requests that the device had room for at least this many times as often as before requests that
/// it may have refused, all flushes count as calls to `empty_cache`.
///
/// In known recordings without errors, the ratio is at least 6 if nothing was refused, and 0 if a limit was near.
const MOSTLY: u64 = 4;

/// The weight of memory that goes back before a request which a cached block then serves: no allocator rule does that. Memory
/// that goes back before any other request may show that the device had less memory for a while.
const CERTAIN: u64 = 2;

/// Before a capture, `torch.cuda.graph` empties the cache, and PyTorch then creates a few tensors for random numbers. The
/// first request of the captured work is therefore one of this many after the flush, and none of this many before the flush
/// went to its pool.
const NEAR: usize = 8;

/// What the recording shows about the device's capacity if there is no limit.
#[derive(Clone, Debug)]
pub(crate) struct Capacity {
    /// The largest number of bytes reserved at any entry.
    most_reserved: u64,
    /// The smallest number of bytes to which a failed request would have raised the reserved memory; the largest possible
    /// number if no request failed.
    least_failed: u64,
    /// Whether the device probably refused no request.
    is_roomy: bool,
    /// The requests after a flush, by entry, that are the last before a capture.
    before_capture: BTreeSet<usize>,
}

/// The bytes reserved after an entry.
fn after(reserved: u64, entry: &Entry) -> u64 {
    if takes_memory(entry) {
        reserved.saturating_add(entry.size)
    } else if gives_memory(entry) {
        reserved.saturating_sub(entry.size)
    } else {
        reserved
    }
}

impl Capacity {
    /// Learns from a trace that begins with this many bytes reserved.
    pub(crate) fn of(trace: &[Entry], reserved_bytes: u64, pools: &RecordedPools, settings: &Settings) -> Capacity {
        let (mut reserved, mut most_reserved, mut least_failed) = (reserved_bytes, reserved_bytes, u64::MAX);
        for entry in trace {
            reserved = after(reserved, entry);
            most_reserved = most_reserved.max(reserved);
            if entry.action == Action::Oom {
                least_failed = least_failed.min(reserved.saturating_add(entry.size));
            }
        }
        let mut capacity = Capacity { most_reserved, least_failed, is_roomy: false, before_capture: BTreeSet::new() };
        if trace.iter().any(gives_memory) {
            capacity.learn_from_flushes(trace, reserved_bytes, pools, settings);
        }
        capacity
    }

    /// Learns from the flushes, the places where memory goes back.
    fn learn_from_flushes(&mut self, trace: &[Entry], reserved_bytes: u64, pools: &RecordedPools, settings: &Settings) {
        // Garbage collection and requests for oversize blocks release memory before they take memory.
        let is_plain = settings.garbage_collection_threshold <= 0.0 && settings.max_split_bytes == u64::MAX;
        let (mut reserved, mut pools, mut at) = (reserved_bytes, PoolTracker::new(pools), 0);
        let (mut without_need, mut with_need) = (0_u64, 0_u64);
        let mut captures = Captures::default();
        for group in trace.chunk_by(|one, _| is_inner(one)) {
            let asked = group.iter().filter(|entry| takes_memory(entry)).fold(0_u64, |sum, entry| sum.saturating_add(entry.size));
            // When a private pool is dropped, it releases its own memory.
            let is_flush = pools.default_gives(group);
            let has_need = asked > 0 && reserved.saturating_add(asked) > self.most_reserved;
            with_need += u64::from(is_flush && has_need);
            without_need += match asked {
                _ if !is_flush || has_need => 0,
                0 => CERTAIN,
                _ => u64::from(is_plain),
            };
            if pools.has_private() && group.last().is_some_and(is_request) {
                captures.pass(at + group.len() - 1, pools.of_request(at, group), is_flush && has_need);
            }
            reserved = group.iter().fold(reserved, after);
            pools.pass(at, group);
            at += group.len();
        }
        self.is_roomy = without_need >= MOSTLY * with_need.max(1);
        self.before_capture = captures.found;
    }

    /// Whether the device may have lacked room for this many reserved bytes, because that many were never reserved.
    pub(crate) fn may_lack(&self, bytes: u64) -> bool {
        bytes > self.most_reserved
    }

    /// The probable reason why memory went back before a request (given by its entry) that would have raised the reserved
    /// bytes to `bytes`. `None` if the device had room; then the program certainly called `empty_cache`.
    pub(crate) fn reason(&self, bytes: u64, request: usize) -> Option<FlushReason> {
        if !self.may_lack(bytes) {
            return None;
        }
        Some(if bytes >= self.least_failed {
            FlushReason::OthersFailed
        } else if self.before_capture.contains(&request) {
            FlushReason::CaptureFollows
        } else if self.least_failed != u64::MAX {
            FlushReason::OthersFailed
        } else if self.is_roomy {
            FlushReason::OftenEmptied
        } else {
            FlushReason::NeverHadMore
        })
    }
}

/// Looks for flushes that a capture follows.
#[derive(Default)]
struct Captures {
    /// The pools of the last requests.
    recent: VecDeque<PoolId>,
    /// The requests after flushes, each with the pools of the requests before it and the number of requests after it.
    open: Vec<(usize, Vec<PoolId>, usize)>,
    found: BTreeSet<usize>,
}

impl Captures {
    /// Processes a request and its pool.
    fn pass(&mut self, request: usize, pool: PoolId, is_after_flush: bool) {
        let found = &mut self.found;
        self.open.retain_mut(|(flushed, before, passed)| {
            let begins = pool != PoolId::DEFAULT && !before.contains(&pool);
            if begins {
                found.insert(*flushed);
            }
            *passed += 1;
            !begins && *passed < NEAR
        });
        if is_after_flush {
            self.open.push((request, self.recent.iter().copied().collect(), 0));
        }
        self.recent.push_back(pool);
        if self.recent.len() > NEAR {
            self.recent.pop_front();
        }
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

    /// Memory goes back, and then a cached block serves a request.
    const ONLY_GIVES: &[(Action, u64)] = &[(Action::SegmentFree, 1), (Action::Alloc, 1)];

    /// The capacity shown by a trace that begins with 20 MiB reserved and never has more than 30 MiB.
    fn capacity(parts: &[&[(Action, u64)]], settings: &Settings) -> Capacity {
        Capacity::of(&trace(&parts.concat()), 20 * MIB, &RecordedPools::default(), settings)
    }

    /// Why memory went back before a request that no capture follows.
    fn reason(parts: &[&[(Action, u64)]], settings: &Settings, mib: u64) -> Option<FlushReason> {
        capacity(parts, settings).reason(mib * MIB, usize::MAX)
    }

    #[test]
    fn an_amount_that_was_reserved_once_is_not_refused() {
        assert_eq!(reason(&[NEEDED], &Settings::default(), 30), None);
        assert_eq!(reason(&[NEEDED], &Settings::default(), 31), Some(FlushReason::NeverHadMore));
    }

    #[test]
    fn a_program_that_often_empties_its_cache_was_not_refused() {
        let settings = Settings::default();
        let few = [&[NOT_NEEDED; 3][..], &[NEEDED]].concat();
        assert_eq!(reason(&few, &settings, 31), Some(FlushReason::NeverHadMore));
        let mostly = [&[NOT_NEEDED; 4][..], &[NEEDED]].concat();
        assert_eq!(reason(&mostly, &settings, 31), Some(FlushReason::OftenEmptied));
        let collecting = Settings { garbage_collection_threshold: 0.5, ..settings.clone() };
        assert_eq!(reason(&mostly, &collecting, 31), Some(FlushReason::NeverHadMore), "it may have been garbage collection");
        let out = [&mostly[..], &[&[(Action::Oom, 40)]]].concat();
        assert_eq!(reason(&out, &settings, 31), Some(FlushReason::OthersFailed), "there is a limit");
        let once = [&[ONLY_GIVES; 1][..], &[NEEDED]].concat();
        assert_eq!(reason(&once, &settings, 31), Some(FlushReason::NeverHadMore));
        let for_cached = [&[ONLY_GIVES; 2][..], &[NEEDED]].concat();
        assert_eq!(reason(&for_cached, &collecting, 31), Some(FlushReason::OftenEmptied), "nothing else does this");
    }

    /// A trace of requests with their pools: the flush and its request, then these.
    fn before_capture(pools: &[u64]) -> bool {
        let mut captures = Captures::default();
        for (request, &pool) in pools.iter().enumerate() {
            captures.pass(request, PoolId(0, pool), request == 3);
        }
        captures.found.contains(&3)
    }

    #[test]
    fn a_pool_that_is_used_soon_and_was_not_before_is_a_capture() {
        assert!(before_capture(&[0, 0, 0, 0, 0, 1, 1]), "two tensors for random numbers, then the captured work");
        assert!(!before_capture(&[0, 0, 0, 0, 0, 0, 0]));
        assert!(!before_capture(&[0, 1, 0, 0, 0, 1, 1]), "that pool was in use before");
        assert!(before_capture(&[0, 1, 0, 0, 0, 2, 2]), "another one was");
        assert!(!before_capture(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]), "much later");
    }
}
