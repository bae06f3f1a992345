//! The options of a transformer, which every generator that trains or runs one has beside its own.

use super::options::{Attention, Checkpointing, Precision, Transformer};
use crate::workload::Workload;
use crate::workload::generators::generator::{Done, Generator, Key, Trained};
use crate::workload::generators::models::training::optimizer;
use crate::workload::generators::{WorkloadError, values};

/// The options of a model; all but `preset` are fields of [`Transformer`].
const MODEL_KEYS: [Key; 19] = [
    "preset",
    "layers",
    "hidden",
    "heads",
    "sequence",
    "batch",
    "vocabulary",
    "mlp_ratio",
    "precision",
    "attention",
    "tied",
    "optimizer",
    "master_copy",
    "optimizer_copy",
    "accumulation",
    "checkpointing",
    "chunks",
    "mixed",
    "seed",
];

/// Sets an option of a model.
pub(in crate::workload::generators) fn set_model(model: &mut Transformer, key: Key, value: &str) -> Done {
    match key {
        "preset" => {
            let refused = || values::refused(key, value, Transformer::presets().collect::<Vec<_>>().join(", "));
            *model = Transformer::preset(value).map_or_else(refused, Ok)?;
        }
        "layers" => model.layers = values::number(key, value)?,
        "hidden" => model.hidden = values::number(key, value)?,
        "heads" => model.heads = values::number(key, value)?,
        "sequence" => model.sequence = values::number(key, value)?,
        "batch" => model.batch = values::number(key, value)?,
        "vocabulary" => model.vocabulary = values::number(key, value)?,
        "mlp_ratio" => model.mlp_ratio = values::number(key, value)?,
        "precision" => model.precision = precision(key, value)?,
        "attention" => model.attention = attention(key, value)?,
        "tied" => model.tied = values::switch(key, value)?,
        "optimizer" => model.optimizer = optimizer(key, value)?,
        "master_copy" => model.master_copy = values::switch(key, value)?,
        "optimizer_copy" => model.optimizer_copy = values::switch(key, value)?,
        "accumulation" => model.accumulation = values::number(key, value)?,
        "checkpointing" => model.checkpointing = checkpointing(key, value)?,
        "chunks" => model.chunks = values::number(key, value)?,
        "mixed" => model.mixed = values::switch(key, value)?,
        _ => model.seed = values::number(key, value)?,
    }
    Ok(())
}

/// The keys of a model's options, and some more.
pub(in crate::workload::generators) fn with_model(more: &[Key]) -> Vec<Key> {
    MODEL_KEYS.iter().chain(more).copied().collect()
}

impl Generator for Trained<Transformer> {
    fn keys(&self) -> Vec<Key> {
        with_model(&["steps"])
    }

    fn set(&mut self, key: Key, value: &str) -> Done {
        match key {
            "steps" => self.steps = values::number(key, value)?,
            _ => set_model(&mut self.model, key, value)?,
        }
        Ok(())
    }

    fn make(&self) -> Result<Workload, WorkloadError> {
        self.model.workload(self.steps)
    }
}

fn precision(option: Key, value: &str) -> Result<Precision, WorkloadError> {
    values::one_of(option, value, &[("fp32", Precision::Fp32), ("bf16", Precision::Half), ("fp16", Precision::Half)])
}

fn attention(option: Key, value: &str) -> Result<Attention, WorkloadError> {
    values::one_of(option, value, &[("fused", Attention::Fused), ("materialized", Attention::Materialized)])
}

fn checkpointing(option: Key, value: &str) -> Result<Checkpointing, WorkloadError> {
    match value {
        "none" => Ok(Checkpointing::None),
        "layer" => Ok(Checkpointing::EveryLayer),
        "sqrt" => Ok(Checkpointing::Sqrt),
        "other" => Ok(Checkpointing::EveryOther),
        _ => match value.parse() {
            Ok(layers) => Ok(Checkpointing::Every(layers)),
            Err(_) => values::refused(option, value, "none, layer, sqrt, other, or a number of layers"),
        },
    }
}
