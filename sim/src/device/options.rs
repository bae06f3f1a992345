//! Options of a simulated device, with the measured driver's rules as defaults, and two ready-made devices.

use std::sync::Arc;

use parkade::units::Bytes;

use crate::address::{AddressModel, Ascending, AscendingReservations};
use crate::costs::{CostModel, MeasuredH200, NoCost};
use crate::streams::EventTiming;

/// The H200's memory as the driver reports it (facts: Memory of the device).
const H200_TOTAL_BYTES: u64 = 150_109_880_320;
/// What is free of it when a process starts (facts: Memory of the device).
const H200_FREE_BYTES: u64 = 149_557_477_376;
/// What stays free when nothing more can be allocated: `free_when_full` in all three fill-ups of the raw
/// data, and the difference between the free bytes and the largest block that succeeds (facts: Holes).
const H200_WITHHELD_BYTES: u64 = 3_276_800;

/// How a [`SimDevice`](crate::SimDevice) is made. Every method returns the changed options.
#[derive(Clone, Debug)]
pub struct SimOptions {
    pub(super) index: u32,
    pub(super) capacity_bytes: u64,
    pub(super) total_bytes: Option<u64>,
    pub(super) base_bytes: u64,
    pub(super) withheld_bytes: u64,
    pub(super) address_model: Box<dyn AddressModel>,
    pub(super) reservation_model: Box<dyn AddressModel>,
    pub(super) probes_fabric: bool,
    pub(super) cost_model: Arc<dyn CostModel>,
    pub(super) event_timing: EventTiming,
    pub(super) shares_pages: bool,
    pub(super) free_waits: bool,
    pub(super) reports_processes: bool,
    pub(super) most_handles: u64,
}

impl SimOptions {
    /// A device with `capacity` bytes that follows the measured driver: small cudaMallocs share pages,
    /// cudaFree waits for the device, calls have the prices of the H200, and events complete by the clock.
    /// Addresses ascend.
    #[must_use]
    pub fn new(capacity: Bytes) -> Self {
        SimOptions {
            index: 0,
            capacity_bytes: capacity.get(),
            total_bytes: None,
            base_bytes: 0,
            withheld_bytes: 0,
            address_model: Box::new(Ascending::new()),
            reservation_model: Box::new(AscendingReservations::new()),
            probes_fabric: false,
            cost_model: Arc::new(MeasuredH200),
            event_timing: EventTiming::Clock,
            shares_pages: true,
            free_waits: true,
            most_handles: u64::MAX,
            reports_processes: true,
        }
    }

    /// The measured H200: its total, free and withheld memory when a process starts.
    #[must_use]
    pub fn h200() -> Self {
        SimOptions::new(Bytes(H200_TOTAL_BYTES))
            .base(Bytes(H200_TOTAL_BYTES - H200_FREE_BYTES))
            .withheld(Bytes(H200_WITHHELD_BYTES))
    }

    /// The fake driver that the real PyTorch allocator is tested on: every cudaMalloc takes whole pages,
    /// cudaFree does not wait, events complete only when waited for or told to, and nothing takes time. Its
    /// `FAKE_GPU_BASE` corresponds to
    /// [`SimDevice::set_external_bytes`](crate::SimDevice::set_external_bytes), because its `external`
    /// replaces the base.
    #[must_use]
    pub fn fake_driver(capacity: Bytes) -> Self {
        SimOptions::new(capacity)
            .event_timing(EventTiming::Lazy)
            .cost_model(NoCost)
            .shares_pages(false)
            .free_waits(false)
            .probes_fabric(true)
    }

    /// The device's index on its host; 0 by default.
    #[must_use]
    pub fn index(mut self, index: u32) -> Self {
        self.index = index;
        self
    }

    /// The total memory to report, if it is not the capacity.
    #[must_use]
    pub fn total(mut self, total: Bytes) -> Self {
        self.total_bytes = Some(total.get());
        self
    }

    /// What the driver's context holds from the start; about 500 MiB on the H200 (facts: Memory of the device).
    #[must_use]
    pub fn base(mut self, base: Bytes) -> Self {
        self.base_bytes = base.get();
        self
    }

    /// Free bytes that are reported but cannot be allocated.
    #[must_use]
    pub fn withheld(mut self, withheld: Bytes) -> Self {
        self.withheld_bytes = withheld.get();
        self
    }

    /// The rule by which cudaMalloc places ranges.
    #[must_use]
    pub fn address_model(mut self, model: impl AddressModel) -> Self {
        self.address_model = Box::new(model);
        self
    }

    /// The rule by which cuMemAddressReserve places ranges.
    #[must_use]
    pub fn reservation_model(mut self, model: impl AddressModel) -> Self {
        self.reservation_model = Box::new(model);
        self
    }

    /// Whether the first cuMemCreate is logged twice, the first time with the fabric handle type and refused.
    /// The real allocator probes once per process for the handle types that it may use, so switch this off
    /// for a second device. Only the log shows it.
    #[must_use]
    pub fn probes_fabric(mut self, probes_fabric: bool) -> Self {
        self.probes_fabric = probes_fabric;
        self
    }

    /// The most handles of cuMemCreate at once; beyond them the device is out of memory. Unlimited by default. For
    /// a device that logs each call about memory: its log grows with the number of handles, whatever they hold.
    #[must_use]
    pub fn most_handles(mut self, most_handles: u64) -> Self {
        self.most_handles = most_handles;
        self
    }

    /// The prices of driver calls.
    #[must_use]
    pub fn cost_model(mut self, model: impl CostModel + 'static) -> Self {
        self.cost_model = Arc::new(model);
        self
    }

    /// When events are seen complete.
    #[must_use]
    pub fn event_timing(mut self, event_timing: EventTiming) -> Self {
        self.event_timing = event_timing;
        self
    }

    /// Whether cudaMallocs of at most 1 MiB share pages (facts: Sizes and addresses). Otherwise each takes
    /// whole pages.
    #[must_use]
    pub fn shares_pages(mut self, shares_pages: bool) -> Self {
        self.shares_pages = shares_pages;
        self
    }

    /// Whether cudaFree waits for the whole device (facts: Waiting for the device).
    #[must_use]
    pub fn free_waits(mut self, free_waits: bool) -> Self {
        self.free_waits = free_waits;
        self
    }

    /// Whether [`processes`](parkade::device::DeviceBackend::processes) lists anything; off is a host without
    /// NVML.
    #[must_use]
    pub fn reports_processes(mut self, reports_processes: bool) -> Self {
        self.reports_processes = reports_processes;
        self
    }
}
