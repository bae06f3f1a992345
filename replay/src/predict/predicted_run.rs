//! Replays a predicted run, operation by operation, on a simulated device; also defines its settings and its result.
//!
//! One simulated device places segments where the recorded process's driver would have placed them. The other also makes
//! waiting blocks become free at given times.

use parkade::device::{BackendError, DeviceBackend, MemoryInfo, ProcessMemory};
use parkade::policy::PyTorch;
use parkade::profile::Profile;
use parkade::settings::Settings;
use parkade::snapshot::SegmentInfo;
use parkade::stats::{Family, Stats};
use parkade::trace::Observer;
use parkade::units::{Bytes, DeviceAddress, PoolId, StreamId};
use parkade::{AllocError, Allocation, Allocator};
use parkade_recording::{Action, DeviceRecording};
use parkade_sim::address::{LearnedAddressSpace, ObservedDriver, PlacementStep};
use parkade_sim::{SimDevice, SimOptions, SimPhysical};

use super::pace::{Clock, Completion, Operation, Variation};
use super::requests::{Requests, Slots};
use crate::completions::{moment_of, stream_of_moment};
use crate::pools::request_from;

/// The program's behaviour after a request has failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AfterFailure {
    /// It ends, as most programs do.
    #[default]
    Stop,
    /// It continues with its other requests, without the memory that it did not receive.
    GoOn,
}

/// The time at which other streams finish using memory that was freed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Timing {
    /// At the recorded time; if the entries have no times, at the entry at which the recorded allocator noticed it.
    #[default]
    Recorded,
    /// At the next request.
    Earliest,
    /// Only when the allocator waits for it.
    Latest,
    /// After this percentage of the entries that passed before the recorded allocator noticed it.
    Scaled(u32),
    /// As recorded, but in a different run of the program, which takes slightly more or less time.
    InTime(Variation),
}

/// The settings of a prediction.
#[derive(Clone, Debug)]
pub struct PredictOptions {
    /// The rules of the PyTorch release.
    pub profile: &'static Profile,
    /// The settings.
    pub settings: Settings,
    /// The memory limit in bytes, if any.
    pub limit_bytes: Option<u64>,
    /// The program's behaviour after a request has failed.
    pub after_failure: AfterFailure,
    /// The time at which memory used by other streams becomes free.
    pub timing: Timing,
}

/// A predicted run.
#[derive(Clone, Debug)]
pub struct Prediction {
    /// The stats at its end.
    pub stats: Stats,
    /// The recording's entry whose request failed first, if one did.
    pub first_failure: Option<usize>,
    /// The number of operations that the simulated device refused but a real one would not refuse, for example because its
    /// address model was full.
    pub device_errors: u64,
    /// The number of driver calls for memory that the run made.
    pub driver_calls: u64,
    /// The time that these calls took, in nanoseconds of simulated time.
    pub driver_ns: u64,
}

impl Prediction {
    /// Returns the peak of bytes reserved from the device.
    #[must_use]
    pub fn peak_reserved_bytes(&self) -> i64 {
        self.stats.family(Family::ReservedBytes).all.peak
    }

    /// Returns the peak of allocated bytes.
    #[must_use]
    pub fn peak_allocated_bytes(&self) -> i64 {
        self.stats.family(Family::AllocatedBytes).all.peak
    }
}

/// Replays requests on a simulated device, to the end.
#[must_use]
pub fn predict(requests: &Requests, device: SimDevice, options: &PredictOptions) -> Prediction {
    let mut run = PredictedRun::new(requests, device, options, ());
    while run.step() {}
    run.prediction()
}

/// A prediction in progress.
///
/// It can be inspected after every operation, and a clone continues independently.
pub struct PredictedRun<'a, O: Observer = ()> {
    requests: &'a Requests,
    /// The number of operations done so far.
    done: usize,
    core: Allocator<TimedDevice, PyTorch, O>,
    slots: Slots,
    /// The live requests, by slot: each request's number and memory.
    live: Vec<Option<(usize, Allocation)>>,
    timing: Timing,
    after_failure: AfterFailure,
    first_failure: Option<usize>,
    device_errors: u64,
    /// The clock, for a run with times.
    clock: Option<Clock>,
}

