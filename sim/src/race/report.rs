//! A race as it is reported: two uses of the same bytes, and the text for it.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use parkade::units::{Bytes, DeviceAddress, StreamId};

use crate::kernel::AccessKind;

/// What one side of a race did with the bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum RaceUse {
    /// Read them.
    Read,
    /// Wrote them.
    Written,
    /// Unmapped them from the address (cuMemUnmap).
    Unmapped,
    /// Freed them (cudaFree).
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
    /// Its number among all uses that the detector saw on the device, from 1, in program order.
    pub number: u64,
    /// The kernel's label, or the name of the host's call.
    pub label: Cow<'static, str>,
    /// The stream; `None` for the host.
    pub stream: Option<StreamId>,
    /// What it did.
    pub what: RaceUse,
    /// The address of the first byte that it touches.
    pub address: DeviceAddress,
    /// How many bytes it touches.
    pub size: Bytes,
    /// When it starts on the device's clock, in nanoseconds.
    pub start_ns: u64,
    /// When it ends on the device's clock, in nanoseconds.
    pub end_ns: u64,
}

/// Two uses of the same physical bytes, not both reads, of which the second may start before the first ends:
/// - both on streams, with no order between them. Order comes from being on the same stream, from a stream
///   that waits for an event, and from what the host waited for before the launch;
/// - or the second by the host, which reads, unmaps or frees bytes while it does not know that the first use
///   is done.
///
/// A race is a property of the program, not of its timing: it is reported even if the two did not overlap on
/// the clock. Each pair is reported once. If several ordered accesses through one address all race with a
/// later one, only the last of them is reported (but a read does not hide a write); work ordered after that
/// one is ordered after the others too.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Race {
    /// The use that the program asked for first.
    pub first: Arc<RaceAccess>,
    /// The use that it asked for later.
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
