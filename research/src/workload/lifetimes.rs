//! How long a program's buffers live: a table of sizes, lifetimes and phases.
//!
//! A buffer's phase is that of its request: before the first step, in the steps, or after the last one. Its lifetime is counted
//! in requests if it is freed in the step in which it was requested, and in steps otherwise. Steps are those that the workload
//! marks or, without marks, those that its requests repeat ([`Workload::repeating_step`]).

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::{Event, Workload};

/// The upper ends of the classes of sizes, in bytes; larger sizes are one more class. PyTorch's pools divide at 1 MiB and
/// 10 MiB.
const SIZES: [u64; 6] = [512, 64 << 10, 1 << 20, 10 << 20, 64 << 20, 512 << 20];

/// A part of the program.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Phase {
    /// Before the first step.
    Setup,
    /// From the beginning of the first step to the end of the last one.
    Steps,
    /// After the last step.
    End,
    /// Anywhere, because no steps are known.
    Unknown,
}

impl Phase {
    /// Returns its name: lower case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Phase::Setup => "setup",
            Phase::Steps => "steps",
            Phase::End => "end",
            Phase::Unknown => "unknown",
        }
    }
}

/// A class of lifetimes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Lifetime {
    /// Freed before the next request.
    BeforeTheNext,
    /// Freed in the same step, after at most 10 requests.
    UpTo10,
    /// Freed in the same step, after at most 100 requests.
    UpTo100,
    /// Freed in the same step, after at most 1,000 requests.
    UpTo1000,
    /// Freed in the same step, after more requests.
    Longer,
    /// Freed in the next step.
    NextStep,
    /// Freed in a later step.
    LaterStep,
    /// Never freed.
    Kept,
}

impl Lifetime {
    /// Returns its name: lower case, words joined by hyphens.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Lifetime::BeforeTheNext => "before-the-next-request",
            Lifetime::UpTo10 => "up-to-10-requests",
            Lifetime::UpTo100 => "up-to-100-requests",
            Lifetime::UpTo1000 => "up-to-1000-requests",
            Lifetime::Longer => "more-requests",
            Lifetime::NextStep => "next-step",
            Lifetime::LaterStep => "later-step",
            Lifetime::Kept => "kept",
        }
    }

    const fn of(requests: usize, steps: usize) -> Lifetime {
        match (steps, requests) {
            (0, 0) => Lifetime::BeforeTheNext,
            (0, ..=10) => Lifetime::UpTo10,
            (0, ..=100) => Lifetime::UpTo100,
            (0, ..=1000) => Lifetime::UpTo1000,
            (0, _) => Lifetime::Longer,
            (1, _) => Lifetime::NextStep,
            _ => Lifetime::LaterStep,
        }
    }
}

/// The buffers of one phase, one class of sizes and one class of lifetimes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lives {
    /// The phase of their requests.
    pub phase: Phase,
    /// Their sizes are above this many bytes.
    pub above_bytes: u64,
    /// Their sizes are at most this many bytes; `None` in the class of the largest sizes.
    pub up_to_bytes: Option<u64>,
    /// Their lifetime.
    pub lifetime: Lifetime,
    /// Their number.
    pub requests: u64,
    /// Their bytes, as requested.
    pub bytes: u64,
    /// The part of these bytes that is live at the program's peak of live bytes.
    pub at_peak_bytes: u64,
}

/// The source of the steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StepsFrom {
    /// The workload marks them.
    Marks,
    /// Its requests repeat.
    Repetition,
    /// None are known.
    Nothing,
}

impl StepsFrom {
    /// Returns its name: lower case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            StepsFrom::Marks => "marks",
            StepsFrom::Repetition => "repetition",
            StepsFrom::Nothing => "nothing",
        }
    }
}

/// Lifetimes, in requests: the requests that follow a buffer's own until it is freed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spread {
    /// The least.
    pub least: u64,
    /// The median; the lower of the two in the middle.
    pub median: u64,
    /// The greatest.
    pub greatest: u64,
}

impl Spread {
    /// Returns the spread of lifetimes, or `None` if there are none.
    #[must_use]
    pub fn of(mut lifetimes: Vec<u64>) -> Option<Spread> {
        lifetimes.sort_unstable();
        let median = *lifetimes.get(lifetimes.len().saturating_sub(1) / 2)?;
        Some(Spread { least: *lifetimes.first()?, median, greatest: *lifetimes.last()? })
    }
}

