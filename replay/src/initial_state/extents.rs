//! The lengths of the blocks that were in use before the first entry, and the mapped runs that belong to one expandable
//! segment, that is, to one reserved range of addresses.
//!
//! An entry states the requested size, not the block's. By the rules, a block has the rounded size of its request, or more if
//! the free block that served it was not worth splitting (spec 3.1): in the small pool, a remainder of 512 bytes or more is
//! always split off; in the large pool, one of up to 1 MiB is not. A gap after a block therefore belongs to the block if it
//! is too small to be a block of that pool. A larger gap is a free block, but up to 1 MiB at its beginning may still belong
//! to the block before it. This becomes visible when the program allocates in the gap while the block is in use. If the
//! program does not, it is visible only in decisions that the recorded allocator did not make ([`Extents`]).
//!
//! If nothing is ever allocated in the gap after a block, the block is assumed to be as long as its rounded request, and the
//! gap may be up to 1 MiB smaller than it appears. If the core then serves a request from the beginning of the gap where the
//! recording serves it from elsewhere, the gap was too small for it, so the block must be longer. The replay then assumes the
//! smallest length that explains this and starts over.
//!
//! A recording lists an expandable segment as its runs. If a segment was gone by the end, only the trace shows it, so neither
//! its pool nor its class is known. Ranges lie far apart, however: a range is 9/8 as long as the device's memory (spec 4.1)
//! and is mapped starting from its lowest address (spec 4.2).

use std::collections::BTreeMap;

use parkade::policy::{Policy, PyTorch, Request};
use parkade::units::{Bytes, DeviceAddress, MIB, PoolClass, PoolId, StreamId};
use parkade::{AdoptedBlock, AdoptedContent, AdoptedSegment, PoolSlot};
use parkade_recording::{Action, Entry};

use super::rewind::{EarlyBlock, EarlySegment};
use crate::entries::{Decision, SEGMENT_ACTIONS};
use crate::error::VerifyError;

/// Block sizes are multiples of this (spec 1.1).
const BLOCK_SIZE: u64 = 512;

/// A block whose size the trace does not show.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Assumed {
    /// The address at which the block is assumed to end and the gap to begin.
    gap: u64,
    /// The number of bytes by which the block is longer than its rounded request, as inferred so far.
    own: u64,
    /// The entry at which the block is freed, if it is in the trace.
    freed_at: Option<u32>,
}

/// A correction: the gap after an assumed block is smaller.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SmallerGap {
    place: usize,
    by: u64,
}

/// The segments before the first entry with all their blocks, and the blocks with assumed sizes.
#[derive(Clone)]
pub(crate) struct Extents {
    pub(crate) segments: Vec<AdoptedSegment>,
    pub(crate) assumed: Vec<Assumed>,
}

impl Extents {
    /// Returns the smaller gap that explains why, at `entry`, the recorded allocator did not make the core's decision, or
    /// `None` if no gap explains it.
    pub(crate) fn explain(&self, entry: usize, decision: &Decision, policy: &PyTorch) -> Option<SmallerGap> {
        if decision.action != Action::Alloc {
            return None;
        }
        let is_it =
            |assumed: &Assumed| assumed.gap == decision.address && assumed.freed_at.is_none_or(|freed| freed as usize > entry);
        let place = self.assumed.iter().position(is_it)?;
        let (segment, block) = self.find_gap(decision.address)?;
        let rounded = policy.round(Bytes(decision.size))?.get();
        let by = self.segments[segment].blocks[block].size.get().checked_sub(rounded.checked_sub(BLOCK_SIZE)?)?;
        // The gap must shrink but not vanish, and the block's remainder must not be one that is split off: at most 1 MiB.
        (by > 0 && rounded > BLOCK_SIZE && self.assumed[place].own + by <= MIB).then_some(SmallerGap { place, by })
    }

    /// Makes a gap smaller and the block before it longer.
    pub(crate) fn shrink(&mut self, SmallerGap { place, by }: SmallerGap) {
        let Some((segment, block)) = self.find_gap(self.assumed[place].gap) else { return };
        extend(&mut self.segments[segment], block, by);
        self.assumed[place].gap += by;
        self.assumed[place].own += by;
    }

