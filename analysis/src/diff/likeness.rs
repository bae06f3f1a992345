//! Judges whether two recordings are of the same program, by the share of requests and stacks that they have in common.
//!
//! Two recordings number their stacks independently and may come from different folders or machines, and a change to the
//! program shifts its line numbers. A stack's *portable* form therefore consists of its functions with the ends of their
//! files' paths, without line numbers; its *exact* form has full paths and line numbers. Both are kept as hashes
//! ([`Stacks`]).
//!
//! [`first_difference`] finds where two runs with the same requests begin to differ in what the allocator did, regardless of
//! the addresses that the driver returned.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use parkade_recording::{Action, DeviceRecording, Entry, Recording, StackId, StackTable};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::frame_kind::INSTALLED;
use crate::stacks::StackNames;

/// Unrelated programs share individual sizes (512 bytes, powers of two), but rarely this many consecutive ones.
const RUN: usize = 4;
/// Two programs that share less than this fraction have little in common.
const LITTLE: f64 = 0.1;

/// The relation between two recordings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Relation {
    /// Their traces and segments are equal: the same file twice, or a copy.
    SameRecording,
    /// Both were made during one run.
    SameRun,
    /// Both request the same sizes equally often, so any differences are due to the allocator.
    SameRequests,
    /// They share many of their requests.
    Related,
    /// They share few of their requests: a different program, or the same one with different shapes.
    LittleInCommon,
    /// One of them has no requests to compare.
    Unknown,
}

parkade_recording::names! {
    Relation {
        Relation::SameRecording => "same_recording",
        Relation::SameRun => "same_run",
        Relation::SameRequests => "same_requests",
        Relation::Related => "related",
        Relation::LittleInCommon => "little_in_common",
        Relation::Unknown => "unknown",
    }
}

/// The similarity of two recordings.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Likeness {
    /// The relation between them.
    pub relation: Relation,
    /// The share of the shorter recording's requests, in runs of four consecutive sizes, that the longer one also makes, from 0 to
    /// 1.
    pub requests_in_common: Option<f64>,
    /// The share of stacks in the recording with fewer stacks that the other also has; line numbers may differ.
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

/// Returns the sizes that are requested, in order.
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

/// Returns whether one recording contains the end of the other, or both contain a scope that began or ended in the same
/// microsecond.
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

/// A stack's two forms.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Forms {
    pub(super) exact: u64,
    pub(super) portable: u64,
}

/// The stacks that allocate in a device's recording.
pub(super) struct Stacks {
    forms: BTreeMap<StackId, Forms>,
    /// The exact forms of each portable form.
    exact: FxHashMap<u64, FxHashSet<u64>>,
}

impl Stacks {
    /// Returns the stacks of a recording.
    pub(super) fn of(table: &StackTable, device: &DeviceRecording) -> Stacks {
        let of_trace = device.trace.iter().filter(|entry| entry.action == Action::Alloc).map(|entry| entry.stack);
        let of_blocks = device.segments.iter().flat_map(|segment| &segment.blocks).map(|block| block.stack);
        let mut stacks = Stacks { forms: BTreeMap::new(), exact: FxHashMap::default() };
        let names = StackNames::of(table);
        for stack in of_trace.chain(of_blocks).filter(|&stack| stack != StackId::NONE) {
            if stacks.forms.contains_key(&stack) {
                continue;
            }
            let forms = forms_of(&names, table, stack);
            stacks.forms.insert(stack, forms);
            stacks.exact.entry(forms.portable).or_default().insert(forms.exact);
        }
        stacks
    }

    /// Returns whether no stack allocates.
    pub(super) fn is_empty(&self) -> bool {
        self.forms.is_empty()
    }

    /// Returns the forms of a stack.
    pub(super) fn forms(&self, stack: StackId) -> Option<Forms> {
        self.forms.get(&stack).copied()
    }

    /// Returns whether the line numbers of this portable stack are the same in both recordings, so that each line is its own
    /// counterpart. If a line moved, equal line numbers may refer to different code.
    pub(super) fn has_same_lines(&self, other: &Stacks, portable: u64) -> bool {
        self.exact.get(&portable) == other.exact.get(&portable)
    }

    /// Returns the share of portable stacks in the recording with fewer of them that the other also has, or `None` if either
    /// has none.
    fn in_common(&self, other: &Stacks) -> Option<f64> {
        let fewer = self.exact.len().min(other.exact.len());
        let both = self.exact.keys().filter(|portable| other.exact.contains_key(portable)).count();
        (fewer > 0).then(|| both as f64 / fewer as f64)
    }
}

/// Returns both forms of a stack. C++ calls are compared by the operators that they name, because their symbols depend on the
/// machine and the release.
fn forms_of(names: &StackNames, table: &StackTable, stack: StackId) -> Forms {
    let (mut exact, mut portable) = (DefaultHasher::new(), DefaultHasher::new());
    for number in names.telling(table, stack) {
        if let Some(short) = names.short(number) {
            short.hash(&mut exact);
            short.hash(&mut portable);
            continue;
        }
        let Some(frame) = table.frame(number) else { continue };
        (&frame.filename, frame.line, &frame.name).hash(&mut exact);
        (end_of_path(&frame.filename), &frame.name).hash(&mut portable);
    }
    Forms { exact: exact.finish(), portable: portable.finish() }
}

/// Returns the part of a file's path that does not depend on the installation: the folders inside the innermost library folder
/// and the file name or, outside of a library, the file name.
fn end_of_path(file: &str) -> Vec<&str> {
    let names: Vec<&str> = file.split(['/', '\\']).collect();
    let library = names.iter().rposition(|name| INSTALLED.contains(name));
    names[library.map_or(names.len() - 1, |library| library + 1)..].to_vec()
}

