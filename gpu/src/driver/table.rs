//! The driver functions that we use. They are looked up by name once, so that a missing one is noticed before the
//! first call. This file also contains everything that every call needs: result codes, errors, handles and the macro
//! that makes the call.
//!
//! The compiler checks the signatures against cudarc's bindings, with one difference: a result is a number here, not an
//! enum. cudarc panics if a symbol is missing, and a code that is not in its enum, which a newer driver may return,
//! would be undefined behaviour.

use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};
use std::ops::RangeInclusive;
use std::sync::OnceLock;

use cudarc::driver::sys::{
    self, CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent, CUfunction, CUgraph, CUgraphEdgeData, CUgraphNode,
    CUmemAccessDesc, CUmemAllocationGranularity_flags, CUmemAllocationHandleType, CUmemAllocationProp,
    CUmemGenericAllocationHandle, CUmodule, CUresult, CUstream, CUstreamCaptureStatus, CUuuid, cuuint64_t,
};
use parkade::device::BackendError;
use thiserror::Error;

/// A driver call that failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("{}", BackendError::from(*self))]
pub struct DriverError {
    /// The call, by its driver name.
    pub call: &'static str,
    /// The driver's result code (a `CUresult`) as a number, because newer drivers may have codes that older headers do
    /// not name.
    pub code: u32,
}

impl From<DriverError> for BackendError {
    fn from(error: DriverError) -> BackendError {
        BackendError::Driver { call: error.call, code: error.code }
    }
}

/// The reason why a device cannot be opened on this machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Unavailable {
    /// The driver's library was not found.
    #[error("no CUDA driver (its library was not found)")]
    NoDriver,
    /// The library lacks this function: the driver is too old, or the library is a different one.
    #[error("the CUDA driver lacks {0}")]
    MissingSymbol(&'static str),
    /// There is no device with this index.
    #[error("no CUDA device {ordinal}: the driver reports {count}")]
    NoDevice {
        /// The index of the device that the caller wanted to open.
        ordinal: u32,
        /// The number of devices that the driver reports.
        count: u32,
    },
    /// There is a driver, but a call failed.
    #[error(transparent)]
    Refused(#[from] DriverError),
}

macro_rules! driver_table {
    (every { $($name:ident($($argument:ty),*);)* } since $version:literal { $($newer:ident($($newer_argument:ty),*);)* }) => {
        /// Pointers to the driver's functions, under their driver names.
        #[allow(non_snake_case)]
        pub(super) struct Table {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) -> u32,)*
            $(#[doc = concat!("Since CUDA ", $version, ".")] pub(super) $newer: Option<unsafe extern "C" fn($($newer_argument),*) -> u32>,)*
        }

        $(const _: unsafe fn($($argument),*) -> sys::CUresult = sys::$name;)*
        $(const _: unsafe fn($($newer_argument),*) -> sys::CUresult = sys::$newer;)*

        impl Table {
            fn look_up() -> Result<Table, Unavailable> {
                // SAFETY: opening the driver's library runs its initialisers, which the driver supports in
                // any process. The caller has checked that it can be opened, so this does not panic.
                let library = unsafe { sys::culib() };
                Ok(Table {
                    $($name: {
                        // SAFETY: the symbol has the type of cudarc's bindings, as checked above; `CUresult`
                        // is a C enum of 32 bits. The library stays open until the process ends, so a copy of
                        // the pointer stays valid.
                        let symbol = unsafe { library.get::<unsafe extern "C" fn($($argument),*) -> u32>(stringify!($name)) };
                        *symbol.map_err(|_| Unavailable::MissingSymbol(stringify!($name)))?
                    },)*
                    $($newer: {
                        // SAFETY: as above.
                        let symbol = unsafe { library.get::<unsafe extern "C" fn($($newer_argument),*) -> u32>(stringify!($newer)) };
                        symbol.ok().map(|symbol| *symbol)
                    },)*
                })
            }
        }
    };
}