/// The buffers of one size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OfSize {
    /// The size of each, as requested.
    pub each_bytes: u64,
    /// Their number.
    pub requests: u64,
    /// The number of those that are never freed.
    pub kept: u64,
    /// The lifetimes of the others.
    pub lifetimes: Option<Spread>,
}

impl OfSize {
    /// Returns the sum of their sizes.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.each_bytes.saturating_mul(self.requests)
    }
}

/// All buffers of a workload by phase, size and lifetime.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lifetimes {
    /// The classes that have buffers, by phase, size and lifetime.
    pub rows: Vec<Lives>,
    /// The buffers by exact size, those with the most bytes in total first.
    pub sizes: Vec<OfSize>,
    /// The number of steps.
    pub steps: usize,
    /// Where the steps are from.
    pub steps_from: StepsFrom,
    /// The first event with the most live bytes.
    pub peak_event: usize,
    /// The most live bytes, as requested.
    pub peak_bytes: u64,
}

/// The events at which steps begin and end.
struct Steps {
    /// The first event of each step.
    begins: Vec<usize>,
    /// The event after the last step.
    end: usize,
    from: StepsFrom,
}

impl Steps {
    fn of(workload: &Workload, end: Option<usize>) -> Steps {
        let events = workload.events.len();
        let marked: Vec<usize> = workload.steps.iter().map(|&step| step as usize).collect();
        let repeated = workload.repeating_step().map(|step| {
            let mut requests = workload.events.iter().enumerate().filter_map(|(at, event)| match event {
                Event::Allocate { buffer, .. } => Some((*buffer, at)),
                _ => None,
            });
            let wanted: Vec<u32> =
                step.requests.iter().skip(step.begin).step_by(step.length).map(|request| request.buffer).collect();
            wanted.iter().filter_map(|wanted| requests.find(|(buffer, _)| buffer == wanted)).map(|(_, at)| at).collect::<Vec<_>>()
        });
        let end = end.unwrap_or(events);
        match (marked.as_slice(), repeated) {
            // A recording's first step begins with the recording. What precedes the repeated part of it is the setup.
            ([0, second, ..], Some(repeated)) if repeated.first().is_some_and(|first| first < second) => {
                let begins = repeated.into_iter().take(1).chain(marked.into_iter().skip(1)).collect();
                Steps { begins, end, from: StepsFrom::Marks }
            }
            ([_, _, ..], _) => Steps { begins: marked, end, from: StepsFrom::Marks },
            (_, Some(begins)) => Steps { begins, end, from: StepsFrom::Repetition },
            (_, None) => Steps { begins: Vec::new(), end, from: StepsFrom::Nothing },
        }
    }

    /// The number of steps that have begun by an event; what follows the last step counts as one more.
    fn begun(&self, event: usize) -> usize {
        self.begins.partition_point(|&begin| begin <= event) + usize::from(!self.begins.is_empty() && event >= self.end)
    }

    fn phase(&self, event: usize) -> Phase {
        match self.begins.first() {
            None => Phase::Unknown,
            Some(&first) if event < first => Phase::Setup,
            _ if event >= self.end => Phase::End,
            _ => Phase::Steps,
        }
    }
}

