//! Generators by name, and their options by key.

use super::alternate::Alternate;
use super::chain::Chain;
use super::cnn::Cnn;
use super::graphs::Graphs;
use super::mlp::Mlp;
use super::prefetch::Prefetch;
use super::serving::Serving;
use super::transformer::Transformer;
use super::varlen::Varlen;
use super::{Workload, WorkloadError, value as read};

type Key = &'static str;
type Done = Result<(), WorkloadError>;

/// What can be configured by key and value, and then makes a workload.
pub(super) trait Generator {
    /// The keys.
    fn keys(&self) -> Vec<Key>;
    /// Sets the option of one of the keys.
    fn set(&mut self, key: Key, value: &str) -> Done;
    /// Makes the workload.
    fn make(&self) -> Result<Workload, WorkloadError>;
}

/// A model that is trained for some steps.
struct Trained<M> {
    model: M,
    steps: u64,
}

/// The names of the generators.
pub(super) const NAMES: [&str; 9] =
    ["transformer", "chain", "cnn", "mlp", "varlen", "serving", "alternate", "prefetch", "graphs"];

/// A generator by name, with its defaults.
pub(super) fn generator(name: &str) -> Option<(&'static str, Box<dyn Generator>)> {
    let name = NAMES.into_iter().find(|known| *known == name)?;
    let made: Box<dyn Generator> = match name {
        "transformer" => Box::new(Trained { model: Transformer::default(), steps: 20 }),
        "chain" => Box::new(Chain { layers: 24, checkpoint_bytes: 64 << 20, inner_bytes: 256 << 20, ..Chain::default() }),
        "cnn" => Box::new(Cnn::default()),
        "mlp" => Box::new(Trained { model: Mlp::default(), steps: 20 }),
        "varlen" => Box::new(Varlen::default()),
        "serving" => Box::new(Serving::default()),
        "alternate" => Box::new(Alternate::default()),
        "prefetch" => Box::new(Prefetch::default()),
        _ => Box::new(Graphs::default()),
    };
    Some((name, made))
}

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

impl Generator for Chain {
    fn keys(&self) -> Vec<Key> {
        vec!["layers", "checkpoint_bytes", "inner_bytes", "fixed_bytes", "keeping", "seed"]
    }

    fn set(&mut self, key: Key, value: &str) -> Done {
        match key {
            "layers" => self.layers = read::number(key, value)?,
            "checkpoint_bytes" => self.checkpoint_bytes = read::bytes(key, value)?,
            "inner_bytes" => self.inner_bytes = read::bytes(key, value)?,
            "fixed_bytes" => self.fixed_bytes = read::bytes(key, value)?,
            "keeping" => self.keeping = read::keeping(key, value, self.layers)?,
            // Nothing is random here.
            _ => drop(read::number(key, value)?),
        }
        Ok(())
    }

    fn make(&self) -> Result<Workload, WorkloadError> {
        self.workload()
    }
}

impl Generator for Cnn {
    fn keys(&self) -> Vec<Key> {
        vec!["preset", "stages", "width", "image", "classes", "batches", "repeats", "empties_cache", "optimizer", "mixed", "seed"]
    }

    fn set(&mut self, key: Key, value: &str) -> Done {
        match key {
            "preset" => {
                let allowed = || "resnet50, resnet101, resnet152".into();
                let refused = || WorkloadError::Option { option: key, value: value.into(), allowed: allowed() };
                *self = Cnn::preset(value).ok_or_else(refused)?;
            }
            "stages" => self.stages = read::numbers(key, value)?,
            "width" => self.width = read::number(key, value)?,
            "image" => self.image = read::number(key, value)?,
            "classes" => self.classes = read::number(key, value)?,
            "batches" => self.batches = read::list(key, value)?,
            "repeats" => self.repeats = read::number(key, value)?,
            "empties_cache" => self.empties_cache = read::switch(key, value)?,
            "optimizer" => self.optimizer = read::optimizer(key, value)?,
            "mixed" => self.mixed = read::switch(key, value)?,
            _ => self.seed = read::number(key, value)?,
        }
        Ok(())
    }

    fn make(&self) -> Result<Workload, WorkloadError> {
        self.workload()
    }
}

impl Generator for Trained<Mlp> {
    fn keys(&self) -> Vec<Key> {
        vec!["width", "depth", "batch", "checkpointing", "optimizer", "libraries", "drops_gradients", "steps", "seed"]
    }

    fn set(&mut self, key: Key, value: &str) -> Done {
        match key {
            "width" => self.model.width = read::number(key, value)?,
            "depth" => self.model.depth = read::number(key, value)?,
            "batch" => self.model.batch = read::number(key, value)?,
            "checkpointing" => self.model.checkpointing = read::switch(key, value)?,
            "optimizer" => self.model.optimizer = read::optimizer(key, value)?,
            "libraries" => self.model.libraries = read::switch(key, value)?,
            "drops_gradients" => self.model.drops_gradients = read::switch(key, value)?,
            "steps" => self.steps = read::number(key, value)?,
            // Nothing is random here.
            _ => drop(read::number(key, value)?),
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

impl Generator for Serving {
    fn keys(&self) -> Vec<Key> {
        vec![
            "weight_bytes",
            "layers",
            "hidden",
            "key_width",
            "vocabulary",
            "tensors",
            "growth",
            "requests",
            "slots",
            "rate",
            "prompts",
            "answers",
            "longest",
            "seed",
        ]
    }

    fn set(&mut self, key: Key, value: &str) -> Done {
        match key {
            "weight_bytes" => self.weight_bytes = read::bytes(key, value)?,
            "layers" => self.layers = read::number(key, value)?,
            "hidden" => self.hidden = read::number(key, value)?,
            "key_width" => self.key_width = read::number(key, value)?,
            "vocabulary" => self.vocabulary = read::number(key, value)?,
            "tensors" => self.tensors = read::number(key, value)?,
            "growth" => self.growth = read::growth(key, value)?,
            "requests" => self.requests = read::number(key, value)?,
            "slots" => self.slots = read::number(key, value)?,
            "rate" => self.rate = read::real(key, value)?,
            "prompts" => self.prompts = read::lengths(key, value)?,
            "answers" => self.answers = read::lengths(key, value)?,
            "longest" => self.longest = read::number(key, value)?,
            _ => self.seed = read::number(key, value)?,
        }
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

impl Generator for Prefetch {
    fn keys(&self) -> Vec<Key> {
        vec![
            "preset",
            "stages",
            "width",
            "image",
            "classes",
            "optimizer",
            "mixed",
            "batches",
            "steps",
            "depth",
            "synchronize_every",
            "seed",
        ]
    }

    fn set(&mut self, key: Key, value: &str) -> Done {
        match key {
            "batches" => self.batches = read::lengths(key, value)?,
            "steps" => self.steps = read::number(key, value)?,
            "depth" => self.depth = read::number(key, value)?,
            "synchronize_every" => self.synchronize_every = read::number(key, value)?,
            _ => self.network.set(key, value)?,
        }
        self.seed = self.network.seed;
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
