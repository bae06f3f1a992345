//! Sums that must agree: reserved bytes broken down by use, and the statistics.
//!
//! [`Ledger`] covers all statistics, but not their exact peaks: sums only grow, peaks only rise, and allocated minus freed equals
//! current. [`Recount`] computes those that follow exactly from a trace a second time: of allocations, active blocks, their bytes,
//! and the bytes taken from the device, each current value, sum and peak must equal the allocator's.

use std::collections::BTreeMap;

use parkade::snapshot::{BlockActivity, BlockInfo, SegmentInfo};
use parkade::stats::{Family, Stat, Stats};
use parkade::trace::{TraceAction, TraceEntry};

use crate::law::{Broken, Law, ensure};

/// Reserved bytes, broken down by use.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Account {
    /// Bytes that callers have requested and hold.
    live: u64,
    /// Bytes that callers hold but have not requested.
    rounding: u64,
    /// Freed bytes that are waiting for events.
    pending: u64,
    /// The requested part of the pending bytes.
    pending_requested: u64,
    /// Free bytes in segments that are partly in use.
    inactive_split: u64,
    /// Bytes of entirely free segments.
    whole: u64,
    /// Free bytes of expandable segments, whose whole pages can be released.
    expandable: u64,
    /// The number of blocks that are live or pending.
    active_blocks: u64,
    /// The number of free blocks in segments that are partly in use.
    split_blocks: u64,
}

impl Account {
    pub(crate) fn of(segments: &[SegmentInfo]) -> Account {
        let mut account = Account::default();
        for segment in segments {
            for block in &segment.blocks {
                account.add(block, segment);
            }
        }
        account
    }

    fn add(&mut self, block: &BlockInfo, segment: &SegmentInfo) {
        let (size, requested) = (block.size.get(), block.requested.get());
        self.active_blocks += u64::from(block.state != BlockActivity::Inactive);
        match block.state {
            BlockActivity::Allocated => {
                self.live += requested;
                self.rounding += size - requested;
            }
            BlockActivity::PendingFree => {
                self.pending += size;
                self.pending_requested += requested;
            }
            // Not counted as split (spec 6.2).
            BlockActivity::Inactive if segment.expandable => self.expandable += size,
            BlockActivity::Inactive if segment.blocks.len() == 1 => self.whole += size,
            BlockActivity::Inactive => {
                self.inactive_split += size;
                self.split_blocks += 1;
            }
        }
    }

    pub(crate) fn sum(&self) -> u64 {
        self.live + self.rounding + self.pending + self.inactive_split + self.whole + self.expandable
    }

    /// The values that the statistics must report.
    pub(crate) fn by_family(&self) -> [(Family, u64); 7] {
        [
            (Family::ReservedBytes, self.sum()),
            (Family::AllocatedBytes, self.live + self.rounding),
            (Family::ActiveBytes, self.live + self.rounding + self.pending),
            (Family::RequestedBytes, self.live + self.pending_requested),
            (Family::InactiveSplitBytes, self.inactive_split),
            (Family::Active, self.active_blocks),
            (Family::InactiveSplit, self.split_blocks),
        ]
    }
}

/// One statistic, as last seen.
#[derive(Clone, Copy, Default, Debug)]
struct Line {
    last: Stat,
    /// The current value when the sums were last reset.
    base: i64,
}

/// The number of statistics: three for each family, and two for oversize blocks.
const STATS: usize = 3 * Family::ALL.len() + 2;

/// All statistics, as last seen.
#[derive(Clone, Default, Debug)]
pub(crate) struct Ledger {
    lines: [Line; STATS],
    segments_at_reset: i64,
    peaks_reset: bool,
    sums_reset: bool,
    /// Trace entries since the sums were last reset: memory taken, memory released and requests refused.
    told: [i64; 3],
}

