//! The NVML functions that we use, which are looked up by name once, and safe calls to them.
//!
//! Signatures are those of NVIDIA's `nvml.h`. A function or structure with a version in its name keeps its meaning,
//! with one exception: process lists, whose entries differ in width. [`RawList`] reads all widths. A result is a
//! number, not an enum, because a newer library has codes that an enum would lack. The functions are safe to call
//! because the library stays open and initialised while a `Table` lives, device handles are returned by the library and
//! do not outlive it, and every buffer has the size that the call states.

use std::error::Error as _;
use std::ffi::{CStr, c_char, c_uint, c_void};
use std::ptr;

use libloading::Library;

use super::answers::{INSUFFICIENT_SIZE, NvmlError, NvmlMemory, RawList, UNWRITTEN, WIDEST_ENTRY};

/// The file name of the library.
const LIBRARY: &str = if cfg!(windows) { "nvml.dll" } else { "libnvidia-ml.so.1" };
/// The size of the buffer for a text, in bytes. NVML's longest text has 96 bytes.
const TEXT_BYTES: usize = 128;
/// The room for processes in the first attempt.
const FEW_PROCESSES: usize = 64;
/// The maximum number of processes for which room is made: Linux has no more pids.
const MOST_PROCESSES: usize = 1 << 22;

/// The library's handle of a device. It is never dereferenced here.
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

/// The structure's version field: its size, and the version in the highest byte.
const DETAILED_MEMORY_VERSION: c_uint = size_of::<DetailedMemory>() as c_uint | 2 << 24;

type Plain = unsafe extern "C" fn() -> u32;
type GetNumber = unsafe extern "C" fn(*mut c_uint) -> u32;
type GetText = unsafe extern "C" fn(*mut c_char, c_uint) -> u32;
type GetDevice = unsafe extern "C" fn(c_uint, *mut RawDevice) -> u32;
type GetDeviceText = unsafe extern "C" fn(RawDevice, *mut c_char, c_uint) -> u32;
type GetMemory = unsafe extern "C" fn(RawDevice, *mut Memory) -> u32;
type GetDetailedMemory = unsafe extern "C" fn(RawDevice, *mut DetailedMemory) -> u32;
/// The list has entries of type `nvmlProcessInfo_t`, aligned to 64 bits.
type GetProcesses = unsafe extern "C" fn(RawDevice, *mut c_uint, *mut u64) -> u32;

/// A function with its name, for errors.
#[derive(Clone, Copy)]
struct Named<F> {
    name: &'static str,
    function: F,
}

/// Looks up a function in the library by name.
macro_rules! look_up {
    ($library:expr, $name:literal as $function:ty) => {{
        // SAFETY: the type is that of this function in `nvml.h`, with `u32` in place of the result enum. The pointer is
        // copied into a value that keeps the library open.
        let symbol = unsafe { $library.get::<$function>($name) };
        symbol.map(|symbol| Named { name: $name, function: *symbol }).map_err(|_| NvmlError::MissingSymbol($name))
    }};
}

/// The open and initialised library.
struct Session {
    library: Library,
    shutdown: Plain,
}

impl Session {
    fn open() -> Result<Session, NvmlError> {
        // SAFETY: opening NVML runs its initialisers, which the driver supports in any process.
        let library = unsafe { Library::new(LIBRARY) };
        // The error's source is the loader's text, which names the library.
        let reason = |error: libloading::Error| error.source().map_or_else(|| error.to_string(), ToString::to_string);
        let library = library.map_err(|error| NvmlError::NoLibrary { reason: reason(error) })?;
        let initialise = look_up!(library, "nvmlInit_v2" as Plain)?;
        let shutdown = look_up!(library, "nvmlShutdown" as Plain)?.function;
        // SAFETY: takes no arguments. NVML counts initialisations, and each is matched by one shutdown.
        check(initialise.name, unsafe { (initialise.function)() })?;
        Ok(Session { library, shutdown })
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // SAFETY: takes no arguments; initialised once in `open`. There is no caller to report an error to.
        unsafe { (self.shutdown)() };
    }
}

