//! A race as it is reported: two uses of the same bytes, and its text.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use parkade::units::{Bytes, DeviceAddress, StreamId};

use crate::kernel::AccessKind;

/// What was done with bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum RaceUse {
    /// They were read.
    Read,
    /// They were written.
    Written,
    /// They were taken away from behind the address (cuMemUnmap).
    Unmapped,
    /// They were given back (cudaFree).
    Freed,
}

impl From<AccessKind> for RaceUse {
    fn from(kind: AccessKind) -> Self {
        match kind {
            AccessKind::Read => RaceUse::Read,
            AccessKind::Write => RaceUse::Written,
        }
    }
}

/// One of the two sides of a race.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct RaceAccess {
    /// Its number among all uses on the device that the detector saw, from 1 in program order.
    pub number: u64,
    /// The kernel's label, or the name of what the host did.
    pub label: Cow<'static, str>,
    /// The stream, or `None` for the host.
    pub stream: Option<StreamId>,
    /// What it did.
    pub what: RaceUse,
    /// Where the bytes begin that it touches.
    pub address: DeviceAddress,
    /// How many they are.
    pub size: Bytes,
    /// When it begins on the device's clock, in nanoseconds.
    pub start_ns: u64,
    /// When it ends.
    pub end_ns: u64,
}

/// Two uses of the same physical bytes, at least one of which is no read, and of which the second may begin before the first
/// ends:
/// - both on streams, without order between them. Order comes from being on one stream, from a stream that waits for an event,
///   and from what the host has waited for before it launches;
/// - or the second by the host, which reads, unmaps or frees what it does not know to be done.
///
/// It is a property of the program, not of the times: a race is reported also where the clock kept both apart. Each pair of uses
/// is reported once. Where several ordered accesses through the same address are all in a race with a later one, only the last
/// of them is reported (a read does not hide a write); whoever is ordered behind that one is ordered behind the others too.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Race {
    /// The side that the program asked for first.
    pub first: Arc<RaceAccess>,
    /// The side that it asked for later.
    pub second: Arc<RaceAccess>,
}

impl fmt::Display for RaceAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.what {
            RaceUse::Read => "read",
            RaceUse::Written => "written",
            RaceUse::Unmapped => "unmapped",
            RaceUse::Freed => "freed",
        };
        write!(f, "{what} by `{}` ", self.label)?;
        match self.stream {
            Some(stream) => write!(f, "on stream {stream}")?,
            None => f.write_str("on the host")?,
        }
        write!(f, " (access {}, {} bytes at {}, ", self.number, self.size, self.address)?;
        write!(f, "{} to {} ns)", self.start_ns, self.end_ns)
    }
}

impl fmt::Display for Race {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} and {} without order between them", self.first, self.second)
    }
}
