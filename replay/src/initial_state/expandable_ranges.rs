//! Finds the mapped runs that belong to one expandable segment, that is, to one reserved range of addresses.
//!
//! A recording lists an expandable segment as its runs. If a segment was gone by the end, only the trace shows it, so neither
//! its pool nor its class is known. Ranges lie far apart, however: a range is 9/8 as long as the device's memory (spec 4.1)
//! and is mapped starting from its lowest address (spec 4.2).

use std::collections::BTreeMap;

use parkade::policy::{Policy, PyTorch};
use parkade::units::{Bytes, DeviceAddress, PoolClass, PoolId};
use parkade::{AdoptedBlock, AdoptedContent, AdoptedSegment, PoolSlot};
use parkade_recording::{Action, Entry};

/// The total memory that the device reports to the core, in bytes: more than any GPU has, so that no reserved range runs out.
/// A recording does not contain the actual amount.
pub(crate) const TOTAL_MEMORY: u64 = 1 << 39;

/// A mapped run, already cut into blocks.
pub(crate) struct Run {
    pub(crate) memory: AdoptedSegment,
    /// The length of the run in bytes.
    pub(crate) bytes: u64,
    /// Whether the recording lists the run, so that its class and pool are known.
    pub(crate) is_listed: bool,
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

    /// A run that the recording lists, or the first run if it lists none.
    fn known(&self) -> &Run {
        self.runs.iter().find(|run| run.is_listed).unwrap_or(&self.runs[0])
    }

    /// Whether a run can belong to this range if no range is longer than `longest` bytes.
    fn takes(&self, run: &Run, longest: u64) -> bool {
        let known = self.known();
        let is_alike = !known.is_listed || !run.is_listed || known.key() == run.key();
        let is_near = may_be_one((self.base(), self.end()), (run.address(), run.end()), longest);
        is_alike && is_near && self.stream() == run.memory.stream.get()
    }
}

/// Whether `low` and `high` may belong to one range, judging by the distance between the beginning of one and the end of the
/// other.
///
/// The memory of two ranges is separated by the addresses that the lower range never mapped. These are less than half of the
/// range only if it mapped more than half of the device's memory.
fn may_be_one(low: (u64, u64), high: (u64, u64), longest: u64) -> bool {
    high.0.saturating_sub(low.1) <= longest / 2 && high.1.saturating_sub(low.0) <= longest
}

/// Joins the runs of each range into one segment that covers it. `runs` must be in address order.
///
/// A recording does not state where a range begins; each range is assumed to begin at its lowest address in the recording.
pub(crate) fn join(runs: Vec<Run>, trace: &[Entry], policy: &PyTorch) -> Vec<AdoptedSegment> {
    let reach = TOTAL_MEMORY + TOTAL_MEMORY / 8;
    let longest = longest(&runs).unwrap_or(reach);
    let mut ranges: Vec<Range> = Vec::new();
    for run in runs {
        match ranges.last_mut().filter(|range| range.takes(&run, longest)) {
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

/// An upper bound on the length of a range: the distance between two ranges that must be different, because their
/// streams, classes or pools differ. `None` if no two such ranges are known.
fn longest(runs: &[Run]) -> Option<u64> {
    let mut firsts: BTreeMap<(u64, PoolClass, PoolId), u64> = BTreeMap::new();
    for run in runs.iter().filter(|run| run.is_listed) {
        firsts.entry(run.key()).or_insert(run.address());
    }
    let mut bases: Vec<u64> = firsts.into_values().collect();
    bases.sort_unstable();
    bases.windows(2).map(|pair| pair[1] - pair[0]).min()
}

/// The class of each range: as listed, or as shown by its pages or by the requests that it serves. A run whose size is not a
/// whole number of large pages consists of small pages.
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

/// The class of a range, if its own memory reveals it.
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

/// The address at which each range begins.
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

/// The class of the first request among these entries.
fn class_of_request(entries: &[Entry], policy: &PyTorch) -> Option<PoolClass> {
    let request = entries.iter().find(|entry| matches!(entry.action, Action::Alloc | Action::Oom))?;
    policy.round(Bytes(request.size.max(1))).map(|size| policy.classify(size))
}

/// One segment that starts at `base`, with unmapped blocks between its runs and after the last run.
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
