//! Determines whether a run died of an out-of-memory error or survived it.
//!
//! A request that is served after the error proves nothing: while a program dies, its error handling, printing and cleanup
//! still allocate, sometimes a lot. Later requests are evidence if the program repeated the request that had failed, or
//! continued to allocate as much as had failed at the call sites that had allocated before. A call site that had not
//! allocated before counts once, however often it allocates: a handler that copies tensors in a loop is one call site,
//! whereas the next phase of a program has many.

use parkade_recording::{Action, DeviceRecording, Entry, StackId};
use rustc_hash::FxHashMap;

/// A run has continued if it then allocates at least one part in this many of what was live at its error.
const GOES_ON_PART: u64 = 16;
/// A run that has continued allocates at least this much.
const GOES_ON_BYTES: u64 = 1 << 20;

/// The end of a recorded run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// No request ran out of memory.
    NoError,
    /// Requests ran out of memory, and the run continued after each one.
    Survived(AfterError),
    /// The run did not continue after this error, or the recording shows nothing after it.
    Died(AfterError),
}

/// An out-of-memory error and what followed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AfterError {
    /// The entry of the error.
    pub entry: usize,
    /// The bytes requested.
    pub wanted_bytes: u64,
    /// The number of requests served afterwards.
    pub served: usize,
    /// The total bytes of these requests.
    pub served_bytes: u64,
    /// The part of these bytes that shows that the run continued: those requested at call sites that had allocated before the
    /// error, and the largest request of each other call site. All of them if the recording has no stacks.
    pub telling_bytes: u64,
    /// The first entry after the error at which a request with the error's stack and at least half its size was served.
    pub asked_again_at: Option<usize>,
    /// The number of telling bytes at or above which the run counts as having continued.
    pub goes_on_bytes: u64,
}

impl Ending {
    /// Judges a device's trace. A run dies of the first error after which it did not continue; if it always continued, the
    /// last error is returned.
    #[must_use]
    pub fn of(recording: &DeviceRecording) -> Ending {
        let trace = &recording.trace;
        if !trace.iter().any(|line| line.action == Action::Oom) {
            return Ending::NoError;
        }
        let served_from = served_from(trace);
        let mut last = None;
        let mut live = live_at_start(recording);
        for (entry, line) in trace.iter().enumerate() {
            match line.action {
                Action::Alloc => live += i128::from(line.size),
                Action::FreeRequested => live -= i128::from(line.size),
                Action::Oom => {
                    let after = AfterError::of(trace, entry, served_from[entry], u64::try_from(live).unwrap_or(0));
                    if !after.went_on() {
                        return Ending::Died(after);
                    }
                    last = Some(after);
                }
                _ => {}
            }
        }
        // Of the errors that the byte counts alone show were survived, only the one that is returned also needs the other
        // evidence.
        last.map_or(Ending::NoError, |last| Ending::Survived(last.with_stack(trace)))
    }

    /// Returns the error that the run died of.
    #[must_use]
    pub const fn death(&self) -> Option<&AfterError> {
        match self {
            Ending::Died(after) => Some(after),
            _ => None,
        }
    }

    /// Returns the error that it died of, or the last one that it survived.
    #[must_use]
    pub const fn error(&self) -> Option<&AfterError> {
        match self {
            Ending::NoError => None,
            Ending::Survived(after) | Ending::Died(after) => Some(after),
        }
    }
}

parkade_recording::names! {
    Ending {
        Ending::NoError => "no_error",
        Ending::Survived(_) => "survived",
        Ending::Died(_) => "died",
    }
}

impl AfterError {
    fn of(trace: &[Entry], entry: usize, served: Served, live_bytes: u64) -> AfterError {
        let wanted_bytes = trace[entry].size;
        let goes_on_bytes = wanted_bytes.max(live_bytes / GOES_ON_PART).max(GOES_ON_BYTES);
        let Served { requests: served, bytes: served_bytes, telling_bytes } = served;
        let after = AfterError { entry, wanted_bytes, served, served_bytes, telling_bytes, asked_again_at: None, goes_on_bytes };
        if after.went_on() { after } else { after.with_stack(trace) }
    }

