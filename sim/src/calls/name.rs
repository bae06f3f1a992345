//! The driver calls that the device understands, by name, and the log level that shows each.

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
    /// How many there are.
    pub const COUNT: usize = CallName::ALL.len();

    /// The driver's name for the call.
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

    /// The lowest log level that shows the call.
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

/// How much is logged. The numbers are those of the fake driver's `--log` option.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_is_at_its_index_in_the_list() {
        for (index, name) in CallName::ALL.into_iter().enumerate() {
            assert_eq!(name as usize, index);
        }
    }
}
