//! NVML, the management library of NVIDIA's driver. It reports how much of each device's memory is in use, and by which
//! processes.
//!
//! It needs no CUDA context, so reading costs no device memory. The library is opened at run time
//! ([`NvmlLibrary::open`]); if it is missing or a call fails, the answer is an error and never a panic. Callers use
//! the trait [`Nvml`], so a test can supply its own answers.
//!
//! The functions are looked up by name once. Signatures are those of NVIDIA's `nvml.h`. A function or structure with a
//! version in its name always has the same meaning, with one exception: process lists, whose entries differ in width.
//! `RawList` reads all widths. A result is a number, not an enum, because newer libraries may have codes that the enum
//! would lack. The functions are safe to call because the library stays open and initialised while a `Table` lives,
//! device handles are returned by the library and do not outlive it, and every buffer has the size that is passed to
//! the call.

use std::error::Error as _;
use std::ffi::{CStr, c_char, c_uint, c_void};
use std::ptr;

use libloading::Library;
use thiserror::Error;

/// The queries that NVML answers. [`NvmlLibrary`] queries the real library.
pub trait Nvml {
    /// Returns the driver's version, such as `580.95.05`.
    ///
    /// # Errors
    /// The call fails.
    fn driver_version(&self) -> Result<String, NvmlError>;

    /// Returns every device that NVML sees, in the order of `nvidia-smi`. CUDA may number them
    /// differently (`CUDA_VISIBLE_DEVICES`, `CUDA_DEVICE_ORDER`); the UUID identifies a device.
    ///
    /// # Errors
    /// Counting the devices fails. A failure for one device is an error in that device's fields.
    fn devices(&self) -> Result<Vec<NvmlDevice>, NvmlError>;
}

/// The state of one device at the time of the call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NvmlDevice {
    /// NVML's index.
    pub index: u32,
    /// The product's name.
    pub name: Result<String, NvmlError>,
    /// The device's UUID, which is the same in every process and after every restart.
    pub uuid: Result<String, NvmlError>,
    /// Its memory.
    pub memory: Result<NvmlMemory, NvmlError>,
    /// The processes that use it, by pid. NVML does not know about pid namespaces. In a container, the pids may
    /// therefore be the host's, and the list may be empty although memory is in use.
    pub processes: Result<Vec<GpuProcess>, NvmlError>,
}

/// A device's memory in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NvmlMemory {
    /// The total memory. This exceeds CUDA's total, which excludes the memory that the driver
    /// reserves.
    pub total_bytes: u64,
    /// The memory that is not in use.
    pub free_bytes: u64,
    /// The memory used by processes, including contexts. Drivers before 510 do not report `reserved_bytes` separately
    /// and include that memory here.
    pub used_bytes: u64,
    /// The memory that the driver and the firmware reserve, if the driver reports it.
    pub reserved_bytes: Option<u64>,
}

/// A process that uses a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GpuProcess {
    /// The process id, in the driver's pid namespace.
    pub pid: u32,
    /// The process's memory on this device, including its context; `None` if the driver does not report it.
    pub used_bytes: Option<u64>,
    /// Whether it uses the device for compute.
    pub compute: bool,
    /// Whether it uses the device for graphics.
    pub graphics: bool,
}

/// NVML could not be opened, or a call failed.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum NvmlError {
    /// The library could not be opened.
    #[error("no NVML ({reason})")]
    NoLibrary {
        /// The loader's error, which names the library.
        reason: String,
    },
    /// The library lacks this function: the driver is too old, or the library is a different one.
    #[error("NVML has no {0}, which driver 450 and newer provide")]
    MissingSymbol(&'static str),
    /// A call failed.
    #[error("{call}: {} (NVML code {code})", meaning(*code))]
    Refused {
        /// The call, by its name in NVML.
        call: &'static str,
        /// NVML's result code (an `nvmlReturn_t`) as a number, because newer libraries may have codes that older
        /// headers do not name.
        code: u32,
    },
}

/// Result code: not supported by this device or driver.
const NOT_SUPPORTED: u32 = 3;
/// Result code: there are more entries than the buffer has room for.
const INSUFFICIENT_SIZE: u32 = 7;

