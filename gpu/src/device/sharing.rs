//! Memory of this device for others: giving other devices of the host access to its mappings, copying from theirs,
//! and their streams; and memory of expandable segments for other processes, which open it with
//! [`SharedMemory`](crate::SharedMemory).

use std::os::fd::BorrowedFd;

use parkade::units::{Bytes, DeviceAddress, StreamId};

use super::CudaDevice;
use crate::driver::{Context, INVALID_HANDLE, INVALID_VALUE, PEER_ACCESS_NOT_ENABLED, Peer, Stream, can_access_peer};
use crate::error::{DriverError, Unavailable};

/// Other devices of the host.
///
/// Access to a mapping is given to each device separately (cuMemSetAccess). Ranges of cudaMalloc stay closed
/// to peers.
impl CudaDevice {
    /// The id of a stream of the device with this index, which the allocator may then
    /// [record](parkade::Allocator::record_stream) for memory of this device. 0 is the default stream of that device. For this
    /// device itself it is the handle. From the first stream of another device on no handle is broken.
    ///
    /// # Errors
    /// If streams of others are not trusted ([`CudaDevice::trust_streams`]), there is no such device, or the handle is none.
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

    /// Whether this device can reach memory on the device with this index. False for this device itself.
    ///
    /// # Errors
    /// If there is no such device.
    pub fn can_access_peer(&self, ordinal: u32) -> Result<bool, DriverError> {
        can_access_peer(&self.context, ordinal)
    }

    /// Gives the device with this index access to all mappings that this device may touch, now and whenever
    /// this device gets access to more. Does nothing if it has access already.
    ///
    /// # Errors
    /// If there is no such device, it cannot reach this one's memory, or a driver call fails. Then it has
    /// access to nothing.
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

    /// Queues a copy of `size` bytes from a mapping of another device into memory of this device. It does not
    /// wait for work on the other device's streams that still writes there.
    ///
    /// # Errors
    /// If the other device has not given this one access ([`CudaDevice::let_peer_access`]), the bytes at
    /// `from` are not all mapped with access in one reservation of the other device, those at `to` are not
    /// memory of this one, the stream is not this device's, or the driver call fails.
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

/// A mapped handle that another process may open.
#[derive(Clone, Copy, Debug)]
pub struct SharedHandle<'a> {
    /// Where it is mapped here.
    pub address: DeviceAddress,
    /// Its size.
    pub size: Bytes,
    /// Its file descriptor, which another process duplicates (pidfd_getfd) or is sent. It is closed when the handle is unmapped.
    pub file: BorrowedFd<'a>,
}

impl CudaDevice {
    /// The handles under a range of mapped memory, lowest first: the first may begin before the range, the last end beyond it.
    /// They are not broken while they are mapped: what another process has mapped would not be what is here.
    ///
    /// # Errors
    /// If the range is not all mapped with access in one reservation, or the driver exports no file descriptor.
    pub fn share(&mut self, address: DeviceAddress, size: Bytes) -> Result<Vec<SharedHandle<'_>>, DriverError> {
        let reservation = self.reservation("cuMemExportToShareableHandle", address, size)?;
        let handles = reservation.export(address.get(), size.get())?;
        let handle = |(address, bytes, file)| SharedHandle { address: DeviceAddress(address), size: Bytes(bytes), file };
        Ok(handles.into_iter().map(handle).collect())
    }
}