impl<O: Observer + Clone> Clone for PredictedRun<'_, O> {
    fn clone(&self) -> Self {
        let in_a_clone = |(id, allocation): &(usize, Allocation)| (*id, allocation.in_a_clone());
        let live = self.live.iter().map(|live| live.as_ref().map(in_a_clone)).collect();
        PredictedRun { core: self.core.clone(), slots: self.slots.clone(), live, ..*self }
    }
}

impl<O: Observer> Drop for PredictedRun<'_, O> {
    fn drop(&mut self) {
        self.core.device_mut().is_over = true;
    }
}

impl<'a, O: Observer> PredictedRun<'a, O> {
    /// Creates a run before its first operation. `observer` observes the core.
    #[must_use]
    pub fn new(requests: &'a Requests, device: SimDevice, options: &PredictOptions, observer: O) -> PredictedRun<'a, O> {
        PredictedRun::with_slots(requests, &Slots::of(requests), device, options, observer)
    }

    /// Like [`PredictedRun::new`], with the [`Slots`] of these requests, so that they are computed only once for many
    /// runs.
    #[must_use]
    pub fn with_slots(
        requests: &'a Requests,
        slots: &Slots,
        device: SimDevice,
        options: &PredictOptions,
        observer: O,
    ) -> PredictedRun<'a, O> {
        let clock = match options.timing {
            Timing::Recorded => requests.pace.as_ref().map(|_| Clock::new(Variation::NONE)),
            Timing::InTime(variation) => requests.pace.as_ref().map(|_| Clock::new(variation)),
            _ => None,
        };
        let policy = PyTorch::of(options.profile, options.settings.clone());
        let mut core = Allocator::new(TimedDevice { device, now: 0, waits: clock.is_some(), is_over: false }, policy, observer);
        core.set_limit(options.limit_bytes.map(Bytes));
        let mut device_errors = 0;
        for &pool in &requests.pools {
            device_errors += u64::from(core.create_pool(pool).is_err());
        }
        let (timing, after_failure) = (options.timing, options.after_failure);
        let (slots, live) = (slots.clone(), Vec::new());
        PredictedRun { requests, done: 0, core, slots, live, timing, after_failure, first_failure: None, device_errors, clock }
    }

    /// Carries out the next operation. Returns false if there is none, or if the program has ended after a failure.
    pub fn step(&mut self) -> bool {
        if self.first_failure.is_some() && self.after_failure == AfterFailure::Stop {
            return false;
        }
        let Some(&(entry, operation)) = self.requests.operations.get(self.done) else { return false };
        if self.clock.is_some() {
            self.step_in_time(entry, operation);
        } else {
            self.core.device_mut().now = entry as u64;
            self.carry_out(entry, operation);
        }
        self.done += 1;
        true
    }

    /// Carries out an operation at the clock's time.
    fn step_in_time(&mut self, entry: usize, operation: Operation) {
        let (Some(mut clock), Some(pace)) = (self.clock, &self.requests.pace) else { return };
        let began_ns = clock.begins(pace, self.done, self.core.device().now);
        self.core.device_mut().now = began_ns;
        self.clock = Some(clock);
        let (reserved, driver_ns) = (self.reserved_so_far(), self.core.device().device.driver_ns());
        self.carry_out(entry, operation);
        let Some(mut clock) = self.clock else { return };
        let after = self.reserved_so_far();
        let is_as_recorded = pace.steps.get(self.done).is_some_and(|step| {
            (after.0 - reserved.0, after.1 - reserved.1) == (step.taken_bytes as i64, step.given_bytes as i64)
        });
        let device = self.core.device_mut();
        let spent = (!is_as_recorded).then_some(device.device.driver_ns() - driver_ns);
        device.now = clock.ends(pace, self.done, began_ns, device.now, spent);
        self.clock = Some(clock);
    }

