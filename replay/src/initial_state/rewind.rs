//! Walks a trace backwards, from the heap at the end of a recording to the heap before its first entry.
//!
//! The heap before the first entry follows from the heap at the end and from the entries: the walk undoes the entries, the
//! last one first. The walk also finds contradictions (a block freed twice, memory outside any segment) and the entry at
//! which each freed block becomes free for reuse.
//!
//! A recording lists an expandable segment as its mapped runs of addresses, and the trace maps and unmaps parts of
//! them. Adjacent runs of one stream count as one run: in PyTorch they also belong to one pool.

use std::collections::BTreeMap;

use parkade::units::PoolId;
use parkade_recording::{Action, BlockState, DeviceRecording, Entry};
use rustc_hash::FxHashMap;

use crate::entries::{gives_memory, takes_memory};
use crate::error::{Missing, VerifyError};
use crate::pools::pool_of;

/// A block that was in use before the first entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EarlyBlock {
    pub(crate) address: u64,
    pub(crate) requested: u64,
    /// Its size, if the block still exists at the recording's end.
    pub(crate) size: Option<u64>,
    /// Whether it was freed before the first entry and is waiting for events.
    pub(crate) is_pending: bool,
    /// The entry at which it is freed, if it is in the trace.
    pub(crate) freed_at: Option<u32>,
    /// The entry at which the block becomes free for reuse, if it is in the trace.
    pub(crate) completed_at: Option<u32>,
}

/// A segment that existed before the first entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EarlySegment {
    pub(crate) address: u64,
    pub(crate) total: u64,
    pub(crate) stream: u64,
    pub(crate) large: bool,
    /// Whether it is a mapped run of an expandable segment.
    pub(crate) expandable: bool,
    /// Its pool; the default pool if the recording does not name one.
    pub(crate) pool: PoolId,
    /// Whether the recording lists it at the end, so that its class and pool are known.
    pub(crate) is_listed: bool,
}

/// The result of the walk backwards.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rewound {
    /// Blocks in use before the first entry, in no particular order.
    pub(crate) blocks: Vec<EarlyBlock>,
    /// Segments from before the first entry, in no particular order.
    pub(crate) segments: Vec<EarlySegment>,
    /// The private pools of segments that are allocated within the trace, by entry.
    pub(crate) made: FxHashMap<u32, PoolId>,
    /// For each entry that frees a block which does not immediately become free for reuse: the entry at which it does, or
    /// `None` if that entry is not in the trace.
    pub(crate) deferred: FxHashMap<u32, Option<u32>>,
}

/// Mapped runs, by address.
#[derive(Clone, Debug, Default)]
struct Runs {
    by_address: BTreeMap<u64, EarlySegment>,
}

impl Runs {
    /// Adds a run. Returns false if it overlaps an existing run.
    fn insert(&mut self, mut run: EarlySegment) -> bool {
        let Some(end) = run.address.checked_add(run.total) else { return false };
        let before = self.by_address.range(..end).next_back().map(|(_, &before)| before);
        if before.is_some_and(|before| before.address + before.total > run.address) {
            return false;
        }
        // The pool of a run that is unmapped within the trace is guessed from its size; that of an adjacent run is
        // more reliable.
        let stream = run.stream;
        let same = |other: &EarlySegment| other.stream == stream;
        if let Some(before) = before.filter(|before| before.address + before.total == run.address && same(before)) {
            self.by_address.remove(&before.address);
            run = EarlySegment { total: before.total + run.total, ..before };
        }
        if let Some(&after) = self.by_address.get(&end).filter(|after| same(after)) {
            self.by_address.remove(&end);
            // If the file lists one of the runs, its pool and class apply to both.
            let known = if run.is_listed { run } else { after };
            run = EarlySegment { address: run.address, total: run.total + after.total, ..known };
        }
        self.by_address.insert(run.address, run);
        true
    }

    /// Removes memory. Returns false if some of it does not exist. The memory may belong to several adjacent runs: some
    /// allocators hand mapped memory from one stream or pool to another, which the trace does not show.
    fn remove(&mut self, address: u64, bytes: u64) -> bool {
        let Some(end) = address.checked_add(bytes).filter(|_| bytes > 0) else { return false };
        let Some((&first, _)) = self.by_address.range(..=address).next_back() else { return false };
        let touched: Vec<EarlySegment> = self.by_address.range(first..end).map(|(_, &run)| run).collect();
        let mut covered = address;
        for run in &touched {
            if run.address > covered {
                return false;
            }
            covered = run.address + run.total;
        }
        if covered < end {
            return false;
        }
        for run in touched {
            self.by_address.remove(&run.address);
            let run_end = run.address + run.total;
            if run.address < address {
                self.by_address.insert(run.address, EarlySegment { total: address - run.address, ..run });
            }
            if end < run_end {
                self.by_address.insert(end, EarlySegment { address: end, total: run_end - end, ..run });
            }
        }
        true
    }