    /// Returns the number of assumed blocks that turned out to be longer.
    pub(crate) fn inferred(&self) -> usize {
        self.assumed.iter().filter(|assumed| assumed.own > 0).count()
    }

    /// Returns the free block at an address: the index of its segment, and its index in the segment.
    fn find_gap(&self, address: u64) -> Option<(usize, usize)> {
        for (place, segment) in self.segments.iter().enumerate() {
            let mut at = segment.address.get();
            for (block, adopted) in segment.blocks.iter().enumerate().take_while(|_| segment.address.get() < address) {
                if at == address {
                    return (adopted.content == AdoptedContent::Free && block > 0).then_some((place, block));
                }
                at += adopted.size.get();
            }
        }
        None
    }
}

/// Moves the first `own` bytes of a free block to the block before it.
fn extend(segment: &mut AdoptedSegment, gap: usize, own: u64) {
    let blocks = &mut segment.blocks;
    let size = blocks[gap].size.get();
    if own > 0 && own < size {
        blocks[gap].size = Bytes(size - own);
        blocks[gap - 1].size = Bytes(blocks[gap - 1].size.get() + own);
    }
}

/// A block of the large pool that may be longer than its rounded request, by a part of the free block after it.
#[derive(Clone, Copy, Debug)]
struct Hidden {
    /// The segment that contains the block, and the index of the free block after the block.
    segment: usize,
    place: usize,
    /// The address at which the block's rounded request ends.
    rounded_end: u64,
    /// The entry at which the block is freed, if it is in the trace.
    freed_at: Option<u32>,
}

/// Cuts each segment into blocks.
///
/// `segments` and `blocks` must be in address order.
///
/// # Errors
/// Fails if segments or blocks overlap, or if a block is in no segment.
pub(crate) fn cut(
    segments: &[EarlySegment],
    blocks: &[EarlyBlock],
    trace: &[Entry],
    policy: &PyTorch,
) -> Result<Extents, VerifyError> {
    let mut cut = Cut { policy, hidden: Vec::new(), adopted: Vec::with_capacity(segments.len()) };
    let mut rest = blocks;
    let mut end = 0;
    for segment in segments {
        let start_error = |problem| VerifyError::Start { what: "segment", address: segment.address, problem, missing: &[] };
        if segment.address < end {
            return Err(
                start_error("overlaps the one before it").unless_missing(&[&[Action::SegmentAlloc], &[Action::SegmentMap]])
            );
        }
        end = segment.address.checked_add(segment.total).ok_or(start_error("extends past 64 bits"))?;
        let inside = rest.partition_point(|block| block.address < end);
        let (own, others) = rest.split_at(inside);
        cut.segment(segment, own)?;
        rest = others;
    }
    if let Some(stray) = rest.first() {
        return Err(outside(stray));
    }
    let assumed = cut.uncover(trace);
    let (runs, mut whole): (Vec<_>, Vec<_>) = cut.adopted.into_iter().zip(segments).partition(|(_, segment)| segment.expandable);
    let runs =
        runs.into_iter().map(|(run, segment)| Run { memory: run, bytes: segment.total, is_listed: segment.is_listed }).collect();
    let joined = join(runs, trace, policy);
    let segments = whole.drain(..).map(|(segment, _)| segment).chain(joined).collect();
    Ok(Extents { segments, assumed })
}

fn outside(block: &EarlyBlock) -> VerifyError {
    let problem = "but nothing was allocated there, and no segment from before the first entry contains it";
    let error = match (block.freed_at, block.completed_at) {
        (Some(entry), _) => VerifyError::contradiction(entry as usize, Action::FreeRequested, block.address, problem),
        (None, Some(entry)) => VerifyError::contradiction(entry as usize, Action::FreeCompleted, block.address, problem),
        (None, None) => VerifyError::Start { what: "block", address: block.address, problem: "is in no segment", missing: &[] },
    };
    error.unless_missing(&[&[Action::Alloc], &SEGMENT_ACTIONS])
}

struct Cut<'a> {
    policy: &'a PyTorch,
    hidden: Vec<Hidden>,
    adopted: Vec<AdoptedSegment>,
}