    /// Returns all bytes taken from the device so far, and all bytes released.
    fn reserved_so_far(&self) -> (i64, i64) {
        let reserved = self.core.stats().family(Family::ReservedBytes).all;
        (reserved.allocated, reserved.freed)
    }

    /// Returns the next operation, if there is one.
    #[must_use]
    pub fn next_operation(&self) -> Option<Operation> {
        self.requests.operations.get(self.done).map(|&(_, operation)| operation)
    }

    /// Returns the number of operations done so far.
    #[must_use]
    pub fn done(&self) -> usize {
        self.done
    }

    /// Returns the recording's entry whose request failed first, if one did.
    #[must_use]
    pub fn first_failure(&self) -> Option<usize> {
        self.first_failure
    }

    /// Returns the stats so far.
    #[must_use]
    pub fn stats(&self) -> &Stats {
        self.core.stats()
    }

    /// Returns the bytes currently reserved.
    #[must_use]
    pub fn reserved_bytes(&self) -> u64 {
        self.core.heap().reserved().get()
    }

    /// Returns the largest number of requests that have been live at once so far.
    #[must_use]
    pub fn most_live(&self) -> usize {
        self.live.len()
    }

    /// Returns the current heap: the segments with their blocks.
    #[must_use]
    pub fn segments(&self) -> Vec<SegmentInfo> {
        self.core.segments()
    }

    /// Returns the core's observer.
    #[must_use]
    pub fn observer(&self) -> &O {
        self.core.observer()
    }

    /// Returns mutable access to the core's observer.
    pub fn observer_mut(&mut self) -> &mut O {
        self.core.observer_mut()
    }

    /// Changes the memory limit, in bytes, from this point on.
    pub fn set_limit(&mut self, limit_bytes: Option<u64>) {
        self.core.set_limit(limit_bytes.map(Bytes));
    }

    /// Returns the result so far.
    #[must_use]
    pub fn prediction(&self) -> Prediction {
        let device = &self.core.device().device;
        Prediction {
            stats: self.core.stats().clone(),
            first_failure: self.first_failure,
            device_errors: self.device_errors,
            driver_calls: device.driver_calls(),
            driver_ns: device.driver_ns(),
        }
    }

    fn carry_out(&mut self, entry: usize, operation: Operation) {
        match operation {
            Operation::Allocate { id, bytes, stream, pool, failed } => {
                match self.allocate(entry, pool, Bytes(bytes), StreamId(stream)) {
                    // The recorded request failed, so the program never frees this memory.
                    Some(allocation) if failed => self.give_back(allocation),
                    Some(allocation) => self.keep(id, allocation),
                    None => {}
                }
            }
            Operation::Free { id, completion } => {
                // It is missing if the request failed.
                let live = self.slots.of_request(id).and_then(|slot| self.live.get_mut(slot));
                let Some((_, allocation)) = live.and_then(|live| live.take_if(|(live, _)| *live == id)) else { return };
                if let Some(moment) = self.completed_at(entry, completion) {
                    self.core.record_stream(&allocation, stream_of_moment(moment));
                }
                self.give_back(allocation);
            }
            Operation::EmptyCache => self.device_errors += u64::from(self.core.release_cached().is_err()),
            Operation::ReleasePool(pool) => self.device_errors += u64::from(self.core.release_cached_pool(pool).is_err()),
            Operation::AbandonPool(pool) => {
                if self.core.pool_use_count(pool).is_ok_and(|uses| uses > 0) {
                    self.device_errors += u64::from(self.core.release_pool(pool).is_err());
                }
            }
        }
    }

    fn keep(&mut self, id: usize, allocation: Allocation) {
        let Some(slot) = self.slots.of_request(id) else { return };
        if self.live.len() <= slot {
            self.live.resize_with(slot + 1, || None);
        }
        self.live[slot] = Some((id, allocation));
    }

