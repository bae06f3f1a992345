//! Decisions, separate from the flow that carries them out.
//!
//! A [`Policy`] sees a read-only [`Heap`] and returns values. The allocator checks each answer, acts on it
//! and keeps the accounts, so a policy cannot corrupt the heap: a wrong answer becomes
//! [`crate::AllocError::Policy`], which names the policy. PyTorch's rules are one policy ([`PyTorch`]); the
//! flow does not know that it exists.

mod pytorch;

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;

use crate::block::BlockId;
use crate::heap::{Candidate, Heap, PoolSlot};
pub use crate::index::FreeOrder;
use crate::profile::Profile;
use crate::units::{Bytes, DeviceAddress, PoolClass, StreamId};
pub use pytorch::PyTorch;

/// One request on its way through the allocator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// The bytes that the caller asked for.
    pub requested: Bytes,
    /// The same, rounded by [`Policy::round`].
    pub size: Bytes,
    /// The pool that serves it.
    pub pool: PoolSlot,
    /// The stream that it is for.
    pub stream: StreamId,
    /// Whether new memory for it comes from an expandable segment ([`Policy::is_expandable`]).
    pub is_expandable: bool,
}

/// Where to serve a request from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Placement {
    /// This free block of the request's pool and stream.
    Reuse(BlockId),
    /// No free block fits; a new segment of this many bytes would. With expandable segments less may be
    /// mapped, and this size only appears in the check against the limit and in the error.
    Segment(Bytes),
}

/// One rung of the retry ladder: a step to take when no free block serves a request. The allocator asks for
/// rung 0, 1, 2, ... until one yields a block or the policy gives up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Relief {
    /// Release these free blocks to the device, in this order, then perhaps ask it for the segment.
    Release {
        /// Whole segments, or blocks of expandable ones.
        blocks: Vec<BlockId>,
        /// Whether to ask the device afterwards, and for how much.
        attempt: Attempt,
    },
    /// Serve a request of a private pool from free memory of the default pool in which no work is pending
    /// ([`Policy::annexes`]), as far as there is any. Serves also while a graph is captured.
    Annex,
    /// Look for a free block in the private pools that may serve when the device is out of memory (spec 5.6).
    Borrow,
    /// Move this free block of the request's pool to the request's stream, whole, then split it as usual. Does nothing while
    /// a graph is captured.
    Transfer {
        /// The block, at least as large as the request.
        block: BlockId,
        /// Whether the request's stream waits for the work that the block's former stream has been given so
        /// far. If not, the block moves only if that work is done; otherwise the next rung follows.
        waits: bool,
    },
    /// As [`Relief::Transfer`] with a wait, but only the part that is split off for the request moves: the rest stays
    /// with its stream. What moves does not coalesce with free neighbours. Does nothing while a graph is captured.
    TransferPart {
        /// The block, at least as large as the request.
        block: BlockId,
    },
    /// Move all free blocks of the request's pool that belong to this other stream to the request's stream, where
    /// they coalesce; the request's stream waits for the work that the other one has been given so far, even if that
    /// has no block. Blocks of expandable segments stay. Serves nothing by itself: the next rung may reuse what there
    /// is then. Does nothing while a graph is captured.
    TransferAll {
        /// A stream that has been used before.
        from: StreamId,
    },
    /// Ask the device for a segment that becomes one free block of the request's pool, on any stream that has had a
    /// request ([`Heap::streams_seen`]). Serves nothing by itself: the next rung may reuse or transfer it. If there
    /// is no room, the next rung follows as well. Not for pools of expandable segments.
    Provide {
        /// The segment's size.
        bytes: Bytes,
        /// The stream that the block belongs to; it has had a request, as the request's own has.
        stream: StreamId,
    },
    /// Unmap the whole pages in these free blocks of expandable segments and map them for the request, with
    /// new ones from the device where they are too few. Unused pages go back to the device. Does nothing
    /// while a graph is captured.
    Remap {
        /// Free blocks, in this order.
        blocks: Vec<BlockId>,
    },
    /// Unmap these handles ([`Policy::handle`]), each wholly in a free block, and map them for the request where its
    /// segment grows, with new ones from the device where they are too few. Those that the request does not need become
    /// free behind it, or go back to the device where the addresses end. Waits for the streams of their segments. Does
    /// nothing while a graph is captured.
    Move {
        /// The first bytes of the handles ([`Heap::handles_in`]), none twice.
        handles: Vec<DeviceAddress>,
    },
    /// As [`Relief::Move`], but the handles go back to the device, and the request's segment grows with new ones: so that a
    /// large handle becomes one that ends where the request does, or many small ones become few.
    Replace {
        /// The first bytes of the handles, none twice.
        handles: Vec<DeviceAddress>,
    },
    /// Break these handles, each with free pages in free blocks of its own pool and stream ([`Heap::partly_free`]): what is in
    /// use, or cached by a private pool in use, keeps its addresses and contents in memory of its own, and free pages go back
    /// to the device. Serves nothing by itself: the next rung may ask for what there is then. Waits for all work of the device,
    /// and no other thread may give it work that uses memory of the allocator meanwhile. Does nothing while a graph is
    /// captured, and on a device that does not break handles
    /// ([`DeviceBackend::breaks_handles`](crate::device::DeviceBackend::breaks_handles)).
    Break {
        /// The first bytes of the handles, none twice.
        handles: Vec<DeviceAddress>,
    },
    /// Wait for all events, so that every pending block becomes free. Does nothing while a graph is captured.
    Wait,
    /// Take this free block of the request's pool and stream, which an earlier rung has freed; as
    /// [`Placement::Reuse`].
    Reuse(BlockId),
    /// The same from this many bytes into the block on: what is before stays free, and what is behind is split off as
    /// usual. For policies with rules about addresses.
    ReuseAt {
        /// The block.
        block: BlockId,
        /// Where in the block the request's bytes begin.
        offset: Bytes,
    },
    /// Out of memory.
    GiveUp,
}

