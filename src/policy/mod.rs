//! Decisions, separated from the flow that carries them out.
//!
//! A [`Policy`] gets a read-only [`Heap`] and returns values. The allocator checks each answer, acts on it and updates
//! the statistics, so a policy cannot corrupt the heap: a wrong answer results in [`crate::AllocError::Policy`], which
//! names the policy. PyTorch's rules are one policy ([`PyTorch`]): sizes, the choice of blocks and what is released. The
//! order of the steps and what they count are PyTorch's under every policy, with the differences between releases in
//! [`Profile`].
//!
//! A [`Wrapper`] is a policy that changes some of another policy's answers. A macro declares both traits, so that a wrapper
//! forwards every method.

mod pytorch;

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;

use crate::block::BlockId;
use crate::heap::{FreePair, Heap, LiveBlock, PoolSlot};
use crate::profile::Profile;
use crate::units::{Bytes, DeviceAddress, PoolClass, StreamId};
pub use pytorch::PyTorch;

/// A request while the allocator serves it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// The bytes that the caller requested.
    pub requested: Bytes,
    /// The requested bytes, rounded by [`Policy::round`].
    pub size: Bytes,
    /// The pool that serves the request.
    pub pool: PoolSlot,
    /// The stream for which the request was made.
    pub stream: StreamId,
    /// Whether expandable segments are switched on for the request's pool ([`Policy::is_expandable`]). New memory for the
    /// request is then taken in an expandable segment, except for private pools in releases that give these ordinary
    /// segments.
    pub is_expandable: bool,
}

/// Where the memory for a request comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Placement {
    /// This free block of the request's pool and stream.
    Reuse(BlockId),
    /// No free block fits; a new segment of this many bytes would. With expandable segments, the allocator may map
    /// fewer bytes, in which case this size only matters for the check against the limit and for the error.
    Segment(Bytes),
}

/// A rung of the retry ladder: what the allocator tries when no free block can serve a request. It climbs the policy's
/// rungs in order ([`Policy::ladder`]) until one yields a block; after the last one, the request fails.
///
/// While a graph counts as being captured ([`Deferral`](crate::profile::Deferral)), nothing may wait, and the cache is
/// kept, so the allocator skips [`Rung::WaitForEvents`] and the rungs that only make sense after it:
/// [`Rung::ReuseFreed`], [`Rung::ReleaseAll`] and [`Rung::GrowAgain`] (spec 2.4, step 6e).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rung {
    /// Release the blocks in [`Policy::garbage`] (spec 2.7).
    CollectGarbage,
    /// Ask the device for the segment that [`Policy::place`] named, or extend an expandable segment (spec 2.8, 4.2).
    Grow,
    /// Search the private pools that may serve requests when the device is out of memory for a free block (spec 5.6).
    BorrowFromPools,
    /// Release the blocks in [`Policy::oversize`], and ask the device again if they are enough (spec 2.9).
    ReleaseOversize,
    /// Wait for all events, so that every pending block becomes free (spec 3.7).
    WaitForEvents,
    /// Ask [`Policy::place`] again, because waiting may have freed a block.
    ReuseFreed,
    /// Release the blocks in [`Policy::releasable`], and forget empty private pools (spec 2.10).
    ReleaseAll,
    /// Like [`Rung::Grow`], but counted in `num_alloc_retries`.
    GrowAgain,
    /// Take the policy's own steps ([`Policy::relieve`]) until one yields a block or the policy has no further step.
    Own,
}

impl Rung {
    /// The ladder of policies without rules for it: grow, borrow, wait, release everything, grow.
    pub const PLAIN: &[Rung] =
        &[Rung::Grow, Rung::BorrowFromPools, Rung::WaitForEvents, Rung::ReuseFreed, Rung::ReleaseAll, Rung::GrowAgain];
}

