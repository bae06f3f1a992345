//! Driver calls: their names, result codes and log, as plain data and as JSON lines in the fake driver's format.
//!
//! In the log, ranges are named by the number of their cudaMalloc (`c3`) or cuMemAddressReserve (`v3`), created memory
//! by the number of its cuMemCreate (`h3`), and events by the number of their creation. Two logs can therefore be
//! compared even if their addresses differ.

use std::fmt;

use parkade::device::BackendError;

/// A driver call that the device understands.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum CallName {
    /// cudaMemGetInfo.
    MemGetInfo,
    /// cudaMalloc.
    Malloc,
    /// cudaFree.
    Free,
    /// cudaEventCreate (with flags).
    EventCreate,
    /// cudaEventRecord.
    EventRecord,
    /// cudaEventQuery.
    EventQuery,
    /// cudaEventSynchronize.
    EventSynchronize,
    /// cudaEventDestroy.
    EventDestroy,
    /// cudaDeviceSynchronize.
    DeviceSynchronize,
    /// cuMemAddressReserve.
    AddressReserve,
    /// cuMemAddressFree.
    AddressFree,
    /// cuMemCreate.
    MemCreate,
    /// cuMemMap.
    MemMap,
    /// cuMemSetAccess.
    MemSetAccess,
    /// cuMemUnmap.
    MemUnmap,
    /// cuMemRelease.
    MemRelease,
    /// cudaStreamSynchronize.
    StreamSynchronize,
    /// cudaStreamWaitEvent.
    StreamWaitEvent,
}

impl CallName {
    /// Every call.
    pub const ALL: [CallName; 18] = [
        CallName::MemGetInfo,
        CallName::Malloc,
        CallName::Free,
        CallName::EventCreate,
        CallName::EventRecord,
        CallName::EventQuery,
        CallName::EventSynchronize,
        CallName::EventDestroy,
        CallName::DeviceSynchronize,
        CallName::AddressReserve,
        CallName::AddressFree,
        CallName::MemCreate,
        CallName::MemMap,
        CallName::MemSetAccess,
        CallName::MemUnmap,
        CallName::MemRelease,
        CallName::StreamSynchronize,
        CallName::StreamWaitEvent,
    ];
    /// The number of calls.
    pub const COUNT: usize = CallName::ALL.len();

    /// Returns the driver's name for the call.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            CallName::MemGetInfo => "cudaMemGetInfo",
            CallName::Malloc => "cudaMalloc",
            CallName::Free => "cudaFree",
            CallName::EventCreate => "cudaEventCreate",
            CallName::EventRecord => "cudaEventRecord",
            CallName::EventQuery => "cudaEventQuery",
            CallName::EventSynchronize => "cudaEventSynchronize",
            CallName::EventDestroy => "cudaEventDestroy",
            CallName::DeviceSynchronize => "cudaDeviceSynchronize",
            CallName::AddressReserve => "cuMemAddressReserve",
            CallName::AddressFree => "cuMemAddressFree",
            CallName::MemCreate => "cuMemCreate",
            CallName::MemMap => "cuMemMap",
            CallName::MemSetAccess => "cuMemSetAccess",
            CallName::MemUnmap => "cuMemUnmap",
            CallName::MemRelease => "cuMemRelease",
            CallName::StreamSynchronize => "cudaStreamSynchronize",
            CallName::StreamWaitEvent => "cudaStreamWaitEvent",
        }
    }

    /// Returns the lowest log level that shows the call.
    #[must_use]
    pub const fn level(self) -> LogLevel {
        match self {
            CallName::EventCreate
            | CallName::EventRecord
            | CallName::EventQuery
            | CallName::EventSynchronize
            | CallName::EventDestroy
            | CallName::DeviceSynchronize
            | CallName::StreamSynchronize
            | CallName::StreamWaitEvent => LogLevel::Events,
            _ => LogLevel::Memory,
        }
    }
}

/// The amount of logging. The numbers are those of the fake driver's `--log` option.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
#[repr(u8)]
pub enum LogLevel {
    /// Nothing.
    #[default]
    Off = 0,
    /// Calls about memory.
    Memory = 1,
    /// Calls about memory, and calls about events and synchronization.
    Events = 2,
}

/// An argument is invalid.
pub(crate) const INVALID_VALUE: u32 = 1;
/// There is not enough memory.
pub(crate) const OUT_OF_MEMORY: u32 = 2;
/// The event does not exist, or no longer exists.
pub(crate) const INVALID_HANDLE: u32 = 400;
/// A query's answer that the event is not complete. This is not a failure.
pub(crate) const NOT_READY: u32 = 600;
/// This process does not have permission.
pub(crate) const NOT_PERMITTED: u32 = 800;
/// The driver does not support this.
pub(crate) const NOT_SUPPORTED: u32 = 801;
/// An internal error: here, an address model that returned an unusable address.
pub(crate) const UNKNOWN: u32 = 999;

