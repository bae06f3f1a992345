//! Tests that training steps, with the buffer lifetimes that result from autograd, can be packed into their load.
#![expect(clippy::print_stdout, reason = "a table for the reader")]

use std::time::Instant;

use parkade_research::bounds::{BLOCK_BYTES, buffers};
use parkade_research::packing::{Effort, Instance, check, pack};
use parkade_research::workload::generators::Optimizer;
use parkade_research::workload::generators::transformer::{Checkpointing, Transformer};
use parkade_research::workload::{Workload, parse};

/// Returns a model with every kind of checkpointing, and in two to eight pieces.
fn kinds(base: &Transformer) -> Vec<(String, Transformer)> {
    let whole =
        [Checkpointing::None, Checkpointing::EveryLayer, Checkpointing::Every(4), Checkpointing::Sqrt, Checkpointing::EveryOther];
    let whole = whole.into_iter().map(|checkpointing| (format!("{checkpointing:?}"), checkpointing, 1));
    let pieces = (2..=8).map(|chunks| (format!("{chunks} pieces"), Checkpointing::EveryLayer, chunks));
    let of = |(name, checkpointing, chunks): (String, Checkpointing, u64)| {
        (name, Transformer { checkpointing, chunks, batch: chunks.max(4), ..base.clone() })
    };
    whole.chain(pieces).map(of).collect()
}

/// Returns each of [`kinds`]: unchanged, with accumulation, with a copy of the optimizer's states, without states, and with a
/// larger batch.
fn grid(base: &Transformer) -> Vec<(String, Transformer)> {
    let mut models = Vec::new();
    for (kind, model) in kinds(base) {
        let batch = model.batch;
        models.extend([
            (kind.clone(), model.clone()),
            (format!("{kind}, accumulation"), Transformer { accumulation: 2, batch: 2 * batch, ..model.clone() }),
            (format!("{kind}, copy"), Transformer { optimizer_copy: true, ..model.clone() }),
            (format!("{kind}, SGD"), Transformer { optimizer: Optimizer::Sgd, ..model.clone() }),
            (format!("{kind}, larger batch"), Transformer { batch: batch + 3, ..model }),
        ]);
    }
    models
}

/// The result of packing a workload.
struct Row {
    buffers: usize,
    height: u64,
    load: u64,
    steps: u64,
    seconds: f64,
}

fn packed(name: &str, workload: &Workload, effort: &Effort) -> Row {
    let instance = Instance::new(buffers(workload, BLOCK_BYTES)).unwrap();
    let start = Instant::now();
    let found = pack(&instance, effort);
    assert_eq!(check(&instance, &found.packing), Ok(()), "{name}");
    let (height, steps, seconds) = (found.packing.height, found.steps, start.elapsed().as_secs_f64());
    Row { buffers: instance.buffers().len(), height, load: instance.load(), steps, seconds }
}

/// Packs two training steps of each model. Panics with the names of the models whose packing is higher than the load.
fn assert_reached(models: &[(String, Transformer)], effort: &Effort) {
    println!("| workload | buffers | packing / load | steps | seconds |");
    println!("|---|---|---|---|---|");
    let mut missed = Vec::new();
    for (name, model) in models {
        let Row { buffers, height, load, steps, seconds } = packed(name, &model.workload(2).unwrap(), effort);
        println!("| {name} | {buffers} | {:.6} | {:.1e} | {seconds:.1} |", height as f64 / load as f64, steps as f64);
        if height != load {
            missed.push(format!("{name}: {height} of {load} bytes"));
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
}

#[test]
fn the_packer_reaches_the_load_of_a_small_model_in_all_ways() {
    let tiny = Transformer { layers: 5, hidden: 256, heads: 4, sequence: 512, vocabulary: 1000, ..Transformer::default() };
    assert_reached(&grid(&tiny), &Effort { steps: 20_000_000, seed: 1 });
}

#[test]
fn the_packer_reaches_the_load_of_a_model_with_a_large_vocabulary() {
    // The logits take most of the memory in the middle of a step; kept results dominate before it, gradients after it.
    assert_reached(&kinds(&Transformer::preset("gpt2").unwrap()), &Effort { steps: 20_000_000, seed: 1 });
}

#[test]
fn the_packer_reaches_the_load_of_6_7_billion_parameters_in_four_pieces() {
    let base = Transformer::preset("7b").unwrap();
    let pieces = Transformer { checkpointing: Checkpointing::EveryLayer, batch: 4, chunks: 4, ..base };
    assert_reached(&[("7b, 4 pieces".into(), pieces)], &Effort { steps: 50_000_000, seed: 1 });
}

#[test]
fn the_packer_reaches_the_load_of_steps_whose_gradients_leave_little_room() {
    // Without states, each step is as tight at the end of its backward pass as at the logits. Both steps have the
    // same peak.
    let base = Transformer::preset("3b").unwrap();
    let pieces = Transformer { checkpointing: Checkpointing::EveryLayer, batch: 6, chunks: 6, optimizer: Optimizer::Sgd, ..base };
    assert_reached(&[("3b, 6 pieces, SGD".into(), pieces)], &Effort { steps: 50_000_000, seed: 1 });
}

#[test]
fn the_packer_reaches_the_load_of_networks() {
    for text in
        ["cnn:preset=resnet101,batches=7,mixed=off", "cnn:preset=resnet152,batches=16,mixed=off", "cnn:batches=1,mixed=off"]
    {
        let Row { height, load, .. } = packed(text, &parse(text).unwrap(), &Effort { steps: 20_000_000, seed: 1 });
        assert_eq!(height, load, "{text}");
    }
}

#[test]
#[ignore = "a minute and a half in a release build, many in a debug build: cargo test --release -p parkade-research --test research packing_generated -- --ignored --nocapture"]
fn the_packer_reaches_the_load_of_every_preset_in_all_ways() {
    let mut models = Vec::new();
    for preset in Transformer::presets() {
        let named = grid(&Transformer::preset(preset).unwrap());
        models.extend(named.into_iter().map(|(name, model)| (format!("{preset}, {name}"), model)));
    }
    assert_reached(&models, &Effort::default());
}
