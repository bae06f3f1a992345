//! How a replay tells a device when a block that other streams use becomes free: by the handle of the stream it records.

use parkade::units::StreamId;

/// The first stream handle used for blocks that other streams used: the recording does not say which streams these were, only
/// when they were done. Each such block gets a stream of its own, and the streams are in the order in which the blocks became
/// free, which is the order in which the core polls them.
const COMPLETIONS: u64 = 0xffff_fff0_0000_0000;

/// The stream to record on a block that becomes free at an entry, or never.
pub(crate) fn stream_of(completed_at: Option<u32>) -> StreamId {
    StreamId(COMPLETIONS + completed_at.map_or(u64::from(u32::MAX), u64::from))
}

/// What [`stream_of`] was told, `usize::MAX` for never.
pub(crate) fn completion_of(stream: StreamId) -> usize {
    match stream.0 - COMPLETIONS {
        entry if entry < u64::from(u32::MAX) => entry as usize,
        _ => usize::MAX,
    }
}
