//! The simulated device: its options, its parts, their initial state, the steps that all calls share, and what tests and
//! replays can set and read.
//!
//! The allocator does not use these settings and readings: other processes' memory, addresses, time, costs, faults and
//! the log. The driver's calls are in `driver_calls.rs`, and a program's work is in `work.rs`; this file does not
//! depend on them.

mod driver_calls;
mod work;

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parkade::device::ProcessMemory;
use parkade::units::{Bytes, DeviceAddress, StreamId};

use crate::address::{AddressModel, Ascending, AscendingReservations};
use crate::calls::{Call, CallLog, CallName, CallSubject, LogLevel, NOT_READY};
use crate::costs::{CallTotals, Clock, CostModel, MeasuredH200, NoCost};
use crate::faults::FaultPlan;
use crate::memory::{PageRun, PageRuns, PhysicalMemory};
use crate::race::Detector;
use crate::range_maps::Intervals;
use crate::ranges::{Ranges, SharedPages};
use crate::streams::{Captures, EventTiming, Streams};
use crate::virtual_memory::{AffectedMappings, VirtualMemory};

/// The H200's memory as the driver reports it (facts: Memory of the device).
const H200_TOTAL_BYTES: u64 = 150_109_880_320;
/// The bytes of this memory that are free when a process starts (facts: Memory of the device).
const H200_FREE_BYTES: u64 = 149_557_477_376;
/// The bytes that are still free when nothing more can be allocated: `free_when_full` in all three runs in the raw
/// data that fill the device, and the difference between the free bytes and the largest block that can be allocated
/// (facts: Holes).
const H200_WITHHELD_BYTES: u64 = 3_276_800;

/// The options for creating a [`SimDevice`]. By default, the device follows the measured driver; there are two
/// ready-made devices. Every method returns the changed options.
#[derive(Clone, Debug)]
pub struct SimOptions {
    index: u32,
    capacity_bytes: u64,
    total_bytes: Option<u64>,
    base_bytes: u64,
    withheld_bytes: u64,
    address_model: Box<dyn AddressModel>,
    reservation_model: Box<dyn AddressModel>,
    probes_fabric: bool,
    cost_model: Arc<dyn CostModel>,
    event_timing: EventTiming,
    shares_pages: bool,
    free_waits: bool,
    reports_processes: bool,
    most_handles: u64,
}

impl SimOptions {
    /// Returns the options of a device with `capacity` bytes that follows the measured driver: small cudaMallocs share
    /// pages, cudaFree waits for the device, calls have the H200's prices, and events complete by the clock. Addresses
    /// ascend.
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

    /// Returns the options of the measured H200, with its total, free and withheld memory when a
    /// process starts.
    #[must_use]
    pub fn h200() -> Self {
        SimOptions::new(Bytes(H200_TOTAL_BYTES))
            .base(Bytes(H200_TOTAL_BYTES - H200_FREE_BYTES))
            .withheld(Bytes(H200_WITHHELD_BYTES))
    }

    /// Returns the options of the fake driver on which the real PyTorch allocator is tested: every cudaMalloc takes
    /// whole pages, cudaFree does not wait, events complete only when the host waits for them or completes them
    /// explicitly, and no call takes time. Its `FAKE_GPU_BASE` corresponds to
    /// [`SimDevice::set_external_bytes`](crate::SimDevice::set_external_bytes), because its `external` replaces the
    /// base.
    #[must_use]
    pub fn fake_driver(capacity: Bytes) -> Self {
        SimOptions::new(capacity)
            .event_timing(EventTiming::Lazy)
            .cost_model(NoCost)
            .shares_pages(false)
            .free_waits(false)
            .probes_fabric(true)
    }

    /// Sets the device's index on its host; 0 by default.
    #[must_use]
    pub fn index(mut self, index: u32) -> Self {
        self.index = index;
        self
    }

    /// Sets the total memory to report, if it is not the capacity.
    #[must_use]
    pub fn total(mut self, total: Bytes) -> Self {
        self.total_bytes = Some(total.get());
        self
    }

