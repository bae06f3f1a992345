//! Memory of expandable segments for other processes, which open it with [`SharedMemory`](crate::SharedMemory).

use std::os::fd::BorrowedFd;

use parkade::units::{Bytes, DeviceAddress};

use super::cuda_device::CudaDevice;
use crate::error::DriverError;

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
