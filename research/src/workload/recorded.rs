//! Converts a recording's requests to a workload.
//!
//! Simplifications:
//!
//! - A buffer that was freed while other streams were using it is freed at the entry at which its memory became free, or
//!   never if its memory never became free. A recording does not contain the streams that used a buffer, so there is no
//!   [`Event::Use`].
//! - A recording does not show how long the work took, so there is no [`Event::Launch`].
//! - Its steps are those marked with [`RecordedWorkload::mark_steps`].
//! - Requests that failed in the recording are left out and counted.
//!
//! Streams are numbered in the order of their first request, with the default stream as 0; private pools are numbered in the
//! same way, from 1. A destroyed MemPool is dropped.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use parkade::units::PoolId;
use parkade_replay::{Completion, Operation, Requests};

use super::{Event, Workload};

/// A recording's workload, and counts of what it leaves out.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RecordedWorkload {
    /// The workload.
    pub workload: Workload,
    /// The recording's entry from which each event was derived.
    pub entries: Vec<u32>,
    /// The number of requests that failed for lack of memory.
    pub failed_requests: u64,
    /// The number of buffers that became free later than the program freed them, because other streams were using them.
    pub late_frees: u64,
    /// The number of buffers that never became free, for the same reason.
    pub missing_frees: u64,
    /// The number of requests left out because the recording has more than 65,535 streams or pools, which is more than a
    /// workload can number.
    pub unnamed_requests: u64,
    /// The handle of each stream, by the stream's number.
    pub streams: Vec<u64>,
    /// The pool of each private pool's number, which begins with 1.
    pub pools: Vec<PoolId>,
}

impl RecordedWorkload {
    /// Marks the workload's steps. They end with these entries in the recording, in order: the first one begins with the
    /// recording, and the last one includes everything after it. An entry that leaves a step without an event is skipped.
    pub fn mark_steps(&mut self, last_entries: impl IntoIterator<Item = usize>) {
        let mut steps = vec![0];
        let after = |last: usize| self.entries.partition_point(|&entry| entry as usize <= last) as u32;
        let mut ends: Vec<u32> = last_entries.into_iter().map(after).collect();
        if ends.pop().is_none() || self.entries.is_empty() {
            return;
        }
        ends.into_iter().for_each(|end| {
            if steps.last().is_some_and(|&last| last < end) && (end as usize) < self.entries.len() {
                steps.push(end);
            }
        });
        self.workload.steps = steps;
    }
}

/// Extracts a workload from a recording's requests. Characters that are not allowed in a workload's name become `_`.
#[must_use]
pub fn of_requests(name: &str, requests: &Requests) -> RecordedWorkload {
    let mut reader = Reader::default();
    for &(at, operation) in &requests.operations {
        reader.at = u32::try_from(at).unwrap_or(u32::MAX);
        reader.free_until(at);
        reader.read(operation);
    }
    reader.free_until(usize::MAX);
    reader.leave_pool();
    let allowed = |c: char| if c.is_ascii_alphanumeric() || "-_.=".contains(c) { c } else { '_' };
    let mut recorded = reader.recorded;
    recorded.streams = vec![0; reader.streams.len() + 1];
    reader.streams.into_iter().for_each(|(handle, number)| recorded.streams[usize::from(number)] = handle);
    recorded.workload.name = name.chars().map(allowed).collect();
    recorded.workload.says = format!("The requests of the recording {name}");
    recorded
}

#[derive(Default)]
struct Reader {
    recorded: RecordedWorkload,
    /// The current entry.
    at: u32,
    /// The buffer of each request that has one.
    buffers: BTreeMap<usize, u32>,
    next: u32,
    streams: BTreeMap<u64, u16>,
    /// The numbers of the private pools that are not dropped.
    pools: BTreeMap<PoolId, u16>,
    last_pool: u16,
    inside: Option<u16>,
    /// Buffers that become free later, by entry and number, with the earliest on top.
    late: BinaryHeap<Reverse<(u32, u32)>>,
}

impl Reader {
    fn push(&mut self, event: Event) {
        self.recorded.workload.events.push(event);
        self.recorded.entries.push(self.at);
    }

    /// Frees the buffers that became free up to this entry.
    fn free_until(&mut self, at: usize) {
        while let Some(&Reverse((entry, buffer))) = self.late.peek()
            && entry as usize <= at
        {
            self.late.pop();
            self.push(Event::Free { buffer });
        }
    }

    fn read(&mut self, operation: Operation) {
        match operation {
            Operation::Allocate { failed: true, .. } => self.recorded.failed_requests += 1,
            Operation::Allocate { id, bytes, stream, pool, .. } => self.allocate(id, bytes, (stream, pool)),
            Operation::Free { id, completion } => {
                if let Some(buffer) = self.buffers.remove(&id) {
                    self.free(buffer, completion);
                }
            }
            Operation::EmptyCache => self.push(Event::EmptyCache),
            Operation::AbandonPool(pool) | Operation::ReleasePool(pool) => {
                if let Some(number) = self.pools.remove(&pool) {
                    self.leave_pool();
                    self.push(Event::DropPool { pool: number });
                }
            }
        }
    }

