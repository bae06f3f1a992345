//! Examples that test the laws of the device: clones, faults, faulty address models, and events under every timing.

use parkade::device::{BackendError, DeviceBackend};
use parkade::units::{Bytes, DeviceAddress, MIB, StreamId};
use parkade_sim::address::{AddressModel, Reuse, Scripted};
use parkade_sim::{CallName, EventTiming, FaultError, FaultPlan, SimDevice, SimEvent, SimOptions, When};

const PAGE: u64 = 2 * MIB;

fn recorded(device: &mut SimDevice, stream: u64) -> SimEvent {
    let mut event = device.create_event().unwrap();
    device.record_event(&mut event, StreamId(stream)).unwrap();
    event
}

fn with(timing: EventTiming) -> SimDevice {
    SimDevice::new(SimOptions::new(Bytes::mib(100)).event_timing(timing))
}

#[test]
fn waiting_for_an_event_completes_those_before_it_and_moves_the_clock_to_its_end() {
    for timing in [EventTiming::Clock, EventTiming::Lazy, EventTiming::Seeded(3)] {
        let mut device = with(timing);
        device.spin(StreamId(1), 1_000_000);
        let before = recorded(&mut device, 1);
        let waited = recorded(&mut device, 1);
        device.spin(StreamId(1), 9_000_000);
        let after = recorded(&mut device, 1);
        device.wait(&waited).unwrap();
        assert_eq!(device.now_ns(), 1_000_000, "{timing:?}");
        let seen = [&before, &waited, &after].map(|event| device.is_complete(event).unwrap());
        assert_eq!(seen, [true, true, false], "{timing:?}");
    }
}

#[test]
fn an_event_recorded_again_follows_its_newest_record() {
    let mut device = with(EventTiming::Lazy);
    let mut event = recorded(&mut device, 1);
    device.record_event(&mut event, StreamId(2)).unwrap();
    device.complete(StreamId(1));
    assert_eq!(device.is_complete(&event), Ok(false));
    device.complete(StreamId(2));
    assert_eq!(device.is_complete(&event), Ok(true));
    device.record_event(&mut event, StreamId(2)).unwrap();
    assert_eq!(device.is_complete(&event), Ok(false));
}

#[test]
fn an_event_never_recorded_is_complete_and_one_destroyed_is_refused() {
    let mut device = with(EventTiming::Lazy);
    let event = device.create_event().unwrap();
    assert_eq!(device.is_complete(&event), Ok(true));
    device.wait(&event).unwrap();
    let mut copy = event.clone();
    device.destroy_event(event);
    let refused = |call| BackendError::Driver { call, code: 400 };
    assert_eq!(device.is_complete(&copy), Err(refused("cudaEventQuery")));
    assert_eq!(device.wait(&copy), Err(refused("cudaEventSynchronize")));
    assert_eq!(device.record_event(&mut copy, StreamId(1)), Err(refused("cudaEventRecord")));
    device.destroy_event(copy);
    assert_eq!(device.live_events(), 0);
}

#[test]
fn manual_completion_ends_the_work_too() {
    let mut device = with(EventTiming::Clock);
    let address = device.malloc(Bytes::mib(2)).unwrap();
    device.spin(StreamId(1), 1 << 40);
    device.complete_all();
    device.free(address).unwrap();
    assert_eq!(device.waited_ns(), 0);
}

#[test]
fn a_clone_goes_its_own_way() {
    let mut device =
        SimDevice::new(SimOptions::new(Bytes::mib(100)).address_model(Reuse::new()).event_timing(EventTiming::Seeded(1)));
    let address = device.malloc(Bytes::mib(10)).unwrap();
    let event = recorded(&mut device, 1);
    let mut other = device.clone();
    other.free(address).unwrap();
    other.complete_all();
    assert_eq!(other.is_complete(&event), Ok(true));
    assert_eq!(other.malloc(Bytes::mib(4)).unwrap(), address);
    assert_eq!(device.used_bytes(), Bytes::mib(10));
    assert_eq!(device.malloc(Bytes::mib(4)).unwrap(), address.offset(Bytes::mib(10)));
}

#[test]
fn a_scripted_model_can_be_fed_and_asked_through_the_device() {
    let mut device = SimDevice::new(SimOptions::new(Bytes::mib(100)).address_model(Scripted::new([0x7f00_0000_0000])));
    assert_eq!(device.malloc(Bytes::mib(2)).unwrap(), DeviceAddress(0x7f00_0000_0000));
    device.address_model_mut::<Scripted>().unwrap().push(0x7e00_0000_0000);
    assert_eq!(device.malloc(Bytes::mib(2)).unwrap(), DeviceAddress(0x7e00_0000_0000));
    device.malloc(Bytes::mib(2)).unwrap();
    assert_eq!(device.address_model::<Scripted>().unwrap().fallbacks(), 1);
    assert!(device.address_model::<Reuse>().is_none());
}

