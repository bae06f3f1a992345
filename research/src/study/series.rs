//! The state of the heap over the course of a run, at a bounded number of points that include every peak.
//!
//! The workload is run twice. The first run finds the events at which memory peaks, from the statistics alone; the second one
//! describes the heap at these events. The time of the first run does not depend on the number of points, and each point costs
//! one pass over the heap.

use std::collections::BTreeMap;

use parkade::snapshot::{BlockActivity, SegmentInfo};
use parkade::stats::Family;
use parkade_policies::Named;

use super::free_list::FreeList;
use super::run::{Moment, Outcome, RunOptions, level, make_for, watch};
use crate::workload::Workload;

/// Parts of a run, if the caller does not set their length. Each part has at most two points: its peak of reserved bytes and
/// its peak of allocated bytes.
const PARTS: usize = 500;

/// The heap over the course of a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Series {
    /// The points, by event.
    pub points: Vec<Point>,
    /// How the run went.
    pub outcome: Outcome,
}

/// The heap after an event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Point {
    /// The event's number, from 0.
    pub event: usize,
    /// All of the heap.
    pub all: Share,
    /// The heap by free list.
    pub parts: BTreeMap<FreeList, Share>,
}

/// The heap, or the segments of one free list.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Share {
    /// Bytes of live buffers, as requested.
    pub live_bytes: u64,
    /// Bytes of the blocks that hold them.
    pub allocated_bytes: u64,
    /// Bytes of blocks that were freed while other streams still use them.
    pub pending_bytes: u64,
    /// Bytes taken from the device.
    pub reserved_bytes: u64,
    /// The part of the reserved bytes that is mapped into expandable segments.
    pub mapped_bytes: u64,
    /// The largest free block.
    pub largest_hole_bytes: u64,
    /// The number of free blocks.
    pub holes: u64,
}

impl Share {
    fn add(&mut self, segment: &SegmentInfo) {
        self.reserved_bytes += segment.total.get();
        self.mapped_bytes += if segment.expandable { segment.total.get() } else { 0 };
        for block in &segment.blocks {
            let bytes = block.size.get();
            match block.state {
                BlockActivity::Allocated => {
                    self.live_bytes += block.requested.get();
                    self.allocated_bytes += bytes;
                }
                BlockActivity::PendingFree => self.pending_bytes += bytes,
                BlockActivity::Inactive => {
                    self.largest_hole_bytes = self.largest_hole_bytes.max(bytes);
                    self.holes += 1;
                }
            }
        }
    }
}

impl Point {
    fn of(moment: &Moment<'_>) -> Point {
        let mut point = Point { event: moment.event, all: Share::default(), parts: BTreeMap::new() };
        for segment in moment.segments() {
            point.all.add(&segment);
            point.parts.entry(FreeList::of(&segment)).or_default().add(&segment);
        }
        point
    }
}

/// Runs a workload under a policy and describes the heap after some of the events: in each part of `step` events, after the
/// one with the most reserved and the one with the most allocated bytes, and after the last. With a step of 1, these are all
/// events. `None` divides the run into 500 parts.
#[must_use]
pub fn series(workload: &Workload, policy: &Named, options: &RunOptions, step: Option<usize>) -> Series {
    let make = make_for(policy, workload);
    let step = step.unwrap_or(workload.events.len().div_ceil(PARTS)).max(1);
    let mut peaks = Peaks { step, events: Vec::new(), part: None };
    watch(workload, make(), options, |moment| peaks.pass(moment));
    let events = peaks.finish();
    let mut points = Vec::with_capacity(events.len());
    let outcome = watch(workload, make(), options, |moment| {
        if events.get(points.len()) == Some(&moment.event) {
            points.push(Point::of(moment));
        }
    });
    Series { points, outcome }
}

/// Finds the events to describe.
struct Peaks {
    step: usize,
    events: Vec<usize>,
    part: Option<Part>,
}

/// The current part of the run.
struct Part {
    number: usize,
    /// The most reserved bytes, and the event.
    reserved: (u64, usize),
    /// The most allocated bytes, and the event.
    allocated: (u64, usize),
    last: usize,
}

impl Peaks {
    fn pass(&mut self, moment: &Moment<'_>) {
        let (event, stats) = (moment.event, moment.stats());
        let (reserved, allocated) = (level(stats, Family::ReservedBytes), level(stats, Family::AllocatedBytes));
        let number = event / self.step;
        match &mut self.part {
            Some(part) if part.number == number => {
                part.last = event;
                // The first of several equal peaks is kept.
                if reserved > part.reserved.0 {
                    part.reserved = (reserved, event);
                }
                if allocated > part.allocated.0 {
                    part.allocated = (allocated, event);
                }
            }
            part => {
                let before =
                    part.replace(Part { number, reserved: (reserved, event), allocated: (allocated, event), last: event });
                self.events.extend(before.into_iter().flat_map(|part| [part.reserved.1, part.allocated.1]));
            }
        }
    }

    fn finish(mut self) -> Vec<usize> {
        self.events.extend(self.part.into_iter().flat_map(|part| [part.reserved.1, part.allocated.1, part.last]));
        self.events.sort_unstable();
        self.events.dedup();
        self.events
    }
}

#[cfg(test)]
mod tests {
    use parkade::units::PoolClass;
    use parkade_policies::{CATALOGUE, named};
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::workload::{Event, parse};

    const MIB: u64 = 1 << 20;

    fn allocate(buffer: u32, mib: u64, stream: u16) -> Event {
        Event::Allocate { buffer, bytes: mib * MIB, stream }
    }

