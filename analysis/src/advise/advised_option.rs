//! One setting and its outcome on every device.

use parkade::settings::Settings;

use super::candidates::keys;
use super::evaluate::DeviceOutcome;
use crate::caution::Caution;

/// One setting and its outcome.
#[derive(Clone, Debug)]
pub struct AdvisedOption {
    /// The settings.
    pub settings: Settings,
    /// They are the recorded run's own.
    pub is_own: bool,
    /// The caller asked for them.
    pub is_given: bool,
    /// What they may break in this program.
    pub cautions: Vec<Caution>,
    /// The bytes that may be reserved under them, if known.
    pub available_bytes: Option<u64>,
    /// Each device's outcome.
    pub devices: Vec<DeviceOutcome>,
}

impl AdvisedOption {
    /// Whether every request of every device is served.
    #[must_use]
    pub fn fits(&self) -> bool {
        self.devices.iter().all(DeviceOutcome::fits)
    }

    /// Whether every recorded request of every device is served, those of which programs died included. [`fits`](Self::fits) asks for more
    /// if a program died: what is estimated of its rest is served too.
    #[must_use]
    pub fn gets_past(&self) -> bool {
        self.devices.iter().all(|device| device.gets_past)
    }

    /// The recorded entry of the first request that is out of memory, on the first device that has one.
    #[must_use]
    pub fn fails_at_entry(&self) -> Option<usize> {
        self.devices.iter().find_map(DeviceOutcome::fails_at_entry)
    }

    /// How many requests are out of memory.
    #[must_use]
    pub fn ooms(&self) -> i64 {
        self.devices.iter().map(|device| device.prediction.stats.num_ooms).sum()
    }

    /// Whether it does not fit, but only requests fail that a library may do without.
    #[must_use]
    pub fn may_survive(&self) -> bool {
        !self.fits() && self.devices.iter().all(|device| device.fits() || device.may_survive)
    }

    /// The peak of reserved bytes, on the device where it is highest.
    #[must_use]
    pub fn peak_reserved_bytes(&self) -> i64 {
        self.devices.iter().map(|device| device.prediction.peak_reserved_bytes()).max().unwrap_or(0)
    }

    /// The smallest memory found in which every request of every device is served. A run in this size was made, and so was one that
    /// failed at most 0.1 % or 2 MiB below it. If the memory there is was too small, larger sizes were searched, else smaller ones.
    #[must_use]
    pub fn smallest_capacity_bytes(&self) -> u64 {
        let smallest = self.devices.iter().map(|device| device.smallest_bytes).max().unwrap_or(0);
        let fraction = self.settings.per_process_memory_fraction;
        if fraction > 0.0 && fraction < 1.0 { (smallest as f64 / fraction).ceil() as u64 } else { smallest }
    }

    /// How often the whole cache was released because memory was short (`num_alloc_retries`).
    #[must_use]
    pub fn retries(&self) -> i64 {
        self.devices.iter().map(|device| device.prediction.stats.num_alloc_retries).sum()
    }

    /// How many driver calls allocate, map, unmap or free memory.
    #[must_use]
    pub fn driver_calls(&self) -> u64 {
        self.devices.iter().map(|device| device.prediction.driver_calls).sum()
    }

    /// What they cost on the measured device, in microseconds.
    #[must_use]
    pub fn driver_us(&self) -> u64 {
        self.devices.iter().map(|device| device.prediction.driver_ns / 1000).sum()
    }

    /// The memory that is still unreserved at the peak. Negative if the last page of an expandable segment exceeds the limit.
    #[must_use]
    pub fn headroom_bytes(&self) -> Option<i64> {
        Some(i64::try_from(self.available_bytes?).unwrap_or(i64::MAX).saturating_sub(self.peak_reserved_bytes()))
    }

    /// Whether more is reserved than there is: a limit lets the last page of an expandable segment exceed it, a device does not.
    pub(super) fn reaches_beyond(&self) -> bool {
        self.headroom_bytes().is_some_and(|headroom| headroom < 0)
    }

    /// Whether 1 % more or less memory could change the answer.
    #[must_use]
    pub fn is_close(&self) -> bool {
        if self.fits() && self.reaches_beyond() {
            return true;
        }
        let smallest = self.devices.iter().map(|device| device.smallest_bytes).max().unwrap_or(0);
        self.available_bytes.is_some_and(|available| available.abs_diff(smallest) < available / 100)
    }

    /// How many keys the settings set, of those that are searched.
    #[must_use]
    pub fn keys(&self) -> usize {
        keys(&self.settings)
    }

    /// Whether a part of the settings works only under a memory limit.
    #[must_use]
    pub fn needs_limit(&self) -> bool {
        self.settings.garbage_collection_threshold > 0.0
    }

    /// The cautions about something that the recording shows in use.
    pub fn warnings(&self) -> impl Iterator<Item = &Caution> {
        self.cautions.iter().filter(|caution| caution.needs_warning())
    }

    /// Whether there are any [`warnings`](Self::warnings).
    #[must_use]
    pub fn has_warnings(&self) -> bool {
        self.warnings().next().is_some()
    }

    /// Sorts the most useful options first: those that fit, without warnings, in the least memory, with the fewest keys.
    pub(super) fn rank(&self) -> (bool, bool, u64, usize, u64) {
        (!self.fits(), self.has_warnings(), self.smallest_capacity_bytes(), self.keys(), self.driver_us())
    }
}