/// A step of a policy's own ([`Rung::Own`]).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Relief {
    /// Release these free blocks to the device, in this order, and then ask the device for the segment, depending on
    /// `attempt`. Pages of an expandable segment stay while the segment's stream is captured.
    Release {
        /// Whole segments, or blocks of expandable segments.
        blocks: Vec<BlockId>,
        /// Whether to ask the device afterwards, and for how much.
        attempt: Attempt,
    },
    /// Serve a private pool's request from free memory of the default pool that no pending work uses
    /// ([`Policy::lends_to_pools`]), if there is any. This also works while a graph is captured.
    Lend,
    /// See [`Rung::BorrowFromPools`].
    Borrow,
    /// Move this entire free block of the request's pool to the request's stream, then split it as usual. Does nothing if
    /// one of the two streams is captured, or while any graph is captured on a device that cannot wait then
    /// ([`DeviceBackend::waits_in_captures`](crate::device::DeviceBackend::waits_in_captures)).
    Transfer {
        /// The block, at least as large as the request.
        block: BlockId,
        /// Whether the request's stream waits for the work submitted to the block's old stream so far. If false, the
        /// block moves only if that work is done; if it is not, the next step follows.
        waits: bool,
    },
    /// Like [`Relief::Transfer`] with a wait, but only the part that is split off for the request moves; the rest
    /// stays with its stream. The moved part does not coalesce with free neighbours.
    TransferPart {
        /// The block, at least as large as the request.
        block: BlockId,
    },
    /// Move all free blocks of the request's pool that belong to stream `from` to the request's stream, where they
    /// coalesce. The request's stream waits for the work submitted to `from` so far, even if `from` has no block.
    /// Blocks of expandable segments do not move. This step alone does not serve the request, but the next one may
    /// reuse the moved blocks. Does nothing while a graph is captured, or if one of the two streams is captured.
    TransferAll {
        /// A stream that has been used before.
        from: StreamId,
    },
    /// Ask the device for a segment that becomes one free block of the request's pool, on any stream that has had a
    /// request ([`Heap::streams_seen`]). This step alone does not serve the request, but the next one may reuse or
    /// transfer the block. The next step also follows if the device has no room. Not allowed for pools with expandable
    /// segments.
    Provide {
        /// The segment's size.
        bytes: Bytes,
        /// The block's stream. It must have had a request; the current request also counts.
        stream: StreamId,
    },
    /// Unmap the whole pages in these free blocks of expandable segments and map them for the request, with new pages
    /// from the device if they are too few. Unused pages are released to the device. Does nothing while a graph is
    /// captured, and leaves out blocks whose segment's stream is captured.
    Remap {
        /// The free blocks, in this order.
        blocks: Vec<BlockId>,
    },
    /// Unmap these handles ([`Policy::handle`]), each of which is entirely in a free block, and map them for the
    /// request where its segment grows, with new handles from the device if they are too few. Handles that the request
    /// does not need become free memory after it, or are released to the device where the addresses end. Waits for the
    /// streams of the handles' segments, and skips handles whose stream is captured; while any graph is captured on a
    /// device that cannot wait then, skips all.
    Move {
        /// The first bytes of the handles ([`Heap::handles_in`]), without duplicates.
        handles: Vec<DeviceAddress>,
    },
    /// Like [`Relief::Move`], but the handles are released to the device, and the request's segment grows with new
    /// ones. A large handle can thus be replaced by one that ends with the request, or many small handles by a few
    /// large ones.
    Replace {
        /// The first bytes of the handles, without duplicates.
        handles: Vec<DeviceAddress>,
    },
    /// Break these handles, each of which has free pages in free blocks of its own pool and stream
    /// ([`Heap::partly_free`]). Memory that is in use, or cached by a private pool in use, keeps its addresses and
    /// contents in new memory, and free pages are released to the device. This rung alone does not serve the request,
    /// but the next one may ask for the freed memory. Waits for all work of the device; during that time, no other
    /// thread may submit work that uses memory of the allocator. Does nothing on a device that does not break handles
    /// ([`DeviceBackend::breaks_handles`](crate::device::DeviceBackend::breaks_handles)), or while a graph is captured if
    /// the device cannot wait then
    /// ([`DeviceBackend::waits_in_captures`](crate::device::DeviceBackend::waits_in_captures)).
    Break {
        /// The first bytes of the handles, without duplicates.
        handles: Vec<DeviceAddress>,
    },
    /// Begin a rescue where PyTorch's allocator would fail. Records the entry of that failure ([`TraceAction::Oom`]),
    /// and counts the request as rescued ([`Stats::num_rescues`]) unless it is refused. Expandable segments then
    /// have pages of this size, and each page that has memory becomes a handle of its old size ([`Policy::handle`]).
    /// No memory changes. The pages stay unchanged if more than [`Heap::MOST_REFINED`] have memory, or if this size
    /// does not divide theirs; if they were divided, [`Heap::refined_page`] returns the size.
    ///
    /// [`TraceAction::Oom`]: crate::trace::TraceAction::Oom
    /// [`Stats::num_rescues`]: crate::stats::Stats::num_rescues
    Rescue {
        /// The new page size, which must not be 0.
        page: Bytes,
    },
    /// Coalesce all adjacent free blocks that [`Policy::coalesces`] has kept apart, in every pool. This step alone does
    /// not serve the request, but the next one may reuse or release the coalesced blocks.
    Coalesce,
    /// Release the cache, as [`Rung::ReleaseAll`] does. Does nothing while a graph is captured.
    ReleaseAll,
    /// Wait for all events, so that every pending block becomes free. Does nothing while a graph is captured.
    Wait,
    /// Take this free block of the request's pool and stream, which an earlier step has freed, as in
    /// [`Placement::Reuse`].
    Reuse(BlockId),
    /// Like [`Relief::Reuse`], but from `offset`: the part before it stays free, and the part after the request is
    /// split off as usual. This is for policies with rules about addresses; a policy that takes high ends
    /// ([`Policy::takes_high_end`]) gets the block's high end instead.
    ReuseAt {
        /// The block.
        block: BlockId,
        /// The offset in the block at which the request's bytes begin.
        offset: Bytes,
    },
    /// No further step: the ladder continues with its next rung.
    Done,
}

