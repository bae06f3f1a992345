//! Controls and readings for tests and replays: other processes' memory, addresses, time, costs, faults and the log.
//! The allocator uses none of these.

use std::any::Any;

use parkade::device::ProcessMemory;
use parkade::units::{Bytes, DeviceAddress, StreamId};

use super::SimDevice;
use crate::address::AddressModel;
use crate::calls::{Call, CallName, CallSubject, LogLevel};
use crate::costs::CallTotals;
use crate::faults::FaultPlan;

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

    /// Returns how many pieces of cuMemCreate memory exist: not released, or released and still
    /// mapped.
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

    /// Changes the capacity, and with it the total that cudaMemGetInfo reports, unless
    /// [`SimOptions::total`](crate::SimOptions::total) set the total. Pages already taken stay taken. The answer of
    /// [`total_memory`](parkade::device::DeviceBackend::total_memory) does not change, because a program queries it
    /// only once.
    pub fn set_capacity(&mut self, capacity: Bytes) {
        self.memory.set_capacity(capacity.get());
    }

    /// Sets how many bytes are held by processes that [`processes`](parkade::device::DeviceBackend::processes) does not
    /// list, such as processes in another container. These bytes only reduce free memory, and may exceed it; free
    /// memory stops at zero.
    pub fn set_external_bytes(&mut self, bytes: Bytes) {
        self.unlisted_bytes = bytes.get();
        self.update_external();
    }

    /// Sets how many bytes another process holds. The bytes may exceed the available memory; free memory stops at zero.
    pub fn set_process_bytes(&mut self, pid: u32, bytes: Bytes) {
        self.other_processes.insert(pid, bytes.get());
        self.update_external();
    }

    fn update_external(&mut self) {
        let sum = self.other_processes.values().fold(self.unlisted_bytes, |sum, &bytes| sum.saturating_add(bytes));
        self.memory.set_external(sum);
    }

    /// Lists this process first, then the other processes by process id, without those that hold no memory.
    pub(super) fn process_list(&self) -> Vec<ProcessMemory> {
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

    /// Returns the address model if it is an `M`, for example to ask a [`Scripted`](crate::address::Scripted) model how
    /// often it fell back.
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

    /// Sets the fault plan, whose counts begin now.
    pub fn set_fault_plan(&mut self, plan: FaultPlan) {
        self.faults = plan;
    }

    /// Returns the fault plan, which knows how many faults have happened.
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
    /// cudaMalloc, `v3+512` the same for cuMemAddressReserve. If several ranges had the address, the latest one counts;
    /// if none had it, the address is written in hexadecimal.
    #[must_use]
    pub fn name_address(&self, address: DeviceAddress) -> String {
        self.ranges.name(address.get()).to_string()
    }
}
