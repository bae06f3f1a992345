//! Finds the moment to diagnose: the entry, and the heap before and after its operation.
//!
//! Two heaps matter at an out-of-memory error: the one when the request arrived, and the one that remained when the allocator
//! had released all it could and still failed. One pass over the run keeps both, along with everything else that the
//! diagnosis needs from the run up to that moment: its peaks, one of which is the moment to diagnose if nothing failed
//! ([`Peaks`]), and the last point at which the stranded bytes rose past half of their present amount ([`Onset`]).

use parkade::policy::PyTorch;
use parkade::snapshot::SegmentInfo;
use parkade::stats::Family;
use parkade_recording::{Action, DeviceRecording, Entry};
use parkade_replay::recognition::{growth_bytes, reserved_at_start, segment_bytes};
use parkade_replay::{VerifyError, VerifyOptions, watch_device};

use super::verdict::LimitEvidence;
use crate::ending::Ending;

/// Why this moment was chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why {
    /// A request ran out of memory there. It is the first request that did, unless the caller chose a different one.
    OutOfMemory,
    /// The caller chose this entry, and no request failed there.
    Chosen,
    /// Nothing failed. Reserved memory was at its peak and, of the moments at that peak, this one had the most allocated
    /// memory.
    Peak,
    /// The file has no trace, only the heap at the end.
    End,
}

parkade_recording::names! {
    Why {
        Why::OutOfMemory => "out_of_memory",
        Why::Chosen => "chosen",
        Why::Peak => "peak_reserved",
        Why::End => "end",
    }
}

/// The question about the moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Question {
    /// Why did the request at this entry run out of memory?
    OutOfMemory,
    /// Why did the request at the entry that the caller chose take memory from the device instead of using free memory?
    NewMemory,
    /// Why is more reserved than allocated after this entry?
    ReservedAboveAllocated,
}

parkade_recording::names! {
    Question {
        Question::OutOfMemory => "why_out_of_memory",
        Question::NewMemory => "why_new_memory",
        Question::ReservedAboveAllocated => "why_reserved_above_allocated",
    }
}

/// An entry to diagnose; `None` is the moment before the first entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Target {
    pub(super) entry: Option<usize>,
    pub(super) why: Why,
    pub(super) question: Question,
}

impl Target {
    /// Returns the entry that the caller chose, the first out-of-memory error, or the peak of reserved memory.
    pub(super) fn find(recording: &DeviceRecording, chosen: Option<usize>) -> Target {
        let trace = &recording.trace;
        let first_oom = || trace.iter().position(|entry| entry.action == Action::Oom);
        // An error that the run died of takes precedence over one that it survived.
        let death = || Ending::of(recording).death().map(|death| death.entry);
        let Some(entry) = chosen.or_else(death).or_else(first_oom) else { return Target::peak(peak(recording)) };
        let (why, question) = match trace.get(entry).map(|entry| entry.action) {
            Some(Action::Oom) => (Why::OutOfMemory, Question::OutOfMemory),
            Some(Action::Alloc) if took_memory(trace, entry) => (Why::Chosen, Question::NewMemory),
            _ => (Why::Chosen, Question::ReservedAboveAllocated),
        };
        Target { entry: Some(entry), why, question }
    }

    /// Returns the peak of reserved memory, reached after this entry.
    pub(super) fn peak(entry: Option<usize>) -> Target {
        Target { entry, why: Why::Peak, question: Question::ReservedAboveAllocated }
    }

    /// Returns whether the heap after the operation is judged, rather than the one before it.
    pub(super) fn is_after(&self) -> bool {
        self.question != Question::NewMemory
    }
}

/// Returns the moment of the peak, as far as the trace shows it without a replay: [`Peaks::moment`] without a replay. The
/// trace does not show how much rounding adds to blocks.
fn peak(recording: &DeviceRecording) -> Option<usize> {
    let bytes = |level: i128| u64::try_from(level).unwrap_or(0);
    // The size of the blocks from before the first entry is a constant until those blocks are freed; half the range of 64
    // bits exceeds any possible sum.
    let (mut allocated, mut reserved) = (i128::from(u64::MAX / 2), reserved_at_start(recording));
    let mut peaks = Peaks::default();
    peaks.see(0, bytes(allocated), bytes(reserved));
    for (place, entry) in recording.trace.iter().enumerate() {
        reserved += growth_bytes(entry);
        match entry.action {
            Action::Alloc => allocated += i128::from(entry.size),
            Action::FreeRequested => allocated -= i128::from(entry.size),
            _ => {}
        }
        peaks.see(place + 1, bytes(allocated), bytes(reserved));
    }
    peaks.moment()
}

