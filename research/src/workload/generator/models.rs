//! The generators that train or run a transformer, whose options they all have.

use super::{Done, Generator, Key, Trained, read};
use crate::workload::alternate::Alternate;
use crate::workload::graphs::Graphs;
use crate::workload::transformer::Transformer;
use crate::workload::varlen::Varlen;
use crate::workload::{Workload, WorkloadError};

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

fn set_model(model: &mut Transformer, key: Key, value: &str) -> Done {
    match key {
        "preset" => {
            let allowed = || Transformer::presets().collect::<Vec<_>>().join(", ");
            let refused = || WorkloadError::Option { option: key, value: value.into(), allowed: allowed() };
            *model = Transformer::preset(value).ok_or_else(refused)?;
        }
        "layers" => model.layers = read::number(key, value)?,
        "hidden" => model.hidden = read::number(key, value)?,
        "heads" => model.heads = read::number(key, value)?,
        "sequence" => model.sequence = read::number(key, value)?,
        "batch" => model.batch = read::number(key, value)?,
        "vocabulary" => model.vocabulary = read::number(key, value)?,
        "mlp_ratio" => model.mlp_ratio = read::number(key, value)?,
        "precision" => model.precision = read::precision(key, value)?,
        "attention" => model.attention = read::attention(key, value)?,
        "tied" => model.tied = read::switch(key, value)?,
        "optimizer" => model.optimizer = read::optimizer(key, value)?,
        "master_copy" => model.master_copy = read::switch(key, value)?,
        "optimizer_copy" => model.optimizer_copy = read::switch(key, value)?,
        "accumulation" => model.accumulation = read::number(key, value)?,
        "checkpointing" => model.checkpointing = read::checkpointing(key, value)?,
        "chunks" => model.chunks = read::number(key, value)?,
        "mixed" => model.mixed = read::switch(key, value)?,
        _ => model.seed = read::number(key, value)?,
    }
    Ok(())
}

/// The model's keys and some more.
fn with_model(more: &[Key]) -> Vec<Key> {
    MODEL_KEYS.iter().chain(more).copied().collect()
}

impl Generator for Trained<Transformer> {
    fn keys(&self) -> Vec<Key> {
        with_model(&["steps"])
    }

    fn set(&mut self, key: Key, value: &str) -> Done {
        match key {
            "steps" => self.steps = read::number(key, value)?,
            _ => set_model(&mut self.model, key, value)?,
        }
        Ok(())
    }

    fn make(&self) -> Result<Workload, WorkloadError> {
        self.model.workload(self.steps)
    }
}

impl Generator for Varlen {
    fn keys(&self) -> Vec<Key> {
        with_model(&["lengths", "multiple", "steps"])
    }

    fn set(&mut self, key: Key, value: &str) -> Done {
        match key {
            "lengths" => self.lengths = read::lengths(key, value)?,
            "multiple" => self.multiple = read::number(key, value)?,
            "steps" => self.steps = read::number(key, value)?,
            _ => set_model(&mut self.model, key, value)?,
        }
        self.seed = self.model.seed;
        Ok(())
    }

    fn make(&self) -> Result<Workload, WorkloadError> {
        self.workload()
    }
}

impl Generator for Alternate {
    fn keys(&self) -> Vec<Key> {
        with_model(&["rounds", "steps", "samples", "prompt", "answers", "stride", "empties_cache"])
    }

    fn set(&mut self, key: Key, value: &str) -> Done {
        match key {
            "rounds" => self.rounds = read::number(key, value)?,
            "steps" => self.steps = read::number(key, value)?,
            "samples" => self.samples = read::number(key, value)?,
            "prompt" => self.prompt = read::number(key, value)?,
            "answers" => self.answers = read::lengths(key, value)?,
            "stride" => self.stride = read::number(key, value)?,
            "empties_cache" => self.empties_cache = read::switch(key, value)?,
            _ => set_model(&mut self.model, key, value)?,
        }
        self.seed = self.model.seed;
        Ok(())
    }

    fn make(&self) -> Result<Workload, WorkloadError> {
        self.workload()
    }
}

impl Generator for Graphs {
    fn keys(&self) -> Vec<Key> {
        with_model(&["batches", "order", "shared", "warm_ups", "replays", "eager_runs", "rounds"])
    }

    fn set(&mut self, key: Key, value: &str) -> Done {
        match key {
            "batches" => self.batches = read::list(key, value)?,
            "order" => self.order = read::order(key, value)?,
            "shared" => self.shared = read::switch(key, value)?,
            "warm_ups" => self.warm_ups = read::number(key, value)?,
            "replays" => self.replays = read::number(key, value)?,
            "eager_runs" => self.eager_runs = read::number(key, value)?,
            "rounds" => self.rounds = read::number(key, value)?,
            _ => set_model(&mut self.model, key, value)?,
        }
        self.seed = self.model.seed;
        Ok(())
    }

    fn make(&self) -> Result<Workload, WorkloadError> {
        self.workload()
    }
}
