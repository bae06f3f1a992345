//! The laws of requests: where each request is placed, in the default pool or a private one; that none is refused
//! needlessly; and that each one releases, waits for and requests exactly what it must (the ladder law).
//!
//! By the growth rule, an expandable segment grows at its lowest possible address, by exactly the missing pages (spec 4.2, 4.3).

use std::collections::{BTreeMap, BTreeSet};

use parkade::device::DeviceBackend as _;
use parkade::snapshot::{BlockActivity, SegmentInfo};
use parkade::trace::TraceAction;
use parkade::units::{Bytes, PoolClass, PoolId, StreamId};
use parkade_sim::CallName;

use super::Trial;
use crate::backend::TestDevice;
use crate::law::{Broken, Law, ensure};
use crate::reference_model::{Candidate, Climb, Ladder, Rules, best, id};

/// The state before a request, to be compared with the state after it.
pub(super) struct Before {
    pub(super) segments: Vec<SegmentInfo>,
    syncs: i64,
    retries: i64,
}

/// A stretch of a reserved range.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    address: u64,
    size: u64,
    is_usable: bool,
    has_memory: bool,
}

impl Trial {
    /// Checks that a served request got the free memory that the model would take, or a new segment if there was none,
    /// split to the right size.
    pub(super) fn check_place(&self, before: &[SegmentInfo], bytes: u64, stream: u64, address: u64) -> Result<(), Broken> {
        let size = self.rules.rounded(bytes);
        let runs = self.model.free_at_search(before, &self.device.witness());
        let expected = best(&runs, &self.rules, size, stream);
        let asked = self.core.observer()[self.followed..].iter().find(|entry| entry.action == TraceAction::SegmentAlloc);
        if let Some(whole) = expected.map(|run| run.size).or(asked.map(|segment| segment.size)) {
            let segments = self.core.segments();
            let block = segments.iter().flat_map(|segment| &segment.blocks).find(|block| block.address.get() == address);
            let right = self.rules.cut(whole, size);
            ensure(Law::Placement, block.is_some_and(|block| block.size.get() == right), || {
                format!(
                    "a request for {bytes} bytes from a block of {whole} bytes should have taken {right} bytes, but took \
                         {block:?}"
                )
            })?;
        }
        match (expected, asked) {
            (Some(run), None) => ensure(Law::Placement, run.address == address, || {
                format!("{bytes} bytes were placed at {address:#x}, but the best place was {run:x?}")
            }),
            (Some(run), Some(segment)) => Err(Broken::new(
                Law::Placement,
                format!("a request for {bytes} bytes took the new {segment:?}, although {run:x?} would have served it"),
            )),
            (None, Some(segment)) => {
                ensure(Law::Placement, segment.address == address, || {
                    format!("{bytes} bytes were placed at {address:#x}, not in the new {segment:?}")
                })?;
                let right = self.rules.segment(size);
                ensure(Law::Placement, segment.size == right, || {
                    format!("a request for {bytes} bytes took {segment:?}, which should have been {right} bytes")
                })
            }
            (None, None) => Err(Broken::new(
                Law::Placement,
                format!("{bytes} bytes were placed at {address:#x}, where no free memory could serve them"),
            )),
        }
    }

