//! NVML's functions that we use, looked up by name once, and the calls through them.
//!
//! Signatures are those of NVIDIA's `nvml.h`, whose functions and structures keep their meaning under a name with a version (the one
//! exception, lists of processes, is read so that it cannot matter: `processes`). A result is a number here, not an enum: a newer
//! library has codes that no enum of ours names. What makes the functions safe to call: the library stays open and initialised while
//! a `Table` lives, handles of devices come from it and live no longer, and every buffer is as large as the library is told.

use std::error::Error as _;
use std::ffi::{CStr, c_char, c_uint, c_void};
use std::ptr;

use libloading::Library;

use super::NvmlMemory;
use super::error::{INSUFFICIENT_SIZE, NvmlError};
use super::processes::{RawList, UNWRITTEN, WIDEST_ENTRY};

/// The library's name for the loader.
const LIBRARY: &str = if cfg!(windows) { "nvml.dll" } else { "libnvidia-ml.so.1" };
/// Room for a text; NVML's longest is 96 bytes.
const TEXT_BYTES: usize = 128;
/// Room for processes at first.
const FEW_PROCESSES: usize = 64;
/// No device has more processes than Linux has pids.
const MOST_PROCESSES: usize = 1 << 22;

/// The library's name for a device. It is never dereferenced on this side.
type RawDevice = *mut c_void;

/// `nvmlMemory_t`.
#[repr(C)]
#[derive(Default)]
struct Memory {
    total: u64,
    free: u64,
    used: u64,
}

/// `nvmlMemory_v2_t`.
#[repr(C)]
struct DetailedMemory {
    version: c_uint,
    total: u64,
    reserved: u64,
    free: u64,
    used: u64,
}

/// The structure's own description of itself: its size, and its version in the highest byte.
const DETAILED_MEMORY_VERSION: c_uint = size_of::<DetailedMemory>() as c_uint | 2 << 24;

type Plain = unsafe extern "C" fn() -> u32;
type GetNumber = unsafe extern "C" fn(*mut c_uint) -> u32;
type GetText = unsafe extern "C" fn(*mut c_char, c_uint) -> u32;
type GetDevice = unsafe extern "C" fn(c_uint, *mut RawDevice) -> u32;
type GetDeviceText = unsafe extern "C" fn(RawDevice, *mut c_char, c_uint) -> u32;
type GetMemory = unsafe extern "C" fn(RawDevice, *mut Memory) -> u32;
type GetDetailedMemory = unsafe extern "C" fn(RawDevice, *mut DetailedMemory) -> u32;
/// The list is `nvmlProcessInfo_t`, of 64-bit alignment.
type GetProcesses = unsafe extern "C" fn(RawDevice, *mut c_uint, *mut u64) -> u32;

/// A function with its name, for errors.
#[derive(Clone, Copy)]
struct Named<F> {
    name: &'static str,
    function: F,
}

/// A function of the library, found by its name.
macro_rules! look_up {
    ($library:expr, $name:literal as $function:ty) => {{
        // SAFETY: the type is that of the function of this name in `nvml.h`, with a structure's address for a structure's, and results
        // of 32 bits. The pointer is copied into a value that keeps the library open.
        let symbol = unsafe { $library.get::<$function>($name) };
        symbol.map(|symbol| Named { name: $name, function: *symbol }).map_err(|_| NvmlError::MissingSymbol($name))
    }};
}

/// The library, open and initialised.
struct Session {
    library: Library,
    shutdown: Plain,
}

impl Session {
    fn open() -> Result<Session, NvmlError> {
        // SAFETY: opening NVML runs its initialisers, which the driver supports in any process.
        let library = unsafe { Library::new(LIBRARY) };
        // The loader's own words, which name the library, are the source of the error.
        let reason = |error: libloading::Error| error.source().map_or_else(|| error.to_string(), ToString::to_string);
        let library = library.map_err(|error| NvmlError::NoLibrary { reason: reason(error) })?;
        let initialise = look_up!(library, "nvmlInit_v2" as Plain)?;
        let shutdown = look_up!(library, "nvmlShutdown" as Plain)?.function;
        // SAFETY: takes nothing. NVML counts its users in a process, each of which shuts it down once.
        check(initialise.name, unsafe { (initialise.function)() })?;
        Ok(Session { library, shutdown })
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // SAFETY: takes nothing; initialised once in `open`. Nobody is left to tell of an error.
        unsafe { (self.shutdown)() };
    }
}

/// The functions of a library that is open and initialised while this lives.
pub(super) struct Table {
    get_driver_version: Named<GetText>,
    get_count: Named<GetNumber>,
    get_device: Named<GetDevice>,
    get_name: Named<GetDeviceText>,
    get_uuid: Named<GetDeviceText>,
    get_memory: Named<GetMemory>,
    get_detailed_memory: Option<Named<GetDetailedMemory>>,
    get_compute_processes: Named<GetProcesses>,
    get_graphics_processes: Named<GetProcesses>,
    _session: Session,
}

