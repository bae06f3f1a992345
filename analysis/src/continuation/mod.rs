//! Estimates what a program that died would have done next, as far as its earlier steps show it.
//!
//! A recording of a run that died ends with the request that failed. If the program is a loop, it has been at the same point
//! before, once in every step (`repeats`). What it did after that point is appended: first the rest of the failed
//! step, with sizes in proportion to what that step had already requested, and then the earlier steps once more, unchanged.
//!
//! [`Doubt`] states why a program of this kind may not fit even if all of its estimated rest does. How much memory later
//! steps need is judged by how many steps were seen, how much they differ, and how much memory is left free. There are two
//! ways to be certain. Either the largest size has recurred, as happens when sizes are fixed, few, or capped at a maximum. Or
//! so much memory is left free that even a size larger than any seen would fit: if sizes are spread over a range and `n` of
//! them were seen, the chance that the range extends `x` times further above its floor than the largest size seen is at most
//! `x` to the power of `-n`, however many steps follow.

mod repeats;

use parkade_recording::DeviceRecording;
use parkade_replay::{Operation, Requests};
use rustc_hash::FxHashMap;

use repeats::{Alignment, Direction, Repeat, Shape, Sizes, Splice, align, repeats};

/// The number of earlier steps that are compared.
const STEPS: usize = 40;
/// The sizes of a new step are derived from the copied step and at most this many other steps.
const COMPARED: usize = 5;
/// The steps' lowest live memory may differ by one part in this many of what a step adds to it.
const STEADY_PART: u64 = 50;
/// Steps leak memory if the lowest live memory rises over at least this many of them.
const LEAKING: usize = 3;

/// A program that died, with its estimated continuation.
#[derive(Clone, Debug)]
pub struct Continuation {
    /// The recorded requests up to the one that failed, and what would have followed it. Their entries continue those of the
    /// trace. Empty if the caller has moved the requests out.
    pub requests: Requests,
    /// The number of recorded operations; the others are estimated.
    pub recorded: usize,
    /// The number of steps before the one that failed, up to forty. This includes a first step that differs because it
    /// allocates what later steps find.
    pub steps: usize,
    /// The peak of live bytes in each of these steps, earliest first, including any before the similar steps begin.
    pub step_peaks: Vec<u64>,
    /// The peak of live bytes in the failed step if it had continued.
    pub failed_step_peak: u64,
    /// The certain part of that peak: the most that was recorded in the step, or the entire peak if the step's sizes so far
    /// match those of an earlier step.
    pub failed_step_certain_peak: u64,
    /// The fewest live bytes since the first of the similar steps: the memory that every step finds in use.
    pub floor_bytes: u64,
    /// The average memory that each step leaves in use in addition to what it found; 0 unless every step leaves some.
    pub left_by_step_bytes: u64,
    /// The number of estimated steps that follow the one that failed.
    pub more_steps: usize,
    /// Whether the steps leave as much memory in use as they found. If not, memory in use grows or shrinks from step to step.
    pub is_steady: bool,
}

impl Continuation {
    /// Returns the peak of live bytes in each step; the last is the failed step as if it had continued.
    fn peaks(&self) -> Vec<u64> {
        self.step_peaks.iter().copied().chain([self.failed_step_peak]).collect()
    }

    /// Returns the highest of these peaks.
    #[must_use]
    pub fn largest_peak_bytes(&self) -> u64 {
        self.step_peaks.iter().copied().fold(self.failed_step_peak, u64::max)
    }

    /// Returns whether fewer than four steps came before the one that failed.
    #[must_use]
    pub const fn has_few_steps(&self) -> bool {
        self.steps < FEWEST_STEPS
    }

    /// Returns whether each of the most recent steps needed more memory than the one before.
    #[must_use]
    pub fn grows(&self) -> bool {
        grow(&self.peaks())
    }
}