    /// Checks that a refused request was refused rightly: no free memory could have served it, everything that can be
    /// released has been released, and the limit or the device still leaves no room for its segment.
    pub(super) fn check_out_of_memory(&self, before: &[SegmentInfo], bytes: u64, stream: u64) -> Result<(), Broken> {
        let size = self.rules.rounded(bytes);
        let runs = self.model.free_at_search(before, &self.device.witness());
        if let Some(run) = best(&runs, &self.rules, size, stream) {
            return Err(Broken::new(
                Law::NoFalseOutOfMemory,
                format!("a request for {bytes} bytes was refused, although {run:x?} would have served it"),
            ));
        }
        let segments = self.core.segments();
        for segment in &segments {
            let pending = segment.blocks.iter().find(|block| block.state == BlockActivity::PendingFree);
            ensure(Law::NoFalseOutOfMemory, pending.is_none(), || {
                format!("a request for {bytes} bytes was refused without waiting for {pending:?}")
            })?;
            let used = segment.blocks.iter().any(|block| block.state == BlockActivity::Allocated);
            ensure(Law::NoFalseOutOfMemory, used, || {
                format!("a request for {bytes} bytes was refused, but {segment:?} was not released")
            })?;
        }
        let wanted = self.rules.segment(size);
        let reserved: u64 = segments.iter().map(|segment| segment.total.get()).sum();
        let over_limit = self.limit.is_some_and(|limit| reserved + wanted > limit);
        if over_limit {
            return Ok(());
        }
        if !self.facts.remaps_pages {
            // Free memory can be too fragmented. Only the device knows that, so it must have refused after everything
            // else was released.
            let asked = self.made_calls().into_iter().rfind(|call| call.name == CallName::Malloc);
            let is_refused = asked.is_some_and(|call| call.bytes == wanted && !call.done);
            return ensure(Law::NoFalseOutOfMemory, is_refused, || {
                format!(
                    "a request for {bytes} bytes was refused, but the device was not asked for a segment of {wanted} bytes at \
                     the end: \
                     {asked:?}"
                )
            });
        }
        let room = self.room(&segments);
        ensure(Law::NoFalseOutOfMemory, wanted.div_ceil(self.facts.page.get()) > room, || {
            let limit = self.limit;
            format!(
                "a request for {bytes} bytes was refused, although a segment of {wanted} bytes fits: {reserved} reserved, limit \
                 {limit:?}, \
                 {room} pages free"
            )
        })
    }

    /// Returns the number of pages that the device could still supply: calculated independently of the device's own
    /// accounts for a simulated device, as reported by the device for a real one.
    fn room(&self, segments: &[SegmentInfo]) -> u64 {
        let page = self.facts.page.get();
        let mut device = self.device.steer();
        if device.insight().is_some() {
            let taken: u64 = segments.iter().map(|segment| segment.total.get().div_ceil(page)).sum();
            return (self.setup.capacity.saturating_sub(self.others_hold) / page).saturating_sub(taken);
        }
        let free = device.memory_info().map_or(Bytes::ZERO, |info| info.free);
        free.saturating_sub(device.withheld_bytes()).get() / page
    }

    /// Checks that a served request was served from the pool it was routed to, or from one that serves when memory runs
    /// out, and was split as that pool splits.
    pub(super) fn check_pool(&self, before: &[SegmentInfo], bytes: u64, stream: StreamId, address: u64) -> Result<(), Broken> {
        let (served, is_borrowed) = self.routing.check_served(&self.core.observer()[self.followed..], bytes, stream)?;
        let segments = self.core.segments();
        let Some(segment) = segments.iter().find(|segment| segment.blocks.iter().any(|block| block.address.get() == address))
        else {
            return Ok(());
        };
        ensure(Law::Pools, !is_borrowed || !segment.expandable, || {
            format!("pool {served} served a request of the default pool from an expandable segment: {segment:?}")
        })?;
        let mut blocks = segment.blocks.iter().skip_while(|block| block.address.get() != address);
        let size = blocks.next().map_or(0, |block| block.size.get());
        if self.routing.is_whole(served) {
            let rest = blocks.next().filter(|next| next.state == BlockActivity::Inactive);
            return ensure(Law::Pools, rest.is_none(), || {
                format!("pool {served} must not split blocks, but a request for {bytes} bytes split off {rest:?}")
            });
        }
        let right = Rules::default().rounded(bytes);
        let is_exact = !self.expandable || is_borrowed || size == right;
        ensure(Law::Placement, is_exact, || {
            format!("a request for {bytes} bytes took {size} bytes from an expandable segment, expected {right}")
        })?;
        let pool = if served == 0 { PoolId::DEFAULT } else { id(served) };
        self.check_growth(before, (pool, stream), right, address)
    }

