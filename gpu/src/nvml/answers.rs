//! NVML's queries, their answers and their errors (the library is missing, or a call fails). Also the code that reads
//! processes from the raw lists that NVML writes.

use thiserror::Error;

/// The queries that NVML answers. [`NvmlLibrary`](super::NvmlLibrary) asks the real library.
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
    /// The device's UUID, the same in every process and after every restart.
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
    /// The memory reserved by the driver and the firmware, if the driver reports it.
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
        /// NVML's result code (an `nvmlReturn_t`) as a number, because a newer library may have codes that older
        /// headers do not name.
        code: u32,
    },
}

/// Result code: not supported by this device or driver.
pub(super) const NOT_SUPPORTED: u32 = 3;
/// Result code: there are more entries than the buffer has room for.
pub(super) const INSUFFICIENT_SIZE: u32 = 7;

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
pub(super) const UNWRITTEN: u64 = 0xa5c3_96e1_5a3c_691e;
/// The number of words in the widest entry that a driver is known to write.
pub(super) const WIDEST_ENTRY: usize = 4;
/// The value that NVML writes for an unknown number of bytes.
const NOT_AVAILABLE: u64 = u64::MAX;

/// A list in words: pid, used bytes, MIG instance ids, and one more word from some drivers.
pub(super) struct RawList {
    /// `WIDEST_ENTRY` words for each entry; `UNWRITTEN` where the library wrote nothing.
    pub(super) words: Vec<u64>,
    /// The number of entries that the library says it wrote.
    pub(super) count: usize,
}

impl RawList {
    /// Returns pids and bytes. A process appears once for each MIG instance that it uses.
    fn entries(&self) -> impl Iterator<Item = (u32, Option<u64>)> {
        let pid = |word: u64| (word & u64::from(u32::MAX)) as u32;
        let bytes = |word| (word != NOT_AVAILABLE).then_some(word);
        self.words.chunks_exact(self.entry_words()).take(self.count).map(move |entry| (pid(entry[0]), bytes(entry[1])))
    }

    /// Returns the number of words in one entry. Some 535 drivers write wider entries under the same function name, and
    /// others write narrower ones (collected in nvitop's pull requests 79 and 226). The width is therefore derived from
    /// how far the library wrote.
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
pub(super) fn merge(compute: &RawList, graphics: &RawList) -> Vec<GpuProcess> {
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

    /// The half word after the pid is padding and may contain anything.
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
}
