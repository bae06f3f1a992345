//! Decisions, separate from the flow that carries them out.
//!
//! A [`Policy`] sees a read-only [`Heap`] and returns values. The allocator checks each answer, acts on it and
//! updates the statistics, so a policy cannot corrupt the heap: a wrong answer becomes [`crate::AllocError::Policy`],
//! which names the policy. PyTorch's rules are one policy ([`PyTorch`]). The flow of a request does not depend on it.

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

/// One request while the allocator serves it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// The bytes that the caller requested.
    pub requested: Bytes,
    /// The requested bytes, rounded by [`Policy::round`].
    pub size: Bytes,
    /// The pool that serves the request.
    pub pool: PoolSlot,
    /// The stream that the request is for.
    pub stream: StreamId,
    /// Whether new memory for the request comes from an expandable segment ([`Policy::is_expandable`]).
    pub is_expandable: bool,
}

/// Where to serve a request from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Placement {
    /// This free block of the request's pool and stream.
    Reuse(BlockId),
    /// No free block fits; a new segment of this many bytes would. With expandable segments the allocator may map
    /// less; then this size only matters for the check against the limit and for the error.
    Segment(Bytes),
}

/// One rung of the retry ladder: a step to take when no free block serves a request. The allocator asks for rung 0,
/// 1, 2 and so on, until one yields a block or the policy gives up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Relief {
    /// Release these free blocks to the device, in this order. Then ask the device for the segment, if `attempt` says
    /// so.
    Release {
        /// Whole segments, or blocks of expandable segments.
        blocks: Vec<BlockId>,
        /// Whether to ask the device afterwards, and for how much.
        attempt: Attempt,
    },
    /// Serve a request of a private pool from free memory of the default pool in which no work is pending
    /// ([`Policy::annexes`]), if there is any. Also works while a graph is captured.
    Annex,
    /// Look for a free block in the private pools that may serve when the device is out of memory (spec 5.6).
    Borrow,
    /// Move this free block of the request's pool to the request's stream, whole, then split it as usual. Does nothing while
    /// a graph is captured.
    Transfer {
        /// The block, at least as large as the request.
        block: BlockId,
        /// Whether the request's stream waits for the work submitted so far to the block's old stream. If not, the
        /// block moves only if that work is done; if it is not done, the next rung follows.
        waits: bool,
    },
    /// As [`Relief::Transfer`] with a wait, but only the part that is split off for the request moves; the rest stays
    /// with its stream. The moved part does not coalesce with free neighbours. Does nothing while a graph is
    /// captured.
    TransferPart {
        /// The block, at least as large as the request.
        block: BlockId,
    },
    /// Move all free blocks of the request's pool that belong to stream `from` to the request's stream, where they
    /// coalesce. The request's stream waits for the work submitted so far to `from`, even if `from` has no block.
    /// Blocks of expandable segments stay. This serves no request by itself: the next rung may reuse the moved
    /// blocks. Does nothing while a graph is captured.
    TransferAll {
        /// A stream that has been used before.
        from: StreamId,
    },
    /// Ask the device for a segment that becomes one free block of the request's pool, on any stream that has had a
    /// request ([`Heap::streams_seen`]). This serves no request by itself: the next rung may reuse or transfer the
    /// block. The next rung also follows if the device has no room. Not for pools of expandable segments.
    Provide {
        /// The segment's size.
        bytes: Bytes,
        /// The stream that the block belongs to. It must have had a request; the request's own stream has had one.
        stream: StreamId,
    },
    /// Unmap the whole pages in these free blocks of expandable segments and map them for the request, with new pages
    /// from the device if they are too few. Unused pages go back to the device. Does nothing while a graph is
    /// captured.
    Remap {
        /// The free blocks, in this order.
        blocks: Vec<BlockId>,
    },
    /// Unmap these handles ([`Policy::handle`]), each of which lies entirely in a free block, and map them for the
    /// request where its segment grows, with new handles from the device if they are too few. Handles that the request
    /// does not need become free behind it, or go back to the device where the addresses end. Waits for the streams of
    /// their segments. Does nothing while a graph is captured.
    Move {
        /// The first bytes of the handles ([`Heap::handles_in`]), without duplicates.
        handles: Vec<DeviceAddress>,
    },
    /// As [`Relief::Move`], but the handles go back to the device, and the request's segment grows with new ones. So one
    /// large handle can be replaced by one that ends where the request does, or many small handles by a few large ones.
    Replace {
        /// The first bytes of the handles, without duplicates.
        handles: Vec<DeviceAddress>,
    },
    /// Break these handles, each of which has free pages in free blocks of its own pool and stream ([`Heap::partly_free`]).
    /// Memory that is in use, or cached by a private pool in use, keeps its addresses and contents in new memory, and free
    /// pages go back to the device. This serves no request by itself: the next rung may ask for the freed memory. Waits for
    /// all work of the device; meanwhile no other thread may submit work that uses memory of the allocator. Does nothing
    /// while a graph is captured, or on a device that does not break handles
    /// ([`DeviceBackend::breaks_handles`](crate::device::DeviceBackend::breaks_handles)).
    Break {
        /// The first bytes of the handles, without duplicates.
        handles: Vec<DeviceAddress>,
    },
    /// Goes on where PyTorch's allocator would fail. Records the entry of that failure ([`TraceAction::Oom`]), and counts the
    /// request as rescued ([`Stats::num_rescues`]) if a later rung serves it. From now on expandable segments have pages of
    /// this size, and each page that has memory is a handle of its old size ([`Policy::handle`]). Changes no memory. The
    /// pages stay as they are if more than [`Heap::MOST_REFINED`] have memory, or if this size does not divide theirs;
    /// [`Heap::refined_page`] returns the size if they were divided.
    ///
    /// [`TraceAction::Oom`]: crate::trace::TraceAction::Oom
    /// [`Stats::num_rescues`]: crate::stats::Stats::num_rescues
    Rescue {
        /// The new size, not 0.
        page: Bytes,
    },
    /// Wait for all events, so that every pending block becomes free. Does nothing while a graph is captured.
    Wait,
    /// Take this free block of the request's pool and stream, which an earlier rung has freed. Like
    /// [`Placement::Reuse`].
    Reuse(BlockId),
    /// Like [`Relief::Reuse`], but from `offset` on: the part before stays free, and the part behind the request is
    /// split off as usual. For policies with rules about addresses.
    ReuseAt {
        /// The block.
        block: BlockId,
        /// Where in the block the request's bytes begin.
        offset: Bytes,
    },
    /// Out of memory.
    GiveUp,
}