/// Continues a program whose operation `last` failed. At most `most` operations are added. Returns `None` if the program had
/// not reached that point in an earlier step.
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

    // Append the rest of the failed step, copied from the most similar earlier step.
    let like = most_alike(operations, &words, last, &found);
    let before = align(&words, (moments[like], last), Direction::Backwards, last, last + 1);
    let sizes = StepSizes::of(operations, &words, &moments, like);
    splice.jump_back(moments[like], &before);
    let ends = live.lowest(moments[like], moments[like - 1]);
    splice.copy(moments[like], ends, &|place| sizes.size(operations, place));
    let failed_step_peak = splice.take_peak_bytes();
    splice.copy(ends, moments[like - 1], &|_| None);

    // Then append the steps after that one, and then all of them again.
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
    // A step ends where live memory is lowest between two of the moments. The failed step begins at the last of these points.
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

    /// Returns the peak of live bytes after the operation `from`, up to `to`.
    fn peak(&self, from: usize, to: usize) -> u64 {
        self.bytes[from + 1..=to].iter().copied().max().unwrap_or(0)
    }

    /// Returns the index of the lowest live memory after the operation `from`, up to `to`; if there are several, the last.
    fn lowest(&self, from: usize, to: usize) -> usize {
        (from + 1..=to).rev().min_by_key(|&place| self.bytes[place]).unwrap_or(to)
    }

    /// Returns whether the lowest live memory between consecutive moments (the latest first) is about the same.
    fn is_steady(&self, moments: &[usize]) -> bool {
        let least = |pair: &[usize]| self.bytes[pair[1]..=pair[0]].iter().copied().min().unwrap_or(0);
        let Some(latest) = moments.windows(2).next() else { return false };
        // With only one earlier step, an equally long stretch before it is compared.
        let floors: Vec<u64> = match moments {
            [now, earlier] => vec![least(latest), least(&[*earlier, earlier.saturating_sub(now - earlier)])],
            _ => moments.windows(2).take(3).map(least).collect(),
        };
        let peak = self.peak(latest[1], latest[0]);
        let (lowest, highest) = (floors.iter().min().copied().unwrap_or(0), floors.iter().max().copied().unwrap_or(0));
        highest - lowest <= peak.saturating_sub(lowest) / STEADY_PART
    }
}

/// Returns whether the requests after the operation `since` have the same sizes as their counterparts.
fn repeats_sizes(operations: &[(usize, Operation)], before: &Alignment, since: usize) -> bool {
    before.pairs.iter().filter(|pair| pair.1 > since).all(|&(earlier, later)| {
        match (operations[earlier].1, operations[later].1) {
            (Operation::Allocate { bytes: one, .. }, Operation::Allocate { bytes: other, .. }) => one == other,
            _ => true,
        }
    })
}

/// Returns the amount by which the floor rises from step to step, if it never falls and rises over several steps.
fn left_by_step(floors: &[u64]) -> u64 {
    match floors {
        [first, .., last] if floors.len() >= LEAKING && floors.windows(2).all(|pair| pair[0] < pair[1]) => {
            (last - first) / (floors.len() as u64 - 1)
        }
        _ => 0,
    }
}

/// Returns the moment (1 is the latest) that is most similar to the end of the program, judged by the sizes of the requests
/// before each.
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

/// The sizes in the failed step.
struct StepSizes {
    sizes: Sizes,
    /// For each compared moment: its operations that correspond to those after the copied moment.
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

/// The number of steps that must have come before.
const FEWEST_STEPS: usize = 4;
/// With fewer steps than this, including the failed one, a largest size that has recurred does not count as the overall
/// maximum unless all but one step needed it: in 4 of 27 cut runs where it did count, later steps needed more.
const RECURRING_STEPS: usize = 8;
/// Two steps count as needing the same amount if they differ by at most one part in this many of what the largest step adds
/// to the common floor.
const SAME_PART: u64 = 50;
/// The largest size counts as having recurred if this many steps needed it, or one more if more than [`FEW`] steps were seen.
const RECURS: usize = 2;
/// If more steps than this were seen, one more step must have needed the largest size, because two of many steps may lie
/// within a fiftieth of each other by chance.
const FEW: usize = 10;
/// Even if sizes recur, this fraction of the largest must be free, because the estimate of the rest is not exact.
const LEAST_FREE_PART: u64 = 100;
/// The number of steps times the free fraction must reach this: then the chance of a larger size is one in twenty (e to the
/// power of -3).
const SURE: u128 = 3;
/// Steps are growing if each of this many is larger than the one before, by more than one part in [`GROWING_PART`].
const GROWING: usize = 4;
/// A step is larger than the one before if it exceeds it by more than one part in this many.
const GROWING_PART: u64 = 100;

/// The reason why the beginning of a program does not determine its rest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Doubt {
    /// The program had not reached that point in an earlier step.
    NoSteps,
    /// Too few steps came before. The field is their number.
    FewSteps(usize),
    /// The steps leave more or less memory in use than they found.
    NotSteady,
    /// Each step needs more than the one before.
    Growing,
    /// Only one step needed the largest size, and too little memory is left free for a larger one.
    Margin,
}

