//! The operations of a recorded program, one at a time.

use parkade::units::PoolId;

/// When memory that was freed becomes free for reuse.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Completion {
    /// At once.
    AtOnce,
    /// At this entry: other streams use it until then.
    AtEntry(u32),
    /// Not within the recording: other streams are still using it at its end.
    Never,
}

/// One operation of the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// The program requested memory.
    Allocate {
        /// The number of the request, from 0.
        id: usize,
        /// Bytes requested.
        bytes: u64,
        /// The stream's handle.
        stream: u64,
        /// The pool that served the request.
        pool: PoolId,
        /// Whether the request failed in the recording, so that the program never frees the memory.
        failed: bool,
    },
    /// The program freed the memory of an earlier request.
    Free {
        /// The number of the request.
        id: usize,
        /// When the memory becomes free for reuse.
        completion: Completion,
    },
    /// The program called `empty_cache`.
    EmptyCache,
    /// The program stopped using this private pool.
    AbandonPool(PoolId),
    /// The program destroyed a MemPool, which releases the cached memory of this private pool.
    ReleasePool(PoolId),
}