/// Whether and how a rung ends by asking the device for a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Attempt {
    /// Do not ask.
    No,
    /// Ask for the segment that [`Policy::place`] named.
    Ask,
    /// Ask for that segment, and count the attempt in `num_alloc_retries`.
    AskAgain,
    /// Do not ask; fail the request ([`crate::AllocError::ExpandableRelease`]).
    Fail,
    /// Ask for a segment of this size. With expandable segments the size only matters for the limit.
    AskFor(Bytes),
}

/// Declares the trait `Policy` and, from its methods, the trait `Wrapper` and `impl Policy` for every wrapper.
///
/// Methods take `&self` or `&mut self` and return a value. Only a method that takes `&self` may have a default.
/// Methods in the second pair of braces have defaults, and wrappers do not forward them.
///
/// This keeps one list of a policy's questions, for the trait and for everything that forwards them.
///
/// A hand-written wrapper easily forgets a question that has a default answer, and then the default decides instead
/// of the inner policy. So the trait is written inside [`with_wrapper!`], which declares it unchanged and generates
/// the rest from its signatures: a wrapper forwards every question that it does not override, including questions
/// that are added later.
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
        /// A policy around another policy. By default it forwards every question to the inner policy. Override a
        /// method to answer it differently.
        ///
        /// Every wrapper is a [`Policy`].
        pub trait Wrapper {
            /// The inner policy.
            type Inner: Policy + ?Sized;

            /// Whether [`Policy::place`] is the inner policy's, so that its shortcuts ([`Policy::takes_first`]) apply.
            const PLACES_AS_INNER: bool = false;

            /// The inner policy.
            fn inner(&self) -> &Self::Inner;

            /// The inner policy, mutable, for the questions that may change its state.
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

            #[inline(always)]
            fn looks_at_first(&self, heap: &Heap) -> bool {
                W::PLACES_AS_INNER && self.inner().looks_at_first(heap)
            }

            #[inline(always)]
            fn takes_first(&self, request: &Request, first: Candidate<'_>) -> bool {
                W::PLACES_AS_INNER && self.inner().takes_first(request, first)
            }
        }
    };
}

