//! Summarizes one side: its peaks, how memory is used at them, and its driver calls. Also checks the peak of reserved memory
//! against a bound, so that CI can fail.

use parkade_recording::{Action, Entry};

use super::side::{Part, Phase, Replayed};
use crate::ending::Ending;
use crate::fragmentation::Fragmentation;
use crate::timeline::{HeapLog, MarkerKind};

/// A peak and its position in the run.
#[derive(Clone, PartialEq, Debug)]
pub struct Peak {
    /// The highest value.
    pub bytes: u64,
    /// The entry that reached it; `None` if it was reached before the first entry, or if there is no trace.
    pub entry: Option<usize>,
    /// The step that contains it, if steps are known.
    pub step: Option<usize>,
    /// The phase that contains it, if phases are known.
    pub phase: Option<Phase>,
    /// How memory is used at the peak.
    pub heap: Fragmentation,
    /// The number of segments at the peak; a run of mapped pages counts as one.
    pub segments: usize,
    /// The moment, as the number of entries completed.
    pub(super) moment: u32,
}

/// The driver calls of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DriverUse {
    /// Segments released.
    pub segments_taken: u64,
    /// The number of segments released.
    pub segments_given_back: u64,
    /// The number of times that pages were mapped into expandable segments.
    pub maps: u64,
    /// The number of times that those pages were unmapped.
    pub unmaps: u64,
    /// The total number of bytes taken or mapped.
    pub taken_bytes: u64,
    /// The total number of bytes released or unmapped.
    pub given_back_bytes: u64,
}

/// The summary of one side.
#[derive(Clone, PartialEq, Debug)]
pub struct Run {
    /// The device's number.
    pub device: u32,
    /// The number of entries of its trace.
    pub entries: usize,
    /// The part of the run that the other fields describe.
    pub part: Part,
    /// The first entry of this part, and the one after its last.
    pub part_entries: (usize, usize),
    /// The number of recorded decisions that the replay does not reproduce. If there are any, allocated bytes may be slightly
    /// wrong, but reserved bytes are right.
    pub mismatches: u64,
    /// The number of decisions compared.
    pub decisions: u64,
    /// Bytes reserved before the first entry, if memory was in use then: the file would not show an earlier, higher peak.
    pub lost_beginning_bytes: Option<u64>,
    /// The number of requests that ran out of memory.
    pub ooms: u64,
    /// The entry of the first of these requests.
    pub first_oom_entry: Option<usize>,
    /// How the recorded run ended.
    pub ending: Ending,
    /// The number of times that the device refused memory and the allocator then released its cache and retried.
    pub retries: u64,
    /// The number of calls to `empty_cache` that released memory.
    pub empty_cache_calls: u64,
    /// The number of complete steps in the trace, if steps are known.
    pub steps: Option<usize>,
    /// The peak of live bytes.
    pub peak_allocated: Peak,
    /// The peak of reserved bytes.
    pub peak_reserved: Peak,
    /// The peak of reserved bytes in the entire file, regardless of which part is compared.
    pub whole_peak_reserved_bytes: u64,
    /// The driver calls.
    pub driver: DriverUse,
}

impl Run {
    /// Summarizes a side.
    pub(super) fn of(replayed: &Replayed<'_>) -> Run {
        let (side, timeline, requests) = (replayed.side, &replayed.timeline, &replayed.requests);
        let within = replayed.entries();
        let trace = side.device.trace.get(within.clone()).unwrap_or(&[]);
        let markers = |kind| {
            let here = |moment: u32| within.contains(&(moment as usize));
            timeline.markers.iter().filter(|marker| marker.kind == kind && here(marker.moment)).count() as u64
        };
        let mut driver = DriverUse::default();
        trace.iter().for_each(|entry| driver.add(entry));
        let first_oom = trace.iter().position(|entry| entry.action == Action::Oom);
        Run {
            device: side.device.device,
            entries: timeline.entries,
            part: side.part,
            part_entries: (within.start, within.end),
            mismatches: requests.mismatches,
            decisions: requests.decisions,
            lost_beginning_bytes: requests.lost_beginning.map(|lost| lost.reserved_bytes),
            ooms: trace.iter().filter(|entry| entry.action == Action::Oom).count() as u64,
            first_oom_entry: first_oom.map(|place| within.start + place),
            ending: Ending::of(side.device),
            retries: markers(MarkerKind::Retry),
            empty_cache_calls: markers(MarkerKind::EmptyCache),
            steps: replayed.steps.as_ref().ok().map(|steps| steps.spans.len()),
            peak_allocated: peak(replayed, first_highest(&timeline.levels.allocated, replayed)),
            peak_reserved: peak(replayed, served(replayed, first_highest(&timeline.levels.reserved, replayed))),
            whole_peak_reserved_bytes: timeline.levels.reserved.iter().copied().max().unwrap_or(0),
            driver,
        }
    }
}

impl DriverUse {
    fn add(&mut self, entry: &Entry) {
        let (calls, bytes) = match entry.action {
            Action::SegmentAlloc => (&mut self.segments_taken, &mut self.taken_bytes),
            Action::SegmentMap => (&mut self.maps, &mut self.taken_bytes),
            Action::SegmentFree => (&mut self.segments_given_back, &mut self.given_back_bytes),
            Action::SegmentUnmap => (&mut self.unmaps, &mut self.given_back_bytes),
            _ => return,
        };
        *calls += 1;
        *bytes = bytes.saturating_add(entry.size);
    }
}

/// The first of the compared moments with the highest level, and that level.
fn first_highest(level: &[u64], replayed: &Replayed<'_>) -> (u32, u64) {
    let part = level.get(replayed.from as usize..=replayed.to as usize).unwrap_or(&[]);
    let highest = part.iter().copied().max().unwrap_or(0);
    let place = part.iter().position(|&bytes| bytes == highest).unwrap_or(0);
    (replayed.from + place as u32, highest)
}

