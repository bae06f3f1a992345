//! Other devices of the host: letting them into this one's mappings, and copying from theirs.
//!
//! A mapping is opened to each device by itself (cuMemSetAccess). Ranges of cudaMalloc have no such doors and stay closed to
//! peers.

use parkade::units::{Bytes, DeviceAddress, StreamId};

use super::CudaDevice;
use crate::driver::{PEER_ACCESS_NOT_ENABLED, Peer, can_access_peer};
use crate::error::DriverError;

impl CudaDevice {
    /// Whether this device can reach memory on the device with this index. No device is its own peer.
    ///
    /// # Errors
    /// If there is no such device.
    pub fn can_access_peer(&self, ordinal: u32) -> Result<bool, DriverError> {
        can_access_peer(&self.context, ordinal)
    }

    /// Opens what this device may touch of its mappings to the device with this index too, now and whenever access is given from
    /// now on. Nothing changes for a device that was let in before.
    ///
    /// # Errors
    /// If there is no such device, it cannot reach this one's memory, or the driver refuses; then it has access to nothing.
    pub fn let_peer_access(&mut self, ordinal: u32) -> Result<(), DriverError> {
        if self.peers.iter().any(|peer| peer.ordinal() == ordinal) {
            return Ok(());
        }
        let peer = Peer::of(&self.context, ordinal)?;
        let outcome = self.reservations.values().try_for_each(|reservation| reservation.open_to(&peer));
        match outcome {
            Ok(()) => self.peers.push(peer),
            Err(_) => self.reservations.values().for_each(|reservation| reservation.close_to(&peer)),
        }
        outcome
    }

    /// Queues copying `size` bytes from a mapping of another device, which has let this one in, into memory of this device. What
    /// the other device's streams still write there is not waited for.
    ///
    /// # Errors
    /// If the other device has not let this one in ([`CudaDevice::let_peer_access`]), the bytes at `from` are not all mapped with
    /// access in one reservation of the other device, those at `to` are not memory of this one, the stream is not this device's,
    /// or the driver refuses.
    pub fn copy_from_peer(
        &mut self,
        peer: &CudaDevice,
        from: DeviceAddress,
        to: DeviceAddress,
        size: Bytes,
        stream: StreamId,
    ) -> Result<(), DriverError> {
        let call = "cuMemcpyDtoDAsync_v2";
        let is_let_in = peer.peers.iter().any(|other| other.ordinal() == self.ordinal);
        if !is_let_in {
            return Err(DriverError { call, code: PEER_ACCESS_NOT_ENABLED });
        }
        let stream = self.stream(call, stream)?;
        let source = peer.mapped_span(call, from, size)?;
        self.span(call, to, size)?.copy_from(&source, stream)
    }
}
