//! The options of a server.

use crate::workload::Workload;
use crate::workload::generators::checks::within;
use crate::workload::generators::error::{MAX_BYTES, WorkloadError};
use crate::workload::generators::generator::{Done, Generator, Key};
use crate::workload::generators::lengths::{self, Lengths};
use crate::workload::generators::values;

/// How a cache grows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Growth {
    /// A tensor that is larger by this many tokens is allocated, the old one copied and freed. With 1 that is
    /// `torch.cat` per token.
    Reallocate(u64),
    /// The same, with twice the size.
    Double,
    /// Blocks of this many tokens are added; none is ever copied.
    Blocks(u64),
}

/// A model, its requests and how they are served.
#[derive(Clone, PartialEq, Debug)]
pub struct Serving {
    /// The bytes of all weights, in four tensors per layer.
    pub weight_bytes: u64,
    /// The number of layers.
    pub layers: u64,
    /// The width of a layer.
    pub hidden: u64,
    /// The width of keys, and of values.
    pub key_width: u64,
    /// The size of the vocabulary.
    pub vocabulary: u64,
    /// The number of tensors that hold a request's caches of all layers.
    pub tensors: u64,
    /// How the caches grow.
    pub growth: Growth,
    /// The number of requests.
    pub requests: u64,
    /// The most requests that run at the same time.
    pub slots: u64,
    /// Arrivals per second.
    pub rate: f64,
    /// The distribution of the lengths of prompts, in tokens.
    pub prompts: Lengths,
    /// The distribution of the lengths of answers, in tokens.
    pub answers: Lengths,
    /// The longest prompt, and the longest answer, in tokens.
    pub longest: u64,
    /// The seed of arrivals and lengths.
    pub seed: u64,
}

impl Default for Serving {
    fn default() -> Serving {
        Serving {
            weight_bytes: 13 << 30,
            layers: 32,
            hidden: 4096,
            key_width: 4096,
            vocabulary: 32_000,
            tensors: 2,
            growth: Growth::Blocks(16),
            requests: 500,
            slots: 32,
            rate: 8.0,
            prompts: Lengths::LogNormal { median: 300.0, sigma: 0.9 },
            answers: Lengths::LogNormal { median: 150.0, sigma: 0.8 },
            longest: 2048,
            seed: 0,
        }
    }
}

impl Serving {
    /// Checks every option but the distributions.
    pub(super) fn check(&self) -> Result<(), WorkloadError> {
        within("weight_bytes", self.weight_bytes, 1, MAX_BYTES)?;
        within("layers", self.layers, 1, 1 << 16)?;
        within("hidden", self.hidden, 1, 1 << 24)?;
        within("key_width", self.key_width, 1, 1 << 24)?;
        within("vocabulary", self.vocabulary, 1, 1 << 32)?;
        within("tensors", self.tensors, 1, 2 * self.layers)?;
        within("requests", self.requests, 1, 10_000_000)?;
        within("slots", self.slots, 1, 1 << 20)?;
        match self.growth {
            Growth::Reallocate(tokens) | Growth::Blocks(tokens) => within("growth", tokens, 1, 1 << 20),
            Growth::Double => Ok(()),
        }
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
            "weight_bytes" => self.weight_bytes = values::bytes(key, value)?,
            "layers" => self.layers = values::number(key, value)?,
            "hidden" => self.hidden = values::number(key, value)?,
            "key_width" => self.key_width = values::number(key, value)?,
            "vocabulary" => self.vocabulary = values::number(key, value)?,
            "tensors" => self.tensors = values::number(key, value)?,
            "growth" => self.growth = growth(key, value)?,
            "requests" => self.requests = values::number(key, value)?,
            "slots" => self.slots = values::number(key, value)?,
            "rate" => self.rate = values::real(key, value)?,
            "prompts" => self.prompts = lengths::read(key, value)?,
            "answers" => self.answers = lengths::read(key, value)?,
            "longest" => self.longest = values::number(key, value)?,
            _ => self.seed = values::number(key, value)?,
        }
        Ok(())
    }

    fn make(&self) -> Result<Workload, WorkloadError> {
        self.workload()
    }
}

fn growth(option: Key, value: &str) -> Result<Growth, WorkloadError> {
    match (value.split_once('/'), value) {
        (None, "double") => Ok(Growth::Double),
        (Some(("blocks", tokens)), _) => Ok(Growth::Blocks(values::number(option, tokens)?)),
        (Some(("reallocate", tokens)), _) => Ok(Growth::Reallocate(values::number(option, tokens)?)),
        _ => values::refused(option, value, "double, blocks/TOKENS or reallocate/TOKENS"),
    }
}
