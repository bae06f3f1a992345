//! Breaks a heap down by cause, as one request saw it.

use std::collections::BTreeMap;

use parkade::PoolSlot;
use parkade::policy::{Policy, PyTorch};
use parkade::snapshot::{BlockActivity, BlockInfo, SegmentInfo};
use parkade::units::PoolId;

use super::breakdown::{Asked, Breakdown, Cause, Hole, PINNED_PART, Strand};

/// Breaks a heap down as the request `asked` saw it, under the policy's rules. Without a request only the causes that need none are told
/// apart, and every other free block counts as too small.
#[must_use]
pub fn stranded(segments: &[SegmentInfo], asked: Option<&Asked>, policy: &PyTorch) -> Breakdown {
    let mut breakdown = Breakdown {
        reserved_bytes: 0,
        requested_bytes: 0,
        rounding_bytes: 0,
        live_blocks: 0,
        segments: segments.len(),
        strands: Cause::ALL.map(|cause| Strand { cause, bytes: 0, holes: 0, largest_bytes: 0, releasable_bytes: 0 }),
        kept_by_pools_bytes: 0,
        holes: Vec::new(),
    };
    let add = |sum: &mut u64, bytes: u64| *sum = sum.saturating_add(bytes);
    for segment in segments {
        add(&mut breakdown.reserved_bytes, segment.total.get());
        let view = View::of(segment, policy);
        for block in &segment.blocks {
            let size = block.size.get();
            if block.state == BlockActivity::Allocated {
                // A file may claim that more was requested than the block has.
                let requested = block.requested.get().min(size);
                add(&mut breakdown.requested_bytes, requested);
                add(&mut breakdown.rounding_bytes, size - requested);
                breakdown.live_blocks += 1;
                continue;
            }
            let cause = view.cause(block, asked, policy);
            let (whole_bytes, is_private) = (view.whole(block), segment.pool != PoolId::DEFAULT);
            let (kept_bytes, releasable_bytes) = if is_private { (whole_bytes, 0) } else { (0, whole_bytes) };
            add(&mut breakdown.kept_by_pools_bytes, kept_bytes);
            let hole = Hole { address: block.address.get(), bytes: size, cause, releasable_bytes };
            let strand = &mut breakdown.strands[cause as usize];
            add(&mut strand.bytes, hole.bytes);
            add(&mut strand.releasable_bytes, hole.releasable_bytes);
            strand.holes += 1;
            strand.largest_bytes = strand.largest_bytes.max(hole.bytes);
            breakdown.holes.push(hole);
        }
    }
    breakdown
}

/// A segment and how its pages are used, for judging its free blocks.
pub(super) struct View<'a> {
    segment: &'a SegmentInfo,
    /// The size of its pages, which can be released one by one; the whole segment if it is not expandable.
    page_bytes: u64,
    /// The bytes in use of each page in which a block in use begins or ends. Pages in between are full.
    used: BTreeMap<u64, u64>,
}

impl<'a> View<'a> {
    pub(super) fn of(segment: &'a SegmentInfo, policy: &PyTorch) -> View<'a> {
        let whole = segment.total.get().max(1);
        // A file recorded under other settings may have runs whose size is not a multiple of the page.
        let page_bytes = match policy.page(PoolSlot::default_pool(segment.class)).get() {
            page if segment.expandable && page > 0 && whole.is_multiple_of(page) => page,
            _ => whole,
        };
        let mut view = View { segment, page_bytes, used: BTreeMap::new() };
        for block in segment.blocks.iter().filter(|block| block.state != BlockActivity::Inactive) {
            view.use_pages(block);
        }
        view
    }

    /// Where a block begins and ends, relative to the segment's first byte.
    fn span(&self, block: &BlockInfo) -> (u64, u64) {
        let start = block.address.get().saturating_sub(self.segment.address.get());
        (start, start.saturating_add(block.size.get()))
    }

    fn use_pages(&mut self, block: &BlockInfo) {
        let (start, end) = self.span(block);
        let (first, last) = (start / self.page_bytes, end.saturating_sub(1) / self.page_bytes);
        for page in [Some(first), (last != first).then_some(last)].into_iter().flatten() {
            let page_start = page.saturating_mul(self.page_bytes);
            let inside = end.min(page_start.saturating_add(self.page_bytes)) - start.max(page_start);
            *self.used.entry(page).or_default() += inside;
        }
    }

    /// The bytes of whole pages within a free block.
    pub(super) fn whole(&self, block: &BlockInfo) -> u64 {
        if block.state != BlockActivity::Inactive {
            return 0;
        }
        let (start, end) = self.span(block);
        let first = start.div_ceil(self.page_bytes);
        (end / self.page_bytes).saturating_sub(first).saturating_mul(self.page_bytes)
    }

    fn cause(&self, block: &BlockInfo, asked: Option<&Asked>, policy: &PyTorch) -> Cause {
        if block.state == BlockActivity::PendingFree {
            return Cause::PendingEvent;
        }
        if self.segment.pool != asked.map_or(PoolId::DEFAULT, |asked| asked.pool) {
            return Cause::PrivatePool;
        }
        if let Some(asked) = asked {
            if self.segment.stream != asked.stream {
                return Cause::OtherStream;
            }
            if self.segment.class != policy.classify(asked.size) {
                return Cause::OtherClass;
            }
            if block.size >= asked.size {
                return self.refusal(block, asked, policy);
            }
        }
        if self.is_pinned(block) { Cause::Pinned } else { Cause::TooSmall }
    }

    /// Why a block that is large enough is not used.
    fn refusal(&self, block: &BlockInfo, asked: &Asked, policy: &PyTorch) -> Cause {
        let settings = &policy.settings;
        let is_oversize = if asked.size.get() < settings.max_split_bytes {
            block.size.get() >= settings.max_split_bytes
        } else {
            // The sum wraps, as PyTorch's does.
            block.size.get() >= asked.size.get().wrapping_add(settings.max_non_split_rounding_bytes)
        };
        if self.segment.expandable && !settings.expandable_segments {
            Cause::ExpandableOff
        } else if is_oversize {
            Cause::Oversize
        } else {
            Cause::Fits
        }
    }

    /// Whether the pages that the free block shares with blocks in use are nearly empty.
    fn is_pinned(&self, block: &BlockInfo) -> bool {
        let (start, end) = self.span(block);
        let (first, last) = (start / self.page_bytes, end.saturating_sub(1) / self.page_bytes);
        let shared = |page: &u64| {
            let page_start = page.saturating_mul(self.page_bytes);
            page_start < start || page_start.saturating_add(self.page_bytes) > end
        };
        let mut ends = [Some(first), (last != first).then_some(last)].into_iter().flatten().filter(shared).peekable();
        let is_nearly_empty = |page: u64| self.used.get(&page).copied().unwrap_or(0) <= self.page_bytes / PINNED_PART;
        ends.peek().is_some() && ends.all(is_nearly_empty)
    }
}