impl Cut<'_> {
    fn segment(&mut self, segment: &EarlySegment, blocks: &[EarlyBlock]) -> Result<(), VerifyError> {
        let end = segment.address + segment.total;
        let class = if segment.large { PoolClass::Large } else { PoolClass::Small };
        let mut adopted = Vec::with_capacity(blocks.len() * 2 + 1);
        let mut at = segment.address;
        for (n, block) in blocks.iter().enumerate() {
            if block.address < at {
                return Err(if n == 0 { outside(block) } else { overlap(block) });
            }
            push_free(&mut adopted, block.address - at);
            let next = blocks.get(n + 1).map_or(end, |next| next.address);
            let size = self.block_size(block, next, class, segment.expandable)?;
            adopted.push(AdoptedBlock { size: Bytes(size), content: AdoptedContent::Allocated(Bytes(block.requested)) });
            at = block.address + size;
            if block.size.is_none() && class == PoolClass::Large && !segment.expandable && at < next {
                let (segment, place) = (self.adopted.len(), adopted.len());
                self.hidden.push(Hidden { segment, place, rounded_end: at, freed_at: block.freed_at.or(block.completed_at) });
            }
        }
        push_free(&mut adopted, end - at);
        let (address, stream) = (DeviceAddress(segment.address), StreamId(segment.stream));
        self.adopted.push(AdoptedSegment { address, stream, pool: segment.pool, class, page: None, blocks: adopted });
        Ok(())
    }

    fn block_size(&self, block: &EarlyBlock, next: u64, class: PoolClass, is_expandable: bool) -> Result<u64, VerifyError> {
        let room = next - block.address;
        if let Some(size) = block.size {
            return if size <= room { Ok(size) } else { Err(overlap(block)) };
        }
        let requested = Bytes(block.requested.max(1));
        let rounded = self.policy.round(requested).filter(|rounded| rounded.0 <= room).ok_or_else(|| overlap(block))?;
        let request =
            Request { requested, size: rounded, pool: PoolSlot::default_pool(class), stream: StreamId::DEFAULT, is_expandable };
        let is_worth_splitting = room > rounded.0 && self.policy.splits(Bytes(room), &request);
        Ok(if is_worth_splitting { rounded.0 } else { room })
    }

    /// Searches the trace for allocations that show where these blocks end. Returns the blocks for which there is no such
    /// allocation.
    fn uncover(&mut self, trace: &[Entry]) -> Vec<Assumed> {
        let mut open: BTreeMap<u64, Hidden> = self.hidden.drain(..).map(|hidden| (hidden.rounded_end, hidden)).collect();
        let mut assumed = Vec::new();
        for (at, entry) in trace.iter().enumerate() {
            if open.is_empty() {
                break;
            }
            if entry.action != Action::Alloc {
                continue;
            }
            let Some((&key, &hidden)) = open.range(..=entry.address).next_back() else { continue };
            if entry.address - key > MIB {
                continue;
            }
            open.remove(&key);
            if hidden.freed_at.is_some_and(|freed| (freed as usize) < at) {
                assumed.push(hidden);
            } else {
                extend(&mut self.adopted[hidden.segment], hidden.place, entry.address - key);
            }
        }
        let unseen = assumed.into_iter().chain(open.into_values());
        unseen.map(|hidden| Assumed { gap: hidden.rounded_end, own: 0, freed_at: hidden.freed_at }).collect()
    }
}

fn overlap(block: &EarlyBlock) -> VerifyError {
    let problem = "does not fit before the next one; were the settings changed during the run?";
    VerifyError::Start { what: "block", address: block.address, problem, missing: &[] }
}

fn push_free(blocks: &mut Vec<AdoptedBlock>, size: u64) {
    if size > 0 {
        blocks.push(AdoptedBlock { size: Bytes(size), content: AdoptedContent::Free });
    }
}

/// The total memory that the device reports to the core, in bytes: more than any GPU has, so that no reserved range runs out.
/// A recording does not contain the actual amount.
pub(crate) const TOTAL_MEMORY: u64 = 1 << 39;

/// A mapped run, already cut into blocks.
struct Run {
    memory: AdoptedSegment,
    /// The length of the run in bytes.
    bytes: u64,
    /// Whether the recording lists the run, so that its class and pool are known.
    is_listed: bool,
}

impl Run {
    fn address(&self) -> u64 {
        self.memory.address.get()
    }

