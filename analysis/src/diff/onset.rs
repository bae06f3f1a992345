//! Finds where a change of the peak begins: the first step that shows a part of it, and the request with which the second run
//! first needs more than the first run ever does.

use parkade_recording::{Action, Entry};

use super::side::{Part, Phase, Replayed, Request, Run};
use super::steps::StepPair;

/// The memory whose peak changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Measure {
    /// Reserved memory.
    Reserved,
    /// Allocated memory, if the peak of reserved memory is the same.
    Allocated,
}

parkade_recording::names! {
    Measure {
        Measure::Reserved => "reserved",
        Measure::Allocated => "allocated",
    }
}

impl Measure {
    /// Returns the measure whose peak changed; `None` if neither did.
    fn that_changed(a: &Run, b: &Run) -> Option<Measure> {
        [Measure::Reserved, Measure::Allocated].into_iter().find(|measure| measure.peak_bytes(a) != measure.peak_bytes(b))
    }

    /// Returns the peak of a run.
    #[must_use]
    pub const fn peak_bytes(self, run: &Run) -> u64 {
        match self {
            Measure::Reserved => run.peak_reserved.bytes,
            Measure::Allocated => run.peak_allocated.bytes,
        }
    }

    /// Returns the peaks of a step in the two runs.
    const fn of_step(self, pair: &StepPair) -> (u64, u64) {
        match self {
            Measure::Reserved => (pair.a.peak_reserved_bytes, pair.b.peak_reserved_bytes),
            Measure::Allocated => (pair.a.peak_allocated_bytes, pair.b.peak_allocated_bytes),
        }
    }
}

/// Where a change of the peak begins.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Onset {
    /// The memory whose peak changed.
    pub measure: Measure,
    /// The first step in which the runs differ by at least a tenth of the change; `None` without steps, or if no complete step
    /// does.
    pub step: Option<StepOnset>,
    /// Where the second run first needs more than the first run ever does.
    pub crossing: Option<Crossing>,
}

/// The step in which a change begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StepOnset {
    /// Its number, from 0.
    pub step: usize,
    /// The peak of the first run in it.
    pub a_bytes: u64,
    /// The peak of the second run in it.
    pub b_bytes: u64,
    /// The largest difference between the runs in the earlier steps; `None` if there are none.
    pub before_bytes: Option<u64>,
}

/// A request that takes a run beyond a level.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Crossing {
    /// Its entry.
    pub entry: usize,
    /// The step that contains it, if steps are known.
    pub step: Option<usize>,
    /// The phase that contains it, if phases are known.
    pub phase: Option<Phase>,
    /// The microseconds since the first entry of the trace, if the file states times.
    pub after_us: Option<u64>,
    /// The request; `None` if the entry is not one.
    pub request: Option<Request>,
}

impl Onset {
    /// Returns where the change between two runs begins; `None` if the peaks are the same, or if only their ends are compared.
    pub(super) fn of(a: &Run, b: &Run, replayed_b: &Replayed<'_>, pairs: &[StepPair]) -> Option<Onset> {
        let measure = Measure::that_changed(a, b).filter(|_| b.part != Part::End)?;
        let (peak_a, peak_b) = (measure.peak_bytes(a), measure.peak_bytes(b));
        let step = first_step(measure, pairs, difference(peak_a, peak_b));
        Some(Onset { measure, step, crossing: crossing(replayed_b, measure, peak_a) })
    }
}

fn difference(a: u64, b: u64) -> i128 {
    i128::from(b) - i128::from(a)
}

/// A smaller share of the change is taken for noise.
const LEAST_SHARE: i128 = 10;

/// Returns the first step that differs by at least a tenth of the change, in the same direction.
fn first_step(measure: Measure, pairs: &[StepPair], change: i128) -> Option<StepOnset> {
    let of = |pair: &StepPair| {
        let (a, b) = measure.of_step(pair);
        difference(a, b)
    };
    let is_part = |pair: &StepPair| of(pair).signum() == change.signum() && LEAST_SHARE * of(pair).abs() >= change.abs();
    let place = pairs.iter().position(is_part)?;
    let before_bytes = pairs[..place].iter().map(|pair| of(pair).unsigned_abs() as u64).max();
    let (a_bytes, b_bytes) = measure.of_step(&pairs[place]);
    Some(StepOnset { step: pairs[place].step, a_bytes, b_bytes, before_bytes })
}