impl Doubt {
    /// Returns the reason to doubt the rest of this program, if there is one. `free_bytes` is the memory that would be left
    /// at its peak.
    #[must_use]
    pub fn about(continuation: Option<&Continuation>, free_bytes: u64) -> Option<Doubt> {
        let Some(continuation) = continuation else { return Some(Doubt::NoSteps) };
        let peaks = continuation.peaks();
        // The same number of further steps would leave the same amount of memory behind.
        let left_bytes = continuation.left_by_step_bytes.saturating_mul(continuation.steps as u64);
        if continuation.has_few_steps() {
            Some(Doubt::FewSteps(continuation.steps))
        } else if !continuation.is_steady || left_bytes > free_bytes {
            Some(Doubt::NotSteady)
        } else if continuation.grows() {
            Some(Doubt::Growing)
        } else if is_wide(&peaks, continuation.floor_bytes, free_bytes) {
            None
        } else {
            let (largest, all) = largest_recurs(continuation);
            let is_needed = largest >= RECURS + usize::from(all > FEW);
            if !is_needed || free_bytes < continuation.largest_peak_bytes() / LEAST_FREE_PART {
                Some(Doubt::Margin)
            } else {
                Some(Doubt::FewSteps(continuation.steps)).filter(|_| all < RECURRING_STEPS && largest + 1 < all)
            }
        }
    }
}

parkade_recording::names! {
    Doubt {
        Doubt::NoSteps => "no_steps",
        Doubt::FewSteps(_) => "few_steps",
        Doubt::NotSteady => "not_steady",
        Doubt::Growing => "growing",
        Doubt::Margin => "margin",
    }
}

/// Returns whether each of the most recent steps needed more memory than the one before.
fn grow(peaks: &[u64]) -> bool {
    let is_larger = |pair: &[u64]| pair[1] > pair[0] + pair[0] / GROWING_PART;
    let latest = &peaks[peaks.len().saturating_sub(GROWING)..];
    latest.len() >= 3 && latest.windows(2).all(is_larger)
}

/// Returns the number of steps known to have needed the largest size, and the number of steps for which this is known.
fn largest_recurs(continuation: &Continuation) -> (usize, usize) {
    let certain = || continuation.step_peaks.iter().copied().chain([continuation.failed_step_certain_peak]);
    let largest = certain().max().unwrap_or(0).max(continuation.failed_step_peak);
    let same = largest - largest.saturating_sub(continuation.floor_bytes) / SAME_PART;
    (certain().filter(|&peak| peak >= same).count(), certain().count())
}

/// Returns whether enough memory is left free for a size larger than any seen.
fn is_wide(peaks: &[u64], floor_bytes: u64, free_bytes: u64) -> bool {
    let largest = peaks.iter().copied().max().unwrap_or(0);
    u128::from(free_bytes) * peaks.len() as u128 >= SURE * u128::from(largest.saturating_sub(floor_bytes))
}

#[cfg(test)]
mod tests {
    //! Tests with programs of a few steps, cut in the middle of one and continued.

    use parkade::units::PoolId;
    use parkade_replay::Completion;

    use super::*;

