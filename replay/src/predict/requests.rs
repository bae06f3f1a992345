//! The requests that a recorded program made, without the answers, and the slots in which a run keeps their memory. There are
//! only as many slots as requests live at once, so that a copy of a run is small.
//!
//! A trace does not contain everything. A call to `empty_cache` is visible only if it released memory (the exact replay finds
//! where), and the completion of an event is visible only as a block that becomes free. An out-of-memory entry counts as a
//! request of the rounded size, which may succeed under other settings. Memory that was in use before the first entry counts
//! as requested before it.

use std::iter::Peekable;
use std::sync::Arc;

use parkade::policy::PyTorch;
use parkade::stats::Family;
use parkade::units::PoolId;
use parkade_recording::{Action, DeviceRecording, Entry};
use rustc_hash::FxHashMap;

use super::pace::{Completion, Operation, Pace};
use crate::entries::{is_inner, is_request};
use crate::error::VerifyError;
use crate::exact::{Flush, Release, Replayed, replay_to_end, taken_together};
use crate::initial_state::{LostBeginning, Start};
use crate::inputs::VerifyOptions;
use crate::pools::PoolTracker;

/// The requests in one device's recording, and how accurately they are known.
#[derive(Clone, Debug, Default)]
pub struct Requests {
    /// The operations in order, each with the entry at which it happened.
    pub operations: Vec<(usize, Operation)>,
    /// The private pools that requests go to.
    pub pools: Vec<PoolId>,
    /// The number of requests that ran out of memory in the recording.
    pub ooms: u64,
    /// The recorded run's peak of reserved bytes.
    pub recorded_peak_reserved_bytes: i64,
    /// The number of recorded decisions on which the core differs under the recording's own settings. If it is not 0, the
    /// specified settings or limit are probably not the run's.
    pub mismatches: u64,
    /// The number of decisions compared.
    pub decisions: u64,
    /// The pace of the run, if its entries have times, a free waits for other streams, and there are no private pools.
    pub pace: Option<Pace>,
    /// The memory that existed before the first entry, if the trace's oldest entries are missing.
    pub lost_beginning: Option<LostBeginning>,
    /// The flushes before requests, in order, and how they were read: as a retry, which another run may not make, or as a
    /// call to `empty_cache`, which every run makes.
    pub flushes: Vec<Flush>,
}

impl Requests {
    /// Reconstructs the requests in a recording by replaying it exactly.
    ///
    /// `own` holds the recorded run's settings and limit. The function calls `progress` periodically with the number of
    /// entries done so far.
    ///
    /// # Errors
    /// Fails in the same cases as [`verify_device`](crate::verify_device).
    pub fn of_recording(
        recording: &DeviceRecording,
        own: &VerifyOptions,
        progress: &mut dyn FnMut(usize),
    ) -> Result<Requests, VerifyError> {
        if recording.trace.is_empty() {
            return Err(VerifyError::NoTrace);
        }
        let mut start = Start::find(recording, &PyTorch::of(own.settings.profile, own.settings.settings.clone()))?;
        let Replayed { stats, tally, .. } = replay_to_end(recording, own, &mut start, progress)?;
        let mut reader = Reader {
            requests: Requests {
                pools: start.pools.private().into_iter().collect(),
                recorded_peak_reserved_bytes: stats.family(Family::ReservedBytes).all.peak,
                mismatches: tally.mismatches,
                decisions: tally.decisions,
                lost_beginning: start.lost,
                flushes: taken_together(tally.flushes),
                ..Requests::default()
            },
            next: 0,
            live: FxHashMap::default(),
            deferred: &start.deferred,
            pools: PoolTracker::new(&start.pools),
            releases: tally.releases.into_iter().peekable(),
            failed_in: tally.failed_in.into_iter().peekable(),
        };
        reader.read_early(&start);
        reader.read(&recording.trace);
        let mut requests = reader.requests;
        // Graph captures delay frees until they end, regardless of what the GPU does.
        if requests.pools.is_empty() {
            requests.pace = Pace::of(&recording.trace, &requests.operations);
        }
        Ok(requests)
    }

