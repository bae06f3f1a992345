//! Records a run: the allocator's entries, event by event, as PyTorch's memory history would contain them.

use std::mem;

use parkade::policy::Policy;
use parkade::snapshot::SegmentInfo;
use parkade::stats::{Family, Stats};
use parkade::trace::TraceEntry;

use super::run::{Outcome, Run, RunOptions, level};
use crate::workload::{Event, Workload};

/// A recorded run.
#[derive(Clone, Debug)]
pub struct RecordedRun {
    /// How it went.
    pub outcome: Outcome,
    /// The allocator's entries, in order.
    pub entries: Vec<TraceEntry>,
    /// The events that were carried out, and the one that failed if the run ended early.
    pub events: Vec<RecordedEvent>,
    /// The segments at the end.
    pub segments: Vec<SegmentInfo>,
    /// The allocator's statistics at the end.
    pub stats: Stats,
}

/// The effects of an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordedEvent {
    /// The event.
    pub event: Event,
    /// The number of entries up to the event's end.
    pub entries: usize,
    /// The bytes of allocated blocks after it.
    pub allocated_bytes: u64,
    /// Whether the allocator released its entire cache and asked the device again.
    pub is_retried: bool,
}

/// Runs a workload under a policy and records the run.
#[must_use]
pub fn record(workload: &Workload, policy: Box<dyn Policy + Send>, options: &RunOptions) -> RecordedRun {
    let (mut events, mut retries) = (Vec::with_capacity(workload.events.len()), 0);
    let (outcome, mut end) = Run::new(policy, options, Vec::new()).through(workload, options, |run, event, _| {
        let stats = run.core.stats();
        let retried = mem::replace(&mut retries, stats.num_alloc_retries);
        events.push(RecordedEvent {
            event: workload.events[event],
            entries: run.core.observer().len(),
            allocated_bytes: level(stats, Family::AllocatedBytes),
            is_retried: retries > retried,
        });
    });
    let entries = mem::take(end.core.observer_mut());
    RecordedRun { outcome, entries, events, segments: end.core.segments(), stats: end.core.stats().clone() }
}

#[cfg(test)]
mod tests {
    use parkade::trace::TraceAction;
    use parkade_policies::{CATALOGUE, named};

    use super::*;
    use crate::study::{Ending, make_for, run};
    use crate::workload::parse;

    const MIB: u64 = 1 << 20;

    fn allocate(buffer: u32, mib: u64) -> Event {
        Event::Allocate { buffer, bytes: mib * MIB, stream: 0 }
    }

    #[test]
    fn the_failing_event_is_recorded_with_its_error() {
        let events = vec![allocate(0, 60), allocate(1, 40), Event::Free { buffer: 0 }, allocate(2, 30), allocate(3, 60)];
        let workload = Workload { name: "hole".into(), events, ..Workload::default() };
        let policy = named("pytorch").expect("a policy");
        let recorded = record(&workload, policy.make(), &RunOptions::new(140 * MIB));
        assert_eq!((&recorded.outcome.ending, recorded.events.len()), (&Ending::OutOfMemory, 5));
        let of_last = &recorded.entries[recorded.events[3].entries..];
        assert!(of_last.iter().any(|entry| entry.action == TraceAction::Oom), "{of_last:?}");
        let retried: Vec<bool> = recorded.events.iter().map(|event| event.is_retried).collect();
        assert_eq!(retried, [false, false, false, false, true]);
        assert_eq!((recorded.events[4].allocated_bytes, recorded.stats.num_ooms), (70 * MIB, 1));
        assert_eq!(recorded.segments.len(), 2, "the heap at the end of the run");
    }

    #[test]
    fn a_recorded_run_is_the_same_run_under_every_policy() {
        let workload = parse("mlp:depth=4,batch=8,steps=4").expect("a workload");
        for policy in CATALOGUE {
            let make = make_for(policy, &workload);
            let options = RunOptions::new(1 << 34);
            let recorded = record(&workload, make(), &options);
            assert_eq!(recorded.outcome, run(&workload, make(), &options), "{}", policy.name);
            let reserved: u64 = recorded.segments.iter().map(|segment| segment.total.get()).sum();
            let said = recorded.stats.family(Family::ReservedBytes).all.current;
            assert!(i64::try_from(reserved).is_ok_and(|reserved| reserved == said), "{}: {reserved} {said}", policy.name);
        }
    }
}