/// Whether a rung ends by asking the device for a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Attempt {
    /// No.
    No,
    /// Yes, for the segment that [`Policy::place`] named.
    Ask,
    /// The same, counted in `num_alloc_retries`.
    AskAgain,
    /// No: the request fails ([`crate::AllocError::ExpandableRelease`]).
    Fail,
    /// Yes, for a segment of this size. With expandable segments the size only matters to the limit.
    AskFor(Bytes),
}

/// Declares the trait `Policy` and, from its methods, the trait `Wrapper` and `impl Policy` for every wrapper.
///
/// Methods take `&self` or `&mut self` and return a value. Only a method that takes `&self` may have a default.
/// Methods in the second pair of braces have defaults and are not passed on.
///
/// One list of a policy's questions, for the trait and for everything that passes them on.
///
/// A wrapper easily forgets a question that has a default answer, and then the default decides instead of the
/// policy inside. So the trait is written inside [`with_wrapper!`], which declares it unchanged and generates
/// the rest from its signatures: a wrapper passes every question on unless it overrides it, including
/// questions that are added later.
macro_rules! with_wrapper {
    ($(#[$about:meta])* pub trait Policy { $($questions:tt)* } own { $($own:tt)* }) => {
        $(#[$about])*
        pub trait Policy { $($questions)* $($own)* }
        with_wrapper! { @sort [] [] $($questions)* }
    };

    // Sorts the signatures by receiver and drops the default bodies.
    (@sort [$($shared:tt)*] [$($unique:tt)*]
     $(#[$doc:meta])* fn $name:ident(&self $(, $arg:ident: $of:ty)*) -> $answer:ty; $($rest:tt)*) => {
        with_wrapper! {
            @sort [$($shared)* fn $name($($arg: $of),*) -> $answer;] [$($unique)*] $($rest)*
        }
    };
    (@sort [$($shared:tt)*] [$($unique:tt)*]
     $(#[$doc:meta])* fn $name:ident(&self $(, $arg:ident: $of:ty)*) -> $answer:ty { $($default:tt)* } $($rest:tt)*) => {
        with_wrapper! {
            @sort [$($shared)* fn $name($($arg: $of),*) -> $answer;] [$($unique)*] $($rest)*
        }
    };
    (@sort [$($shared:tt)*] [$($unique:tt)*]
     $(#[$doc:meta])* fn $name:ident(&mut self $(, $arg:ident: $of:ty)*) -> $answer:ty; $($rest:tt)*) => {
        with_wrapper! {
            @sort [$($shared)*] [$($unique)* fn $name($($arg: $of),*) -> $answer;] $($rest)*
        }
    };

    (@sort [$(fn $shared:ident($($arg:ident: $of:ty),*) -> $answer:ty;)*]
           [$(fn $unique:ident($($own_arg:ident: $own_of:ty),*) -> $own_answer:ty;)*]) => {
        /// A policy around another one: by default every question goes to the inner policy. Override a method
        /// to answer it differently.
        ///
        /// Every wrapper is a [`Policy`].
        pub trait Wrapper {
            /// The inner policy.
            type Inner: Policy + ?Sized;

            /// The inner policy.
            fn inner(&self) -> &Self::Inner;

            /// The inner policy, for the questions that may change its state.
            fn inner_mut(&mut self) -> &mut Self::Inner;

            $(
                #[doc = concat!("[`Policy::", stringify!($shared), "`].")]
                #[inline]
                fn $shared(&self $(, $arg: $of)*) -> $answer {
                    self.inner().$shared($($arg),*)
                }
            )*

            $(
                #[doc = concat!("[`Policy::", stringify!($unique), "`].")]
                #[inline]
                fn $unique(&mut self $(, $own_arg: $own_of)*) -> $own_answer {
                    self.inner_mut().$unique($($own_arg),*)
                }
            )*
        }

        impl<W: Wrapper> Policy for W {
            $(
                #[inline]
                fn $shared(&self $(, $arg: $of)*) -> $answer {
                    Wrapper::$shared(self $(, $arg)*)
                }
            )*

            $(
                #[inline]
                fn $unique(&mut self $(, $own_arg: $own_of)*) -> $own_answer {
                    Wrapper::$unique(self $(, $own_arg)*)
                }
            )*
        }
    };
}

with_wrapper! {
/// The rules of allocation. A policy decides and never acts.
///
/// It must answer the same sequence of questions the same way each time: no clock, no randomness.
pub trait Policy {
    /// The policy's name, for errors.
    fn name(&self) -> &'static str;

    /// The release of PyTorch whose flow carries out the decisions. Asked once, when the allocator is made.
    fn profile(&self) -> &'static Profile {
        &Profile::PYTORCH_2_11
    }

    /// The size in bytes of the block for a request of `requested` bytes (at least 1); `None` if it exceeds
    /// 64 bits.
    fn round(&self, requested: Bytes) -> Option<Bytes>;

    /// Whether blocks of `size` bytes belong to the small or the large collection of their pool.
    fn classify(&self, size: Bytes) -> PoolClass;

    /// Whether new memory for the pool comes from expandable segments.
    fn is_expandable(&self, _pool: PoolSlot) -> bool {
        false
    }

    /// The page size of a new expandable segment for the pool, in bytes: a multiple of 2 MiB.
    fn page(&self, _pool: PoolSlot) -> Bytes {
        Bytes::mib(2)
    }

    /// How many bytes of addresses a new expandable segment reserves on a device of `total` bytes, before
    /// rounding up to pages.
    fn reservation(&self, total: Bytes) -> Bytes {
        total.checked_add(Bytes(total.0 / 8)).unwrap_or(Bytes::MAX)
    }

    /// Whether all memory that is mapped gets addresses of its own: no expandable segment is extended, and no gap in one
    /// is filled.
    fn has_own_segments(&self) -> bool {
        false
    }

    /// How many bytes to map for a request that no free block of expandable segments serves, before rounding up to pages:
    /// at least the request's size. What is more becomes a free block behind it.
    fn growth(&self, request: &Request) -> Bytes {
        request.size
    }

    /// The size of the next handle of memory for a request whose segment misses `missing` bytes, which is mapped and
    /// unmapped as a whole: a multiple of the page. It may be more than is missing; then the rest is free behind the
    /// request. The allocator takes less where the addresses, the limit or the device leave less, and asks again while
    /// bytes are missing. `None`, always, for handles of one page each.
    fn handle(&self, _heap: &Heap, _request: &Request, _missing: Bytes) -> Option<Bytes> {
        None
    }

    /// Whether private pools take their memory from the expandable segments of the default pool: free parts in which no work
    /// is pending ([`Relief::Annex`]), or new memory, which is mapped there. They keep it until they have no uses. For
    /// policies that put all blocks of a class into one collection and keep all free neighbours together.
    fn annexes(&self) -> bool {
        false
    }

    /// Whether busy streams are waited for before requests are routed to a private pool, so that all that is free may serve it:
    /// while a graph is captured nothing can be waited for. Only asked of a policy that annexes, and until it has waited or
    /// broken handles 16 times since a private pool last had no free block for a request.
    fn waits_for_pools(&self, _heap: &Heap) -> bool {
        false
    }

    /// The handles to break before requests are routed to a private pool, as in [`Relief::Break`], if
    /// [`Policy::waits_for_pools`] and all streams are idle: while a graph is captured none can be broken. An answer that cannot
    /// be carried out is passed over.
    fn breaks_for_pools(&self, _heap: &Heap) -> Vec<DeviceAddress> {
        Vec::new()
    }

    /// Whether to refuse taking `size` more bytes from a device of `total` without asking it
    /// ([`crate::AllocError::Rejected`]).
    fn rejects(&self, _reserved: Bytes, _size: Bytes, _total: Bytes) -> bool {
        false
    }

    /// Finds a free block, or says how large a new segment must be. Asked twice for one request if a callback
    /// has freed memory in between.
    fn place(&mut self, heap: &Heap, request: &Request) -> Placement;

    /// Whether to split a block of `whole` bytes, found or new, at the request's size. Only asked about blocks larger than
    /// the request. The rest, behind it, becomes free.
    fn splits(&self, whole: Bytes, request: &Request) -> bool;

    /// Whether the request gets the high end of a block that is split for it, so that what is before stays free.
    /// [`Policy::place`] is asked first. A part that [`Relief::TransferPart`] moves is the low
    /// end all the same.
    fn takes_high_end(&self, _request: &Request) -> bool {
        false
    }

    /// The `rung`-th step of the retry ladder, from 0.
    fn relieve(&mut self, heap: &Heap, request: &Request, rung: u32) -> Relief;

    /// Whether [`Relief::Release`] may name blocks of the default pool while a graph is captured, and blocks
    /// of private pools in use. Either can take memory away from a graph that expects it.
    fn releases_during_captures(&self) -> bool {
        false
    }

    /// Whether captures may reuse blocks once the graph makes their stream wait for the others (spec 3.8), as far as the release does and the
    /// device knows its graphs ([`crate::device::DeviceBackend::capture`]).
    fn reuses_in_captures(&self) -> bool {
        false
    }

    /// Everything to release when the cache is emptied, in this order.
    fn releasable(&self, heap: &Heap) -> Vec<BlockId> {
        heap.releasable()
    }

    /// The order in which the heap is to keep its free blocks. Asked once.
    fn free_order(&self) -> FreeOrder {
        FreeOrder::BySize
    }

    /// The stamp for a block of the pool that becomes free: a clock of the policy's own, if it ages blocks. Less than
    /// `u64::MAX`, which marks blocks for [`Relief::Annex`].
    fn stamp(&self, _pool: PoolSlot) -> u64 {
        0
    }

    /// Whether the statistics count a block or segment of `size` bytes as oversize.
    fn is_oversize(&self, _size: Bytes) -> bool {
        false
    }

    /// The statistic `max_split_size`, in bytes; -1 for unlimited.
    fn max_split_size(&self) -> i64 {
        -1
    }
} own {
    /// Whether [`Policy::takes_first`] is worth asking, and [`Policy::place`] would change nothing in the policy now.
    /// A shortcut, which wrappers do not pass on: they may place otherwise.
    fn looks_at_first(&self, _heap: &Heap) -> bool {
        false
    }

    /// Whether [`Policy::place`] would reuse `first`, the first free block of the request's pool and stream that is
    /// large enough. Then it is not asked. `false` is never wrong.
    fn takes_first(&self, _request: &Request, _first: Candidate<'_>) -> bool {
        false
    }

    /// The policy itself if it is PyTorch's: a program that has it behind a pointer and runs many events gets a copy
    /// that the compiler knows, which is twice as fast. Wrappers do not pass it on: they are another policy.
    fn as_pytorch(&self) -> Option<&PyTorch> {
        None
    }
}
}

/// A policy's answer cannot be carried out. The heap is valid and nothing is lost; what earlier rungs did
/// stays done.
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

impl<P: Policy + ?Sized> Wrapper for Box<P> {
    type Inner = P;

    #[inline]
    fn inner(&self) -> &P {
        self
    }

    #[inline]
    fn inner_mut(&mut self) -> &mut P {
        self
    }
}