/// Returns the first entry that differs in its action, in its size, or in the position of its block. A position is a segment,
/// numbered in order of creation, and an offset in it; memory from before the first entry is identified by its address.
pub(super) fn first_difference(a: &[Entry], b: &[Entry]) -> Option<usize> {
    let (mut places_a, mut places_b) = (Places::default(), Places::default());
    let is_same = |a: &Entry, b: &Entry| (a.action, a.size) == (b.action, b.size);
    let differs = a.iter().zip(b).position(|(a, b)| !is_same(a, b) || places_a.of(a) != places_b.of(b));
    differs.or((a.len() != b.len()).then_some(a.len().min(b.len())))
}

/// The segments of a run, or the pages of expandable segments, by first address.
#[derive(Default)]
struct Places {
    by_address: BTreeMap<u64, (u64, usize)>,
    made: usize,
}

impl Places {
    fn of(&mut self, entry: &Entry) -> Option<(Option<usize>, u64)> {
        match entry.action {
            Action::SegmentAlloc | Action::SegmentMap => {
                self.by_address.insert(entry.address, (entry.size, self.made));
                self.made += 1;
                None
            }
            Action::SegmentFree | Action::SegmentUnmap => {
                let place = self.find(entry.address);
                self.by_address.remove(&entry.address);
                Some(place)
            }
            Action::Alloc | Action::FreeRequested | Action::FreeCompleted => Some(self.find(entry.address)),
            _ => None,
        }
    }

    /// Returns the number of the segment that contains the address, and the offset in it.
    fn find(&self, address: u64) -> (Option<usize>, u64) {
        match self.by_address.range(..=address).next_back() {
            Some((first, (size, number))) if address - first < *size => (Some(*number), address - first),
            _ => (None, address),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

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

    proptest! {
        /// Compares with striking out equal runs one by one.
        #[test]
        fn every_request_in_common_counts_once(a in vec(0..3_u64, 0..12), b in vec(0..3_u64, 0..12)) {
            let length = RUN.min(a.len()).min(b.len());
            let runs = |sizes: &[u64]| (length..=sizes.len()).map(|end| sizes[end - length..end].to_vec()).collect::<Vec<_>>();
            let (mut left, others) = (runs(&a), runs(&b));
            let fewer = left.len().min(others.len());
            for run in others {
                if let Some(place) = left.iter().position(|other| *other == run) {
                    left.swap_remove(place);
                }
            }
            let both = runs(&a).len() - left.len();
            let expected = (length > 0).then(|| both as f64 / fewer as f64);
            prop_assert_eq!(requests_in_common(&a, &b), expected);
            prop_assert_eq!(requests_in_common(&b, &a), expected);
        }
    }

    /// The same file under any root, even one that itself lies in a library, has the same end.
    #[test]
    fn folders_do_not_count() {
        let roots = ["", "/", "/home/one/", "/a/site-packages/b/", "/usr/dist-packages/", "/my-site-packages/", "C:\\two\\"];
        for (root, outer) in roots.iter().flat_map(|root| roots.map(|outer| (root, outer))) {
            for separator in ["/", "\\"] {
                let path = |names: &[&str]| outer.to_owned() + root.trim_start_matches('/') + &names.join(separator);
                for library in ["site-packages", "dist-packages"] {
                    let file = path(&[library, "torch", "nn", "linear.py"]);
                    assert_eq!(end_of_path(&file), ["torch", "nn", "linear.py"], "{file}");
                }
            }
        }
        for file in
            ["/home/one/train.py", "C:\\two\\train.py", "train.py", "/my-site-packages/train.py", "a/site-packages/train.py"]
        {
            assert_eq!(end_of_path(file), ["train.py"], "{file}");
        }
        assert_eq!(end_of_path(""), [""]);
    }

    /// A block that lies in a segment is identified by its offset there, and another one by its address.
    #[test]
    fn a_segment_ends_before_the_address_behind_it() {
        let size = 20 * MIB;
        let run = |segment: u64, offset: u64| {
            [Entry::new(Action::SegmentAlloc, segment, size, 0), Entry::new(Action::Alloc, segment + offset, 512, 0)]
        };
        for offset in [0, 512, size - 512, size, size + 512] {
            let found = first_difference(&run(1 << 40, offset), &run(1 << 41, offset));
            assert_eq!(found, (offset >= size).then_some(1), "{offset}");
        }
    }

    const MIB: u64 = 1 << 20;

    /// Returns a trace with two segments, and a block in one of them.
    fn run(first: u64, second: u64, block: u64) -> Vec<Entry> {
        let entry = |action, address, mib: u64| Entry::new(action, address, mib * MIB, 0);
        let taken = [first, second].map(|address| entry(Action::SegmentAlloc, address, 20));
        [&taken[..], &[entry(Action::Alloc, block, 4)]].concat()
    }

    #[test]
    fn other_addresses_of_the_driver_are_no_difference() {
        let (here, there) = (1 << 40, 1 << 41);
        let run_here = run(here, here + 20 * MIB, here + 20 * MIB);
        assert_eq!(first_difference(&run_here, &run(there + 50 * MIB, there, there)), None, "in the second one in both");
        assert_eq!(first_difference(&run_here, &run(there, there + 50 * MIB, there)), Some(2), "in the first one");
        assert_eq!(first_difference(&run_here, &run(there, there + 50 * MIB, there + 51 * MIB)), Some(2), "further on");
        assert_eq!(first_difference(&run_here, &run_here[..2]), Some(2), "not at all");
        let mut smaller = run_here.clone();
        smaller[0].size = 2 * MIB;
        assert_eq!(first_difference(&run_here, &smaller), Some(0));
    }
}
