//! A point of a grid: the largest batch that fits, and why the next one does not.

use super::case::Case;

/// The limit for a case under any policy.
#[derive(Clone, PartialEq, Debug)]
pub struct Bound {
    /// The largest batch whose load fits; 0 if none does.
    pub batch: u64,
    /// The load of that batch, in bytes; if none fits, of the smallest batch.
    pub load_bytes: u64,
}

/// The result for a case under a policy.
#[derive(Clone, PartialEq, Debug)]
pub struct Point {
    /// The training, and the device.
    pub case: Case,
    /// The policy's name.
    pub policy: &'static str,
    /// The largest batch found to fit; 0 if none does.
    pub batch: u64,
    /// The most bytes reserved with this batch; 0 without one.
    pub reserved_bytes: u64,
    /// The load of this batch, each request rounded up to 512 bytes; 0 without one.
    pub load_bytes: u64,
    /// The largest smaller batch that was tried and does not fit, if any: fitting is not monotone.
    pub fails_below_batch: Option<u64>,
    /// What the load allows under any policy.
    pub bound: Bound,
    /// Why the next batch does not fit.
    pub why: Why,
    /// The number of runs that the search took.
    pub runs: u32,
}

/// Why a batch does not fit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Why {
    /// Parameters, gradients and the optimizer's states alone do not fit.
    States {
        /// The bytes of all of them.
        state_bytes: u64,
    },
    /// More bytes are live at once than the device has: no policy can serve it.
    Load {
        /// The batch.
        batch: u64,
        /// Its load, in bytes.
        load_bytes: u64,
    },
    /// The live bytes would fit, but the policy strands too much memory.
    Stranded {
        /// The batch.
        batch: u64,
        /// The size of the refused request, in bytes.
        asked_bytes: u64,
        /// The live bytes at that moment in blocks of 512 bytes, without the refused request.
        live_bytes: u64,
        /// The most bytes reserved.
        reserved_bytes: u64,
    },
    /// The policy or the device failed for another reason.
    Fault {
        /// The batch.
        batch: u64,
        /// The reason, in one line.
        reason: String,
    },
    /// Larger batches were not tried.
    NotTried,
}
