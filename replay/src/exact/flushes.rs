//! Flushes: releases of cached memory to the device right before a request that then takes more memory than had ever been
//! reserved; and what a recording shows about the reasons for them.
//!
//! No entry shows why. Either the device refused the request, and the allocator released its cache and asked again (a retry),
//! or the program called `empty_cache`, as `torch.cuda.graph` does before each capture. Both leave the same entries, except
//! for the stacks, if the recording has stacks.
//!
//! The device's capacity decides some cases: the device cannot have refused an amount that the process had reserved at some
//! other time. If that much was never reserved, a call is likelier if a capture follows, because `torch.cuda.graph` empties the
//! cache first. A call is also likelier in a program that often empties its cache without need and never runs out of memory.

use std::collections::{BTreeSet, VecDeque};

use parkade::settings::Settings;
use parkade::units::PoolId;
use parkade_recording::{Action, Entry, StackId};

use crate::entries::{gives_memory, is_inner, is_request, takes_memory};
use crate::pools::{PoolTracker, RecordedPools};

/// A flush, how the replay read it, and why.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flush {
    /// The request's entry.
    pub entry: usize,
    /// The bytes that would have been reserved if nothing had been released. If the flush was a retry, the device had less
    /// memory than this.
    pub wanted_bytes: u64,
    /// The reason for this reading.
    pub reason: FlushReason,
}

impl Flush {
    /// Returns the flush according to its final reading: as a call to `empty_cache` or as a retry after a refusal. Returns
    /// `None` if it was neither, for example garbage collection.
    pub(super) fn read_as(self, is_call: bool, is_retry: bool) -> Option<Flush> {
        match (is_call, is_retry) {
            (false, false) => None,
            (_, true) if self.reason.is_retry() => Some(self),
            (_, true) => Some(Flush { reason: FlushReason::NoCall, ..self }),
            (true, false) if self.reason.is_retry() => Some(Flush { reason: FlushReason::NoRetry, ..self }),
            (true, false) => Some(self),
        }
    }
}

/// If this many requests each needed more than had ever been reserved, it is no coincidence that memory was released right
/// before them.
const OFTEN: usize = 3;

/// Judges all flushes of a recording together: if there are many, none of them is in doubt.
pub(crate) fn taken_together(mut flushes: Vec<Flush>) -> Vec<Flush> {
    let wanted = |flush: &Flush| flush.reason == FlushReason::NeverHadMore;
    if flushes.iter().filter(|flush| wanted(flush)).count() >= OFTEN {
        flushes.iter_mut().filter(|flush| wanted(flush)).for_each(|flush| flush.reason = FlushReason::OftenRefused);
    }
    flushes
}

/// The reason why a flush was read as a retry or as a call to `empty_cache`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlushReason {
    /// A call to `empty_cache`: a private pool is first used after it, as in a capture.
    CaptureFollows,
    /// A call to `empty_cache`: the program often calls it when memory is not short.
    OftenEmptied,
    /// A retry: that much had never been reserved, and nothing suggests a call.
    NeverHadMore,
    /// A retry: that much had never been reserved, and this is true of so many requests that it is no coincidence. A program
    /// that calls `empty_cache` would also do so at other times.
    OftenRefused,
    /// A retry: other requests ran out of memory.
    OthersFailed,
    /// A retry: the entries that release memory have the stack of the request.
    StackOfRequest,
    /// A call to `empty_cache`: the entries that release memory have a different stack from the request's.
    OtherStack,
    /// A retry: a call would have left different entries.
    NoCall,
    /// A call to `empty_cache`: a retry would have left different entries.
    NoRetry,
}

impl FlushReason {
    /// Returns the reason that the stacks of a request's entries show; the last entry is the request. Returns `None` if
    /// some entry has no stack, or if no entry releases memory.
    ///
    /// All entries of one request have its stack. The entries of `empty_cache` have its own stack or, if the recording has
    /// stacks only for requests, the stack of the request that first took the memory (spec 7.4).
    pub(super) fn of_stacks(entries: &[Entry]) -> Option<FlushReason> {
        let stack = entries.last()?.stack;
        let mut given = entries.iter().filter(|entry| gives_memory(entry)).map(|entry| entry.stack).peekable();
        given.peek()?;
        if stack == StackId::NONE || given.clone().any(|stack| stack == StackId::NONE) {
            return None;
        }
        Some(if given.all(|given| given == stack) { FlushReason::StackOfRequest } else { FlushReason::OtherStack })
    }

