//! The breakdown of a heap: live bytes, rounding, and stranded bytes, each of them for exactly one cause.
//!
//! A byte is *stranded* if it is reserved and not allocated. Why it could not serve a request depends on the request, so a heap is
//! broken down as one request saw it. The first cause that applies, in the order of [`Cause::ALL`], counts.

use parkade::units::{Bytes, PoolId, StreamId};

/// Small blocks pin a segment or page if at most one part in this many of it is in use.
pub const PINNED_PART: u64 = 10;

/// Why a stranded byte could not serve the request.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Cause {
    /// Its block was freed, but another stream may still use it: an event is outstanding (spec 3.5).
    PendingEvent,
    /// It belongs to a private pool that is not the request's (spec 5).
    PrivatePool,
    /// It is cached for another stream (spec 2.3).
    OtherStream,
    /// It is in the small pool and the request is large, or the reverse (spec 1.5).
    OtherClass,
    /// The block is large enough, but the rules of `max_split_size_mb` keep it for larger requests, or forbid wasting so much of it
    /// (spec 2.5, steps 4 and 5).
    Oversize,
    /// The block is large enough, but is in an expandable segment, and these have since been switched off (spec 2.5, step 3).
    ExpandableOff,
    /// The block would serve the request.
    Fits,
    /// The hole is too small, and so little of its segment or pages is in use, at most one part in [`PINNED_PART`], that a few small
    /// blocks keep all of it from being released.
    Pinned,
    /// The hole is too small.
    TooSmall,
}

impl Cause {
    /// Every cause, in the order in which they are tried.
    pub const ALL: [Cause; 9] = [
        Cause::PendingEvent,
        Cause::PrivatePool,
        Cause::OtherStream,
        Cause::OtherClass,
        Cause::Oversize,
        Cause::ExpandableOff,
        Cause::Fits,
        Cause::Pinned,
        Cause::TooSmall,
    ];

    /// Its name in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Cause::PendingEvent => "pending_event",
            Cause::PrivatePool => "private_pool",
            Cause::OtherStream => "other_stream",
            Cause::OtherClass => "other_class",
            Cause::Oversize => "oversize",
            Cause::ExpandableOff => "expandable_off",
            Cause::Fits => "fits",
            Cause::Pinned => "pinned",
            Cause::TooSmall => "too_small",
        }
    }
}

/// A request, as the allocator's search sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Asked {
    /// The block size that it needs: the requested bytes, rounded.
    pub size: Bytes,
    /// The stream that it is for.
    pub stream: StreamId,
    /// The pool that the request goes to.
    pub pool: PoolId,
}

/// A block that is reserved and not allocated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hole {
    /// Its first byte.
    pub address: u64,
    /// Its size in bytes.
    pub bytes: u64,
    /// Why it could not serve the request.
    pub cause: Cause,
    /// The bytes that `empty_cache`, or the allocator before it fails, can release to the device: a whole segment, or whole pages. 0 in
    /// private pools, because a snapshot does not show whether a pool is still used.
    pub releasable_bytes: u64,
}

/// All stranded bytes of one cause.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Strand {
    /// The cause.
    pub cause: Cause,
    /// Their sum.
    pub bytes: u64,
    /// How many holes they are in.
    pub holes: usize,
    /// The largest of these holes.
    pub largest_bytes: u64,
    /// The part of the sum that can be released to the device.
    pub releasable_bytes: u64,
}

/// A heap, broken down. Requested, rounding and stranded bytes always add up to the reserved bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Breakdown {
    /// Reserved bytes.
    pub reserved_bytes: u64,
    /// The bytes that the program requested for the live blocks.
    pub requested_bytes: u64,
    /// The bytes that these blocks have beyond that.
    pub rounding_bytes: u64,
    /// How many live blocks there are.
    pub live_blocks: usize,
    /// How many segments there are; of expandable ones, mapped runs.
    pub segments: usize,
    /// The stranded bytes by cause, in the order of [`Cause::ALL`], causes without bytes included.
    pub strands: [Strand; Cause::ALL.len()],
    /// Whole free segments and pages of private pools: they are released only once nothing uses the pool.
    pub kept_by_pools_bytes: u64,
    /// Every hole, by address.
    pub holes: Vec<Hole>,
}

impl Breakdown {
    /// The bytes of live blocks.
    #[must_use]
    pub fn allocated_bytes(&self) -> u64 {
        self.requested_bytes.saturating_add(self.rounding_bytes)
    }

    /// Bytes that are reserved and not allocated.
    #[must_use]
    pub fn stranded_bytes(&self) -> u64 {
        self.strands.iter().fold(0, |sum, strand| sum.saturating_add(strand.bytes))
    }

    /// The part of the stranded bytes that can be released to the device.
    #[must_use]
    pub fn releasable_bytes(&self) -> u64 {
        self.strands.iter().fold(0, |sum, strand| sum.saturating_add(strand.releasable_bytes))
    }

    /// The stranded bytes of one cause.
    #[must_use]
    pub fn of(&self, cause: Cause) -> &Strand {
        &self.strands[cause as usize]
    }

    /// The largest free block, whichever stream or pool may use it.
    #[must_use]
    pub fn largest_hole_bytes(&self) -> u64 {
        let free = self.strands.iter().filter(|strand| strand.cause != Cause::PendingEvent);
        free.map(|strand| strand.largest_bytes).max().unwrap_or(0)
    }

    /// The cause that strands the most bytes; `None` if nothing is stranded.
    #[must_use]
    pub fn main_cause(&self) -> Option<Cause> {
        let strands = self.strands.iter().filter(|strand| strand.bytes > 0);
        strands.max_by_key(|strand| strand.bytes).map(|strand| strand.cause)
    }
}
