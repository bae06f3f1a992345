//! Physical memory without an address: what cuMemCreate gives, and cuMemMap puts behind reserved addresses.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use cudarc::driver::sys::{
    CUmemAllocationGranularity_flags, CUmemAllocationHandleType, CUmemAllocationProp, CUmemAllocationProp_st__bindgen_ty_1,
    CUmemAllocationType, CUmemGenericAllocationHandle, CUmemLocation, CUmemLocationType,
};

use super::context::Context;
use super::{INVALID_VALUE, OUT_OF_MEMORY, call, size_of};
use crate::error::DriverError;

/// Memory of a [`CudaDevice`](crate::CudaDevice) that was created and may be mapped. It gives itself back when dropped, as
/// [`release`](parkade::device::DeviceBackend::release) does, and may outlive its device.
pub struct CudaPhysical {
    context: Arc<Context>,
    handle: CUmemGenericAllocationHandle,
    /// Whether the driver still counts the handle as ours.
    held: bool,
}

impl CudaPhysical {
    /// Takes `bytes` of the device's memory, at once (facts: Sizes and addresses). Its contents are whatever was there.
    pub(crate) fn create(context: &Arc<Context>, bytes: u64) -> Result<CudaPhysical, DriverError> {
        let size = size_of("cuMemCreate", bytes, OUT_OF_MEMORY)?;
        let properties = properties(context);
        let _entered = context.enter()?;
        let mut handle = 0;
        // SAFETY: writes one handle through the first pointer and reads the properties through the second; the flags must be 0.
        unsafe { call!(context.cuMemCreate(&raw mut handle, size, &raw const properties, 0)) }?;
        context.handles.fetch_add(1, Ordering::Relaxed);
        Ok(CudaPhysical { context: Arc::clone(context), handle, held: true })
    }

    /// Puts the memory behind reserved addresses. The driver refuses if they are not reserved, if something is mapped there, and
    /// all but the whole of the memory (facts: Virtual memory calls).
    pub(crate) fn map(&self, address: u64, bytes: u64) -> Result<(), DriverError> {
        let size = size_of("cuMemMap", bytes, INVALID_VALUE)?;
        let context = &self.context;
        let _entered = context.enter()?;
        // SAFETY: the handle is the driver's and, while `self` lives, not given back; the driver checks the addresses, and lets
        // nobody touch the mapping before access is given. The offset and the flags must be 0.
        unsafe { call!(context.cuMemMap(address, size, 0, self.handle, 0)) }
    }

    /// Takes back a mapping of the whole memory that [`CudaPhysical::map`] has just made.
    pub(crate) fn unmap_again(&self, address: u64, bytes: u64) -> Result<(), DriverError> {
        let size = size_of("cuMemUnmap", bytes, INVALID_VALUE)?;
        let context = &self.context;
        let _entered = context.enter()?;
        // SAFETY: the caller has mapped just this, and nobody was given access, so that no work uses it.
        unsafe { call!(context.cuMemUnmap(address, size)) }
    }

    /// Gives the handle back, once; after an error it is still ours. The memory lives on where it is mapped.
    pub(crate) fn give_back(&mut self) -> Result<(), DriverError> {
        if !self.held {
            return Ok(());
        }
        let context = &self.context;
        let _entered = context.enter()?;
        // SAFETY: created once and, as `held` says, not given back yet.
        unsafe { call!(context.cuMemRelease(self.handle)) }?;
        context.handles.fetch_sub(1, Ordering::Relaxed);
        self.held = false;
        Ok(())
    }
}

impl Drop for CudaPhysical {
    fn drop(&mut self) {
        // Nobody is left to tell of an error.
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

/// Plain memory of this device, which no other process opens.
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