with_wrapper! {
/// The rules of allocation. A policy decides and never acts.
///
/// It must be deterministic: the same sequence of questions gets the same answers, without a clock or randomness.
pub trait Policy {
    /// The policy's name, for error messages.
    fn name(&self) -> &'static str;

    /// The release of PyTorch whose flow carries out the decisions. The allocator asks once, when it is made.
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

    /// How many bytes of addresses a new expandable segment reserves on a device with `total` bytes, before rounding
    /// up to pages.
    fn reservation(&self, total: Bytes) -> Bytes {
        total.checked_add(Bytes(total.0 / 8)).unwrap_or(Bytes::MAX)
    }

    /// Whether every mapping gets a new range of addresses, so that no expandable segment is extended and no gap in one
    /// is filled.
    fn has_own_segments(&self) -> bool {
        false
    }

    /// How many bytes to map for a request that no free block of expandable segments serves, before rounding up to pages;
    /// at least the request's size. Any excess becomes a free block behind the request.
    fn growth(&self, request: &Request) -> Bytes {
        request.size
    }

    /// The size of the next handle for a request whose segment lacks `missing` bytes. A handle is mapped and unmapped
    /// as a whole; its size is a multiple of the page. It may exceed `missing`; the rest is then free behind the
    /// request. The allocator takes less if the addresses, the limit or the device allow less, and asks again while
    /// bytes are missing. A policy that always returns `None` gets handles of one page each.
    fn handle(&self, _heap: &Heap, _request: &Request, _missing: Bytes) -> Option<Bytes> {
        None
    }

    /// Whether private pools take their memory from the default pool's expandable segments: free parts in which no work is
    /// pending ([`Relief::Annex`]), or new memory, which is mapped there. A pool keeps the memory until it has no uses. For
    /// policies that put all blocks of a class into one collection and coalesce all free neighbours.
    fn annexes(&self) -> bool {
        false
    }

    /// Whether the allocator waits for busy streams before requests are routed to a private pool, so that all free memory
    /// may serve that pool: it cannot wait while a graph is captured. Only asked if [`Policy::annexes`]. The allocator stops
    /// asking once it has waited or broken handles 16 times since a private pool last lacked a free block for a request.
    fn waits_for_pools(&self, _heap: &Heap) -> bool {
        false
    }

    /// The handles to break, as in [`Relief::Break`], before requests are routed to a private pool. Asked if
    /// [`Policy::waits_for_pools`] and all streams are idle; no handle can be broken while a graph is captured. The
    /// allocator ignores an answer that it cannot carry out.
    fn breaks_for_pools(&self, _heap: &Heap) -> Vec<DeviceAddress> {
        Vec::new()
    }

    /// Whether to refuse to take `size` more bytes from a device with `total` bytes, without asking the device
    /// ([`crate::AllocError::Rejected`]).
    fn rejects(&self, _reserved: Bytes, _size: Bytes, _total: Bytes) -> bool {
        false
    }

    /// Finds a free block, or says how large a new segment must be. The allocator asks twice for one request if a
    /// callback has freed memory in between.
    fn place(&mut self, heap: &Heap, request: &Request) -> Placement;

    /// Whether to split a block of `whole` bytes, reused or new, at the request's size. Only asked about blocks larger
    /// than the request. The remainder becomes free.
    fn splits(&self, whole: Bytes, request: &Request) -> bool;

    /// Whether the request gets the high end of a block that is split for it, so that the low part stays free. Asked
    /// after [`Policy::place`]. A part that [`Relief::TransferPart`] moves is always the low end.
    fn takes_high_end(&self, _request: &Request) -> bool {
        false
    }

    /// The `rung`-th step of the retry ladder, from 0.
    fn relieve(&mut self, heap: &Heap, request: &Request, rung: u32) -> Relief;

    /// Whether [`Relief::Release`] may name blocks of the default pool while a graph is captured, or blocks of
    /// private pools in use. Either can take away memory that a graph expects.
    fn releases_during_captures(&self) -> bool {
        false
    }

    /// Whether blocks may be reused during a capture once the graph makes their stream wait for the other streams
    /// (spec 3.8). This also needs a release that does so and a device that knows its graphs
    /// ([`crate::device::DeviceBackend::capture`]).
    fn reuses_in_captures(&self) -> bool {
        false
    }

    /// Everything to release when the program empties the cache, in this order.
    fn releasable(&self, heap: &Heap) -> Vec<BlockId> {
        heap.releasable()
    }

    /// The order in which the heap keeps its free blocks. The allocator asks once.
    fn free_order(&self) -> FreeOrder {
        FreeOrder::BySize
    }

    /// The stamp for a block of the pool that becomes free: the value of the policy's clock, if the policy ages
    /// blocks. It must be less than `u64::MAX`, which marks blocks for [`Relief::Annex`].
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
    /// Whether it is worth asking [`Policy::takes_first`], and asking [`Policy::place`] now would not change the
    /// policy's state. This is a shortcut, which wrappers do not forward: they may place requests differently.
    fn looks_at_first(&self, _heap: &Heap) -> bool {
        false
    }

    /// Whether [`Policy::place`] would reuse `first`, the first free block of the request's pool and stream that is
    /// large enough. If so, [`Policy::place`] is not asked. `false` is always allowed.
    fn takes_first(&self, _request: &Request, _first: Candidate<'_>) -> bool {
        false
    }

    /// The policy itself if it is PyTorch's. A program that holds the policy behind a pointer and runs many events
    /// can then use a copy of a concrete type, which is twice as fast. Wrappers do not forward this, because they are
    /// different policies.
    fn as_pytorch(&self) -> Option<&PyTorch> {
        None
    }
}
}

/// A policy's answer cannot be carried out. The heap is valid and no memory is lost; the effects of earlier rungs
/// stay.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PolicyFault {
    /// The policy's name.
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
