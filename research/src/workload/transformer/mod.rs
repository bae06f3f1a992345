//! A transformer that is trained, from its sizes.
//!
//! The model is a decoder as GPT-2 (`layers`), in the operations that PyTorch runs for it, with the lifetimes that autograd gives them: see
//! [`Transformer::workload`]. Simplifications: positions have no parameters; there is no dropout; logits are given back
//! once the loss's softmax has them; in half precision weights, gradients and activations all have two bytes, and the optimizer reads
//! gradients of two bytes.

mod layers;
#[cfg(test)]
mod tests;

use super::autograd::{Block, Engine, Part, Plan, Recompute, Surroundings};
use super::error::{bytes_of, within};
use super::training::{BatchBytes, Training, Updating};
use super::{Optimizer, Work, Workload, WorkloadError};

pub(super) use layers::shares;

/// Which results of forward are not kept but computed again in backward.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Checkpointing {
    /// All are kept.
    #[default]
    None,
    /// Each layer keeps what goes into it, and is recomputed on its own.
    EveryLayer,
    /// Groups of this many layers keep what goes into the group, and are recomputed as one.
    Every(u32),
    /// [`Checkpointing::Every`] of the root of the number of layers, rounded.
    Sqrt,
    /// The first, third, fifth... layer is recomputed, the others keep everything.
    EveryOther,
}

/// How numbers are stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Precision {
    /// Four bytes.
    Fp32,
    /// Two bytes: bf16 or fp16.
    #[default]
    Half,
}

impl Precision {
    /// Bytes of a number.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        match self {
            Precision::Fp32 => 4,
            Precision::Half => 2,
        }
    }

    /// What an H200 computes in a microsecond in large matrix products, about half of what its data sheet says.
    const fn flop_per_us(self) -> u64 {
        match self {
            Precision::Fp32 => 200_000_000,
            Precision::Half => 400_000_000,
        }
    }
}

/// How attention is computed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Attention {
    /// In one kernel (flash attention): the scores never exist.
    #[default]
    Fused,
    /// Step by step: scores, softmax, product.
    Materialized,
}

/// A transformer and how it is trained. [`Transformer::default`] is GPT-2 small.
#[derive(Clone, PartialEq, Debug)]
pub struct Transformer {
    /// Layers.
    pub layers: u64,
    /// Width of a layer.
    pub hidden: u64,
    /// Heads of attention.
    pub heads: u64,
    /// Tokens of a sample.
    pub sequence: u64,
    /// Samples of a step and device. With gradient accumulation they are spread over the micro-batches.
    pub batch: u64,
    /// Words.
    pub vocabulary: u64,
    /// Width of the inner layer of the MLP over that of a layer.
    pub mlp_ratio: u64,
    /// How weights, gradients and activations are stored.
    pub precision: Precision,
    /// How attention is computed.
    pub attention: Attention,
    /// The head has the weights of the embedding.
    pub tied: bool,
    /// What updates the weights.
    pub optimizer: Optimizer,
    /// In half precision: the optimizer has weights and states of four bytes.
    pub master_copy: bool,
    /// The optimizer's step makes a momentary second copy of its states.
    pub optimizer_copy: bool,
    /// Micro-batches of a step; the batch is divided among them.
    pub accumulation: u64,
    /// What is computed again.
    pub checkpointing: Checkpointing,
    /// Pieces in which a recomputed layer runs (nano-batching), 1 for none; at most the samples of a micro-batch, and only with
    /// [`Checkpointing::EveryLayer`].
    pub chunks: u64,
    /// Operations need scratch memory, the libraries' workspaces stay, batches arrive early and losses are kept for eight steps. Without
    /// it, everything that lives across a step lives to the end.
    pub mixed: bool,
    /// For the sizes of scratch memory.
    pub seed: u64,
}

impl Default for Transformer {
    fn default() -> Transformer {
        Transformer {
            layers: 12,
            hidden: 768,
            heads: 12,
            sequence: 1024,
            batch: 8,
            vocabulary: 50257,
            mlp_ratio: 4,
            precision: Precision::Half,
            attention: Attention::Fused,
            tied: true,
            optimizer: Optimizer::Adam,
            master_copy: false,
            optimizer_copy: false,
            accumulation: 1,
            checkpointing: Checkpointing::None,
            chunks: 1,
            mixed: false,
            seed: 0,
        }
    }
}

