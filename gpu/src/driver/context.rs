//! A device: its primary context, which the CUDA runtime and therefore PyTorch also use; its identity; and the other
//! devices in the host that can reach its memory.
//!
//! Driver calls act on the calling thread's current context. Each of our calls first makes its context current and
//! then restores the previous one, so any thread may use a device alongside other code that uses CUDA.
//!
//! Other code may reset the device (`cudaDeviceReset`), which destroys all handles of the context. When the context is
//! created again, its handle is the same, but an old stream handle crashes the process, and an old address may belong
//! to different memory (observed on an H200). Only the context's number reveals the change. Each call therefore first
//! compares the number, and fails with the driver's code for a destroyed context if it has changed.

use std::ffi::{CStr, c_int};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use cudarc::driver::sys::{CUcontext, CUctx_st, CUdevice, CUdevice_attribute, CUresult, CUuuid};

use super::table::{CONTEXT_IS_DESTROYED, DriverError, Handle, Table, Unavailable, call, check, table};

/// A device's primary context, which is retained until dropped.
pub(crate) struct Context {
    pub(super) table: &'static Table,
    pub(super) device: CUdevice,
    handle: Handle<CUctx_st>,
    /// The driver's number for the context. No later context has the same number.
    id: u64,
    calls: AtomicU64,
    /// Whether created memory can be exported as a file descriptor.
    pub(super) exports_files: bool,
    /// Whether created memory can be registered for RDMA.
    pub(super) registers_rdma: bool,
    /// Whether a thread without a context keeps this context.
    stays: AtomicBool,
    /// The number of live events.
    pub(super) events: AtomicUsize,
    /// The number of live handles of created memory.
    pub(super) handles: AtomicUsize,
}

impl Context {
    /// Retains the primary context of a device, after checking that there is a driver and a device with this index.
    pub(crate) fn open(ordinal: u32) -> Result<Arc<Context>, Unavailable> {
        let (table, count) = table_and_count()?;
        let place = i32::try_from(ordinal).ok().filter(|&place| place < count);
        let Some(place) = place else {
            return Err(Unavailable::NoDevice { ordinal, count: u32::try_from(count).unwrap_or(0) });
        };
        let mut device = 0;
        // SAFETY: writes one device through the pointer.
        check("cuDeviceGet", unsafe { (table.cuDeviceGet)(&raw mut device, place) })?;
        let mut handle = ptr::null_mut();
        // SAFETY: writes one handle through the pointer; `device` is the driver's.
        check("cuDevicePrimaryCtxRetain", unsafe { (table.cuDevicePrimaryCtxRetain)(&raw mut handle, device) })?;
        let (events, handles, calls) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicU64::new(0));
        let stays = AtomicBool::new(false);
        let mut context = Context {
            table,
            device,
            handle: Handle(handle),
            id: 0,
            calls,
            exports_files: false,
            registers_rdma: false,
            stays,
            events,
            handles,
        };
        context.id = context.id_now()?;
        let can = |attribute| context.attribute(attribute).is_ok_and(|answer| answer != 0);
        let files = can(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
        let rdma = can(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
        (context.exports_files, context.registers_rdma) = (files, rdma);
        Ok(Arc::new(context))
    }

    /// Returns the number of devices that the driver reports.
    pub(crate) fn count() -> Result<u32, Unavailable> {
        Ok(u32::try_from(table_and_count()?.1).unwrap_or(0))
    }

    /// Returns the number of the context to which the handle now refers.
    fn id_now(&self) -> Result<u64, DriverError> {
        let mut id = 0;
        // SAFETY: writes one number through the pointer. A primary context's handle stays valid when the context is
        // destroyed.
        check("cuCtxGetId", unsafe { (self.table.cuCtxGetId)(self.handle.0, &raw mut id) })?;
        Ok(id)
    }

    /// Makes the context current on this thread until the returned guard is dropped.
    ///
    /// In a forked child, this call and every other call fails, because there the driver itself would report that an
    /// event is complete.
    pub(super) fn enter(&self) -> Result<Entered<'_>, DriverError> {
        let mut previous = ptr::null_mut();
        // SAFETY: writes one handle, possibly null, through the pointer.
        check("cuCtxGetCurrent", unsafe { (self.table.cuCtxGetCurrent)(&raw mut previous) })?;
        if self.id_now()? != self.id {
            return Err(DriverError { call: "cuCtxGetId", code: CONTEXT_IS_DESTROYED });
        }
        if previous != self.handle.0 {
            // SAFETY: the context is retained as long as `self` lives.
            check("cuCtxSetCurrent", unsafe { (self.table.cuCtxSetCurrent)(self.handle.0) })?;
        }
        Ok(Entered { context: self, previous })
    }

