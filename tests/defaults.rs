//! Tests the defaults of devices and policies.

use parkade::device::{BackendError, DeviceBackend, MemoryInfo};
use parkade::policy::{Attempt, Placement, Policy, PyTorch, Relief, Request, Rung, Wrapper};
use parkade::profile::Profile;
use parkade::settings::Settings;
use parkade::trace::{TraceAction, TraceEntry};
use parkade::units::{Bytes, DeviceAddress, MIB, PoolClass, StreamId};
use parkade::{AllocError, Allocator, Heap, PoolSlot};

/// A device with only malloc and free.
struct MallocOnly {
    next: u64,
}

impl DeviceBackend for MallocOnly {
    type Event = ();
    type Physical = Bytes;

    fn index(&self) -> u32 {
        0
    }
    fn total_memory(&self) -> Bytes {
        Bytes::mib(1024)
    }
    fn memory_info(&mut self) -> Result<MemoryInfo, BackendError> {
        Ok(MemoryInfo { free: Bytes::ZERO, total: Bytes::mib(1024) })
    }
    fn malloc(&mut self, size: Bytes) -> Result<DeviceAddress, BackendError> {
        let address = self.next;
        self.next += size.get().next_multiple_of(512);
        Ok(DeviceAddress(address))
    }
    fn free(&mut self, _: DeviceAddress) -> Result<(), BackendError> {
        Ok(())
    }
    fn create_event(&mut self) -> Result<(), BackendError> {
        Ok(())
    }
    fn record_event(&mut self, (): &mut (), _: StreamId) -> Result<(), BackendError> {
        Ok(())
    }
    fn is_complete(&mut self, (): &()) -> Result<bool, BackendError> {
        Ok(true)
    }
    fn wait(&mut self, (): &()) -> Result<(), BackendError> {
        Ok(())
    }
    fn destroy_event(&mut self, (): ()) {}
}

#[test]
fn a_device_without_virtual_memory_refuses_it() {
    let mut device = MallocOnly { next: 1 << 40 };
    let (address, size) = (DeviceAddress(1 << 40), Bytes(2 * MIB));
    let reserved = device.reserve(size).map(|_| ());
    let created = device.create(size).map(|_| ());
    let (memory, released) = device.release(size).expect_err("there is none");
    assert_eq!(memory, size, "it still belongs to the caller");
    let answers = [
        reserved,
        device.unreserve(address, size),
        created,
        device.map(address, size, &size),
        device.set_access(address, size),
        device.unmap(address, size),
        Err(released),
        device.synchronize_stream(StreamId::DEFAULT),
    ];
    for answer in answers {
        assert!(matches!(answer, Err(BackendError::Driver { .. })), "{answer:?}");
    }
    assert!(device.processes().is_empty(), "it knows nobody");
}

/// A policy with only the required methods: every request gets a segment of its own.
struct Plain;

impl Policy for Plain {
    fn name(&self) -> &'static str {
        "plain"
    }
    fn round(&self, requested: Bytes) -> Option<Bytes> {
        Some(requested)
    }
    fn classify(&self, _: Bytes) -> PoolClass {
        PoolClass::Small
    }
    fn place(&mut self, _: &Heap, request: &Request) -> Placement {
        Placement::Segment(request.size)
    }
    fn splits(&self, _: Bytes, _: &Request) -> bool {
        true
    }
    fn ladder(&self) -> &'static [Rung] {
        &[Rung::Own]
    }

    fn relieve(&mut self, heap: &Heap, _: &Request, rung: u32) -> Relief {
        // Releases everything that is free first, so that the order of releases shows.
        if rung == 0 { Relief::Release { blocks: self.releasable(heap), attempt: Attempt::Ask } } else { Relief::Done }
    }
}

#[test]
fn a_policy_that_says_only_what_it_must() {
    let pool = PoolSlot::default_pool(PoolClass::Small);
    assert_eq!((Plain.max_split_size(), Plain.stamp(pool), Plain.is_oversize(Bytes::MAX)), (-1, 0, false));
    assert_eq!((Plain.is_expandable(pool), Plain.page(pool)), (false, Bytes::mib(2)));
    assert_eq!(Plain.profile(), &Profile::PYTORCH_2_11);
    assert!(!Plain.rejects(Bytes::MAX, Bytes::MAX, Bytes::ZERO));
    // Nine eighths of the memory, or the most that 64 bits hold.
    let addresses = [800, 801, u64::MAX].map(|total| Plain.reservation(Bytes(total)).get());
    assert_eq!(addresses, [900, 901, u64::MAX]);
    let mut core = Allocator::new(MallocOnly { next: 1 << 40 }, Plain, Vec::<TraceEntry>::new());
    assert_eq!(core.stats().max_split_size, -1);
    let first = core.allocate(Bytes(100), StreamId::DEFAULT).expect("the device gives anything");
    core.free(first).expect("ours");
    let second = core.allocate(Bytes(200), StreamId::DEFAULT).expect("the device gives anything");
    let actions: Vec<TraceAction> = core.observer().iter().map(|entry| entry.action).collect();
    let made = [TraceAction::SegmentAlloc, TraceAction::Alloc];
    let released = [TraceAction::FreeRequested, TraceAction::FreeCompleted, TraceAction::SegmentFree];
    assert_eq!(actions, [&made[..], &released[..], &made[..]].concat());
    core.free(second).expect("ours");
}