/// Returns all statistics: for each family the one for all memory, for small and for large pools, then those for oversize
/// blocks.
fn all(stats: &Stats) -> [Stat; STATS] {
    let mut all = [Stat::default(); STATS];
    let (by_family, oversize) = all.as_chunks_mut::<3>();
    for (levels, family) in by_family.iter_mut().zip(Family::ALL) {
        *levels = stats.family(family).levels().map(|(_, stat)| *stat);
    }
    oversize.copy_from_slice(&stats.oversize().map(|(_, stat)| *stat));
    all
}

impl Ledger {
    pub(crate) fn peaks_were_reset(&mut self) {
        self.peaks_reset = true;
    }

    pub(crate) fn sums_were_reset(&mut self, stats: &Stats) {
        self.sums_reset = true;
        self.segments_at_reset = stats.family(Family::Segment).all.current;
        self.told = [0; 3];
    }

    /// Counts the entries that the allocator also counts.
    pub(crate) fn follow(&mut self, entry: &TraceEntry) {
        let place = match entry.action {
            TraceAction::SegmentAlloc | TraceAction::SegmentMap => 0,
            TraceAction::SegmentFree | TraceAction::SegmentUnmap => 1,
            TraceAction::Oom => 2,
            _ => return,
        };
        self.told[place] += 1;
    }

    pub(crate) fn check(&mut self, stats: &Stats, is_virtual: bool) -> Result<(), Broken> {
        let all = all(stats);
        for (line, stat) in self.lines.iter_mut().zip(all) {
            let Line { last, base } = *line;
            if self.sums_reset {
                line.base = stat.current;
                ensure(Law::Counters, stat.allocated == 0 && stat.freed == 0, || {
                    format!("the sums are not 0 after a reset: {stat:?}")
                })?;
            } else {
                ensure(Law::Counters, stat.allocated - stat.freed + base == stat.current, || {
                    format!("{stat:?} does not add up, starting from {base}")
                })?;
                let grew = stat.allocated >= last.allocated && stat.freed >= last.freed;
                ensure(Law::Counters, grew, || format!("a sum decreased from {last:?} to {stat:?}"))?;
            }
            ensure(Law::Counters, stat.peak >= stat.current, || format!("the peak is below the current value: {stat:?}"))?;
            if self.peaks_reset {
                ensure(Law::Counters, stat.peak == stat.current, || {
                    format!("after a reset, a peak differs from the current value: {stat:?}")
                })?;
            } else {
                ensure(Law::Counters, stat.peak >= last.peak, || {
                    format!("a peak decreased without a reset, from {last:?} to {stat:?}")
                })?;
            }
            line.last = stat;
        }
        if self.sums_reset {
            let left = stats.scalars().into_iter().find(|&(name, value)| name != "max_split_size" && value != 0);
            ensure(Law::Counters, left.is_none(), || format!("the sums are not 0 after a reset: {left:?}"))?;
        }
        (self.peaks_reset, self.sums_reset) = (false, false);
        // A rescued request has the entry of the failure that it was spared.
        let counted = [stats.num_device_alloc, stats.num_device_free, stats.num_ooms + stats.num_rescues];
        ensure(Law::Counters, counted == self.told, || {
            format!(
                "the statistics count {counted:?} segments taken, segments returned, and requests refused or rescued; the \
                     trace has {:?}",
                self.told
            )
        })?;
        let segments = stats.family(Family::Segment).all.current;
        // An expandable segment is counted once, no matter how often memory is mapped in it.
        let counted = if is_virtual { segments } else { stats.num_device_alloc - stats.num_device_free + self.segments_at_reset };
        ensure(Law::Counters, segments == counted, || {
            format!("there are {segments} segments, but the driver calls add up to {counted}")
        })?;
        for (levels, family) in all.as_chunks::<3>().0.iter().zip(Family::ALL) {
            let [all, small, large] = levels.map(|stat| [stat.current, stat.allocated, stat.freed]);
            let agree = (0..3).all(|value| small[value] + large[value] == all[value]);
            ensure(Law::Counters, agree, || format!("the pools do not add up to the total of {}: {levels:?}", family.name()))?;
        }
        Ok(())
    }
}

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
