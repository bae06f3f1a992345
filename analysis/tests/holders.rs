//! Tests what holds the memory in recorded runs of known models and in programs whose every block is known.

use std::collections::BTreeMap;
use std::path::Path;

use parkade_analysis::StackNames;
use parkade_analysis::holders::{Holders, How, Kind};
use parkade_analysis::timeline::{BlockLife, HeapLog, Levels, NEVER, Timeline};
use parkade_recording::{Action, Annotation, DeviceRecording, Entry, Recording, StackId, StackTable};
use parkade_replay::{ReplaySettings, Requests, VerifyOptions};
use proptest::prelude::*;

const GIB: u64 = 1 << 30;

struct Run {
    recording: Recording,
    timeline: Timeline,
    holders: Holders,
    peak: u32,
}

impl Run {
    fn of(name: &str, limit_bytes: Option<u64>) -> Run {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../conformance/recordings");
        let recording = parkade_recording::read_file(folder.join(format!("{name}.pickle.xz"))).expect("a recording");
        let settings = ReplaySettings::of_recording(recording.settings.as_ref()).expect("its settings");
        let own = VerifyOptions { settings, limit_bytes, stats_file: None };
        let requests = Requests::of_recording(&recording.devices[0], &own, &mut |_| ()).expect("its requests");
        let timeline = Timeline::of_device(&recording.devices[0], &own, &requests).expect("its timeline");
        let holders = Holders::of(&timeline.log, &recording.devices[0], &recording.annotations, &recording.stacks);
        let peak = Levels::peak_moment(&timeline.levels.allocated) as u32;
        Run { recording, timeline, holders, peak }
    }

    /// Returns the number of blocks of a kind that are live at a given moment, and the bytes requested for them.
    fn requested(&self, kind: Kind, moment: u32) -> (usize, u64) {
        let told = self.timeline.log.blocks.iter().zip(&self.holders.told);
        let live = told.filter(|(block, told)| told.kind == kind && block.born <= moment && moment < block.freed);
        live.fold((0, 0), |(blocks, bytes), (block, _)| (blocks + 1, bytes + block.requested))
    }

    /// Returns a kind's share of the bytes at the peak.
    fn share(&self, kind: Kind) -> f64 {
        let uses = self.holders.at(&self.timeline.log, self.peak);
        let total: u64 = uses.iter().map(|used| used.held.bytes).sum();
        assert_eq!(total, self.timeline.levels.allocated[self.peak as usize], "every live byte has one kind");
        let of_kind = uses.iter().find(|used| used.kind == kind).map_or(0, |used| used.held.bytes);
        of_kind as f64 / total as f64
    }
}

/// ResNet-50 has 25,557,032 parameters in 161 tensors, and another 159 tensors with 53,120 running averages and 53 counters of
/// eight bytes.
#[test]
fn resnet50_is_told_without_stacks() {
    let run = Run::of("resnet50_sweep.default", None);
    assert_eq!((run.holders.passes, run.holders.has_stacks), (7, false));
    let gradients = 25_557_032 * 4;
    assert_eq!(run.requested(Kind::Parameters, run.peak), (320, gradients + 53_120 * 4 + 53 * 8));
    assert_eq!(run.requested(Kind::Gradients, run.peak), (161, gradients));
    assert!(run.share(Kind::Activations) > 0.9);
    assert!(run.share(Kind::Unknown) < 0.01);
}

/// GPT-2 has 124,439,808 parameters in 148 tensors; AdamW keeps two numbers for each.
#[test]
fn gpt2_is_told_by_its_lives_and_its_optimizer() {
    for (name, limit, passes) in [("gpt2_varlen.default", None, 24), ("gpt2_varlen.limit16_gc", Some(16 * GIB), 4)] {
        let run = Run::of(name, limit);
        let parameters = 124_439_808 * 4;
        assert_eq!(run.holders.passes, passes, "{name}");
        assert_eq!(run.requested(Kind::Parameters, run.peak), (148, parameters), "{name}");
        assert_eq!(run.requested(Kind::OptimizerStates, run.peak), (296, 2 * parameters), "{name}");
        let made = run.holders.told.iter().filter(|told| told.kind == Kind::Gradients).count();
        assert_eq!(made, 148 * passes, "{name}: gradients");
        assert!(run.share(Kind::Unknown) < 0.01, "{name}");
    }
}

