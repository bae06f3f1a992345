//! Whether two recordings are of one program: how much of what they request is the same.

use parkade_recording::{Action, DeviceRecording, Entry, Recording};
use rustc_hash::FxHashMap;

use super::portable_stack::Stacks;

/// Single sizes are shared by unrelated programs (512 bytes, powers of two); so many consecutive ones rarely are.
const RUN: usize = 4;
/// Two programs of which less than this share is the same have little in common.
const LITTLE: f64 = 0.1;

/// How two recordings are related.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Relation {
    /// Trace and segments are equal: it is one file twice, or a copy.
    SameRecording,
    /// They were made during one run.
    SameRun,
    /// They request the same sizes equally often, so the allocator makes the difference.
    SameRequests,
    /// Much of what they request is the same.
    Related,
    /// Little of what they request is the same: another program, or the same with other shapes.
    LittleInCommon,
    /// One of them has no requests to compare.
    Unknown,
}

impl Relation {
    /// Its name in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Relation::SameRecording => "same_recording",
            Relation::SameRun => "same_run",
            Relation::SameRequests => "same_requests",
            Relation::Related => "related",
            Relation::LittleInCommon => "little_in_common",
            Relation::Unknown => "unknown",
        }
    }
}

/// How much two recordings have in common.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Likeness {
    /// How they are related.
    pub relation: Relation,
    /// The share of the shorter recording's requests, in runs of four consecutive sizes, that the longer one makes too, from 0 to 1.
    pub requests_in_common: Option<f64>,
    /// The share of stacks, of those of the recording that has fewer, that the other has too; lines may differ.
    pub stacks_in_common: Option<f64>,
}

/// Compares what two devices' recordings request.
pub(super) fn likeness(a: (&Recording, &DeviceRecording, &Stacks), b: (&Recording, &DeviceRecording, &Stacks)) -> Likeness {
    let requests_in_common = requests_in_common(&sizes(a.1), &sizes(b.1));
    let stacks_in_common = a.2.in_common(b.2);
    let most = [requests_in_common, stacks_in_common].into_iter().flatten().reduce(f64::max);
    let relation = if a.1.trace == b.1.trace && a.1.segments == b.1.segments {
        Relation::SameRecording
    } else if is_one_run((a.0, a.1), (b.0, b.1)) {
        Relation::SameRun
    } else if requests_in_common == Some(1.0) && sizes(a.1).len() == sizes(b.1).len() {
        Relation::SameRequests
    } else {
        match most {
            Some(most) if most < LITTLE => Relation::LittleInCommon,
            Some(_) => Relation::Related,
            None => Relation::Unknown,
        }
    };
    Likeness { relation, requests_in_common, stacks_in_common }
}

/// The sizes that are requested, in order.
fn sizes(device: &DeviceRecording) -> Vec<u64> {
    device.trace.iter().filter(|entry| entry.action == Action::Alloc).map(|entry| entry.size).collect()
}

fn requests_in_common(a: &[u64], b: &[u64]) -> Option<f64> {
    let length = RUN.min(a.len()).min(b.len());
    if length == 0 {
        return None;
    }
    let mut counts: FxHashMap<&[u64], u32> = FxHashMap::default();
    for run in a.windows(length) {
        *counts.entry(run).or_default() += 1;
    }
    let mut both = 0_usize;
    for run in b.windows(length) {
        if let Some(count) = counts.get_mut(run).filter(|count| **count > 0) {
            *count -= 1;
            both += 1;
        }
    }
    Some(both as f64 / (a.len().min(b.len()) + 1 - length) as f64)
}

/// Whether one recording has the end of the other, or a scope that began or ended at the same microsecond.
fn is_one_run(a: (&Recording, &DeviceRecording), b: (&Recording, &DeviceRecording)) -> bool {
    let has_end_of = |one: &DeviceRecording, other: &DeviceRecording| {
        let same = |end: &Entry, entry: &Entry| {
            (end.action, end.address, end.size, end.time()) == (entry.action, entry.address, entry.size, entry.time())
        };
        let end = other.trace.last().filter(|end| end.time().is_some());
        end.is_some_and(|end| one.trace.iter().any(|entry| same(end, entry)))
    };
    let has_scope_of = |one: &Recording, other: &Recording| {
        let end = other.annotations.last().filter(|end| end.time_us.is_some());
        end.is_some_and(|end| one.annotations.iter().any(|annotation| annotation == end))
    };
    has_end_of(a.1, b.1) || has_end_of(b.1, a.1) || has_scope_of(a.0, b.0) || has_scope_of(b.0, a.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_counts() {
        let common = |a: &[u64], b: &[u64]| requests_in_common(a, b);
        assert_eq!(common(&[1, 2, 3, 4, 5], &[1, 2, 3, 4, 5]), Some(1.0));
        assert_eq!(common(&[1, 2, 3, 4, 5], &[9, 1, 2, 3, 4, 9, 9, 9]), Some(0.5));
        assert_eq!(common(&[1, 2, 3, 4, 5], &[5, 4, 3, 2, 1]), Some(0.0));
        assert_eq!(common(&[1, 2], &[1, 2, 3]), Some(1.0));
        assert_eq!(common(&[7, 7, 7, 7, 7, 7], &[7, 7, 7, 7]), Some(1.0));
        assert_eq!(common(&[], &[1]), None);
    }
}
