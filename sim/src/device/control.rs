//! The controls and readings for tests and replays: memory of other processes, addresses, time, costs, faults, and
//! the log. The allocator uses none of these.

use std::any::Any;

use parkade::device::ProcessMemory;
use parkade::units::{Bytes, DeviceAddress, StreamId};

use super::SimDevice;
use crate::address::AddressModel;
use crate::calls::{Call, CallName, CallSubject, LogLevel};
use crate::costs::CallTotals;
use crate::faults::FaultPlan;

/// Memory of this device and of other processes.
impl SimDevice {
    /// The bytes of the pages held by this device's cudaMallocs and cuMemCreates, without the driver context's.
    #[must_use]
    pub fn used_bytes(&self) -> Bytes {
        Bytes(self.memory.used_bytes())
    }

    /// The highest value of [`SimDevice::used_bytes`] so far.
    #[must_use]
    pub fn peak_used_bytes(&self) -> Bytes {
        Bytes(self.memory.peak_used_bytes())
    }

    /// How many address ranges are reserved.
    #[must_use]
    pub fn live_reservations(&self) -> usize {
        self.virtual_memory.live_reservations()
    }

    /// How many pieces of cuMemCreate memory exist: not released, or released and still mapped.
    #[must_use]
    pub fn live_physical(&self) -> usize {
        usize::try_from(self.virtual_memory.live_handles()).unwrap_or(usize::MAX)
    }

    /// Free bytes that are reported but cannot be allocated
    /// ([`SimOptions::withheld`](crate::SimOptions::withheld)).
    #[must_use]
    pub fn withheld(&self) -> Bytes {
        Bytes(self.memory.withheld_bytes())
    }

    /// The current capacity.
    #[must_use]
    pub fn capacity(&self) -> Bytes {
        Bytes(self.memory.capacity_bytes())
    }

    /// Changes the capacity, and with it the total that cudaMemGetInfo reports, unless
    /// [`SimOptions::total`](crate::SimOptions::total) set that. Pages already taken stay. The answer of
    /// [`total_memory`](parkade::device::DeviceBackend::total_memory) does not change: a program asks for it
    /// once.
    pub fn set_capacity(&mut self, capacity: Bytes) {
        self.memory.set_capacity(capacity.get());
    }

    /// Sets how many bytes are held by processes that [`processes`](parkade::device::DeviceBackend::processes) does
    /// not list, such as processes in another container. They only reduce free memory, and may exceed it; free memory
    /// stops at zero.
    pub fn set_external_bytes(&mut self, bytes: Bytes) {
        self.unlisted_bytes = bytes.get();
        self.update_external();
    }

    /// Sets how many bytes another process holds. They may exceed the available memory; free memory stops at zero.
    pub fn set_process_bytes(&mut self, pid: u32, bytes: Bytes) {
        self.other_processes.insert(pid, bytes.get());
        self.update_external();
    }

    fn update_external(&mut self) {
        let sum = self.other_processes.values().fold(self.unlisted_bytes, |sum, &bytes| sum.saturating_add(bytes));
        self.memory.set_external(sum);
    }

    /// This process first, then the other processes by process id, without those that hold no memory.
    pub(super) fn process_list(&self) -> Vec<ProcessMemory> {
        let own = self.memory.base_bytes().saturating_add(self.memory.used_bytes());
        let others = self.other_processes.iter().filter(|&(_, &bytes)| bytes > 0);
        std::iter::once(ProcessMemory { pid: None, used: Bytes(own) })
            .chain(others.map(|(&pid, &bytes)| ProcessMemory { pid: Some(pid), used: Bytes(bytes) }))
            .collect()
    }

    /// The live cudaMallocs, lowest address first, each with the bytes of address space that it takes.
    pub fn live_ranges(&self) -> impl Iterator<Item = (DeviceAddress, Bytes)> {
        self.ranges.iter_live().map(|(start, bytes)| (DeviceAddress(start), Bytes(bytes)))
    }

    /// Tells the address model how far the program has come; see [`AddressModel::set_moment`].
    pub fn set_moment(&mut self, moment: u64) {
        self.address_model.set_moment(moment);
    }

    /// The address model, if it is an `M`: for example to ask a [`Scripted`](crate::address::Scripted) one
    /// how often it fell back.
    #[must_use]
    pub fn address_model<M: AddressModel>(&self) -> Option<&M> {
        let model: &dyn Any = &*self.address_model;
        model.downcast_ref()
    }