/// Returns the result code of an outcome; zero for success.
pub(crate) fn code_of<T>(outcome: &Result<T, u32>) -> u32 {
    outcome.as_ref().err().copied().unwrap_or(0)
}

/// Returns the core's error for a driver code.
pub(crate) fn driver_error(name: CallName, code: u32) -> BackendError {
    BackendError::Driver { call: name.as_str(), code }
}

/// The name of an address in the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AddressName {
    /// An address in a range from cudaMalloc (the latest one if several ranges have had the address).
    InRange {
        /// The number of the cudaMalloc, counted from zero over those that succeeded.
        ordinal: u64,
        /// The number of bytes from the start of its range.
        offset_bytes: u64,
    },
    /// An address in a range from cuMemAddressReserve (the latest one if several ranges have had the address).
    InReservation {
        /// The number of the cuMemAddressReserve, counted from zero over those that succeeded.
        ordinal: u64,
        /// The number of bytes from the start of its range.
        offset_bytes: u64,
    },
    /// An address in no range that the device has ever returned.
    Unknown(u64),
}

impl fmt::Display for AddressName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AddressName::InRange { ordinal, offset_bytes } => write!(f, "c{ordinal}+{offset_bytes}"),
            AddressName::InReservation { ordinal, offset_bytes } => write!(f, "v{ordinal}+{offset_bytes}"),
            AddressName::Unknown(address) => write!(f, "{address:#x}"),
        }
    }
}

/// The arguments of a call and what it returned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CallSubject {
    /// The answer to cudaMemGetInfo; zeros if it failed.
    Info {
        /// Free bytes.
        free_bytes: u64,
        /// Total bytes, as the driver reports them.
        total_bytes: u64,
    },
    /// A cudaMalloc.
    Allocation {
        /// The requested bytes.
        bytes: u64,
        /// The new range's number and address; `None` if the call failed.
        range: Option<(u64, u64)>,
    },
    /// A cudaFree.
    Release {
        /// The address argument.
        address: u64,
        /// Its name at that time.
        name: AddressName,
    },
    /// A cuMemAddressReserve.
    Reservation {
        /// The requested bytes.
        bytes: u64,
        /// The new range's number and address; `None` if the call failed.
        range: Option<(u64, u64)>,
    },
    /// A cuMemAddressFree.
    ReservationEnd {
        /// The address argument.
        address: u64,
        /// Its name at that time.
        name: AddressName,
        /// The size argument.
        bytes: u64,
    },
    /// A cuMemCreate.
    Creation {
        /// The requested bytes.
        bytes: u64,
        /// The requested handle type: 1 is a file descriptor, 8 is fabric.
        handle_type: u32,
        /// The new memory's number; `None` if the call failed.
        handle: Option<u64>,
    },
    /// A cuMemMap or, without a handle, a cuMemUnmap.
    Mapping {
        /// The address argument.
        address: u64,
        /// Its name at that time.
        name: AddressName,
        /// The size argument.
        bytes: u64,
        /// The number of the memory to map; `None` for cuMemUnmap.
        handle: Option<u64>,
    },
    /// A cuMemSetAccess.
    Access {
        /// The address argument.
        address: u64,
        /// Its name at that time.
        name: AddressName,
        /// The size argument.
        bytes: u64,
        /// The index of the device that is granted access.
        device: u32,
    },
    /// A cuMemRelease of the memory with this number.
    Handle(u64),
    /// A cudaStreamSynchronize of the stream with this handle.
    Stream(u64),
    /// A call about an event.
    Event {
        /// The event's number, counted from zero over the successful creations.
        ordinal: u64,
        /// The last argument, if the call has one: the flags of a creation (2 means without time stamps) or the
        /// stream's handle.
        argument: Option<u64>,
    },
    /// A call about the entire device.
    Device,
}

/// One driver call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Call {
    /// The name of the call.
    pub name: CallName,
    /// The driver's result code: 0 is success, 600 is a query's "not ready".
    pub result: u32,
    /// The arguments and what the call returned.
    pub subject: CallSubject,
    /// The clock when the call returned, in nanoseconds. It is not part of the rendered text.
    pub at_ns: u64,
}

