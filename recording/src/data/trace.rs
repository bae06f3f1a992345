//! The trace of a device: what its allocator did, entry by entry (spec 7.4).

use super::pools::PoolId;
use super::stacks::StackId;

/// What a trace entry says happened (spec 7.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Action {
    /// A block was handed out to the program.
    Alloc,
    /// The program freed a block.
    FreeRequested,
    /// A block became free for reuse.
    FreeCompleted,
    /// A segment was allocated from the driver.
    SegmentAlloc,
    /// A segment was freed to the driver.
    SegmentFree,
    /// A run of an expandable segment was mapped.
    SegmentMap,
    /// A run of an expandable segment was unmapped.
    SegmentUnmap,
    /// Out of memory. The entry's address is the device's free bytes.
    Oom,
    /// A snapshot was taken.
    Snapshot,
}

impl Action {
    /// Every action.
    pub const ALL: [Action; 9] = [
        Action::Alloc,
        Action::FreeRequested,
        Action::FreeCompleted,
        Action::SegmentAlloc,
        Action::SegmentFree,
        Action::SegmentMap,
        Action::SegmentUnmap,
        Action::Oom,
        Action::Snapshot,
    ];

    /// PyTorch's spelling.
    pub fn name(self) -> &'static str {
        match self {
            Action::Alloc => "alloc",
            Action::FreeRequested => "free_requested",
            Action::FreeCompleted => "free_completed",
            Action::SegmentAlloc => "segment_alloc",
            Action::SegmentFree => "segment_free",
            Action::SegmentMap => "segment_map",
            Action::SegmentUnmap => "segment_unmap",
            Action::Oom => "oom",
            Action::Snapshot => "snapshot",
        }
    }

    /// The action with this spelling; `None` if there is none.
    pub fn from_name(name: &[u8]) -> Option<Action> {
        Action::ALL.into_iter().find(|action| action.name().as_bytes() == name)
    }
}

/// One entry of a device's trace; 48 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Address of the block or segment; for [`Action::Oom`] the device's free bytes.
    pub address: u64,
    /// For a block the bytes requested, for a segment its length; for `Oom` the rounded
    /// request, for `Snapshot` all active bytes.
    pub size: u64,
    /// The stream's handle; 0 is the default stream. A negative handle keeps its bits.
    pub stream: u64,
    /// See [`Entry::time`].
    time_us: i64,
    /// Where in the program it happened.
    pub stack: StackId,
    /// The memory pool; `PoolId::NONE` in files of PyTorch 2.11, which do not say.
    pub pool: PoolId,
    /// What happened.
    pub action: Action,
}

impl Entry {
    const NO_TIME: i64 = i64::MIN;

    /// An entry without time, stack or pool.
    pub fn new(action: Action, address: u64, size: u64, stream: u64) -> Entry {
        Entry { address, size, stream, time_us: Entry::NO_TIME, stack: StackId::NONE, pool: PoolId::NONE, action }
    }

    /// Microseconds since 1970, if the file says (PyTorch 2.2 and later).
    pub fn time(&self) -> Option<u64> {
        u64::try_from(self.time_us).ok()
    }

    /// Sets the time, in microseconds since 1970. Times past the year 294,247 (`i64::MAX`) become that.
    pub fn set_time(&mut self, time_us: Option<u64>) {
        self.time_us = time_us.map_or(Entry::NO_TIME, |time| i64::try_from(time).unwrap_or(i64::MAX));
    }
}

const _: () = assert!(size_of::<Entry>() <= 48);