    fn end(&self) -> u64 {
        self.address().saturating_add(self.bytes)
    }

    fn key(&self) -> (u64, PoolClass, PoolId) {
        (self.memory.stream.get(), self.memory.class, self.memory.pool)
    }
}

/// The runs of one range, by address.
struct Range {
    runs: Vec<Run>,
}

impl Range {
    fn base(&self) -> u64 {
        self.runs[0].address()
    }

    fn end(&self) -> u64 {
        self.runs.last().map_or(0, Run::end)
    }

    fn stream(&self) -> u64 {
        self.runs[0].memory.stream.get()
    }

    /// Returns a run that the recording lists, or the first run if it lists none.
    fn known(&self) -> &Run {
        self.runs.iter().find(|run| run.is_listed).unwrap_or(&self.runs[0])
    }

    /// Returns whether all runs of this range and another run consist of whole pages, as far as their class is known.
    fn is_whole_with(&self, run: &Run, policy: &PyTorch) -> bool {
        let known = self.known();
        // Once a listed run is part of the range, all others have been compared with its pages.
        let (listed, others) = match (known.is_listed, run.is_listed) {
            (true, _) => (known, &[][..]),
            (false, true) => (run, &self.runs[..]),
            (false, false) => return true,
        };
        let page = policy.page(PoolSlot::default_pool(listed.memory.class)).get();
        let is_whole = |run: &Run| run.bytes.is_multiple_of(page) && (run.address() - self.base()).is_multiple_of(page);
        others.iter().chain([run]).all(is_whole)
    }

    /// Returns whether a run can belong to this range if no range is longer than `longest` bytes.
    fn takes(&self, run: &Run, longest: u64, policy: &PyTorch) -> bool {
        let known = self.known();
        let is_alike = !known.is_listed || !run.is_listed || known.key() == run.key();
        let is_near = may_be_one((self.base(), self.end()), (run.address(), run.end()), longest);
        is_alike && is_near && self.stream() == run.memory.stream.get() && self.is_whole_with(run, policy)
    }
}

/// Returns whether `low` and `high` may belong to one range, judging by the distance between the beginning of one and the end
/// of the other.
///
/// The memory of two ranges is separated by the addresses that the lower range never mapped. These are less than half of the
/// range only if it mapped more than half of the device's memory.
fn may_be_one(low: (u64, u64), high: (u64, u64), longest: u64) -> bool {
    high.0.saturating_sub(low.1) <= longest / 2 && high.1.saturating_sub(low.0) <= longest
}

/// Joins the runs of each range into one segment that covers it. `runs` must be in address order.
///
/// A recording does not state where a range begins; each range is assumed to begin at its lowest address in the recording.
fn join(runs: Vec<Run>, trace: &[Entry], policy: &PyTorch) -> Vec<AdoptedSegment> {
    let reach = TOTAL_MEMORY + TOTAL_MEMORY / 8;
    let longest = longest(&runs).unwrap_or(reach);
    let mut ranges: Vec<Range> = Vec::new();
    for run in runs {
        match ranges.last_mut().filter(|range| range.takes(&run, longest, policy)) {
            Some(range) => range.runs.push(run),
            None => ranges.push(Range { runs: vec![run] }),
        }
    }
    let classes = classes(&ranges, trace, policy);
    let bases = find_bases(&ranges, &classes, trace, policy, longest);
    let page = |class: PoolClass| policy.page(PoolSlot::default_pool(class));
    let ranges = ranges.into_iter().zip(bases).zip(classes);
    ranges.map(|((range, base), class)| cover(base, page(class), reach, class, range)).collect()
}

/// Returns an upper bound on the length of a range: the distance between two ranges that must be different, because their
/// streams, classes or pools differ. Returns `None` if no two such ranges are known.
fn longest(runs: &[Run]) -> Option<u64> {
    let mut firsts: BTreeMap<(u64, PoolClass, PoolId), u64> = BTreeMap::new();
    for run in runs.iter().filter(|run| run.is_listed) {
        firsts.entry(run.key()).or_insert(run.address());
    }
    let mut bases: Vec<u64> = firsts.into_values().collect();
    bases.sort_unstable();
    bases.windows(2).map(|pair| pair[1] - pair[0]).min()
}

