//! What an out-of-memory message says, as plain data.

use std::fmt;

use super::size::Size;

/// What a message says.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct OutOfMemoryMessage {
    /// The size of the segment that the device was asked for, which may be larger than the request.
    pub tried: Size,
    /// The device's index.
    pub device: u32,
    /// The device's total memory.
    pub total: Size,
    /// The free part of it.
    pub free: Size,
    /// The processes that used memory, if NVML knew. Messages from before PyTorch 2.1 have none.
    pub processes: Vec<ProcessUse>,
    /// The memory limit, if one was set.
    pub limit: Option<Size>,
    /// Memory in allocated blocks, and that of `private_pools`.
    pub allocated: Size,
    /// Memory that the process's allocator had reserved from the device.
    pub reserved: Size,
    /// Reserved memory that was not allocated.
    pub unallocated: Size,
    /// What the message calls allocated in private pools, if there was any: in fact
    /// their free, cached memory (spec 2.13).
    pub private_pools: Option<Size>,
}

/// A process that used memory of the device.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ProcessUse {
    /// Its process id; `None` for the process whose message this is.
    pub pid: Option<u32>,
    /// The memory that it used.
    pub used: Size,
}

/// Why a text could not be read as an out-of-memory message.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MessageError {
    /// It does not contain a message.
    #[error("there is no out-of-memory message (`out of memory. Tried to allocate`) in the text")]
    NotFound,
    /// The message has no figures: the request was for an exabyte or more, or was
    /// rejected before the device was asked.
    #[error("the message has no figures: {0}")]
    NoFigures(&'static str),
    /// The message ends, or continues differently, where this should follow.
    #[error("expected {expected} at `{at}`; is the message complete?")]
    Expected {
        /// What should follow.
        expected: &'static str,
        /// The text there, up to 40 characters.
        at: String,
    },
}

impl OutOfMemoryMessage {
    /// Whether the reserved but unallocated memory is at least the size that was tried: enough memory, but in pieces.
    #[must_use]
    pub fn is_fragmentation(&self) -> bool {
        self.unallocated.bytes >= self.tried.bytes
    }
}

impl fmt::Display for OutOfMemoryMessage {
    /// The figures of the allocator, without those of the device and of other processes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tried to allocate {}", self.tried)?;
        if let Some(limit) = self.limit {
            write!(f, ", {limit} allowed")?;
        }
        write!(f, ", {} allocated", self.allocated)?;
        if let Some(private) = self.private_pools {
            write!(f, " ({private} of it in private pools)")?;
        }
        write!(f, ", {} reserved but unallocated", self.unallocated)
    }
}
