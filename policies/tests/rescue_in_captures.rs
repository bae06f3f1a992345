//! Rescues during captures on a device that is as strict as CUDA, and rescues under limits and older releases.

use std::collections::BTreeSet;

use parkade::device::{BackendError, Capture, DeviceBackend, GraphNode, MemoryInfo};
use parkade::policy::PyTorch;
use parkade::profile::Profile;
use parkade::settings::Settings;
use parkade::trace::TraceEntry;
use parkade::units::{Bytes, DeviceAddress, PoolId, StreamId};
use parkade::{AllocError, Allocation, Allocator, PoolFilter};
use parkade_policies::{Reach, Rescue};
use parkade_sim::{SimDevice, SimEvent, SimOptions, SimPhysical};

type Core<D> = Allocator<D, Rescue, Vec<TraceEntry>>;
const POOL: PoolId = PoolId(1, 0);
const ZERO: StreamId = StreamId::DEFAULT;
const ONE: StreamId = StreamId(1);

fn settings() -> Settings {
    Settings { expandable_segments: true, ..Settings::default() }
}

fn rescue(profile: &'static Profile, reach: Reach) -> Rescue {
    Rescue::new(PyTorch::of(profile, settings()), Some(reach))
}

fn sim(mib: u64) -> SimDevice {
    SimDevice::new(SimOptions::new(Bytes::mib(mib)))
}

fn take<D: DeviceBackend>(core: &mut Core<D>, mib: u64, stream: StreamId) -> Result<Allocation, AllocError> {
    core.allocate(Bytes::mib(mib), stream)
}

/// Pages of 20 MiB, 5 MiB of each stay in use.
fn scatter<D: DeviceBackend>(core: &mut Core<D>, pages: usize, stream: StreamId) -> Vec<Allocation> {
    let blocks: Vec<_> = (0..4 * pages).map(|_| take(core, 5, stream).unwrap()).collect();
    let mut kept = Vec::new();
    for (place, block) in blocks.into_iter().enumerate() {
        if place % 4 == 1 { kept.push(block) } else { core.free(block).unwrap() }
    }
    kept
}

fn capture(core: &mut Core<SimDevice>, mib: u64) -> Allocation {
    core.begin_pool(POOL, PoolFilter::Stream(ONE)).unwrap();
    core.device_mut().begin_capture(ONE);
    let block = take(core, mib, ONE).unwrap();
    core.device_mut().end_capture(ONE);
    core.end_pool(POOL).unwrap();
    block
}

// 2
#[test]
fn what_a_restore_hands_out_is_handed_out() {
    let options = SimOptions::new(Bytes::mib(50)).reservation_model(parkade_sim::address::Reuse::new());
    let mut core: Core<SimDevice> =
        Allocator::new(SimDevice::new(options), rescue(&Profile::PYTORCH_2_11, Reach::Breaks), Vec::new());
    let blocks = [capture(&mut core, 5), capture(&mut core, 5)];
    let checkpoint = core.checkpoint_pool(POOL).unwrap();
    blocks.into_iter().for_each(|block| core.free(block).unwrap());
    (0..2).for_each(|_| core.release_pool(POOL).unwrap());
    core.release_cached().unwrap();
    // A new pool with the same id, whose segment gets the same addresses.
    let _first = capture(&mut core, 5);
    let restored = core.restore_pool(&checkpoint).unwrap();
    let second = restored.allocations[1].address();
    // `core.check().unwrap()` fails here.
    restored.allocations.into_iter().for_each(|block| core.free(block).unwrap());
    let _tensor = take(&mut core, 40, ZERO);
    core.device_mut().fill(second, Bytes::mib(5), 1, ZERO).expect("a graph may write there");
}

// 3
#[test]
fn before_2_5_private_pools_keep_the_limit_after_a_rescue() {
    let mut core: Core<SimDevice> = Allocator::new(sim(200), rescue(&Profile::PYTORCH_2_4, Reach::Free), Vec::new());
    core.set_limit(Some(Bytes::mib(50)));
    let _kept = take(&mut core, 15, ZERO).unwrap();
    let _large = take(&mut core, 31, ZERO).unwrap();
    assert_eq!(core.stats().num_rescues, 1);
    core.begin_pool(POOL, PoolFilter::Stream(ONE)).unwrap();
    let _graph = take(&mut core, 100, ONE);
    assert!(core.heap().reserved() <= Bytes::mib(50), "{} bytes are reserved", core.heap().reserved());
}

// 10
#[test]
fn a_failed_attempt_is_not_one_of_the_most_rescues() {
    let mut core: Core<SimDevice> =
        Allocator::new(sim(200), rescue(&Profile::PYTORCH_2_11, Reach::Breaks).at_most(1), Vec::new());
    let _kept = scatter(&mut core, 10, ZERO);
    take(&mut core, 180, ZERO).unwrap_err();
    assert_eq!(core.stats().num_rescues, 0);
    assert!(take(&mut core, 100, ZERO).is_ok(), "no request has been rescued so far");
}