/// Returns the class of each range: as listed, or as shown by its pages or by the requests that it serves. A run whose size
/// is not a whole number of large pages consists of small pages.
fn classes(ranges: &[Range], trace: &[Entry], policy: &PyTorch) -> Vec<PoolClass> {
    let class_of = |bytes: u64| policy.round(Bytes(bytes.max(1))).map(|size| policy.classify(size));
    let mut classes: Vec<Option<PoolClass>> = ranges.iter().map(|range| of_memory(range, policy, class_of)).collect();
    let mut unknown = classes.iter().filter(|class| class.is_none()).count();
    for entry in trace.iter().filter(|entry| entry.action == Action::Alloc) {
        if unknown == 0 {
            break;
        }
        let place = ranges.partition_point(|range| range.base() <= entry.address);
        let Some(place) = place.checked_sub(1).filter(|&place| classes[place].is_none() && entry.address < ranges[place].end())
        else {
            continue;
        };
        classes[place] = class_of(entry.size);
        unknown -= usize::from(classes[place].is_some());
    }
    classes.into_iter().map(|class| class.unwrap_or(PoolClass::Large)).collect()
}

/// Returns the class of a range, if its own memory reveals it.
fn of_memory(range: &Range, policy: &PyTorch, class_of: impl Fn(u64) -> Option<PoolClass>) -> Option<PoolClass> {
    let known = range.known();
    if known.is_listed {
        return Some(known.memory.class);
    }
    let page = policy.page(PoolSlot::default_pool(PoolClass::Large)).get();
    let is_whole = |run: &Run| run.bytes.is_multiple_of(page) && (run.address() - range.base()).is_multiple_of(page);
    if !range.runs.iter().all(is_whole) {
        return Some(PoolClass::Small);
    }
    let blocks = range.runs.iter().flat_map(|run| &run.memory.blocks);
    blocks
        .filter_map(|block| if let AdoptedContent::Allocated(bytes) = block.content { class_of(bytes.get()) } else { None })
        .next()
}

/// Returns the address at which each range begins.
///
/// A range grows upwards from its lowest address without gaps (spec 4.2). Memory that is mapped beyond the reach of all known
/// ranges therefore belongs to a new range or lies below the remaining memory of an old one. The request that the memory is
/// mapped for shows its class.
fn find_bases(ranges: &[Range], classes: &[PoolClass], trace: &[Entry], policy: &PyTorch, longest: u64) -> Vec<u64> {
    let known = |(place, range): (usize, &Range)| (range.base(), (range.end(), place));
    let mut reached: BTreeMap<u64, (u64, usize)> = ranges.iter().enumerate().map(known).collect();
    for (at, entry) in trace.iter().enumerate().filter(|(_, entry)| entry.action == Action::SegmentMap) {
        let end = entry.address.saturating_add(entry.size);
        if let Some((_, (reached, _))) = reached.range_mut(..=entry.address).next_back()
            && entry.address <= *reached
        {
            *reached = end.max(*reached);
            continue;
        }
        let Some((&first, &(its_end, place))) = reached.range(entry.address..).next() else { continue };
        let page = policy.page(PoolSlot::default_pool(classes[place])).get();
        let is_whole = (first - entry.address).is_multiple_of(page) && entry.size.is_multiple_of(page);
        let is_near = may_be_one((entry.address, end), (first, its_end), longest) && entry.stream == ranges[place].stream();
        if is_whole && is_near && class_of_request(&trace[at..], policy) == Some(classes[place]) {
            reached.remove(&first);
            reached.insert(entry.address, (its_end, place));
        }
    }
    let mut bases: Vec<u64> = ranges.iter().map(Range::base).collect();
    for (base, (_, place)) in reached {
        bases[place] = base;
    }
    bases
}

/// Returns the class of the first request among these entries.
fn class_of_request(entries: &[Entry], policy: &PyTorch) -> Option<PoolClass> {
    let request = entries.iter().find(|entry| matches!(entry.action, Action::Alloc | Action::Oom))?;
    policy.round(Bytes(request.size.max(1))).map(|size| policy.classify(size))
}

