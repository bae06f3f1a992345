//! The mapped runs of expandable segments, while a trace is walked backwards, and the segments they belong to.
//!
//! A recording lists an expandable segment as its mapped runs of addresses, and the trace maps and unmaps parts
//! of them. Adjacent runs of one stream and pool are one run.

use std::collections::BTreeMap;

use parkade::policy::{Policy, PyTorch};
use parkade::units::{Bytes, DeviceAddress, PoolClass, PoolId};
use parkade::{AdoptedBlock, AdoptedContent, AdoptedSegment, PoolSlot};
use parkade_recording::{Action, Entry};

use super::early::EarlySegment;

/// The device's memory that the core is told, in bytes: more than any GPU has, so that no reserved range runs out.
/// A recording does not say how much it really was.
pub(crate) const TOTAL_MEMORY: u64 = 1 << 39;

/// Runs by address.
#[derive(Clone, Debug, Default)]
pub(crate) struct Runs {
    by_address: BTreeMap<u64, EarlySegment>,
}

impl Runs {
    /// Adds a run; false if it overlaps one that is there.
    pub(crate) fn insert(&mut self, mut run: EarlySegment) -> bool {
        let Some(end) = run.address.checked_add(run.total) else { return false };
        let before = self.by_address.range(..end).next_back().map(|(_, &before)| before);
        if before.is_some_and(|before| before.address + before.total > run.address) {
            return false;
        }
        // The pool of a run that is unmapped within the trace is guessed from its
        // size; an adjacent run is more reliable.
        let stream = run.stream;
        let same = |other: &EarlySegment| other.stream == stream;
        if let Some(before) = before.filter(|before| before.address + before.total == run.address && same(before)) {
            self.by_address.remove(&before.address);
            run = EarlySegment { total: before.total + run.total, ..before };
        }
        if let Some(&after) = self.by_address.get(&end).filter(|after| same(after)) {
            self.by_address.remove(&end);
            run = EarlySegment { address: run.address, total: run.total + after.total, ..after };
        }
        self.by_address.insert(run.address, run);
        true
    }

    /// Removes memory; false if some of it is not there.
    pub(crate) fn remove(&mut self, address: u64, bytes: u64) -> bool {
        let Some(end) = address.checked_add(bytes) else { return false };
        let Some((_, &run)) = self.by_address.range(..=address).next_back() else { return false };
        let run_end = run.address + run.total;
        if bytes == 0 || run_end < end {
            return false;
        }
        self.by_address.remove(&run.address);
        if run.address < address {
            self.by_address.insert(run.address, EarlySegment { total: address - run.address, ..run });
        }
        if end < run_end {
            self.by_address.insert(end, EarlySegment { address: end, total: run_end - end, ..run });
        }
        true
    }

    /// All runs, in the order of their addresses.
    pub(crate) fn into_iter(self) -> impl Iterator<Item = EarlySegment> {
        self.by_address.into_values()
    }
}

/// What a range of addresses belongs to: stream, class and pool.
type Group = (u64, PoolClass, PoolId);

/// Joins the runs of each stream and pool, already cut into blocks, into one segment
/// that covers its whole reserved range.
///
/// A recording does not say where the range begins; it is assumed to begin at the lowest address in the recording.
pub(crate) fn join(runs: Vec<AdoptedSegment>, trace: &[Entry], policy: &PyTorch) -> Vec<AdoptedSegment> {
    let mut groups: BTreeMap<Group, Vec<AdoptedSegment>> = BTreeMap::new();
    for run in runs {
        groups.entry((run.stream.get(), run.class, run.pool)).or_default().push(run);
    }
    let reach = TOTAL_MEMORY + TOTAL_MEMORY / 8;
    let bases = find_bases(&groups, trace, policy, reach);
    let mut joined = Vec::new();
    for (base, group) in bases {
        let Some(runs) = groups.remove(&group) else { continue };
        let page = policy.page(PoolSlot::default_pool(group.1));
        joined.push(cover(base, page, reach, group.1, runs));
    }
    joined
}

/// Where the range of each group begins.
///
/// A range grows upwards from its lowest address without gaps (spec 4.2). So memory mapped where no known
/// range has reached belongs to a new range, or lies below what is left of an old one; the request that
/// it is for tells of which class it is.
fn find_bases(groups: &BTreeMap<Group, Vec<AdoptedSegment>>, trace: &[Entry], policy: &PyTorch, reach: u64) -> Vec<(u64, Group)> {
    let mut ranges: BTreeMap<u64, (u64, Group)> = BTreeMap::new();
    for (&group, runs) in groups {
        let end = runs.last().map_or(0, |run| run.address.get() + run.blocks.iter().map(|block| block.size.get()).sum::<u64>());
        ranges.insert(runs[0].address.get(), (end, group));
    }
    for (at, entry) in trace.iter().enumerate().filter(|(_, entry)| entry.action == Action::SegmentMap) {
        let end = entry.address.saturating_add(entry.size);
        if let Some((_, (reached, _))) = ranges.range_mut(..=entry.address).next_back()
            && entry.address <= *reached
        {
            *reached = end.max(*reached);
            continue;
        }
        let Some((&first, &(reached, group))) = ranges.range(entry.address..).next() else { continue };
        let page = policy.page(PoolSlot::default_pool(group.1)).get();
        let is_whole = (first - entry.address).is_multiple_of(page) && entry.size.is_multiple_of(page);
        let is_near = first - entry.address < reach && entry.stream == group.0;
        if is_whole && is_near && class_of_request(&trace[at..], policy) == Some(group.1) {
            ranges.remove(&first);
            ranges.insert(entry.address, (reached, group));
        }
    }
    ranges.into_iter().map(|(base, (_, group))| (base, group)).collect()
}

/// The class of the first request among these entries.
fn class_of_request(entries: &[Entry], policy: &PyTorch) -> Option<PoolClass> {
    let request = entries.iter().find(|entry| matches!(entry.action, Action::Alloc | Action::Oom))?;
    policy.round(Bytes(request.size.max(1))).map(|size| policy.classify(size))
}

/// One segment from `base` on, with unmapped blocks between its runs and after the last one.
fn cover(base: u64, page: Bytes, reach: u64, class: PoolClass, runs: Vec<AdoptedSegment>) -> AdoptedSegment {
    let (stream, pool) = (runs[0].stream, runs[0].pool);
    let mut blocks: Vec<AdoptedBlock> = Vec::new();
    let mut at = base;
    let gap = |blocks: &mut Vec<AdoptedBlock>, bytes: u64| {
        if bytes > 0 {
            blocks.push(AdoptedBlock { size: Bytes(bytes), content: AdoptedContent::Unmapped });
        }
    };
    for run in runs {
        gap(&mut blocks, run.address.get() - at);
        at = run.address.get() + run.blocks.iter().map(|block| block.size.get()).sum::<u64>();
        blocks.extend(run.blocks);
    }
    let end = base.saturating_add(reach.next_multiple_of(page.get()));
    gap(&mut blocks, end.saturating_sub(at) / page.get() * page.get());
    AdoptedSegment { address: DeviceAddress(base), stream, pool, class, page: Some(page), blocks }
}