    /// Sets the number of bytes that the driver's context holds from the start; about 500 MiB on the H200 (facts:
    /// Memory of the device).
    #[must_use]
    pub fn base(mut self, base: Bytes) -> Self {
        self.base_bytes = base.get();
        self
    }

    /// Sets the free bytes that are reported but cannot be allocated.
    #[must_use]
    pub fn withheld(mut self, withheld: Bytes) -> Self {
        self.withheld_bytes = withheld.get();
        self
    }

    /// Sets the rule by which cudaMalloc places ranges.
    #[must_use]
    pub fn address_model(mut self, model: impl AddressModel) -> Self {
        self.address_model = Box::new(model);
        self
    }

    /// Sets the rule by which cuMemAddressReserve places ranges.
    #[must_use]
    pub fn reservation_model(mut self, model: impl AddressModel) -> Self {
        self.reservation_model = Box::new(model);
        self
    }

    /// Sets whether the first cuMemCreate is logged twice, the first time as a refused attempt with the fabric handle
    /// type. The real allocator probes the available handle types once per process, so switch this off for a second
    /// device. It affects only the log.
    #[must_use]
    pub fn probes_fabric(mut self, probes_fabric: bool) -> Self {
        self.probes_fabric = probes_fabric;
        self
    }

    /// Sets the maximum number of simultaneous cuMemCreate handles; beyond it, the device is out of memory. Unlimited
    /// by default. This is for a device that logs each memory call, because the log grows with the number of handles,
    /// regardless of their size.
    #[must_use]
    pub fn most_handles(mut self, most_handles: u64) -> Self {
        self.most_handles = most_handles;
        self
    }

    /// Sets the prices of driver calls.
    #[must_use]
    pub fn cost_model(mut self, model: impl CostModel + 'static) -> Self {
        self.cost_model = Arc::new(model);
        self
    }

    /// Sets the rule for when the host sees events as complete.
    #[must_use]
    pub fn event_timing(mut self, event_timing: EventTiming) -> Self {
        self.event_timing = event_timing;
        self
    }

    /// Sets whether cudaMallocs of at most 1 MiB share pages (facts: Sizes and addresses). If not, each one takes whole
    /// pages.
    #[must_use]
    pub fn shares_pages(mut self, shares_pages: bool) -> Self {
        self.shares_pages = shares_pages;
        self
    }

    /// Sets whether cudaFree waits for the entire device (facts: Waiting for the device).
    #[must_use]
    pub fn free_waits(mut self, free_waits: bool) -> Self {
        self.free_waits = free_waits;
        self
    }

    /// Sets whether [`processes`](parkade::device::DeviceBackend::processes) lists anything; if off, the host has no
    /// NVML.
    #[must_use]
    pub fn reports_processes(mut self, reports_processes: bool) -> Self {
        self.reports_processes = reports_processes;
        self
    }
}

/// A simulated GPU.
///
/// The allocator drives it through [`DeviceBackend`](parkade::device::DeviceBackend). The methods below are for tests
/// and tools: they launch work, move the clock, change what other processes hold, inject faults, and read the counts,
/// the log and the races. A clone is an independent device in the same state, on which the original's events and
/// memory are valid.
#[derive(Clone, Debug)]
pub struct SimDevice {
    index: u32,
    total_bytes: u64,
    /// Whether the reported total was set explicitly. If not, the total follows the capacity.
    total_is_fixed: bool,
    shares_pages: bool,
    free_waits: bool,
    reports_processes: bool,
    most_handles: u64,
    memory: PhysicalMemory,
    /// The pages behind every range that the address model placed.
    placed: Intervals<PageRuns>,
    shared_pages: SharedPages,
    ranges: Ranges,
    address_model: Box<dyn AddressModel>,
    reservation_model: Box<dyn AddressModel>,
    virtual_memory: VirtualMemory,
    /// A buffer for calls that affect several mappings; empty between calls.
    affected: AffectedMappings,
    /// Whether the next cuMemCreate first tries the fabric handle type.
    fabric_probe_due: bool,
    cost_model: Arc<dyn CostModel>,
    streams: Streams,
    captures: Captures,
    /// The race detector; `None` before the first work that declares an access.
    races: Option<Box<Detector>>,
    clock: Clock,
    live_events: BTreeSet<u64>,
    next_event: u64,
    fail_next: u64,
    faults: FaultPlan,
    log: CallLog,
    /// The bytes held by processes that appear in no process list.
    unlisted_bytes: u64,
    /// Bytes held by other processes, by process id.
    other_processes: BTreeMap<u32, u64>,
}