    /// Checks a request that the default pool refused: none of the pools that serve when memory runs out had room (spec
    /// 5.6).
    pub(super) fn check_nobody_serves(&self, before: &[SegmentInfo], bytes: u64, stream: StreamId) -> Result<(), Broken> {
        if self.routing.pool_for(stream) != 0 {
            return Ok(());
        }
        let size = self.rules.rounded(bytes);
        for pool in self.routing.serving() {
            let mut own = before.to_vec();
            own.retain(|segment| segment.pool == id(pool) && !segment.expandable);
            let runs = self.model.free_at_search(&own, &self.device.witness());
            let run = best(&runs, &self.rules, size, stream.get());
            ensure(Law::NoFalseOutOfMemory, run.is_none(), || {
                format!("a request for {bytes} bytes was refused, although pool {pool} has {run:x?}")
            })?;
        }
        Ok(())
    }

    /// Checks the memory mapped for a request that was served at the first attempt. `before` contains the segments
    /// before the request; `size` is the block's size.
    fn check_growth(
        &self,
        before: &[SegmentInfo],
        (pool, stream): (PoolId, StreamId),
        size: u64,
        address: u64,
    ) -> Result<(), Broken> {
        let entries = &self.core.observer()[self.followed..];
        let maps = entries.iter().filter(|entry| entry.action == TraceAction::SegmentMap);
        let mapped: Vec<(u64, u64)> = maps.map(|entry| (entry.address, entry.size)).collect();
        let was_refused = entries.iter().any(|entry| entry.action == TraceAction::SegmentUnmap)
            || self.core.stats().num_alloc_retries > self.retries_before;
        if was_refused || mapped.is_empty() {
            return Ok(());
        }
        let page = if Rules::is_large(size) { self.rules.large_segment } else { 2 << 20 };
        let sum = mapped.iter().map(|&(_, bytes)| bytes).sum::<u64>();
        ensure(Law::Placement, sum < size + page, || {
            format!("more pages of {page} bytes were mapped than {size} bytes need: {mapped:x?}")
        })?;
        let piecemeal = mapped.windows(2).find(|pair| pair[0].0 + pair[0].1 == pair[1].0);
        ensure(Law::Placement, piecemeal.is_none(), || format!("a gap was mapped in two pieces: {piecemeal:x?}"))?;
        let Some(ranges) = self.ranges(before, pool, stream, Rules::is_large(size)) else { return Ok(()) };
        let expected = ranges.iter().find_map(|range| place(range, size));
        let is_new = self.made_calls().iter().any(|made| made.name == CallName::AddressReserve);
        let is_right = expected.map_or(is_new, |expected| expected == address);
        ensure(Law::Placement, is_right, || {
            format!("{size} bytes were placed at {address:#x}, but the lowest possible address was {expected:x?}")
        })
    }

    /// Returns the reserved ranges of a pool and stream, each as its stretches. Returns `None` if a range's pool or
    /// stream is unknown, or if it is unknown whether a block is free.
    fn ranges(&self, before: &[SegmentInfo], pool: PoolId, stream: StreamId, large: bool) -> Option<Vec<Vec<Stretch>>> {
        let witness = self.device.witness();
        let runs: BTreeMap<u64, &SegmentInfo> =
            before.iter().filter(|run| run.expandable).map(|run| (run.address.get(), run)).collect();
        let is_own = |run: &SegmentInfo| run.pool == pool && run.stream == stream && (run.class.name() == "large") == large;
        let mut ranges = Vec::new();
        for (start, bytes) in self.ranges_before.iter().map(|(&start, &bytes)| (start, bytes)) {
            let inside: Vec<&SegmentInfo> = runs.range(start..start + bytes).map(|(_, run)| *run).collect();
            if !is_own(inside.first()?) {
                continue;
            }
            let (mut stretches, mut end) = (Vec::new(), start);
            let gap = |from, to| Stretch { address: from, size: to - from, is_usable: true, has_memory: false };
            for block in inside.iter().flat_map(|run| &run.blocks) {
                let (address, size) = (block.address.get(), block.size.get());
                if end < address {
                    stretches.push(gap(end, address));
                }
                let is_usable = match block.state {
                    BlockActivity::Inactive => true,
                    BlockActivity::Allocated => false,
                    BlockActivity::PendingFree if self.model.was_uncertain(address, &witness) => return None,
                    BlockActivity::PendingFree if self.model.leaving.iter().any(|leaving| leaving.address == address) => {
                        self.model.was_known_done(address, &witness)
                    }
                    BlockActivity::PendingFree => return None,
                };
                stretches.push(Stretch { address, size, is_usable, has_memory: true });
                end = address + size;
            }
            if end < start + bytes {
                stretches.push(gap(end, start + bytes));
            }
            ranges.push(stretches);
        }
        Some(ranges)
    }