    fn give_back(&mut self, allocation: Allocation) {
        self.device_errors += u64::from(self.core.free(allocation).is_err());
    }

    /// Returns, for memory that must wait, the time at which it becomes free, if any. Returns `None` for memory that becomes
    /// free immediately.
    fn completed_at(&mut self, entry: usize, completion: Completion) -> Option<Option<u64>> {
        let entry = entry as u64;
        match (completion, self.timing) {
            (Completion::AtOnce, _) => None,
            (_, Timing::Earliest) => Some(Some(entry)),
            (_, Timing::Latest) | (Completion::Never, _) => Some(None),
            (Completion::AtEntry(completed_at), Timing::Scaled(percent)) => {
                let lag = u64::from(completed_at).saturating_sub(entry) * u64::from(percent) / 100;
                Some(Some(entry + lag))
            }
            (Completion::AtEntry(completed_at), Timing::Recorded | Timing::InTime(_)) => {
                let now_ns = self.core.device().now;
                let in_time = self.clock.as_mut().zip(self.requests.pace.as_ref());
                let moment = in_time.map(|(clock, pace)| clock.completes(pace, self.done, now_ns));
                Some(Some(moment.unwrap_or(u64::from(completed_at))))
            }
        }
    }

    fn allocate(&mut self, entry: usize, pool: PoolId, bytes: Bytes, stream: StreamId) -> Option<Allocation> {
        self.core.device_mut().device.set_moment(entry as u64);
        let served = match pool {
            PoolId::DEFAULT => self.core.raw_allocate(bytes, stream),
            pool => request_from(&mut self.core, pool, bytes, stream),
        };
        match served {
            Ok(allocation) => return Some(allocation),
            Err(AllocError::OutOfMemory(_)) => self.first_failure = self.first_failure.or(Some(entry)),
            Err(_) => self.device_errors += 1,
        }
        None
    }
}

/// Returns the segments that the recording allocates and frees, each with the entry of the request that it served.
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

/// Returns the addresses at which the recorded process's driver places segments, as far as the recording shows them.
///
/// Empty for a recording whose oldest entries are missing.
#[must_use]
pub fn learned_addresses(recording: &DeviceRecording, requests: &Requests) -> LearnedAddressSpace {
    let knows_all = requests.lost_beginning.is_none();
    if knows_all { LearnedAddressSpace::from_steps(&placed_steps(recording)) } else { LearnedAddressSpace::default() }
}

/// Returns a simulated device that places segments by this layout. Without `capacity_bytes`, it has 4 TiB, more than any real
/// device.
#[must_use]
pub fn device_like(index: u32, learned: &LearnedAddressSpace, capacity_bytes: Option<u64>) -> SimDevice {
    let options = SimOptions::new(Bytes(capacity_bytes.unwrap_or(LARGEST_BYTES))).index(index);
    SimDevice::new(options.address_model(ObservedDriver::learned(learned)))
}

/// A simulated device on which waiting blocks become free at entries of the recording, and the progress of the replay.
///
/// Memory and addresses come from the simulated device. The time at which other streams finish with a block does not, because
/// it depended on the recorded program and the GPU. The replay therefore supplies it through the stream that it records on
/// the block ([`crate::completions`]).
#[derive(Clone, Debug)]
struct TimedDevice {
    device: SimDevice,
    /// The entry of the current operation, or its time in nanoseconds.
    now: u64,
    /// Whether `now` is a time, so that a wait for an event lasts until the event is complete.
    waits: bool,
    /// Whether the run is over. After that, no more memory is released, because the device is dropped with the allocator.
    is_over: bool,
}

impl DeviceBackend for TimedDevice {
    /// The time at which the event's block becomes free, in the unit of `now`; the largest number means never.
    type Event = u64;
    type Physical = SimPhysical;