impl SimDevice {
    /// Creates an idle, empty device at time zero.
    #[must_use]
    pub fn new(options: SimOptions) -> Self {
        let mut memory = PhysicalMemory::new(options.capacity_bytes, options.base_bytes);
        memory.set_withheld(options.withheld_bytes);
        SimDevice {
            index: options.index,
            total_bytes: options.total_bytes.unwrap_or(options.capacity_bytes),
            total_is_fixed: options.total_bytes.is_some(),
            shares_pages: options.shares_pages,
            free_waits: options.free_waits,
            reports_processes: options.reports_processes,
            most_handles: options.most_handles,
            memory,
            placed: Intervals::default(),
            shared_pages: SharedPages::default(),
            ranges: Ranges::default(),
            address_model: options.address_model,
            reservation_model: options.reservation_model,
            virtual_memory: VirtualMemory::default(),
            affected: AffectedMappings::default(),
            fabric_probe_due: options.probes_fabric,
            cost_model: options.cost_model,
            streams: Streams::new(options.event_timing),
            captures: Captures::default(),
            races: None,
            clock: Clock::default(),
            live_events: BTreeSet::new(),
            next_event: 0,
            fail_next: 0,
            faults: FaultPlan::none(),
            log: CallLog::default(),
            unlisted_bytes: 0,
            other_processes: BTreeMap::new(),
        }
    }

    /// Counts a call and advances the clock by its price.
    fn charge(&mut self, name: CallName, bytes: u64) {
        let cost_ns = self.cost_model.cost_ns(name, bytes);
        self.clock.charge(name, cost_ns);
    }

    /// Counts a call in the fault plan.
    ///
    /// # Errors
    /// The code that the call must fail with, if a fault is due.
    fn planned_failure(&mut self, name: CallName) -> Result<(), u32> {
        self.faults.next(name).map_or(Ok(()), |error| Err(error.code()))
    }

    /// Logs a call's outcome, and counts it if it is a failure.
    fn note(&mut self, name: CallName, result: u32, subject: impl FnOnce() -> CallSubject) {
        if result != 0 && result != NOT_READY {
            self.clock.note_failure(name);
        }
        self.log.push(name, result, self.clock.now_ns(), subject);
    }

    /// Makes a call wait until every stream is idle. After that, everything is complete, under every event timing.
    fn wait_for_device(&mut self, name: CallName) {
        self.clock.wait_until(name, self.streams.idle_at_ns());
        self.streams.complete_all(self.clock.now_ns());
        if let Some(races) = &mut self.races {
            races.host_waits_for_all();
        }
    }

    /// Completes a stream for which the host has waited.
    fn finish_stream(&mut self, stream: u64) {
        self.streams.complete(stream, self.clock.now_ns());
        if let Some(races) = &mut self.races {
            races.host_waits_for(stream);
        }
    }

    /// Returns pages to the device, and drops their contents and the accesses to them.
    fn give_back(&mut self, runs: &[PageRun]) {
        self.memory.give_back(runs);
        if let Some(races) = &mut self.races {
            races.given_back(runs);
        }
    }
}

/// This device's memory and that of other processes.
impl SimDevice {
    /// Returns the bytes of the pages held by this device's cudaMallocs and cuMemCreates, excluding those of the
    /// driver's context.
    #[must_use]
    pub fn used_bytes(&self) -> Bytes {
        Bytes(self.memory.used_bytes())
    }

    /// Returns the highest value of [`SimDevice::used_bytes`] so far.
    #[must_use]
    pub fn peak_used_bytes(&self) -> Bytes {
        Bytes(self.memory.peak_used_bytes())
    }

    /// Returns how many address ranges are reserved.
    #[must_use]
    pub fn live_reservations(&self) -> usize {
        self.virtual_memory.live_reservations()
    }