/// Names and sizes (layers, hidden, heads, sequence, vocabulary, batch) of models.
const PRESETS: [(&str, [u64; 6]); 7] = [
    ("gpt2", [12, 768, 12, 1024, 50257, 8]),
    ("gpt2-medium", [24, 1024, 16, 1024, 50257, 8]),
    ("gpt2-large", [36, 1280, 20, 1024, 50257, 4]),
    ("gpt2-xl", [48, 1600, 25, 1024, 50257, 4]),
    ("3b", [32, 2560, 32, 2048, 50257, 1]),
    ("7b", [32, 4096, 32, 2048, 50257, 1]),
    ("13b", [40, 5120, 40, 2048, 50257, 1]),
];

impl Transformer {
    /// The names of the presets.
    pub fn presets() -> impl Iterator<Item = &'static str> {
        PRESETS.iter().map(|&(name, _)| name)
    }

    /// A model by name: the sizes of the GPT-2 and GPT-3 papers (Radford et al. 2019, Brown et al. 2020 table 2.1), in half precision
    /// with Adam and no master copy. "7b" is GPT-3 6.7B.
    #[must_use]
    pub fn preset(name: &str) -> Option<Transformer> {
        let &(_, [layers, hidden, heads, sequence, vocabulary, batch]) = PRESETS.iter().find(|preset| preset.0 == name)?;
        Some(Transformer { layers, hidden, heads, sequence, vocabulary, batch, ..Transformer::default() })
    }

    /// The number of parameters; `u64::MAX` if they are more than that.
    #[must_use]
    pub fn parameters(&self) -> u64 {
        let (width, ratio) = (u128::from(self.hidden), u128::from(self.mlp_ratio));
        // Four matrices of attention and two of the MLP; biases of 3 + 1 + ratio + 1 widths, and two pairs for normalization.
        let layer = (width * width).saturating_mul(4 + 2 * ratio).saturating_add(width * (9 + ratio));
        let embeddings = u128::from(self.vocabulary) * width * if self.tied { 1 } else { 2 };
        let all = layer.saturating_mul(u128::from(self.layers)).saturating_add(embeddings).saturating_add(2 * width);
        u64::try_from(all).unwrap_or(u64::MAX)
    }

    /// The requests of this many steps of training.
    ///
    /// Each step runs every micro-batch forward and backward, then updates the weights; Adam's states come with the first update, and
    /// gradients go back at the end of each step.
    ///
    /// # Errors
    /// [`WorkloadError`] if an option cannot have its value, a size is beyond [`super::MAX_BYTES`], or events are beyond
    /// [`super::MAX_EVENTS`].
    pub fn workload(&self, steps: u64) -> Result<Workload, WorkloadError> {
        Ok(self.train(steps)?.finish("transformer", self.says(steps)))
    }

    /// The arithmetic of one step.
    ///
    /// # Errors
    /// As for [`Transformer::workload`].
    pub fn work(&self) -> Result<Work, WorkloadError> {
        Ok(self.train(1)?.engine.work)
    }

    fn says(&self, steps: u64) -> String {
        let Transformer { layers, hidden, sequence, batch, checkpointing, .. } = self;
        format!(
            "A transformer of {layers} layers, {hidden} wide, {:.2} billion parameters, trained for {steps} steps of {batch} x \
             {sequence} tokens; checkpointing: {checkpointing:?}",
            self.parameters() as f64 / 1e9
        )
    }

    fn train(&self, steps: u64) -> Result<Training, WorkloadError> {
        within("steps", steps, 1, 1_000_000)?;
        self.check()?;
        let plans = self.plans()?;
        let mut training = self.training(&plans[0].1)?;
        let micro_batches: Vec<_> =
            plans.iter().flat_map(|(count, plan, bytes)| std::iter::repeat_n((plan, *bytes), *count)).collect();
        for step in 1..=steps {
            training.step(&micro_batches, (step < steps).then_some(micro_batches[0].1))?;
        }
        Ok(training)
    }
}