    /// Looks for a later request with the error's stack.
    fn with_stack(self, trace: &[Entry]) -> AfterError {
        let error = &trace[self.entry];
        let is_again =
            |line: &Entry| line.action == Action::Alloc && line.stack == error.stack && line.size >= error.size.div_ceil(2);
        let later = || trace.iter().skip(self.entry + 1).position(is_again);
        let found = if error.stack == StackId::NONE { None } else { later() };
        AfterError { asked_again_at: found.map(|further| self.entry + 1 + further), ..self }
    }

    /// Returns whether the run continued: either a request of at least half the failed size was served with the same stack,
    /// or enough telling bytes were served to indicate a running program.
    #[must_use]
    pub const fn went_on(&self) -> bool {
        self.asked_again_at.is_some() || self.telling_bytes >= self.goes_on_bytes
    }
}

/// The requests that are served at or after a given entry.
#[derive(Clone, Copy, Default)]
struct Served {
    requests: usize,
    bytes: u64,
    telling_bytes: u64,
}

/// The total that one call site, identified by its stack, allocates.
#[derive(Clone, Copy, Default)]
struct AtStack {
    first: usize,
    bytes: u64,
    largest_bytes: u64,
}

/// Returns, for each entry, what is served at or after it. This takes a single pass, because a run may survive thousands of
/// errors.
fn served_from(trace: &[Entry]) -> Vec<Served> {
    let mut places: FxHashMap<StackId, AtStack> = FxHashMap::default();
    for (entry, line) in trace.iter().enumerate().filter(|(_, line)| line.action == Action::Alloc && line.stack != StackId::NONE)
    {
        let place = places.entry(line.stack).or_insert(AtStack { first: entry, ..AtStack::default() });
        place.bytes = place.bytes.saturating_add(line.size);
        place.largest_bytes = place.largest_bytes.max(line.size);
    }
    let mut served = Served::default();
    // For the call sites that the program first reaches from here on: what they allocate beyond their largest request.
    let mut repeated_bytes = 0_u64;
    let mut from = vec![served; trace.len()];
    for (entry, line) in trace.iter().enumerate().rev() {
        if line.action == Action::Alloc {
            (served.requests, served.bytes) = (served.requests + 1, served.bytes.saturating_add(line.size));
            let new = places.get(&line.stack).filter(|place| place.first == entry);
            repeated_bytes = repeated_bytes.saturating_add(new.map_or(0, |place| place.bytes - place.largest_bytes));
        }
        served.telling_bytes = served.bytes.saturating_sub(repeated_bytes);
        from[entry] = served;
    }
    from
}