impl Lifetimes {
    /// Returns the lifetimes of a workload's buffers. `steps_end` is the event after its last step, if that is known; otherwise
    /// the last step includes all that follows it.
    #[must_use]
    pub fn of(workload: &Workload, steps_end: Option<usize>) -> Lifetimes {
        let steps = Steps::of(workload, steps_end);
        let (peak_event, peak_bytes) = peak(workload);
        // The event and the number of the request, by buffer.
        let mut requested: Vec<(usize, u64)> = Vec::new();
        let mut freed: Vec<Option<(usize, usize)>> = Vec::new();
        for (at, event) in workload.events.iter().enumerate() {
            match *event {
                Event::Allocate { bytes, .. } => {
                    requested.push((at, bytes));
                    freed.push(None);
                }
                Event::Free { buffer } => {
                    let after = requested.len().saturating_sub(1);
                    if let Some(freed) = freed.get_mut(buffer as usize) {
                        *freed = Some((at, after.saturating_sub(buffer as usize)));
                    }
                }
                _ => {}
            }
        }
        let mut classes: BTreeMap<(Phase, usize, Lifetime), [u64; 3]> = BTreeMap::new();
        for (&(at, bytes), freed) in requested.iter().zip(&freed) {
            let lifetime = freed.map_or(Lifetime::Kept, |(end, requests)| {
                Lifetime::of(requests, steps.begun(end).saturating_sub(steps.begun(at)))
            });
            let size = SIZES.partition_point(|&up_to| up_to < bytes);
            let is_at_peak = at <= peak_event && freed.is_none_or(|(end, _)| end > peak_event);
            let [requests, all, at_peak] = classes.entry((steps.phase(at), size, lifetime)).or_default();
            *requests += 1;
            *all = all.saturating_add(bytes);
            *at_peak = at_peak.saturating_add(if is_at_peak { bytes } else { 0 });
        }
        let row = |((phase, size, lifetime), [requests, bytes, at_peak_bytes]): (_, [u64; 3])| {
            let above_bytes = if size == 0 { 0 } else { SIZES[size - 1] };
            Lives { phase, above_bytes, up_to_bytes: SIZES.get(size).copied(), lifetime, requests, bytes, at_peak_bytes }
        };
        let rows = classes.into_iter().map(row).collect();
        let lives = requested.iter().zip(&freed).map(|(&(_, bytes), freed)| (bytes, freed.map(|(_, requests)| requests as u64)));
        Lifetimes { rows, sizes: by_size(lives), steps: steps.begins.len(), steps_from: steps.from, peak_event, peak_bytes }
    }
}

/// Returns the buffers by size. Each has its size and its lifetime in requests; `None` if it is never freed.
fn by_size(lives: impl Iterator<Item = (u64, Option<u64>)>) -> Vec<OfSize> {
    let mut sizes: BTreeMap<u64, (u64, Vec<u64>)> = BTreeMap::new();
    for (bytes, lifetime) in lives {
        let (requests, lifetimes) = sizes.entry(bytes).or_default();
        *requests += 1;
        lifetimes.extend(lifetime);
    }
    let of_size = |(each_bytes, (requests, lifetimes)): (u64, (u64, Vec<u64>))| {
        let kept = requests - lifetimes.len() as u64;
        OfSize { each_bytes, requests, kept, lifetimes: Spread::of(lifetimes) }
    };
    let mut sizes: Vec<OfSize> = sizes.into_iter().map(of_size).collect();
    sizes.sort_by_key(|size| (Reverse(size.bytes()), Reverse(size.each_bytes)));
    sizes
}

