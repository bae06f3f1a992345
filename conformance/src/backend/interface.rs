//! The suite's requirements for a backend: it opens devices according to [`Needs`], and checks can drive its devices directly,
//! without the allocator.
//!
//! Differences between devices are in [`DeviceFacts`]; [`Insight`] covers what only a simulated device can report and do.

use std::fmt;
use std::time::Duration;

use parkade::device::{BackendError, DeviceBackend};
use parkade::units::{Bytes, DeviceAddress, MIB, StreamId};
use serde::{Deserialize, Serialize};

/// Opens devices of one kind.
pub trait Backend {
    /// The device type. A device is empty when it is opened, and returns everything when it is
    /// dropped.
    type Device: TestDevice;

    /// Returns its name in lower case, such as `sim` or `cuda`: the prefix of its test names.
    fn name(&self) -> &'static str;

    /// Opens a device.
    ///
    /// # Errors
    /// The reason why no device is available.
    fn open(&self, needs: &Needs) -> Result<Self::Device, Unable>;

    /// Returns the facts about these devices. The default is the H200's facts.
    fn facts(&self) -> DeviceFacts {
        DeviceFacts::H200
    }

    /// Returns facts about the device for a report, as names and values, such as the model and the driver's version.
    fn describe(&self) -> Vec<(&'static str, String)> {
        vec![("device", self.name().to_owned())]
    }

    /// Returns whether devices are simulated. The suite may then open thousands of them, even at the same time. They
    /// follow [`Needs::simulation`], and the suite tries every [`EventTiming`] on them.
    fn is_simulated(&self) -> bool {
        false
    }
}

/// The requirements that a check has for its device.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct Needs {
    /// The memory that the device may have, rounded down to whole pages. The backend withholds the rest, or keeps
    /// count. `None` means all of the device's memory.
    pub capacity: Option<Bytes>,
    /// The behaviour of a simulated device in respects that a real device decides for itself. Backends of real devices
    /// ignore it.
    pub simulation: Simulation,
}

/// The behaviour of a simulated device in respects that a real device decides for itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Simulation {
    /// The rule by which events are reported complete.
    pub timing: EventTiming,
    /// Where segments are placed.
    pub places: Places,
    /// Whether freeing a segment waits for the device.
    pub free_waits: bool,
}

impl Default for Simulation {
    /// Returns the behaviour of a real device: events follow the clock, each segment is placed above the previous one,
    /// and frees wait.
    fn default() -> Simulation {
        Simulation { timing: EventTiming::Clock, places: Places::Ascending, free_waits: true }
    }
}

/// The rule by which a simulated device reports an event complete.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum EventTiming {
    /// The time at which the event's work is done, by the device's clock.
    Clock,
    /// At the first query.
    Eager,
    /// Only when the host waits for the event.
    Lazy,
    /// At random, drawn from this seed.
    Seeded(u64),
}

/// The places where new segments are put.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Places {
    /// Each above the previous one.
    Ascending,
    /// Each below the previous one.
    Descending,
    /// In the lowest hole; reserved addresses too.
    Reuse,
}

/// The reason why a check has no device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Unable {
    /// No device is present, or none is large enough: the check is skipped with this reason.
    Absent(String),
    /// The device is no longer usable, or others hold its memory: the check fails.
    Lost(String),
}

impl fmt::Display for Unable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unable::Absent(reason) | Unable::Lost(reason) => f.write_str(reason),
        }
    }
}

/// A device for tests: it has streams, runs work and shows the contents of its memory.
///
/// It must also implement `synchronize_stream` and `stream_wait` of [`DeviceBackend`], which refuse by default. Errors
/// are the driver's, as the core sees them. The methods refuse memory that does not belong to the caller, and change
/// nothing in that case.
pub trait TestDevice: DeviceBackend {
    /// Returns the default stream and three others, which live as long as the device.
    fn streams(&self) -> [StreamId; 4];

    /// Queues work on a stream that takes this long and touches no memory. Like [`TestDevice::fill`] and [`TestDevice::copy`], it
    /// returns long before the work is done, unless the device is synchronous ([`DeviceFacts::is_asynchronous`]).
    ///
    /// # Errors
    /// The driver's error.
    fn spin(&mut self, stream: StreamId, duration_ns: u64) -> Result<(), BackendError>;

    /// Queues work on a stream that fills `size` bytes with `word`, in whole words of 4 bytes.
    ///
    /// # Errors
    /// If any of the memory is not accessible to the device.
    fn fill(&mut self, address: DeviceAddress, size: Bytes, word: u32, stream: StreamId) -> Result<(), BackendError>;

    /// Queues a copy within the device on a stream.
    ///
    /// # Errors
    /// If any of the memory is not accessible to the device.
    fn copy(&mut self, from: DeviceAddress, to: DeviceAddress, size: Bytes, stream: StreamId) -> Result<(), BackendError>;

    /// Reads memory to the host after the default stream's work, without waiting for other streams.
    ///
    /// # Errors
    /// If any of the memory is not accessible to the device.
    fn read(&mut self, address: DeviceAddress, into: &mut [u8]) -> Result<(), BackendError>;

