//! Training steps whose buffers are given back as autograd gives them back are packed into the load.
#![allow(clippy::print_stdout, reason = "steps and seconds, for who looks on")]

use std::time::Instant;

use parkade_sim::bounds::{BLOCK_BYTES, buffers};
use parkade_sim::packing::{Effort, Instance, check, pack};
use parkade_sim::workload::transformer::{Checkpointing, Transformer};

/// A model trained with every kind of checkpointing, with accumulation, with a copy of the optimizer's states, and in pieces.
fn grid(preset: &str) -> Vec<(String, Transformer)> {
    let base = Transformer::preset(preset).unwrap();
    let mut models = Vec::new();
    for checkpointing in
        [Checkpointing::None, Checkpointing::EveryLayer, Checkpointing::Every(4), Checkpointing::Sqrt, Checkpointing::EveryOther]
    {
        for (accumulation, optimizer_copy, batch) in [(1, false, 4), (2, false, 4), (1, true, 3)] {
            let model = Transformer { checkpointing, accumulation, optimizer_copy, batch, ..base.clone() };
            models.push((format!("{preset} {checkpointing:?} accumulation={accumulation} copy={optimizer_copy}"), model));
        }
    }
    let pieces = Transformer { checkpointing: Checkpointing::EveryLayer, batch: 4, chunks: 4, ..base };
    models.push((format!("{preset} in pieces"), pieces));
    models
}

/// Packs two steps of training: the height and the load.
fn packed(name: &str, model: &Transformer, effort: &Effort) -> (u64, u64) {
    let workload = model.workload(2).unwrap();
    let instance = Instance::new(buffers(&workload, BLOCK_BYTES)).unwrap();
    let start = Instant::now();
    let found = pack(&instance, effort);
    assert_eq!(check(&instance, &found.packing), Ok(()), "{name}");
    let (height, load, seconds) = (found.packing.height, instance.load(), start.elapsed().as_secs_f64());
    println!("{name}: {} buffers, {height} of {load} bytes, {} steps, {seconds:.1} s", instance.buffers().len(), found.steps);
    (height, load)
}

#[test]
fn the_packer_reaches_the_load_of_a_small_model() {
    for (name, model) in grid("gpt2") {
        let (height, load) = packed(&name, &model, &Effort { steps: 20_000_000, seed: 1 });
        assert_eq!(height, load, "{name}");
    }
}

#[test]
#[ignore = "minutes in a debug build: cargo test --release -p parkade-sim --test packing_generated -- --ignored --nocapture"]
fn the_packer_reaches_the_load_of_a_large_model() {
    for (name, model) in grid("7b") {
        let (height, load) = packed(&name, &model, &Effort::default());
        // 14,127 buffers in pieces are more than this budget is enough for: docs/packing.md.
        let most = if model.chunks > 1 { load + load / 5000 } else { load };
        assert!(height <= most, "{name}: {height} of {load}");
    }
}