    /// This must be called before a request; `segments` is the state of the heap at that point.
    pub(super) fn before_request(&mut self, segments: Vec<SegmentInfo>, bytes: u64) -> Before {
        if self.limit.is_some() && self.rules.collection_hundredths > 0 && Rules::is_large(self.rules.rounded(bytes)) {
            self.ages.searches += 1;
        }
        let stats = self.core.stats();
        Before { segments, syncs: stats.num_sync_all_streams, retries: stats.num_alloc_retries }
    }

    /// Checks that the request followed the rules, rung by rung. The check does not predict the room on a real device.
    pub(super) fn check_ladder(&self, before: &Before, bytes: u64, stream: u64, is_served: bool) -> Result<(), Broken> {
        if self.device.steer().insight().is_none() {
            return Ok(());
        }
        let size = self.rules.rounded(bytes);
        let runs = self.model.free_at_search(&before.segments, &self.device.witness());
        let expected = match best(&runs, &self.rules, size, stream) {
            Some(_) => Climb { served: true, ..Climb::default() },
            None => self.ladder(&before.segments, size, stream).climb(),
        };
        let entries = &self.core.observer()[self.followed..];
        let freed = entries.iter().filter(|entry| entry.action == TraceAction::SegmentFree);
        let stats = self.core.stats();
        let waits = (stats.num_sync_all_streams - before.syncs, stats.num_alloc_retries - before.retries);
        let seen = Climb {
            given_back: freed.map(|entry| entry.address).collect::<BTreeSet<u64>>(),
            asked: self.made_calls().iter().filter(|call| call.name == CallName::Malloc).count(),
            waited: waits == (1, 1),
            served: is_served,
        };
        let counts = waits == (0, 0) || waits == (1, 1);
        ensure(Law::Ladder, counts, || {
            format!("a request for {bytes} bytes caused {waits:?} waits and retries; there must be none, or one of each")
        })?;
        ensure(Law::Ladder, seen == expected, || {
            format!("a request for {bytes} bytes caused {seen:x?}, but the rules require {expected:x?}")
        })
    }

    fn ladder(&self, segments: &[SegmentInfo], size: u64, stream: u64) -> Ladder {
        let witness = self.device.witness();
        let is_done = |address: u64| self.model.was_known_done(address, &witness);
        let candidates = segments.iter().map(|segment| {
            let is_free = |waits: bool| {
                segment.blocks.iter().all(|block| match block.state {
                    BlockActivity::Inactive => true,
                    BlockActivity::Allocated => false,
                    BlockActivity::PendingFree => waits || is_done(block.address.get()),
                })
            };
            Candidate {
                address: segment.address.get(),
                size: segment.total.get(),
                stream: segment.stream.get(),
                large: segment.class == PoolClass::Large,
                is_free: is_free(false),
                is_free_after_waiting: is_free(true),
                age: self.ages.of(segment.address.get()),
            }
        });
        let page = self.facts.page.get();
        let taken: u64 = segments.iter().map(|segment| segment.total.get().div_ceil(page)).sum();
        let given = (self.setup.capacity as i64 - self.others_hold as i64).div_euclid(page as i64);
        Ladder {
            rules: self.rules,
            size,
            stream,
            limit: self.limit,
            room_pages: given - taken as i64,
            segments: candidates.collect(),
        }
    }
}

/// Returns the lowest start with enough room: at a gap, or in the free memory directly before it.
fn place(stretches: &[Stretch], size: u64) -> Option<u64> {
    (0..stretches.len()).filter(|&gap| !stretches[gap].has_memory).find_map(|gap| {
        let is_free = |stretch: &&Stretch| stretch.is_usable && stretch.has_memory;
        let before = stretches[..gap].iter().rev().take_while(is_free).count();
        let room: u64 =
            stretches[gap - before..].iter().take_while(|stretch| stretch.is_usable).map(|stretch| stretch.size).sum();
        (room >= size).then_some(stretches[gap - before].address)
    })
}