    #[test]
    fn free_lists_add_up_to_the_heap() {
        let free = |buffer| Event::Free { buffer };
        let events = vec![
            allocate(0, 60, 0),
            allocate(1, 40, 1),
            Event::BeginPool { pool: 3 },
            allocate(2, 30, 0),
            Event::EndPool { pool: 3 },
            free(0),
            allocate(3, 20, 0),
            Event::Allocate { buffer: 4, bytes: 1024, stream: 0 },
        ];
        let workload = Workload { name: "parts".into(), events, ..Workload::default() };
        let found = series(&workload, &named("pytorch").expect("a policy"), &RunOptions::plenty(), Some(1));
        assert_eq!(found.points.iter().map(|point| point.event).collect::<Vec<_>>(), (0..8).collect::<Vec<_>>());
        let last = &found.points[7];
        let list = |pool, collection, stream| FreeList { pool, collection, stream };
        let (small, large) = (PoolClass::Small, PoolClass::Large);
        let lists = [list(0, small, 0), list(0, large, 0), list(0, large, 1), list(3, large, 0)];
        assert_eq!(last.parts.keys().copied().collect::<Vec<_>>(), lists);
        assert_eq!((last.all.live_bytes, last.all.reserved_bytes), (90 * MIB + 1024, 132 * MIB));
        assert_eq!((last.all.largest_hole_bytes, last.all.holes, last.all.mapped_bytes), (40 * MIB, 2, 0));
        assert_eq!((last.parts[&lists[0]].reserved_bytes, last.parts[&lists[2]].reserved_bytes), (2 * MIB, 40 * MIB));
        let sum: u64 = last.parts.values().map(|part| part.reserved_bytes).sum();
        assert_eq!(sum, last.all.reserved_bytes);
    }

    #[test]
    fn a_part_has_its_two_peaks_and_the_run_its_last_event() {
        let free = |buffer| Event::Free { buffer };
        // After event 3, 100 MiB are reserved and 80 allocated; after event 4, 100 are allocated; then everything is released.
        let first = [allocate(0, 60, 0), free(0), allocate(1, 40, 0), allocate(2, 40, 0), allocate(3, 20, 0)];
        let events = [&first[..], &[free(1), free(2), free(3), Event::EmptyCache, allocate(4, 2, 0), free(4)]].concat();
        let workload = Workload { name: "peaks".into(), events, ..Workload::default() };
        let found = series(&workload, &named("pytorch").expect("a policy"), &RunOptions::plenty(), Some(100));
        let points: Vec<_> = found.points.iter().map(|point| (point.event, point.all.reserved_bytes / MIB)).collect();
        assert_eq!(points[..2], [(3, 100), (4, 100)]);
        assert_eq!((points.len(), points[2].0), (3, 10), "{points:?}");
    }

    #[test]
    fn few_points_keep_every_peak_of_every_policy() {
        let workload = parse("mlp:depth=4,batch=8,steps=4").expect("a workload");
        for policy in CATALOGUE {
            let options = RunOptions::new(1 << 34);
            let found = series(&workload, policy, &options, Some(workload.events.len() / 5));
            let most = |bytes: fn(&Share) -> u64| found.points.iter().map(|point| bytes(&point.all)).max().unwrap_or(0);
            assert!(found.points.len() <= 13, "{}: {}", policy.name, found.points.len());
            assert_eq!(most(|share| share.reserved_bytes), found.outcome.peak_reserved_bytes, "{}", policy.name);
            assert_eq!(most(|share| share.allocated_bytes), found.outcome.peak_allocated_bytes, "{}", policy.name);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        /// Compares with the points after all events.
        #[test]
        fn a_series_has_the_first_peaks_of_each_part(steps in vec((any::<bool>(), 0..16_usize), 1..24), step in 1..9_usize) {
            let (mut events, mut live, mut count) = (Vec::new(), Vec::new(), 0);
            for (allocates, number) in steps {
                if allocates || live.is_empty() {
                    events.push(allocate(count, [1, 3, 12, 20][number % 4], (number / 8) as u16));
                    live.push(count);
                    count += 1;
                } else if number == 0 {
                    events.push(Event::EmptyCache);
                } else {
                    events.push(Event::Free { buffer: live.remove(number % live.len()) });
                }
            }
            let workload = Workload { name: "drawn".into(), events, ..Workload::default() };
            let policy = named("pytorch").expect("a policy");
            // Some of the programs run out of memory, which ends them.
            let options = RunOptions::new(64 * MIB);
            let all = series(&workload, &policy, &options, Some(1)).points;
            let first = |part: &[Point], bytes: &dyn Fn(&Point) -> u64| {
                part.iter().find(|point| part.iter().all(|other| bytes(other) <= bytes(point))).map(|point| point.event)
            };
            let parts = all.chunk_by(|one, other| one.event / step == other.event / step);
            let mut expected: Vec<usize> = parts
                .flat_map(|part| {
                    [first(part, &|point| point.all.reserved_bytes), first(part, &|point| point.all.allocated_bytes)]
                })
                .chain([all.last().map(|point| point.event)])
                .flatten()
                .collect();
            expected.sort_unstable();
            expected.dedup();
            let found = series(&workload, &policy, &options, Some(step)).points;
            prop_assert_eq!(found.iter().map(|point| point.event).collect::<Vec<_>>(), expected);
            prop_assert!(found.iter().all(|point| all.contains(point)));
        }
    }
}