    /// Waits until all work is done (cudaDeviceSynchronize). Failed work shows up in the next call.
    fn settle(&mut self) {
        for stream in self.streams() {
            // Failed work shows up in the next call of any kind.
            let _ = self.synchronize_stream(stream);
        }
    }

    /// Lets time pass without a call from the host.
    fn pause(&mut self, duration_ns: u64) {
        std::thread::sleep(Duration::from_nanos(duration_ns));
    }

    /// Returns the live ranges from `malloc`, lowest address first; sizes may be rounded up to the device's pages.
    fn live_ranges(&self) -> Vec<(DeviceAddress, Bytes)>;

    /// Returns the memory and objects that were taken from the device through this handle and not returned.
    fn holdings(&self) -> Holdings;

    /// Makes others hold this many bytes from now on, in addition to what [`Needs::capacity`] withholds.
    ///
    /// # Errors
    /// If the device does not have that much memory.
    fn others_hold(&mut self, bytes: Bytes) -> Result<(), BackendError>;

    /// Returns the bytes that the driver reports as free but does not hand out (facts: Holes).
    fn withheld_bytes(&self) -> Bytes {
        Bytes::ZERO
    }

    /// Returns the interface for what only a simulated device can report or do; `None` on other devices.
    fn insight(&mut self) -> Option<&mut dyn Insight> {
        None
    }
}

/// The memory and objects that have been taken from a device and not returned.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Holdings {
    /// Ranges of cudaMalloc.
    pub ranges: usize,
    /// Reserved ranges of addresses.
    pub reservations: usize,
    /// Unreleased handles from cuMemCreate, and mappings.
    pub physical: usize,
    /// Events.
    pub events: usize,
}

impl Holdings {
    /// Returns whether nothing is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Holdings::default()
    }
}

/// The state that tests can read and control on a simulated device.
pub trait Insight {
    /// Returns the races found so far; only the first ones are kept.
    fn races(&self) -> Vec<Race>;

    /// Returns the number of races found, including those that [`Insight::races`] does not list.
    fn race_count(&self) -> u64;

    /// Returns the physical bytes used by this device's allocations.
    fn used_bytes(&self) -> Bytes;

    /// Returns the device's clock, in nanoseconds.
    fn now_ns(&self) -> u64;

    /// Returns the part of that time that was spent on driver calls and waiting, in nanoseconds.
    fn driver_and_wait_ns(&self) -> u64;

    /// Completes all work of a stream.
    fn complete(&mut self, stream: StreamId);

    /// Completes the oldest event of a stream.
    fn complete_one(&mut self, stream: StreamId);

    /// Completes all work.
    fn complete_all(&mut self);

    /// Begins the capture of a graph on a stream, in place of the one in which the stream takes part.
    fn begin_capture(&mut self, stream: StreamId);

    /// Ends the capture in which a stream takes part, on all its streams.
    fn end_capture(&mut self, stream: StreamId);

    /// Returns whether a stream takes part in a capture.
    fn is_captured(&self, stream: StreamId) -> bool;

    /// Submits work to a captured stream. Returns false if the stream is not captured.
    fn capture_work(&mut self, stream: StreamId) -> bool;

    /// Makes a stream wait for all work of another stream, which is captured. Returns false if that stream is not captured,
    /// or if the first takes part in a different capture.
    fn capture_wait(&mut self, stream: StreamId, other: StreamId) -> bool;
}

/// Two uses of the same bytes that are not ordered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Race {
    /// The earlier use.
    pub first: RaceSide,
    /// The later use, which did not wait for the earlier one.
    pub second: RaceSide,
    /// A description of both.
    pub text: String,
}

impl fmt::Display for Race {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// One of the two uses in a race.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RaceSide {
    /// The effect of the use.
    pub touch: Touch,
    /// The stream that used the memory; `None` for the host.
    pub stream: Option<StreamId>,
    /// The first byte.
    pub address: DeviceAddress,
    /// Its length in bytes.
    pub size: Bytes,
    /// A description of the use.
    pub text: String,
}

impl fmt::Display for RaceSide {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The effect of a use on memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Touch {
    /// Reads the memory.
    Read,
    /// Writes the memory.
    Written,
    /// Unmaps the memory from its address.
    Unmapped,
    /// Frees the memory.
    Freed,
}

/// Differences between devices: sizes, result codes, and which calls wait.
///
/// The contract asserts the facts that a backend states, and skips entries that require something that the device
/// lacks. Rules that apply to every device are in the contract itself and in [`parkade::device`].
///
/// The facts that a backend states about its devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceFacts {
    /// The unit of memory: a power of two, at least 4 KiB. A range that does not share a page takes whole pages and
    /// starts at a multiple of the page. Virtual memory is reserved, created and mapped in whole pages.
    pub page: Bytes,
    /// The small ranges that share a page; `None` if every range has its own pages.
    pub sharing: Option<Sharing>,
    /// The result codes of refused calls.
    pub codes: Codes,
    /// Whether addresses can be reserved and memory mapped at them. If so, the corresponding calls of
    /// [`parkade::device::DeviceBackend`] are implemented.
    pub has_virtual_memory: bool,
    /// Whether any free pages can serve any range, so that a request is refused only if too few pages are free. False if a range
    /// needs contiguous memory: free memory can then be too fragmented for it.
    pub remaps_pages: bool,
    /// Whether calls that submit work return before the work is done. False for a synchronous device, on which no work is ever
    /// pending.
    pub is_asynchronous: bool,
    /// The calls that wait for all of the device's work.
    pub waits: Waits,
    /// The source of these facts.
    pub source: &'static str,
}

