//! A workload ready to be run many times: its load and its hash.

use crate::study::capacity::LOAD_UNIT_BYTES;
use crate::workload::{Event, Workload};

/// A workload, and what is known of it before it is run.
#[derive(Clone, Debug)]
pub struct PreparedWorkload {
    /// The workload.
    pub workload: Workload,
    /// The load: the most bytes live at once, each request rounded up to 512 bytes.
    pub load_bytes: u64,
    /// The load with pools ([`Workload::load_with_pools_bytes`]), rounded likewise.
    pub load_with_pools_bytes: u64,
    /// [`Workload::work_ns`].
    pub work_ns: u64,
    /// A hash of the events, 64 bits in hexadecimal.
    pub hash: String,
}

impl PreparedWorkload {
    /// Measures and hashes a workload.
    #[must_use]
    pub fn new(workload: Workload) -> PreparedWorkload {
        let load_bytes = workload.load_bytes(LOAD_UNIT_BYTES);
        let hash = format!("{:016x}", workload.events.iter().fold(0xcbf2_9ce4_8422_2325, mix));
        let load_with_pools_bytes = workload.load_with_pools_bytes(LOAD_UNIT_BYTES);
        PreparedWorkload { load_with_pools_bytes, work_ns: workload.work_ns(), workload, load_bytes, hash }
    }
}

/// FNV-1a over words of 64 bits, with a shift that mixes the high bits into the low ones.
fn mix(hash: u64, event: &Event) -> u64 {
    let [kind, one, two, three] = match *event {
        Event::Allocate { buffer, bytes, stream } => [1, u64::from(buffer), bytes, u64::from(stream)],
        Event::Free { buffer } => [2, u64::from(buffer), 0, 0],
        Event::Use { buffer, stream } => [3, u64::from(buffer), u64::from(stream), 0],
        Event::Launch { stream, us } => [4, u64::from(stream), u64::from(us), 0],
        Event::Synchronize { stream } => [5, u64::from(stream), 0, 0],
        Event::EmptyCache => [6, 0, 0, 0],
        Event::BeginPool { pool } => [7, u64::from(pool), 0, 0],
        Event::EndPool { pool } => [8, u64::from(pool), 0, 0],
        Event::DropPool { pool } => [9, u64::from(pool), 0, 0],
    };
    [kind, one, two, three].iter().fold(hash, |hash, word| {
        let mixed = (hash ^ word).wrapping_mul(0x0100_0000_01b3);
        mixed ^ (mixed >> 32)
    })
}
