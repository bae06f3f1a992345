use super::*;
use crate::workload::generators::WorkloadError;
use crate::workload::generators::models::autograd::Work;
use crate::workload::generators::models::training::Optimizer;

fn small() -> Transformer {
    Transformer { layers: 6, hidden: 256, heads: 4, sequence: 128, batch: 4, vocabulary: 1000, ..Transformer::default() }
}

fn load(transformer: &Transformer) -> u64 {
    let workload = transformer.workload(2).unwrap();
    assert_eq!(workload.check(), Ok(()));
    workload.load_bytes(1)
}

#[test]
fn parameters_are_counted_as_they_are_allocated() {
    for tied in [false, true] {
        let transformer = Transformer { tied, ..small() };
        let plan = transformer.plan(4, 128).unwrap();
        assert_eq!(plan.parameters().sum::<u64>(), 2 * transformer.parameters());
    }
    let of = |name| Transformer::preset(name).unwrap().parameters() as f64 / 1e9;
    // The papers' sizes, without their positions.
    for (name, billions) in
        [("gpt2", 0.124), ("gpt2-medium", 0.354), ("gpt2-large", 0.773), ("gpt2-xl", 1.556), ("7b", 6.65), ("13b", 12.85)]
    {
        assert!((of(name) / billions - 1.0).abs() < 0.01, "{name}: {}", of(name));
    }
    assert_eq!(Transformer::preset("8b"), None);
}

#[test]
fn what_lives_across_steps_is_weights_and_states() {
    let transformer = small();
    for (optimizer, master_copy, bytes) in
        [(Optimizer::Sgd, false, 2), (Optimizer::Momentum, false, 4), (Optimizer::Adam, false, 6), (Optimizer::Adam, true, 14)]
    {
        let training = Transformer { optimizer, master_copy, ..transformer.clone() }.train(2).unwrap();
        assert_eq!(training.engine.program.live_bytes(), bytes * transformer.parameters(), "{optimizer:?} {master_copy}");
    }
}

#[test]
fn every_option_does_to_the_peak_what_it_should() {
    let base = Transformer { sequence: 512, ..small() };
    let plain = load(&base);
    let less =
        |transformer: Transformer, what: &str| assert!(load(&transformer) < plain, "{what}: {} {plain}", load(&transformer));
    let more =
        |transformer: Transformer, what: &str| assert!(load(&transformer) > plain, "{what}: {} {plain}", load(&transformer));
    less(Transformer { batch: 2, ..base.clone() }, "a smaller batch");
    less(Transformer { accumulation: 2, ..base.clone() }, "gradient accumulation");
    less(Transformer { optimizer: Optimizer::Sgd, ..base.clone() }, "no states");
    more(Transformer { precision: Precision::Fp32, ..base.clone() }, "four bytes");
    more(Transformer { attention: Attention::Materialized, ..base.clone() }, "scores");
    more(Transformer { master_copy: true, ..base.clone() }, "a master copy");
    more(Transformer { mixed: true, ..base.clone() }, "mixed lifetimes");
    for checkpointing in [Checkpointing::EveryLayer, Checkpointing::Every(3), Checkpointing::Sqrt, Checkpointing::EveryOther] {
        less(Transformer { checkpointing, ..base.clone() }, "checkpointing");
    }
    let every_layer = Transformer { checkpointing: Checkpointing::EveryLayer, ..base.clone() };
    let chunked = Transformer { chunks: 4, ..every_layer.clone() };
    assert!(load(&chunked) < load(&every_layer));
}

#[test]
fn the_optimizers_second_copy_is_there_for_a_moment_only() {
    // So few tokens that the update is the peak.
    let plain = Transformer { sequence: 1, batch: 1, ..small() };
    let copying = Transformer { optimizer_copy: true, ..plain.clone() };
    // Weights, gradients, two states, and these once more.
    assert_eq!(load(&copying), 2 * (1 + 1 + 2 + 2) * plain.parameters());
    assert!(load(&plain) < load(&copying));
    assert_eq!(copying.train(1).unwrap().engine.program.live_bytes(), plain.train(1).unwrap().engine.program.live_bytes());
}

#[test]
fn checkpointing_costs_a_third_more_in_the_layers() {
    let transformer = Transformer { checkpointing: Checkpointing::EveryLayer, ..small() };
    let work = transformer.work().unwrap();
    let head = u128::from(2 * 4 * 128 * transformer.hidden * transformer.vocabulary);
    assert_eq!(work.recomputed, work.forward - head);
    assert_eq!(work.backward, 2 * work.forward);
    let half = Transformer { checkpointing: Checkpointing::EveryOther, ..small() }.work().unwrap();
    assert_eq!(2 * half.recomputed, work.recomputed);
    assert_eq!(small().work().unwrap().recomputed, 0);
    let chunked = Transformer { chunks: 3, ..transformer }.work().unwrap();
    assert_eq!(chunked, Work { forward: chunked.forward, backward: 2 * chunked.forward, recomputed: chunked.recomputed });
    assert_eq!(chunked.recomputed, work.recomputed, "in pieces it is the same work");
}

#[test]
fn bad_options_are_errors() {
    let refused = |transformer: Transformer| transformer.workload(1).unwrap_err().to_string();
    assert_eq!(refused(Transformer { layers: 0, ..small() }), "layers is 0; allowed: 1 to 1048576");
    assert_eq!(refused(Transformer { batch: 0, ..small() }), "batch is 0; allowed: 1 to 1048576");
    assert_eq!(
        refused(Transformer { sequence: 1 << 60, ..small() }),
        format!("sequence is {}; allowed: 1 to {}", 1_u64 << 60, 1_u64 << 32)
    );
    let large = Transformer { sequence: 1 << 32, batch: 1 << 20, ..small() };
    assert_eq!(large.workload(1), Err(WorkloadError::TooLarge { what: "an activation" }));
    let many = Transformer { layers: 1 << 20, hidden: 1, heads: 1, sequence: 1, vocabulary: 1, ..small() };
    assert_eq!(many.workload(1), Err(WorkloadError::TooManyEvents));
    assert_eq!(small().workload(0).unwrap_err().to_string(), "steps is 0; allowed: 1 to 1000000");
    assert!(refused(Transformer { chunks: 2, ..small() }).contains("only with checkpointing=layer"));
    assert!(refused(Transformer { accumulation: 5, ..small() }).contains("accumulation is 5; allowed: 1 to 4"));
}

#[test]
fn the_same_seed_makes_the_same_program() {
    let mixed = Transformer { mixed: true, ..small() };
    assert_eq!(mixed.workload(3), mixed.workload(3));
    assert_ne!(mixed.workload(3), Transformer { seed: 1, ..mixed }.workload(3));
}
