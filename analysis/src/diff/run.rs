//! What one side shows: its peaks, how memory is used at them, and what the driver was asked for.

use parkade_recording::{Action, Entry};

use super::heap::heap_at;
use super::phases::Phase;
use super::side::{Part, Replayed};
use crate::ending::Ending;
use crate::fragmentation::Fragmentation;
use crate::timeline::MarkerKind;

/// A peak, and where it is.
#[derive(Clone, PartialEq, Debug)]
pub struct Peak {
    /// The highest value.
    pub bytes: u64,
    /// The entry that brought it there; `None` if that was before the first entry, or there is no trace.
    pub entry: Option<usize>,
    /// The step in which it lies, where steps are known.
    pub step: Option<usize>,
    /// The phase in which it lies, where phases are known.
    pub phase: Option<Phase>,
    /// How memory is used then.
    pub heap: Fragmentation,
    /// How many segments there are then; a run of mapped pages counts as one.
    pub segments: usize,
    /// The moment, a number of entries that are done.
    pub(super) moment: u32,
}

/// What the driver was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DriverUse {
    /// Segments taken, one `cudaMalloc` each.
    pub segments_taken: u64,
    /// Segments given back.
    pub segments_given_back: u64,
    /// Times that pages of expandable segments were mapped.
    pub maps: u64,
    /// Times that such pages were unmapped.
    pub unmaps: u64,
    /// Bytes taken and mapped together.
    pub taken_bytes: u64,
    /// Bytes given back and unmapped together.
    pub given_back_bytes: u64,
}

/// What one side shows.
#[derive(Clone, PartialEq, Debug)]
pub struct Run {
    /// The device's number.
    pub device: u32,
    /// The entries of its trace.
    pub entries: usize,
    /// What part of the run the rest is about.
    pub part: Part,
    /// The first entry of this part, and the one behind its last.
    pub part_entries: (usize, usize),
    /// Recorded decisions that the replay does not reproduce. If any, allocated bytes may be slightly off; reserved bytes are not.
    pub mismatches: u64,
    /// The decisions that were compared.
    pub decisions: u64,
    /// Bytes reserved before the first entry, if memory was in use then: an earlier, higher peak is not in the file.
    pub lost_beginning_bytes: Option<u64>,
    /// Requests that were out of memory, and the entry of the first.
    pub ooms: u64,
    /// The entry of the first of them.
    pub first_oom_entry: Option<usize>,
    /// How the recorded run ended.
    pub ending: Ending,
    /// Times that the device refused memory, so that the cache was released and it was asked again.
    pub retries: u64,
    /// Calls of `empty_cache` that released something.
    pub empty_cache_calls: u64,
    /// How many whole steps the trace has, where steps are known.
    pub steps: Option<usize>,
    /// The most bytes of live blocks.
    pub peak_allocated: Peak,
    /// The most reserved bytes.
    pub peak_reserved: Peak,
    /// The most reserved bytes in all that the file has, whatever part is looked at.
    pub whole_peak_reserved_bytes: u64,
    /// What the driver was asked for.
    pub driver: DriverUse,
}

impl Run {
    /// Sums up a side.
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

/// The first of the moments looked at with the highest level, and that level.
fn first_highest(level: &[u64], replayed: &Replayed<'_>) -> (u32, u64) {
    let part = level.get(replayed.from as usize..=replayed.to as usize).unwrap_or(&[]);
    let highest = part.iter().copied().max().unwrap_or(0);
    let place = part.iter().position(|&bytes| bytes == highest).unwrap_or(0);
    (replayed.from + place as u32, highest)
}

/// A segment is reserved one entry before its first block is handed out; the heap to look at is the one after that.
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
