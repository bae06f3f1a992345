//! The growth rule: an expandable segment grows at its lowest possible address, by exactly the missing pages (spec 4.2, 4.3).

use std::collections::BTreeMap;

use parkade::snapshot::{BlockActivity, SegmentInfo};
use parkade::trace::TraceAction;
use parkade::units::{PoolId, StreamId};
use parkade_sim::CallName;

use super::Trial;
use crate::law::{Broken, Law, ensure};
use crate::reference_model::Rules;

/// A stretch of a reserved range.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    address: u64,
    size: u64,
    is_usable: bool,
    has_memory: bool,
}

impl Trial {
    /// Checks what was mapped for a request that was served at the first attempt: `before` are the segments before it, `size` is
    /// the block's size.
    pub(super) fn check_growth(
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
        ensure(Law::Placement, sum < size + page, || format!("{mapped:x?} were mapped for {size} bytes, in pages of {page}"))?;
        let piecemeal = mapped.windows(2).find(|pair| pair[0].0 + pair[0].1 == pair[1].0);
        ensure(Law::Placement, piecemeal.is_none(), || format!("a gap was mapped in two pieces: {piecemeal:x?}"))?;
        let Some(ranges) = self.ranges(before, pool, stream, Rules::is_large(size)) else { return Ok(()) };
        let expected = ranges.iter().find_map(|range| place(range, size));
        let is_new = self.made_calls().iter().any(|made| made.name == CallName::AddressReserve);
        let is_right = expected.map_or(is_new, |expected| expected == address);
        ensure(Law::Placement, is_right, || {
            format!("{size} bytes went to {address:#x}, but the lowest possible address was {expected:x?}")
        })
    }

    /// The reserved ranges of a pool and stream, each as its stretches; `None` if it is unknown which pool or stream a range
    /// belongs to, or whether a block is free.
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
}

/// The lowest start with enough room: at a gap, or in the free memory directly before it.
fn place(stretches: &[Stretch], size: u64) -> Option<u64> {
    (0..stretches.len()).filter(|&gap| !stretches[gap].has_memory).find_map(|gap| {
        let is_free = |stretch: &&Stretch| stretch.is_usable && stretch.has_memory;
        let before = stretches[..gap].iter().rev().take_while(is_free).count();
        let room: u64 =
            stretches[gap - before..].iter().take_while(|stretch| stretch.is_usable).map(|stretch| stretch.size).sum();
        (room >= size).then_some(stretches[gap - before].address)
    })
}
