//! All blocks of a run, each with what was told of it.

use parkade_recording::{Annotation, DeviceRecording, StackTable};

use super::by_lifetime::Lives;
use super::by_repetition;
use super::by_stack::{Place, Places};
use super::by_steps::{self, StepLife, Steps};
use super::kind::{How, Kind, Told};
use super::passes::Pass;
use super::run::{Run, has_stacks};
use crate::timeline::{BlockLife, HeapLog};

/// A convolution's workspace is freed within so many entries.
const CONVOLUTION: u32 = 4;
/// What was told of each block of a device's run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Holders {
    /// For each block of the log, in its order.
    pub told: Vec<Told>,
    /// The same against the steps; in a step that did not end, as in the step before.
    pub lives: Vec<StepLife>,
    /// The steps.
    pub steps: Steps,
    /// How many forward passes with their backward passes were found.
    pub passes: usize,
    /// Whether a block without a stack was made on a thread without Python calls, as autograd's threads are: the other blocks have
    /// stacks. If not, the file has no stacks at all, or nearly none.
    pub has_stacks: bool,
}

impl Holders {
    /// Tells the blocks of a device's run. `log` is that run's, `annotations` and `stacks` are the whole recording's.
    #[must_use]
    pub fn of(log: &HeapLog, recording: &DeviceRecording, annotations: &[Annotation], stacks: &StackTable) -> Holders {
        let places = Places::of(stacks, log.blocks.iter().map(|block| block.stack));
        let mut run = Run::of(log, recording, annotations);
        let calls = Calls::of(&run, places);
        let lives = Lives::of(&mut run);
        let mut told: Vec<Told> = log.blocks.iter().enumerate().map(|(at, block)| calls.tell(block, lives.tell(at))).collect();
        let steps = Steps::of(recording, annotations);
        let mut in_steps: Vec<StepLife> = log.blocks.iter().map(|block| steps.life(block, run.until)).collect();
        for (known, unknown) in by_repetition::tell(&run, &mut told) {
            if in_steps[unknown] == StepLife::NotTold {
                in_steps[unknown] = in_steps[known];
            }
        }
        by_steps::tell(&run, &steps, &mut told);
        Holders { told, lives: in_steps, steps, passes: run.passes.len(), has_stacks: has_stacks(&log.blocks) }
    }
}

/// What calls add to lives.
struct Calls {
    places: Places,
    /// The moments of allocations that are no part of an optimizer's step, in order.
    elsewhere: Vec<u32>,
    /// The moments of allocations in modules' forward passes, in order.
    forward: Vec<u32>,
    passes: Vec<Pass>,
    /// What is freed later may be freed because of an error.
    until: u32,
}

impl Calls {
    fn of(run: &Run<'_>, places: Places) -> Calls {
        let made_in = |of: &[Place]| -> Vec<u32> {
            run.blocks.iter().filter(|block| of.contains(&places.get(block.stack))).map(|block| block.born).collect()
        };
        let forward = made_in(&[Place::Forward, Place::Convolution, Place::Cache]);
        let elsewhere = made_in(&[Place::Forward, Place::Convolution, Place::Cache, Place::Data, Place::Model, Place::Other]);
        Calls { places, elsewhere, forward, passes: run.passes.clone(), until: run.until }
    }

    fn tell(&self, block: &BlockLife, by_life: Told) -> Told {
        let by_stack = |kind| Told::new(kind, How::Stack);
        let lived = block.freed.saturating_sub(block.born);
        match self.places.get(block.stack) {
            Place::Model => by_stack(Kind::Parameters),
            Place::OptimizerStates => by_stack(Kind::OptimizerStates),
            Place::Optimizer => self.of_optimizer(block, by_life),
            Place::Data => by_stack(Kind::Inputs),
            Place::Workspace => by_stack(Kind::Workspaces),
            Place::Cache if by_life.kind != Kind::Temporaries => by_stack(Kind::Caches),
            Place::Convolution if by_life.kind == Kind::Temporaries && lived <= CONVOLUTION => by_stack(Kind::Workspaces),
            Place::Convolution | Place::Forward if by_life == Told::NOTHING && block.freed > self.until => {
                by_stack(Kind::Activations)
            }
            Place::Other if matches!(by_life.kind, Kind::Activations | Kind::Unknown) && self.is_input(block) => {
                by_stack(Kind::Inputs)
            }
            _ => by_life,
        }
    }

    /// Whether the program itself made a block before the first module of a pass, and still had it then.
    fn is_input(&self, block: &BlockLife) -> bool {
        let place = self.passes.partition_point(|pass| pass.end < block.born);
        let last_end = place.checked_sub(1).map_or(0, |before| self.passes[before].end);
        let next = self.forward.partition_point(|&born| born <= block.born);
        let is_first = next.checked_sub(1).is_none_or(|last| self.forward[last] <= last_end);
        block.born > 0 && is_first && self.forward.get(next).is_some_and(|&born| born < block.freed)
    }

    /// What is still there when the program goes on elsewhere is a state.
    fn of_optimizer(&self, block: &BlockLife, by_life: Told) -> Told {
        let next = self.elsewhere.partition_point(|&born| born <= block.born);
        let is_left = self.elsewhere.get(next).is_some_and(|&born| born < block.freed);
        match by_life.kind {
            Kind::OptimizerStates => Told::new(Kind::OptimizerStates, How::Stack),
            _ if is_left => Told::new(Kind::OptimizerStates, How::Stack),
            _ if block.freed <= self.until => Told::new(Kind::Temporaries, How::Stack),
            _ => by_life,
        }
    }
}
