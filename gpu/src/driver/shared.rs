//! Created memory in several processes: exported as file descriptors, and opened from them.

use std::ffi::c_void;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys::CUmemAllocationHandleType;
use parkade::units::{Bytes, DeviceAddress};

use super::call::{INVALID_VALUE, call};
use super::context::Context;
use super::peer::Peer;
use super::physical::CudaPhysical;
use super::reservation::Reservation;
use crate::error::{DriverError, Unavailable};

const FILE: CUmemAllocationHandleType = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

/// The handle that is mapped at an address, as a file descriptor.
pub(super) fn export(context: &Context, address: u64) -> Result<OwnedFd, DriverError> {
    let _entered = context.enter()?;
    let mut handle = 0;
    let mapped = ptr::with_exposed_provenance_mut::<c_void>(address as usize);
    // SAFETY: writes one handle through the first pointer. The second is a device address, at which the caller has mapped memory.
    unsafe { call!(context.cuMemRetainAllocationHandle(&raw mut handle, mapped)) }?;
    let mut file = -1_i32;
    // SAFETY: for this type the driver writes a file descriptor, an int, through the pointer. The handle was retained above; the flags
    // must be 0.
    let exported = unsafe { call!(context.cuMemExportToShareableHandle((&raw mut file).cast(), handle, FILE, 0)) };
    // SAFETY: retained above, released once. The memory lives on where it is mapped.
    let released = unsafe { call!(context.cuMemRelease(handle)) };
    exported?;
    // SAFETY: the driver has just opened it for the caller, and nobody else knows it.
    let file = unsafe { OwnedFd::from_raw_fd(file) };
    released?;
    // A copy is closed by exec: a program that is started would keep the memory at the device.
    Ok(match file.try_clone() {
        Ok(copy) => copy,
        Err(_) => file,
    })
}

/// Memory of expandable segments of another process, mapped in this one until it is dropped, which waits for the device's work first,
/// where the driver can wait. Meanwhile the memory stays at the device, also if the other process gives it back.
pub struct SharedMemory {
    context: Arc<Context>,
    /// Unmapped before the handles are released.
    addresses: Reservation,
    _handles: Vec<CudaPhysical>,
}

impl SharedMemory {
    /// Opens handles of the sizes that the other process said, one behind the other, for the device with this index and its peers. The
    /// file descriptors may be closed afterwards.
    ///
    /// # Errors
    /// If there is no such device, a peer is none, there are no handles, or the driver refuses one: a file descriptor of something else, a
    /// handle of another size.
    pub fn open(ordinal: u32, handles: &[(BorrowedFd<'_>, Bytes)], peers: &[u32]) -> Result<SharedMemory, Unavailable> {
        let context = Context::open(ordinal)?;
        let peers = peers.iter().map(|&peer| Peer::of(&context, peer)).collect::<Result<Vec<_>, _>>()?;
        let total = handles.iter().try_fold(0_u64, |sum, (_, bytes)| sum.checked_add(bytes.get()));
        // No range has so many bytes, or none.
        let total = total.filter(|&total| total > 0).ok_or(DriverError { call: "cuMemAddressReserve", code: INVALID_VALUE })?;
        let mut opened = Vec::with_capacity(handles.len());
        let mut addresses = Reservation::take(&context, total)?;
        let mut place = addresses.address();
        for &(file, bytes) in handles {
            let handle = import(&context, file, bytes.get())?;
            addresses.map(place, bytes.get(), &handle)?;
            opened.push(handle);
            place += bytes.get();
        }
        addresses.set_access(addresses.address(), total, &peers)?;
        Ok(SharedMemory { context, addresses, _handles: opened })
    }

    /// Where it is in this process.
    #[must_use]
    pub fn address(&self) -> DeviceAddress {
        DeviceAddress(self.addresses.address())
    }

    /// Its size.
    #[must_use]
    pub fn size(&self) -> Bytes {
        Bytes(self.addresses.bytes())
    }

    /// Gives the device with this index access.
    ///
    /// # Errors
    /// If there is no such device, it cannot reach this one's memory, or a driver call fails. Then it has no access.
    pub fn let_peer_access(&self, ordinal: u32) -> Result<(), DriverError> {
        self.addresses.open_to(&Peer::of(&self.context, ordinal)?)
    }

    /// Reads from an offset on, after the default stream's work.
    ///
    /// # Errors
    /// If a part of it lies outside of the memory, or the driver call fails.
    pub fn read(&self, offset: Bytes, into: &mut [u8]) -> Result<(), DriverError> {
        let call = "cuMemcpyDtoH_v2";
        let address = self.addresses.address().checked_add(offset.get()).ok_or(DriverError { call, code: INVALID_VALUE })?;
        self.addresses.span(call, address, into.len() as u64)?.read(into)
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // An error cannot be reported from here.
        let _: Result<(), DriverError> = self.context.synchronize();
    }
}

fn import(context: &Arc<Context>, file: BorrowedFd<'_>, bytes: u64) -> Result<CudaPhysical, DriverError> {
    let _entered = context.enter()?;
    let mut handle = 0;
    let number = ptr::without_provenance_mut::<c_void>(file.as_raw_fd() as usize);
    // SAFETY: writes one handle through the first pointer. For this type the second is the number of a file descriptor, which is open.
    unsafe { call!(context.cuMemImportFromShareableHandle(&raw mut handle, number, FILE)) }?;
    Ok(CudaPhysical::of(context, handle, bytes))
}