    fn seen(step_peaks: &[u64], failed_step_peak: u64) -> Continuation {
        Continuation {
            requests: Requests::default(),
            recorded: 0,
            steps: step_peaks.len(),
            step_peaks: step_peaks.to_vec(),
            failed_step_peak,
            failed_step_certain_peak: failed_step_peak,
            floor_bytes: 200,
            left_by_step_bytes: 0,
            more_steps: 3,
            is_steady: true,
        }
    }

    fn doubt(step_peaks: &[u64], failed_step_peak: u64, free_bytes: u64) -> Option<Doubt> {
        Doubt::about(Some(&seen(step_peaks, failed_step_peak)), free_bytes)
    }

    #[test]
    fn a_largest_size_that_comes_back_leaves_no_doubt() {
        assert_eq!(doubt(&[1000; 4], 1000, 10), None, "all alike");
        assert_eq!(doubt(&[1000; 4], 1000, 9), Some(Doubt::Margin), "less than a hundredth is free");
        assert_eq!(doubt(&[200, 1000, 1000, 1000], 1000, 10), None, "all but the first alike");
        assert_eq!(doubt(&[1000, 700, 900, 800], 990, 10), Some(Doubt::FewSteps(4)), "five steps say little of a sixth");
        let eight = [1000, 700, 900, 800, 600, 500, 400];
        assert_eq!(doubt(&eight, 990, 10), None, "the failed step needed what the first did");
        let guessed = Continuation { failed_step_certain_peak: 600, ..seen(&[1000, 700, 900, 800], 1000) };
        assert_eq!(Doubt::about(Some(&guessed), 10), Some(Doubt::Margin), "an estimate is no second time");
        assert_eq!(doubt(&[1000, 700, 900, 800], 980, 10), Some(Doubt::Margin), "they differ by a fortieth");
        let many = [1000, 750, 700, 650, 600, 550, 500, 450, 400, 350, 300];
        assert_eq!(doubt(&many, 1000, 10), Some(Doubt::Margin), "two of twelve are alike by chance");
        assert_eq!(doubt(&[&many[..], &[995, 250]].concat(), 1000, 10), None);
    }

    #[test]
    fn sizes_of_a_range_need_room_for_larger_ones() {
        // The largest of five steps is 800 above the floor. 480 free bytes are three fifths of that.
        assert_eq!(doubt(&[600, 900, 700, 800], 1000, 479), Some(Doubt::Margin));
        assert_eq!(doubt(&[600, 900, 700, 800], 1000, 480), None);
        // With thirty steps, a tenth is enough.
        let many: Vec<u64> = (0..29).map(|step| 900 - 170 * step % 500).collect();
        assert_eq!((doubt(&many, 1000, 79), doubt(&many, 1000, 80)), (Some(Doubt::Margin), None));
    }

    #[test]
    fn each_doubt_has_its_reason() {
        assert_eq!(Doubt::about(None, 1000), Some(Doubt::NoSteps));
        assert_eq!(doubt(&[1000, 900], 1010, 1000), Some(Doubt::FewSteps(2)));
        assert_eq!(doubt(&[400, 500, 600, 700], 800, 1000), Some(Doubt::Growing));
        let leaking = Continuation { left_by_step_bytes: 30, ..seen(&[1000; 4], 1000) };
        assert_eq!(Doubt::about(Some(&leaking), 119), Some(Doubt::NotSteady), "four more steps leave 120 bytes");
        assert_eq!(Doubt::about(Some(&leaking), 120), None);
    }

    const MIB: u64 = 1 << 20;
    /// Layers of the model.
    const LAYERS: usize = 16;

    /// A program as a list of operations.
    #[derive(Default)]
    struct Program {
        operations: Vec<(usize, Operation)>,
        next: usize,
    }

    impl Program {
        fn allocate(&mut self, bytes: u64) -> usize {
            let id = self.next;
            self.next += 1;
            self.push(Operation::Allocate { id, bytes, stream: 0, pool: PoolId::DEFAULT, failed: false });
            id
        }

        fn free(&mut self, id: usize) {
            self.push(Operation::Free { id, completion: Completion::AtOnce });
        }

