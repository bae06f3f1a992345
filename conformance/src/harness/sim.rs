//! The simulated device as the suite drives it.

use parkade::device::BackendError;
use parkade::units::{Bytes, DeviceAddress, StreamId};
use parkade_sim::address::{Ascending, Descending, Reuse};
use parkade_sim::{AccessError, SimDevice, SimOptions};

use super::{Backend, Holdings, Needs, TestDevice, Unable};
use crate::operation::{Places, STREAMS};

/// What a program that touches memory it may not touch ends with: "an illegal memory access was encountered".
const ILLEGAL_ADDRESS: u32 = 700;

/// Makes simulated devices.
#[derive(Clone, Copy, Default, Debug)]
pub struct Simulated;

impl Backend for Simulated {
    type Device = SimDevice;

    fn name(&self) -> &'static str {
        "sim"
    }

    fn open(&self, needs: &Needs) -> Result<SimDevice, Unable> {
        let options = needs.capacity.map_or_else(SimOptions::h200, SimOptions::new);
        let options = options.event_timing(needs.timing).free_waits(needs.free_waits);
        Ok(SimDevice::new(match needs.places {
            Places::Ascending => options.address_model(Ascending::new()),
            Places::Descending => options.address_model(Descending::new()),
            Places::Reuse => options.address_model(Reuse::new()),
        }))
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        vec![("device", "simulated, after the measured driver of an NVIDIA H200".to_owned())]
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

    fn simulated(&mut self) -> Option<&mut SimDevice> {
        Some(self)
    }
}