/// The program has 20 linear layers of width 4,096, runs the backward pass twice, and also asks for the gradient of its 64
/// inputs.
#[test]
fn a_deep_perceptron_is_told_without_an_optimizer() {
    let run = Run::of("deep_mlp.default", None);
    let with_gradient = 20 * (4096 * 4096 + 4096) * 4 + 64 * 4096 * 4;
    assert_eq!(run.holders.passes, 2);
    assert_eq!(run.requested(Kind::Parameters, run.peak), (41, with_gradient));
    assert_eq!(run.requested(Kind::Gradients, run.peak), (41, with_gradient));
    assert_eq!(run.requested(Kind::Workspaces, run.peak), (4, 2 * (33 << 20)));
}

/// A ring buffer whose oldest entries are missing: the number of blocks of each size distinguishes parameters from states.
#[test]
fn a_lost_beginning_is_told_by_sizes() {
    let run = Run::of("gpt2_varlen.frames_tail20k", None);
    assert!(run.holders.has_stacks);
    assert_eq!(run.requested(Kind::Parameters, run.peak).0, 148);
    assert_eq!(run.requested(Kind::OptimizerStates, run.peak).0, 296);
    assert!(run.share(Kind::Caches) > 0.02, "keys and values, by their stack");
    let without = run.holders.without_stack(&run.timeline.log, run.peak).expect("the recording has stacks");
    assert_eq!(without.early.blocks, 445);
    assert!(without.autograd.bytes > 2 * GIB - GIB / 10, "the logits' gradients: {without:?}");
    let stacks = &run.recording.stacks;
    let folded = run.holders.folded(&run.timeline.log, (&StackNames::of(stacks), stacks), run.peak);
    let bytes: u64 = folded.iter().map(|line| line.bytes).sum();
    assert_eq!(bytes, run.timeline.levels.allocated[run.peak as usize]);
    let of = |root: &str| folded.iter().filter(|line| line.frames[0] == root).map(|line| line.bytes).sum::<u64>();
    assert_eq!(of("[no stack: autograd's threads]"), without.autograd.bytes);
    assert_eq!(of("<module> (train.py:158)") + without.autograd.bytes + without.early.bytes, bytes);
}

/// A run that died in the middle of a step: that step is classified by the step before it or by the stacks.
#[test]
fn a_step_that_did_not_end_is_told() {
    let run = Run::of("gpt2_varlen.limit12_oom", Some(12 * GIB));
    assert!(run.share(Kind::Activations) > 0.7 && run.share(Kind::Unknown) < 0.05);
    let uses = run.holders.at(&run.timeline.log, run.peak);
    let activations = uses.iter().find(|used| used.kind == Kind::Activations).expect("activations");
    assert_eq!(activations.told_by[0].0, How::Repetition);
    let run = Run::of("resnet50_sweep.limit5_oom", Some(5 * GIB));
    assert!(run.share(Kind::Activations) > 0.9 && run.share(Kind::Unknown) < 0.05);
}

/// In recordings that have stacks, classification by lifetimes alone agrees with classification by stacks.
#[test]
fn lives_agree_with_stacks() {
    let run = Run::of("resnet50_sweep.limit5_oom", Some(5 * GIB));
    let mut log = run.timeline.log.clone();
    log.blocks.iter_mut().for_each(|block| block.stack = StackId::NONE);
    let by_lives = Holders::of(&log, &run.recording.devices[0], &run.recording.annotations, &StackTable::default());
    let mut counts = [0_usize; 2];
    for (stack, life) in run.holders.told.iter().zip(&by_lives.told) {
        if stack.how == How::Stack && stack.kind == Kind::Parameters {
            assert_eq!(life.kind, Kind::Parameters);
        }
        // By its lifetime, a convolution's workspace is a temporary.
        let is_same = stack.kind == life.kind || (stack.kind, life.kind) == (Kind::Workspaces, Kind::Temporaries);
        if life.kind != Kind::Unknown && stack.kind != Kind::Unknown {
            counts[usize::from(is_same)] += 1;
        }
    }
    assert!(counts[1] > 4000 && counts[0] * 100 < counts[1], "{counts:?}");
}