        fn push(&mut self, operation: Operation) {
            self.operations.push((self.operations.len(), operation));
        }

        /// Appends a training step: an activation for each layer, a large one at the end, and a gradient for each layer, all
        /// of which are freed again. The first step allocates the optimizer's states.
        fn step(&mut self, length: u64, is_first: bool) {
            let activations: Vec<usize> = (0..LAYERS).map(|_| self.allocate(length * MIB)).collect();
            let logits = self.allocate(4 * length * MIB);
            let loss = self.allocate(512);
            self.free(logits);
            let mut gradients = Vec::new();
            for activation in activations.into_iter().rev() {
                gradients.push(self.allocate(8 * MIB));
                let temporary = self.allocate(2 * length * MIB);
                self.free(activation);
                self.free(temporary);
            }
            self.free(loss);
            for gradient in gradients {
                if is_first {
                    self.allocate(8 * MIB);
                }
                self.free(gradient);
            }
        }

        fn training(lengths: &[u64]) -> Program {
            let mut program = Program::default();
            for _ in 0..LAYERS {
                program.allocate(8 * MIB);
            }
            for (place, &length) in lengths.iter().enumerate() {
                program.step(length, place == 0);
            }
            program
        }

        fn requests(self) -> Requests {
            Requests { operations: self.operations, ..Requests::default() }
        }
    }

    /// Returns the live bytes after each operation.
    fn live(operations: &[(usize, Operation)]) -> Vec<u64> {
        let (mut sizes, mut live) = (Vec::new(), 0);
        let after = |&(_, operation): &(usize, Operation)| {
            match operation {
                Operation::Allocate { bytes, .. } => {
                    sizes.push(bytes);
                    live += bytes;
                }
                Operation::Free { id, .. } => live -= sizes[id],
                _ => {}
            }
            live
        };
        operations.iter().map(after).collect()
    }

    /// Returns the program cut after the operation `last` and continued.
    fn continued(lengths: &[u64], last: usize) -> Option<Continuation> {
        continue_after(&Program::training(lengths).requests(), &DeviceRecording::default(), last, 2000)
    }

    /// Returns the operation at which a step begins.
    fn start_of(lengths: &[u64], step: usize) -> usize {
        Program::training(&lengths[..step]).operations.len()
    }

    #[test]
    fn the_rest_of_a_step_is_as_large_as_its_beginning_says() {
        let lengths = [20, 28, 30, 25, 34, 60, 22];
        let truth = live(&Program::training(&lengths).operations);
        for into in [4, 9, LAYERS, LAYERS + 5] {
            let last = start_of(&lengths, 5) + into;
            let continuation = continued(&lengths, last).expect("steps");
            let rest = start_of(&lengths, 6) - last;
            let estimate = live(&continuation.requests.operations);
            assert_eq!(estimate[last..last + rest], truth[last..last + rest], "cut {into} operations into the step");
            assert_eq!(continuation.recorded, last + 1);
            assert!((3..=5).contains(&continuation.steps), "{}", continuation.steps);
            assert!(continuation.is_steady && continuation.more_steps >= 3, "{continuation:?}");
            assert_eq!(Some(continuation.failed_step_peak), truth[start_of(&lengths, 5)..].iter().copied().max());
        }
    }

    #[test]
    fn a_peak_belongs_to_one_step() {
        // The program is cut at the top of the forward pass; what the large step still held at that point is not what the
        // next step needed.
        let lengths = [20, 34, 30, 60, 28];
        let truth = live(&Program::training(&lengths).operations);
        let peak = |step: usize| truth[start_of(&lengths, step)..start_of(&lengths, step + 1)].iter().copied().max();
        let continuation = continued(&lengths, start_of(&lengths, 4) + LAYERS - 1).expect("steps");
        let expected: Vec<u64> = (0..4).filter_map(peak).collect();
        assert!(expected.ends_with(&continuation.step_peaks[1..]), "{:?} of {expected:?}", continuation.step_peaks);
        assert_eq!(continuation.step_peaks.last(), peak(3).as_ref());
        assert_eq!(Some(continuation.failed_step_peak), peak(4));
        assert!(continuation.failed_step_certain_peak < continuation.failed_step_peak, "only a part of it was recorded");
        assert_eq!(continuation.floor_bytes, 2 * 8 * MIB * LAYERS as u64);
    }

