//! Generators by name, and their options by key.

mod adversaries;
mod models;

use adversaries::{Pattern, RobsonAgainst};

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
pub(super) const NAMES: [&str; 14] = [
    "transformer",
    "chain",
    "cnn",
    "mlp",
    "varlen",
    "serving",
    "alternate",
    "prefetch",
    "graphs",
    "robson",
    "best-fit-attack",
    "comb",
    "fence",
    "stream-per-buffer",
];

/// A generator by name, with its defaults.
pub(super) fn generator(name: &str) -> Option<(&'static str, Box<dyn Generator>)> {
    let name = NAMES.into_iter().find(|known| *known == name)?;
    let made: Box<dyn Generator> = match name {
        "transformer" => Box::new(Trained { model: Transformer::default(), steps: 20 }),
        "chain" => Box::new(DescribedChain {
            chain: Chain { layers: 24, checkpoint_bytes: 64 << 20, inner_bytes: 256 << 20, ..Chain::default() },
            is_sqrt: false,
        }),
        "cnn" => Box::new(Cnn::default()),
        "mlp" => Box::new(Trained { model: Mlp::default(), steps: 20 }),
        "varlen" => Box::new(Varlen::default()),
        "serving" => Box::new(Serving::default()),
        "alternate" => Box::new(Alternate::default()),
        "prefetch" => Box::new(Prefetch::default()),
        "graphs" => Box::new(Graphs::default()),
        "robson" => Box::new(RobsonAgainst::new("first-fit")),
        "best-fit-attack" => Box::new(Pattern::best_fit_attack()),
        "comb" => Box::new(Pattern::comb()),
        "fence" => Box::new(Pattern::fence()),
        _ => Box::new(Pattern::stream_per_buffer()),
    };
    Some((name, made))
}

/// A chain, and whether its groups follow from its layers, which may come behind in a list.
struct DescribedChain {
    chain: Chain,
    is_sqrt: bool,
}

impl Generator for DescribedChain {
    fn keys(&self) -> Vec<Key> {
        vec!["layers", "checkpoint_bytes", "inner_bytes", "fixed_bytes", "keeping", "seed"]
    }

    fn set(&mut self, key: Key, value: &str) -> Done {
        match key {
            "layers" => self.chain.layers = read::number(key, value)?,
            "checkpoint_bytes" => self.chain.checkpoint_bytes = read::bytes(key, value)?,
            "inner_bytes" => self.chain.inner_bytes = read::bytes(key, value)?,
            "fixed_bytes" => self.chain.fixed_bytes = read::bytes(key, value)?,
            "keeping" => match read::keeping(key, value)? {
                Some(keeping) => (self.chain.keeping, self.is_sqrt) = (keeping, false),
                None => self.is_sqrt = true,
            },
            // Nothing is random here.
            _ => drop(read::number(key, value)?),
        }
        Ok(())
    }

    fn make(&self) -> Result<Workload, WorkloadError> {
        let keeping = if self.is_sqrt { Chain::sqrt(self.chain.layers) } else { self.chain.keeping };
        Chain { keeping, ..self.chain }.workload()
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
