//! Physical memory without an address: created by cuMemCreate, mapped by cuMemMap.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use cudarc::driver::sys::{
    CUmemAllocationGranularity_flags, CUmemAllocationHandleType, CUmemAllocationProp, CUmemAllocationProp_st__bindgen_ty_1,
    CUmemAllocationType, CUmemGenericAllocationHandle, CUmemLocation, CUmemLocationType,
};

use super::call::{INVALID_VALUE, OUT_OF_MEMORY, call, size_of};
use super::context::Context;
use crate::error::DriverError;

/// Memory created on a [`CudaDevice`](crate::CudaDevice), which may be mapped. It is released when dropped,
/// as by [`release`](parkade::device::DeviceBackend::release), and may outlive its device.
pub struct CudaPhysical {
    context: Arc<Context>,
    handle: CUmemGenericAllocationHandle,
    /// Whether the handle is not released yet.
    held: bool,
}

impl CudaPhysical {
    /// Creates `bytes` of memory, which is taken at once (facts: Sizes and addresses). The contents are
    /// unspecified.
    pub(crate) fn create(context: &Arc<Context>, bytes: u64) -> Result<CudaPhysical, DriverError> {
        let size = size_of("cuMemCreate", bytes, OUT_OF_MEMORY)?;
        let properties = properties(context);
        let _entered = context.enter()?;
        let mut handle = 0;
        // SAFETY: writes one handle through the first pointer and reads the properties through the second;
        // the flags must be 0.
        unsafe { call!(context.cuMemCreate(&raw mut handle, size, &raw const properties, 0)) }?;
        context.handles.fetch_add(1, Ordering::Relaxed);
        Ok(CudaPhysical { context: Arc::clone(context), handle, held: true })
    }

    /// Maps the memory at reserved addresses. The driver refuses if they are not reserved, if something is
    /// mapped there, or if this is not all of the memory (facts: Virtual memory calls).
    pub(crate) fn map(&self, address: u64, bytes: u64) -> Result<(), DriverError> {
        let size = size_of("cuMemMap", bytes, INVALID_VALUE)?;
        let context = &self.context;
        let _entered = context.enter()?;
        // SAFETY: the handle is the driver's and not released while `self` lives. The driver checks the
        // addresses, and no work can touch the mapping before access is given. The offset and the flags must
        // be 0.
        unsafe { call!(context.cuMemMap(address, size, 0, self.handle, 0)) }
    }

    /// Undoes a mapping that [`CudaPhysical::map`] has just made.
    pub(crate) fn unmap_again(&self, address: u64, bytes: u64) -> Result<(), DriverError> {
        let size = size_of("cuMemUnmap", bytes, INVALID_VALUE)?;
        let context = &self.context;
        let _entered = context.enter()?;
        // SAFETY: the caller has just made this mapping, and nobody has access to it, so no work uses it.
        unsafe { call!(context.cuMemUnmap(address, size)) }
    }

    /// Releases the handle, once. After an error it is still held. The memory lives on where it is mapped.
    pub(crate) fn give_back(&mut self) -> Result<(), DriverError> {
        if !self.held {
            return Ok(());
        }
        let context = &self.context;
        let _entered = context.enter()?;
        // SAFETY: created once and, as `held` says, not released yet.
        unsafe { call!(context.cuMemRelease(self.handle)) }?;
        context.handles.fetch_sub(1, Ordering::Relaxed);
        self.held = false;
        Ok(())
    }
}

impl Drop for CudaPhysical {
    fn drop(&mut self) {
        // An error cannot be reported from here.
        let _: Result<(), DriverError> = self.give_back();
    }
}

/// The unit in bytes in which memory is created and mapped.
pub(crate) fn granularity_bytes(context: &Context) -> Result<u64, DriverError> {
    let (mut bytes, properties) = (0_usize, properties(context));
    let minimum = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    let _entered = context.enter()?;
    // SAFETY: writes one size through the first pointer and reads the properties through the second.
    unsafe { call!(context.cuMemGetAllocationGranularity(&raw mut bytes, &raw const properties, minimum)) }?;
    Ok(bytes as u64)
}

/// Plain device memory that is not shared with other processes.
fn properties(context: &Context) -> CUmemAllocationProp {
    CUmemAllocationProp {
        type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
        location: CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: context.device },
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    }
}