/// Returns one segment that starts at `base`, with unmapped blocks between its runs and after the last run.
fn cover(base: u64, page: Bytes, reach: u64, class: PoolClass, range: Range) -> AdoptedSegment {
    let (stream, pool) = (range.runs[0].memory.stream, range.known().memory.pool);
    let mut blocks: Vec<AdoptedBlock> = Vec::new();
    let mut at = base;
    let gap = |blocks: &mut Vec<AdoptedBlock>, bytes: u64| {
        if bytes > 0 {
            blocks.push(AdoptedBlock { size: Bytes(bytes), content: AdoptedContent::Unmapped });
        }
    };
    for run in range.runs {
        gap(&mut blocks, run.address() - at);
        at = run.end();
        blocks.extend(run.memory.blocks);
    }
    let end = base.saturating_add(reach.next_multiple_of(page.get()));
    gap(&mut blocks, end.saturating_sub(at) / page.get() * page.get());
    AdoptedSegment { address: DeviceAddress(base), stream, pool, class, page: Some(page), blocks }
}

#[cfg(test)]
mod tests {
    use parkade::settings::Settings;

    use super::*;

    const BASE: u64 = 1 << 40;
    /// A request in the large pool, and the size to which it is rounded.
    const REQUESTED: u64 = 4 * MIB + 100;
    const ROUNDED: u64 = 4 * MIB + BLOCK_SIZE;

    fn policy() -> PyTorch {
        PyTorch::new(Settings::default())
    }

    /// Cuts a segment of the large pool that begins with a block for [`REQUESTED`] bytes.
    fn cut_behind_block(total: u64, freed_at: Option<u32>, trace: &[Entry]) -> Extents {
        let (stream, pool) = (0, PoolId::DEFAULT);
        let segment = EarlySegment { address: BASE, total, stream, large: true, expandable: false, pool, is_listed: false };
        let block =
            EarlyBlock { address: BASE, requested: REQUESTED, size: None, is_pending: false, freed_at, completed_at: None };
        cut(&[segment], &[block], trace, &policy()).expect("the block fits")
    }

    fn sizes(extents: &Extents) -> Vec<u64> {
        extents.segments[0].blocks.iter().map(|block| block.size.get()).collect()
    }

    /// By the rules, a block is at most 1 MiB longer than its rounded request. For every length up to that one, the first
    /// allocation behind the block shows its end, if the block is in use at that time.
    #[test]
    fn an_allocation_shows_where_the_block_before_it_ends() {
        let total = 20 * MIB;
        for own in (0..=MIB + 2 * BLOCK_SIZE).step_by(BLOCK_SIZE as usize) {
            let free = Entry::new(Action::FreeRequested, BASE, REQUESTED, 0);
            let trace = [free, Entry::new(Action::Alloc, BASE + ROUNDED + own, 2 * MIB, 0), free];
            for freed_at in [None, Some(0), Some(2)] {
                let found = cut_behind_block(total, freed_at, &trace);
                let is_shown = own <= MIB && freed_at != Some(0);
                let end = if is_shown { ROUNDED + own } else { ROUNDED };
                assert_eq!(sizes(&found), [end, total - end], "{own} bytes, freed at {freed_at:?}");
                let assumed: Vec<u64> = found.assumed.iter().map(|assumed| assumed.gap - BASE).collect();
                assert_eq!(assumed, Vec::from_iter((!is_shown).then_some(ROUNDED)), "{own} bytes, freed at {freed_at:?}");
            }
        }
    }

    #[test]
    fn a_gap_of_at_most_1_mib_belongs_to_the_block_before_it() {
        for gap in (0..=MIB + 2 * BLOCK_SIZE).step_by(BLOCK_SIZE as usize) {
            let found = cut_behind_block(ROUNDED + gap, None, &[]);
            let expected = if gap <= MIB { vec![ROUNDED + gap] } else { vec![ROUNDED, gap] };
            assert_eq!((sizes(&found), found.assumed.len()), (expected, usize::from(gap > MIB)), "{gap} bytes");
        }
    }

