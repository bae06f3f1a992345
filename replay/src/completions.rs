//! Telling a device when a block that other streams use becomes free: by the handle
//! of the stream that is recorded on it.

use parkade::units::StreamId;

/// The first of the stream handles that stand for the entries at which blocks become free.
///
/// A recording does not say which other streams used a block, only when they were done. So a replay records on
/// each such block a stream of its own, numbered by the entry at which the block became free. That is also the
/// order in which the core polls the streams.
const COMPLETIONS: u64 = 0xffff_fff0_0000_0000;

/// The stream to record on a block that becomes free at this entry, or never (`None`).
pub(crate) fn stream_of(completed_at: Option<u32>) -> StreamId {
    StreamId(COMPLETIONS + completed_at.map_or(u64::from(u32::MAX), u64::from))
}

/// The entry that [`stream_of`] was given; `usize::MAX` for never.
pub(crate) fn completion_of(stream: StreamId) -> usize {
    match stream.0 - COMPLETIONS {
        entry if entry < u64::from(u32::MAX) => entry as usize,
        _ => usize::MAX,
    }
}
