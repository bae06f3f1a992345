//! Trains a transformer, given the model's sizes.
//!
//! The model is a decoder like GPT-2, expressed in the operations that PyTorch runs for it, with the tensor lifetimes that
//! result from autograd: see [`Transformer::workload`]. It is simplified: positions have no parameters; there is no dropout;
//! the logits are freed as soon as the loss's softmax has read them; and in half precision, weights, gradients and
//! activations all have two bytes, and the optimizer reads two-byte gradients.
//!
//! The options here are shared by every generator that trains or runs a transformer; each adds its own.

use super::autograd::{Backward, Block, Engine, Operation, Part, Plan, Recompute, Surroundings, Work};
use super::options::{self, Done, Generator, Key, Trained, WorkloadError, bytes_of, shares, within};
use super::training::{BatchBytes, Optimizer, Training, Updating, optimizer};
use crate::workload::Workload;

/// The results of the forward pass that are recomputed in the backward pass instead of being kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Checkpointing {
    /// None: all results are kept.
    #[default]
    None,
    /// Each layer keeps its input and is recomputed on its own.
    EveryLayer,
    /// Each group of this many layers keeps its input and is recomputed as one.
    Every(u32),
    /// [`Checkpointing::Every`], with groups whose size is the square root of the number of layers, rounded.
    Sqrt,
    /// Layers 1, 3, 5 and so on are recomputed; the others keep everything.
    EveryOther,
}

/// The precision in which numbers are stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Precision {
    /// Four bytes.
    Fp32,
    /// Two bytes: bf16 or fp16.
    #[default]
    Half,
}

impl Precision {
    /// Returns the size of one number, in bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        match self {
            Precision::Fp32 => 4,
            Precision::Half => 2,
        }
    }

    /// Returns the number of floating-point operations that an H200 performs in a microsecond of large matrix products: about
    /// half of the data sheet's figure.
    pub(super) const fn flop_per_us(self) -> u64 {
        match self {
            Precision::Fp32 => 200_000_000,
            Precision::Half => 400_000_000,
        }
    }
}

/// The way in which attention is computed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Attention {
    /// In one kernel (flash attention): the scores are never in memory.
    #[default]
    Fused,
    /// Step by step: the scores, the softmax, and the product.
    Materialized,
}

