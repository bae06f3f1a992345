//! The laws of requests: where each one goes, and that none is refused needlessly.

use parkade::device::DeviceBackend as _;
use parkade::snapshot::{BlockActivity, SegmentInfo};
use parkade::trace::TraceAction;
use parkade::units::Bytes;
use parkade_sim::CallName;

use super::Trial;
use crate::backend::TestDevice;
use crate::law::{Broken, Law, ensure};
use crate::reference_model::best;

impl Trial {
    /// Checks a served request: it got the free memory that the model would take, or a new segment if there was none, split to
    /// the right size.
    pub(super) fn check_place(&self, before: &[SegmentInfo], bytes: u64, stream: u64, address: u64) -> Result<(), Broken> {
        let size = self.rules.rounded(bytes);
        let runs = self.model.free_at_search(before, &self.device.witness());
        let expected = best(&runs, &self.rules, size, stream);
        let asked = self.core.observer()[self.followed..].iter().find(|entry| entry.action == TraceAction::SegmentAlloc);
        if let Some(whole) = expected.map(|run| run.size).or(asked.map(|segment| segment.size)) {
            let segments = self.core.segments();
            let block = segments.iter().flat_map(|segment| &segment.blocks).find(|block| block.address.get() == address);
            let right = self.rules.cut(whole, size);
            ensure(Law::Placement, block.is_some_and(|block| block.size.get() == right), || {
                format!("{bytes} bytes out of {whole} should have taken {right}, but took {block:?}")
            })?;
        }
        match (expected, asked) {
            (Some(run), None) => ensure(Law::Placement, run.address == address, || {
                format!("{bytes} bytes went to {address:#x}, but the best place was {run:x?}")
            }),
            (Some(run), Some(segment)) => Err(Broken::new(
                Law::Placement,
                format!("{bytes} bytes took the new {segment:?}, although {run:x?} would have served"),
            )),
            (None, Some(segment)) => {
                ensure(Law::Placement, segment.address == address, || {
                    format!("{bytes} bytes went to {address:#x}, not to the new {segment:?}")
                })?;
                let right = self.rules.segment(size);
                ensure(Law::Placement, segment.size == right, || {
                    format!("{bytes} bytes took {segment:?}, which should have been {right} bytes")
                })
            }
            (None, None) => Err(Broken::new(
                Law::Placement,
                format!("{bytes} bytes went to {address:#x}, where no free memory may serve them"),
            )),
        }
    }

    /// Checks a refused request: no free memory could have served it, everything that can be given back has been, and still the
    /// limit or the device leaves no room for its segment.
    pub(super) fn check_out_of_memory(&self, before: &[SegmentInfo], bytes: u64, stream: u64) -> Result<(), Broken> {
        let size = self.rules.rounded(bytes);
        let runs = self.model.free_at_search(before, &self.device.witness());
        if let Some(run) = best(&runs, &self.rules, size, stream) {
            return Err(Broken::new(
                Law::NoFalseOutOfMemory,
                format!("{bytes} bytes were refused, although {run:x?} would have served"),
            ));
        }
        let segments = self.core.segments();
        for segment in &segments {
            let pending = segment.blocks.iter().find(|block| block.state == BlockActivity::PendingFree);
            ensure(Law::NoFalseOutOfMemory, pending.is_none(), || {
                format!("{bytes} bytes were refused without waiting for {pending:?}")
            })?;
            let used = segment.blocks.iter().any(|block| block.state == BlockActivity::Allocated);
            ensure(Law::NoFalseOutOfMemory, used, || format!("{bytes} bytes were refused, but {segment:?} was not given back"))?;
        }
        let wanted = self.rules.segment(size);
        let reserved: u64 = segments.iter().map(|segment| segment.total.get()).sum();
        let over_limit = self.limit.is_some_and(|limit| reserved + wanted > limit);
        if over_limit {
            return Ok(());
        }
        if !self.facts.remaps_pages {
            // Free memory can be too fragmented, which only the device knows: it must have refused after everything else was
            // given back.
            let asked = self.made_calls().into_iter().rfind(|call| call.name == CallName::Malloc);
            let is_refused = asked.is_some_and(|call| call.bytes == wanted && !call.done);
            return ensure(Law::NoFalseOutOfMemory, is_refused, || {
                format!(
                    "{bytes} bytes were refused, but the device was not asked for a segment of {wanted} at the end: {asked:?}"
                )
            });
        }
        let room = self.room(&segments);
        ensure(Law::NoFalseOutOfMemory, wanted.div_ceil(self.facts.page.get()) > room, || {
            let limit = self.limit;
            format!(
                "{bytes} bytes were refused, although a segment of {wanted} fits: {reserved} reserved, limit {limit:?}, {room} pages free"
            )
        })
    }

    /// Pages that the device could still give: for a simulated device calculated independently of its own accounts, for a real
    /// one what it reports.
    fn room(&self, segments: &[SegmentInfo]) -> u64 {
        let page = self.facts.page.get();
        let mut device = self.device.steer();
        if device.insight().is_some() {
            let taken: u64 = segments.iter().map(|segment| segment.total.get().div_ceil(page)).sum();
            return (self.setup.capacity.saturating_sub(self.others_hold) / page).saturating_sub(taken);
        }
        let free = device.memory_info().map_or(Bytes::ZERO, |info| info.free);
        free.saturating_sub(device.withheld_bytes()).get() / page
    }
}
