//! Classifies a block by the steps of a run: whether it lives within one step or across steps.
//!
//! Marks or repetition show where steps end. A block that is in use at the end of a step is carried into the next one. That
//! alone does not determine its kind: parameters, caches, and gradients that are kept until the next step frees them are all
//! carried. A run that does not train has neither gradients nor activations, so its steps are enough to classify the
//! remaining blocks.
//!
//! An unfinished step is classified by the step before it: the same allocations in the same order. In a run that died, the
//! last blocks were not freed, or were freed because of the error, so their lifetimes show nothing. A program that repeats
//! itself makes the same allocations, often with different sizes. The two sequences are aligned; if they do not agree,
//! nothing is classified.

use parkade_recording::{Annotation, DeviceRecording, StackId};

use super::by_lifetime::SHORT;
use super::kind::{How, Kind, Told};
use super::passes::Run;
use crate::annotations::{repeated_steps, steps};
use crate::ending::Ending;
use crate::timeline::BlockLife;

/// The sign that shows where the steps of a run end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StepMark {
    /// Annotations whose names begin with this string.
    Annotation(String),
    /// The repetition of the run.
    Repetition,
}

parkade_recording::names! {
    StepMark {
        StepMark::Annotation(_) => "annotation",
        StepMark::Repetition => "repetition",
    }
}

/// The lifetime of a block relative to the steps.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum StepLife {
    /// In use at the end of a step.
    Across,
    /// Allocated and freed within one step.
    Within,
    /// No steps are known, the block was allocated before the end of the first step, or the file does not contain the block's
    /// end.
    NotTold,
}

/// The steps of a run.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Steps {
    /// The sign that marks them; `None` if there is none.
    pub mark: Option<StepMark>,
    /// The moments at which the steps end, in order.
    pub ends: Vec<u32>,
}

impl Steps {
    pub(super) fn of(recording: &DeviceRecording, annotations: &[Annotation]) -> Steps {
        let died = Ending::of(recording).death().map_or(u32::MAX, |error| error.entry as u32);
        let of = |mark, ends: Vec<u32>| Some(Steps { mark: Some(mark), ends }).filter(|steps| steps.ends.len() > 1);
        let marked = steps(annotations, recording, None).ok().and_then(|found| {
            // An error ends the scope that it leaves.
            let mut ends: Vec<u32> =
                found.steps.iter().map(|step| step.last_entry as u32 + 1).filter(|&end| end <= died).collect();
            ends.dedup();
            of(StepMark::Annotation(found.mark), ends)
        });
        marked.or_else(|| of(StepMark::Repetition, repeated_steps(recording))).unwrap_or_default()
    }

    /// Determines a block's lifetime relative to the steps. Blocks freed after `until` may have been freed because of an
    /// error.
    pub(super) fn life(&self, block: &BlockLife, until: u32) -> StepLife {
        let carried = self.ends_in(block);
        match self.ends.first() {
            Some(_) if !carried.is_empty() => StepLife::Across,
            // The first step cannot be separated from what came before it.
            Some(&first) if block.born > first && block.freed <= until => StepLife::Within,
            _ => StepLife::NotTold,
        }
    }

    /// Returns the steps at whose ends a block is in use.
    fn ends_in(&self, block: &BlockLife) -> std::ops::Range<usize> {
        let first = self.ends.partition_point(|&end| end < block.born);
        first..self.ends.partition_point(|&end| end < block.freed).max(first)
    }
}

/// Classifies the remaining blocks if nothing in the run looks like training: blocks that a step allocates and frees, and
/// blocks that it allocates for later steps.
pub(super) fn tell(run: &Run<'_>, steps: &Steps, told: &mut [Told]) {
    if run.looks_trained || steps.mark.is_none() {
        return;
    }
    // A repetition may be coincidence.
    let is_marked = matches!(steps.mark, Some(StepMark::Annotation(_)));
    for (block, told) in run.blocks.iter().zip(told).filter(|(_, told)| **told == Told::NOTHING) {
        let ends = steps.ends_in(block);
        let kind = match steps.life(block, run.until) {
            StepLife::Within => Kind::Temporaries,
            // A block that is carried once may be a result that a variable still refers to; a block that the first step allocated
            // may be the model.
            StepLife::Across if is_marked && ends.start > 0 && ends.len() > 1 => Kind::Caches,
            _ => continue,
        };
        *told = Told::new(kind, How::Steps);
    }
}

