//! Where the bytes of a heap are: live, lost to rounding, or stranded, each stranded byte for exactly one cause.
//!
//! A byte is *stranded* if it is reserved and not handed out. Why it could not serve a request depends on that request; so a heap
//! is broken down as one request saw it. The causes exclude each other: the first that applies, in the order of [`Cause::ALL`],
//! counts.

use std::collections::BTreeMap;

use parkade::PoolSlot;
use parkade::policy::{Policy, PyTorch};
use parkade::snapshot::{BlockActivity, BlockInfo, SegmentInfo};
use parkade::units::{Bytes, PoolId, StreamId};

/// A segment or page counts as pinned by small blocks if what is in use of it is at most this part of it.
pub const PINNED_PART: u64 = 10;

/// Why a reserved byte that is not handed out could not serve the request.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Cause {
    /// It was given back, but another stream may still use it: its events are not done (spec 3.5).
    PendingEvent,
    /// It belongs to another pool than the request: a private one (spec 5).
    PrivatePool,
    /// It was cached for another stream (spec 2.3).
    OtherStream,
    /// It lies in the small pool and the request is large, or the other way round (spec 1.5).
    OtherClass,
    /// The block is large enough, but the rules of `max_split_size_mb` keep it for larger requests, or are not to waste so much
    /// (spec 2.5, steps 4 and 5).
    Oversize,
    /// The block is large enough, but lies in an expandable segment, and these have been switched off since (spec 2.5, step 3).
    ExpandableOff,
    /// The block would serve the request.
    Fits,
    /// The hole is too small, and so little of its segment or of its pages is in use that freeing that would give all of it back:
    /// at most one part in [`PINNED_PART`].
    Pinned,
    /// The hole is too small.
    TooSmall,
}

impl Cause {
    /// Every cause, in the order in which they are tried.
    pub const ALL: [Cause; 9] = [
        Cause::PendingEvent,
        Cause::PrivatePool,
        Cause::OtherStream,
        Cause::OtherClass,
        Cause::Oversize,
        Cause::ExpandableOff,
        Cause::Fits,
        Cause::Pinned,
        Cause::TooSmall,
    ];

    /// A word for programs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Cause::PendingEvent => "pending_event",
            Cause::PrivatePool => "private_pool",
            Cause::OtherStream => "other_stream",
            Cause::OtherClass => "other_class",
            Cause::Oversize => "oversize",
            Cause::ExpandableOff => "expandable_off",
            Cause::Fits => "fits",
            Cause::Pinned => "pinned",
            Cause::TooSmall => "too_small",
        }
    }
}

/// A request, as the allocator's search sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Asked {
    /// The block size that it needs: what was asked for, rounded.
    pub size: Bytes,
    /// The stream that asks.
    pub stream: StreamId,
    /// The pool that the request goes to.
    pub pool: PoolId,
}

/// A block that is reserved and not handed out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hole {
    /// Its first byte.
    pub address: u64,
    /// Its size.
    pub bytes: u64,
    /// Why it could not serve the request.
    pub cause: Cause,
    /// What of it `empty_cache`, and the allocator itself before it gives up, can give back to the device: a whole segment, whole
    /// pages. Nothing of private pools: whether somebody still uses those is not in a snapshot.
    pub releasable_bytes: u64,
}

/// All stranded bytes of one cause.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Strand {
    /// The cause.
    pub cause: Cause,
    /// The sum.
    pub bytes: u64,
    /// In how many holes.
    pub holes: usize,
    /// The largest of them.
    pub largest_bytes: u64,
    /// What of the sum can go back to the device.
    pub releasable_bytes: u64,
}

/// A heap, broken down. Always: requested + rounding + all stranded = reserved.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Breakdown {
    /// What was taken from the device.
    pub reserved_bytes: u64,
    /// What the program asked for, of the blocks that are handed out.
    pub requested_bytes: u64,
    /// What these blocks are larger than was asked for.
    pub rounding_bytes: u64,
    /// Blocks that are handed out.
    pub live_blocks: usize,
    /// Segments; of expandable ones, runs that have memory.
    pub segments: usize,
    /// The stranded bytes by cause, in the order of [`Cause::ALL`], those without bytes too.
    pub strands: [Strand; Cause::ALL.len()],
    /// What private pools have of whole free segments and pages: it goes back to the device only once nobody uses the pool.
    pub kept_by_pools_bytes: u64,
    /// Every hole, by address.
    pub holes: Vec<Hole>,
}

impl Breakdown {
    /// Bytes of blocks that are handed out.
    #[must_use]
    pub fn allocated_bytes(&self) -> u64 {
        self.requested_bytes.saturating_add(self.rounding_bytes)
    }

    /// Bytes that are reserved and not handed out.
    #[must_use]
    pub fn stranded_bytes(&self) -> u64 {
        self.strands.iter().fold(0, |sum, strand| sum.saturating_add(strand.bytes))
    }

    /// What of that can go back to the device.
    #[must_use]
    pub fn releasable_bytes(&self) -> u64 {
        self.strands.iter().fold(0, |sum, strand| sum.saturating_add(strand.releasable_bytes))
    }

    /// The stranded bytes of one cause.
    #[must_use]
    pub fn of(&self, cause: Cause) -> &Strand {
        &self.strands[cause as usize]
    }

    /// The largest free block, whoever may use it.
    #[must_use]
    pub fn largest_hole_bytes(&self) -> u64 {
        let free = self.strands.iter().filter(|strand| strand.cause != Cause::PendingEvent);
        free.map(|strand| strand.largest_bytes).max().unwrap_or(0)
    }

    /// The cause that strands the most bytes; `None` if nothing is stranded.
    #[must_use]
    pub fn main_cause(&self) -> Option<Cause> {
        let strands = self.strands.iter().filter(|strand| strand.bytes > 0);
        strands.max_by_key(|strand| strand.bytes).map(|strand| strand.cause)
    }
}

/// Breaks a heap down as `asked` saw it, under the policy's rules. Without a request every free block counts as too small for
/// what may come, and only what does not depend on a request is told apart.
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
                // A file may claim that more was asked for than there is.
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

/// What the judgement of a segment's blocks needs to know of all of it.
struct View<'a> {
    segment: &'a SegmentInfo,
    /// The size of its pages, which can go back to the device one by one. All of it, if it is not expandable.
    page_bytes: u64,
    /// Bytes in use of the pages in which a block in use begins or ends. Those between are full.
    used: BTreeMap<u64, u64>,
}

impl<'a> View<'a> {
    fn of(segment: &'a SegmentInfo, policy: &PyTorch) -> View<'a> {
        let whole = segment.total.get().max(1);
        // A file that was not made under these settings may have runs that are no multiple of the page.
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

    /// Where a block begins and ends, counted from the segment's first byte.
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

    /// The bytes of whole pages in a free block.
    fn whole(&self, block: &BlockInfo) -> u64 {
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
            // Wraps as PyTorch's does.
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