/// Returns the live bytes before the first entry: the live bytes at the end minus what the trace added.
fn live_at_start(recording: &DeviceRecording) -> i128 {
    let blocks = recording.segments.iter().flat_map(|segment| &segment.blocks);
    let is_live = |state| state == parkade_recording::BlockState::ActiveAllocated;
    let at_end: i128 = blocks.filter(|block| is_live(block.state)).map(|block| i128::from(block.size)).sum();
    let change = |line: &Entry| match line.action {
        Action::Alloc => i128::from(line.size),
        Action::FreeRequested => -i128::from(line.size),
        _ => 0,
    };
    (at_end - recording.trace.iter().map(change).sum::<i128>()).max(0)
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;

    const MIB: u64 = 1 << 20;

    /// Returns three stacks; the first one is none.
    fn stacks() -> [StackId; 3] {
        let mut recording = parkade_recording::Recording::default();
        let mut at = |name: &str| {
            let frame = parkade_recording::Frame { filename: "train.py".into(), line: 1, name: name.into() };
            let frame = recording.stacks.intern_frame(frame);
            recording.stacks.intern_stack(&[frame])
        };
        [StackId::NONE, at("one"), at("other")]
    }

    /// Returns what followed the error at an entry, from the definitions of its parts. `live` is live before the first entry.
    fn after(trace: &[Entry], entry: usize, live: u64) -> AfterError {
        let (before, error, later) = (&trace[..entry], &trace[entry], &trace[entry + 1..]);
        let sum = |lines: &[Entry], action| lines.iter().filter(|line| line.action == action).map(|line| line.size).sum::<u64>();
        let live = (live + sum(before, Action::Alloc)).saturating_sub(sum(before, Action::FreeRequested));
        let served: Vec<&Entry> = later.iter().filter(|line| line.action == Action::Alloc).collect();
        let is_known =
            |stack| stack == StackId::NONE || before.iter().any(|line| line.action == Action::Alloc && line.stack == stack);
        let at_known: u64 = served.iter().filter(|line| is_known(line.stack)).map(|line| line.size).sum();
        let largest = |stack| served.iter().filter(|line| line.stack == stack).map(|line| line.size).max().unwrap_or(0);
        let at_new: u64 = stacks().into_iter().filter(|&stack| !is_known(stack)).map(largest).sum();
        let is_again = |line: &&Entry| line.action == Action::Alloc && line.stack == error.stack && 2 * line.size >= error.size;
        let again = later.iter().enumerate().find(|(_, line)| is_again(line)).map(|(further, _)| entry + 1 + further);
        AfterError {
            entry,
            wanted_bytes: error.size,
            served: served.len(),
            served_bytes: served.iter().map(|line| line.size).sum(),
            telling_bytes: at_known + at_new,
            asked_again_at: again.filter(|_| error.stack != StackId::NONE),
            goes_on_bytes: error.size.max(live / 16).max(MIB),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        /// The sizes are such that the telling bytes often equal the bytes that show that a run went on.
        #[test]
        fn a_run_ends_as_the_definitions_say(
            lines in vec(
                (
                    select(vec![Action::Alloc, Action::Alloc, Action::FreeRequested, Action::Oom]),
                    select(vec![1, 2, 3, MIB / 2, MIB / 2 + 1, MIB - 1, MIB, 2 * MIB, 16 * MIB, 32 * MIB]),
                    0..3_usize,
                ),
                0..9,
            ),
            live in select(vec![0, 200 * MIB]),
        ) {
            let stacks = stacks();
            let entry = |(place, &(action, size, stack)): (usize, &(Action, u64, usize))| {
                let mut entry = Entry::new(action, (place as u64) << 40, size, 0);
                entry.stack = stacks[stack];
                entry
            };
            let trace: Vec<Entry> = lines.iter().enumerate().map(entry).collect();
            let change = |line: &Entry| match line.action {
                Action::Alloc => line.size as i64,
                Action::FreeRequested => -(line.size as i64),
                _ => 0,
            };
            // What the trace frees but does not allocate is live before the first entry.
            let lowest = trace.iter().scan(0, |sum, line| { *sum += change(line); Some(*sum) }).min().unwrap_or(0).min(0);
            let live = live + lowest.unsigned_abs();
            let at_end = live as i64 + trace.iter().map(change).sum::<i64>();
            let block = parkade_recording::Block {
                address: 0,
                size: at_end as u64,
                requested: None,
                state: parkade_recording::BlockState::ActiveAllocated,
                stack: StackId::NONE,
            };
            let segments = vec![parkade_recording::Segment::new(vec![block])];
            let errors: Vec<AfterError> = trace
                .iter()
                .enumerate()
                .filter(|(_, line)| line.action == Action::Oom)
                .map(|(entry, _)| after(&trace, entry, live))
                .collect();
            let went_on = |error: &&AfterError| error.asked_again_at.is_some() || error.telling_bytes >= error.goes_on_bytes;
            let expected = match (errors.iter().find(|error| !went_on(error)), errors.last()) {
                (Some(&died), _) => Ending::Died(died),
                (None, Some(&last)) => Ending::Survived(last),
                (None, None) => Ending::NoError,
            };
            let recording = DeviceRecording { trace, segments, ..DeviceRecording::default() };
            prop_assert_eq!(Ending::of(&recording), expected);
        }
    }

    fn ending(lines: &[(Action, u64)]) -> Ending {
        let trace =
            lines.iter().enumerate().map(|(place, &(action, mib))| Entry::new(action, (place as u64) << 40, mib * MIB, 0));
        Ending::of(&DeviceRecording { trace: trace.collect(), ..DeviceRecording::default() })
    }

    /// Of an odd size, half is rounded up. No request is large enough to show anything by its size.
    #[test]
    fn at_least_half_of_the_failed_size_is_asked_again() {
        let stack = stacks()[1];
        for (wanted, less) in [1, 2, 3, 1024, 1025, MIB - 1].into_iter().flat_map(|wanted| (0..3).map(move |less| (wanted, less)))
        {
            let size = (wanted / 2 + 2 - less).max(1);
            let mut trace = vec![Entry::new(Action::Oom, 0, wanted, 0), Entry::new(Action::Alloc, 1 << 40, size, 0)];
            trace.iter_mut().for_each(|entry| entry.stack = stack);
            let ending = Ending::of(&DeviceRecording { trace, ..DeviceRecording::default() });
            assert_eq!(ending.death().is_none(), 2 * size >= wanted, "{size} after {wanted}");
        }
    }

    #[test]
    fn a_little_memory_after_the_error_is_not_going_on() {
        use Action::{Alloc, FreeRequested, Oom};
        assert_eq!(ending(&[(Alloc, 100)]), Ending::NoError);
        let died = ending(&[(Alloc, 900), (Oom, 200), (FreeRequested, 900), (Alloc, 1), (Alloc, 1), (Alloc, 1)]);
        let Ending::Died(after) = died else { panic!("{died:?}") };
        assert_eq!((after.entry, after.served, after.served_bytes), (1, 3, 3 * MIB));
        assert!(matches!(ending(&[(Alloc, 900), (Oom, 200)]), Ending::Died(_)), "nothing is known of what follows");
        let survived = ending(&[(Alloc, 900), (Oom, 200), (Alloc, 150), (Alloc, 150)]);
        assert!(matches!(survived, Ending::Survived(AfterError { entry: 1, .. })), "{survived:?}");
    }

    #[test]
    fn a_handler_that_allocates_in_a_loop_is_not_going_on() {
        use Action::{Alloc, Oom};
        let mut recording = parkade_recording::Recording::default();
        let mut at = |name: &str| {
            let frame = parkade_recording::Frame { filename: "train.py".into(), line: 1, name: name.into() };
            let frame = recording.stacks.intern_frame(frame);
            recording.stacks.intern_stack(&[frame])
        };
        let (forward, failing) = (at("forward"), at("attention"));
        let handler = [at("save"); 8];
        let next: Vec<StackId> = ["embed", "encode", "decode", "attend", "norm", "head", "loss", "score"].map(&mut at).to_vec();
        let run = |after: &[StackId]| {
            let mut trace = vec![(Alloc, 900, forward), (Oom, 200, failing)];
            trace.extend(after.iter().map(|&stack| (Alloc, 40, stack)));
            let entry = |(place, &(action, mib, stack)): (usize, &(Action, u64, StackId))| {
                let mut entry = Entry::new(action, (place as u64) << 40, mib * MIB, 0);
                entry.stack = stack;
                entry
            };
            Ending::of(&DeviceRecording { trace: trace.iter().enumerate().map(entry).collect(), ..DeviceRecording::default() })
        };
        let died = run(&handler);
        assert_eq!(died.death().map(|after| (after.served_bytes, after.telling_bytes)), Some((320 * MIB, 40 * MIB)), "{died:?}");
        assert!(matches!(run(&[forward; 8]), Ending::Survived(_)), "where it allocated before");
        assert!(matches!(run(&next), Ending::Survived(_)), "the next phase of the program");
        assert!(matches!(run(&[StackId::NONE; 8]), Ending::Survived(_)), "nothing else is known");
    }

    #[test]
    fn the_first_error_that_ended_it_counts() {
        use Action::{Alloc, Oom};
        let after = ending(&[(Alloc, 90), (Oom, 20), (Alloc, 30), (Oom, 20), (Oom, 20), (Alloc, 1)]);
        assert_eq!(after.death().map(|after| after.entry), Some(3), "it went on after the first");
    }
}