    /// Compares with trying every length of the block, for requests that the core serves from the gap and the recorded
    /// allocator did not, one after another.
    #[test]
    fn the_smallest_length_is_assumed_that_makes_a_gap_too_small() {
        let lengths = || (BLOCK_SIZE..=MIB).step_by(BLOCK_SIZE as usize);
        for gap in [MIB + BLOCK_SIZE, MIB + 2 * BLOCK_SIZE, 3 * MIB / 2, 2 * MIB, 2 * MIB + BLOCK_SIZE] {
            let near = [0, BLOCK_SIZE, gap - MIB, gap - MIB / 2, gap];
            let requests: Vec<u64> = near
                .iter()
                .flat_map(|near| (0..5).filter_map(move |step| (near + step * BLOCK_SIZE).checked_sub(2 * BLOCK_SIZE)))
                .collect();
            for requests in requests.iter().flat_map(|&one| requests.iter().map(move |&other| [one, other])) {
                let mut extents = cut_behind_block(ROUNDED + gap, None, &[]);
                let mut own = 0;
                for request in requests.into_iter().filter(|&request| request > 0) {
                    let entry = Entry::new(Action::Alloc, BASE + ROUNDED + own, request, 0);
                    let found = extents.explain(0, &Decision::from(&entry), &policy());
                    let explains = |&longer: &u64| longer > own && longer < gap && gap - longer < request;
                    let expected = lengths().find(explains).filter(|_| request <= gap - own);
                    assert_eq!(found.map(|found| own + found.by), expected, "{request} of {gap} bytes, {own} known");
                    if let Some(smaller) = found {
                        extents.shrink(smaller);
                        own += smaller.by;
                    }
                }
                assert_eq!(sizes(&extents), [ROUNDED + own, gap - own]);
                assert_eq!(extents.inferred(), usize::from(own > 0));
            }
        }
    }

    #[test]
    fn only_a_block_in_use_makes_a_gap_smaller() {
        let extents = cut_behind_block(20 * MIB, Some(5), &[]);
        let decision = |action, address| Decision::from(&Entry::new(action, address, 16 * MIB - BLOCK_SIZE, 0));
        let served = decision(Action::Alloc, BASE + ROUNDED);
        let explained = [0, 4, 5, 6].map(|entry| extents.explain(entry, &served, &policy()).is_some());
        assert_eq!(explained, [true, true, false, false], "the block is freed at entry 5");
        let other = [decision(Action::SegmentAlloc, BASE + ROUNDED), decision(Action::Alloc, BASE + ROUNDED + BLOCK_SIZE)];
        assert!(other.iter().all(|decision| extents.explain(0, decision, &policy()).is_none()), "at another place");
    }

    /// Two runs may belong to one range if at most half of the longest range lies between them, and both fit into it.
    #[test]
    fn runs_of_one_range_are_near_each_other() {
        let longest = 8;
        for (low, gap, high) in (1..9).flat_map(|low| (0..9).flat_map(move |gap| (1..9).map(move |high| (low, gap, high)))) {
            let (start, end) = ((100, 100 + low), (100 + low + gap, 100 + low + gap + high));
            assert_eq!(may_be_one(start, end, longest), gap <= 4 && low + gap + high <= 8, "{low} {gap} {high}");
        }
    }

    /// One of two runs is listed and in the large pool. The other one belongs to the same range only if both consist of pages
    /// of that pool, counted from the lower one.
    #[test]
    fn runs_of_one_range_have_the_same_pages() {
        for (listed_first, bytes, offset) in [true, false].into_iter().flat_map(|listed_first| {
            (1..21).flat_map(move |size| (0..21).map(move |offset| (listed_first, 2 * size * MIB, 2 * offset * MIB)))
        }) {
            let run = |address, total, is_listed| {
                let (stream, large, expandable, pool) = (0, true, true, PoolId::DEFAULT);
                EarlySegment { address, total, stream, large, expandable, pool, is_listed }
            };
            let far = BASE + (1 << 36) / (20 * MIB) * (20 * MIB) + offset;
            let runs = if listed_first {
                [run(BASE, 40 * MIB, true), run(far, bytes, false)]
            } else {
                [run(BASE, bytes, false), run(far, 40 * MIB, true)]
            };
            let found = cut(&runs, &[], &[], &policy()).expect("the runs do not overlap").segments.len();
            let is_one = bytes.is_multiple_of(20 * MIB) && offset.is_multiple_of(20 * MIB);
            assert_eq!(found == 1, is_one, "{listed_first} {bytes} {offset}");
        }
    }
}
