//! The laws that hold between steps under any policy: every byte is accounted for exactly once, and the statistics agree.

use parkade::PoolSlot;
use parkade::policy::Policy;
use parkade::snapshot::SegmentInfo;
use parkade::stats::Family;
use parkade::units::PoolClass;

use super::Trial;
use crate::backend::TestDevice;
use crate::checks::laws_pytorch::trial::Account;
use crate::law::{Broken, Law, ensure};

impl Trial {
    /// Checks every law that holds between steps.
    ///
    /// # Errors
    /// The first broken law.
    pub(super) fn check(&mut self) -> Result<(), Broken> {
        self.core.check().map_err(|violation| Broken::new(Law::Sweep, violation))?;
        let segments = self.core.segments();
        self.check_pools(&segments)?;
        for entry in &self.core.observer()[self.followed..] {
            self.history.follow(entry)?;
            self.ledger.follow(entry);
        }
        self.followed = self.core.observer().len();
        self.book.check(&segments, &self.device.witness())?;
        self.check_merged(&segments)?;
        self.check_accounts(&segments)?;
        self.check_device(&segments)?;
        self.ledger.check(self.core.stats(), self.may_expand())?;
        self.check_races()?;
        self.reserved_before = self.core.heap().reserved().get();
        Ok(())
    }

    /// Whether memory may come from expandable segments.
    pub(super) fn may_expand(&self) -> bool {
        let classes = [PoolClass::Small, PoolClass::Large];
        self.expected.wrong_answers
            || classes.into_iter().any(|class| self.core.policy().is_expandable(PoolSlot::default_pool(class)))
    }

    /// Reserved bytes are the sum of live, rounding, pending, inactive split and whole, and each statistic agrees with its part.
    fn check_accounts(&self, segments: &[SegmentInfo]) -> Result<(), Broken> {
        let account = Account::of(segments);
        let current = |family| u64::try_from(self.core.stats().family(family).all.current).unwrap_or(u64::MAX);
        for (family, counted) in account.by_family().into_iter().chain([(Family::Allocation, self.book.live.len() as u64)]) {
            ensure(Law::Accounting, current(family) == counted, || {
                format!("{} is {}, but {counted} was counted: {account:?}", family.name(), current(family))
            })?;
        }
        let reserved = self.core.heap().reserved().get();
        ensure(Law::Accounting, reserved == account.sum(), || {
            format!("{reserved} bytes are reserved, but the account is {account:?}")
        })?;
        // A lowered limit applies only to later growth. Expandable segments map whole pages for what the limit allowed.
        let page = |class| self.core.policy().page(PoolSlot::default_pool(class)).get();
        let slack = if self.may_expand() { page(PoolClass::Small).max(page(PoolClass::Large)) } else { 0 };
        let grew = reserved > self.reserved_before && !self.expected.wrong_answers;
        let limit = self.core.heap().limit();
        let kept = !grew || limit.is_none_or(|limit| reserved <= limit.get() + slack);
        ensure(Law::Limit, kept, || format!("{reserved} bytes are reserved, and the limit is {limit:?}"))
    }

    /// The ordinary segments are exactly the device's live ranges.
    fn check_device(&self, segments: &[SegmentInfo]) -> Result<(), Broken> {
        let page = self.page.get();
        let device = self.device.look();
        let ranges: Vec<(u64, u64)> = device.live_ranges().iter().map(|(address, bytes)| (address.get(), bytes.get())).collect();
        let ordinary: Vec<&SegmentInfo> = segments.iter().filter(|segment| !segment.expandable).collect();
        let same = ranges.len() == ordinary.len()
            && ranges.iter().zip(&ordinary).all(|(range, segment)| {
                // The device gives whole pages.
                range.0 == segment.address.get() && segment.total.get() <= range.1 && range.1 - segment.total.get() < page
            });
        ensure(Law::Accounting, same, || format!("the device's ranges are {ranges:x?}, the segments {ordinary:x?}"))?;
        drop(device);
        // After a failure memory may wait to be given back.
        let mut device = self.device.steer();
        // Ranges of less than a page share one.
        let has_whole_pages = ranges.iter().all(|(_, bytes)| bytes.is_multiple_of(page));
        let is_exact = has_whole_pages && self.expected.nothing();
        let Some(device) = device.insight().filter(|_| is_exact) else { return Ok(()) };
        let rounded: u64 = ranges.iter().map(|(_, bytes)| bytes).sum();
        let mapped: u64 = segments.iter().filter(|segment| segment.expandable).map(|segment| segment.total.get()).sum();
        let used = device.used_bytes().get();
        ensure(Law::Accounting, used == rounded + mapped, || {
            format!("the device gave {used} bytes, ranges have {rounded} and {mapped} are mapped")
        })
    }

    /// The program waits wherever it must, so any race means that memory was reused or unmapped too early.
    pub(super) fn check_races(&self) -> Result<(), Broken> {
        let mut device = self.device.steer();
        let race = device.insight().and_then(|device| device.races().first().map(ToString::to_string));
        ensure(Law::NoEarlyReuse, race.is_none(), || race.unwrap_or_default())
    }
}