/// Returns the meaning of a result code and what the user can do about it.
const fn meaning(code: u32) -> &'static str {
    match code {
        2 => "an argument is invalid",
        NOT_SUPPORTED => "not supported by this device",
        4 => "no permission: run as root, or as the owner of the MIG instance",
        6 => "not found",
        INSUFFICIENT_SIZE => "the list grew while it was being read: try again",
        9 => "the driver's kernel module is not loaded",
        10 => "timed out",
        12 => "a library of the driver was not found",
        13 => "the driver lacks the function",
        15 => "the device is lost: it fell off the bus, or was reset",
        16 => "the device needs a reset",
        17 => "the operating system refuses access to the device",
        18 => "the library and the kernel module have different versions: the driver was updated but not reloaded",
        _ => "failed",
    }
}

/// The value of a word that the library has not written.
const UNWRITTEN: u64 = 0xa5c3_96e1_5a3c_691e;
/// The number of words in the widest entry that a driver is known to write.
const WIDEST_ENTRY: usize = 4;
/// The value that NVML writes for an unknown number of bytes.
const NOT_AVAILABLE: u64 = u64::MAX;

/// A list in words: pid, used bytes, MIG instance ids, and one more word from some drivers.
struct RawList {
    /// `WIDEST_ENTRY` words for each entry; `UNWRITTEN` where the library wrote nothing.
    words: Vec<u64>,
    /// The number of entries that the library says it wrote.
    count: usize,
}

impl RawList {
    /// Returns pids and bytes. A process appears once for each MIG instance that it uses.
    fn entries(&self) -> impl Iterator<Item = (u32, Option<u64>)> {
        let pid = |word: u64| (word & u64::from(u32::MAX)) as u32;
        let bytes = |word| (word != NOT_AVAILABLE).then_some(word);
        self.words.chunks_exact(self.entry_words()).take(self.count).map(move |entry| (pid(entry[0]), bytes(entry[1])))
    }

    /// Returns the number of words in one entry. Some 535 drivers write wider entries under the same function name,
    /// and others write narrower ones (collected in nvitop's pull requests 79 and 226). The width is therefore derived
    /// from the last word that the library wrote.
    fn entry_words(&self) -> usize {
        const USUAL: usize = 3;
        let written = self.words.iter().rposition(|&word| word != UNWRITTEN).map_or(0, |last| last + 1);
        match written.div_ceil(self.count.max(1)) {
            words @ 2..=WIDEST_ENTRY => words,
            _ => USUAL,
        }
    }
}

/// Returns the processes in both lists, by pid. A process that uses both compute and graphics appears in both lists,
/// with the same bytes.
fn merge(compute: &RawList, graphics: &RawList) -> Vec<GpuProcess> {
    let mut all = summed(compute, GpuProcess { pid: 0, used_bytes: None, compute: true, graphics: false });
    for drawing in summed(graphics, GpuProcess { pid: 0, used_bytes: None, compute: false, graphics: true }) {
        match all.iter_mut().find(|process| process.pid == drawing.pid) {
            Some(process) => {
                process.graphics = true;
                process.used_bytes = process.used_bytes.max(drawing.used_bytes);
            }
            None => all.push(drawing),
        }
    }
    all.sort_by_key(|process| process.pid);
    all
}

/// Returns the processes in one list, each one once, with the flags of `like`. If the bytes are unknown in one entry,
/// the sum is unknown.
fn summed(list: &RawList, like: GpuProcess) -> Vec<GpuProcess> {
    let mut all: Vec<GpuProcess> = Vec::new();
    for (pid, used_bytes) in list.entries() {
        match all.iter_mut().find(|process| process.pid == pid) {
            Some(process) => {
                process.used_bytes = process.used_bytes.zip(used_bytes).map(|(one, other)| one.saturating_add(other));
            }
            None => all.push(GpuProcess { pid, used_bytes, ..like }),
        }
    }
    all
}

/// NVIDIA's library. It stays open and initialised until dropped.
pub struct NvmlLibrary(Table);

impl NvmlLibrary {
    /// Opens the library that the loader finds (`libnvidia-ml.so.1`; `nvml.dll` on Windows).
    ///
    /// # Errors
    /// There is no library, the library lacks a function, or it finds no driver.
    pub fn open() -> Result<NvmlLibrary, NvmlError> {
        Table::open().map(NvmlLibrary)
    }
}

impl Nvml for NvmlLibrary {
    fn driver_version(&self) -> Result<String, NvmlError> {
        self.0.driver_version()
    }

