//! Decisions, apart from the flow that carries them out.
//!
//! A [`Policy`] sees a read-only [`Heap`] and returns values; the allocator checks each answer before it acts on it, acts, and keeps
//! the accounts. So a policy cannot corrupt the heap: a wrong answer becomes [`crate::AllocError::Policy`], which names the policy.
//! PyTorch's rules are one policy ([`PyTorch`]); nothing in the flow knows its name.

mod boxed;
mod pytorch;
mod rounding;
mod wrapper;

use alloc::vec::Vec;
use core::fmt;

use crate::block::BlockId;
use crate::heap::{Heap, PoolSlot};
use crate::profile::Profile;
use crate::units::{Bytes, PoolClass, StreamId};

pub use pytorch::PyTorch;
use wrapper::with_wrapper;

pub use crate::heap::Coalescing;
pub use crate::index::FreeOrder;

/// One request on its way through the allocator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// What the caller asked for.
    pub requested: Bytes,
    /// What [`Policy::round`] made of it.
    pub size: Bytes,
    /// The pool that serves it.
    pub pool: PoolSlot,
    /// The stream that it is for.
    pub stream: StreamId,
    /// New memory for it comes from an expandable segment ([`Policy::is_expandable`]).
    pub is_expandable: bool,
}

/// Where a request is to be served from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Placement {
    /// This free block of the request's pool and stream.
    Reuse(BlockId),
    /// No free block; a new segment of this many bytes would do. Where memory comes from expandable segments, this is what the limit
    /// and the error speak of, and less may be mapped.
    Segment(Bytes),
}

/// One rung of the ladder that is climbed when no free block serves a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Relief {
    /// Give these free blocks back to the device, in this order; then perhaps ask the device for the segment.
    Release {
        /// Whole segments, or blocks of expandable ones.
        blocks: Vec<BlockId>,
        /// Whether to ask afterwards, and how that counts.
        attempt: Attempt,
    },
    /// Look for a free block in the private pools that serve when memory is out (spec 5.6).
    Borrow,
    /// Take this free block of the request's pool from another stream. It belongs to the request's stream from then on, whole, and is cut as
    /// the request's own would be. Not of an expandable segment. While a graph is captured this does nothing.
    Transfer {
        /// The block, at least as large as the request.
        block: BlockId,
        /// Whether the request's stream is made to wait for what its former stream has been given so far. If not, the block is taken
        /// only if that stream has nothing left to do; else the ladder goes on.
        waits: bool,
    },
    /// Unmap the whole pages in these free blocks of expandable segments, then ask the device, with their memory in hand: what the request
    /// misses is taken from it first, and what is left over goes back to the device. While a graph is captured this does nothing.
    Remap {
        /// Free blocks, in this order.
        blocks: Vec<BlockId>,
    },
    /// Wait for all events, so that every block given back becomes free. While a graph is captured this does nothing.
    Wait,
    /// Take this free block of the request's pool and stream, as [`Placement::Reuse`] would: one that a rung before has made.
    Reuse(BlockId),
    /// Out of memory.
    GiveUp,
}

/// Whether a rung ends with asking the device for a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Attempt {
    /// It does not.
    No,
    /// It does.
    Ask,
    /// It does, and counts in `num_alloc_retries`.
    AskAgain,
    /// It does, for a segment of this size instead of the one that [`Policy::place`] named. Where memory comes from expandable segments the
    /// limit alone is held against it.
    AskFor(Bytes),
}

with_wrapper! {
/// Rules of allocation. Decides, never acts.
///
/// The same policy must give the same answers to the same sequence of questions: no clock, no randomness.
pub trait Policy {
    /// The policy's name, for errors.
    fn name(&self) -> &'static str;

    /// The version of PyTorch whose flow carries the decisions out. Asked once, when the allocator is made.
    fn profile(&self) -> &'static Profile {
        &Profile::PYTORCH_2_11
    }

    /// The size of the block that serves a request of `requested` bytes (at least 1); `None` if it exceeds 64 bits.
    fn round(&self, requested: Bytes) -> Option<Bytes>;

    /// Which collection of the pool serves blocks of `size` bytes.
    fn classify(&self, size: Bytes) -> PoolClass;

    /// Whether new memory for the pool comes from expandable segments rather than from segments of their own.
    fn is_expandable(&self, _pool: PoolSlot) -> bool {
        false
    }

    /// The size of a page of a new expandable segment for the pool: a multiple of 2 MiB.
    fn page(&self, _pool: PoolSlot) -> Bytes {
        Bytes::mib(2)
    }

    /// How many addresses a new expandable segment reserves on a device with so much memory, before rounding up to pages.
    fn reservation(&self, total: Bytes) -> Bytes {
        total.checked_add(Bytes(total.0 / 8)).unwrap_or(Bytes::MAX)
    }

    /// Whether taking `size` bytes more from a device of `total` is refused without asking it, as an error of its own kind.
    fn rejects(&self, _reserved: Bytes, _size: Bytes, _total: Bytes) -> bool {
        false
    }

    /// Finds a free block, or says how large a new segment must be. May be asked twice for one request, when a callback freed memory
    /// in between.
    fn place(&mut self, heap: &Heap, request: &Request) -> Placement;

    /// Whether a block of `whole` bytes, found or new, is cut. Only asked of blocks larger than the request, and again of what is left
    /// of one that was cut to more than the request's size.
    fn splits(&self, whole: Bytes, request: &Request) -> bool;

    /// How many bytes of a block that is cut the request's part keeps: at least the request's size, fewer than `whole`. The rest, behind
    /// it, becomes free.
    fn cut(&self, whole: Bytes, request: &Request) -> Bytes {
        let _ = whole;
        request.size
    }

    /// Which free neighbours become one block. The same answer always.
    fn coalescing(&self) -> Coalescing {
        Coalescing::Neighbours
    }

    /// The `rung`-th step when no free block serves a request, from 0.
    fn relieve(&mut self, heap: &Heap, request: &Request, rung: u32) -> Relief;

    /// Whether [`Relief::Release`] may name blocks of the default pool while a graph is captured, and of private pools in use. Their memory
    /// would be gone where a graph expects it.
    fn releases_during_captures(&self) -> bool {
        false
    }

    /// Everything that is given back when everything is, in this order.
    fn releasable(&self, heap: &Heap) -> Vec<BlockId> {
        heap.releasable()
    }

    /// In which order the heap keeps the free blocks that the policy looks for. The same answer always.
    fn free_order(&self) -> FreeOrder {
        FreeOrder::BySize
    }

    /// The value to stamp on a block of the pool that becomes free: the policy's own clock, if it ages blocks.
    fn stamp(&self, _pool: PoolSlot) -> u64 {
        0
    }

    /// Whether a block or segment of `size` bytes counts as oversize in the statistics.
    fn is_oversize(&self, _size: Bytes) -> bool {
        false
    }

    /// The statistic `max_split_size`: signed, -1 for unlimited.
    fn max_split_size(&self) -> i64 {
        -1
    }
}
}

/// A policy gave an answer that cannot be acted upon. The heap is valid, and nothing is lost; what the rungs before it did stays done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PolicyFault {
    /// Which policy.
    pub policy: &'static str,
    /// What is wrong with the answer.
    pub problem: &'static str,
}

impl fmt::Display for PolicyFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the policy {} {}", self.policy, self.problem)
    }
}

impl core::error::Error for PolicyFault {}