    /// The address model, mutable, if it is an `M`: for example to push the next address of a recording.
    pub fn address_model_mut<M: AddressModel>(&mut self) -> Option<&mut M> {
        let model: &mut dyn Any = &mut *self.address_model;
        model.downcast_mut()
    }

    /// The model that places reservations, if it is an `M`.
    #[must_use]
    pub fn reservation_model<M: AddressModel>(&self) -> Option<&M> {
        let model: &dyn Any = &*self.reservation_model;
        model.downcast_ref()
    }

    /// The model that places reservations, mutable, if it is an `M`.
    pub fn reservation_model_mut<M: AddressModel>(&mut self) -> Option<&mut M> {
        let model: &mut dyn Any = &mut *self.reservation_model;
        model.downcast_mut()
    }
}

/// Time and work.
impl SimDevice {
    /// The clock, in nanoseconds since the device was created.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    /// Advances the clock without a driver call: the host does something else.
    pub fn advance(&mut self, duration_ns: u64) {
        self.clock.advance(duration_ns);
    }

    /// Completes all work of one stream now. The host does not notice, so this is not a wait for the race detector.
    pub fn complete(&mut self, stream: StreamId) {
        self.streams.complete(stream.get(), self.clock.now_ns());
    }

    /// Completes the oldest recorded event of one stream that is not complete yet. Returns how many it
    /// completed: 0 or 1.
    pub fn complete_one(&mut self, stream: StreamId) -> u64 {
        self.streams.complete_one(stream.get(), self.clock.now_ns())
    }

    /// Completes all work of all streams now. As with [`SimDevice::complete`], the host does not notice.
    pub fn complete_all(&mut self) {
        self.streams.complete_all(self.clock.now_ns());
    }

    /// Waits for the whole device (cudaDeviceSynchronize). Cannot fail.
    pub fn synchronize(&mut self) {
        let name = CallName::DeviceSynchronize;
        self.charge(name, 0);
        self.wait_for_device(name);
        self.note(name, 0, || CallSubject::Device);
    }

    /// How many events are created and not destroyed.
    #[must_use]
    pub fn live_events(&self) -> usize {
        self.live_events.len()
    }
}

/// Costs.
impl SimDevice {
    /// How many driver calls were made, failed ones included.
    #[must_use]
    pub fn driver_calls(&self) -> u64 {
        self.clock.sum().calls
    }

    /// The price of all driver calls in nanoseconds, without waiting.
    #[must_use]
    pub fn driver_ns(&self) -> u64 {
        self.clock.sum().cost_ns
    }

    /// How long driver calls waited for work on the device, in nanoseconds.
    #[must_use]
    pub fn waited_ns(&self) -> u64 {
        self.clock.sum().wait_ns
    }

    /// How many driver calls so far were of a kind that returns only when work on the device is done: cudaFree and the
    /// synchronizing calls (facts: Waiting for the device). Each counts, whether there was work to wait for or not.
    #[must_use]
    pub fn waiting_calls(&self) -> u64 {
        self.clock.waits()
    }

    /// Count, failures, price and waiting time of one kind of call.
    #[must_use]
    pub fn totals(&self, call: CallName) -> CallTotals {
        self.clock.totals(call)
    }
}

/// Faults.
impl SimDevice {
    /// Makes the next `calls` cudaMallocs and cuMemCreates fail with out of memory, however much memory is free.
    /// Replaces the number of an earlier call.
    pub fn fail_next(&mut self, calls: u64) {
        self.fail_next = calls;
    }

    /// Sets the fault plan, whose counts begin now.
    pub fn set_fault_plan(&mut self, plan: FaultPlan) {
        self.faults = plan;
    }

    /// The fault plan, to ask how many faults have happened.
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

    /// Takes the calls logged since the last call of this method, oldest first.
    pub fn take_log(&mut self) -> Vec<Call> {
        self.log.take()
    }

    /// The log's name for an address: `c3+512` is 512 bytes into the range of the fourth successful
    /// cudaMalloc, `v3+512` the same for cuMemAddressReserve. If several ranges had the address, the latest
    /// counts; if none had it, it is written in hexadecimal.
    #[must_use]
    pub fn name_address(&self, address: DeviceAddress) -> String {
        self.ranges.name(address.get()).to_string()
    }
}
