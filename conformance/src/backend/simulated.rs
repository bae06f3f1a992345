//! The simulated device as the suite drives it.

use parkade::device::BackendError;
use parkade::units::{Bytes, DeviceAddress, StreamId};
use parkade_sim::address::{Ascending, Descending, RESERVATION_START, Reuse};
use parkade_sim::{AccessError, EventTiming as DeviceTiming, RaceAccess, RaceUse, SimDevice, SimOptions};

use super::interface::{Backend, EventTiming, Holdings, Insight, Needs, Places, Race, RaceSide, TestDevice, Touch, Unable};

/// Stream handles of simulated devices: not consecutive, not in order, and one near the top of the number range.
pub const STREAMS: [u64; 4] = [0, 0x3000, 0x1000, 0xffff_ffff_ffff_f000];

/// The error code for access to memory that does not belong to the caller: "an illegal memory access was encountered".
const ILLEGAL_ADDRESS: u32 = 700;

/// Opens simulated devices.
#[derive(Clone, Copy, Default, Debug)]
pub struct Simulated;

impl Backend for Simulated {
    type Device = SimDevice;

    fn name(&self) -> &'static str {
        "sim"
    }

    fn open(&self, needs: &Needs) -> Result<SimDevice, Unable> {
        let options = needs.capacity.map_or_else(SimOptions::h200, SimOptions::new);
        let options = options.event_timing(device_timing(needs.simulation.timing)).free_waits(needs.simulation.free_waits);
        Ok(SimDevice::new(match needs.simulation.places {
            Places::Ascending => options.address_model(Ascending::new()),
            Places::Descending => options.address_model(Descending::new()),
            Places::Reuse => options.address_model(Reuse::new()).reservation_model(Reuse::starting_at(RESERVATION_START)),
        }))
    }

    fn describe(&self) -> Vec<(&'static str, String)> {
        vec![("device", "simulated, based on the measured driver of an NVIDIA H200".to_owned())]
    }

    fn is_simulated(&self) -> bool {
        true
    }
}

fn refused(call: &'static str) -> impl Fn(AccessError) -> BackendError {
    move |_| BackendError::Driver { call, code: ILLEGAL_ADDRESS }
}

impl TestDevice for SimDevice {
    fn streams(&self) -> [StreamId; 4] {
        STREAMS.map(StreamId)
    }

    fn spin(&mut self, stream: StreamId, duration_ns: u64) -> Result<(), BackendError> {
        SimDevice::spin(self, stream, duration_ns);
        Ok(())
    }

    fn fill(&mut self, address: DeviceAddress, size: Bytes, word: u32, stream: StreamId) -> Result<(), BackendError> {
        SimDevice::fill(self, address, size, word, stream).map_err(refused("cuMemsetD32Async"))
    }

    fn copy(&mut self, from: DeviceAddress, to: DeviceAddress, size: Bytes, stream: StreamId) -> Result<(), BackendError> {
        SimDevice::copy(self, from, to, size, stream).map_err(refused("cuMemcpyDtoDAsync_v2"))
    }

    fn read(&mut self, address: DeviceAddress, into: &mut [u8]) -> Result<(), BackendError> {
        SimDevice::read(self, address, into).map_err(refused("cuMemcpyDtoH_v2"))
    }

    fn settle(&mut self) {
        self.synchronize();
    }

    fn pause(&mut self, duration_ns: u64) {
        self.advance(duration_ns);
    }

    fn live_ranges(&self) -> Vec<(DeviceAddress, Bytes)> {
        SimDevice::live_ranges(self).collect()
    }

    fn holdings(&self) -> Holdings {
        Holdings {
            ranges: SimDevice::live_ranges(self).count(),
            reservations: self.live_reservations(),
            physical: self.live_physical(),
            events: self.live_events(),
        }
    }

    fn others_hold(&mut self, bytes: Bytes) -> Result<(), BackendError> {
        self.set_external_bytes(bytes);
        Ok(())
    }

    fn withheld_bytes(&self) -> Bytes {
        self.withheld()
    }

    fn insight(&mut self) -> Option<&mut dyn Insight> {
        Some(self)
    }
}

/// Converts the timing to the simulated device's type.
fn device_timing(timing: EventTiming) -> DeviceTiming {
    match timing {
        EventTiming::Clock => DeviceTiming::Clock,
        EventTiming::Eager => DeviceTiming::Eager,
        EventTiming::Lazy => DeviceTiming::Lazy,
        EventTiming::Seeded(seed) => DeviceTiming::Seeded(seed),
    }
}

fn side(access: &RaceAccess) -> RaceSide {
    let touch = match access.what {
        RaceUse::Read => Touch::Read,
        RaceUse::Written => Touch::Written,
        RaceUse::Unmapped => Touch::Unmapped,
        RaceUse::Freed => Touch::Freed,
    };
    RaceSide { touch, stream: access.stream, address: access.address, size: access.size, text: access.to_string() }
}

impl Insight for SimDevice {
    fn races(&self) -> Vec<Race> {
        let seen =
            |race: &parkade_sim::Race| Race { first: side(&race.first), second: side(&race.second), text: race.to_string() };
        SimDevice::races(self).iter().map(seen).collect()
    }

    fn race_count(&self) -> u64 {
        SimDevice::races(self).len() as u64 + self.more_races()
    }

    fn used_bytes(&self) -> Bytes {
        SimDevice::used_bytes(self)
    }

    fn now_ns(&self) -> u64 {
        SimDevice::now_ns(self)
    }

    fn driver_and_wait_ns(&self) -> u64 {
        self.driver_ns() + self.waited_ns()
    }

    fn complete(&mut self, stream: StreamId) {
        SimDevice::complete(self, stream);
    }

    fn complete_one(&mut self, stream: StreamId) {
        SimDevice::complete_one(self, stream);
    }

    fn complete_all(&mut self) {
        SimDevice::complete_all(self);
    }

    fn begin_capture(&mut self, stream: StreamId) {
        SimDevice::begin_capture(self, stream);
    }

    fn end_capture(&mut self, stream: StreamId) {
        SimDevice::end_capture(self, stream);
    }

    fn is_captured(&self, stream: StreamId) -> bool {
        SimDevice::is_captured(self, stream)
    }

    fn capture_work(&mut self, stream: StreamId) -> bool {
        SimDevice::capture_work(self, stream).is_some()
    }

    fn capture_wait(&mut self, stream: StreamId, other: StreamId) -> bool {
        SimDevice::capture_wait(self, stream, other)
    }
}