// 7
#[test]
fn with_rejections_a_limit_leaves_room_for_a_rescue() {
    let settings = Settings { throw_on_cudamalloc_oom: true, per_process_memory_fraction: 0.5, ..settings() };
    for reach in [None, Some(Reach::Free)] {
        let policy = Rescue::new(PyTorch::new(settings.clone()), reach);
        let mut core: Core<SimDevice> = Allocator::new(sim(100), policy, Vec::new());
        core.set_memory_fraction(0.5).unwrap();
        let _kept = take(&mut core, 15, ZERO).unwrap();
        let large = take(&mut core, 31, ZERO);
        match reach {
            None => assert!(matches!(large, Err(AllocError::OutOfMemory(_))), "{large:?}"),
            Some(_) => assert!(large.is_ok(), "{large:?}; rescues: {}", core.stats().num_rescues),
        }
    }
}

/// A device with the rules of CUDA and of `CudaDevice` for captures.
struct Strict {
    sim: SimDevice,
    captured: BTreeSet<StreamId>,
    known: BTreeSet<StreamId>,
    /// `capture` fails for these streams.
    unanswered: BTreeSet<StreamId>,
    wrong: Vec<String>,
}

impl Strict {
    fn new(sim: SimDevice) -> Strict {
        let none = BTreeSet::new;
        Strict { sim, captured: none(), known: none(), unanswered: none(), wrong: Vec::new() }
    }

    fn begin(&mut self, stream: StreamId) {
        self.sim.begin_capture(stream);
        self.captured.insert(stream);
    }

    fn look(&mut self, stream: StreamId, call: &'static str) -> Result<(), BackendError> {
        self.known.insert(stream);
        if self.captured.contains(&stream) {
            self.wrong.push(format!("{call} on captured {stream:?}"));
            return Err(BackendError::Driver { call, code: 900 });
        }
        Ok(())
    }
}

type Answer<T> = Result<T, BackendError>;

impl DeviceBackend for Strict {
    type Event = SimEvent;
    type Physical = SimPhysical;

    fn index(&self) -> u32 {
        self.sim.index()
    }
    fn total_memory(&self) -> Bytes {
        self.sim.total_memory()
    }
    fn memory_info(&mut self) -> Answer<MemoryInfo> {
        self.sim.memory_info()
    }
    fn malloc(&mut self, size: Bytes) -> Answer<DeviceAddress> {
        self.sim.malloc(size)
    }
    fn free(&mut self, address: DeviceAddress) -> Answer<()> {
        self.sim.free(address)
    }
    fn reserve(&mut self, size: Bytes) -> Answer<DeviceAddress> {
        self.sim.reserve(size)
    }
    fn unreserve(&mut self, address: DeviceAddress, size: Bytes) -> Answer<()> {
        self.sim.unreserve(address, size)
    }
    fn create(&mut self, size: Bytes) -> Answer<SimPhysical> {
        self.sim.create(size)
    }
    fn map(&mut self, address: DeviceAddress, size: Bytes, memory: &SimPhysical) -> Answer<()> {
        self.sim.map(address, size, memory)
    }
    fn set_access(&mut self, address: DeviceAddress, size: Bytes) -> Answer<()> {
        self.sim.set_access(address, size)
    }
    fn unmap(&mut self, address: DeviceAddress, size: Bytes) -> Answer<()> {
        self.sim.unmap(address, size)
    }
    fn release(&mut self, memory: SimPhysical) -> Result<(), (SimPhysical, BackendError)> {
        self.sim.release(memory)
    }
    fn waits_in_captures(&self) -> bool {
        true
    }
    fn breaks_handles(&self) -> bool {
        true
    }
    fn break_handle(
        &mut self,
        address: DeviceAddress,
        size: Bytes,
        memory: SimPhysical,
        parts: &[(Bytes, Bytes)],
    ) -> Result<Vec<SimPhysical>, (SimPhysical, BackendError)> {
        // `CudaDevice::wait_for_work` calls cuCtxSynchronize if no stream that the device knows is captured.
        if !self.captured.is_empty() && self.captured.is_disjoint(&self.known) {
            self.wrong.push(format!("cuCtxSynchronize while {:?} is captured", self.captured));
        }
        self.sim.break_handle(address, size, memory, parts)
    }
    fn run_pages(&self) -> u64 {
        self.sim.run_pages()
    }
    fn create_run(&mut self, page: Bytes, pages: u64) -> Answer<(SimPhysical, u64)> {
        self.sim.create_run(page, pages)
    }
    fn split_run(&mut self, memory: &mut SimPhysical, page: Bytes, pages: u64) -> Answer<SimPhysical> {
        self.sim.split_run(memory, page, pages)
    }
    fn unmap_run(&mut self, address: DeviceAddress, page: Bytes, pages: u64) -> Answer<()> {
        self.sim.unmap_run(address, page, pages)
    }
    fn synchronize_stream(&mut self, stream: StreamId) -> Answer<()> {
        self.look(stream, "cuStreamSynchronize")?;
        self.sim.synchronize_stream(stream)
    }
    fn create_event(&mut self) -> Answer<SimEvent> {
        self.sim.create_event()
    }
    fn record_event(&mut self, event: &mut SimEvent, stream: StreamId) -> Answer<()> {
        // CUDA accepts this, and makes every stream that waits for the event take part in the capture.
        let _ = self.look(stream, "cuEventRecord");
        self.sim.record_event(event, stream)
    }
    fn is_complete(&mut self, event: &SimEvent) -> Answer<bool> {
        self.sim.is_complete(event)
    }
    fn wait(&mut self, event: &SimEvent) -> Answer<()> {
        self.sim.wait(event)
    }
    fn stream_wait(&mut self, stream: StreamId, event: &SimEvent) -> Answer<()> {
        let _ = self.look(stream, "cuStreamWaitEvent");
        DeviceBackend::stream_wait(&mut self.sim, stream, event)
    }
    fn capture(&mut self, stream: StreamId) -> Answer<Option<Capture>> {
        if self.unanswered.contains(&stream) {
            return Err(BackendError::Driver { call: "cuStreamGetCaptureInfo_v3", code: 906 });
        }
        self.known.insert(stream);
        self.sim.capture(stream)
    }
    fn add_awaited(&mut self, stream: StreamId, awaited: &mut BTreeSet<GraphNode>) -> Answer<()> {
        self.sim.add_awaited(stream, awaited)
    }
    fn destroy_event(&mut self, event: SimEvent) {
        self.sim.destroy_event(event);
    }
}