/// A segment is reserved one entry before its first block is handed out; use the heap after that entry.
fn served(replayed: &Replayed<'_>, (moment, bytes): (u32, u64)) -> (u32, u64) {
    let takes = |entry: &&Entry| matches!(entry.action, Action::SegmentAlloc | Action::SegmentMap);
    let following = replayed.side.device.trace.get(moment as usize..replayed.to as usize).unwrap_or(&[]);
    let more = following.iter().take_while(takes).count();
    let is_handed_out = following.get(more).is_some_and(|entry| entry.action == Action::Alloc);
    let after = moment + more as u32 + 1;
    let is_same = replayed.timeline.levels.reserved.get(after as usize) == Some(&bytes);
    (if is_handed_out && is_same { after } else { moment }, bytes)
}

fn peak(replayed: &Replayed<'_>, (moment, bytes): (u32, u64)) -> Peak {
    let (heap, segments) = heap_at(&replayed.timeline.log, moment);
    Peak {
        bytes,
        entry: moment.checked_sub(1).map(|entry| entry as usize),
        step: replayed.steps.as_ref().ok().and_then(|steps| steps.at(moment)).map(|span| span.number),
        phase: replayed.phases.at(moment),
        heap,
        segments,
        moment,
    }
}

/// The fragmentation and the number of segments at a moment. Everything between the blocks in use counts as free.
fn heap_at(log: &HeapLog, moment: u32) -> (Fragmentation, usize) {
    let segments = log.at(moment);
    let mut sums = Fragmentation::default();
    for segment in &segments {
        let (mut free_bytes, mut from) = (0_u64, segment.address);
        let end = segment.address.saturating_add(segment.size);
        let blocks = segment.blocks.iter().map(|block| (block.address, block.address.saturating_add(block.size)));
        for (address, block_end) in blocks.chain([(end, end)]) {
            let hole = address.saturating_sub(from);
            if hole > 0 {
                free_bytes = free_bytes.saturating_add(hole);
                sums.largest_hole_bytes = sums.largest_hole_bytes.max(hole);
                sums.holes += 1;
            }
            from = from.max(block_end);
        }
        for block in &segment.blocks {
            let place = if block.is_pending { &mut sums.pending_bytes } else { &mut sums.allocated_bytes };
            *place = place.saturating_add(block.size);
            let requested = log.blocks.get(block.place).map_or(block.size, |life| life.requested);
            sums.requested_bytes = sums.requested_bytes.saturating_add(requested);
        }
        sums.reserved_bytes = sums.reserved_bytes.saturating_add(segment.size);
        sums.free_bytes = sums.free_bytes.saturating_add(free_bytes);
        let place = if segment.blocks.is_empty() { &mut sums.free_segments_bytes } else { &mut sums.partial_segments_bytes };
        *place = place.saturating_add(free_bytes);
    }
    (sums, segments.len())
}

/// 100 % in millionths of a percent. Integers keep a check exact.
const MICRO_PERCENT: u128 = 100_000_000;

/// A bound on the peak of reserved memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bound {
    /// The peak may grow from the first run to the second by this many millionths of a percent.
    Growth {
        /// Millionths of a percent: 2 % is 2,000,000.
        micro_percent: u64,
    },
    /// The peak may be at most this many bytes.
    Peak {
        /// The bytes.
        bytes: u64,
    },
}

parkade_recording::names! {
    Bound {
        Bound::Growth { .. } => "growth",
        Bound::Peak { .. } => "peak",
    }
}

/// The result of checking a bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Check {
    /// The bound.
    pub bound: Bound,
    /// The largest number of bytes that the bound allows here.
    pub allowed_bytes: u64,
    /// The peak of reserved memory.
    pub peak_bytes: u64,
}

impl Bound {
    /// Checks the peak of a run; `before_bytes` is the peak of the run before it. Returns `None` if growth is bounded and
    /// there was no earlier run.
    #[must_use]
    pub fn check(self, before_bytes: Option<u64>, peak_bytes: u64) -> Option<Check> {
        let allowed_bytes = match self {
            Bound::Peak { bytes } => bytes,
            Bound::Growth { micro_percent } => {
                let before_bytes = u128::from(before_bytes?);
                let more = before_bytes.saturating_mul(u128::from(micro_percent)) / MICRO_PERCENT;
                u64::try_from(before_bytes.saturating_add(more)).unwrap_or(u64::MAX)
            }
        };
        Some(Check { bound: self, allowed_bytes, peak_bytes })
    }
}

impl Check {
    /// Whether the peak is above the bound.
    #[must_use]
    pub fn is_exceeded(&self) -> bool {
        self.peak_bytes > self.allowed_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_exact() {
        let two = Bound::Growth { micro_percent: 2_000_000 };
        let exceeded = |bound: Bound, before, peak| bound.check(before, peak).map(|check| check.is_exceeded());
        assert_eq!(exceeded(two, Some(100), 102), Some(false));
        assert_eq!(exceeded(two, Some(100), 103), Some(true));
        assert_eq!(exceeded(two, Some(0), 1), Some(true));
        assert_eq!(exceeded(two, Some(1 << 50), (1 << 50) / 100 * 90), Some(false));
        assert_eq!(exceeded(two, Some(u64::MAX), u64::MAX), Some(false));
        assert_eq!(exceeded(two, None, 5), None);
        let size = Bound::Peak { bytes: 14 << 30 };
        assert_eq!(exceeded(size, None, 14 << 30), Some(false));
        assert_eq!(exceeded(size, Some(1), (14 << 30) + 1), Some(true));
    }
}
