//! One setting and its outcome on every device.

use parkade::settings::Settings;

use super::candidates::keys;
use super::evaluate::DeviceOutcome;
use super::likely::LikelyRuns;
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
    /// The bytes that may be reserved under them, if known or assumed; the least of all devices.
    pub available_bytes: Option<u64>,
    /// Each device's outcome.
    pub devices: Vec<DeviceOutcome>,
    /// Of the recorded run's own settings and the best options: how likely runs fare, if the timing of streams matters.
    pub likely: Option<LikelyRuns>,
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

    /// On the device with the least: the memory that is still unreserved at the peak, or where requests fail, what is missing, as a negative
    /// number. `None` if no memory is known, or if it fails in more memory than is otherwise enough.
    #[must_use]
    pub fn headroom_bytes(&self) -> Option<i64> {
        let headrooms = self.devices.iter().filter(|device| self.fits() || !device.fits()).map(DeviceOutcome::headroom_bytes);
        headrooms.min().flatten().filter(|&headroom| self.fits() || headroom < 0)
    }

    /// Whether more is reserved than there is: a limit lets the last page of an expandable segment exceed it, a device does not.
    #[must_use]
    pub fn reaches_beyond(&self) -> bool {
        self.devices.iter().any(DeviceOutcome::reaches_beyond)
    }

    /// Whether 1 % more or less memory could change the answer, or the timing of streams that is likely.
    #[must_use]
    pub fn is_close(&self) -> bool {
        let is_near = |device: &DeviceOutcome| {
            device.available_bytes.is_some_and(|available| available.abs_diff(device.smallest_bytes) < available / 100)
        };
        let decides = |device: &&DeviceOutcome| self.fits() || !device.fits();
        let depends = self.likely.is_some_and(|likely| likely.may_not_fit());
        (self.fits() && (self.reaches_beyond() || depends)) || self.devices.iter().filter(decides).any(is_near)
    }

    /// Whether the recorded run had these settings and was within this memory, on some device against what a replay says.
    #[must_use]
    pub fn is_as_recorded(&self) -> bool {
        self.devices.iter().any(|device| device.as_recorded)
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
