//! The log of driver calls: plain data, and its text in the fake driver's JSON form.
//!
//! Ranges are named by the number of their cudaMalloc (`c3`) or cuMemAddressReserve (`v3`), created memory by the number of its
//! cuMemCreate (`h3`), events by the number of their creation, so that two logs can be compared whatever the addresses were.

use std::fmt;

use super::codes::NOT_PERMITTED;
use super::name::{CallName, LogLevel};

/// What to call an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AddressName {
    /// Inside the range that the cudaMalloc of this number gave out last.
    InRange {
        /// The number of the cudaMalloc, counted from zero over those that succeeded.
        ordinal: u64,
        /// Bytes from the start of its range.
        offset_bytes: u64,
    },
    /// Inside the range that the cuMemAddressReserve of this number gave out last.
    InReservation {
        /// The number of the cuMemAddressReserve, counted from zero over those that succeeded.
        ordinal: u64,
        /// Bytes from the start of its range.
        offset_bytes: u64,
    },
    /// In no range ever given out.
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

/// What a call was about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CallSubject {
    /// The answer of cudaMemGetInfo; zeros if it failed.
    Info {
        /// Bytes that nobody holds.
        free_bytes: u64,
        /// Bytes that the driver calls total.
        total_bytes: u64,
    },
    /// A cudaMalloc.
    Allocation {
        /// Bytes that were asked for.
        bytes: u64,
        /// The new range's number and address, or `None` if the call failed.
        range: Option<(u64, u64)>,
    },
    /// A cudaFree.
    Release {
        /// The address that was given.
        address: u64,
        /// What it was called at that time.
        name: AddressName,
    },
    /// A cuMemAddressReserve.
    Reservation {
        /// Bytes that were asked for.
        bytes: u64,
        /// The new range's number and address, or `None` if the call failed.
        range: Option<(u64, u64)>,
    },
    /// A cuMemAddressFree.
    ReservationEnd {
        /// The address that was given.
        address: u64,
        /// What it was called at that time.
        name: AddressName,
        /// The bytes that were given.
        bytes: u64,
    },
    /// A cuMemCreate.
    Creation {
        /// Bytes that were asked for.
        bytes: u64,
        /// The handle type that was asked for: 1 is a file descriptor, 8 is fabric.
        handle_type: u32,
        /// The new memory's number, or `None` if the call failed.
        handle: Option<u64>,
    },
    /// A cuMemMap or, without a handle, a cuMemUnmap.
    Mapping {
        /// The address that was given.
        address: u64,
        /// What it was called at that time.
        name: AddressName,
        /// The bytes that were given.
        bytes: u64,
        /// The number of the memory that was to be mapped.
        handle: Option<u64>,
    },
    /// A cuMemSetAccess.
    Access {
        /// The address that was given.
        address: u64,
        /// What it was called at that time.
        name: AddressName,
        /// The bytes that were given.
        bytes: u64,
        /// The index of the device that was to have access.
        device: u32,
    },
    /// A cuMemRelease, of the memory of this number.
    Handle(u64),
    /// A cudaStreamSynchronize, of the stream with this handle.
    Stream(u64),
    /// A call about an event. `ordinal` counts creations from zero; `argument` is the flags of a creation (2: without timing)
    /// and the stream's handle of a record.
    Event {
        /// The event's number.
        ordinal: u64,
        /// The last argument, where the call has one.
        argument: Option<u64>,
    },
    /// The device as a whole.
    Device,
}

/// One driver call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Call {
    /// Which call.
    pub name: CallName,
    /// The driver's result code: 0 is success, 600 of a query "not ready".
    pub result: u32,
    /// What it was about.
    pub subject: CallSubject,
    /// The clock when the call returned, in nanoseconds. Not part of the text.
    pub at_ns: u64,
}

impl Call {
    /// The call as the fake driver logs it: a JSON array of name, result code and arguments, without spaces.
    #[must_use]
    pub fn render(&self) -> String {
        let head = format!("[\"{}\",{}", self.name.as_str(), self.result);
        match self.subject {
            CallSubject::Info { free_bytes, total_bytes } => format!("{head},{free_bytes},{total_bytes}]"),
            CallSubject::Allocation { bytes, range: Some((ordinal, _)) } => format!("{head},{bytes},\"c{ordinal}\"]"),
            CallSubject::Allocation { bytes, range: None } => format!("{head},{bytes}]"),
            // The fake driver leaves the offset out where the address is known to be a start.
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

/// The calls logged and not yet taken.
#[derive(Clone, Default, Debug)]
pub(crate) struct CallLog {
    pub(crate) level: LogLevel,
    calls: Vec<Call>,
}

impl CallLog {
    /// Whether calls of this name are logged.
    pub(crate) fn shows(&self, name: CallName) -> bool {
        self.level >= name.level()
    }

    /// Logs a call if its level is switched on; `subject` is only made then.
    pub(crate) fn push(&mut self, name: CallName, result: u32, at_ns: u64, subject: impl FnOnce() -> CallSubject) {
        if self.shows(name) {
            self.calls.push(Call { name, result, subject: subject(), at_ns });
        }
    }

    /// Takes everything logged since the last time.
    pub(crate) fn take(&mut self) -> Vec<Call> {
        std::mem::take(&mut self.calls)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines are the fake driver's.
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
