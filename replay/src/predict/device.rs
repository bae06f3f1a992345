//! The simulated devices that predictions use. One places segments where the recorded process's driver would have placed
//! them. The other also makes waiting blocks become free at given moments.

use parkade::device::{BackendError, DeviceBackend, MemoryInfo, ProcessMemory};
use parkade::units::{Bytes, DeviceAddress, StreamId};
use parkade_recording::{Action, DeviceRecording};
use parkade_sim::address::{LearnedAddressSpace, ObservedDriver, PlacementStep};
use parkade_sim::{SimDevice, SimOptions, SimPhysical};

use super::requests::Requests;
use crate::completions::moment_of;

/// The segments that the recording allocates and frees, each with the entry of the request that it served.
///
/// This excludes expandable segments, because the driver chooses their addresses by different rules.
#[must_use]
pub fn placed_steps(recording: &DeviceRecording) -> Vec<PlacementStep> {
    let mut steps = Vec::new();
    let mut request = recording.trace.len() as u64;
    for (at, entry) in recording.trace.iter().enumerate().rev() {
        let taken = match entry.action {
            Action::Alloc | Action::Oom => {
                request = at as u64;
                continue;
            }
            Action::SegmentAlloc => true,
            Action::SegmentFree => false,
            _ => continue,
        };
        steps.push(PlacementStep { moment: request, taken, address: entry.address, bytes: entry.size });
    }
    steps.reverse();
    steps
}

/// More memory than any device has: 4 TiB.
const LARGEST_BYTES: u64 = 1 << 42;

/// The addresses at which the recorded process's driver places segments, as far as the recording shows them.
///
/// Empty for a recording whose oldest entries are missing.
#[must_use]
pub fn learned_addresses(recording: &DeviceRecording, requests: &Requests) -> LearnedAddressSpace {
    let knows_all = requests.lost_beginning.is_none();
    if knows_all { LearnedAddressSpace::from_steps(&placed_steps(recording)) } else { LearnedAddressSpace::default() }
}

/// A simulated device that places segments by this layout. Without `capacity_bytes`, it has 4 TiB, more than any real device.
#[must_use]
pub fn device_like(index: u32, learned: &LearnedAddressSpace, capacity_bytes: Option<u64>) -> SimDevice {
    let options = SimOptions::new(Bytes(capacity_bytes.unwrap_or(LARGEST_BYTES))).index(index);
    SimDevice::new(options.address_model(ObservedDriver::learned(learned)))
}

/// A simulated device on which waiting blocks become free at entries of the recording, and the progress of the replay.
///
/// Memory and addresses come from the simulated device. The moment at which other streams finish with a block does not,
/// because it depended on the recorded program and the GPU. The replay therefore supplies it through the stream that it
/// records on the block ([`crate::completions`]).
#[derive(Clone, Debug)]
pub(crate) struct TimedDevice {
    pub(crate) device: SimDevice,
    /// The entry of the current operation, or its time in nanoseconds.
    pub(crate) now: u64,
    /// Whether `now` is a time, so that a wait for an event lasts until the event is complete.
    pub(crate) waits: bool,
    /// Whether the run is over. After that, no more memory is released, because the device is dropped with the allocator.
    pub(crate) is_over: bool,
}

impl DeviceBackend for TimedDevice {
    /// The moment at which the event's block becomes free, in the unit of `now`; the largest number means never.
    type Event = u64;
    type Physical = SimPhysical;

    /// As in an exact replay: without this, every request would poll every waiting block.
    fn completes_by_handle(&self) -> bool {
        true
    }

    fn index(&self) -> u32 {
        self.device.index()
    }

    fn total_memory(&self) -> Bytes {
        self.device.total_memory()
    }

    fn memory_info(&mut self) -> Result<MemoryInfo, BackendError> {
        self.device.memory_info()
    }

    fn processes(&mut self) -> Vec<ProcessMemory> {
        self.device.processes()
    }

    fn malloc(&mut self, size: Bytes) -> Result<DeviceAddress, BackendError> {
        self.device.malloc(size)
    }

    fn free(&mut self, address: DeviceAddress) -> Result<(), BackendError> {
        if self.is_over {
            return Ok(());
        }
        self.device.free(address)
    }