driver_table! {
every {
    cuInit(c_uint);
    cuDriverGetVersion(*mut c_int);
    cuDeviceGetCount(*mut c_int);
    cuDeviceGet(*mut CUdevice, c_int);
    cuDeviceGetName(*mut c_char, c_int, CUdevice);
    cuDeviceTotalMem_v2(*mut usize, CUdevice);
    cuDeviceGetUuid_v2(*mut CUuuid, CUdevice);
    cuDeviceGetAttribute(*mut c_int, CUdevice_attribute, CUdevice);
    cuDeviceGetPCIBusId(*mut c_char, c_int, CUdevice);
    cuDeviceCanAccessPeer(*mut c_int, CUdevice, CUdevice);
    cuDevicePrimaryCtxRetain(*mut CUcontext, CUdevice);
    cuDevicePrimaryCtxRelease_v2(CUdevice);
    cuCtxGetCurrent(*mut CUcontext);
    cuCtxSetCurrent(CUcontext);
    cuCtxGetId(CUcontext, *mut c_ulonglong);
    cuCtxSynchronize();
    cuMemGetInfo_v2(*mut usize, *mut usize);
    cuMemAlloc_v2(*mut CUdeviceptr, usize);
    cuMemFree_v2(CUdeviceptr);
    cuMemAddressReserve(*mut CUdeviceptr, usize, usize, CUdeviceptr, c_ulonglong);
    cuMemAddressFree(CUdeviceptr, usize);
    cuMemGetAllocationGranularity(*mut usize, *const CUmemAllocationProp, CUmemAllocationGranularity_flags);
    cuMemCreate(*mut CUmemGenericAllocationHandle, usize, *const CUmemAllocationProp, c_ulonglong);
    cuMemRelease(CUmemGenericAllocationHandle);
    cuMemMap(CUdeviceptr, usize, usize, CUmemGenericAllocationHandle, c_ulonglong);
    cuMemSetAccess(CUdeviceptr, usize, *const CUmemAccessDesc, usize);
    cuMemUnmap(CUdeviceptr, usize);
    cuMemRetainAllocationHandle(*mut CUmemGenericAllocationHandle, *mut c_void);
    cuMemExportToShareableHandle(*mut c_void, CUmemGenericAllocationHandle, CUmemAllocationHandleType, c_ulonglong);
    cuMemImportFromShareableHandle(*mut CUmemGenericAllocationHandle, *mut c_void, CUmemAllocationHandleType);
    cuMemsetD32Async(CUdeviceptr, c_uint, usize, CUstream);
    cuMemcpyDtoH_v2(*mut c_void, CUdeviceptr, usize);
    cuMemcpyDtoDAsync_v2(CUdeviceptr, CUdeviceptr, usize, CUstream);
    cuModuleLoadData(*mut CUmodule, *const c_void);
    cuModuleGetFunction(*mut CUfunction, CUmodule, *const c_char);
    cuModuleUnload(CUmodule);
    cuLaunchKernel(
        CUfunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, CUstream, *mut *mut c_void, *mut *mut c_void
    );
    cuStreamCreate(*mut CUstream, c_uint);
    cuStreamDestroy_v2(CUstream);
    cuStreamQuery(CUstream);
    cuStreamSynchronize(CUstream);
    cuStreamWaitEvent(CUstream, CUevent, c_uint);
    cuEventCreate(*mut CUevent, c_uint);
    cuEventRecord(CUevent, CUstream);
    cuEventQuery(CUevent);
    cuEventSynchronize(CUevent);
    cuEventDestroy_v2(CUevent);
}
since 12.3 {
    cuStreamGetCaptureInfo_v3(
        CUstream, *mut CUstreamCaptureStatus, *mut cuuint64_t, *mut CUgraph, *mut *const CUgraphNode, *mut *const CUgraphEdgeData,
        *mut usize
    );
    cuGraphNodeGetDependencies_v2(CUgraphNode, *mut CUgraphNode, *mut CUgraphEdgeData, *mut usize);
}
}

/// Returns the table, which is looked up on first use. A failure is not cached: the next call tries
/// again.
pub(super) fn table() -> Result<&'static Table, Unavailable> {
    static TABLE: OnceLock<Table> = OnceLock::new();
    if let Some(table) = TABLE.get() {
        return Ok(table);
    }
    // SAFETY: opens the library, as in `look_up`, and closes it again.
    if !unsafe { sys::is_culib_present() } {
        return Err(Unavailable::NoDriver);
    }
    let table = Table::look_up()?;
    Ok(TABLE.get_or_init(|| table))
}

/// Driver code: an argument is invalid.
pub(crate) const INVALID_VALUE: u32 = CUresult::CUDA_ERROR_INVALID_VALUE as u32;
/// Driver code: out of memory.
pub(crate) const OUT_OF_MEMORY: u32 = CUresult::CUDA_ERROR_OUT_OF_MEMORY as u32;
/// Driver code: the context was destroyed.
pub(super) const CONTEXT_IS_DESTROYED: u32 = CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED as u32;
/// Driver code: the stream or event does not exist, or no longer exists.
pub(crate) const INVALID_HANDLE: u32 = CUresult::CUDA_ERROR_INVALID_HANDLE as u32;
/// Driver codes: the call is not allowed while a graph is captured.
pub(crate) const STREAM_CAPTURE_CODES: RangeInclusive<u32> =
    CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED as u32..=CUresult::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD as u32;
/// Driver code for a query whose work is not complete yet. This is not a failure.
pub(super) const NOT_READY: u32 = CUresult::CUDA_ERROR_NOT_READY as u32;

/// An opaque handle from the driver. It is never dereferenced here.
pub(super) struct Handle<T>(pub(super) *mut T);

// SAFETY: the driver accepts a handle on any thread, and calls from several threads at once. Each of our calls first
// makes the right context current, and nothing is read through the pointer here.
unsafe impl<T> Send for Handle<T> {}
// SAFETY: as for `Send`. A shared handle can only be passed to the driver, which does its own locking.
unsafe impl<T> Sync for Handle<T> {}

/// Turns a result code into a result.
pub(super) fn check(call: &'static str, code: u32) -> Result<(), DriverError> {
    if code == 0 { Ok(()) } else { Err(DriverError { call, code }) }
}

/// Converts a number of bytes to the driver's `size_t`.
///
/// # Errors
/// `code` if the number does not fit.
pub(super) fn size_of(call: &'static str, bytes: u64, code: u32) -> Result<usize, DriverError> {
    usize::try_from(bytes).map_err(|_| DriverError { call, code })
}

/// Calls a driver function and counts the call. An error names the function. Use it inside `unsafe`, and after
/// `context.enter()` if the function needs a current context: `call!(context.cuMemFree_v2(address))`.
macro_rules! call {
    ($context:ident.$name:ident($($argument:expr),*)) => {{
        $context.count_call();
        $crate::driver::table::check(stringify!($name), ($context.table.$name)($($argument),*))
    }};
}
pub(super) use call;