    /// Returns how many pieces of cuMemCreate memory exist: those not released, and those released but still mapped.
    #[must_use]
    pub fn live_physical(&self) -> usize {
        usize::try_from(self.virtual_memory.live_handles()).unwrap_or(usize::MAX)
    }

    /// Returns the free bytes that are reported but cannot be allocated
    /// ([`SimOptions::withheld`](crate::SimOptions::withheld)).
    #[must_use]
    pub fn withheld(&self) -> Bytes {
        Bytes(self.memory.withheld_bytes())
    }

    /// Returns the current capacity.
    #[must_use]
    pub fn capacity(&self) -> Bytes {
        Bytes(self.memory.capacity_bytes())
    }

    /// Changes the capacity. This also changes the total that cudaMemGetInfo reports, unless
    /// [`SimOptions::total`](crate::SimOptions::total) has set it. Pages already taken stay taken. The answer of
    /// [`total_memory`](parkade::device::DeviceBackend::total_memory) does not change, because a program queries it
    /// only once.
    pub fn set_capacity(&mut self, capacity: Bytes) {
        self.memory.set_capacity(capacity.get());
    }

    /// Sets how many bytes are held by processes that [`processes`](parkade::device::DeviceBackend::processes) does
    /// not list, such as processes in another container. These bytes only reduce free memory. They may exceed it, in
    /// which case free memory is zero.
    pub fn set_external_bytes(&mut self, bytes: Bytes) {
        self.unlisted_bytes = bytes.get();
        self.update_external();
    }

    /// Sets how many bytes another process holds. The bytes may exceed the available memory, in which case free memory
    /// is zero.
    pub fn set_process_bytes(&mut self, pid: u32, bytes: Bytes) {
        self.other_processes.insert(pid, bytes.get());
        self.update_external();
    }

    fn update_external(&mut self) {
        let sum = self.other_processes.values().fold(self.unlisted_bytes, |sum, &bytes| sum.saturating_add(bytes));
        self.memory.set_external(sum);
    }

    /// Lists this process and then the other processes by process id, without those that hold no memory.
    fn process_list(&self) -> Vec<ProcessMemory> {
        let own = self.memory.base_bytes().saturating_add(self.memory.used_bytes());
        let others = self.other_processes.iter().filter(|&(_, &bytes)| bytes > 0);
        std::iter::once(ProcessMemory { pid: None, used: Bytes(own) })
            .chain(others.map(|(&pid, &bytes)| ProcessMemory { pid: Some(pid), used: Bytes(bytes) }))
            .collect()
    }

    /// Returns the live cudaMallocs, lowest address first, each with the bytes of address space that it takes.
    pub fn live_ranges(&self) -> impl Iterator<Item = (DeviceAddress, Bytes)> {
        self.ranges.iter_live().map(|(start, bytes)| (DeviceAddress(start), Bytes(bytes)))
    }

    /// Tells the address model how far the program has progressed; see
    /// [`AddressModel::set_moment`].
    pub fn set_moment(&mut self, moment: u64) {
        self.address_model.set_moment(moment);
    }

    /// Returns the address model if it is an `M`, for example to ask a [`Scripted`](crate::address::Scripted) model
    /// for its number of fallbacks.
    #[must_use]
    pub fn address_model<M: AddressModel>(&self) -> Option<&M> {
        let model: &dyn Any = &*self.address_model;
        model.downcast_ref()
    }

    /// Returns a mutable reference to the address model if it is an `M`, for example to push the next address of a recording.
    pub fn address_model_mut<M: AddressModel>(&mut self) -> Option<&mut M> {
        let model: &mut dyn Any = &mut *self.address_model;
        model.downcast_mut()
    }

    /// Returns the model that places reservations, if it is an `M`.
    #[must_use]
    pub fn reservation_model<M: AddressModel>(&self) -> Option<&M> {
        let model: &dyn Any = &*self.reservation_model;
        model.downcast_ref()
    }

