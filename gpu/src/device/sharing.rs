//! Sharing memory: granting other devices in the host access to this device's mappings, copying from their mappings and
//! using their streams; and sharing memory of expandable segments with other processes, which open it with
//! [`SharedMemory`](crate::SharedMemory).

use std::os::fd::BorrowedFd;

use parkade::units::{Bytes, DeviceAddress, StreamId};

use super::CudaDevice;
use crate::driver::{Context, INVALID_HANDLE, INVALID_VALUE, PEER_ACCESS_NOT_ENABLED, Peer, Stream, can_access_peer};
use crate::error::{DriverError, Unavailable};

/// Other devices in the host.
///
/// Access to a mapping is granted to each device separately (cuMemSetAccess). Ranges from cudaMalloc stay closed to
/// peers.
impl CudaDevice {
    /// Returns the id of a stream of the device with this index, which the allocator may then
    /// [record](parkade::Allocator::record_stream) for memory of this device. 0 is the default stream of that device.
    /// For a stream of this device, the id is the stream's handle. After the first stream of another device, no more
    /// handles are broken.
    ///
    /// # Errors
    /// Streams of other code are not trusted ([`CudaDevice::trust_streams`]), there is no device with this index, or
    /// the handle is invalid.
    pub fn stream_elsewhere(&mut self, ordinal: u32, handle: u64) -> Result<StreamId, Unavailable> {
        let call = "cuEventRecord";
        let promise = self.foreign_streams.ok_or(DriverError { call, code: INVALID_HANDLE })?;
        let id = StreamId::elsewhere(ordinal, handle).ok_or(DriverError { call, code: INVALID_VALUE })?;
        if ordinal == self.ordinal {
            return Ok(StreamId(handle));
        }
        if !self.streams.contains_key(&id) {
            let context = match self.elsewhere.get(&ordinal) {
                Some(context) => context,
                None => {
                    let opened = Context::open(ordinal)?;
                    self.elsewhere.entry(ordinal).or_insert(opened)
                }
            };
            self.streams.insert(id, Stream::foreign(context, handle, promise));
        }
        Ok(id)
    }

    /// Returns whether this device can reach memory on the device with this index; false for this device itself.
    ///
    /// # Errors
    /// There is no device with this index.
    pub fn can_access_peer(&self, ordinal: u32) -> Result<bool, DriverError> {
        can_access_peer(&self.context, ordinal)
    }

    /// Grants the device with this index access to all mappings that this device may touch, now and whenever this
    /// device gets access to more. Does nothing if it already has access.
    ///
    /// # Errors
    /// There is no device with this index, it cannot reach this device's memory, or a driver call fails. In that case,
    /// it has access to nothing.
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

    /// Queues a copy of `size` bytes from a mapping of another device into memory of this device. The copy does not
    /// wait for work on the other device's streams that is still writing there.
    ///
    /// # Errors
    /// The other device has not granted this device access ([`CudaDevice::let_peer_access`]), the bytes at `from` are
    /// not all mapped with access in one reservation of the other device, the bytes at `to` are not memory of this
    /// device, the stream does not belong to this device, or the driver call fails.
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

/// A mapped handle that a different process may open.
#[derive(Clone, Copy, Debug)]
pub struct SharedHandle<'a> {
    /// The address where it is mapped in this process.
    pub address: DeviceAddress,
    /// Its size.
    pub size: Bytes,
    /// Its file descriptor, which a different process duplicates (pidfd_getfd) or receives. It is closed when the
    /// handle is unmapped.
    pub file: BorrowedFd<'a>,
}

impl CudaDevice {
    /// Returns the handles under a range of mapped memory, lowest address first. The first one may begin before the
    /// range, and the last one may end beyond it. The handles are not broken while they are mapped, because the other
    /// process would keep the old memory.
    ///
    /// # Errors
    /// Part of the range is not mapped with access in one reservation, or the driver cannot export file descriptors.
    pub fn share(&mut self, address: DeviceAddress, size: Bytes) -> Result<Vec<SharedHandle<'_>>, DriverError> {
        let reservation = self.reservation("cuMemExportToShareableHandle", address, size)?;
        let handles = reservation.export(address.get(), size.get())?;
        let handle = |(address, bytes, file)| SharedHandle { address: DeviceAddress(address), size: Bytes(bytes), file };
        Ok(handles.into_iter().map(handle).collect())
    }
}