/// Returns whether the request of this entry took memory from the device.
fn took_memory(trace: &[Entry], request: usize) -> bool {
    trace[..request].iter().rev().take_while(|entry| is_inner(entry)).any(|entry| growth_bytes(entry) > 0)
}

/// Returns whether an entry is, or may be, part of a larger operation.
fn is_inner(entry: &Entry) -> bool {
    !matches!(entry.action, Action::Alloc | Action::Oom | Action::FreeRequested | Action::Snapshot)
}

/// The records of one pass over the run.
#[derive(Default)]
pub(super) struct Seen {
    /// The heap before the operation at the target.
    pub(super) before: Vec<SegmentInfo>,
    /// The number of entries before that heap.
    pub(super) before_entries: usize,
    /// The heap after it.
    pub(super) after: Vec<SegmentInfo>,
    /// The number of entries before that heap, including the operation's own.
    pub(super) after_entries: usize,
    /// Retries up to the target.
    pub(super) retries: i64,
    /// Reserved minus allocated bytes up to the target.
    pub(super) lows: Lows,
    /// The peaks of the entire run.
    pub(super) peaks: Peaks,
    /// The limit, as far as the entire run shows it.
    pub(super) limit: LimitEvidence,
}

/// Replays the recording and keeps what the diagnosis of `target` needs.
pub(super) fn watch(
    recording: &DeviceRecording,
    own: &VerifyOptions,
    policy: &PyTorch,
    target: Target,
) -> Result<Seen, VerifyError> {
    let trace = &recording.trace;
    let collects = policy.settings.garbage_collection_threshold > 0.0;
    let at = target.entry;
    let first_inner = trace[..at.unwrap_or(0)].iter().rev().take_while(|entry| is_inner(entry)).count();
    let mut seen = Seen::default();
    // Counted from the trace, so that the evidence about the limit does not depend on how exact the replay is.
    let mut reserved_now = reserved_at_start(recording);
    let (mut entries_before, mut reserved_before, mut retries_before) = (0, 0_u64, 0);
    let mut is_after = false;
    watch_device(recording, own, &mut |moment| {
        let (stats, entries) = (moment.stats(), moment.entries);
        let current = |family| u64::try_from(stats.family(family).all.current).unwrap_or(0);
        reserved_now += trace[entries_before..entries].iter().map(growth_bytes).sum::<i128>();
        let reserved = u64::try_from(reserved_now).unwrap_or(0);
        let (allocated_bytes, reserved_bytes) = (current(Family::AllocatedBytes), current(Family::ReservedBytes));
        let stranded = reserved_bytes.saturating_sub(allocated_bytes);
        seen.peaks.see(entries, allocated_bytes, reserved_bytes);
        seen.limit.serve(reserved, entries);
        let request = entries.checked_sub(1).and_then(|last| Some((last, trace.get(last)?)));
        if let Some((place, entry)) = request.filter(|_| entries > entries_before) {
            let was_retried = stats.num_alloc_retries > retries_before && !collects;
            if let Some(bytes) = refused_bytes(entry, reserved_before, reserved, was_retried) {
                seen.limit.refuse(bytes.saturating_add(segment_bytes(entry, policy)), place);
            }
        }
        if let Some(at) = at.filter(|&at| entries <= at) {
            seen.lows.push(entries, stranded);
            seen.retries = stats.num_alloc_retries;
            // The target may be the second entry of a free, whose operation begins one entry earlier.
            if entries + first_inner + 1 >= at {
                (seen.before, seen.before_entries) = (moment.segments(), entries);
            }
        } else if !is_after {
            is_after = true;
            (seen.after, seen.after_entries) = (moment.segments(), entries);
            if target.is_after() {
                seen.retries = stats.num_alloc_retries;
                seen.lows.push(entries, stranded);
            }
        }
        (entries_before, reserved_before, retries_before) = (entries, reserved, stats.num_alloc_retries);
    })?;
    if let Some(oom) = at.and_then(|at| trace.get(at)).filter(|entry| entry.action == Action::Oom) {
        (seen.limit.device_free_bytes, seen.limit.tried_bytes) = (Some(oom.address), Some(segment_bytes(oom, policy)));
    }
    Ok(seen)
}