/// The distance to search for the next agreement where the sequences differ, and the number of allocations that must
/// agree there.
const LONGEST_GAP: usize = 32;
const AGREEMENT: usize = 8;
/// At least this many allocations must agree in total, and at least this percentage of them.
const FEWEST: usize = 20;
const SHARE: usize = 90;

/// The comparable properties of an allocation.
#[derive(Clone, Copy)]
struct Made {
    place: usize,
    stack: StackId,
    /// Whether the block is short-lived; `None` if it might have been.
    is_short: Option<bool>,
}

impl Made {
    fn is_like(self, other: Made) -> bool {
        self.stack == other.stack && (self.is_short.is_none() || other.is_short.is_none() || self.is_short == other.is_short)
    }
}

/// Classifies the remaining blocks after the last pass. Returns the pairs of matching blocks: one from the step before, and
/// one from after that step.
pub(super) fn tell_unfinished(run: &Run<'_>, told: &mut [Told]) -> Vec<(usize, usize)> {
    let Some(last) = run.passes.last() else { return Vec::new() };
    let behind = made(run, last.end, run.until);
    let whole = run.passes.len().checked_sub(2).map(|before| made(run, run.passes[before].end, last.end));
    let mut pairs = whole.map(|whole| side_by_side(&whole, &behind)).unwrap_or_default();
    if pairs.is_empty() {
        // The first optimizer step differs from the others, so only the pass itself is searched for.
        let pass = made(run, last.start, last.end);
        let found = (0..behind.len()).map(|offset| side_by_side(&pass, &behind[offset..])).find(|pairs| !pairs.is_empty());
        pairs = found.unwrap_or_default();
    }
    for &(known, unknown) in &pairs {
        if told[unknown] == Told::NOTHING && told[known] != Told::NOTHING {
            told[unknown] = Told::new(told[known].kind, How::Repetition);
        }
    }
    pairs
}

fn made(run: &Run<'_>, from: u32, to: u32) -> Vec<Made> {
    let first = run.blocks.partition_point(|block| block.born <= from);
    let last = run.blocks.partition_point(|block| block.born <= to).max(first);
    let made = run.blocks[first..last].iter().enumerate().map(|(further, block)| {
        let lived = block.freed.min(run.until).saturating_sub(block.born);
        let is_short = if block.freed <= run.until || lived > SHORT { Some(lived <= SHORT) } else { None };
        Made { place: first + further, stack: block.stack, is_short }
    });
    made.collect()
}

