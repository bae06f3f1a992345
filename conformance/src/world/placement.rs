//! The laws of requests: where each one goes, and that none is refused without need.

use parkade::snapshot::{BlockActivity, SegmentInfo};
use parkade::trace::TraceAction;

use super::World;
use crate::model::best;
use crate::{Broken, ensure};

const PAGE: u64 = 2 << 20;

impl World {
    /// A request served: from the free memory that the model would have taken, or if there was none from a new segment; and cut to
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
            ensure(block.is_some_and(|block| block.size.get() == right), || {
                format!("{bytes} bytes out of {whole} should have taken {right}, and took {block:?}")
            })?;
        }
        match (expected, asked) {
            (Some(run), None) => {
                ensure(run.address == address, || format!("{bytes} bytes went to {address:#x}, the best place was {run:x?}"))
            }
            (Some(run), Some(segment)) => {
                Err(Broken(format!("{bytes} bytes took {segment:?}, though {run:x?} would have served")))
            }
            (None, Some(segment)) => {
                ensure(segment.address == address, || format!("{bytes} bytes went to {address:#x}, not to the new {segment:?}"))?;
                let right = self.rules.segment(size);
                ensure(segment.size == right, || format!("{bytes} bytes took {segment:?}, which should have {right} bytes"))
            }
            (None, None) => {
                Err(Broken(format!("{bytes} bytes went to {address:#x}, where nothing was free that may serve them")))
            }
        }
    }

    /// A request refused. Nothing that was free could have served it; everything that can be given back has been; and still neither
    /// the limit nor the device has room for its segment.
    pub(super) fn check_out_of_memory(&self, before: &[SegmentInfo], bytes: u64, stream: u64) -> Result<(), Broken> {
        let size = self.rules.rounded(bytes);
        let runs = self.model.free_at_search(before, &self.device.witness());
        if let Some(run) = best(&runs, &self.rules, size, stream) {
            return Err(Broken(format!("{bytes} bytes were refused, though {run:x?} would have served")));
        }
        let segments = self.core.segments();
        for segment in &segments {
            let pending = segment.blocks.iter().find(|block| block.state == BlockActivity::PendingFree);
            ensure(pending.is_none(), || format!("{bytes} bytes were refused, and {pending:?} was not waited for"))?;
            let used = segment.blocks.iter().any(|block| block.state == BlockActivity::Allocated);
            ensure(used, || format!("{bytes} bytes were refused, and {segment:?} was not given back"))?;
        }
        let wanted = self.rules.segment(size);
        let reserved: u64 = segments.iter().map(|segment| segment.total.get()).sum();
        let over_limit = self.limit.is_some_and(|limit| reserved + wanted > limit);
        let pages: u64 = segments.iter().map(|segment| segment.total.get().div_ceil(PAGE)).sum();
        let device_pages = self.capacity.saturating_sub(self.others_hold) / PAGE;
        let device_is_full = pages + wanted.div_ceil(PAGE) > device_pages;
        ensure(over_limit || device_is_full, || {
            format!(
                "{bytes} bytes were refused, though a segment of {wanted} fits: {reserved} reserved, limit {:?}, {pages} of \
                 {device_pages} pages in use",
                self.limit
            )
        })
    }
}