    /// Returns all runs, in address order.
    fn into_iter(self) -> impl Iterator<Item = EarlySegment> {
        self.by_address.into_values()
    }
}

/// Every segment (spec 1.6) and every mapped page (spec 4.1) is at least this large.
const SMALLEST_SEGMENT: u64 = 2 << 20;
/// Far more than any GPU's memory: a larger segment means that the file is damaged.
const LARGEST_SEGMENT: u64 = 1 << 50;

/// A block as seen from the entry that the walk has reached.
#[derive(Clone, Copy)]
struct Live {
    requested: u64,
    size: Option<u64>,
    is_pending: bool,
    freed_at: Option<u32>,
    completed_at: Option<u32>,
}

struct Walk {
    places: FxHashMap<u64, usize>,
    /// Indexed by position; `None` once the walk has passed the block's allocation.
    blocks: Vec<Option<(u64, Live)>>,
    vacant: Vec<usize>,
    segments: FxHashMap<u64, EarlySegment>,
    runs: Runs,
    made: FxHashMap<u32, PoolId>,
    large_page: u64,
    deferred: FxHashMap<u32, Option<u32>>,
    /// Whether the recording lists any segments.
    has_segments: bool,
}

/// Walks the entire trace backwards.
pub(crate) fn rewind(recording: &DeviceRecording, large_page: u64) -> Result<Rewound, VerifyError> {
    if u32::try_from(recording.trace.len()).is_err() {
        return Err(VerifyError::TooLong(recording.trace.len()));
    }
    let mut walk = Walk::from_final_state(recording, large_page.max(1));
    for (at, entry) in recording.trace.iter().enumerate().rev() {
        walk.undo(at, entry)?;
    }
    Ok(walk.finish())
}

impl Walk {
    fn from_final_state(recording: &DeviceRecording, large_page: u64) -> Walk {
        let mut walk = Walk {
            places: FxHashMap::default(),
            blocks: Vec::new(),
            vacant: Vec::new(),
            segments: FxHashMap::default(),
            runs: Runs::default(),
            made: FxHashMap::default(),
            large_page,
            deferred: FxHashMap::default(),
            has_segments: !recording.segments.is_empty(),
        };
        for segment in &recording.segments {
            let (address, total) = (segment.address, segment.total_bytes);
            let (stream, large, expandable) = (segment.stream, segment.large, segment.expandable);
            let early = EarlySegment { address, total, stream, large, expandable, pool: pool_of(segment), is_listed: true };
            if expandable {
                // The reader has already checked that segments do not overlap.
                walk.runs.insert(early);
            } else {
                walk.segments.insert(address, early);
            }
            for block in segment.blocks.iter().filter(|block| block.state != BlockState::Inactive) {
                let is_pending = block.state == BlockState::ActivePendingFree;
                let requested = block.requested.unwrap_or(block.size);
                let live = Live { requested, size: Some(block.size), is_pending, freed_at: None, completed_at: None };
                walk.insert(block.address, live);
            }
        }
        walk
    }

    /// Returns false if there is already a block at this address.
    fn insert(&mut self, address: u64, live: Live) -> bool {
        let place = self.vacant.pop().unwrap_or_else(|| {
            self.blocks.push(None);
            self.blocks.len() - 1
        });
        self.blocks[place] = Some((address, live));
        self.places.insert(address, place).is_none()
    }

    fn live(&mut self, address: u64) -> Option<&mut Live> {
        let place = *self.places.get(&address)?;
        self.blocks[place].as_mut().map(|(_, live)| live)
    }

    fn remove(&mut self, address: u64) -> Option<Live> {
        let place = self.places.remove(&address)?;
        self.vacant.push(place);
        self.blocks[place].take().map(|(_, live)| live)
    }

