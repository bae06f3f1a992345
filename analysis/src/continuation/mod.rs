//! What a program that died would have done next, as far as its earlier steps tell.
//!
//! A recording of a run that died ends with the request that failed. If the program is a loop, it was in the same place before, once in
//! every step (`repeats`). What it did then is copied behind its end (`splice`): first the rest of the step that failed, with sizes
//! in proportion to what that step had requested already (`sizes`), then the earlier steps once more, as they were.

mod align;
mod doubt;
mod repeats;
mod shape;
mod sizes;
mod splice;
#[cfg(test)]
mod tests;

use align::{Alignment, Direction, align};
pub use doubt::Doubt;
use parkade_recording::DeviceRecording;
use parkade_replay::{Operation, Requests};
use repeats::{Repeat, repeats};
use rustc_hash::FxHashMap;
use shape::Shape;
use sizes::Sizes;
use splice::Splice;

/// How many earlier steps are looked at.
const STEPS: usize = 40;
/// A step of which the sizes of a new one are worked out needs this many others at most.
const COMPARED: usize = 5;
/// The least live memory of the steps may differ by one part in this many of what steps add to it.
const STEADY_PART: u64 = 50;
/// Steps leave memory behind if the least live memory rises over at least this many.
const LEAKING: usize = 3;

/// A program that died, continued.
#[derive(Clone, Debug)]
pub struct Continuation {
    /// The recorded requests up to the one that failed, and what would have followed it. Their entries continue those of the trace. Empty
    /// if the caller has taken them.
    pub requests: Requests,
    /// How many operations are recorded; the others are estimated.
    pub recorded: usize,
    /// How many steps the program had made before the one that failed, at most forty. A first one that differs, because it makes what
    /// later ones find, counts as well.
    pub steps: usize,
    /// The most live bytes in each of these steps, the earliest first, what came before those that are alike included.
    pub step_peaks: Vec<u64>,
    /// The most live bytes in the step that failed, had it gone on.
    pub failed_step_peak: u64,
    /// What is certain of that: the most that was recorded in the step, or all of it if its sizes so far are those of an earlier step.
    pub failed_step_certain_peak: u64,
    /// The least live bytes since the first of the steps that are alike: what every step finds.
    pub floor_bytes: u64,
    /// What each step leaves in use in addition to what it found, on average, if every one does. 0 otherwise.
    pub left_by_step_bytes: u64,
    /// How many steps follow it.
    pub more_steps: usize,
    /// Whether the steps leave behind what they found. Otherwise memory in use grows or shrinks from step to step.
    pub is_steady: bool,
}

