//! Training steps without mixed lifetimes can be packed into their load.

use super::generators::cnn::Cnn;
use super::generators::mlp::Mlp;
use super::generators::transformer::{Attention, Checkpointing, Transformer};
use super::generators::varlen::Varlen;
use super::{Event, Workload};
use crate::packing::{Buffer, Effort, Instance, check, pack};

/// The height of the best packing found, over the load.
fn packed(workload: &Workload) -> f64 {
    let end = workload.events.len() as u64;
    let mut buffers: Vec<Buffer> = Vec::new();
    for (now, event) in workload.events.iter().enumerate() {
        match *event {
            Event::Allocate { bytes, .. } => {
                buffers.push(Buffer { start: now as u64, end, size: bytes.next_multiple_of(512), alignment: 1 });
            }
            Event::Free { buffer } => buffers[buffer as usize].end = now as u64,
            _ => {}
        }
    }
    let instance = Instance::new(buffers).unwrap();
    let found = pack(&instance, &Effort { steps: 20_000_000, seed: 1 });
    assert_eq!(check(&instance, &found.packing), Ok(()));
    found.packing.height as f64 / workload.load_bytes(512) as f64
}

fn small(checkpointing: Checkpointing) -> Transformer {
    let sizes =
        Transformer { layers: 6, hidden: 256, heads: 4, sequence: 512, batch: 4, vocabulary: 1000, ..Transformer::default() };
    Transformer { checkpointing, ..sizes }
}

#[test]
fn a_step_without_mixed_lifetimes_is_packed_as_low_as_its_load() {
    for checkpointing in [Checkpointing::None, Checkpointing::EveryLayer, Checkpointing::Sqrt, Checkpointing::EveryOther] {
        assert_eq!(packed(&small(checkpointing).workload(1).unwrap()), 1.0, "{checkpointing:?}");
        // With two steps, the optimizer's states come late and stay.
        assert_eq!(packed(&small(checkpointing).workload(2).unwrap()), 1.0, "{checkpointing:?}, two steps");
    }
}

#[test]
fn so_are_other_generators_steps() {
    let chunked = Transformer { chunks: 2, ..small(Checkpointing::EveryLayer) };
    let scores = Transformer { attention: Attention::Materialized, accumulation: 2, ..small(Checkpointing::None) };
    let varlen = Varlen { model: small(Checkpointing::None), steps: 1, ..Varlen::default() };
    let cnn = |batch| Cnn { batches: vec![batch], ..Cnn::default() };
    for (name, workload) in [
        ("pieces", chunked.workload(1)),
        ("pieces, two steps", chunked.workload(2)),
        ("scores, two micro-batches", scores.workload(1)),
        ("variable lengths", varlen.workload()),
        ("perceptron", Mlp::default().workload(1)),
        ("perceptron, checkpointing", Mlp { checkpointing: true, ..Mlp::default() }.workload(1)),
        ("network, one sample", cnn(1).workload()),
        ("network", cnn(32).workload()),
    ] {
        assert_eq!(packed(&workload.unwrap()), 1.0, "{name}");
    }
}