    fn devices(&self) -> Result<Vec<NvmlDevice>, NvmlError> {
        let read = |index| match self.0.device(index) {
            Ok(device) => NvmlDevice {
                index,
                name: device.name(),
                uuid: device.uuid(),
                memory: memory(&device),
                processes: processes(&device),
            },
            Err(error) => NvmlDevice {
                index,
                name: Err(error.clone()),
                uuid: Err(error.clone()),
                memory: Err(error.clone()),
                processes: Err(error),
            },
        };
        Ok((0..self.0.device_count()?).map(read).collect())
    }
}

/// Returns the device's memory, with the reserved part reported separately if the driver supports
/// this.
fn memory(device: &Device<'_>) -> Result<NvmlMemory, NvmlError> {
    device.detailed_memory().unwrap_or_else(|| device.memory()).or_else(|_| device.memory())
}

/// Returns all processes. A device without graphics has no list of graphics processes.
fn processes(device: &Device<'_>) -> Result<Vec<GpuProcess>, NvmlError> {
    let compute = device.compute_processes()?;
    let graphics = match device.graphics_processes() {
        Err(NvmlError::Refused { code: NOT_SUPPORTED, .. }) => RawList { words: Vec::new(), count: 0 },
        list => list?,
    };
    Ok(merge(&compute, &graphics))
}

/// The file name of the library.
const LIBRARY: &str = if cfg!(windows) { "nvml.dll" } else { "libnvidia-ml.so.1" };
/// The size of the buffer for a text, in bytes. NVML's longest string has 96 bytes.
const TEXT_BYTES: usize = 128;
/// The room for processes in the first attempt.
const FEW_PROCESSES: usize = 64;
/// The maximum number of processes for which room is made: Linux does not have more pids.
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
struct Table {
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
    fn open() -> Result<Table, NvmlError> {
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
    fn driver_version(&self) -> Result<String, NvmlError> {
        let call = self.get_driver_version;
        // SAFETY: writes at most the given number of bytes, including the final zero.
        text(call.name, |buffer, bytes| unsafe { (call.function)(buffer, bytes) })
    }

    /// Returns the number of devices.
    fn device_count(&self) -> Result<u32, NvmlError> {
        let mut count = 0;
        // SAFETY: writes one number through the pointer.
        check(self.get_count.name, unsafe { (self.get_count.function)(&raw mut count) })?;
        Ok(count)
    }

    /// Returns the device with this index.
    fn device(&self, index: u32) -> Result<Device<'_>, NvmlError> {
        let mut handle = ptr::null_mut();
        // SAFETY: writes one handle through the pointer.
        check(self.get_device.name, unsafe { (self.get_device.function)(index, &raw mut handle) })?;
        Ok(Device { table: self, handle })
    }
}

/// A device. Its handle is valid while the table lives.
struct Device<'a> {
    table: &'a Table,
    handle: RawDevice,
}

