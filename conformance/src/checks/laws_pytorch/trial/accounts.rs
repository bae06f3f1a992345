//! The laws that hold between operations: every byte is accounted for exactly once, and the statistics agree.

use parkade::snapshot::{BlockActivity, BlockInfo, SegmentInfo};
use parkade::stats::Family;
use parkade::units::Bytes;

use super::Trial;
use crate::backend::TestDevice;
use crate::law::{Broken, Law, ensure};

/// Reserved bytes by use.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Account {
    /// Bytes that callers requested and hold.
    live: u64,
    /// Bytes that callers hold but did not request.
    rounding: u64,
    /// Freed bytes that wait for events.
    pending: u64,
    /// The requested part of the pending bytes.
    pending_requested: u64,
    /// Free bytes in segments that are otherwise in use.
    inactive_split: u64,
    /// Bytes of entirely free segments.
    whole: u64,
    /// Free bytes of expandable segments, whose whole pages can be given back.
    expandable: u64,
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
            BlockActivity::Inactive => self.inactive_split += size,
        }
    }

    pub(crate) fn sum(&self) -> u64 {
        self.live + self.rounding + self.pending + self.inactive_split + self.whole + self.expandable
    }

    /// What the statistics must report.
    pub(crate) fn by_family(&self) -> [(Family, u64); 5] {
        [
            (Family::ReservedBytes, self.sum()),
            (Family::AllocatedBytes, self.live + self.rounding),
            (Family::ActiveBytes, self.live + self.rounding + self.pending),
            (Family::RequestedBytes, self.live + self.pending_requested),
            (Family::InactiveSplitBytes, self.inactive_split),
        ]
    }
}

impl Trial {
    /// Checks every law that holds between operations.
    ///
    /// # Errors
    /// The first broken law.
    pub fn check(&mut self) -> Result<(), Broken> {
        self.core.check().map_err(|violation| Broken::new(Law::Sweep, violation))?;
        for entry in &self.core.observer()[self.followed..] {
            self.history.follow(entry)?;
            self.ledger.follow(entry);
        }
        self.followed = self.core.observer().len();
        let segments = self.core.segments();
        self.model.check(&segments, &self.device.witness(), self.setup.is_virtual)?;
        check_coalesced(&segments)?;
        self.check_accounts(&segments)?;
        self.check_device(&segments)?;
        self.check_uses()?;
        self.ages.end_operation(&segments);
        self.ledger.check(self.core.stats(), self.setup.is_virtual)?;
        if !self.settings_changed && !self.setup.is_virtual {
            self.check_oversize(&segments)?;
        }
        Ok(())
    }

    /// Reserved bytes are the sum of live, rounding, pending, inactive split and whole, and each statistic agrees with its part.
    fn check_accounts(&self, segments: &[SegmentInfo]) -> Result<(), Broken> {
        let account = Account::of(segments);
        let current = |family| u64::try_from(self.core.stats().family(family).all.current).unwrap_or(u64::MAX);
        for (family, counted) in account.by_family().into_iter().chain([(Family::Allocation, self.model.live.len() as u64)]) {
            ensure(Law::Accounting, current(family) == counted, || {
                format!("{} is {}, but {counted} was counted: {account:?}", family.name(), current(family))
            })?;
        }
        let reserved = self.core.heap().reserved().get();
        ensure(Law::Accounting, reserved == account.sum(), || {
            format!("{reserved} bytes are reserved, but the account is {account:?}")
        })?;
        // A lowered limit applies only to later growth.
        let grew = reserved > self.reserved_before;
        // PyTorch checks the request against the limit, and then maps whole pages of up to 20 MiB (spec 4.4).
        let page = if self.setup.is_virtual { 20 << 20 } else { 0 };
        let kept = !grew || self.core.heap().limit().is_none_or(|limit| reserved <= limit.get() + page);
        ensure(Law::Limit, kept, || format!("{reserved} bytes are reserved, and the limit is {:?}", self.core.heap().limit()))
    }

    /// The ordinary segments are exactly the device's live ranges.
    fn check_device(&self, segments: &[SegmentInfo]) -> Result<(), Broken> {
        let page = self.facts.page.get();
        let device = self.device.look();
        let ranges: Vec<(u64, u64)> = device.live_ranges().iter().map(|(address, bytes)| (address.get(), bytes.get())).collect();
        let ordinary: Vec<&SegmentInfo> = segments.iter().filter(|segment| !segment.expandable).collect();
        let same = ranges.len() == ordinary.len()
            && ranges.iter().zip(&ordinary).all(|(range, segment)| {
                // The device gives whole pages.
                range.0 == segment.address.get() && segment.total.get() <= range.1 && range.1 - segment.total.get() < page
            });
        ensure(Law::Accounting, same, || format!("the device's ranges are {ranges:x?}, the segments {ordinary:x?}"))
    }

    /// The counts of oversize blocks and segments follow from the rules, which have not changed since the start.
    fn check_oversize(&self, segments: &[SegmentInfo]) -> Result<(), Broken> {
        let oversize = |size: Bytes| i64::from(self.rules.is_oversize(size.get()));
        let blocks = segments.iter().flat_map(|segment| &segment.blocks);
        let allocated = blocks.filter(|block| block.state == BlockActivity::Allocated);
        let counted = (
            allocated.map(|block| oversize(block.size)).sum::<i64>(),
            segments.iter().map(|segment| oversize(segment.total)).sum::<i64>(),
        );
        let stats = self.core.stats();
        let said = (stats.oversize_allocations.current, stats.oversize_segments.current);
        ensure(Law::Accounting, said == counted, || format!("the oversize counts are {said:?}, but {counted:?} were counted"))
    }
}

/// No two adjacent free blocks are left: they should have been merged.
fn check_coalesced(segments: &[SegmentInfo]) -> Result<(), Broken> {
    for segment in segments {
        let apart = segment.blocks.windows(2).find(|pair| pair.iter().all(|block| block.state == BlockActivity::Inactive));
        ensure(Law::Coalescing, apart.is_none(), || format!("adjacent free blocks: {apart:?}"))?;
    }
    Ok(())
}
