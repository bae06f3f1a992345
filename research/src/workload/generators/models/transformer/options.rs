//! The options of a transformer, its presets and its parameters.

use crate::workload::generators::WorkloadError;
use crate::workload::generators::checks::within;
use crate::workload::generators::models::training::Optimizer;

/// Which results of the forward pass are recomputed in the backward pass instead of kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Checkpointing {
    /// None: all are kept.
    #[default]
    None,
    /// Each layer keeps its input and is recomputed on its own.
    EveryLayer,
    /// Each group of this many layers keeps its input and is recomputed as one.
    Every(u32),
    /// [`Checkpointing::Every`] with the square root of the number of layers, rounded.
    Sqrt,
    /// Layers 1, 3, 5 and so on are recomputed; the others keep everything.
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
    /// The bytes of one number.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        match self {
            Precision::Fp32 => 4,
            Precision::Half => 2,
        }
    }

    /// Floating-point operations that an H200 does in a microsecond of large matrix products: about half of the
    /// data sheet's.
    pub(super) const fn flop_per_us(self) -> u64 {
        match self {
            Precision::Fp32 => 200_000_000,
            Precision::Half => 400_000_000,
        }
    }
}

/// How attention is computed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Attention {
    /// In one kernel (flash attention): the scores are never in memory.
    #[default]
    Fused,
    /// Step by step: scores, softmax, product.
    Materialized,
}

/// A transformer and how it is trained. [`Transformer::default`] is GPT-2 small.
#[derive(Clone, PartialEq, Debug)]
pub struct Transformer {
    /// The number of layers.
    pub layers: u64,
    /// The width of a layer.
    pub hidden: u64,
    /// The number of attention heads; it divides `hidden`.
    pub heads: u64,
    /// Tokens per sample.
    pub sequence: u64,
    /// Samples per step and device. With gradient accumulation they are divided among the micro-batches.
    pub batch: u64,
    /// The size of the vocabulary.
    pub vocabulary: u64,
    /// The width of the MLP's inner layer over that of a layer.
    pub mlp_ratio: u64,
    /// How weights, gradients and activations are stored.
    pub precision: Precision,
    /// How attention is computed.
    pub attention: Attention,
    /// The head shares the embedding's weights.
    pub tied: bool,
    /// What updates the weights.
    pub optimizer: Optimizer,
    /// In half precision: the optimizer keeps weights and states of four bytes.
    pub master_copy: bool,
    /// The optimizer's step makes a temporary second copy of its states.
    pub optimizer_copy: bool,
    /// Micro-batches per step.
    pub accumulation: u64,
    /// What is recomputed.
    pub checkpointing: Checkpointing,
    /// The number of pieces in which a recomputed layer runs (nano-batching), 1 for no division: at most the
    /// samples of a micro-batch. More than 1 needs [`Checkpointing::EveryLayer`].
    pub chunks: u64,
    /// Mixed lifetimes: operations need scratch memory, the libraries keep workspaces, batches arrive early and
    /// losses are kept for eight steps. Without it, every buffer that outlives a step lives to the end.
    pub mixed: bool,
    /// The seed of the sizes of scratch memory.
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

/// Models: name, and layers, hidden, heads, sequence, vocabulary, batch.
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

    /// A model by name, with the sizes of the GPT-2 and GPT-3 papers (Radford et al. 2019; Brown et al. 2020,
    /// table 2.1), in half precision with Adam and no master copy. "7b" is GPT-3 6.7B. `None` if there is no such
    /// model.
    #[must_use]
    pub fn preset(name: &str) -> Option<Transformer> {
        let &(_, [layers, hidden, heads, sequence, vocabulary, batch]) = PRESETS.iter().find(|preset| preset.0 == name)?;
        Some(Transformer { layers, hidden, heads, sequence, vocabulary, batch, ..Transformer::default() })
    }

    /// The number of parameters, at most `u64::MAX`.
    #[must_use]
    pub fn parameters(&self) -> u64 {
        let (width, ratio) = (u128::from(self.hidden), u128::from(self.mlp_ratio));
        // Four matrices for attention and two for the MLP; biases of 3 + 1 + ratio + 1 widths, and two pairs for
        // the normalizations.
        let layer = (width * width).saturating_mul(4 + 2 * ratio).saturating_add(width * (9 + ratio));
        let embeddings = u128::from(self.vocabulary) * width * if self.tied { 1 } else { 2 };
        let all = layer.saturating_mul(u128::from(self.layers)).saturating_add(embeddings).saturating_add(2 * width);
        u64::try_from(all).unwrap_or(u64::MAX)
    }

    /// Checks every option.
    pub(in crate::workload::generators::models) fn check(&self) -> Result<(), WorkloadError> {
        within("layers", self.layers, 1, 1 << 20)?;
        within("hidden", self.hidden, 1, 1 << 24)?;
        within("heads", self.heads, 1, 1 << 20)?;
        if !self.hidden.is_multiple_of(self.heads) {
            let allowed = format!("a divisor of hidden, which is {}", self.hidden);
            return Err(WorkloadError::Option { option: "heads", value: self.heads.to_string(), allowed });
        }
        within("sequence", self.sequence, 1, 1 << 32)?;
        within("batch", self.batch, 1, 1 << 20)?;
        within("vocabulary", self.vocabulary, 1, 1 << 32)?;
        within("mlp_ratio", self.mlp_ratio, 1, 1 << 10)?;
        within("accumulation", self.accumulation, 1, self.batch)?;
        within("chunks", self.chunks, 1, self.batch / self.accumulation)?;
        if let Checkpointing::Every(group) = self.checkpointing {
            within("checkpointing", group.into(), 1, self.layers)?;
        }
        if self.chunks > 1 && self.checkpointing != Checkpointing::EveryLayer {
            let allowed = "more than 1 only with checkpointing=layer".into();
            return Err(WorkloadError::Option { option: "chunks", value: self.chunks.to_string(), allowed });
        }
        Ok(())
    }
}