    /// Makes threads that had no context keep this one.
    pub(crate) fn stay(&self) {
        self.stays.store(true, Ordering::Relaxed);
    }

    pub(super) fn count_call(&self) {
        self.calls.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of driver calls so far, not counting those that make the context current.
    pub(crate) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Returns the number of live events in this context.
    pub(crate) fn live_events(&self) -> usize {
        self.events.load(Ordering::Relaxed)
    }

    /// Returns the number of live handles of memory created in this context.
    pub(crate) fn live_handles(&self) -> usize {
        self.handles.load(Ordering::Relaxed)
    }

    /// Returns the current free and total memory, in bytes.
    pub(crate) fn memory_info(&self) -> Result<(u64, u64), DriverError> {
        let _entered = self.enter()?;
        let (mut free, mut total) = (0_usize, 0_usize);
        // SAFETY: writes two sizes through the pointers.
        unsafe { call!(self.cuMemGetInfo_v2(&raw mut free, &raw mut total)) }?;
        Ok((free as u64, total as u64))
    }

    /// Waits for all work on all streams of the context.
    pub(crate) fn synchronize(&self) -> Result<(), DriverError> {
        let _entered = self.enter()?;
        // SAFETY: takes no arguments.
        unsafe { call!(self.cuCtxSynchronize()) }
    }
}

/// Initialises the driver. Returns its functions and the number of its devices.
fn table_and_count() -> Result<(&'static Table, c_int), Unavailable> {
    let table = table()?;
    // SAFETY: takes one number, which must be 0.
    check("cuInit", unsafe { (table.cuInit)(0) })?;
    let mut count = 0;
    // SAFETY: writes one int through the pointer.
    check("cuDeviceGetCount", unsafe { (table.cuDeviceGetCount)(&raw mut count) })?;
    Ok((table, count))
}

impl Drop for Context {
    /// Releases the context. The driver destroys it if no other code retains it.
    fn drop(&mut self) {
        // SAFETY: retained once in `open`, released once here. There is no caller to report an error to.
        unsafe { (self.table.cuDevicePrimaryCtxRelease_v2)(self.device) };
    }
}

/// A guard: while it lives, the context is current on the thread that created it.
pub(super) struct Entered<'a> {
    context: &'a Context,
    previous: CUcontext,
}

impl Drop for Entered<'_> {
    /// Restores the thread's previous context, even if there was none, so that the thread does not keep a context that
    /// may be destroyed later. Does nothing if the thread should keep this context.
    fn drop(&mut self) {
        let stays = self.previous.is_null() && self.context.stays.load(Ordering::Relaxed);
        if self.previous != self.context.handle.0 && !stays {
            // SAFETY: null, or a handle that was current on this thread when the guard was created. If this
            // fails, so will the thread's next CUDA call.
            unsafe { (self.context.table.cuCtxSetCurrent)(self.previous) };
        }
    }
}

/// The size of the buffer for a name; the driver truncates longer names.
const NAME_BYTES: usize = 256;

/// The identity of the device: its name, driver version, UUID, bus address, size and capabilities.
impl Context {
    /// Returns the newest CUDA version that the driver supports, as 1000 x major + 10 x minor.
    pub(crate) fn driver_version(&self) -> Result<i32, DriverError> {
        let mut version = 0;
        // SAFETY: writes one int through the pointer.
        unsafe { call!(self.cuDriverGetVersion(&raw mut version)) }?;
        Ok(version)
    }

    /// Returns the device's name.
    pub(crate) fn device_name(&self) -> Result<String, DriverError> {
        let mut name = [0_u8; NAME_BYTES];
        // SAFETY: writes at most as many bytes as the buffer has, including the final zero.
        unsafe { call!(self.cuDeviceGetName(name.as_mut_ptr().cast(), NAME_BYTES as i32, self.device)) }?;
        Ok(CStr::from_bytes_until_nul(&name).unwrap_or_default().to_string_lossy().into_owned())
    }