impl Device<'_> {
    fn name(&self) -> Result<String, NvmlError> {
        self.text(self.table.get_name)
    }

    fn uuid(&self) -> Result<String, NvmlError> {
        self.text(self.table.get_uuid)
    }

    /// Returns total, free and used memory. All memory that is not free counts as used.
    fn memory(&self) -> Result<NvmlMemory, NvmlError> {
        let call = self.table.get_memory;
        let mut memory = Memory::default();
        // SAFETY: the device handle came from the library; writes one structure through the pointer.
        check(call.name, unsafe { (call.function)(self.handle, &raw mut memory) })?;
        let Memory { total, free, used } = memory;
        Ok(NvmlMemory { total_bytes: total, free_bytes: free, used_bytes: used, reserved_bytes: None })
    }

    /// Returns the memory with the reserved part reported separately, or `None` if the driver does not have this
    /// function.
    fn detailed_memory(&self) -> Option<Result<NvmlMemory, NvmlError>> {
        let call = self.table.get_detailed_memory?;
        let mut memory = DetailedMemory { version: DETAILED_MEMORY_VERSION, total: 0, reserved: 0, free: 0, used: 0 };
        // SAFETY: the device handle came from the library; writes one structure, of the version in its version field,
        // through the pointer.
        let code = unsafe { (call.function)(self.handle, &raw mut memory) };
        let DetailedMemory { version: _, total, reserved, free, used } = memory;
        let read = NvmlMemory { total_bytes: total, free_bytes: free, used_bytes: used, reserved_bytes: Some(reserved) };
        Some(check(call.name, code).map(|()| read))
    }

    fn compute_processes(&self) -> Result<RawList, NvmlError> {
        self.processes(self.table.get_compute_processes)
    }

    fn graphics_processes(&self) -> Result<RawList, NvmlError> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_call_the_code_and_the_reason() {
        let refused = |code| NvmlError::Refused { call: "nvmlInit_v2", code }.to_string();
        assert_eq!(refused(9), "nvmlInit_v2: the driver's kernel module is not loaded (NVML code 9)");
        assert_eq!(refused(4), "nvmlInit_v2: no permission: run as root, or as the owner of the MIG instance (NVML code 4)");
        assert_eq!(refused(4_000_000_000), "nvmlInit_v2: failed (NVML code 4000000000)");
    }

    /// Creates a list with room for `room` entries, into which these are written.
    fn list(entries: &[&[u64]], room: usize) -> RawList {
        let mut words = entries.concat();
        words.resize(room * WIDEST_ENTRY, UNWRITTEN);
        RawList { words, count: entries.len() }
    }

    fn read(list: &RawList) -> Vec<(u32, Option<u64>)> {
        merge(list, &RawList { words: Vec::new(), count: 0 }).iter().map(|process| (process.pid, process.used_bytes)).collect()
    }

    /// The half-word after the pid is padding and may contain anything.
    const PADDING: u64 = 0xdead_beef << 32;
    const WHOLE_DEVICE: u64 = u64::MAX;

    #[test]
    fn entries_of_every_width_are_read() {
        let expected = [(7, Some(100)), (9, Some(200))];
        for room in [2, 3, 64] {
            assert_eq!(read(&list(&[&[7 | PADDING, 100], &[9, 200]], room)), expected);
            assert_eq!(read(&list(&[&[7, 100, WHOLE_DEVICE], &[9, 200, WHOLE_DEVICE]], room)), expected);
            assert_eq!(read(&list(&[&[7, 100, WHOLE_DEVICE, 0], &[9, 200, WHOLE_DEVICE, 0]], room)), expected);
        }
        assert_eq!(read(&list(&[], 64)), []);
    }

    #[test]
    fn a_count_that_is_too_high_reads_only_what_is_there() {
        let mut short = list(&[&[7, 100, WHOLE_DEVICE]], 1);
        short.count = 1_000_000;
        assert!(read(&short).len() <= 2);
        assert_eq!(read(&RawList { words: Vec::new(), count: 3 }), []);
    }

    #[test]
    fn bytes_that_the_driver_does_not_know_are_none() {
        assert_eq!(read(&list(&[&[7, NOT_AVAILABLE, WHOLE_DEVICE]], 4)), [(7, None)]);
    }

    #[test]
    fn mig_instances_add_up() {
        assert_eq!(read(&list(&[&[7, 100, 1], &[7, 50, 2]], 4)), [(7, Some(150))]);
        assert_eq!(read(&list(&[&[7, 100, 1], &[7, NOT_AVAILABLE, 2]], 4)), [(7, None)]);
    }

    #[test]
    fn a_process_in_both_lists_is_one_process() {
        let merged = merge(&list(&[&[9, 100, 0], &[5, 1, 0]], 4), &list(&[&[9, 100, 0], &[2, 3, 0]], 4));
        let process = |pid, bytes, compute, graphics| GpuProcess { pid, used_bytes: Some(bytes), compute, graphics };
        assert_eq!(merged, [process(2, 3, false, true), process(5, 1, true, false), process(9, 100, true, true)]);
    }

    /// Checks that opening fails with the right error without the library, and that the numbers add
    /// up with it.
    #[test]
    fn the_library_opens_or_says_why_not() {
        match NvmlLibrary::open() {
            Err(NvmlError::NoLibrary { reason }) => assert!(reason.contains("libnvidia-ml.so.1"), "{reason}"),
            Err(error) => assert!(error.to_string().contains("nvmlInit_v2"), "{error}"),
            Ok(nvml) => {
                assert!(nvml.driver_version().is_ok_and(|version| version.starts_with(|c: char| c.is_ascii_digit())));
                for device in nvml.devices().expect("a count") {
                    let memory = device.memory.expect("memory");
                    let parts = memory.free_bytes + memory.used_bytes + memory.reserved_bytes.unwrap_or(0);
                    assert_eq!(parts, memory.total_bytes, "{memory:?}");
                }
            }
        }
    }
}
