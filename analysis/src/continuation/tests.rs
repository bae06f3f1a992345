//! Programs of a few steps, cut off in the middle of one and continued.

use parkade::units::PoolId;
use parkade_recording::DeviceRecording;
use parkade_replay::{Completion, Operation, Requests};

use super::{Continuation, Doubt, continue_after};

const MIB: u64 = 1 << 20;
/// Layers of the model.
const LAYERS: usize = 16;

/// A program as operations.
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

    /// A training step: an activation for each layer, a large one at the end, and a gradient for each layer, all freed again. The first
    /// step makes the optimizer's states.
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

/// The live bytes after each operation.
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

/// The program cut after the operation `last` and continued.
fn continued(lengths: &[u64], last: usize) -> Option<Continuation> {
    continue_after(&Program::training(lengths).requests(), &DeviceRecording::default(), last, 2000)
}

/// Where a step begins.
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
    // Cut at the top of the forward pass: what the large step still held there is not what the next one needed.
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
                Operation::Free { id, .. } => assert!(std::mem::take(&mut live[*id]), "{id} is freed twice, cut after {last}"),
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