    /// Returns the device's total memory in bytes, which is constant.
    pub(crate) fn total_memory_bytes(&self) -> Result<u64, DriverError> {
        let mut bytes = 0_usize;
        // SAFETY: writes one size through the pointer.
        unsafe { call!(self.cuDeviceTotalMem_v2(&raw mut bytes, self.device)) }?;
        Ok(bytes as u64)
    }

    /// Returns an attribute of the device.
    pub(super) fn attribute(&self, attribute: CUdevice_attribute) -> Result<i32, DriverError> {
        let mut answer = 0;
        // SAFETY: writes one int through the pointer; the driver has returned the device.
        unsafe { call!(self.cuDeviceGetAttribute(&raw mut answer, attribute, self.device)) }?;
        Ok(answer)
    }

    /// Returns the device's UUID as `nvidia-smi` prints it: `GPU-` and 16 bytes in hexadecimal.
    pub(crate) fn uuid(&self) -> Result<String, DriverError> {
        let mut uuid = CUuuid { bytes: [0; 16] };
        // SAFETY: writes 16 bytes through the pointer.
        unsafe { call!(self.cuDeviceGetUuid_v2(&raw mut uuid, self.device)) }?;
        Ok(uuid_text(uuid.bytes.map(|byte| byte as u8)))
    }

    /// Returns the device's address on the PCI bus: domain, bus, device and function, in
    /// hexadecimal.
    pub(crate) fn pci_bus_id(&self) -> Result<String, DriverError> {
        let mut name = [0_u8; NAME_BYTES];
        // SAFETY: writes at most as many bytes as the buffer has, including the final zero.
        unsafe { call!(self.cuDeviceGetPCIBusId(name.as_mut_ptr().cast(), NAME_BYTES as i32, self.device)) }?;
        Ok(CStr::from_bytes_until_nul(&name).unwrap_or_default().to_string_lossy().into_owned())
    }
}

/// Formats 16 bytes in groups of 4, 2, 2, 2 and 6.
fn uuid_text(bytes: [u8; 16]) -> String {
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let groups = [0..8, 8..12, 12..16, 16..20, 20..32].map(|group| &digits[group]);
    format!("GPU-{}", groups.join("-"))
}

/// Driver code: there is no device with this index.
const INVALID_DEVICE: u32 = CUresult::CUDA_ERROR_INVALID_DEVICE as u32;
/// Driver code: one device cannot reach the other's memory.
const PEER_ACCESS_UNSUPPORTED: u32 = CUresult::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED as u32;

/// Driver code: the peer has not granted access.
pub(crate) const PEER_ACCESS_NOT_ENABLED: u32 = CUresult::CUDA_ERROR_PEER_ACCESS_NOT_ENABLED as u32;

/// A device that can reach the memory of the device for which it was created.
#[derive(Clone, Copy)]
pub(crate) struct Peer {
    ordinal: u32,
    device: CUdevice,
}

impl Peer {
    /// Returns the device with this index if it can reach the context's device.
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

/// Returns whether the context's device can reach memory on the device with this index; false for the device itself.
pub(crate) fn can_access_peer(context: &Context, ordinal: u32) -> Result<bool, DriverError> {
    let device = device_at(context, ordinal)?;
    can_access(context, context.device, device)
}

/// Returns whether the first device can reach memory on the second one.
fn can_access(context: &Context, from: CUdevice, to: CUdevice) -> Result<bool, DriverError> {
    let mut can = 0;
    // SAFETY: writes one int through the pointer; the driver has returned both devices.
    unsafe { call!(context.cuDeviceCanAccessPeer(&raw mut can, from, to)) }?;
    Ok(can != 0)
}

fn device_at(context: &Context, ordinal: u32) -> Result<CUdevice, DriverError> {
    let place = i32::try_from(ordinal).map_err(|_| DriverError { call: "cuDeviceGet", code: INVALID_DEVICE })?;
    let mut device = 0;
    // SAFETY: writes one device through the pointer, if there is one with this index.
    check("cuDeviceGet", unsafe { (context.table.cuDeviceGet)(&raw mut device, place) })?;
    Ok(device)
}

#[cfg(test)]
mod tests {
    use super::uuid_text;

    #[test]
    fn a_uuid_is_printed_as_tools_print_it() {
        let bytes = [0x4b, 0x1d, 0xe0, 0xff, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0xa, 0xb];
        assert_eq!(uuid_text(bytes), "GPU-4b1de0ff-0001-0203-0405-060708090a0b");
    }
}
