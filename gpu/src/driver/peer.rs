//! Other devices of the host that can get access to this one's mappings.

use cudarc::driver::sys::{CUdevice, CUresult};

use super::call::{call, check};
use super::context::Context;
use crate::error::DriverError;

/// Driver code: there is no such device.
const INVALID_DEVICE: u32 = CUresult::CUDA_ERROR_INVALID_DEVICE as u32;
/// Driver code: one device cannot reach the other's memory.
const PEER_ACCESS_UNSUPPORTED: u32 = CUresult::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED as u32;

/// Driver code: the peer has not given access.
pub(crate) const PEER_ACCESS_NOT_ENABLED: u32 = CUresult::CUDA_ERROR_PEER_ACCESS_NOT_ENABLED as u32;

/// A device that can reach the memory of the device that it was created for.
#[derive(Clone, Copy)]
pub(crate) struct Peer {
    ordinal: u32,
    device: CUdevice,
}

impl Peer {
    /// The device with this index, if it can reach the context's device.
    pub(crate) fn of(context: &Context, ordinal: u32) -> Result<Peer, DriverError> {
        let device = device_at(context, ordinal)?;
        if can_access(context, device, context.device)? {
            Ok(Peer { ordinal, device })
        } else {
            Err(DriverError { call: "cuDeviceCanAccessPeer", code: PEER_ACCESS_UNSUPPORTED })
        }
    }

    pub(crate) fn ordinal(&self) -> u32 {
        self.ordinal
    }

    pub(super) fn device(&self) -> CUdevice {
        self.device
    }
}

/// Whether the context's device can reach memory on the device with this index. False for the device itself.
pub(crate) fn can_access_peer(context: &Context, ordinal: u32) -> Result<bool, DriverError> {
    let device = device_at(context, ordinal)?;
    can_access(context, context.device, device)
}

/// Whether the first device can reach memory on the second.
fn can_access(context: &Context, from: CUdevice, to: CUdevice) -> Result<bool, DriverError> {
    let mut can = 0;
    // SAFETY: writes one int through the pointer; both devices are the driver's.
    unsafe { call!(context.cuDeviceCanAccessPeer(&raw mut can, from, to)) }?;
    Ok(can != 0)
}

fn device_at(context: &Context, ordinal: u32) -> Result<CUdevice, DriverError> {
    let place = i32::try_from(ordinal).map_err(|_| DriverError { call: "cuDeviceGet", code: INVALID_DEVICE })?;
    let mut device = 0;
    // SAFETY: writes one device through the pointer, if there is one of this index.
    check("cuDeviceGet", unsafe { (context.table.cuDeviceGet)(&raw mut device, place) })?;
    Ok(device)
}