    fn undo(&mut self, at: usize, entry: &Entry) -> Result<(), VerifyError> {
        let impossible = |problem| VerifyError::contradiction(at, entry.action, entry.address, problem);
        let contradiction = |problem| Err(impossible(problem));
        let unless_missing = |kinds: Missing, problem| Err(impossible(problem).unless_missing(kinds));
        let is_memory = takes_memory(entry) || gives_memory(entry);
        if is_memory && !(SMALLEST_SEGMENT..=LARGEST_SEGMENT).contains(&entry.size) {
            return contradiction("whose size no segment can have");
        }
        match entry.action {
            Action::Alloc => match self.remove(entry.address) {
                Some(live) if live.is_pending => {
                    unless_missing(&[&[Action::FreeRequested]], "but the block there is still waiting to become free")
                }
                Some(_) => Ok(()),
                None if !self.has_segments => contradiction(
                    "which is never freed, but the file lists no segments: a snapshot lists in `segments` all segments that are reserved at its end",
                ),
                None => unless_missing(
                    &[&[Action::FreeRequested, Action::FreeCompleted]],
                    "but nothing is in use there afterwards: an entry is missing, duplicated or out of order",
                ),
            },
            Action::FreeCompleted => {
                let completed_at = Some(at as u32);
                let live = Live { requested: entry.size, size: None, is_pending: true, freed_at: None, completed_at };
                if self.insert(entry.address, live) {
                    Ok(())
                } else {
                    let problem = "but a block there is still in use afterwards: it is freed twice, or an alloc is missing";
                    unless_missing(&[&[Action::Alloc]], problem)
                }
            }
            Action::FreeRequested => self.undo_free_request(at, entry),
            Action::SegmentAlloc | Action::SegmentFree => self.undo_segment(at, entry),
            Action::SegmentMap => {
                if self.runs.remove(entry.address, entry.size) {
                    Ok(())
                } else {
                    unless_missing(&[&[Action::SegmentUnmap]], "but no memory is mapped there afterwards")
                }
            }
            Action::SegmentUnmap => {
                // Pages in the large pool are 20 MiB, unless the settings change that; pages in the small pool are 2 MiB
                // (spec 4.1).
                let large = entry.size.is_multiple_of(self.large_page);
                let run = unlisted(entry, large, true);
                if self.runs.insert(run) {
                    Ok(())
                } else {
                    unless_missing(&[&[Action::SegmentMap]], "but memory is still mapped there afterwards")
                }
            }
            Action::Oom | Action::Snapshot => Ok(()),
        }
    }

    fn undo_segment(&mut self, at: usize, entry: &Entry) -> Result<(), VerifyError> {
        let impossible = |problem| VerifyError::contradiction(at, entry.action, entry.address, problem);
        if entry.action == Action::SegmentFree {
            // A small segment is 2 MiB; every segment of the large pool is at least 10 MiB (spec 1.6).
            let segment = unlisted(entry, entry.size > 2 << 20, false);
            return match self.segments.insert(entry.address, segment) {
                None => Ok(()),
                Some(_) => Err(impossible("but a segment is still there afterwards").unless_missing(&[&[Action::SegmentAlloc]])),
            };
        }
        match self.segments.remove(&entry.address) {
            Some(segment) if segment.total == entry.size => {
                if segment.pool != PoolId::DEFAULT {
                    self.made.insert(at as u32, segment.pool);
                }
                Ok(())
            }
            Some(_) => Err(impossible("but the segment there has a different size afterwards")),
            None => Err(impossible("but there is no segment afterwards").unless_missing(&[&[Action::SegmentFree]])),
        }
    }

    fn undo_free_request(&mut self, at: usize, entry: &Entry) -> Result<(), VerifyError> {
        let impossible = |problem| VerifyError::contradiction(at, entry.action, entry.address, problem);
        let Some(live) = self.live(entry.address) else {
            let problem = "but no block there becomes free afterwards or is still waiting to become free";
            return Err(impossible(problem).unless_missing(&[&[Action::FreeCompleted]]));
        };
        if !live.is_pending {
            let problem = "but the block there is still in use afterwards: it is freed twice, or an alloc is missing";
            return Err(impossible(problem).unless_missing(&[&[Action::FreeCompleted], &[Action::Alloc]]));
        }
        live.is_pending = false;
        live.freed_at = Some(at as u32);
        let completed_at = live.completed_at;
        if completed_at != Some(at as u32 + 1) {
            self.deferred.insert(at as u32, completed_at);
        }
        Ok(())
    }

    fn finish(mut self) -> Rewound {
        let blocks = self.blocks.iter().flatten().map(|&(address, live)| EarlyBlock {
            address,
            requested: live.requested,
            size: live.size,
            is_pending: live.is_pending,
            freed_at: live.freed_at,
            completed_at: live.completed_at,
        });
        let blocks = blocks.collect();
        let segments = self.segments.drain().map(|(_, segment)| segment).chain(self.runs.into_iter()).collect();
        Rewound { blocks, segments, made: self.made, deferred: self.deferred }
    }
}

