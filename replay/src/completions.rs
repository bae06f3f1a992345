//! Encodes, for the device, when a block that other streams use becomes free: in the handle of the stream that a replay
//! records on the block.

use parkade::units::StreamId;

/// The lowest of the stream handles that represent the times at which blocks become free.
///
/// A recording does not state which other streams used a block, only when they were done. A replay therefore records a
/// separate stream on each of these blocks. The stream's number is the time at which the block becomes free: an entry or a
/// number of nanoseconds. This is also the order in which the core polls the streams.
const COMPLETIONS: u64 = 0xff00_0000_0000_0000;
const NEVER: u64 = u64::MAX - COMPLETIONS;

/// Returns the stream to record on a block that becomes free at this entry, or never (`None`).
pub(crate) fn stream_of(completed_at: Option<u32>) -> StreamId {
    stream_of_moment(completed_at.map(u64::from))
}

/// Returns the stream to record on a block that becomes free at this time, or never (`None`).
pub(crate) fn stream_of_moment(moment: Option<u64>) -> StreamId {
    StreamId(COMPLETIONS + moment.map_or(NEVER, |moment| moment.min(NEVER - 1)))
}

/// Returns the time that was passed to [`stream_of_moment`]; `u64::MAX` means never.
pub(crate) fn moment_of(stream: StreamId) -> u64 {
    match stream.0.wrapping_sub(COMPLETIONS) {
        moment if moment < NEVER => moment,
        _ => u64::MAX,
    }
}

/// Returns the entry that was passed to [`stream_of`]; `usize::MAX` means never.
pub(crate) fn completion_of(stream: StreamId) -> usize {
    usize::try_from(moment_of(stream)).unwrap_or(usize::MAX)
}