/// A transformer, and how it is trained. [`Transformer::default`] is GPT-2 small.
#[derive(Clone, PartialEq, Debug)]
pub struct Transformer {
    /// The number of layers.
    pub layers: u64,
    /// The width of a layer.
    pub hidden: u64,
    /// The number of attention heads, which must divide `hidden`.
    pub heads: u64,
    /// The number of tokens per sample.
    pub sequence: u64,
    /// The number of samples per step and device. With gradient accumulation, they are divided among the micro-batches.
    pub batch: u64,
    /// The size of the vocabulary.
    pub vocabulary: u64,
    /// The width of the MLP's inner layer, relative to the width of a layer.
    pub mlp_ratio: u64,
    /// The precision in which weights, gradients and activations are stored.
    pub precision: Precision,
    /// The way in which attention is computed.
    pub attention: Attention,
    /// Whether the head shares the embedding's weights.
    pub tied: bool,
    /// The optimizer that updates the weights.
    pub optimizer: Optimizer,
    /// Whether, in half precision, the optimizer keeps four-byte weights and states.
    pub master_copy: bool,
    /// Whether the optimizer's step creates a temporary second copy of its states.
    pub optimizer_copy: bool,
    /// The number of micro-batches per step.
    pub accumulation: u64,
    /// The results that are recomputed in the backward pass.
    pub checkpointing: Checkpointing,
    /// The number of pieces in which a recomputed layer runs (nano-batching); 1 means no division. It is at most the number
    /// of samples in a micro-batch. More than 1 requires [`Checkpointing::EveryLayer`].
    pub chunks: u64,
    /// Mixed lifetimes: operations need scratch memory, the libraries keep workspaces, batches arrive early and losses are
    /// kept for eight steps. Without them, every buffer that outlives a step lives until the end.
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

/// Models: the name, and layers, hidden, heads, sequence, vocabulary and batch.
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
    /// Returns the names of the presets.
    pub fn presets() -> impl Iterator<Item = &'static str> {
        PRESETS.iter().map(|&(name, _)| name)
    }

    /// Returns a model by name, with the sizes from the GPT-2 and GPT-3 papers (Radford et al. 2019; Brown et al. 2020, table
    /// 2.1), in half precision with Adam and no master copy. "7b" is GPT-3 6.7B. Returns `None` if there is no such model.
    #[must_use]
    pub fn preset(name: &str) -> Option<Transformer> {
        let &(_, [layers, hidden, heads, sequence, vocabulary, batch]) = PRESETS.iter().find(|preset| preset.0 == name)?;
        Some(Transformer { layers, hidden, heads, sequence, vocabulary, batch, ..Transformer::default() })
    }

    /// Returns the number of parameters, at most `u64::MAX`.
    #[must_use]
    pub fn parameters(&self) -> u64 {
        let (width, ratio) = (u128::from(self.hidden), u128::from(self.mlp_ratio));
        // There are four matrices for attention and two for the MLP, biases of 3 + 1 + ratio + 1 widths, and two pairs for
        // the normalizations.
        let layer = (width * width).saturating_mul(4 + 2 * ratio).saturating_add(width * (9 + ratio));
        let embeddings = u128::from(self.vocabulary) * width * if self.tied { 1 } else { 2 };
        let all = layer.saturating_mul(u128::from(self.layers)).saturating_add(embeddings).saturating_add(2 * width);
        u64::try_from(all).unwrap_or(u64::MAX)
    }

    /// Checks every option.
    pub(super) fn check(&self) -> Result<(), WorkloadError> {
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
pub(super) fn set_model(model: &mut Transformer, key: Key, value: &str) -> Done {
    match key {
        "preset" => {
            let refused = || options::refused(key, value, Transformer::presets().collect::<Vec<_>>().join(", "));
            *model = Transformer::preset(value).map_or_else(refused, Ok)?;
        }
        "layers" => model.layers = options::number(key, value)?,
        "hidden" => model.hidden = options::number(key, value)?,
        "heads" => model.heads = options::number(key, value)?,
        "sequence" => model.sequence = options::number(key, value)?,
        "batch" => model.batch = options::number(key, value)?,
        "vocabulary" => model.vocabulary = options::number(key, value)?,
        "mlp_ratio" => model.mlp_ratio = options::number(key, value)?,
        "precision" => model.precision = precision(key, value)?,
        "attention" => model.attention = attention(key, value)?,
        "tied" => model.tied = options::switch(key, value)?,
        "optimizer" => model.optimizer = optimizer(key, value)?,
        "master_copy" => model.master_copy = options::switch(key, value)?,
        "optimizer_copy" => model.optimizer_copy = options::switch(key, value)?,
        "accumulation" => model.accumulation = options::number(key, value)?,
        "checkpointing" => model.checkpointing = checkpointing(key, value)?,
        "chunks" => model.chunks = options::number(key, value)?,
        "mixed" => model.mixed = options::switch(key, value)?,
        _ => model.seed = options::number(key, value)?,
    }
    Ok(())
}

/// Returns the keys of a model's options, plus some more.
pub(super) fn with_model(more: &[Key]) -> Vec<Key> {
    MODEL_KEYS.iter().chain(more).copied().collect()
}

impl Generator for Trained<Transformer> {
    fn keys(&self) -> Vec<Key> {
        with_model(&["steps"])
    }

    fn set(&mut self, key: Key, value: &str) -> Done {
        match key {
            "steps" => self.steps = options::number(key, value)?,
            _ => set_model(&mut self.model, key, value)?,
        }
        Ok(())
    }

    fn make(&self) -> Result<Workload, WorkloadError> {
        self.model.workload(self.steps)
    }
}

fn precision(option: Key, value: &str) -> Result<Precision, WorkloadError> {
    options::one_of(option, value, &[("fp32", Precision::Fp32), ("bf16", Precision::Half), ("fp16", Precision::Half)])
}

fn attention(option: Key, value: &str) -> Result<Attention, WorkloadError> {
    options::one_of(option, value, &[("fused", Attention::Fused), ("materialized", Attention::Materialized)])
}

fn checkpointing(option: Key, value: &str) -> Result<Checkpointing, WorkloadError> {
    match value {
        "none" => Ok(Checkpointing::None),
        "layer" => Ok(Checkpointing::EveryLayer),
        "sqrt" => Ok(Checkpointing::Sqrt),
        "other" => Ok(Checkpointing::EveryOther),
        _ => match value.parse() {
            Ok(layers) => Ok(Checkpointing::Every(layers)),
            Err(_) => options::refused(option, value, "none, layer, sqrt, other, or a number of layers"),
        },
    }
}

/// The sizes of a token's number and of a normalization's statistic, in bytes.
const TOKEN_BYTES: u64 = 8;
const STATISTIC_BYTES: u64 = 4;

/// The sizes that determine the sizes of all operations.
struct Sizes {
    batch: u64,
    sequence: u64,
    tokens: u64,
    /// The size of one activation as wide as a layer, in bytes.
    activation: u64,
    element: u64,
}

impl Transformer {
    /// Creates an engine without any buffers.
    pub(super) fn engine(&self) -> Engine {
        Engine::new(Surroundings {
            scratch_seed: self.mixed.then_some(self.seed),
            libraries: self.mixed,
            flop_per_us: self.precision.flop_per_us(),
        })
    }

    /// Returns a training loop that has allocated the weights of this model.
    pub(super) fn training(&self, plan: &Plan) -> Result<Training, WorkloadError> {
        let updating = Updating {
            optimizer: self.optimizer,
            element_bytes: self.precision.bytes(),
            has_master_copy: self.master_copy && self.precision == Precision::Half,
            copies_states: self.optimizer_copy,
            drops_gradients: true,
            is_mixed: self.mixed,
        };
        Training::new(self.engine(), plan.parameters(), updating)
    }

    /// Returns the samples of each micro-batch, the larger micro-batches first.
    pub(super) fn micro_batches(&self) -> Vec<u64> {
        let all = shares(self.batch, self.accumulation);
        all.into_iter().flat_map(|(count, samples)| std::iter::repeat_n(samples, count as usize)).collect()
    }

    /// Returns, for each micro-batch size, the number of micro-batches and the plan that they run.
    fn plans(&self) -> Result<Vec<(usize, Plan, BatchBytes)>, WorkloadError> {
        let mut plans = Vec::new();
        for (count, samples) in shares(self.batch, self.accumulation) {
            let plan = self.plan(samples, self.sequence)?;
            plans.push((count as usize, plan, self.batch_bytes(samples, self.sequence)?));
        }
        Ok(plans)
    }

    /// Returns the size of a batch.
    pub(super) fn batch_bytes(&self, samples: u64, sequence: u64) -> Result<BatchBytes, WorkloadError> {
        let input = bytes_of("a batch", &[samples, sequence, TOKEN_BYTES])?;
        Ok(BatchBytes { input, targets: input })
    }

    /// Returns the model for batches of this size.
    pub(super) fn plan(&self, samples: u64, sequence: u64) -> Result<Plan, WorkloadError> {
        let sizes = self.sizes(samples, sequence)?;
        let mut plan = Plan::default();
        plan.push(self.embedding(&sizes)?);
        plan.blocks.push(self.layer(&sizes)?);
        for (repeats, is_recomputed) in self.groups() {
            let recompute = match (is_recomputed, self.chunks) {
                (false, _) => Recompute::No,
                (true, 1) => Recompute::Whole,
                (true, chunks) => Recompute::Pieces(self.pieces(samples, sequence, chunks)?),
            };
            plan.parts.push(Part { block: 1, repeats, recompute, shares: None });
        }
        let mut normalization = Block::new(sizes.activation);
        self.normalize(&mut normalization, 0, &sizes)?;
        plan.push(normalization);
        let mut head = Block::new(sizes.activation);
        let logits = bytes_of("the logits", &[sizes.tokens, self.vocabulary, sizes.element])?;
        let weights = bytes_of("the embedding", &[self.vocabulary, self.hidden, sizes.element])?;
        head.push(Operation::new(&[0], logits).keeps_inputs().parameters(&[weights]).scratch(logits / 16).work(&[
            2,
            sizes.tokens,
            self.hidden,
            self.vocabulary,
        ]));
        plan.push(head);
        plan.parts.last_mut().expect("the head").shares = self.tied.then_some(0);
        let mut loss = Block::new(logits);
        let logarithms = loss.push(Operation::new(&[0], logits).keeps_output());
        // The negative log likelihood keeps only the scalar and the sum of weights.
        loss.push(Operation::new(&[logarithms], STATISTIC_BYTES).side(STATISTIC_BYTES));
        plan.push(loss);
        Ok(plan)
    }

    fn pieces(&self, samples: u64, sequence: u64, chunks: u64) -> Result<Vec<Block>, WorkloadError> {
        let mut pieces = Vec::new();
        for (count, samples) in shares(samples, chunks) {
            let piece = self.layer(&self.sizes(samples, sequence)?)?;
            pieces.extend(std::iter::repeat_n(piece, count as usize));
        }
        Ok(pieces)
    }

    /// Returns the groups of layers: the number of layers in each group, and whether it is recomputed.
    fn groups(&self) -> Vec<(usize, bool)> {
        let layers = self.layers as usize;
        let group = match self.checkpointing {
            Checkpointing::None => return vec![(layers, false)],
            Checkpointing::EveryOther => return (0..layers).map(|layer| (1, layer % 2 == 0)).collect(),
            Checkpointing::EveryLayer => 1,
            Checkpointing::Every(group) => group as usize,
            Checkpointing::Sqrt => (self.layers as f64).sqrt().round() as usize,
        };
        (0..layers).step_by(group).map(|first| (group.min(layers - first), true)).collect()
    }

    fn sizes(&self, batch: u64, sequence: u64) -> Result<Sizes, WorkloadError> {
        let element = self.precision.bytes();
        let activation = bytes_of("an activation", &[batch, sequence, self.hidden, element])?;
        Ok(Sizes { batch, sequence, tokens: batch * sequence, activation, element })
    }

    fn embedding(&self, sizes: &Sizes) -> Result<Block, WorkloadError> {
        let mut block = Block::new(bytes_of("a batch", &[sizes.tokens, TOKEN_BYTES])?);
        let weights = bytes_of("the embedding", &[self.vocabulary, self.hidden, sizes.element])?;
        let look_up = Operation::new(&[0], sizes.activation).keeps_inputs().backward(Backward::Stops);
        block.push(look_up.parameters(&[weights]).scratch(sizes.activation / 8));
        Ok(block)
    }

    /// Appends a layer normalization, which keeps its input and the mean and standard deviation of each token.
    fn normalize(&self, block: &mut Block, input: usize, sizes: &Sizes) -> Result<usize, WorkloadError> {
        let statistic = bytes_of("statistics", &[sizes.tokens, STATISTIC_BYTES])?;
        let parameter = self.hidden * sizes.element;
        let operation = Operation::new(&[input], sizes.activation).keeps_inputs().side(statistic).side(statistic);
        Ok(block.push(operation.parameters(&[parameter, parameter])))
    }

    /// Appends a linear layer, which keeps its input.
    fn linear(&self, block: &mut Block, input: usize, (from, to): (u64, u64), sizes: &Sizes) -> Result<usize, WorkloadError> {
        let bytes = bytes_of("an activation", &[sizes.tokens, to, sizes.element])?;
        let weight = bytes_of("a weight", &[from, to, sizes.element])?;
        let parameters = [weight, to * sizes.element];
        Ok(block.push(Operation::linear(input, bytes, &parameters, &[2, sizes.tokens, from, to]).scratch(bytes / 4)))
    }

    /// Returns the block of one layer: attention and an MLP, each preceded by a normalization and with a residual connection
    /// around it.
    fn layer(&self, sizes: &Sizes) -> Result<Block, WorkloadError> {
        let mut block = Block::new(sizes.activation);
        let (width, inner) = (self.hidden, self.hidden * self.mlp_ratio);
        let normal = self.normalize(&mut block, 0, sizes)?;
        let projections = self.linear(&mut block, normal, (width, 3 * width), sizes)?;
        let mixed = self.attend(&mut block, projections, sizes)?;
        let attended = self.linear(&mut block, mixed, (width, width), sizes)?;
        let middle = block.push(Operation::new(&[0, attended], sizes.activation).backward(Backward::Passes));
        let normal = self.normalize(&mut block, middle, sizes)?;
        let wide = self.linear(&mut block, normal, (width, inner), sizes)?;
        let bytes = bytes_of("an activation", &[sizes.tokens, inner, sizes.element])?;
        let active = block.push(Operation::new(&[wide], bytes).keeps_inputs());
        let narrow = self.linear(&mut block, active, (inner, width), sizes)?;
        block.push(Operation::new(&[middle, narrow], sizes.activation).backward(Backward::Passes));
        Ok(block)
    }

    /// Appends attention; queries, keys and values are in one tensor.
    fn attend(&self, block: &mut Block, projections: usize, sizes: &Sizes) -> Result<usize, WorkloadError> {
        let scores_work = [2, sizes.tokens, sizes.sequence, self.hidden];
        if self.attention == Attention::Fused {
            let sums = bytes_of("statistics", &[sizes.tokens, self.heads, STATISTIC_BYTES])?;
            let operation = Operation::new(&[projections], sizes.activation).keeps_inputs().keeps_output().side(sums);
            return Ok(block.push(operation.scratch(sizes.activation / 4).work(&[
                2,
                2,
                sizes.tokens,
                sizes.sequence,
                self.hidden,
            ])));
        }
        let scores_bytes =
            bytes_of("attention scores", &[sizes.batch, self.heads, sizes.sequence, sizes.sequence, sizes.element])?;
        let scores = block.push(Operation::new(&[projections], scores_bytes).keeps_inputs().work(&scores_work));
        // Softmax needs its output for the backward pass, not its input.
        let shares = block.push(Operation::new(&[scores], scores_bytes).keeps_output());
        Ok(block.push(Operation::new(&[shares, projections], sizes.activation).keeps_inputs().work(&scores_work)))
    }
}

impl Transformer {
    /// Returns the requests of this many training steps.
    ///
    /// Each step runs every micro-batch forward and backward and then updates the weights. Adam's states are allocated in the
    /// first update; gradients are freed at the end of each step.
    ///
    /// # Errors
    /// Returns [`WorkloadError`] if the value of an option is not allowed, if a size is beyond
    /// [`MAX_BYTES`](super::MAX_BYTES), or if there are more events than [`MAX_EVENTS`](super::MAX_EVENTS).
    pub fn workload(&self, steps: u64) -> Result<Workload, WorkloadError> {
        Ok(self.train(steps)?.finish("transformer", self.says(steps)))
    }

    /// Returns the arithmetic of one step.
    ///
    /// # Errors
    /// Fails in the same cases as [`Transformer::workload`].
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
            training.engine.program.begin_step();
            training.step(&micro_batches, (step < steps).then_some(micro_batches[0].1))?;
        }
        Ok(training)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small() -> Transformer {
        Transformer { layers: 6, hidden: 256, heads: 4, sequence: 128, batch: 4, vocabulary: 1000, ..Transformer::default() }
    }

    fn load(transformer: &Transformer) -> u64 {
        let workload = transformer.workload(2).unwrap();
        assert_eq!(workload.check(), Ok(()));
        workload.load_bytes(1)
    }

    #[test]
    fn parameters_are_counted_as_they_are_allocated() {
        for tied in [false, true] {
            let transformer = Transformer { tied, ..small() };
            let plan = transformer.plan(4, 128).unwrap();
            assert_eq!(plan.parameters().sum::<u64>(), 2 * transformer.parameters());
        }
        let of = |name| Transformer::preset(name).unwrap().parameters() as f64 / 1e9;
        // The papers' sizes, without the position embeddings.
        for (name, billions) in
            [("gpt2", 0.124), ("gpt2-medium", 0.354), ("gpt2-large", 0.773), ("gpt2-xl", 1.556), ("7b", 6.65), ("13b", 12.85)]
        {
            assert!((of(name) / billions - 1.0).abs() < 0.01, "{name}: {}", of(name));
        }
        assert_eq!(Transformer::preset("8b"), None);
    }

    #[test]
    fn what_lives_across_steps_is_weights_and_states() {
        let transformer = small();
        for (optimizer, master_copy, bytes) in [
            (Optimizer::Sgd, false, 2),
            (Optimizer::Momentum, false, 4),
            (Optimizer::Adam, false, 6),
            (Optimizer::Adam, true, 14),
        ] {
            let training = Transformer { optimizer, master_copy, ..transformer.clone() }.train(2).unwrap();
            assert_eq!(training.engine.program.live_bytes(), bytes * transformer.parameters(), "{optimizer:?} {master_copy}");
        }
    }

    #[test]
    fn every_option_does_to_the_peak_what_it_should() {
        let base = Transformer { sequence: 512, ..small() };
        let plain = load(&base);
        let less =
            |transformer: Transformer, what: &str| assert!(load(&transformer) < plain, "{what}: {} {plain}", load(&transformer));
        let more =
            |transformer: Transformer, what: &str| assert!(load(&transformer) > plain, "{what}: {} {plain}", load(&transformer));
        less(Transformer { batch: 2, ..base.clone() }, "a smaller batch");
        less(Transformer { accumulation: 2, ..base.clone() }, "gradient accumulation");
        less(Transformer { optimizer: Optimizer::Sgd, ..base.clone() }, "no states");
        more(Transformer { precision: Precision::Fp32, ..base.clone() }, "four bytes");
        more(Transformer { attention: Attention::Materialized, ..base.clone() }, "scores");
        more(Transformer { master_copy: true, ..base.clone() }, "a master copy");
        more(Transformer { mixed: true, ..base.clone() }, "mixed lifetimes");
        for checkpointing in [Checkpointing::EveryLayer, Checkpointing::Every(3), Checkpointing::Sqrt, Checkpointing::EveryOther]
        {
            less(Transformer { checkpointing, ..base.clone() }, "checkpointing");
        }
        let every_layer = Transformer { checkpointing: Checkpointing::EveryLayer, ..base.clone() };
        let chunked = Transformer { chunks: 4, ..every_layer.clone() };
        assert!(load(&chunked) < load(&every_layer));
    }

    #[test]
    fn the_optimizers_second_copy_is_there_for_a_moment_only() {
        // The step has so few tokens that the update is the peak.
        let plain = Transformer { sequence: 1, batch: 1, ..small() };
        let copying = Transformer { optimizer_copy: true, ..plain.clone() };
        // Weights, gradients, two states, and the states once more.
        assert_eq!(load(&copying), 2 * (1 + 1 + 2 + 2) * plain.parameters());
        assert!(load(&plain) < load(&copying));
        assert_eq!(copying.train(1).unwrap().engine.program.live_bytes(), plain.train(1).unwrap().engine.program.live_bytes());
    }

    #[test]
    fn checkpointing_costs_a_third_more_in_the_layers() {
        let transformer = Transformer { checkpointing: Checkpointing::EveryLayer, ..small() };
        let work = transformer.work().unwrap();
        let head = u128::from(2 * 4 * 128 * transformer.hidden * transformer.vocabulary);
        assert_eq!(work.recomputed, work.forward - head);
        assert_eq!(work.backward, 2 * work.forward);
        let half = Transformer { checkpointing: Checkpointing::EveryOther, ..small() }.work().unwrap();
        assert_eq!(2 * half.recomputed, work.recomputed);
        assert_eq!(small().work().unwrap().recomputed, 0);
        let chunked = Transformer { chunks: 3, ..transformer }.work().unwrap();
        assert_eq!(chunked, Work { forward: chunked.forward, backward: 2 * chunked.forward, recomputed: chunked.recomputed });
        assert_eq!(chunked.recomputed, work.recomputed, "in pieces it is the same work");
    }

    #[test]
    fn bad_options_are_errors() {
        let refused = |transformer: Transformer| transformer.workload(1).unwrap_err().to_string();
        assert_eq!(refused(Transformer { layers: 0, ..small() }), "layers is 0; allowed: 1 to 1048576");
        assert_eq!(refused(Transformer { batch: 0, ..small() }), "batch is 0; allowed: 1 to 1048576");
        assert_eq!(
            refused(Transformer { sequence: 1 << 60, ..small() }),
            format!("sequence is {}; allowed: 1 to {}", 1_u64 << 60, 1_u64 << 32)
        );
        let large = Transformer { sequence: 1 << 32, batch: 1 << 20, ..small() };
        assert_eq!(large.workload(1), Err(WorkloadError::TooLarge { what: "an activation" }));
        let many = Transformer { layers: 1 << 20, hidden: 1, heads: 1, sequence: 1, vocabulary: 1, ..small() };
        assert_eq!(many.workload(1), Err(WorkloadError::TooManyEvents));
        assert_eq!(small().workload(0).unwrap_err().to_string(), "steps is 0; allowed: 1 to 1000000");
        assert!(refused(Transformer { chunks: 2, ..small() }).contains("only with checkpointing=layer"));
        assert!(refused(Transformer { accumulation: 5, ..small() }).contains("accumulation is 5; allowed: 1 to 4"));
    }

    #[test]
    fn the_same_seed_makes_the_same_program() {
        let mixed = Transformer { mixed: true, ..small() };
        assert_eq!(mixed.workload(3), mixed.workload(3));
        assert_ne!(mixed.workload(3), Transformer { seed: 1, ..mixed }.workload(3));
    }
}
