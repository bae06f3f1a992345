//! Finds the steps of a run without annotations by repetition: the number of blocks in use rises and then falls back to its
//! former value.
//!
//! A training step leaves memory as it found it: activations are freed, while parameters and states are kept. Between any two
//! steps, the same number of blocks is therefore live, regardless of their sizes. In the middle of a step, more blocks are
//! live, even if all layers are alike: each leaves blocks for the backward pass. If a step begins by freeing what the
//! previous one left, the previous step ends after these frees.

use parkade_recording::{Action, DeviceRecording, Entry};

use crate::ending::Ending;

/// Repetition counts only with at least this many steps. Fewer may be coincidence.
const FEWEST: usize = 3;
/// The number of blocks live between steps is the minimum over the middle of a run, between these two eighths of it, because
/// the run does other work at its beginning and end.
const MIDDLE: (usize, usize) = (3, 7);
/// Between steps, at most this many blocks above that minimum are live ...
const MORE_BLOCKS: i64 = 2;
/// ... or one part in this many of those that a step adds.
const LOW_PART: i64 = 32;
/// A step adds at least one part in this many of the blocks that the largest step adds ...
const HIGH_PART: i64 = 2;
/// ... and at least this many.
const FEWEST_BLOCKS: i64 = 6;
/// Two steps are alike if one has at most this many times the entries of the other (a fraction; the strictest one that yields
/// steps is used) ...
const ALIKE: [(usize, usize); 3] = [(5, 4), (3, 2), (2, 1)];
/// ... and steps repeat if this fraction of them is like the next.
const MOST_PART: (usize, usize) = (3, 4);
/// A step may have this many parts in which memory rises and falls.
const MOST_PARTS: usize = 4;
/// At least this many pairs of parts must be compared to conclude that steps have parts.
const FEWEST_PAIRS: usize = 6;

/// The memory in use at a moment, relative to the first moment.
#[derive(Clone, Copy, Default)]
struct InUse {
    bytes: i128,
    blocks: i64,
}

/// The moments at which the steps of a run end, in order; moment `n` is the state after `n` entries. Empty if the run does
/// not repeat. The first step cannot be separated from what came before it, such as building the model, and the last step may
/// be cut short.
pub(crate) fn repeated_steps(recording: &DeviceRecording) -> Vec<u32> {
    let in_use = in_use(recording);
    let eighth = |part: usize| in_use.len() * part / 8;
    let middle = &in_use[eighth(MIDDLE.0)..eighth(MIDDLE.1)];
    let Some(least) = middle.iter().map(|one| one.blocks).min() else { return Vec::new() };
    let adds = middle.iter().map(|one| one.blocks).max().map_or(0, |most| most - least);
    let (low, high) = (least + MORE_BLOCKS.max(adds / LOW_PART), least + FEWEST_BLOCKS.max(adds / HIGH_PART));
    let mut ends = valleys(&in_use, low, high);
    // A step that an error ended does not count.
    let died = Ending::of(recording).death().map_or(usize::MAX, |error| error.entry);
    ends.retain(|&end| end <= died);
    let ends = of_whole_steps(&ends);
    if ends.len() < FEWEST { Vec::new() } else { ends.into_iter().map(|moment| moment as u32).collect() }
}

/// Selects the ends of complete steps from the ends of their parts: if gradients are kept, an optimizer's temporary blocks
/// make memory rise and fall once more in each step. Empty if the lengths do not repeat.
fn of_whole_steps(ends: &[usize]) -> Vec<usize> {
    let lengths: Vec<usize> = ends.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let repeats = |&((most, least), parts): &((usize, usize), usize)| {
        let pairs = lengths.len().saturating_sub(parts);
        let is_alike = |one: usize, other: usize| one.max(other) * least <= one.min(other) * most;
        let alike = (0..pairs).filter(|&place| is_alike(lengths[place], lengths[place + parts])).count();
        pairs >= if parts == 1 { 1 } else { FEWEST_PAIRS } && alike * MOST_PART.1 >= pairs * MOST_PART.0
    };
    let ways = ALIKE.iter().flat_map(|&alike| (1..=MOST_PARTS).map(move |parts| (alike, parts)));
    let Some((_, parts)) = { ways }.find(repeats) else { return Vec::new() };
    // A step begins with its longest part, the forward and backward pass.
    let total = |first: usize| lengths.iter().skip(first).step_by(parts).sum::<usize>();
    let first = (0..parts).rev().max_by_key(|&first| total(first)).unwrap_or(0);
    ends.iter().copied().skip(first).step_by(parts).collect()
}

