//! One test for each rule, on what a small model allocates and frees.

use super::engine::Pass;
use super::*;
use crate::workload::Event;

fn engine() -> Engine {
    Engine::new(Surroundings { scratch_seed: None, libraries: false, flop_per_us: 1 })
}

/// What an engine allocated and freed: `+size` and `-size`, in order.
fn story(engine: Engine) -> String {
    let mut sizes = Vec::new();
    let mut story = Vec::new();
    for event in engine.program.finish("", String::new()).events {
        match event {
            Event::Allocate { bytes, .. } => {
                sizes.push(bytes);
                story.push(format!("+{bytes}"));
            }
            Event::Free { buffer } => story.push(format!("-{}", sizes[buffer as usize])),
            _ => {}
        }
    }
    story.join(" ")
}

/// An input of 1 byte, then operations with outputs of different sizes.
fn block(operations: Vec<Operation>) -> Block {
    let mut block = Block::new(1);
    for operation in operations {
        block.push(operation);
    }
    block
}

/// One block forward and backward; the gradient of the input has 1 byte again.
fn run(block: &Block) -> String {
    let mut engine = engine();
    let input = engine.allocate(1).unwrap();
    let (output, tape) = engine.forward(block, input, Pass::Keep).unwrap();
    engine.release(output).unwrap();
    let gradient = engine.allocate(block.output_bytes()).unwrap();
    if let Some(gradient) = engine.backward(block, tape, gradient, 0, true).unwrap() {
        engine.release(gradient).unwrap();
    }
    story(engine)
}

#[test]
fn what_an_operation_saves_lives_until_its_backward_ran() {
    // The first keeps its input (1), the second nothing, the third its input (20).
    let block =
        block(vec![Operation::new(&[0], 10).keeps_inputs(), Operation::new(&[1], 20), Operation::new(&[2], 30).keeps_inputs()]);
    let forward = "+1 +10 +20 -10 +30 -30";
    let backward = "+30 +20 -30 -20 +10 -20 +1 -10 -1 -1";
    assert_eq!(run(&block), format!("{forward} {backward}"));
}

#[test]
fn softmax_saves_its_output_and_not_its_input() {
    let block = block(vec![Operation::new(&[0], 10), Operation::new(&[1], 11).keeps_output(), Operation::new(&[2], 5)]);
    // The input (10) is freed once the output (11) exists; the output is freed in softmax's backward.
    assert!(run(&block).starts_with("+1 +10 -1 +11 -10 +5 -5 "), "{}", run(&block));
    assert!(run(&block).contains("+10 -11 -11 "), "{}", run(&block));
}

#[test]
fn detach_allocates_nothing_and_stops_the_gradient() {
    let detached = block(vec![
        Operation::new(&[0], 10).keeps_inputs(),
        Operation::in_place(1).backward(Backward::Stops),
        Operation::new(&[2], 30).keeps_inputs(),
    ]);
    // It shares the first operation's memory. No gradient of that one is computed, and what it saved is freed all
    // the same.
    assert_eq!(run(&detached), "+1 +10 +30 -30 +30 +10 -30 -10 -10 -1");
}

#[test]
fn the_first_gradient_is_assigned_and_later_ones_are_added_in_place() {
    let block = block(vec![Operation::new(&[0], 10).keeps_inputs().parameters(&[7, 3])]);
    let mut engine = engine();
    for _ in 0..2 {
        let input = engine.allocate(1).unwrap();
        let (output, tape) = engine.forward(&block, input, Pass::Keep).unwrap();
        engine.release(output).unwrap();
        let gradient = engine.allocate(10).unwrap();
        assert_eq!(engine.backward(&block, tape, gradient, 0, false).unwrap(), None);
    }
    engine.drop_gradients().unwrap();
    assert_eq!(story(engine), "+1 +10 -10 +10 +7 +3 -10 -1 +1 +10 -10 +10 +7 +3 -10 -1 -7 -3 -7 -3");
}

#[test]
fn gradients_of_a_value_used_twice_are_summed_in_place() {
    let mut residual = Block::new(1);
    let inner = residual.push(Operation::new(&[0], 10).keeps_inputs());
    residual.push(Operation::new(&[0, inner], 1).backward(Backward::Passes));
    // The sum's gradient goes to both inputs; when the inner operation's backward is done, only the other input
    // refers to it.
    assert_eq!(run(&residual), "+1 +10 +1 -10 -1 +1 +1 -1 -1 -1");
}

#[test]
fn forward_only_keeps_at_most_two_activations() {
    let block = block((0..10).map(|_| Operation::new(&[0], 1).keeps_inputs().keeps_output()).take(1).collect());
    let mut engine = engine();
    let mut value = engine.allocate(1).unwrap();
    for _ in 0..10 {
        value = engine.forward(&block, value, Pass::Forget).unwrap().0;
    }
    engine.release(value).unwrap();
    let workload = engine.program.finish("", String::new());
    assert_eq!(workload.load_bytes(1), 2);
    assert_eq!(workload.buffers(), 11);
}

#[test]
fn recomputed_parts_keep_what_goes_in_and_do_the_forward_work_again() {
    let layer = block(vec![Operation::new(&[0], 100).keeps_inputs().work(&[6]), Operation::new(&[1], 1).keeps_inputs()]);
    let load_and_work = |recompute: Recompute| {
        let part = Part { block: 0, repeats: 1, recompute, shares: None };
        let plan = Plan { blocks: vec![layer.clone()], parts: vec![part; 4] };
        let mut engine = engine();
        let input = engine.allocate(1).unwrap();
        plan.train(&mut engine, input).unwrap();
        let work = engine.work;
        (engine.program.finish("", String::new()).load_bytes(1), work)
    };
    let (kept, work) = load_and_work(Recompute::No);
    // Four layers of 100 + 1, the output and its gradient, and the gradient inside the last layer.
    assert_eq!(kept, 4 * 101 + 1 + 1 + 100);
    assert_eq!(work, Work { forward: 24, backward: 48, recomputed: 0 });
    let (recomputed, work) = load_and_work(Recompute::Whole);
    assert_eq!(recomputed, 4 + 100 + 1 + 1 + 100);
    assert_eq!(work, Work { forward: 24, backward: 48, recomputed: 24 });
    assert!((work.overhead() - 1.0 / 3.0).abs() < 1e-12);
}
