//! Physical memory without an address: created by cuMemCreate, mapped by cuMemMap. It is the device's, or the host's where that
//! stands in for it.

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
    /// Those that are not released yet, which are mapped one behind the other: one, or pages of the host's memory.
    handles: Vec<Handle>,
}

#[derive(Clone, Copy)]
struct Handle {
    handle: CUmemGenericAllocationHandle,
    bytes: u64,
}

impl CudaPhysical {
    /// No memory, to which [`CudaPhysical::append`] adds.
    pub(super) fn none(context: &Arc<Context>) -> CudaPhysical {
        CudaPhysical { context: Arc::clone(context), handles: Vec::new() }
    }

    /// Creates `bytes` of memory, which is taken at once (facts: Sizes and addresses). The contents are
    /// unspecified.
    pub(crate) fn create(context: &Arc<Context>, bytes: u64) -> Result<CudaPhysical, DriverError> {
        CudaPhysical::create_as(context, bytes, &on_device(context))
    }

    /// Creates `bytes` of the host's memory, on this node of it.
    pub(super) fn create_on_host(context: &Arc<Context>, bytes: u64, node: i32) -> Result<CudaPhysical, DriverError> {
        let location = CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA, id: node };
        CudaPhysical::create_as(context, bytes, &plain(location))
    }

    fn create_as(context: &Arc<Context>, bytes: u64, properties: &CUmemAllocationProp) -> Result<CudaPhysical, DriverError> {
        let size = size_of("cuMemCreate", bytes, OUT_OF_MEMORY)?;
        let _entered = context.enter()?;
        let mut handle = 0;
        // SAFETY: writes one handle through the first pointer and reads the properties through the second;
        // the flags must be 0.
        unsafe { call!(context.cuMemCreate(&raw mut handle, size, properties, 0)) }?;
        Ok(CudaPhysical::of(context, handle, bytes))
    }

    /// Memory whose handle the driver has just given, which is released with this.
    pub(super) fn of(context: &Arc<Context>, handle: CUmemGenericAllocationHandle, bytes: u64) -> CudaPhysical {
        context.handles.fetch_add(1, Ordering::Relaxed);
        CudaPhysical { context: Arc::clone(context), handles: vec![Handle { handle, bytes }] }
    }

    /// Its size; what is released is not counted.
    pub(crate) fn bytes(&self) -> u64 {
        self.handles.iter().map(|handle| handle.bytes).sum()
    }

    /// How many handles of the driver it has.
    pub(super) fn handles(&self) -> usize {
        self.handles.len()
    }

    /// Adds memory behind this.
    pub(super) fn append(&mut self, mut memory: CudaPhysical) {
        self.handles.append(&mut memory.handles);
    }

    /// Takes the first handles, as many as there are up to this number, away.
    pub(super) fn split_off_first(&mut self, handles: usize) -> CudaPhysical {
        let first = self.handles.drain(..handles.min(self.handles.len())).collect();
        CudaPhysical { context: Arc::clone(&self.context), handles: first }
    }

    /// Maps the memory at reserved addresses. The driver refuses if they are not reserved, if something is
    /// mapped there, or if this is not all of the memory (facts: Virtual memory calls).
    pub(crate) fn map(&self, address: u64, bytes: u64) -> Result<(), DriverError> {
        let [handle] = self.handles[..] else { return self.map_each(address, bytes) };
        self.map_one(handle, address, bytes)
    }

    /// Maps several handles one behind the other, all of them or none.
    fn map_each(&self, address: u64, bytes: u64) -> Result<(), DriverError> {
        if self.bytes() != bytes {
            return Err(DriverError { call: "cuMemMap", code: INVALID_VALUE });
        }
        let mut place = address;
        for &handle in &self.handles {
            if let Err(error) = self.map_one(handle, place, handle.bytes) {
                if place > address {
                    self.unmap_again(address, place - address)?;
                }
                return Err(error);
            }
            place += handle.bytes;
        }
        Ok(())
    }

    fn map_one(&self, handle: Handle, address: u64, bytes: u64) -> Result<(), DriverError> {
        let size = size_of("cuMemMap", bytes, INVALID_VALUE)?;
        let context = &self.context;
        let _entered = context.enter()?;
        // SAFETY: the handle is the driver's and not released while `self` lives. The driver checks the
        // addresses, and no work can touch the mapping before access is given. The offset and the flags must
        // be 0.
        unsafe { call!(context.cuMemMap(address, size, 0, handle.handle, 0)) }
    }

    /// Undoes a mapping that [`CudaPhysical::map`] has just made.
    pub(crate) fn unmap_again(&self, address: u64, bytes: u64) -> Result<(), DriverError> {
        let size = size_of("cuMemUnmap", bytes, INVALID_VALUE)?;
        let context = &self.context;
        let _entered = context.enter()?;
        // SAFETY: the caller has just made this mapping, and nobody has access to it, so no work uses it.
        unsafe { call!(context.cuMemUnmap(address, size)) }
    }

    /// Releases the handles, each once. After an error the rest is still held. The memory lives on where it is mapped.
    pub(crate) fn give_back(&mut self) -> Result<(), DriverError> {
        let context = &self.context;
        while let Some(last) = self.handles.last() {
            let _entered = context.enter()?;
            // SAFETY: created once and, as it is in the list, not released yet.
            unsafe { call!(context.cuMemRelease(last.handle)) }?;
            context.handles.fetch_sub(1, Ordering::Relaxed);
            self.handles.pop();
        }
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
    let (mut bytes, properties) = (0_usize, on_device(context));
    let minimum = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    let _entered = context.enter()?;
    // SAFETY: writes one size through the first pointer and reads the properties through the second.
    unsafe { call!(context.cuMemGetAllocationGranularity(&raw mut bytes, &raw const properties, minimum)) }?;
    Ok(bytes as u64)
}

/// Memory of the device that other processes may open and that may be registered for RDMA, where the device can do it: as PyTorch
/// asks for it (spec 4.5).
fn on_device(context: &Context) -> CUmemAllocationProp {
    let location = CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: context.device };
    let mut properties = plain(location);
    if context.exports_files {
        properties.requestedHandleTypes = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    }
    properties.allocFlags.gpuDirectRDMACapable = u8::from(context.registers_rdma);
    properties
}

/// Memory that is not shared with other processes.
fn plain(location: CUmemLocation) -> CUmemAllocationProp {
    CUmemAllocationProp {
        type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
        location,
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    }
}