/// Returns a segment, or a mapped run of one, that existed before the first entry and that the recording releases.
fn unlisted(entry: &Entry, large: bool, expandable: bool) -> EarlySegment {
    EarlySegment {
        address: entry.address,
        total: entry.size,
        stream: entry.stream,
        large,
        expandable,
        pool: PoolId::DEFAULT,
        is_listed: false,
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn run(address: u64, total: u64, stream: u64) -> EarlySegment {
        EarlySegment { address, total, stream, large: true, expandable: true, pool: PoolId::DEFAULT, is_listed: true }
    }

    fn of(runs: Runs) -> Vec<(u64, u64, u64)> {
        runs.into_iter().map(|run| (run.address, run.total, run.stream)).collect()
    }

    #[test]
    fn memory_of_several_adjacent_runs_is_removed_at_once() {
        let mut runs = Runs::default();
        assert!(runs.insert(run(100, 20, 1)) && runs.insert(run(120, 10, 2)) && runs.insert(run(130, 20, 1)));
        assert!(runs.remove(110, 30));
        assert_eq!(of(runs), [(100, 10, 1), (140, 10, 1)]);
    }

    #[test]
    fn nothing_is_removed_where_some_of_it_is_not_there() {
        let mut runs = Runs::default();
        assert!(runs.insert(run(100, 20, 1)) && runs.insert(run(121, 20, 2)));
        for (address, bytes) in [(110, 20), (99, 10), (130, 12), (110, 0), (u64::MAX, 2)] {
            assert!(!runs.remove(address, bytes), "{bytes} bytes at {address}");
        }
        assert_eq!(of(runs), [(100, 20, 1), (121, 20, 2)]);
    }

    /// What is known of a page: its stream, its pool, and whether the file lists its run.
    type Page = (u64, u64, bool);

    /// Returns the pages that form one run with these: those beside them without a gap, of the same stream.
    fn run_around(pages: &[Option<Page>], mut from: usize, mut to: usize) -> std::ops::Range<usize> {
        let stream = |page: usize| pages.get(page).copied().flatten().map(|(stream, _, _)| stream);
        while from > 0 && stream(from - 1) == stream(from) {
            from -= 1;
        }
        while stream(to) == stream(from) {
            to += 1;
        }
        from..to
    }

    /// Maps pages, if none of them is mapped. The whole run then has the pool that the file lists for its lowest part, or
    /// the pool of the part above or below if the file lists none.
    fn map(pages: &mut [Option<Page>], from: usize, to: usize, page: Page) -> bool {
        if pages[from..to].iter().any(Option::is_some) {
            return false;
        }
        pages[from..to].fill(Some(page));
        let whole = run_around(pages, from, to);
        let below = (whole.start < from).then(|| pages[from - 1]);
        let above = (whole.end > to).then(|| pages[to]);
        let parts = [below, Some(Some(page)), above].into_iter().flatten().flatten();
        let listed = parts.clone().find(|&(_, _, is_listed)| is_listed);
        let known = listed.or(above.flatten()).or(below.flatten()).unwrap_or(page);
        pages[whole].fill(Some(known));
        true
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]
        /// Compares with memory that is mapped page by page. First come the runs that the file lists, in address order; then
        /// the walk maps what the trace unmaps, and the reverse.
        #[test]
        fn runs_are_what_is_mapped_page_by_page(
            listed in vec((0..3_usize, 1..4_usize, 1..3_u64, 1..3_u64), 0..4),
            steps in vec((any::<bool>(), 0..16_usize, 1..6_usize, 1..3_u64), 0..24),
        ) {
            let mut pages: Vec<Option<Page>> = vec![None; 16];
            let mut runs = Runs::default();
            let of_pages = |from: usize, to: usize, (stream, pool, is_listed): Page| EarlySegment {
                pool: PoolId(0, pool),
                large: pool == 1,
                is_listed,
                ..run(100 + from as u64, (to - from) as u64, stream)
            };
            let mut from = 0;
            for (gap, count, stream, pool) in listed {
                let (first, to) = (from + gap, (from + gap + count).min(16));
                if first < to {
                    prop_assert!(map(&mut pages, first, to, (stream, pool, true)));
                    prop_assert!(runs.insert(of_pages(first, to, (stream, pool, true))));
                }
                from = to;
            }
            for (maps, from, count, stream) in steps {
                let to = (from + count).min(16);
                if maps {
                    let page = (stream, 0, false);
                    prop_assert_eq!(runs.insert(of_pages(from, to, page)), map(&mut pages, from, to, page));
                } else {
                    let is_mapped = pages[from..to].iter().all(Option::is_some);
                    prop_assert_eq!(runs.remove(100 + from as u64, (to - from) as u64), is_mapped);
                    if is_mapped {
                        pages[from..to].fill(None);
                    }
                }
                let mut expected = Vec::new();
                let mut at = 0;
                while at < 16 {
                    let Some(page) = pages[at] else {
                        at += 1;
                        continue;
                    };
                    let whole = run_around(&pages, at, at + 1);
                    expected.push((100 + whole.start as u64, whole.len() as u64, page));
                    at = whole.end;
                }
                let found = runs.clone().into_iter().map(|run| {
                    assert_eq!(run.large, run.pool.1 == 1);
                    (run.address, run.total, (run.stream, run.pool.1, run.is_listed))
                });
                prop_assert_eq!(found.collect::<Vec<_>>(), expected);
            }
        }
    }
}