    /// Returns whether the flush was read as a retry.
    #[must_use]
    pub const fn is_retry(self) -> bool {
        !matches!(self, FlushReason::CaptureFollows | FlushReason::OftenEmptied | FlushReason::OtherStack | FlushReason::NoRetry)
    }

    /// Returns whether the flush may have been a call rather than a retry, or the reverse.
    #[must_use]
    pub const fn is_doubtful(self) -> bool {
        matches!(self, FlushReason::CaptureFollows | FlushReason::OftenEmptied | FlushReason::NeverHadMore)
    }
}

parkade_recording::names! {
    FlushReason {
        FlushReason::CaptureFollows => "capture_follows",
        FlushReason::OftenEmptied => "often_emptied",
        FlushReason::NeverHadMore => "never_had_more",
        FlushReason::OftenRefused => "often_refused",
        FlushReason::OthersFailed => "others_failed",
        FlushReason::StackOfRequest => "stack_of_request",
        FlushReason::OtherStack => "other_stack",
        FlushReason::NoCall => "no_call",
        FlushReason::NoRetry => "no_retry",
    }
}

/// If memory is released before requests that the device had room for at least this many times as often as before requests
/// that it may have refused, all flushes count as calls to `empty_cache`.
///
/// In known recordings without errors, the ratio is at least 6 if nothing was refused, and 0 if a limit was near.
const MOSTLY: u64 = 4;

/// The weight of a release before a request that a cached block then serves: no allocator rule leads to that. A release
/// before any other request may show that the device had less memory for a while.
const CERTAIN: u64 = 2;

/// Before a capture, `torch.cuda.graph` empties the cache, and PyTorch then creates a few tensors for random numbers. The
/// first request of the captured work is therefore one of this many after the flush, and none of this many before the flush
/// went to its pool.
const NEAR: usize = 8;

/// The device's capacity, as far as the recording shows it, if there is no limit.
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