    fn reserve(&mut self, size: Bytes) -> Result<DeviceAddress, BackendError> {
        self.device.reserve(size)
    }

    fn unreserve(&mut self, address: DeviceAddress, size: Bytes) -> Result<(), BackendError> {
        if self.is_over {
            return Ok(());
        }
        self.device.unreserve(address, size)
    }

    fn create(&mut self, size: Bytes) -> Result<SimPhysical, BackendError> {
        self.device.create(size)
    }

    fn map(&mut self, address: DeviceAddress, size: Bytes, memory: &SimPhysical) -> Result<(), BackendError> {
        self.device.map(address, size, memory)
    }

    fn set_access(&mut self, address: DeviceAddress, size: Bytes) -> Result<(), BackendError> {
        self.device.set_access(address, size)
    }

    fn unmap(&mut self, address: DeviceAddress, size: Bytes) -> Result<(), BackendError> {
        if self.is_over {
            return Ok(());
        }
        self.device.unmap(address, size)
    }

    fn release(&mut self, memory: SimPhysical) -> Result<(), (SimPhysical, BackendError)> {
        if self.is_over {
            return Ok(());
        }
        self.device.release(memory)
    }

    fn waits_in_captures(&self) -> bool {
        self.device.waits_in_captures()
    }

    fn breaks_handles(&self) -> bool {
        self.device.breaks_handles()
    }

    fn break_handle(
        &mut self,
        address: DeviceAddress,
        size: Bytes,
        memory: SimPhysical,
        parts: &[(Bytes, Bytes)],
    ) -> Result<Vec<SimPhysical>, (SimPhysical, BackendError)> {
        self.device.break_handle(address, size, memory, parts)
    }

    fn run_pages(&self) -> u64 {
        self.device.run_pages()
    }

    fn create_run(&mut self, page: Bytes, pages: u64) -> Result<(SimPhysical, u64), BackendError> {
        self.device.create_run(page, pages)
    }

    fn split_run(&mut self, memory: &mut SimPhysical, page: Bytes, pages: u64) -> Result<SimPhysical, BackendError> {
        self.device.split_run(memory, page, pages)
    }

    fn unmap_run(&mut self, address: DeviceAddress, page: Bytes, pages: u64) -> Result<(), BackendError> {
        if self.is_over {
            return Ok(());
        }
        self.device.unmap_run(address, page, pages)
    }

    fn synchronize_stream(&mut self, stream: StreamId) -> Result<(), BackendError> {
        self.device.synchronize_stream(stream)
    }

    fn create_event(&mut self) -> Result<u64, BackendError> {
        Ok(u64::MAX)
    }

    fn record_event(&mut self, event: &mut u64, stream: StreamId) -> Result<(), BackendError> {
        *event = moment_of(stream);
        Ok(())
    }

    fn is_complete(&mut self, event: &u64) -> Result<bool, BackendError> {
        Ok(*event < self.now)
    }

    fn wait(&mut self, event: &u64) -> Result<(), BackendError> {
        if self.waits && *event != u64::MAX {
            self.now = self.now.max(*event + 1);
        }
        Ok(())
    }

    fn destroy_event(&mut self, _: u64) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use parkade_recording::Entry;

    #[test]
    fn a_segment_belongs_to_the_request_after_it() {
        let entry = |action, address| Entry::new(action, address, 2 << 20, 0);
        let trace = vec![
            entry(Action::SegmentAlloc, 1 << 30),
            entry(Action::Alloc, 1 << 30),
            entry(Action::SegmentFree, 1 << 30),
            entry(Action::SegmentAlloc, 2 << 30),
            entry(Action::Alloc, 2 << 30),
            entry(Action::SegmentFree, 2 << 30),
        ];
        let recording = DeviceRecording { trace, ..DeviceRecording::default() };
        let steps: Vec<_> = placed_steps(&recording).iter().map(|step| (step.moment, step.taken, step.address >> 30)).collect();
        assert_eq!(steps, [(1, true, 1), (4, false, 1), (4, true, 2), (6, false, 2)]);
    }
}