/// Returns the bytes that were reserved when the device or the limit refused memory to this entry's request, or `None` if
/// neither did. `was_retried` means that the request was served only after a retry and that no garbage collection preceded
/// the first attempt.
fn refused_bytes(request: &Entry, before_bytes: u64, after_bytes: u64, was_retried: bool) -> Option<u64> {
    match request.action {
        // The last attempt, after every rung of the retry ladder (the steps taken when no free block serves a request).
        Action::Oom => Some(after_bytes),
        // The first attempt, before the ladder released anything.
        Action::Alloc if was_retried => Some(before_bytes),
        _ => None,
    }
}

/// The last time that the stranded bytes rose past half of their present amount.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Onset {
    /// The entry from which reserved minus allocated bytes have stayed at or above `level_bytes`. `None` means that this began
    /// before the first entry.
    pub entry: Option<usize>,
    /// Half of the bytes that are stranded at the diagnosed moment.
    pub level_bytes: u64,
    /// The entry's time, in microseconds since 1970, if the file has it.
    pub time_us: Option<u64>,
}

/// The lows of a series: only the values below which the series never fell again. They are enough to find the last moment at
/// which the series was below any given level.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Lows {
    /// Moments and values, both increasing.
    lows: Vec<(usize, u64)>,
    /// For each of these values, the following moment.
    left: Vec<Option<usize>>,
}

impl Lows {
    /// Adds the value of the next moment.
    fn push(&mut self, moment: usize, value: u64) {
        if let Some(left @ None) = self.left.last_mut() {
            *left = Some(moment);
        }
        while self.lows.last().is_some_and(|&(_, low)| low >= value) {
            self.lows.pop();
            self.left.pop();
        }
        self.lows.push((moment, value));
        self.left.push(None);
    }

    /// Returns the first moment since which every value has been at least `level`. Returns `None` if the last value is below
    /// `level`, or if no value was ever below it.
    pub(super) fn since(&self, level: u64) -> Option<usize> {
        let below = self.lows.partition_point(|&(_, low)| low < level);
        self.left.get(below.checked_sub(1)?).copied().flatten()
    }
}

/// A peak of allocated or reserved bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Peak {
    /// The bytes.
    pub bytes: u64,
    /// The first entry after which the peak was reached; `None` if it was reached before the first entry, or if there is no
    /// trace.
    pub entry: Option<usize>,
}

/// The peaks of a run, checked after every operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Peaks {
    /// The peak of allocated bytes.
    pub allocated: Peak,
    /// The peak of reserved bytes.
    pub reserved: Peak,
    /// The peak of allocated bytes while reserved bytes were at their peak.
    pub allocated_at_reserved: Peak,
    /// The reserved bytes when allocated bytes reached their peak.
    pub reserved_at_allocated_bytes: u64,
}

impl Peaks {
    /// Adds the state after this many entries.
    fn see(&mut self, entries: usize, allocated_bytes: u64, reserved_bytes: u64) {
        let entry = entries.checked_sub(1);
        let (allocated, reserved) = (Peak { bytes: allocated_bytes, entry }, Peak { bytes: reserved_bytes, entry });
        if reserved.bytes > self.reserved.bytes {
            (self.reserved, self.allocated_at_reserved) = (reserved, allocated);
        } else if reserved.bytes == self.reserved.bytes && allocated.bytes > self.allocated_at_reserved.bytes {
            self.allocated_at_reserved = allocated;
        }
        if allocated.bytes > self.allocated.bytes {
            (self.allocated, self.reserved_at_allocated_bytes) = (allocated, reserved_bytes);
        }
    }