fn strict(mib: u64, profile: &'static Profile, reach: Reach) -> Core<Strict> {
    Allocator::new(Strict::new(sim(mib)), rescue(profile, reach), Vec::new())
}

// 5
#[test]
fn from_2_13_on_a_captured_stream_is_left_alone_by_requests_of_other_streams() {
    let mut core = strict(50, &Profile::PYTORCH_2_15, Reach::Free);
    let (_mine, gone) = (take(&mut core, 2, ONE).unwrap(), take(&mut core, 18, ONE).unwrap());
    core.free(gone).unwrap();
    let _other = take(&mut core, 20, ZERO).unwrap();
    core.begin_pool(POOL, PoolFilter::Stream(ONE)).unwrap();
    core.device_mut().begin(ONE);
    // The caller's current stream is stream 2, which is not captured.
    core.set_capturing(false);
    let _answer = take(&mut core, 15, StreamId(2));
    assert!(core.device().wrong.is_empty(), "{:?}", core.device().wrong);
}

// 5, without the wait: PyTorch alone does nothing to the captured stream here.
#[test]
fn pytorch_leaves_the_captured_stream_alone() {
    let policy = Rescue::new(PyTorch::of(&Profile::PYTORCH_2_15, settings()), None);
    let mut core: Core<Strict> = Allocator::new(Strict::new(sim(50)), policy, Vec::new());
    let (_mine, gone) = (take(&mut core, 2, ONE).unwrap(), take(&mut core, 18, ONE).unwrap());
    core.free(gone).unwrap();
    let _other = take(&mut core, 20, ZERO).unwrap();
    core.begin_pool(POOL, PoolFilter::Stream(ONE)).unwrap();
    core.device_mut().begin(ONE);
    assert!(matches!(take(&mut core, 15, StreamId(2)), Err(AllocError::OutOfMemory(_))));
    assert!(core.device().wrong.is_empty(), "{:?}", core.device().wrong);
}

// 6
#[test]
fn the_device_does_not_wait_for_everything_if_the_captured_stream_has_not_asked_for_memory_yet() {
    let mut core = strict(200, &Profile::PYTORCH_2_11, Reach::Breaks);
    let _kept = scatter(&mut core, 10, ZERO);
    core.begin_pool(POOL, PoolFilter::Stream(ONE)).unwrap();
    core.device_mut().begin(ONE);
    let _answer = take(&mut core, 100, ZERO);
    assert!(core.device().wrong.is_empty(), "{:?}", core.device().wrong);
}

// 11
#[test]
fn a_stream_about_which_the_driver_does_not_answer_leaves_an_out_of_memory_error() {
    // The default stream, while a blocking stream is captured (906), or a stream that was destroyed (400), without any
    // capture.
    for (unanswered, captures) in [(ZERO, true), (StreamId(9), false)] {
        let mut core = strict(200, &Profile::PYTORCH_2_11, Reach::Breaks);
        let _kept = scatter(&mut core, 9, ZERO);
        let gone = take(&mut core, 5, StreamId(9)).unwrap();
        core.free(gone).unwrap();
        core.release_cached().unwrap();
        core.device_mut().unanswered.insert(unanswered);
        if captures {
            core.begin_pool(POOL, PoolFilter::Stream(ONE)).unwrap();
            core.device_mut().begin(ONE);
        }
        let answer = take(&mut core, 110, if captures { ONE } else { ZERO });
        assert!(matches!(answer, Ok(_) | Err(AllocError::OutOfMemory(_))), "{unanswered:?}: {answer:?}");
    }
}