    /// Works as in an exact replay: without this, every request would poll every waiting block.
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
    use parkade_recording::Entry;
    use parkade_sim::SimOptions;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn allocate(id: usize, mib: u64) -> Operation {
        Operation::Allocate { id, bytes: mib * MIB, stream: 0, pool: PoolId::DEFAULT, failed: false }
    }

    fn predicted(operations: &[Operation], settings: &str, limit_mib: Option<u64>, timing: Timing) -> Prediction {
        let operations = operations.iter().copied().enumerate().collect();
        let requests = Requests { operations, pools: vec![PoolId(1, 0)], ..Requests::default() };
        let settings = Settings::from_environment(settings).unwrap();
        let limit_bytes = limit_mib.map(|mib| mib * MIB);
        let (profile, after_failure) = (&Profile::PYTORCH_2_11, AfterFailure::GoOn);
        let options = PredictOptions { profile, settings, limit_bytes, after_failure, timing };
        predict(&requests, SimDevice::new(SimOptions::new(Bytes(1 << 40))), &options)
    }

    fn peak_mib(prediction: &Prediction) -> i64 {
        prediction.peak_reserved_bytes() / MIB as i64
    }

    #[test]
    fn settings_and_limit_decide() {
        let free = |id| Operation::Free { id, completion: Completion::AtOnce };
        let operations = [allocate(0, 100), free(0), allocate(1, 60), allocate(2, 60), allocate(3, 90), free(3), allocate(4, 20)];
        let recorded = Timing::Recorded;
        let plain = predicted(&operations, "", None, recorded);
        assert_eq!((peak_mib(&plain), plain.first_failure, plain.driver_calls), (250, None, 3));
        let split = predicted(&operations, "max_split_size_mb:20", None, recorded);
        assert_eq!(
            peak_mib(&split),
            240,
            "100 MiB may not be split: it is too large for 60, serves 90, and 20 needs a segment of its own"
        );
        let limited = predicted(&operations, "", Some(200), recorded);
        assert_eq!(
            (limited.first_failure, limited.stats.num_ooms, limited.device_errors),
            (Some(4), 1, 0),
            "and the run goes on"
        );
        assert_eq!(peak_mib(&predicted(&operations, "expandable_segments:True", None, recorded)), 220);
    }

    #[test]
    fn memory_that_other_streams_use_becomes_free_as_the_timing_says() {
        let peak = |completion, operation: Operation, timing| {
            let free = Operation::Free { id: 0, completion };
            peak_mib(&predicted(&[allocate(0, 50), free, operation, allocate(1, 50)], "", None, timing))
        };
        let nothing = Operation::AbandonPool(PoolId::DEFAULT);
        let peaks =
            |completion| [Timing::Recorded, Timing::Earliest, Timing::Latest].map(|timing| peak(completion, nothing, timing));
        assert_eq!(peaks(Completion::AtOnce), [50, 50, 50]);
        assert_eq!(peaks(Completion::AtEntry(2)), [50, 50, 100]);
        assert_eq!(peaks(Completion::AtEntry(5)), [100, 50, 100]);
        assert_eq!(peaks(Completion::Never), [100, 50, 100]);
        assert_eq!(peak(Completion::Never, Operation::EmptyCache, Timing::Recorded), 50, "empty_cache waits");
    }

    #[test]
    fn a_private_pool_keeps_its_memory_while_it_is_in_use() {
        let private = Operation::Allocate { id: 0, bytes: 50 * MIB, stream: 0, pool: PoolId(1, 0), failed: false };
        let free = Operation::Free { id: 0, completion: Completion::AtOnce };
        let kept = [private, free, Operation::EmptyCache, allocate(1, 40)];
        assert_eq!(peak_mib(&predicted(&kept, "", None, Timing::Recorded)), 90);
        let abandoned = [private, free, Operation::AbandonPool(PoolId(1, 0)), Operation::EmptyCache, allocate(1, 40)];
        assert_eq!(peak_mib(&predicted(&abandoned, "", None, Timing::Recorded)), 50);
    }

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