impl Call {
    /// Returns the call as the fake driver logs it: a JSON array of name, result code and arguments, without spaces.
    #[must_use]
    pub fn render(&self) -> String {
        let head = format!("[\"{}\",{}", self.name.as_str(), self.result);
        match self.subject {
            CallSubject::Info { free_bytes, total_bytes } => format!("{head},{free_bytes},{total_bytes}]"),
            CallSubject::Allocation { bytes, range: Some((ordinal, _)) } => format!("{head},{bytes},\"c{ordinal}\"]"),
            CallSubject::Allocation { bytes, range: None } => format!("{head},{bytes}]"),
            // The fake driver omits the offset if the call succeeded, because the address is the start in that case.
            CallSubject::Release { name: AddressName::InRange { ordinal, .. }, .. } if self.result == 0 => {
                format!("{head},\"c{ordinal}\"]")
            }
            CallSubject::Release { name, .. } => format!("{head},\"{name}\"]"),
            CallSubject::Event { ordinal, argument: Some(argument) } => format!("{head},{ordinal},{argument}]"),
            CallSubject::Event { ordinal, argument: None } => format!("{head},{ordinal}]"),
            CallSubject::Reservation { bytes, range: Some((ordinal, _)) } => format!("{head},{bytes},\"v{ordinal}\"]"),
            CallSubject::Reservation { bytes, range: None } => format!("{head},{bytes}]"),
            CallSubject::ReservationEnd { name: AddressName::InReservation { ordinal, .. }, bytes, .. } if self.result == 0 => {
                format!("{head},\"v{ordinal}\",{bytes}]")
            }
            CallSubject::ReservationEnd { name, bytes, .. } => format!("{head},\"{name}\",{bytes}]"),
            CallSubject::Creation { bytes, handle_type, handle: Some(handle) } => {
                format!("{head},{bytes},\"h{handle}\",{handle_type}]")
            }
            CallSubject::Creation { bytes, handle_type, .. } if self.result == NOT_PERMITTED => {
                format!("{head},{bytes},{handle_type}]")
            }
            CallSubject::Creation { bytes, .. } => format!("{head},{bytes}]"),
            CallSubject::Mapping { name, bytes, handle: Some(handle), .. } => {
                format!("{head},\"{name}\",{bytes},\"h{handle}\"]")
            }
            CallSubject::Mapping { name, bytes, handle: None, .. } => format!("{head},\"{name}\",{bytes}]"),
            CallSubject::Access { name, bytes, device, .. } => format!("{head},\"{name}\",{bytes},{device}]"),
            CallSubject::Handle(ordinal) => format!("{head},\"h{ordinal}\"]"),
            CallSubject::Stream(handle) => format!("{head},{handle}]"),
            CallSubject::Device => format!("{head}]"),
        }
    }
}

/// The calls that have been logged and not yet taken.
#[derive(Clone, Default, Debug)]
pub(crate) struct CallLog {
    pub(crate) level: LogLevel,
    calls: Vec<Call>,
}

impl CallLog {
    /// Returns whether calls with this name are logged.
    pub(crate) fn shows(&self, name: CallName) -> bool {
        self.level >= name.level()
    }

    /// Logs a call if its level is enabled. `subject` is called only then.
    pub(crate) fn push(&mut self, name: CallName, result: u32, at_ns: u64, subject: impl FnOnce() -> CallSubject) {
        if self.shows(name) {
            self.calls.push(Call { name, result, subject: subject(), at_ns });
        }
    }

    /// Takes everything that was logged since the last call.
    pub(crate) fn take(&mut self) -> Vec<Call> {
        std::mem::take(&mut self.calls)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_is_at_its_index_in_the_list() {
        for (index, name) in CallName::ALL.into_iter().enumerate() {
            assert_eq!(name as usize, index);
        }
    }

    /// The expected lines were printed by the fake driver.
    #[test]
    fn lines_are_the_fake_drivers() {
        let event = |ordinal, argument| CallSubject::Event { ordinal, argument };
        let start = AddressName::InRange { ordinal: 37, offset_bytes: 0 };
        let inside = AddressName::InRange { ordinal: 3, offset_bytes: 512 };
        let rows = [
            (
                CallName::Malloc,
                0,
                CallSubject::Allocation { bytes: 20_971_520, range: Some((0, 5)) },
                r#"["cudaMalloc",0,20971520,"c0"]"#,
            ),
            (CallName::Malloc, 2, CallSubject::Allocation { bytes: 100_663_296, range: None }, r#"["cudaMalloc",2,100663296]"#),
            (CallName::Free, 0, CallSubject::Release { address: 1, name: start }, r#"["cudaFree",0,"c37"]"#),
            (CallName::Free, 1, CallSubject::Release { address: 1, name: inside }, r#"["cudaFree",1,"c3+512"]"#),
            (
                CallName::MemGetInfo,
                0,
                CallSubject::Info { free_bytes: 545_259_520, total_bytes: 1_073_741_824 },
                r#"["cudaMemGetInfo",0,545259520,1073741824]"#,
            ),
            (CallName::EventCreate, 0, event(0, Some(2)), r#"["cudaEventCreate",0,0,2]"#),
            (CallName::EventRecord, 0, event(0, Some(8192)), r#"["cudaEventRecord",0,0,8192]"#),
            (CallName::EventQuery, 600, event(1, None), r#"["cudaEventQuery",600,1]"#),
            (CallName::EventSynchronize, 0, event(1, None), r#"["cudaEventSynchronize",0,1]"#),
            (CallName::StreamSynchronize, 0, CallSubject::Stream(4096), r#"["cudaStreamSynchronize",0,4096]"#),
            (CallName::DeviceSynchronize, 0, CallSubject::Device, r#"["cudaDeviceSynchronize",0]"#),
        ];
        for (name, result, subject, line) in rows {
            assert_eq!(Call { name, result, subject, at_ns: 9 }.render(), line);
        }
    }
}