/// Returns the bytes reserved after an entry.
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

    /// Learns from the flushes, the points at which memory is released.
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

    /// Returns whether the device may have lacked room for this many reserved bytes, because that many were never reserved.
    pub(crate) fn may_lack(&self, bytes: u64) -> bool {
        bytes > self.most_reserved
    }

    /// Returns the probable reason why memory was released before a request (given by its entry) that would have raised the
    /// reserved bytes to `bytes`. Returns `None` if the device had room; then the program certainly called `empty_cache`.
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
    use parkade_recording::{Action, Frame, StackTable};
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;

    #[test]
    fn many_retries_are_no_chance() {
        let flush = |entry| Flush { entry, wanted_bytes: 1, reason: FlushReason::NeverHadMore };
        let call = Flush { reason: FlushReason::CaptureFollows, ..flush(9) };
        let reasons = |flushes: &[Flush]| taken_together(flushes.to_vec()).iter().map(|flush| flush.reason).collect::<Vec<_>>();
        assert_eq!(reasons(&[flush(1), flush(2), call])[..2], [FlushReason::NeverHadMore; 2]);
        let four = reasons(&[flush(1), flush(2), call, flush(3)]);
        assert_eq!(four, [FlushReason::OftenRefused, FlushReason::OftenRefused, call.reason, FlushReason::OftenRefused]);
    }

    #[test]
    fn what_a_request_gives_back_has_its_stack() {
        let entry = |action, stack| {
            let mut entry = Entry::new(action, 1 << 30, 2 << 20, 0);
            entry.stack = stack;
            entry
        };
        let said = |freed: [StackId; 2], request| {
            let [one, other] = freed.map(|stack| entry(Action::SegmentFree, stack));
            FlushReason::of_stacks(&[one, other, entry(Action::SegmentAlloc, request), entry(Action::Alloc, request)])
        };
        let mut table = StackTable::default();
        let [one, other] = [1, 2].map(|line| {
            let call = table.intern_frame(Frame { filename: "train.py".into(), line, name: "step".into() });
            table.intern_stack(&[call])
        });
        assert_eq!(said([one, one], one), Some(FlushReason::StackOfRequest));
        assert_eq!(said([other, other], one), Some(FlushReason::OtherStack));
        assert_eq!(said([one, other], one), Some(FlushReason::OtherStack), "those of the requests that took the memory");
        assert_eq!(said([one, StackId::NONE], one), None);
        assert_eq!(said([StackId::NONE; 2], StackId::NONE), None);
        assert_eq!(FlushReason::of_stacks(&[entry(Action::SegmentAlloc, one), entry(Action::Alloc, one)]), None);
    }

    const MIB: u64 = 1 << 20;

    fn trace(parts: &[(Action, u64)]) -> Vec<Entry> {
        parts.iter().map(|&(action, mib)| Entry::new(action, 1 << 32, mib * MIB, 0)).collect()
    }

    const NEEDED: &[(Action, u64)] = &[(Action::SegmentFree, 10), (Action::SegmentAlloc, 20), (Action::Alloc, 20)];
    const NOT_NEEDED: &[(Action, u64)] = &[(Action::SegmentFree, 4), (Action::SegmentAlloc, 4), (Action::Alloc, 4)];

    /// Memory is released, and then a cached block serves a request.
    const ONLY_GIVES: &[(Action, u64)] = &[(Action::SegmentFree, 1), (Action::Alloc, 1)];

    /// Returns the capacity shown by a trace that begins with 20 MiB reserved and never has more than 30 MiB.
    fn capacity(parts: &[&[(Action, u64)]], settings: &Settings) -> Capacity {
        Capacity::of(&trace(&parts.concat()), 20 * MIB, &RecordedPools::default(), settings)
    }

    /// Returns the reason why memory was released before a request that no capture follows.
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

    /// Returns whether a capture follows a flush right before the fourth of these requests, each given by its pool.
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

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]
        /// Compares with looking at the eight requests before each flush and the eight that follow the request after it.
        #[test]
        fn a_capture_follows_where_a_pool_is_new(requests in vec((0..3_u64, any::<bool>()), 0..30)) {
            let pools: Vec<u64> = requests.iter().map(|&(pool, _)| pool).collect();
            let mut captures = Captures::default();
            for (request, &(pool, is_after_flush)) in requests.iter().enumerate() {
                captures.pass(request, PoolId(0, pool), is_after_flush);
            }
            let follows = |request: &usize| {
                let before = &pools[request.saturating_sub(8)..*request];
                let later = pools[request + 1..].iter().take(8);
                requests[*request].1 && later.clone().any(|pool| *pool != 0 && !before.contains(pool))
            };
            prop_assert_eq!(captures.found, (0..requests.len()).filter(follows).collect::<BTreeSet<_>>());
        }

        /// Compares with the definitions, for traces that reserve and release memory in steps of a MiB.
        #[test]
        fn a_capacity_is_what_the_whole_trace_shows(
            parts in vec((select(vec![Action::SegmentAlloc, Action::SegmentFree, Action::Alloc, Action::Oom]), 1..5_u64), 0..16),
            collects in any::<bool>(),
        ) {
            let settings = Settings { garbage_collection_threshold: if collects { 0.5 } else { 0.0 }, ..Settings::default() };
            let found = capacity(&[&parts], &settings);
            let trace = trace(&parts);
            let levels: Vec<u64> = (0..=trace.len()).map(|end| trace[..end].iter().fold(20 * MIB, after)).collect();
            let most = levels.iter().copied().max().expect("the level before the first entry");
            let failed = trace
                .iter()
                .zip(&levels)
                .filter(|(entry, _)| entry.action == Action::Oom)
                .map(|(entry, level)| level + entry.size);
            prop_assert_eq!((found.most_reserved, found.least_failed), (most, failed.min().unwrap_or(u64::MAX)));
            // A flush is a group of entries, up to a request, that releases memory.
            let (mut from, mut needed, mut needless) = (0, 0, 0);
            for end in 1..=trace.len() {
                if end < trace.len() && is_inner(&trace[end - 1]) {
                    continue;
                }
                let group = &trace[from..end];
                let taken: u64 = group.iter().filter(|entry| takes_memory(entry)).map(|entry| entry.size).sum();
                if group.iter().any(gives_memory) {
                    match taken {
                        0 => needless += 2,
                        _ if levels[from] + taken > most => needed += 1,
                        _ => needless += u64::from(!collects),
                    }
                }
                from = end;
            }
            prop_assert_eq!(found.is_roomy, needless >= 4 * needed.max(1));
            for bytes in [most - 1, most, most + 1, found.least_failed] {
                let expected = match bytes {
                    _ if bytes <= most => None,
                    _ if found.least_failed < u64::MAX || bytes == u64::MAX => Some(FlushReason::OthersFailed),
                    _ if needless >= 4 * needed.max(1) => Some(FlushReason::OftenEmptied),
                    _ => Some(FlushReason::NeverHadMore),
                };
                prop_assert_eq!(found.reason(bytes, usize::MAX), expected, "{}", bytes);
            }
        }
    }
}