/// Continues a program whose operation `last` failed. `most` is the number of operations that may be added. `None` if the program
/// was never before where it failed.
#[must_use]
pub fn continue_after(requests: &Requests, recording: &DeviceRecording, last: usize, most: usize) -> Option<Continuation> {
    let operations = requests.operations.get(..=last)?;
    let words = Shape::of(operations, recording).words;
    let live = Live::of(operations);
    let found = repeats(&words, &live.blocks, last, STEPS);
    let latest = found.first()?;
    let moments: Vec<usize> = [last].into_iter().chain(found.iter().map(|repeat| repeat.operation)).collect();
    let is_steady = live.is_steady(&moments);
    let entries = recording.trace.len().max(operations[last].0 + 1);
    let mut splice = Splice::new(requests, last, entries);
    splice.find_lasting(latest.operation, &latest.before);
    splice.take_peak_bytes();

    // The rest of the step that failed, as in the earlier step that was most like it.
    let like = most_alike(operations, &words, last, &found);
    let before = align(&words, (moments[like], last), Direction::Backwards, last, last + 1);
    let sizes = StepSizes::of(operations, &words, &moments, like);
    splice.jump_back(moments[like], &before);
    let ends = live.lowest(moments[like], moments[like - 1]);
    splice.copy(moments[like], ends, &|place| sizes.size(operations, place));
    let failed_step_peak = splice.take_peak_bytes();
    splice.copy(ends, moments[like - 1], &|_| None);

    // Then the steps after that one, and all of them again.
    let (mut more_steps, mut place) = (0, like - 1);
    while more_steps < found.len() || splice.operations.len() - operations.len() < most {
        if place == 0 {
            if more_steps >= found.len() * 3 {
                break;
            }
            place = found.len();
            let before = align(&words, (moments[place], last), Direction::Backwards, last, last + 1);
            splice.jump_back(moments[place], &before);
        }
        if splice.operations.len() - operations.len() + (moments[place - 1] - moments[place]) > most {
            break;
        }
        splice.copy(moments[place], moments[place - 1], &|_| None);
        place -= 1;
        more_steps += 1;
    }
    let earliest = moments[found.len()];
    // A step ends where the least is live between two of the moments. After the last such place it is the step that failed.
    let ends: Vec<usize> = moments.windows(2).rev().map(|pair| live.lowest(pair[1], pair[0])).collect();
    let begins = [0].into_iter().chain(ends.iter().copied());
    let step_peaks = begins.zip(&ends).map(|(begin, &end)| live.peak(begin, end)).collect();
    let begun = ends.last().map_or(0, |&end| live.peak(end, last));
    let failed_step_peak = failed_step_peak.max(begun);
    let since = ends.last().copied().unwrap_or(0);
    let is_repeat = (begun - live.bytes[since].min(begun)) * 2 >= failed_step_peak - live.bytes[since].min(failed_step_peak)
        && repeats_sizes(operations, &before, since);
    let floors: Vec<u64> = ends.iter().map(|&end| live.bytes[end]).collect();
    let first_differs = usize::from(repeats::has_first_step(&words, earliest, last - latest.operation));
    // The copied steps have no times.
    let requests = Requests { operations: splice.operations, pace: None, ..requests.clone() };
    Some(Continuation {
        requests,
        recorded: last + 1,
        steps: found.len() + first_differs,
        step_peaks,
        failed_step_peak,
        failed_step_certain_peak: if is_repeat { failed_step_peak } else { begun },
        floor_bytes: floors.iter().copied().min().unwrap_or(0),
        left_by_step_bytes: left_by_step(&floors),
        more_steps,
        is_steady,
    })
}

/// The live memory after each operation.
struct Live {
    blocks: Vec<usize>,
    bytes: Vec<u64>,
}

impl Live {
    fn of(operations: &[(usize, Operation)]) -> Live {
        let mut sizes: FxHashMap<usize, u64> = FxHashMap::default();
        let mut live_bytes = 0_u64;
        let (mut blocks, mut bytes) = (Vec::new(), Vec::new());
        for &(_, operation) in operations {
            match operation {
                Operation::Allocate { id, bytes, failed: false, .. } => {
                    sizes.insert(id, bytes);
                    live_bytes = live_bytes.saturating_add(bytes);
                }
                Operation::Free { id, .. } => live_bytes = live_bytes.saturating_sub(sizes.remove(&id).unwrap_or(0)),
                _ => {}
            }
            blocks.push(sizes.len());
            bytes.push(live_bytes);
        }
        Live { blocks, bytes }
    }

    /// The most live bytes after the operation `from` up to `to`.
    fn peak(&self, from: usize, to: usize) -> u64 {
        self.bytes[from + 1..=to].iter().copied().max().unwrap_or(0)
    }

    /// Where the least is live after the operation `from` up to `to`, the last such place.
    fn lowest(&self, from: usize, to: usize) -> usize {
        (from + 1..=to).rev().min_by_key(|&place| self.bytes[place]).unwrap_or(to)
    }

    /// Whether the least live memory between any two of the moments (the latest first) is about the same.
    fn is_steady(&self, moments: &[usize]) -> bool {
        let least = |pair: &[usize]| self.bytes[pair[1]..=pair[0]].iter().copied().min().unwrap_or(0);
        let Some(latest) = moments.windows(2).next() else { return false };
        // With one earlier step, what came before it is compared: as much as the step is long.
        let floors: Vec<u64> = match moments {
            [now, earlier] => vec![least(latest), least(&[*earlier, earlier.saturating_sub(now - earlier)])],
            _ => moments.windows(2).take(3).map(least).collect(),
        };
        let peak = self.peak(latest[1], latest[0]);
        let (lowest, highest) = (floors.iter().min().copied().unwrap_or(0), floors.iter().max().copied().unwrap_or(0));
        highest - lowest <= peak.saturating_sub(lowest) / STEADY_PART
    }
}

