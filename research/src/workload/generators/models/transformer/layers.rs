//! The operations of a transformer, for one batch size.

use super::options::{Attention, Checkpointing, Precision, Transformer};
use crate::workload::generators::WorkloadError;
use crate::workload::generators::checks::{bytes_of, shares};
use crate::workload::generators::models::autograd::{Backward, Block, Engine, Operation, Part, Plan, Recompute, Surroundings};
use crate::workload::generators::models::training::{BatchBytes, Training, Updating};

/// The bytes of a token's number, and of a normalization's statistic.
const TOKEN_BYTES: u64 = 8;
const STATISTIC_BYTES: u64 = 4;

/// The sizes from which those of all operations follow.
struct Sizes {
    batch: u64,
    sequence: u64,
    tokens: u64,
    /// The bytes of one activation as wide as a layer.
    activation: u64,
    element: u64,
}

impl Transformer {
    /// An engine without any buffers.
    pub(in crate::workload::generators::models) fn engine(&self) -> Engine {
        Engine::new(Surroundings {
            scratch_seed: self.mixed.then_some(self.seed),
            libraries: self.mixed,
            flop_per_us: self.precision.flop_per_us(),
        })
    }

    /// A training loop that has allocated the weights of this model.
    pub(in crate::workload::generators::models) fn training(&self, plan: &Plan) -> Result<Training, WorkloadError> {
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

    /// The samples of each micro-batch, the larger micro-batches first.
    pub(in crate::workload::generators::models) fn micro_batches(&self) -> Vec<u64> {
        let all = shares(self.batch, self.accumulation);
        all.into_iter().flat_map(|(count, samples)| std::iter::repeat_n(samples, count as usize)).collect()
    }

    /// For each size of micro-batch: how many there are, and what they run.
    pub(super) fn plans(&self) -> Result<Vec<(usize, Plan, BatchBytes)>, WorkloadError> {
        let mut plans = Vec::new();
        for (count, samples) in shares(self.batch, self.accumulation) {
            let plan = self.plan(samples, self.sequence)?;
            plans.push((count as usize, plan, self.batch_bytes(samples, self.sequence)?));
        }
        Ok(plans)
    }

    /// The size of a batch.
    pub(in crate::workload::generators::models) fn batch_bytes(
        &self,
        samples: u64,
        sequence: u64,
    ) -> Result<BatchBytes, WorkloadError> {
        let input = bytes_of("a batch", &[samples, sequence, TOKEN_BYTES])?;
        Ok(BatchBytes { input, targets: input })
    }

    /// The model for batches of this size.
    pub(in crate::workload::generators::models) fn plan(&self, samples: u64, sequence: u64) -> Result<Plan, WorkloadError> {
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

    /// The groups of layers: how many layers each has, and whether it is recomputed.
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

    /// Layer normalization: keeps its input, and the mean and the standard deviation of each token.
    fn normalize(&self, block: &mut Block, input: usize, sizes: &Sizes) -> Result<usize, WorkloadError> {
        let statistic = bytes_of("statistics", &[sizes.tokens, STATISTIC_BYTES])?;
        let parameter = self.hidden * sizes.element;
        let operation = Operation::new(&[input], sizes.activation).keeps_inputs().side(statistic).side(statistic);
        Ok(block.push(operation.parameters(&[parameter, parameter])))
    }

    /// A linear layer: keeps its input.
    fn linear(&self, block: &mut Block, input: usize, (from, to): (u64, u64), sizes: &Sizes) -> Result<usize, WorkloadError> {
        let bytes = bytes_of("an activation", &[sizes.tokens, to, sizes.element])?;
        let weight = bytes_of("a weight", &[from, to, sizes.element])?;
        let parameters = [weight, to * sizes.element];
        Ok(block.push(Operation::linear(input, bytes, &parameters, &[2, sizes.tokens, from, to]).scratch(bytes / 4)))
    }

    /// One layer: attention and MLP, each after a normalization and with a residual connection around it.
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

    /// Attention; queries, keys and values come in one tensor.
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