impl Table {
    /// Opens the library, initialises it and looks everything up.
    pub(super) fn open() -> Result<Table, NvmlError> {
        let session = Session::open()?;
        let library = &session.library;
        // Of the lists both versions write the same entries.
        Ok(Table {
            get_driver_version: look_up!(library, "nvmlSystemGetDriverVersion" as GetText)?,
            get_count: look_up!(library, "nvmlDeviceGetCount_v2" as GetNumber)?,
            get_device: look_up!(library, "nvmlDeviceGetHandleByIndex_v2" as GetDevice)?,
            get_name: look_up!(library, "nvmlDeviceGetName" as GetDeviceText)?,
            get_uuid: look_up!(library, "nvmlDeviceGetUUID" as GetDeviceText)?,
            get_memory: look_up!(library, "nvmlDeviceGetMemoryInfo" as GetMemory)?,
            get_detailed_memory: look_up!(library, "nvmlDeviceGetMemoryInfo_v2" as GetDetailedMemory).ok(),
            get_compute_processes: look_up!(library, "nvmlDeviceGetComputeRunningProcesses_v3" as GetProcesses)
                .or_else(|_| look_up!(library, "nvmlDeviceGetComputeRunningProcesses_v2" as GetProcesses))?,
            get_graphics_processes: look_up!(library, "nvmlDeviceGetGraphicsRunningProcesses_v3" as GetProcesses)
                .or_else(|_| look_up!(library, "nvmlDeviceGetGraphicsRunningProcesses_v2" as GetProcesses))?,
            _session: session,
        })
    }

    /// The driver's version.
    pub(super) fn driver_version(&self) -> Result<String, NvmlError> {
        let call = self.get_driver_version;
        // SAFETY: writes at most as many bytes as it is told, the final zero included.
        text(call.name, |buffer, bytes| unsafe { (call.function)(buffer, bytes) })
    }

    /// How many devices there are.
    pub(super) fn device_count(&self) -> Result<u32, NvmlError> {
        let mut count = 0;
        // SAFETY: writes one number through the pointer.
        check(self.get_count.name, unsafe { (self.get_count.function)(&raw mut count) })?;
        Ok(count)
    }

    /// The device of this index.
    pub(super) fn device(&self, index: u32) -> Result<Device<'_>, NvmlError> {
        let mut handle = ptr::null_mut();
        // SAFETY: writes one handle through the pointer.
        check(self.get_device.name, unsafe { (self.get_device.function)(index, &raw mut handle) })?;
        Ok(Device { table: self, handle })
    }
}

/// A device of an initialised library.
pub(super) struct Device<'a> {
    table: &'a Table,
    handle: RawDevice,
}

impl Device<'_> {
    pub(super) fn name(&self) -> Result<String, NvmlError> {
        self.text(self.table.get_name)
    }

    pub(super) fn uuid(&self) -> Result<String, NvmlError> {
        self.text(self.table.get_uuid)
    }

    /// Total, free and used memory, where used is everything that is not free.
    pub(super) fn memory(&self) -> Result<NvmlMemory, NvmlError> {
        let call = self.table.get_memory;
        let mut memory = Memory::default();
        // SAFETY: the device is the library's; writes one structure through the pointer.
        check(call.name, unsafe { (call.function)(self.handle, &raw mut memory) })?;
        let Memory { total, free, used } = memory;
        Ok(NvmlMemory { total_bytes: total, free_bytes: free, used_bytes: used, reserved_bytes: None })
    }

    /// The same with what is reserved apart; `None` if the driver has no such function.
    pub(super) fn detailed_memory(&self) -> Option<Result<NvmlMemory, NvmlError>> {
        let call = self.table.get_detailed_memory?;
        let mut memory = DetailedMemory { version: DETAILED_MEMORY_VERSION, total: 0, reserved: 0, free: 0, used: 0 };
        // SAFETY: the device is the library's; writes one structure, of the version that it finds in it, through the pointer.
        let code = unsafe { (call.function)(self.handle, &raw mut memory) };
        let DetailedMemory { version: _, total, reserved, free, used } = memory;
        let read = NvmlMemory { total_bytes: total, free_bytes: free, used_bytes: used, reserved_bytes: Some(reserved) };
        Some(check(call.name, code).map(|()| read))
    }

    pub(super) fn compute_processes(&self) -> Result<RawList, NvmlError> {
        self.processes(self.table.get_compute_processes)
    }

    pub(super) fn graphics_processes(&self) -> Result<RawList, NvmlError> {
        self.processes(self.table.get_graphics_processes)
    }

    /// One of the lists. It may grow between two looks, so the room does too.
    fn processes(&self, call: Named<GetProcesses>) -> Result<RawList, NvmlError> {
        let mut room = FEW_PROCESSES;
        loop {
            let mut words = vec![UNWRITTEN; room * WIDEST_ENTRY];
            let mut count = room as c_uint;
            // SAFETY: the device is the library's; it writes at most `room` entries, for which there is room at their widest, and
            // their number.
            let code = unsafe { (call.function)(self.handle, &raw mut count, words.as_mut_ptr()) };
            let wanted = count as usize;
            if code == INSUFFICIENT_SIZE && room < MOST_PROCESSES {
                room = wanted.max(room).saturating_mul(2).min(MOST_PROCESSES);
                continue;
            }
            return check(call.name, code).map(|()| RawList { words, count: wanted.min(room) });
        }
    }

    fn text(&self, call: Named<GetDeviceText>) -> Result<String, NvmlError> {
        // SAFETY: the device is the library's; writes at most as many bytes as it is told, the final zero included.
        text(call.name, |buffer, bytes| unsafe { (call.function)(self.handle, buffer, bytes) })
    }
}

/// A text that a call writes.
fn text(call: &'static str, write: impl FnOnce(*mut c_char, c_uint) -> u32) -> Result<String, NvmlError> {
    let mut buffer = [0_u8; TEXT_BYTES];
    check(call, write(buffer.as_mut_ptr().cast(), TEXT_BYTES as c_uint))?;
    Ok(CStr::from_bytes_until_nul(&buffer).unwrap_or_default().to_string_lossy().into_owned())
}

/// A result code as a result.
fn check(call: &'static str, code: u32) -> Result<(), NvmlError> {
    if code == 0 { Ok(()) } else { Err(NvmlError::Refused { call, code }) }
}