/// Whether the requests after the operation `since` have the sizes of those that correspond to them.
fn repeats_sizes(operations: &[(usize, Operation)], before: &Alignment, since: usize) -> bool {
    before.pairs.iter().filter(|pair| pair.1 > since).all(|&(earlier, later)| {
        match (operations[earlier].1, operations[later].1) {
            (Operation::Allocate { bytes: one, .. }, Operation::Allocate { bytes: other, .. }) => one == other,
            _ => true,
        }
    })
}

/// By how much the floor rises from step to step, if it never falls and rises over several steps.
fn left_by_step(floors: &[u64]) -> u64 {
    match floors {
        [first, .., last] if floors.len() >= LEAKING && floors.windows(2).all(|pair| pair[0] < pair[1]) => {
            (last - first) / (floors.len() as u64 - 1)
        }
        _ => 0,
    }
}

/// Which of the moments (1 is the latest) is most like the end of the program, by the sizes of the requests before both.
fn most_alike(operations: &[(usize, Operation)], words: &[u64], last: usize, found: &[Repeat]) -> usize {
    let size = |place: usize| match operations[place].1 {
        Operation::Allocate { bytes, .. } => Some(bytes),
        _ => None,
    };
    let difference = |repeat: &Repeat| {
        let pairs = align(words, (repeat.operation, last), Direction::Backwards, 256, last + 1).pairs;
        let each = |&(earlier, later): &(usize, usize)| Some((size(earlier)?, size(later)?));
        let sizes: Vec<(u64, u64)> = pairs.iter().filter_map(each).collect();
        let differs = sizes.iter().map(|&(a, b)| a.abs_diff(b) as u128).sum::<u128>();
        (usize::MAX - pairs.len().min(128), differs)
    };
    found.iter().enumerate().min_by_key(|(_, repeat)| difference(repeat)).map_or(1, |(place, _)| place + 1)
}

/// The sizes of the step that failed.
struct StepSizes {
    sizes: Sizes,
    /// For each moment that is compared: the operations there that correspond to those after the moment that is copied.
    others: Vec<FxHashMap<usize, usize>>,
}

impl StepSizes {
    fn of(operations: &[(usize, Operation)], words: &[u64], moments: &[usize], like: usize) -> StepSizes {
        let last = moments[0];
        let compared: Vec<usize> = (1..moments.len()).filter(|&moment| moment != like).take(COMPARED - 1).collect();
        let length = moments[like - 1] - moments[like];
        let back = |moment: usize| -> FxHashMap<usize, usize> {
            let before = align(words, (moments[moment], last), Direction::Backwards, length, last + 1);
            before.pairs.into_iter().map(|(earlier, later)| (later, earlier)).collect()
        };
        let windows: Vec<FxHashMap<usize, usize>> = [like].iter().chain(&compared).map(|&moment| back(moment)).collect();
        let bytes = |place: usize| match operations.get(place)?.1 {
            Operation::Allocate { bytes, .. } => Some(bytes),
            _ => None,
        };
        let mut sizes = Sizes::default();
        for later in last.saturating_sub(length)..=last {
            let earlier: Option<Vec<u64>> = windows.iter().map(|window| bytes(*window.get(&later)?)).collect();
            if let (Some(earlier), Some(new)) = (earlier, bytes(later)) {
                sizes.note(&earlier, new);
            }
        }
        let forward = |&moment: &usize| -> FxHashMap<usize, usize> {
            let (one, other) = (moments[like], moments[moment]);
            let pairs = align(words, (one.min(other), one.max(other)), Direction::Forwards, length, last + 1).pairs;
            pairs.into_iter().map(|(a, b)| if one < other { (a, b) } else { (b, a) }).collect()
        };
        StepSizes { sizes, others: compared.iter().map(forward).collect() }
    }

    fn size(&self, operations: &[(usize, Operation)], place: usize) -> Option<u64> {
        let bytes = |place: usize| match operations.get(place)?.1 {
            Operation::Allocate { bytes, .. } => Some(bytes),
            _ => None,
        };
        let others = self.others.iter().map(|other| bytes(*other.get(&place)?));
        let earlier: Vec<u64> = [bytes(place)].into_iter().chain(others).collect::<Option<_>>()?;
        self.sizes.size(&earlier)
    }
}