    /// Returns the same requests, with every doubtful flush read the other way. Returns `None` if no flush is doubtful.
    #[must_use]
    pub fn read_otherwise(&self, recording: &DeviceRecording) -> Option<Requests> {
        let mut doubtful = self.flushes.iter().filter(|flush| flush.reason.is_doubtful()).peekable();
        doubtful.peek()?;
        let mut operations: Vec<(usize, Operation)> = Vec::with_capacity(self.operations.len());
        for &(at, operation) in &self.operations {
            let is_served = matches!(operation, Operation::Allocate { failed: false, .. });
            if let Some(flush) = doubtful.next_if(|flush| is_served && flush.entry == at) {
                if flush.reason.is_retry() {
                    operations.push((at, Operation::EmptyCache));
                } else {
                    operations.pop_if(|(_, operation)| *operation == Operation::EmptyCache);
                }
            }
            operations.push((at, operation));
        }
        let pace = self.pace.as_ref().and_then(|_| Pace::of(&recording.trace, &operations));
        Some(Requests { operations, pace, ..self.clone() })
    }

    /// Returns whether any free waits for other streams, so that the timing of events may matter.
    #[must_use]
    pub fn has_deferred_frees(&self) -> bool {
        let is_deferred =
            |operation: &Operation| matches!(operation, Operation::Free { completion, .. } if *completion != Completion::AtOnce);
        self.operations.iter().any(|(_, operation)| is_deferred(operation))
    }
}

struct Reader<'a> {
    requests: Requests,
    next: usize,
    /// The requests whose memory is in use, by address.
    live: FxHashMap<u64, usize>,
    deferred: &'a FxHashMap<u32, Option<u32>>,
    pools: PoolTracker<'a>,
    releases: Peekable<std::vec::IntoIter<(usize, Release)>>,
    /// Failed requests and their private pools, which no entry names.
    failed_in: Peekable<std::vec::IntoIter<(usize, PoolId)>>,
}

impl Reader<'_> {
    fn push(&mut self, at: usize, operation: Operation) {
        self.requests.operations.push((at, operation));
    }

    fn allocate(&mut self, at: usize, address: Option<u64>, bytes: u64, stream: u64, pool: PoolId) -> usize {
        let id = self.next;
        self.next += 1;
        if let Some(address) = address {
            self.live.insert(address, id);
        }
        self.push(at, Operation::Allocate { id, bytes, stream, pool, failed: address.is_none() });
        id
    }

    fn read_early(&mut self, start: &Start) {
        for early in start.early_requests() {
            let id = self.allocate(0, Some(early.address), early.bytes, early.stream, early.pool);
            if let Some(completed_at) = early.freed {
                self.live.remove(&early.address);
                let completion = completed_at.map_or(Completion::Never, Completion::AtEntry);
                self.push(0, Operation::Free { id, completion });
            }
        }
    }

    fn read(&mut self, trace: &[Entry]) {
        let mut at = 0;
        while let Some(entry) = trace.get(at) {
            match entry.action {
                Action::FreeRequested => at += self.free(at, entry.address),
                Action::Snapshot => at += 1,
                _ => {
                    let end = at + trace[at..].iter().take_while(|entry| is_inner(entry)).count();
                    self.group(at, end, trace);
                    at = end + usize::from(trace.get(end).is_some_and(is_request));
                }
            }
        }
    }

    /// Returns the number of entries of the free: memory that immediately becomes free for reuse has a second entry.
    fn free(&mut self, at: usize, address: u64) -> usize {
        let (completion, entries) = match self.deferred.get(&(at as u32)) {
            None => (Completion::AtOnce, 2),
            Some(&Some(entry)) => (Completion::AtEntry(entry), 1),
            Some(None) => (Completion::Never, 1),
        };
        // It is always present: a trace that contradicts itself has already been refused.
        if let Some(id) = self.live.remove(&address) {
            self.push(at, Operation::Free { id, completion });
        }
        entries
    }

    /// Processes the entries from `at` to `end`. They belong to the request at `end`, if there is one, or to calls to
    /// `empty_cache`.
    fn group(&mut self, at: usize, end: usize, trace: &[Entry]) {
        let inner = &trace[at..end];
        for pool in self.pools.giving(inner) {
            self.push(at, Operation::AbandonPool(pool));
        }
        while let Some((_, release)) = self.releases.next_if(|&(place, _)| place < end) {
            self.push(
                at,
                match release {
                    Release::All => Operation::EmptyCache,
                    Release::Pool(pool) => Operation::ReleasePool(pool),
                },
            );
        }
        if let Some(entry) = trace.get(end).filter(|entry| is_request(entry)) {
            let failed_in = self.failed_in.next_if(|&(request, _)| request == end).map(|(_, pool)| pool);
            let pool = failed_in.unwrap_or_else(|| self.pools.of_request(at, &trace[at..=end]));
            let is_served = entry.action == Action::Alloc;
            self.requests.ooms += u64::from(!is_served);
            self.allocate(end, is_served.then_some(entry.address), entry.size, entry.stream, pool);
        }
        self.pools.pass(at, inner);
    }
}