/// Returns the first of the compared entries that takes a run beyond a level. If the entry reserves a segment, that is the
/// request for which the segment is reserved.
fn crossing(replayed: &Replayed<'_>, measure: Measure, above_bytes: u64) -> Option<Crossing> {
    let levels = match measure {
        Measure::Reserved => &replayed.timeline.levels.reserved,
        Measure::Allocated => &replayed.timeline.levels.allocated,
    };
    // Memory from before the first of the compared entries was not requested by any of them.
    levels.get(replayed.from as usize).filter(|&&bytes| bytes <= above_bytes)?;
    let within = replayed.entries();
    let entry = within.clone().find(|&entry| levels.get(entry + 1).is_some_and(|&bytes| bytes > above_bytes))?;
    let trace = &replayed.side.device.trace;
    let takes = |entry: &&Entry| matches!(entry.action, Action::SegmentAlloc | Action::SegmentMap);
    let following = trace.get(entry..within.end).unwrap_or(&[]);
    let served = following.iter().take_while(takes).count();
    let is_served = following.get(served).is_some_and(|entry| entry.action == Action::Alloc);
    let entry = if is_served { entry + served } else { entry };
    let moment = entry as u32 + 1;
    let time = |entry: usize| trace.get(entry).and_then(Entry::time);
    Some(Crossing {
        entry,
        step: replayed.step_at(moment),
        phase: replayed.phase_at(moment),
        after_us: time(entry).zip(time(0)).and_then(|(then, first)| then.checked_sub(first)),
        request: replayed.request_at(moment),
    })
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::Index;

    use super::super::side::Side;
    use super::super::steps::StepLevels;
    use super::*;
    use crate::drawn_runs::{DrawnRun, programs};

    fn pair(step: usize, a: u64, b: u64) -> StepPair {
        let levels = |bytes| StepLevels {
            first_entry: 0,
            last_entry: 0,
            peak_allocated_bytes: 0,
            peak_reserved_bytes: bytes,
            allocated_at_end_bytes: 0,
            reserved_at_end_bytes: 0,
        };
        StepPair { step, a: levels(a), b: levels(b) }
    }

    #[test]
    fn the_first_step_with_a_tenth_of_the_change_is_where_it_begins() {
        let pairs = [pair(3, 100, 102), pair(4, 100, 96), pair(5, 100, 104), pair(6, 100, 140)];
        let found = |change| first_step(Measure::Reserved, &pairs, change).map(|step| (step.step, step.before_bytes));
        assert_eq!(found(40), Some((5, Some(4))), "noise in both directions does not count");
        assert_eq!((found(20), found(401)), (Some((3, None)), None));
        assert_eq!(found(-40), Some((4, Some(2))), "memory that shrank");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        /// Changes and differences are such that a tenth of the change is often exact.
        #[test]
        fn a_change_begins_with_the_first_tenth_of_it(
            changes in vec(-13..14_i64, 0..6),
            change in prop_oneof![Just(-120), -101..-98_i64, -11..-8_i64, 9..12_i64, 99..102_i64],
            measure in prop_oneof![Just(Measure::Reserved), Just(Measure::Allocated)],
        ) {
            let levels = |reserved: i64| StepLevels {
                first_entry: 0,
                last_entry: 0,
                peak_allocated_bytes: (1000 + if measure == Measure::Allocated { reserved } else { 0 }) as u64,
                peak_reserved_bytes: (2000 + if measure == Measure::Reserved { reserved } else { 0 }) as u64,
                allocated_at_end_bytes: 0,
                reserved_at_end_bytes: 0,
            };
            let pairs: Vec<StepPair> =
                (7..).zip(&changes).map(|(step, &by)| StepPair { step, a: levels(0), b: levels(by) }).collect();
            let place = changes.iter().position(|&by| if change > 0 { by * 10 >= change } else { by * 10 <= change });
            let bytes = if measure == Measure::Reserved { 2000 } else { 1000 };
            let expected = place.map(|place| StepOnset {
                step: 7 + place,
                a_bytes: bytes,
                b_bytes: bytes.strict_add_signed(changes[place]),
                before_bytes: changes[..place].iter().map(|by| by.unsigned_abs()).max(),
            });
            prop_assert_eq!(first_step(measure, &pairs, change.into()), expected);
        }
    }

    /// Returns the first entry in this part of a run that brings it above a level, or the request that this entry serves.
    fn first_above(run: &DrawnRun, levels: &[u64], part: std::ops::Range<usize>, above_bytes: u64) -> Option<usize> {
        if levels[part.start] > above_bytes {
            return None;
        }
        let first = part.clone().find(|&entry| levels[entry + 1] > above_bytes)?;
        let end = run.states.iter().map(|state| state.entries).find(|&entries| entries > first)?;
        let is_served = run.trace()[end - 1].action == Action::Alloc && end <= part.end;
        Some(if is_served { end - 1 } else { first })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        /// Compares with the core's own figures, for every level of a run and those next to it.
        #[test]
        fn a_crossing_is_the_first_entry_above_the_level(
            steps in programs(24),
            is_expandable in any::<bool>(),
            ends in any::<(Index, Index)>(),
        ) {
            let run = DrawnRun::of(&steps, if is_expandable { "expandable_segments:True" } else { "" }, Some(80 << 20));
            prop_assume!(!run.trace().is_empty());
            let side = Side { recording: &run.recording, device: run.device(), own: &run.own, part: Part::Whole };
            let mut replayed = Replayed::of(side).expect("it replays");
            let ends = [ends.0, ends.1].map(|end| end.index(run.trace().len() + 1));
            let parts = [0..run.trace().len(), ends[0].min(ends[1])..ends[0].max(ends[1])];
            for (measure, levels) in [(Measure::Reserved, run.reserved()), (Measure::Allocated, run.allocated())] {
                let above: std::collections::BTreeSet<u64> =
                    levels.iter().flat_map(|&bytes| [bytes.saturating_sub(1), bytes, bytes + 1]).collect();
                for (part, &above_bytes) in parts.iter().flat_map(|part| above.iter().map(move |above| (part, above))) {
                    (replayed.from, replayed.to) = (part.start as u32, part.end as u32);
                    let found = crossing(&replayed, measure, above_bytes);
                    let expected = first_above(&run, &levels, part.clone(), above_bytes);
                    prop_assert_eq!(
                        found.as_ref().map(|found| found.entry),
                        expected,
                        "{:?} {:?} {}",
                        measure,
                        part,
                        above_bytes
                    );
                    let Some((found, entry)) = found.zip(expected) else { continue };
                    let line = &run.trace()[entry];
                    let request = (line.action == Action::Alloc).then_some(Request { bytes: line.size, stack: line.stack });
                    prop_assert_eq!((found.request, found.after_us), (request, Some(10 * entry as u64)));
                }
            }
        }
    }
}