/// The memory in use after each entry, starting with moment 0.
fn in_use(recording: &DeviceRecording) -> Vec<InUse> {
    let after = |in_use: &mut InUse, entry: &Entry| {
        match entry.action {
            Action::Alloc => *in_use = InUse { bytes: in_use.bytes + i128::from(entry.size), blocks: in_use.blocks + 1 },
            Action::FreeRequested => *in_use = InUse { bytes: in_use.bytes - i128::from(entry.size), blocks: in_use.blocks - 1 },
            _ => {}
        }
        Some(*in_use)
    };
    [InUse::default()].into_iter().chain(recording.trace.iter().scan(InUse::default(), after)).collect()
}

/// The last moment with the fewest bytes in each valley: a stretch with at most `low` live blocks, between moments with more
/// than `high`.
fn valleys(in_use: &[InUse], low: i64, high: i64) -> Vec<usize> {
    let mut found = Vec::new();
    let mut deepest: Option<(i128, usize)> = None;
    let mut was_high = false;
    for (moment, one) in in_use.iter().enumerate() {
        if one.blocks > high {
            found.extend(deepest.take().map(|(_, moment)| moment));
            was_high = true;
        } else if one.blocks <= low && was_high && deepest.is_none_or(|(bytes, _)| one.bytes <= bytes) {
            deepest = Some((one.bytes, moment));
        }
    }
    found.extend(deepest.map(|(_, moment)| moment));
    found
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use parkade_recording::Recording;

    use super::*;
    use crate::annotations::steps;

    fn shipped(name: &str) -> Recording {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../conformance/recordings");
        parkade_recording::read_file(folder.join(format!("{name}.pickle.xz"))).expect("a recording")
    }

    #[test]
    fn what_repeats_is_what_the_optimizers_mark() {
        for (name, told) in [("gpt2_varlen.default", 24), ("gpt2_varlen.frames_tail20k", 7), ("prefetch_streams.limit6", 30)] {
            let recording = shipped(name);
            let marked = steps(&recording.annotations, &recording.devices[0], None).expect("marks").steps;
            let found = repeated_steps(&recording.devices[0]);
            assert_eq!((found.len(), marked.len()), (told, told), "{name}");
            // The last step ends with the recording, where the program frees everything.
            for (end, mark) in found.iter().zip(&marked[..told - 1]) {
                assert!((*end as usize).abs_diff(mark.last_entry + 1) <= 16, "{name}: {end} and {mark:?}");
            }
        }
    }

    #[test]
    fn the_step_that_an_error_ended_is_none() {
        let (whole, died) = (shipped("resnet50_sweep.default"), shipped("resnet50_sweep.limit5_oom"));
        let (whole, died) = (repeated_steps(&whole.devices[0]), repeated_steps(&died.devices[0]));
        assert_eq!((whole.len(), died.len(), &whole[..5]), (6, 5, &died[..]));
    }

    /// Repeated parts, each of which allocates this many blocks and then frees them.
    fn run(parts: &[u64], times: usize) -> DeviceRecording {
        let mut trace: Vec<Entry> = (0..20).map(|place| Entry::new(Action::Alloc, 1 << 40 | place << 20, 4096, 0)).collect();
        for part in parts.iter().cycle().take(parts.len() * times) {
            let all = |action| (0..*part).map(move |place| Entry::new(action, 1 << 41 | place << 20, 512 * (1 + place), 0));
            trace.extend(all(Action::Alloc).chain(all(Action::FreeRequested)));
        }
        DeviceRecording { trace, ..DeviceRecording::default() }
    }

    #[test]
    fn parts_of_a_step_are_put_together() {
        assert_eq!(repeated_steps(&run(&[40], 10)).len(), 10);
        // The forward and backward passes begin a step, and the optimizer's part ends it.
        let found = repeated_steps(&run(&[60, 31], 10));
        assert_eq!(found, (1..=10).map(|step| 20 + step * 2 * 91).collect::<Vec<u32>>());
        assert!(repeated_steps(&run(&[40], 2)).is_empty(), "too few");
        assert!(repeated_steps(&run(&[400, 20, 90, 300, 41, 170, 600, 35], 1)).is_empty(), "nothing repeats");
        assert!(repeated_steps(&DeviceRecording::default()).is_empty());
    }
}
