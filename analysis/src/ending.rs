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
        let is_again = |line: &Entry| line.action == Action::Alloc && line.stack == error.stack && line.size >= error.size / 2;
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
    use super::*;

    const MIB: u64 = 1 << 20;

    fn ending(lines: &[(Action, u64)]) -> Ending {
        let trace =
            lines.iter().enumerate().map(|(place, &(action, mib))| Entry::new(action, (place as u64) << 40, mib * MIB, 0));
        Ending::of(&DeviceRecording { trace: trace.collect(), ..DeviceRecording::default() })
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