/// A program whose blocks are known.
#[derive(Default)]
struct Program {
    trace: Vec<Entry>,
    log: HeapLog,
    truth: Vec<Kind>,
}

impl Program {
    fn make(&mut self, kind: Kind, bytes: u64) -> usize {
        let address = (self.log.blocks.len() as u64 + 1) << 32;
        self.trace.push(Entry::new(Action::Alloc, address, bytes, 0));
        let size = bytes.next_multiple_of(512);
        let born = self.trace.len() as u32;
        self.log.blocks.push(BlockLife {
            address,
            size,
            requested: bytes,
            stack: StackId::NONE,
            born,
            freed: NEVER,
            gone: NEVER,
        });
        self.truth.push(kind);
        self.truth.len() - 1
    }

    fn free(&mut self, place: usize) {
        let block = &mut self.log.blocks[place];
        self.trace.push(Entry::new(Action::FreeRequested, block.address, block.size, 0));
        (block.freed, block.gone) = (self.trace.len() as u32, self.trace.len() as u32 + 1);
        self.trace.push(Entry::new(Action::FreeCompleted, block.address, block.size, 0));
    }

    fn brief(&mut self, bytes: u64) {
        let place = self.make(Kind::Temporaries, bytes);
        self.free(place);
    }

    fn told(&self) -> Holders {
        let recording = DeviceRecording { trace: self.trace.clone(), ..DeviceRecording::default() };
        let no_annotations: [Annotation; 0] = [];
        Holders::of(&self.log, &recording, &no_annotations, &StackTable::default())
    }
}

/// The time at which a program frees its gradients.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Dropped {
    Never,
    /// Right after the optimizer's step.
    Last,
    /// After the next batch has been loaded.
    First,
}

/// A network that is trained.
#[derive(Clone, Debug)]
struct Training {
    widths: Vec<u64>,
    steps: usize,
    batches: Vec<u64>,
    /// The number of values that the optimizer keeps for each parameter.
    states: usize,
    /// When gradients are freed.
    dropped: Dropped,
    /// The number of forward and backward passes for each update.
    passes: usize,
    /// Whether the run ends in the middle of its last forward pass and frees nothing.
    dies: bool,
}

impl Training {
    fn run(&self) -> Program {
        let mut program = Program::default();
        let layers: Vec<(u64, u64)> = self.widths.windows(2).map(|pair| (pair[0] * pair[1] * 4, pair[1] * 4)).collect();
        for &(weight, bias) in &layers {
            program.make(Kind::Parameters, weight);
            program.make(Kind::Parameters, bias);
        }
        let mut gradients: Vec<usize> = Vec::new();
        let mut input = None;
        for step in 0..self.steps {
            let batch = self.batches[step % self.batches.len()];
            // Larger than any weight, because an input of a parameter's size may be classified as a gradient.
            let next = program.make(Kind::Inputs, batch * self.widths[0] * 4 + (17 << 20));
            if let Some(last) = input.replace(next) {
                program.free(last);
            }
            if step == 0 {
                program.make(Kind::Workspaces, 32 << 20);
            }
            if self.dropped == Dropped::First && step % self.passes == 0 {
                gradients.drain(..).for_each(|place| program.free(place));
            }
            let kept = self.forward(&mut program, batch, self.dies && step + 1 == self.steps);
            let Some(kept) = kept else { return program };
            self.backward(&mut program, &layers, batch, &kept, &mut gradients);
            if (step + 1) % self.passes != 0 {
                continue;
            }
            self.update(&mut program, &layers, step < self.passes);
            if self.dropped == Dropped::Last {
                gradients.drain(..).for_each(|place| program.free(place));
            }
        }
        program
    }

    fn forward(&self, program: &mut Program, batch: u64, dies: bool) -> Option<Vec<[usize; 2]>> {
        let mut kept = Vec::new();
        for (number, &width) in self.widths[1..].iter().enumerate() {
            let linear = program.make(Kind::Activations, batch * width * 4);
            program.brief(batch * width);
            kept.push([linear, program.make(Kind::Activations, batch * width * 4)]);
            if dies && number * 2 > self.widths.len() {
                program.trace.push(Entry::new(Action::Oom, 0, 512, 0));
                return None;
            }
        }
        Some(kept)
    }

