//! Computes statistics a second time, from the trace: each current value, sum and peak must equal the allocator's.
//!
//! This covers the statistics that follow exactly from a trace: allocations, active blocks, their bytes, and the bytes taken from
//! the device. The checks in [`accounts`](super::accounts) cover all statistics, but not their exact peaks.

use std::collections::BTreeMap;

use parkade::snapshot::{BlockActivity, SegmentInfo};
use parkade::stats::{Family, Stat, Stats};
use parkade::trace::{TraceAction, TraceEntry};

use crate::law::{Broken, Law, ensure};

/// The statistics that are computed.
const COUNTED: [Family; 6] = [
    Family::Allocation,
    Family::Active,
    Family::AllocatedBytes,
    Family::ActiveBytes,
    Family::RequestedBytes,
    Family::ReservedBytes,
];

/// The statistics according to the trace.
#[derive(Clone, Default, Debug)]
pub(crate) struct Recount {
    counted: [Stat; COUNTED.len()],
    /// The size and the requested bytes of each active block, by address.
    active: BTreeMap<u64, (i64, i64)>,
    /// Whether the current step restores a pool, which the trace does not fully show.
    is_blind: bool,
}

impl Recount {
    /// Skips the current step: its trace does not show everything.
    pub(crate) fn skip(&mut self) {
        self.is_blind = true;
    }

    pub(crate) fn peaks_were_reset(&mut self) {
        self.counted.iter_mut().for_each(|stat| stat.peak = stat.current);
    }

    pub(crate) fn sums_were_reset(&mut self) {
        self.counted.iter_mut().for_each(|stat| (stat.allocated, stat.freed) = (0, 0));
    }

    fn change(&mut self, family: Family, amount: i64) {
        let place = COUNTED.iter().position(|&counted| counted == family).unwrap_or(0);
        let stat = &mut self.counted[place];
        stat.current += amount;
        if amount > 0 {
            stat.allocated += amount;
        } else {
            stat.freed -= amount;
        }
        stat.peak = stat.peak.max(stat.current);
    }

    /// Counts an entry of the current step. The segments are those at the end of the step.
    pub(crate) fn follow(&mut self, entry: &TraceEntry, segments: &[SegmentInfo]) {
        let (address, size) = (entry.address, entry.size as i64);
        match entry.action {
            TraceAction::Alloc => {
                let blocks = segments.iter().flat_map(|segment| &segment.blocks);
                let mut own = blocks.filter(|block| block.address.get() == address && block.state == BlockActivity::Allocated);
                let Some(block) = own.next() else { return self.skip() };
                let bytes = block.size.get() as i64;
                self.active.insert(address, (bytes, size));
                let changes = [(Family::Allocation, 1), (Family::Active, 1), (Family::AllocatedBytes, bytes)];
                changes.into_iter().for_each(|(family, amount)| self.change(family, amount));
                self.change(Family::ActiveBytes, bytes);
                self.change(Family::RequestedBytes, size);
            }
            TraceAction::FreeRequested => {
                let bytes = self.active.get(&address).map_or(0, |&(bytes, _)| bytes);
                self.change(Family::Allocation, -1);
                self.change(Family::AllocatedBytes, -bytes);
            }
            TraceAction::FreeCompleted => {
                let (bytes, requested) = self.active.remove(&address).unwrap_or_default();
                self.change(Family::Active, -1);
                self.change(Family::ActiveBytes, -bytes);
                self.change(Family::RequestedBytes, -requested);
            }
            TraceAction::SegmentAlloc | TraceAction::SegmentMap => self.change(Family::ReservedBytes, size),
            TraceAction::SegmentFree | TraceAction::SegmentUnmap => self.change(Family::ReservedBytes, -size),
            TraceAction::Oom | TraceAction::Snapshot => {}
        }
    }

    /// Checks the statistics after a step.
    ///
    /// # Errors
    /// If a statistic differs from the computed one.
    pub(crate) fn check(&mut self, stats: &Stats, segments: &[SegmentInfo]) -> Result<(), Broken> {
        if std::mem::take(&mut self.is_blind) {
            let is_active = |state| matches!(state, BlockActivity::Allocated | BlockActivity::PendingFree);
            let blocks = segments.iter().flat_map(|segment| &segment.blocks).filter(|block| is_active(block.state));
            let sizes = blocks.map(|block| (block.address.get(), (block.size.get() as i64, block.requested.get() as i64)));
            self.active = sizes.collect();
            self.counted = COUNTED.map(|family| stats.family(family).all);
            return Ok(());
        }
        for (family, counted) in COUNTED.into_iter().zip(self.counted) {
            let stat = stats.family(family).all;
            ensure(Law::Counters, stat == counted, || {
                format!("{} is {stat:?}, but the trace adds up to {counted:?}", family.name())
            })?;
        }
        Ok(())
    }
}