/// A policy whose answers cannot be carried out; each name is one kind.
struct Wrong(&'static str);

impl Policy for Wrong {
    fn name(&self) -> &'static str {
        "wrong"
    }
    fn round(&self, requested: Bytes) -> Option<Bytes> {
        Some(if self.0 == "smaller" { Bytes(requested.get() - 1) } else { requested })
    }
    fn classify(&self, _: Bytes) -> PoolClass {
        PoolClass::Small
    }
    fn place(&mut self, heap: &Heap, request: &Request) -> Placement {
        let free = heap.free_blocks(PoolSlot::default_pool(PoolClass::Small)).next();
        match free {
            Some(block) if self.0.starts_with("reuses") => Placement::Reuse(block.id),
            _ if self.0 == "asks for a segment that is smaller than the block" => {
                Placement::Segment(Bytes(request.size.get() - 1))
            }
            _ => Placement::Segment(request.size),
        }
    }
    fn splits(&self, _: Bytes, _: &Request) -> bool {
        false
    }
    fn ladder(&self) -> &'static [Rung] {
        &[Rung::Own]
    }

    fn relieve(&mut self, _: &Heap, _: &Request, _: u32) -> Relief {
        let attempt = if self.0 == "never gives up" { Attempt::No } else { Attempt::Ask };
        Relief::Release { blocks: Vec::new(), attempt }
    }
}

/// Serves and takes back 512 bytes of stream 0, then asks for `bytes` of `stream`.
fn second_request(wrong: &'static str, bytes: u64, stream: StreamId) -> Result<(), AllocError> {
    let mut core = Allocator::new(MallocOnly { next: 1 << 40 }, Wrong(wrong), ());
    let first = core.allocate(Bytes(512), StreamId::DEFAULT)?;
    core.free(first).expect("ours");
    let answer = core.allocate(Bytes(bytes), stream).map(|allocation| core.free(allocation).expect("ours"));
    core.check().expect("a sound heap");
    answer
}

#[test]
fn a_wrong_policy_is_named_and_changes_nothing() {
    let cases = [
        ("reuses a block that is too small", 513, StreamId::DEFAULT),
        ("reuses a block of a different pool or stream", 512, StreamId(7)),
        ("asks for a segment that is smaller than the block", 512, StreamId::DEFAULT),
        ("never gives up", 512, StreamId::DEFAULT),
    ];
    for (wrong, bytes, stream) in cases {
        let error = second_request(wrong, bytes, stream).expect_err(wrong).to_string();
        assert_eq!(error, format!("policy wrong {wrong}"));
    }
    assert_eq!(second_request("reuses what fits", 512, StreamId::DEFAULT), Ok(()));
    let smaller = second_request("smaller", 512, StreamId::DEFAULT);
    assert_eq!(smaller, Err(AllocError::TooLarge { requested: Bytes(512) }));
}

/// PyTorch's rules, but every request gets a segment of its own.
struct Afresh(PyTorch);

impl Wrapper for Afresh {
    type Inner = PyTorch;

    fn inner(&self) -> &PyTorch {
        &self.0
    }
    fn inner_mut(&mut self) -> &mut PyTorch {
        &mut self.0
    }
    fn place(&mut self, _: &Heap, request: &Request) -> Placement {
        Placement::Segment(request.size)
    }
}

/// The address of a 4 MiB block that is allocated and freed, twice.
fn twice(policy: impl Policy) -> [DeviceAddress; 2] {
    let mut core = Allocator::new(MallocOnly { next: 1 << 40 }, policy, ());
    [(); 2].map(|()| {
        let block = core.allocate(Bytes::mib(4), StreamId::DEFAULT).expect("room");
        let address = block.address();
        core.free(block).expect("ours");
        address
    })
}

#[test]
fn a_wrapper_that_places_otherwise_is_asked() {
    let fresh = twice(Afresh(PyTorch::new(Settings::default())));
    let reused = twice(PyTorch::new(Settings::default()));
    assert_ne!(fresh[0], fresh[1]);
    assert_eq!(reused[0], reused[1]);
}
