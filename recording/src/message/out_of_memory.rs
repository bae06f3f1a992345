//! What an out-of-memory message says, as plain data.

use std::fmt;

use super::size::Size;

/// What a message says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OutOfMemoryMessage {
    /// What was asked of the device: a segment, which may be larger than the request.
    pub tried: Size,
    /// The device's index.
    pub device: u32,
    /// The device's memory.
    pub total: Size,
    /// What of it nobody held.
    pub free: Size,
    /// Who held memory, where NVML told; messages before 2.1 have nobody.
    pub processes: Vec<ProcessUse>,
    /// The process's limit, where one was set.
    pub limit: Option<Size>,
    /// Bytes of blocks that were handed out, and what `private_pools` says.
    pub allocated: Size,
    /// Bytes that the process's allocator had taken from the device.
    pub reserved: Size,
    /// The other reserved bytes.
    pub unallocated: Size,
    /// What the message calls allocated in private pools, where there was any: what these have cached free (spec 2.13).
    pub private_pools: Option<Size>,
}

/// A process that held memory of the device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProcessUse {
    /// Its number; `None` is the process whose message this is.
    pub pid: Option<u32>,
    /// What it held.
    pub used: Size,
}

/// Why a text is not such a message.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MessageError {
    /// It does not contain one.
    #[error("there is no out-of-memory message (`out of memory. Tried to allocate`) in the text")]
    NotFound,
    /// A message without figures: the request was of an exabyte or more, or was rejected before the device was asked.
    #[error("the message has no figures: {0}")]
    NoFigures(&'static str),
    /// It ends, or goes on in another way, where this should come.
    #[error("expected {expected} at `{at}`; is the message complete?")]
    Expected {
        /// What should come.
        expected: &'static str,
        /// The next few words of the text.
        at: String,
    },
}

impl OutOfMemoryMessage {
    /// Whether what was reserved and not handed out is at least what was tried: then memory was there, in pieces.
    #[must_use]
    pub fn is_fragmentation(&self) -> bool {
        self.unallocated.bytes >= self.tried.bytes
    }
}

impl fmt::Display for OutOfMemoryMessage {
    /// The part that follows from the allocator alone; what the device and other processes had is left out.
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