    #[test]
    fn a_step_of_a_size_seen_before_is_certain() {
        for (length, is_seen) in [(60, true), (59, false)] {
            let lengths = [20, 34, 60, 30, length];
            let continuation = continued(&lengths, start_of(&lengths, 4) + LAYERS - 2).expect("steps");
            let is_certain = continuation.failed_step_certain_peak == continuation.failed_step_peak;
            assert_eq!((is_certain, continuation.step_peaks.contains(&continuation.failed_step_peak)), (is_seen, is_seen));
        }
    }

    #[test]
    fn what_each_step_leaves_is_counted() {
        let mut program = Program::training(&[20]);
        for length in [30, 25, 34, 28, 33] {
            program.allocate(5 * MIB);
            program.step(length, false);
        }
        let last = program.operations.len() - 10;
        let continuation = continue_after(&program.requests(), &DeviceRecording::default(), last, 2000).expect("steps");
        assert_eq!(continuation.left_by_step_bytes, 5 * MIB);
        assert!(continuation.is_steady, "little in one step");
    }

    #[test]
    fn nothing_is_left_behind_by_the_copies() {
        let lengths = [20, 30, 25, 34, 60];
        let last = start_of(&lengths, 4) + 7;
        let continuation = continued(&lengths, last).expect("steps");
        let estimate = live(&continuation.requests.operations);
        let floor = |levels: &[u64]| levels.iter().copied().min();
        let half = last + (estimate.len() - last) / 2;
        assert_eq!(floor(&estimate[last..half]), floor(&estimate[half..]));
        assert_eq!(floor(&estimate[half..]), Some(2 * 8 * MIB * LAYERS as u64), "parameters and the optimizer's states");
    }

    #[test]
    fn every_copy_frees_only_what_is_live() {
        let lengths = [20, 30, 25, 34, 60];
        for last in start_of(&lengths, 3)..start_of(&lengths, 5) {
            let Some(continuation) = continued(&lengths, last) else { continue };
            let mut live = Vec::new();
            for (place, (entry, operation)) in continuation.requests.operations.iter().enumerate() {
                match operation {
                    Operation::Allocate { id, .. } => {
                        assert_eq!(*id, live.len(), "requests are numbered in order");
                        live.push(true);
                    }
                    Operation::Free { id, .. } => {
                        assert!(std::mem::take(&mut live[*id]), "{id} is freed twice, cut after {last}")
                    }
                    _ => {}
                }
                let before = place.checked_sub(1).map(|before| continuation.requests.operations[before].0);
                assert!(before.is_none_or(|before| before <= *entry), "entries go on");
            }
        }
    }

    #[test]
    fn what_is_no_loop_is_not_continued() {
        let lengths = [20];
        assert!(continued(&lengths, start_of(&lengths, 0) + 5).is_none(), "in the first step");
        assert!(continued(&lengths, start_of(&lengths, 0) + LAYERS + 6).is_none(), "in its backward pass, a loop over layers");
    }

    #[test]
    fn a_leak_and_a_growing_step_are_doubts() {
        let mut program = Program::training(&[20, 30]);
        for length in [25, 34, 28, 33] {
            program.allocate(200 * MIB);
            program.step(length, false);
        }
        let last = program.operations.len() - 10;
        let continuation = continue_after(&program.requests(), &DeviceRecording::default(), last, 2000);
        let doubt = Doubt::about(continuation.as_ref(), 1 << 40);
        assert!(matches!(doubt, Some(Doubt::NotSteady | Doubt::NoSteps | Doubt::FewSteps(_))), "{doubt:?}");
        let lengths = [20, 24, 28, 32, 36, 40];
        let continuation = continued(&lengths, start_of(&lengths, 5) + LAYERS);
        assert_eq!(Doubt::about(continuation.as_ref(), 1 << 40), Some(Doubt::Growing));
    }
}