    fn allocate(&mut self, id: usize, bytes: u64, (stream, pool): (u64, PoolId)) {
        let Some(stream) = self.stream(stream) else {
            self.recorded.unnamed_requests += 1;
            return;
        };
        if pool == PoolId::DEFAULT {
            self.leave_pool();
        } else if !self.enter_pool(pool) {
            self.recorded.unnamed_requests += 1;
            return;
        }
        let buffer = self.next;
        self.next += 1;
        self.buffers.insert(id, buffer);
        self.push(Event::Allocate { buffer, bytes: bytes.max(1), stream });
    }

    fn free(&mut self, buffer: u32, completion: Completion) {
        match completion {
            Completion::AtOnce => self.push(Event::Free { buffer }),
            Completion::AtEntry(entry) => {
                self.recorded.late_frees += 1;
                self.late.push(Reverse((entry, buffer)));
            }
            Completion::Never => self.recorded.missing_frees += 1,
        }
    }

    fn stream(&mut self, handle: u64) -> Option<u16> {
        if handle == 0 {
            return Some(0);
        }
        let next = u16::try_from(self.streams.len() + 1).ok()?;
        Some(*self.streams.entry(handle).or_insert(next))
    }

    fn leave_pool(&mut self) {
        if let Some(pool) = self.inside.take() {
            self.push(Event::EndPool { pool });
        }
    }

    /// Directs requests to a private pool. Returns false if no number is left for the pool.
    fn enter_pool(&mut self, pool: PoolId) -> bool {
        let number = match self.pools.get(&pool) {
            Some(&number) => number,
            None => {
                let Some(number) = self.last_pool.checked_add(1) else { return false };
                self.last_pool = number;
                self.recorded.pools.push(pool);
                self.pools.insert(pool, number);
                number
            }
        };
        if self.inside != Some(number) {
            self.leave_pool();
            self.inside = Some(number);
            self.push(Event::BeginPool { pool: number });
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allocate(id: usize, bytes: u64, stream: u64, pool: PoolId) -> Operation {
        Operation::Allocate { id, bytes, stream, pool, failed: false }
    }

    #[test]
    fn requests_are_read_with_what_a_workload_can_say() {
        let private = PoolId(0, 7);
        let operations = vec![
            (0, allocate(0, 700, 0, PoolId::DEFAULT)),
            (1, allocate(1, 0, 99, PoolId::DEFAULT)),
            (2, Operation::Allocate { id: 2, bytes: 5, stream: 0, pool: PoolId::DEFAULT, failed: true }),
            (3, Operation::Free { id: 0, completion: Completion::AtEntry(6) }),
            (4, allocate(3, 30, 0, private)),
            (5, allocate(4, 40, 0, private)),
            (6, allocate(5, 50, 55, PoolId::DEFAULT)),
            (7, Operation::Free { id: 3, completion: Completion::AtOnce }),
            (8, Operation::Free { id: 4, completion: Completion::Never }),
            (9, Operation::AbandonPool(private)),
            (9, Operation::ReleasePool(private)),
            (10, Operation::EmptyCache),
            (11, allocate(6, 60, 0, private)),
            (12, Operation::Free { id: 1, completion: Completion::AtEntry(40) }),
        ];
        let recorded = of_requests("a program/2", &Requests { operations, ..Requests::default() });
        assert_eq!(recorded.workload.check(), Ok(()));
        let allocated = |buffer, bytes, stream| Event::Allocate { buffer, bytes, stream };
        let events = [
            allocated(0, 700, 0),
            allocated(1, 1, 1),
            Event::BeginPool { pool: 1 },
            allocated(2, 30, 0),
            allocated(3, 40, 0),
            Event::Free { buffer: 0 },
            Event::EndPool { pool: 1 },
            allocated(4, 50, 2),
            Event::Free { buffer: 2 },
            Event::DropPool { pool: 1 },
            Event::EmptyCache,
            Event::BeginPool { pool: 2 },
            allocated(5, 60, 0),
            Event::Free { buffer: 1 },
            Event::EndPool { pool: 2 },
        ];
        assert_eq!(recorded.workload.events, events);
        assert_eq!(recorded.workload.name, "a_program_2");
        let mut marked = recorded.clone();
        assert_eq!(marked.entries, [0, 1, 4, 4, 5, 6, 6, 6, 7, 9, 10, 11, 11, 12, 12]);
        marked.mark_steps([3, 6, 6, 9, 12]);
        assert_eq!((marked.workload.steps.as_slice(), marked.workload.check()), ([0, 2, 8, 10].as_slice(), Ok(())));
        marked.mark_steps([40, 41]);
        assert_eq!(marked.workload.steps, [0], "an entry beyond the end marks nothing");
        let RecordedWorkload { failed_requests, late_frees, missing_frees, unnamed_requests, .. } = recorded;
        assert_eq!((failed_requests, late_frees, missing_frees, unnamed_requests), (1, 2, 1, 0));
    }

    #[test]
    fn streams_beyond_what_can_be_named_are_counted() {
        let operations = (0..70_000).map(|id| (id, allocate(id, 1, id as u64, PoolId::DEFAULT))).collect();
        let recorded = of_requests("streams", &Requests { operations, ..Requests::default() });
        assert_eq!(recorded.workload.check(), Ok(()));
        assert_eq!((recorded.workload.buffers(), recorded.unnamed_requests), (65_536, 70_000 - 65_536));
    }
}