/// Returns the pairs of block indices at the same position in both sequences; empty if the sequences do not agree.
fn side_by_side(model: &[Made], behind: &[Made]) -> Vec<(usize, usize)> {
    let (mut at, mut of) = (0, 0);
    let (mut pairs, mut differing) = (Vec::new(), 0);
    while let (Some(one), Some(other)) = (model.get(at), behind.get(of)) {
        if one.is_like(*other) {
            pairs.push((one.place, other.place));
            (at, of) = (at + 1, of + 1);
            continue;
        }
        let agree = |at: usize, of: usize| {
            let (one, other) = (model.get(at..).unwrap_or(&[]), behind.get(of..).unwrap_or(&[]));
            !one.is_empty() && !other.is_empty() && one.iter().zip(other).take(AGREEMENT).all(|(one, other)| one.is_like(*other))
        };
        let jumps = (1..=LONGEST_GAP).flat_map(|gap| [(gap, gap), (gap, 0), (0, gap)]);
        let Some((skipped, left_out)) = jumps.into_iter().find(|&(skipped, left_out)| agree(at + skipped, of + left_out)) else {
            differing += LONGEST_GAP;
            break;
        };
        differing += skipped.max(left_out);
        (at, of) = (at + skipped, of + left_out);
        if differing * SHARE > (pairs.len() + LONGEST_GAP) * (100 - SHARE) * 10 {
            break;
        }
    }
    let agrees = pairs.len() >= FEWEST && pairs.len() * 100 >= (pairs.len() + differing) * SHARE;
    if agrees { pairs } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use parkade_recording::{Action, Entry};

    use super::*;
    use crate::timeline::{HeapLog, NEVER};

    /// A program that serves requests: ten blocks exist before; each step allocates eight blocks that it frees in order, and one
    /// that the next two steps use.
    struct Serving {
        trace: Vec<Entry>,
        log: HeapLog,
        /// The indices in the log of the blocks that each step keeps.
        kept: Vec<usize>,
    }

    impl Serving {
        fn of(steps: u64) -> Serving {
            let mut made = Serving { trace: Vec::new(), log: HeapLog::default(), kept: Vec::new() };
            for _ in 0..10 {
                made.allocate();
            }
            for _ in 0..steps {
                let inside: Vec<usize> = (0..8).map(|_| made.allocate()).collect();
                let kept = made.allocate();
                made.kept.push(kept);
                inside.into_iter().for_each(|place| made.free(place));
                if let Some(before) = made.kept.len().checked_sub(3) {
                    made.free(made.kept[before]);
                }
            }
            made
        }

        fn entry(&mut self, action: Action, place: usize) -> u32 {
            self.trace.push(Entry::new(action, (1 << 40) + ((place as u64) << 20), 4096, 0));
            self.trace.len() as u32
        }

        fn allocate(&mut self) -> usize {
            let place = self.log.blocks.len();
            let born = self.entry(Action::Alloc, place);
            let block =
                BlockLife { address: 0, size: 4096, requested: 4096, stack: StackId::NONE, born, freed: NEVER, gone: NEVER };
            self.log.blocks.push(block);
            place
        }

        fn free(&mut self, place: usize) {
            let freed = self.entry(Action::FreeRequested, place);
            (self.log.blocks[place].freed, self.log.blocks[place].gone) = (freed, freed);
        }

        fn told(&self, annotations: &[Annotation]) -> (Steps, Vec<Told>) {
            let recording = DeviceRecording { trace: self.trace.clone(), ..DeviceRecording::default() };
            let run = Run::of(&self.log, &recording, annotations);
            let steps = Steps::of(&recording, annotations);
            let mut told = vec![Told::NOTHING; self.log.blocks.len()];
            tell(&run, &steps, &mut told);
            (steps, told)
        }
    }

    #[test]
    fn what_steps_make_is_told_where_nothing_trains() {
        let run = Serving::of(6);
        let (steps, told) = run.told(&[]);
        assert_eq!((&steps.mark, steps.ends.len()), (&Some(StepMark::Repetition), 6));
        let kind = |place: usize| told[place].kind;
        assert!((0..10).all(|place| told[place] == Told::NOTHING), "the model, or something else that was made before");
        assert!((11..19).all(|place| kind(place) == Kind::Unknown), "the first step may have more in it");
        assert!((20..27).all(|place| told[place] == Told::new(Kind::Temporaries, How::Steps)));
        assert!(run.kept.iter().all(|&place| kind(place) == Kind::Unknown), "what the run repeats may be chance");
        let life = |place: usize| steps.life(&run.log.blocks[place], run.trace.len() as u32);
        assert_eq!([0, 12, 22, run.kept[2]].map(life), [StepLife::Across, StepLife::NotTold, StepLife::Within, StepLife::Across]);
    }

    #[test]
    fn what_marked_steps_carry_is_told() {
        let mut run = Serving::of(6);
        for (place, entry) in run.trace.iter_mut().enumerate() {
            entry.set_time(Some(place as u64));
        }
        let mut begins = 0;
        let mut marks = Vec::new();
        for (number, end) in run.told(&[]).0.ends.into_iter().map(u64::from).enumerate() {
            for (stage, time) in [("START", begins), ("END", end - 1)] {
                let name = format!("ProfilerStep#{number}").into();
                marks.push(Annotation { name, stage: stage.into(), device: None, time_us: Some(time as i64) });
            }
            begins = end;
        }
        let (steps, told) = run.told(&marks);
        assert_eq!((&steps.mark, steps.ends.len()), (&Some(StepMark::Annotation("ProfilerStep#".to_owned())), 6));
        // It is not known whether later steps would use the block that the last step keeps.
        let kinds: Vec<Kind> = run.kept.iter().map(|&place| told[place].kind).collect();
        assert_eq!(kinds, [Kind::Unknown, Kind::Caches, Kind::Caches, Kind::Caches, Kind::Caches, Kind::Unknown]);
    }

    /// Compares with the moments at which a block is in use, for every block and every set of steps among a few moments.
    #[test]
    fn a_block_is_carried_over_the_ends_at_which_it_is_in_use() {
        const MOMENTS: u32 = 6;
        for set in 0..1 << MOMENTS {
            let ends: Vec<u32> = (0..MOMENTS).filter(|moment| set >> moment & 1 == 1).collect();
            let steps = Steps { mark: None, ends: ends.clone() };
            for (born, freed) in (0..MOMENTS).flat_map(|born| (born + 1..=MOMENTS).chain([NEVER]).map(move |freed| (born, freed)))
            {
                let block = BlockLife { address: 0, size: 512, requested: 512, stack: StackId::NONE, born, freed, gone: freed };
                let is_in_use = |end: &u32| (born..freed).contains(end);
                let carried: Vec<u32> = ends.iter().copied().filter(is_in_use).collect();
                assert_eq!(ends[steps.ends_in(&block)], carried, "{ends:?} {born}..{freed}");
                for until in 0..=MOMENTS {
                    let is_after_the_first = ends.first().is_some_and(|&first| born > first);
                    let expected = match carried[..] {
                        [] if is_after_the_first && freed <= until => StepLife::Within,
                        [] => StepLife::NotTold,
                        _ => StepLife::Across,
                    };
                    assert_eq!(steps.life(&block, until), expected, "{ends:?} {born}..{freed}, until {until}");
                }
            }
        }
    }

    /// An allocation belongs to the stretch that begins before it and ends at its moment or later.
    #[test]
    fn every_allocation_is_in_one_stretch() {
        let program = Serving::of(3);
        let recording = DeviceRecording { trace: program.trace.clone(), ..DeviceRecording::default() };
        let run = Run::of(&program.log, &recording, &[]);
        let last = program.trace.len() as u32;
        for (from, to) in (0..=last).flat_map(|from| (0..=last).map(move |to| (from, to))) {
            let places: Vec<usize> = made(&run, from, to).iter().map(|made| made.place).collect();
            let is_in = |place: &usize| from < program.log.blocks[*place].born && program.log.blocks[*place].born <= to;
            assert_eq!(places, (0..program.log.blocks.len()).filter(is_in).collect::<Vec<_>>(), "{from} to {to}");
        }
    }

    #[test]
    fn without_steps_nothing_is_told() {
        let (steps, told) = Serving::of(1).told(&[]);
        assert_eq!((steps, told.iter().all(|told| *told == Told::NOTHING)), (Steps::default(), true));
    }

    #[test]
    fn a_run_with_an_annotated_optimizer_trains() {
        let mut run = Serving::of(6);
        for (place, entry) in run.trace.iter_mut().enumerate() {
            entry.set_time(Some(place as u64));
        }
        let mark = |stage: &str, time| Annotation {
            name: "Optimizer.step#SGD.step".into(),
            stage: stage.into(),
            device: None,
            time_us: Some(time),
        };
        let marks: Vec<Annotation> = [26, 44, 60].into_iter().flat_map(|at| [mark("START", at - 1), mark("END", at)]).collect();
        let (steps, told) = run.told(&marks);
        assert_eq!(steps.mark, Some(StepMark::Annotation("Optimizer.step#SGD.step".to_owned())));
        assert_eq!(steps.ends, [27, 45, 61]);
        assert!(told.iter().all(|told| *told == Told::NOTHING), "what looks like a temporary may be an activation");
    }
}