/// Returns the first event with the most live bytes, and these bytes.
fn peak(workload: &Workload) -> (usize, u64) {
    let (mut sizes, mut live, mut most) = (Vec::new(), 0_u64, (0, 0));
    for (at, event) in workload.events.iter().enumerate() {
        match *event {
            Event::Allocate { bytes, .. } => {
                sizes.push(bytes);
                live = live.saturating_add(bytes);
            }
            Event::Free { buffer } => live = live.saturating_sub(sizes.get_mut(buffer as usize).map_or(0, std::mem::take)),
            _ => {}
        }
        if live > most.1 {
            most = (at, live);
        }
    }
    most
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::workload::parse;

    fn allocate(buffer: u32, bytes: u64) -> Event {
        Event::Allocate { buffer, bytes, stream: 0 }
    }

    fn free(buffer: u32) -> Event {
        Event::Free { buffer }
    }

    /// A weight; two steps, each with scratch memory, an activation, and a state that the next step frees; and a result.
    fn program() -> Workload {
        let events = vec![
            allocate(0, 600),
            allocate(1, 100),
            free(1),
            allocate(2, 2 << 20),
            allocate(3, 300),
            free(2),
            allocate(4, 100),
            free(4),
            free(3),
            allocate(5, 2 << 20),
            allocate(6, 300),
            free(5),
            allocate(7, 1 << 30),
        ];
        Workload { name: "program".into(), events, steps: vec![1, 6], ..Workload::default() }
    }

    #[test]
    fn every_buffer_is_in_the_class_of_its_phase_size_and_lifetime() {
        let found = Lifetimes::of(&program(), Some(12));
        let rows: Vec<_> =
            found.rows.iter().map(|row| (row.phase, row.up_to_bytes, row.lifetime, row.requests, row.bytes)).collect();
        assert_eq!(
            rows,
            [
                (Phase::Setup, Some(64 << 10), Lifetime::Kept, 1, 600),
                (Phase::Steps, Some(512), Lifetime::BeforeTheNext, 2, 200),
                (Phase::Steps, Some(512), Lifetime::NextStep, 1, 300),
                (Phase::Steps, Some(512), Lifetime::Kept, 1, 300),
                (Phase::Steps, Some(10 << 20), Lifetime::UpTo10, 2, 4 << 20),
                (Phase::End, None, Lifetime::Kept, 1, 1 << 30),
            ]
        );
        assert_eq!((found.steps, found.steps_from, found.peak_event), (2, StepsFrom::Marks, 12));
        let of = |bytes| *found.sizes.iter().find(|size| size.each_bytes == bytes).expect("a size");
        let spread = |least, median, greatest| Some(Spread { least, median, greatest });
        assert_eq!(of(2 << 20), OfSize { each_bytes: 2 << 20, requests: 2, kept: 0, lifetimes: spread(1, 1, 1) });
        assert_eq!(of(300), OfSize { each_bytes: 300, requests: 2, kept: 1, lifetimes: spread(1, 1, 1) });
        assert_eq!(of(600), OfSize { each_bytes: 600, requests: 1, kept: 1, lifetimes: None });
        assert_eq!(found.sizes[0].each_bytes, 1 << 30, "the most bytes first");
        assert_eq!(Spread::of(vec![9, 1, 4, 5]), spread(1, 4, 9));
        let at_peak: u64 = found.rows.iter().map(|row| row.at_peak_bytes).sum();
        assert_eq!((at_peak, found.peak_bytes), (600 + 300 + (1 << 30), 600 + 300 + (1 << 30)));
    }

    #[test]
    fn steps_are_found_without_marks() {
        let marked = parse("mlp:depth=4,batch=8,steps=6").expect("a workload");
        let unmarked = Workload { steps: Vec::new(), ..marked.clone() };
        let (with, without) = (Lifetimes::of(&marked, None), Lifetimes::of(&unmarked, None));
        assert_eq!((with.steps_from, without.steps_from), (StepsFrom::Marks, StepsFrom::Repetition));
        assert!(without.steps >= 5, "{}", without.steps);
        let setup = |found: &Lifetimes| found.rows.iter().any(|row| row.phase == Phase::Setup && row.lifetime == Lifetime::Kept);
        assert!(setup(&with) && setup(&without));
        let none = Lifetimes::of(&Workload { events: vec![allocate(0, 1)], ..Workload::default() }, None);
        assert_eq!((none.steps_from, none.rows[0].phase), (StepsFrom::Nothing, Phase::Unknown));
    }

    #[test]
    fn all_bytes_of_a_program_are_in_some_class() {
        let workload =
            parse("transformer:layers=2,hidden=64,heads=2,vocabulary=100,sequence=64,batch=8,steps=3").expect("a workload");
        let found = Lifetimes::of(&workload, None);
        let requests: u64 = found.rows.iter().map(|row| row.requests).sum();
        let at_peak: u64 = found.rows.iter().map(|row| row.at_peak_bytes).sum();
        assert_eq!((requests, at_peak), (workload.buffers() as u64, workload.load_bytes(1)));
    }

    /// Returns the class of a lifetime, from the descriptions of the classes.
    fn class_of(requests: usize, steps: usize) -> Lifetime {
        let of_the_step = [Lifetime::UpTo10, Lifetime::UpTo100, Lifetime::UpTo1000];
        let most = [10, 100, 1000];
        match steps {
            0 if requests == 0 => Lifetime::BeforeTheNext,
            0 => (0..3).find(|&class| requests <= most[class]).map_or(Lifetime::Longer, |class| of_the_step[class]),
            1 => Lifetime::NextStep,
            _ => Lifetime::LaterStep,
        }
    }

    #[test]
    fn the_borders_of_lifetimes_belong_to_the_shorter_class() {
        for requests in [0, 1, 9, 10, 11, 99, 100, 101, 999, 1000, 1001, 5000] {
            for steps in 0..4 {
                assert_eq!(Lifetime::of(requests, steps), class_of(requests, steps), "{requests} {steps}");
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        /// Compares with looking at one buffer after the other.
        #[test]
        fn each_buffer_counts_in_the_class_of_its_own_events(
            steps in vec((any::<bool>(), 0..64_usize), 1..24),
            marks in vec(1..20_usize, 0..4),
            end in 0..30_usize,
        ) {
            let border = SIZES[2];
            let bytes = [1, 511, 512, 513, border - 1, border, border + 1, (512 << 20) + 1];
            let (mut events, mut live, mut count) = (Vec::new(), Vec::new(), 0);
            for (allocates, number) in steps {
                if allocates || live.is_empty() {
                    events.push(allocate(count, bytes[number % bytes.len()]));
                    live.push(count);
                    count += 1;
                } else {
                    events.push(free(live.remove(number % live.len())));
                }
            }
            let mut begins: Vec<usize> = marks.into_iter().filter(|&mark| mark < events.len()).collect();
            begins.sort_unstable();
            begins.dedup();
            prop_assume!(begins.len() > 1);
            // The last step ends after it began.
            let end = end.clamp(begins[begins.len() - 1] + 1, events.len());
            let marks = begins.iter().map(|&begin| begin as u32).collect();
            let workload = Workload { name: "drawn".into(), events: events.clone(), steps: marks, ..Workload::default() };
            let levels: Vec<u64> = (0..events.len()).map(|last| live_bytes(&events[..=last])).collect();
            let peak = (0..levels.len()).find(|&at| levels.iter().all(|&level| level <= levels[at])).expect("an event");
            // The number of borders between two events: where steps begin, and where the last one ends.
            let borders =
                |from: usize, to: usize| begins.iter().chain([&end]).filter(|&&border| from < border && border <= to).count();
            let mut expected: BTreeMap<(Phase, u64, Option<u64>, Lifetime), [u64; 3]> = BTreeMap::new();
            for (at, event) in events.iter().enumerate() {
                let Event::Allocate { buffer, bytes, .. } = *event else { continue };
                let freed = events.iter().position(|event| *event == free(buffer));
                let phase = if at < begins[0] {
                    Phase::Setup
                } else if at < end {
                    Phase::Steps
                } else {
                    Phase::End
                };
                let requests =
                    |to: usize| events[at + 1..to].iter().filter(|event| matches!(event, Event::Allocate { .. })).count();
                let lifetime = freed.map_or(Lifetime::Kept, |to| class_of(requests(to), borders(at, to)));
                let above = SIZES.iter().copied().filter(|&size| size < bytes).max().unwrap_or(0);
                let up_to = SIZES.iter().copied().find(|&size| bytes <= size);
                let is_live = at <= peak && freed.is_none_or(|to| to > peak);
                let class = expected.entry((phase, above, up_to, lifetime)).or_default();
                *class = [class[0] + 1, class[1] + bytes, class[2] + if is_live { bytes } else { 0 }];
            }
            let found = Lifetimes::of(&workload, Some(end));
            prop_assert_eq!((found.steps, found.steps_from), (begins.len(), StepsFrom::Marks));
            prop_assert_eq!((found.peak_event, found.peak_bytes), (peak, levels[peak]));
            let rows = found.rows.iter().map(|row| {
                ((row.phase, row.above_bytes, row.up_to_bytes, row.lifetime), [row.requests, row.bytes, row.at_peak_bytes])
            });
            prop_assert_eq!(rows.collect::<BTreeMap<_, _>>(), expected);
            prop_assert!(found.sizes.is_sorted_by_key(|size| (Reverse(size.bytes()), Reverse(size.each_bytes))));
        }

        #[test]
        fn a_spread_is_that_of_the_sorted_lifetimes(lifetimes in vec(0..9_u64, 0..9)) {
            let found = Spread::of(lifetimes.clone());
            prop_assert_eq!(
                found.map(|spread| (spread.least, spread.greatest)),
                lifetimes.iter().min().copied().zip(lifetimes.iter().max().copied())
            );
            if let Some(Spread { median, .. }) = found {
                let below = lifetimes.iter().filter(|&&lifetime| lifetime < median).count();
                let above = lifetimes.iter().filter(|&&lifetime| lifetime > median).count();
                // At most half lies above; less than half lies below, because the lower of two in the middle counts.
                prop_assert!(2 * above <= lifetimes.len() && 2 * below < lifetimes.len(), "{median} of {lifetimes:?}");
            }
        }
    }

    /// Returns the bytes that are live after these events.
    fn live_bytes(events: &[Event]) -> u64 {
        let is_live = |event: &&Event| matches!(event, Event::Allocate { buffer, .. } if !events.contains(&free(*buffer)));
        let bytes = |event: &Event| if let Event::Allocate { bytes, .. } = event { *bytes } else { 0 };
        events.iter().filter(is_live).map(bytes).sum()
    }
}