/// The functions of the library, which stays open and initialised while this table lives.
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
    /// Opens and initialises the library, and looks up all functions.
    pub(super) fn open() -> Result<Table, NvmlError> {
        let session = Session::open()?;
        let library = &session.library;
        // Versions 2 and 3 of the lists write the same entries.
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

    /// Returns the driver's version.
    pub(super) fn driver_version(&self) -> Result<String, NvmlError> {
        let call = self.get_driver_version;
        // SAFETY: writes at most the given number of bytes, including the final zero.
        text(call.name, |buffer, bytes| unsafe { (call.function)(buffer, bytes) })
    }

    /// Returns the number of devices.
    pub(super) fn device_count(&self) -> Result<u32, NvmlError> {
        let mut count = 0;
        // SAFETY: writes one number through the pointer.
        check(self.get_count.name, unsafe { (self.get_count.function)(&raw mut count) })?;
        Ok(count)
    }

    /// Returns the device with this index.
    pub(super) fn device(&self, index: u32) -> Result<Device<'_>, NvmlError> {
        let mut handle = ptr::null_mut();
        // SAFETY: writes one handle through the pointer.
        check(self.get_device.name, unsafe { (self.get_device.function)(index, &raw mut handle) })?;
        Ok(Device { table: self, handle })
    }
}

/// A device. Its handle is valid while the table lives.
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

    /// Returns total, free and used memory. All memory that is not free counts as used.
    pub(super) fn memory(&self) -> Result<NvmlMemory, NvmlError> {
        let call = self.table.get_memory;
        let mut memory = Memory::default();
        // SAFETY: the device handle came from the library; writes one structure through the pointer.
        check(call.name, unsafe { (call.function)(self.handle, &raw mut memory) })?;
        let Memory { total, free, used } = memory;
        Ok(NvmlMemory { total_bytes: total, free_bytes: free, used_bytes: used, reserved_bytes: None })
    }

    /// Returns the memory with the reserved part reported separately, or `None` if the driver does not have this
    /// function.
    pub(super) fn detailed_memory(&self) -> Option<Result<NvmlMemory, NvmlError>> {
        let call = self.table.get_detailed_memory?;
        let mut memory = DetailedMemory { version: DETAILED_MEMORY_VERSION, total: 0, reserved: 0, free: 0, used: 0 };
        // SAFETY: the device handle came from the library; writes one structure, of the version in its version field,
        // through the pointer.
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

    /// Reads one of the lists. The list may grow between two attempts, so the room also grows.
    fn processes(&self, call: Named<GetProcesses>) -> Result<RawList, NvmlError> {
        let mut room = FEW_PROCESSES;
        loop {
            let mut words = vec![UNWRITTEN; room * WIDEST_ENTRY];
            let mut count = room as c_uint;
            // SAFETY: the device handle came from the library. It writes at most `room` entries and their number; the
            // buffer has room for them even at the maximum width.
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
        // SAFETY: the device handle came from the library. It writes at most the given number of bytes, including the
        // final zero.
        text(call.name, |buffer, bytes| unsafe { (call.function)(self.handle, buffer, bytes) })
    }
}

/// Returns the text that a call writes.
fn text(call: &'static str, write: impl FnOnce(*mut c_char, c_uint) -> u32) -> Result<String, NvmlError> {
    let mut buffer = [0_u8; TEXT_BYTES];
    check(call, write(buffer.as_mut_ptr().cast(), TEXT_BYTES as c_uint))?;
    Ok(CStr::from_bytes_until_nul(&buffer).unwrap_or_default().to_string_lossy().into_owned())
}

/// Turns a result code into a result.
fn check(call: &'static str, code: u32) -> Result<(), NvmlError> {
    if code == 0 { Ok(()) } else { Err(NvmlError::Refused { call, code }) }
}