/// An address model that always returns the same address.
#[derive(Clone, Debug)]
struct Stuck(u64);

impl AddressModel for Stuck {
    fn place(&mut self, _bytes_reserved: u64, _request: u64) -> Option<u64> {
        Some(self.0)
    }
    fn release(&mut self, _address: u64, _bytes_reserved: u64) {}
    fn boxed_clone(&self) -> Box<dyn AddressModel> {
        Box::new(self.clone())
    }
}

#[test]
fn an_unusable_address_is_an_error_and_nothing_changes() {
    let refused = Err(BackendError::Driver { call: "cudaMalloc", code: 999 });
    for unusable in [0, 100, u64::MAX - 511] {
        let mut device = SimDevice::new(SimOptions::new(Bytes::mib(100)).address_model(Stuck(unusable)));
        assert_eq!(device.malloc(Bytes::mib(2)), refused);
        assert_eq!(device.used_bytes(), Bytes::ZERO);
    }
    let mut device = SimDevice::new(SimOptions::new(Bytes::mib(100)).address_model(Stuck(PAGE)));
    let address = device.malloc(Bytes::mib(2)).unwrap();
    assert_eq!(device.malloc(Bytes::mib(2)), refused);
    assert_eq!(device.malloc(Bytes(512)), refused);
    device.free(address).unwrap();
    assert_eq!((device.used_bytes(), device.malloc(Bytes(512))), (Bytes::ZERO, Ok(DeviceAddress(PAGE))));
}

/// Makes one call of every kind that can fail. Stops at the first failure.
fn program(device: &mut SimDevice) -> Result<(), BackendError> {
    let address = device.malloc(Bytes::mib(4))?;
    device.memory_info()?;
    let mut event = device.create_event()?;
    device.record_event(&mut event, StreamId(1))?;
    device.is_complete(&event)?;
    device.wait(&event)?;
    device.destroy_event(event);
    device.free(address)
}

#[test]
fn every_call_can_be_made_to_fail_without_effect() {
    let names = [
        "cudaMalloc",
        "cudaMemGetInfo",
        "cudaEventCreate",
        "cudaEventRecord",
        "cudaEventQuery",
        "cudaEventSynchronize",
        "cudaFree",
    ];
    for (n, call) in (1..).zip(names) {
        let mut device = with(EventTiming::Clock);
        device.set_fault_plan(FaultPlan::none().and(When::Nth(n), FaultError::Code(719)));
        assert_eq!(program(&mut device), Err(BackendError::Driver { call, code: 719 }));
        assert_eq!(device.fault_plan().fired(), 1);
        let (events, used) = (usize::from((4..7).contains(&n)), if n > 1 { Bytes::mib(4) } else { Bytes::ZERO });
        assert_eq!((device.live_events(), device.used_bytes()), (events, used), "{call}");
        program(&mut device).expect("the fault happens once");
    }
    let mut device = with(EventTiming::Clock);
    device.set_fault_plan(FaultPlan::none().and(When::Nth(8), FaultError::OutOfMemory));
    assert_eq!((program(&mut device), device.fault_plan().fired()), (Ok(()), 0));
}

#[test]
fn a_planned_failure_of_malloc_is_out_of_memory_when_asked() {
    let mut device = with(EventTiming::Clock);
    device.set_fault_plan(FaultPlan::none().and(When::NthOf(CallName::Malloc, 2), FaultError::OutOfMemory));
    device.malloc(Bytes(1)).unwrap();
    assert_eq!(device.malloc(Bytes(1)), Err(BackendError::OutOfMemory { requested: Bytes(1) }));
    device.malloc(Bytes(1)).unwrap();
    assert_eq!(device.totals(CallName::Malloc).failures, 1);
}

#[test]
fn a_free_that_does_not_wait_completes_nothing() {
    let mut device = SimDevice::new(SimOptions::fake_driver(Bytes::mib(100)));
    let address = device.malloc(Bytes::mib(2)).unwrap();
    device.spin(StreamId(1), 1000);
    let event = recorded(&mut device, 1);
    device.free(address).unwrap();
    assert_eq!((device.is_complete(&event), device.now_ns()), (Ok(false), 0));
}

#[test]
fn complete_one_skips_what_the_clock_has_completed() {
    let mut device = with(EventTiming::Clock);
    recorded(&mut device, 1);
    device.spin(StreamId(1), 1000);
    let pending = recorded(&mut device, 1);
    assert_eq!(device.complete_one(StreamId(1)), 1);
    assert_eq!(device.is_complete(&pending), Ok(true));
}