/// The slot of each request, by number. Requests that are live at the same time have different slots.
#[derive(Clone, Debug, Default)]
pub struct Slots(Arc<[u32]>);

impl Slots {
    /// The slot of requests that are never live: they failed in the recording, so their memory is freed immediately.
    const NONE: u32 = u32::MAX;

    /// Assigns each request the slot that was freed most recently before it.
    #[must_use]
    pub fn of(requests: &Requests) -> Slots {
        let mut slots: Vec<u32> = Vec::new();
        let mut is_freed: Vec<bool> = Vec::new();
        let (mut unused, mut most): (Vec<u32>, u32) = (Vec::new(), 0);
        for &(_, operation) in &requests.operations {
            match operation {
                Operation::Allocate { failed, .. } => {
                    is_freed.push(failed);
                    let slot = if failed { Slots::NONE } else { unused.pop().unwrap_or(most) };
                    most += u32::from(slot == most);
                    slots.push(slot);
                }
                Operation::Free { id, .. } => {
                    if let (Some(&slot), Some(false)) = (slots.get(id), is_freed.get(id)) {
                        is_freed[id] = true;
                        unused.push(slot);
                    }
                }
                Operation::EmptyCache | Operation::AbandonPool(_) | Operation::ReleasePool(_) => {}
            }
        }
        Slots(slots.into())
    }