    /// Returns a mutable reference to the model that places reservations, if it is an `M`.
    pub fn reservation_model_mut<M: AddressModel>(&mut self) -> Option<&mut M> {
        let model: &mut dyn Any = &mut *self.reservation_model;
        model.downcast_mut()
    }
}

/// Time and work.
impl SimDevice {
    /// Returns the clock, in nanoseconds since the device was created.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    /// Advances the clock without a driver call, as if the host did something else.
    pub fn advance(&mut self, duration_ns: u64) {
        self.clock.advance(duration_ns);
    }

    /// Completes all work on one stream now. The host does not notice, so the race detector does not treat this as a
    /// wait.
    pub fn complete(&mut self, stream: StreamId) {
        self.streams.complete(stream.get(), self.clock.now_ns());
    }

    /// Completes the oldest recorded event on one stream that is not complete yet. Returns how many events it
    /// completed: 0 or 1.
    pub fn complete_one(&mut self, stream: StreamId) -> u64 {
        self.streams.complete_one(stream.get(), self.clock.now_ns())
    }

    /// Completes all work on all streams now. As with [`SimDevice::complete`], the host does not notice.
    pub fn complete_all(&mut self) {
        self.streams.complete_all(self.clock.now_ns());
    }

    /// Waits for the entire device (cudaDeviceSynchronize). This cannot fail.
    pub fn synchronize(&mut self) {
        let name = CallName::DeviceSynchronize;
        self.charge(name, 0);
        self.wait_for_device(name);
        self.note(name, 0, || CallSubject::Device);
    }

    /// Returns how many events have been created and not destroyed.
    #[must_use]
    pub fn live_events(&self) -> usize {
        self.live_events.len()
    }
}

/// Costs.
impl SimDevice {
    /// Returns how many driver calls were made, including failed ones.
    #[must_use]
    pub fn driver_calls(&self) -> u64 {
        self.clock.sum().calls
    }

    /// Returns the price of all driver calls in nanoseconds, excluding waiting.
    #[must_use]
    pub fn driver_ns(&self) -> u64 {
        self.clock.sum().cost_ns
    }

    /// Returns how long driver calls waited for work on the device, in nanoseconds.
    #[must_use]
    pub fn waited_ns(&self) -> u64 {
        self.clock.sum().wait_ns
    }

    /// Returns how many driver calls so far were of a kind that returns only when work on the device is done: cudaFree
    /// and the synchronizing calls (facts: Waiting for the device). Each call counts, whether or not there was work to
    /// wait for.
    #[must_use]
    pub fn waiting_calls(&self) -> u64 {
        self.clock.waits()
    }

    /// Returns the count, failures, price and waiting time for one kind of call.
    #[must_use]
    pub fn totals(&self, call: CallName) -> CallTotals {
        self.clock.totals(call)
    }
}

/// Faults.
impl SimDevice {
    /// Makes the next `calls` cudaMallocs and cuMemCreates fail with out of memory, no matter how much memory is free.
    /// Replaces the number from an earlier call to this method.
    pub fn fail_next(&mut self, calls: u64) {
        self.fail_next = calls;
    }

    /// Sets the fault plan, which starts counting now.
    pub fn set_fault_plan(&mut self, plan: FaultPlan) {
        self.faults = plan;
    }

    /// Returns the fault plan, which shows how many faults have happened.
    #[must_use]
    pub fn fault_plan(&self) -> &FaultPlan {
        &self.faults
    }
}

/// The log.
impl SimDevice {
    /// Sets which driver calls are logged; none at first.
    pub fn set_log_level(&mut self, level: LogLevel) {
        self.log.level = level;
    }

    /// Takes the calls that were logged since the last call to this method, oldest first.
    pub fn take_log(&mut self) -> Vec<Call> {
        self.log.take()
    }

    /// Returns the log's name for an address: `c3+512` is 512 bytes into the range from the fourth successful
    /// cudaMalloc, and `v3+512` is the same for cuMemAddressReserve. If several ranges have had the address, the name
    /// refers to the latest one; if none has, the address is written in hexadecimal.
    #[must_use]
    pub fn name_address(&self, address: DeviceAddress) -> String {
        self.ranges.name(address.get()).to_string()
    }
}
