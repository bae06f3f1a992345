//! The core that a recording is replayed on, and putting it into the state before the first entry.

use parkade::{AdoptedContent, AdoptedSegment, Allocation, Allocator};
use rustc_hash::FxHashMap;

use super::comparer::Comparer;
use super::recorded_device::RecordedDevice;
use super::recorded_policy::Recorded;
use crate::completions::stream_of;
use crate::error::VerifyError;
use crate::initial_state::Start;

/// The core that a recording is replayed on: PyTorch's rules, on a device that answers as the recording says.
pub(crate) type ReplayCore<'a> = Allocator<RecordedDevice<'a>, Recorded<'a>, Comparer<'a>>;

/// Rebuilds the state before the first entry on a new core. Returns the allocations in use, by address.
pub(crate) fn restore(start: &Start, core: &mut ReplayCore<'_>) -> Result<FxHashMap<u64, Allocation>, VerifyError> {
    let mut live = FxHashMap::default();
    for pool in start.pools.private() {
        let problem = "is one of too many private pools";
        core.create_pool(pool).map_err(|_| VerifyError::Start { what: "pool", address: pool.0, problem })?;
    }
    if start.lost.is_none() {
        return Ok(live);
    }
    core.observer_mut().muted = true;
    for segment in &start.extents.segments {
        let unusable = |_| VerifyError::Start { what: "segment", address: segment.address.get(), problem: "cannot be rebuilt" };
        if segment.page.is_some() {
            core.device_mut().adopt_range(segment.address.get(), end_of_memory(segment));
        }
        for allocation in core.adopt(segment, &mut |_, pages| ((), pages)).map_err(unusable)? {
            let address = allocation.address().get();
            match start.pending.get(&address) {
                None => {
                    live.insert(address, allocation);
                }
                Some(&completed_at) => {
                    core.record_stream(&allocation, stream_of(completed_at));
                    // Cannot fail: the recorded device refuses no event, and the allocation is this core's.
                    let _ = core.free(allocation);
                }
            }
        }
    }
    core.observer_mut().muted = false;
    core.reset_accumulated_stats();
    core.reset_peak_stats();
    Ok(live)
}

/// The end of the mapped memory of an expandable segment.
fn end_of_memory(segment: &AdoptedSegment) -> u64 {
    let (mut at, mut end) = (segment.address.get(), segment.address.get());
    for block in &segment.blocks {
        at += block.size.get();
        if block.content != AdoptedContent::Unmapped {
            end = at;
        }
    }
    end
}