    /// Returns the slot of a request, or `None` if it is never live.
    #[inline]
    pub(crate) fn of_request(&self, id: usize) -> Option<usize> {
        self.0.get(id).filter(|&&slot| slot != Slots::NONE).map(|&slot| slot as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inputs::ReplaySettings;

    const MIB: u64 = 1 << 20;
    const BASE: u64 = 1 << 40;

    fn try_read(trace: Vec<Entry>, settings: &str) -> Result<Requests, VerifyError> {
        let settings = ReplaySettings::given(settings).unwrap();
        let own = VerifyOptions { settings, limit_bytes: None, stats_file: None };
        Requests::of_recording(&DeviceRecording { trace, ..DeviceRecording::default() }, &own, &mut |_| ())
    }

    fn read(trace: Vec<Entry>, settings: &str) -> Requests {
        try_read(trace, settings).unwrap()
    }

    fn entry(action: Action, address: u64, size: u64) -> Entry {
        Entry::new(action, address, size, 7)
    }

    #[test]
    fn frees_differ_in_when_they_complete() {
        let trace = vec![
            entry(Action::SegmentMap, BASE, 2 * MIB),
            entry(Action::Alloc, BASE, 700),
            entry(Action::Alloc, BASE + 1024, 600),
            entry(Action::FreeRequested, BASE, 700),
            entry(Action::FreeRequested, BASE + 1024, 600),
            entry(Action::FreeCompleted, BASE + 1024, 600),
            entry(Action::FreeCompleted, BASE, 700),
            entry(Action::SegmentUnmap, BASE, 2 * MIB),
            entry(Action::Oom, 5, 20 * MIB),
        ];
        let requests = read(trace, "expandable_segments:True");
        let allocate = |id, bytes, failed| Operation::Allocate { id, bytes, stream: 7, pool: PoolId::DEFAULT, failed };
        let operations = [
            (1, allocate(0, 700, false)),
            (2, allocate(1, 600, false)),
            (3, Operation::Free { id: 0, completion: Completion::AtEntry(6) }),
            (4, Operation::Free { id: 1, completion: Completion::AtOnce }),
            (8, allocate(2, 20 * MIB, true)),
        ];
        assert_eq!(requests.operations, operations, "the release belongs to the request that failed");
        assert_eq!((requests.ooms, requests.has_deferred_frees()), (1, true));
    }

    #[test]
    fn a_trace_that_is_not_possible_has_no_requests() {
        let trace = vec![
            entry(Action::SegmentAlloc, BASE, 20 * MIB),
            entry(Action::Alloc, BASE, 30 * MIB),
            entry(Action::FreeRequested, BASE, 30 * MIB),
            entry(Action::FreeCompleted, BASE, 30 * MIB),
            entry(Action::SegmentFree, BASE, 20 * MIB),
        ];
        let refused = try_read(trace, "").unwrap_err().to_string();
        assert!(refused.contains("no segment covers that address"), "{refused}");
    }

    #[test]
    fn a_release_that_no_request_needed_is_an_empty_cache() {
        let trace = vec![
            entry(Action::SegmentMap, BASE, 2 * MIB),
            entry(Action::Alloc, BASE, 2 * MIB - 512),
            entry(Action::FreeRequested, BASE, 2 * MIB - 512),
            entry(Action::FreeCompleted, BASE, 2 * MIB - 512),
            entry(Action::SegmentUnmap, BASE, 2 * MIB),
            entry(Action::Snapshot, 0, 0),
        ];
        let requests = read(trace, "expandable_segments:True");
        assert_eq!(requests.operations.last(), Some(&(4, Operation::EmptyCache)));
    }

    #[test]
    fn memory_from_before_the_first_entry_is_requested_before_it() {
        let trace = vec![
            entry(Action::FreeRequested, BASE + 512, 500),
            entry(Action::FreeCompleted, BASE + 512, 500),
            entry(Action::SegmentFree, BASE, 2 * MIB),
        ];
        let requests = read(trace, "");
        let kinds: Vec<_> = requests.operations.iter().map(|(at, operation)| (*at, *operation)).collect();
        let asked = Operation::Allocate { id: 0, bytes: 500, stream: 7, pool: PoolId::DEFAULT, failed: false };
        let freed = Operation::Free { id: 0, completion: Completion::AtOnce };
        assert_eq!(kinds, [(0, asked), (0, freed), (2, Operation::EmptyCache)]);
        assert!(requests.lost_beginning.is_some());
    }

    #[test]
    fn a_slot_is_used_again_once_its_request_is_freed() {
        let allocate = |id, failed| Operation::Allocate { id, bytes: 512, stream: 0, pool: PoolId::DEFAULT, failed };
        let free = |id| Operation::Free { id, completion: Completion::AtOnce };
        // A number that is freed twice frees its slot once.
        let operations = [
            allocate(0, false),
            allocate(1, false),
            free(0),
            free(0),
            allocate(2, true),
            allocate(3, false),
            allocate(4, false),
            free(9),
        ];
        let requests = Requests { operations: operations.into_iter().enumerate().collect(), ..Requests::default() };
        let slots = Slots::of(&requests);
        assert_eq!([0, 1, 2, 3, 4, 9].map(|id| slots.of_request(id)), [Some(0), Some(1), None, Some(0), Some(2), None]);
    }
}