/// Whether and how a step asks the device for a segment at its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Attempt {
    /// Do not ask.
    No,
    /// Ask for the segment that [`Policy::place`] named.
    Ask,
    /// Forget empty private pools, then ask for that segment, and count the attempt in `num_alloc_retries`.
    AskAgain,
    /// Do not ask; fail the request ([`crate::AllocError::ExpandableRelease`]).
    Fail,
    /// Ask for a segment of this size. With expandable segments, the size only matters for the limit.
    AskFor(Bytes),
}

/// Declares the trait `Policy` and, from its methods, the trait `Wrapper` and `impl Policy` for every wrapper.
///
/// Methods take `&self` or `&mut self`. The methods under `not_forwarded` have defaults.
///
/// There is thus a single list of a policy's methods, for the trait and for everything that forwards them.
///
/// It is easy to forget a method with a default in a hand-written wrapper, in which case the default decides instead
/// of the inner policy. The trait is therefore written inside `with_wrapper!`, which declares it unchanged and
/// generates the rest from its signatures: a wrapper forwards every method that it does not override, including
/// methods that are added later.
macro_rules! with_wrapper {
    ($(#[$about:meta])* pub trait Policy { $($questions:tt)* } not_forwarded { $($left:tt)* }) => {
        $(#[$about])*
        pub trait Policy { $($questions)* $($left)* }
        with_wrapper! { @sort [] [] $($questions)* }
    };

    // Sorts the signatures by receiver and drops the default bodies.
    (@sort [$($shared:tt)*] [$($unique:tt)*]
     $(#[$doc:meta])* fn $name:ident(&self $(, $arg:ident: $of:ty)*) $(-> $answer:ty)?; $($rest:tt)*) => {
        with_wrapper! {
            @sort [$($shared)* fn $name($($arg: $of),*) $(-> $answer)?;] [$($unique)*] $($rest)*
        }
    };
    (@sort [$($shared:tt)*] [$($unique:tt)*]
     $(#[$doc:meta])* fn $name:ident(&self $(, $arg:ident: $of:ty)*) $(-> $answer:ty)? { $($default:tt)* } $($rest:tt)*) => {
        with_wrapper! {
            @sort [$($shared)* fn $name($($arg: $of),*) $(-> $answer)?;] [$($unique)*] $($rest)*
        }
    };
    (@sort [$($shared:tt)*] [$($unique:tt)*]
     $(#[$doc:meta])* fn $name:ident(&mut self $(, $arg:ident: $of:ty)*) $(-> $answer:ty)? { $($default:tt)* } $($rest:tt)*) => {
        with_wrapper! {
            @sort [$($shared)*] [$($unique)* fn $name($($arg: $of),*) $(-> $answer)?;] $($rest)*
        }
    };
    (@sort [$($shared:tt)*] [$($unique:tt)*]
     $(#[$doc:meta])* fn $name:ident(&mut self $(, $arg:ident: $of:ty)*) $(-> $answer:ty)?; $($rest:tt)*) => {
        with_wrapper! {
            @sort [$($shared)*] [$($unique)* fn $name($($arg: $of),*) $(-> $answer)?;] $($rest)*
        }
    };

    (@sort [$(fn $shared:ident($($arg:ident: $of:ty),*) $(-> $answer:ty)?;)*]
           [$(fn $unique:ident($($own_arg:ident: $own_of:ty),*) $(-> $own_answer:ty)?;)*]) => {
        /// A policy that wraps another policy. By default, it forwards every method to the inner policy. Override a
        /// method to change its answer.
        ///
        /// Every wrapper is a [`Policy`].
        pub trait Wrapper {
            /// The inner policy.
            type Inner: Policy + ?Sized;

            /// The inner policy.
            fn inner(&self) -> &Self::Inner;

            /// The inner policy, mutable, for the methods that may change its state.
            fn inner_mut(&mut self) -> &mut Self::Inner;

            $(
                #[doc = concat!("[`Policy::", stringify!($shared), "`].")]
                #[inline]
                fn $shared(&self $(, $arg: $of)*) $(-> $answer)? {
                    self.inner().$shared($($arg),*)
                }
            )*

            $(
                #[doc = concat!("[`Policy::", stringify!($unique), "`].")]
                #[inline]
                fn $unique(&mut self $(, $own_arg: $own_of)*) $(-> $own_answer)? {
                    self.inner_mut().$unique($($own_arg),*)
                }
            )*
        }

        impl<W: Wrapper> Policy for W {
            $(
                #[inline]
                fn $shared(&self $(, $arg: $of)*) $(-> $answer)? {
                    Wrapper::$shared(self $(, $arg)*)
                }
            )*

            $(
                #[inline]
                fn $unique(&mut self $(, $own_arg: $own_of)*) $(-> $own_answer)? {
                    Wrapper::$unique(self $(, $own_arg)*)
                }
            )*
        }
    };
}

with_wrapper! {
/// The rules of allocation. A policy decides and never acts.
///
/// It must be deterministic: the same sequence of calls gets the same answers, without a clock or randomness. Its state
/// must be in the policy itself: if an allocator is cloned, the policy is cloned with it, and both continue with the same
/// answers.
///
/// Five methods are required: a name, [`round`](Policy::round), [`classify`](Policy::classify),
/// [`place`](Policy::place) and [`splits`](Policy::splits). The methods up to
/// [`max_split_size`](Policy::max_split_size) are decisions that PyTorch's allocator makes too. Those from
/// [`relieve`](Policy::relieve) on are for policies that do what PyTorch does not; PyTorch's policy implements none of
/// them.
pub trait Policy {
    /// The policy's name, for error messages.
    fn name(&self) -> &'static str;

    /// The size in bytes of the block for a request of `requested` bytes (at least 1); `None` if it exceeds
    /// 64 bits.
    fn round(&self, requested: Bytes) -> Option<Bytes>;

    /// The collection of their pool to which blocks of `size` bytes belong: small or large.
    fn classify(&self, size: Bytes) -> PoolClass;

    /// Finds a free block, or states how large a new segment must be. The allocator asks again for the same request if
    /// a callback has freed memory, on [`Rung::ReuseFreed`], and for each pool on [`Rung::BorrowFromPools`].
    fn place(&mut self, heap: &Heap, request: &Request) -> Placement;

    /// Whether to split a block of `whole` bytes, reused or new, at the request's size. Only asked about blocks that
    /// are larger than the request. The remainder becomes free.
    fn splits(&self, whole: Bytes, request: &Request) -> bool;

    /// The PyTorch release whose flow carries out the decisions. The allocator asks only once, when it is created.
    fn profile(&self) -> &'static Profile {
        &Profile::PYTORCH_2_11
    }

    /// Whether new memory for the pool is taken in expandable segments.
    fn is_expandable(&self, _pool: PoolSlot) -> bool {
        false
    }

    /// The page size of a new expandable segment for the pool, in bytes: a multiple of 2 MiB.
    fn page(&self, _pool: PoolSlot) -> Bytes {
        Bytes::mib(2)
    }

    /// The number of bytes of addresses that a new expandable segment reserves on a device with `total` bytes, before
    /// rounding up to pages.
    fn reservation(&self, total: Bytes) -> Bytes {
        total.checked_add(Bytes(total.0 / 8)).unwrap_or(Bytes::MAX)
    }

    /// Whether to refuse to take another `size` bytes from a device with `total` bytes, without asking the device
    /// ([`crate::AllocError::Rejected`]).
    fn rejects(&self, _reserved: Bytes, _size: Bytes, _total: Bytes) -> bool {
        false
    }

    /// The rungs of the retry ladder, in order.
    fn ladder(&self) -> &'static [Rung] {
        Rung::PLAIN
    }

    /// The blocks to release before the device is asked for memory ([`Rung::CollectGarbage`]), in this order.
    fn garbage(&mut self, _heap: &Heap) -> Vec<BlockId> {
        Vec::new()
    }

    /// The blocks to release because the device has refused ([`Rung::ReleaseOversize`]), in this order, and whether to
    /// ask the device again.
    fn oversize(&self, _heap: &Heap, _request: &Request) -> (Vec<BlockId>, Attempt) {
        (Vec::new(), Attempt::No)
    }

    /// The blocks to release when the program empties the cache, and on [`Rung::ReleaseAll`], in this order.
    fn releasable(&self, heap: &Heap) -> Vec<BlockId> {
        heap.releasable()
    }

    /// Whether [`Relief::Release`] may name blocks of the default pool while a graph is captured, or blocks of private
    /// pools in use. In both cases, a graph can lose memory that it expects. If true, the allocator also waits for the stream of
    /// an expandable segment before it releases pages, as PyTorch does, even if the stream is captured.
    fn releases_during_captures(&self) -> bool {
        false
    }

    /// Whether blocks may be reused during a capture when the graph makes their stream wait for the other streams
    /// (spec 3.8). This also requires a release that does this, and a device that knows its graphs
    /// ([`crate::device::DeviceBackend::capture`]).
    fn reuses_in_captures(&self) -> bool {
        false
    }

    /// The stamp for a block of the pool that becomes free: the value of the policy's clock, if blocks age under the
    /// policy. It must be less than `u64::MAX`, which marks blocks for [`Relief::Lend`].
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

    /// The policy's own next step for the request ([`Rung::Own`]). `turn` counts the steps for which the allocator has
    /// asked since the request began: it is 0 for the first one.
    fn relieve(&mut self, _heap: &Heap, _request: &Request, _turn: u32) -> Relief {
        Relief::Done
    }

    /// Whether two adjacent free blocks become one. Asked when a block becomes free or moves to a different stream or
    /// pool: about the free block before it, then about the one after it, then again about the result while the answer
    /// is yes. Blocks that were kept apart stay so until a neighbour becomes free, or until [`Relief::Coalesce`].
    ///
    /// The allocator does not ask where it needs one block: around new memory in an expandable segment, when a pool is
    /// restored, and in segments with nothing in use before it releases the cache, because parts of a segment cannot be
    /// released.
    fn coalesces(&self, _pair: &FreePair) -> bool {
        true
    }

    /// Whether the request gets the high end of a block that is split for it, so that the low part stays free. Asked
    /// after [`Policy::place`]. A part that [`Relief::TransferPart`] moves is always the low end.
    fn takes_high_end(&self, _request: &Request) -> bool {
        false
    }

    /// Whether every mapping gets a new range of addresses, so that no expandable segment is extended and no gap in one
    /// is filled.
    fn has_own_segments(&self) -> bool {
        false
    }

    /// Whether the heap keeps free blocks in the order of their addresses too, so that
    /// [`Heap::lowest_at_least`] does not check every block that is large enough. The allocator asks only once, when it is
    /// created. Other answers of the heap do not depend on it.
    fn searches_by_address(&self) -> bool {
        false
    }

    /// The number of bytes to map for a request that no free block of expandable segments can serve, before rounding
    /// up to pages; at least the request's size. Any excess becomes a free block after the request.
    fn growth(&self, request: &Request) -> Bytes {
        request.size
    }

    /// The size of the next handle for a request whose segment lacks `missing` bytes. A handle is mapped and unmapped
    /// as a whole; its size is a multiple of the page size. It may exceed `missing`, in which case the rest becomes
    /// free after the request. The allocator takes less if the addresses, the limit or the device do not allow more,
    /// and asks again while bytes are missing. A policy that always returns `None` gets handles of one page each.
    fn handle(&self, _heap: &Heap, _request: &Request, _missing: Bytes) -> Option<Bytes> {
        None
    }

    /// Whether private pools take their memory from the default pool's expandable segments: free parts that no pending
    /// work uses ([`Relief::Lend`]), or new memory, which is mapped there. A pool keeps the memory until it has no
    /// uses. This is for policies that put all blocks of a class into one collection and coalesce all adjacent free
    /// blocks.
    fn lends_to_pools(&self) -> bool {
        false
    }

    /// Whether the allocator waits for busy streams before requests are routed to a private pool, so that the pool may
    /// use all free memory; it cannot wait while a graph is captured. Only asked if [`Policy::lends_to_pools`] is true. The
    /// allocator stops asking after it has waited or broken handles 16 times since a private pool last had no free
    /// block for a request.
    fn waits_for_pools(&self, _heap: &Heap) -> bool {
        false
    }

    /// The handles to break, as in [`Relief::Break`], before requests are routed to a private pool. Asked if
    /// [`Policy::waits_for_pools`] is true and all streams are idle; no handle can be broken while a graph is
    /// captured. The allocator ignores an answer that it cannot carry out.
    fn breaks_for_pools(&self, _heap: &Heap) -> Vec<DeviceAddress> {
        Vec::new()
    }

    /// Learns that the block was handed out to the program. Called once for each [`Allocation`](crate::Allocation), as
    /// the last step of the request, however many rungs it took; for each block that restoring a pool hands out again,
    /// after the restore; and for each live block of an adopted segment. Not called for a request that fails.
    fn allocated(&mut self, _heap: &Heap, _block: LiveBlock<'_>) {}

    /// Learns that the program frees the block. Called once for each block of which the policy learned in
    /// [`Policy::allocated`], when the program calls [`free`](crate::Allocator::free) or a restore takes the block back,
    /// and before anything changes: the block is still live. It may become free only later, when its events are complete;
    /// the policy does not learn about that. Not called when the allocator is dropped.
    ///
    /// A free-memory callback may free blocks in the middle of a request.
    fn freed(&mut self, _heap: &Heap, _block: LiveBlock<'_>) {}
} not_forwarded {
    /// The policy itself, if it is PyTorch's. A program that has the policy behind a pointer and runs many events can
    /// then use a copy with a concrete type, which is twice as fast. Wrappers do not forward this, because they are
    /// different policies.
    fn as_pytorch(&self) -> Option<&PyTorch> {
        None
    }
}
}

/// A policy's answer cannot be carried out. The heap is valid and no memory is lost; the effects of earlier rungs
/// remain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PolicyFault {
    /// The policy's name.
    pub policy: &'static str,
    /// What is wrong with the answer.
    pub problem: &'static str,
}

impl fmt::Display for PolicyFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "policy {} {}", self.policy, self.problem)
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