    fn backward(
        &self,
        program: &mut Program,
        layers: &[(u64, u64)],
        batch: u64,
        kept: &[[usize; 2]],
        gradients: &mut Vec<usize>,
    ) {
        let mut incoming = program.make(Kind::Temporaries, batch * self.widths[self.widths.len() - 1] * 4);
        let has_gradients = !gradients.is_empty();
        for (number, &(weight, bias)) in layers.iter().enumerate().rev() {
            let masked = program.make(Kind::Temporaries, batch * self.widths[number + 1] * 4);
            program.free(kept[number][1]);
            program.free(incoming);
            for bytes in [weight, bias] {
                if has_gradients { program.brief(bytes) } else { gradients.push(program.make(Kind::Gradients, bytes)) }
            }
            incoming = program.make(Kind::Temporaries, batch * self.widths[number] * 4);
            program.free(kept[number][0]);
            program.free(masked);
        }
        program.free(incoming);
    }

    fn update(&self, program: &mut Program, layers: &[(u64, u64)], is_first: bool) {
        let sizes: Vec<u64> = layers.iter().flat_map(|&(weight, bias)| [weight, bias]).collect();
        if is_first {
            for &bytes in &sizes {
                (0..self.states).for_each(|_| _ = program.make(Kind::OptimizerStates, bytes));
            }
        }
        let updates: Vec<usize> = sizes.iter().map(|&bytes| program.make(Kind::Temporaries, bytes)).collect();
        // All of them are freed before the gradients.
        updates.into_iter().for_each(|place| program.free(place));
        program.brief(4);
    }
}

fn training() -> impl Strategy<Value = Training> {
    let widths = proptest::collection::vec(200_u64..2000, 12..40);
    let batches = proptest::collection::vec(1_u64..3000, 1..4);
    let dropped = prop_oneof![Just(Dropped::Never), Just(Dropped::Last), Just(Dropped::First)];
    (widths, 4_usize..9, batches, 0_usize..3, dropped, 1_usize..3, any::<bool>()).prop_map(
        |(widths, steps, batches, states, dropped, passes, dies)| Training {
            widths,
            steps,
            batches,
            states,
            dropped,
            passes,
            dies,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// The classification is right, except for a few blocks around the turns of passes, and leaves few blocks unclassified.
    #[test]
    fn what_is_told_of_a_known_program_is_true(training in training()) {
        let program = training.run();
        let holders = program.told();
        let finished = training.steps - usize::from(training.dies);
        prop_assert_eq!(holders.passes, finished);
        let mut wrong: BTreeMap<(Kind, Kind), usize> = BTreeMap::new();
        let mut unknown = 0;
        for (told, &truth) in holders.told.iter().zip(&program.truth) {
            match told.kind {
                Kind::Unknown => unknown += 1,
                kind if kind != truth => *wrong.entry((truth, kind)).or_default() += 1,
                _ => {}
            }
        }
        for (&(truth, kind), &count) in &wrong {
            // Lifetimes look alike around a turn and where the backward pass frees an input.
            let are_alike = matches!(
                (truth, kind),
                (Kind::Activations, Kind::Temporaries) | (Kind::Temporaries | Kind::Inputs, Kind::Activations)
            );
            prop_assert!(are_alike && count <= 8 * training.steps, "{:?}", wrong);
        }
        prop_assert!(unknown * 10 <= program.truth.len(), "{} of {}", unknown, program.truth.len());
    }

    /// Blocks that are allocated and freed in random order are never classified as blocks of a training run.
    #[test]
    fn nothing_is_told_of_a_program_that_trains_nothing(moves in proptest::collection::vec((any::<u16>(), 1_u64..1 << 24), 1..600)) {
        let mut program = Program::default();
        let mut live = Vec::new();
        for (choice, bytes) in moves {
            if choice % 2 == 0 || live.is_empty() {
                live.push(program.make(Kind::Unknown, bytes));
            } else {
                program.free(live.swap_remove(usize::from(choice / 2) % live.len()));
            }
        }
        let holders = program.told();
        prop_assert_eq!(holders.passes, 0);
        let allowed = |kind: Kind| matches!(kind, Kind::Unknown | Kind::Temporaries);
        prop_assert!(holders.told.iter().all(|told| allowed(told.kind)), "{:?}", holders.told);
    }
}