    /// Returns the last entry before the moment to diagnose: among the moments at which reserved memory is at its peak, the
    /// first at which the most is allocated. Memory that is still free then was not needed for that peak. `None` is the
    /// moment before the first entry.
    pub(super) fn moment(&self) -> Option<usize> {
        self.allocated_at_reserved.entry
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_last_rise_past_the_level_counts() {
        let mut lows = Lows::default();
        for (moment, value) in [(0, 0), (3, 70), (4, 20), (6, 50), (9, 100)] {
            lows.push(moment, value);
        }
        assert_eq!(
            [1, 20, 21, 50, 51, 100, 101].map(|level| lows.since(level)),
            [Some(3), Some(3), Some(6), Some(6), Some(9), Some(9), None]
        );
        assert_eq!(Lows::default().since(1), None);
    }

    proptest! {
        #[test]
        fn the_lows_answer_as_the_whole_timeline_would(
            values in proptest::collection::vec(0..20_u64, 0..40),
            level in 0..22_u64,
        ) {
            let mut lows = Lows::default();
            for (moment, &value) in values.iter().enumerate() {
                lows.push(moment, value);
            }
            let since = values.iter().rposition(|&value| value < level).map(|last| last + 1).filter(|&at| at < values.len());
            prop_assert_eq!(lows.since(level), since);
        }
    }

    fn peaks(states: &[(u64, u64)]) -> Peaks {
        let mut peaks = Peaks::default();
        states.iter().enumerate().for_each(|(entries, &(allocated, reserved))| peaks.see(entries, allocated, reserved));
        peaks
    }

    #[test]
    fn a_peak_is_where_it_is_first_reached() {
        let found = peaks(&[(0, 0), (5, 10), (7, 10), (6, 20), (8, 20), (3, 20)]);
        assert_eq!((found.allocated, found.reserved.bytes), (Peak { bytes: 8, entry: Some(3) }, 20));
        assert_eq!((found.reserved.entry, found.reserved_at_allocated_bytes), (Some(2), 20));
    }

    /// The last bytes of a peak are often a single small segment, taken at a moment when little memory is in use.
    #[test]
    fn a_peak_is_looked_at_where_the_most_of_it_is_in_use() {
        assert_eq!(peaks(&[(0, 0), (9, 18), (2, 18), (3, 20), (6, 20), (6, 20), (2, 20)]).moment(), Some(3));
        let lost_beginning = peaks(&[(4, 20), (5, 20), (9, 20), (9, 20), (11, 18)]);
        assert_eq!((lost_beginning.reserved, lost_beginning.moment()), (Peak { bytes: 20, entry: None }, Some(1)));
        assert_eq!((lost_beginning.allocated.entry, lost_beginning.reserved_at_allocated_bytes), (Some(3), 18));
        assert_eq!(peaks(&[(4, 20), (3, 20)]).moment(), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]
        /// Compares with looking at all states at once.
        #[test]
        fn peaks_are_the_first_of_all_states(states in proptest::collection::vec((0..5_u64, 0..5_u64), 1..12)) {
            let found = peaks(&states);
            let first = |is: &dyn Fn(&(u64, u64)) -> bool| states.iter().position(is).expect("a peak is one of the states");
            let peak = |bytes: u64, at: usize| Peak { bytes, entry: at.checked_sub(1) };
            let allocated = states.iter().map(|state| state.0).max().expect("a state");
            let reserved = states.iter().map(|state| state.1).max().expect("a state");
            let with_it = states.iter().filter(|state| state.1 == reserved).map(|state| state.0).max().expect("a state");
            let at_allocated = first(&|state| state.0 == allocated);
            // Nothing is reserved before the first entry of a whole trace, so nothing is a peak of its own there.
            let is_none = |bytes: u64, at: usize| if bytes == 0 { peak(0, 0) } else { peak(bytes, at) };
            prop_assert_eq!(found.allocated, is_none(allocated, at_allocated));
            prop_assert_eq!(found.reserved, is_none(reserved, first(&|state| state.1 == reserved)));
            let at_both = first(&|state| *state == (with_it, reserved));
            prop_assert_eq!(
                found.allocated_at_reserved,
                if reserved == 0 { is_none(with_it, at_both) } else { peak(with_it, at_both) }
            );
            prop_assert_eq!(found.reserved_at_allocated_bytes, if allocated == 0 { 0 } else { states[at_allocated].1 });
        }
    }
}