/// The rule by which small ranges share a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sharing {
    /// The largest range that shares a page; at most half a page.
    pub largest: Bytes,
    /// Ranges in a page start at multiples of this size: a power of two, at least 512 bytes.
    pub spacing: Bytes,
}

/// The result codes of refused calls, as [`BackendError::Driver`] carries them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Codes {
    /// An invalid argument: an address that does not belong to the caller, a size of zero, a range that is already mapped.
    pub invalid_value: u32,
    /// Out of memory. Devices report it as [`BackendError::OutOfMemory`]; texts show it with this code.
    pub out_of_memory: u32,
    /// A stream that does not belong to the device.
    pub invalid_handle: u32,
    /// Mapping only part of a handle's memory, or more than was created.
    pub not_supported: u32,
}

impl Codes {
    /// Returns the code of an outcome; 0 if the call succeeded.
    #[must_use]
    pub fn of<T>(&self, outcome: &Result<T, BackendError>) -> u32 {
        match outcome {
            Ok(_) => 0,
            Err(BackendError::OutOfMemory { .. }) => self.out_of_memory,
            Err(BackendError::Driver { code, .. }) => *code,
        }
    }
}

/// The calls that return only after all work on the device, including work on other streams, is
/// done.
///
/// If `free` is not one of them, it must still wait for the work that uses the range, because the allocator frees a
/// segment while the segment's own stream may still be running.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "one answer for each call")]
pub struct Waits {
    /// `malloc`.
    pub malloc: bool,
    /// `free`.
    pub free: bool,
    /// `create`.
    pub create: bool,
    /// `map`.
    pub map: bool,
    /// `set_access`.
    pub set_access: bool,
    /// `unmap`.
    pub unmap: bool,
    /// `release`.
    pub release: bool,
}

impl Waits {
    /// Returns CUDA's behaviour: only `free` waits (facts: Waiting for the device).
    pub const CUDA: Waits =
        Waits { malloc: false, free: true, create: false, map: false, set_access: false, unmap: false, release: false };
}

impl DeviceFacts {
    /// Returns the facts of an NVIDIA H200 under CUDA, which the simulated device imitates (facts: Sizes and addresses,
    /// Virtual memory calls, Waiting for the device).
    pub const H200: DeviceFacts = DeviceFacts {
        page: Bytes(2 * MIB),
        sharing: Some(Sharing { largest: Bytes(MIB), spacing: Bytes(512) }),
        codes: Codes { invalid_value: 1, out_of_memory: 2, invalid_handle: 400, not_supported: 801 },
        has_virtual_memory: true,
        remaps_pages: true,
        is_asynchronous: true,
        waits: Waits::CUDA,
        source: "measured on an NVIDIA H200 (docs/driver-facts.md)",
    };

    /// Returns whether both sets of facts describe the same behaviour, apart from their source. If so, results from the
    /// two devices can be compared.
    #[must_use]
    pub fn behaves_as(&self, other: &DeviceFacts) -> bool {
        DeviceFacts { source: other.source, ..*self } == *other
    }
}

/// Returns the position of the first whole word that differs from `word`, in memory that a device filled with that word.
pub(crate) fn first_other_word(bytes: &[u8], word: u32) -> Option<usize> {
    let word = word.to_le_bytes();
    // Memory that begins with the word and equals itself one word later holds nothing else. This comparison is fast even in a build
    // without optimisation, where tests read most.
    let is_filled = bytes.starts_with(&word) && bytes[word.len()..] == bytes[..bytes.len() - word.len()];
    let differs = |found: &[u8]| found != word;
    if is_filled { None } else { bytes.chunks_exact(word.len()).position(differs).map(|place| place * word.len()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_source_makes_no_difference_and_everything_else_does() {
        let facts = DeviceFacts { source: "elsewhere", ..DeviceFacts::H200 };
        assert!(facts.behaves_as(&DeviceFacts::H200));
        assert!(!DeviceFacts { page: Bytes(4096), ..facts }.behaves_as(&DeviceFacts::H200));
    }

    #[test]
    fn any_other_byte_of_a_whole_word_is_found() {
        const WORD: u32 = 0x0102_0301;
        for len in 0..40 {
            let filled: Vec<u8> = WORD.to_le_bytes().into_iter().cycle().take(len).collect();
            assert_eq!(first_other_word(&filled, WORD), None);
            for changed in 0..len {
                let mut bytes = filled.clone();
                bytes[changed] ^= 3;
                let expected = (changed < len / 4 * 4).then_some(changed / 4 * 4);
                assert_eq!(first_other_word(&bytes, WORD), expected, "{len} bytes, of which {changed} differs");
            }
        }
    }
}
