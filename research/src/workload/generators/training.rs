//! A training loop around a model: weights, batches, gradient accumulation, the optimizer and its states.

use std::collections::VecDeque;

use super::autograd::{Engine, Plan, Storage};
use super::options::{self, Key, Tensor, WorkloadError};
use crate::workload::Workload;

/// The optimizer that turns gradients into new weights.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Optimizer {
    /// Gradient descent: keeps no state and updates in place, so the allocator never sees the update.
    Sgd,
    /// Gradient descent with momentum: one state per parameter, of the parameter's size.
    Momentum,
    /// Adam: two states per parameter, each of the parameter's size.
    #[default]
    Adam,
}

impl Optimizer {
    /// Returns the number of states per parameter.
    #[must_use]
    pub const fn states(self) -> usize {
        match self {
            Optimizer::Sgd => 0,
            Optimizer::Momentum => 1,
            Optimizer::Adam => 2,
        }
    }
}

/// Reads an optimizer's name.
pub(super) fn optimizer(option: Key, value: &str) -> Result<Optimizer, WorkloadError> {
    options::one_of(option, value, &[("sgd", Optimizer::Sgd), ("momentum", Optimizer::Momentum), ("adam", Optimizer::Adam)])
}

/// The way in which weights are kept and updated.
#[derive(Clone, Copy, Debug)]
pub(super) struct Updating {
    pub(super) optimizer: Optimizer,
    /// The size of an element in a weight and in its gradient, in bytes.
    pub(super) element_bytes: u64,
    /// Whether there is a second copy of the weights with four bytes per element, in which case the states also have four; if
    /// not, the states have the same element size as the weights.
    pub(super) has_master_copy: bool,
    /// Whether a second copy of the optimizer's states exists while it runs.
    pub(super) copies_states: bool,
    /// Whether gradients are freed after each step; if not, the next step adds to them.
    pub(super) drops_gradients: bool,
    /// Whether batches arrive before they are needed and losses are kept for a while.
    pub(super) is_mixed: bool,
}

/// With mixed lifetimes, losses are printed and freed when there are this many.
const LOSSES: usize = 8;

/// A training loop in progress.
#[derive(Debug)]
pub(super) struct Training {
    pub(super) engine: Engine,
    updating: Updating,
    weight_bytes: Vec<u64>,
    states: Vec<Tensor>,
    losses: VecDeque<Tensor>,
    next: Option<Batch>,
}

/// A batch: the model's input, and the targets.
#[derive(Debug)]
struct Batch {
    input: Storage,
    targets: Option<Tensor>,
}

/// The sizes of a batch, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct BatchBytes {
    pub(super) input: u64,
    /// The size of the targets; 0 for a batch without targets.
    pub(super) targets: u64,
}

impl Training {
    /// Allocates the weights.
    pub(super) fn new(
        mut engine: Engine,
        weights: impl Iterator<Item = u64>,
        updating: Updating,
    ) -> Result<Training, WorkloadError> {
        let mut weight_bytes = Vec::new();
        for bytes in weights {
            engine.program.allocate(bytes)?;
            weight_bytes.push(bytes);
        }
        if updating.has_master_copy {
            for &bytes in &weight_bytes {
                engine.program.allocate(bytes / updating.element_bytes * 4)?;
            }
        }
        Ok(Training { engine, updating, weight_bytes, states: Vec::new(), losses: VecDeque::new(), next: None })
    }

    fn batch(&mut self, bytes: BatchBytes) -> Result<Batch, WorkloadError> {
        let input = self.engine.allocate(bytes.input)?;
        let targets = if bytes.targets > 0 { Some(self.engine.program.allocate(bytes.targets)?) } else { None };
        Ok(Batch { input, targets })
    }

    /// Runs one step: each micro-batch forward and backward, and then the update. `next` is the size of the batch that
    /// follows these.
    pub(super) fn step(&mut self, micro_batches: &[(&Plan, BatchBytes)], next: Option<BatchBytes>) -> Result<(), WorkloadError> {
        for (at, &(plan, bytes)) in micro_batches.iter().enumerate() {
            let batch = match self.next.take() {
                Some(batch) => batch,
                None => self.batch(bytes)?,
            };
            let following = micro_batches.get(at + 1).map(|&(_, bytes)| bytes).or(next);
            if let (true, Some(bytes)) = (self.updating.is_mixed, following) {
                self.next = Some(self.batch(bytes)?);
            }
            // The training loop's variable refers to the batch until the step is done.
            let held = self.engine.refer(batch.input);
            plan.train(&mut self.engine, batch.input)?;
            self.engine.release(held)?;
            batch.targets.map_or(Ok(()), |targets| self.engine.program.free(targets))?;
        }
        if self.updating.is_mixed {
            self.keep_loss()?;
        }
        self.update()?;
        self.engine.wait()?;
        self.forget_gradients()
    }

    /// Runs the update of a step whose forward and backward passes have run, without waiting for it.
    pub(super) fn update_only(&mut self) -> Result<(), WorkloadError> {
        self.update()?;
        self.forget_gradients()
    }

    fn forget_gradients(&mut self) -> Result<(), WorkloadError> {
        if self.updating.drops_gradients { self.engine.drop_gradients() } else { Ok(()) }
    }

    fn keep_loss(&mut self) -> Result<(), WorkloadError> {
        let loss = self.engine.program.allocate(4)?;
        self.losses.push_back(loss);
        if self.losses.len() == LOSSES {
            for loss in self.losses.drain(..) {
                self.engine.program.free(loss)?;
            }
        }
        Ok(())
    }

    fn state_bytes(&self, weight_bytes: u64) -> u64 {
        if self.updating.has_master_copy { weight_bytes / self.updating.element_bytes * 4 } else { weight_bytes }
    }

    /// Runs the optimizer's step. Its states are allocated in the first step, as in PyTorch.
    fn update(&mut self) -> Result<(), WorkloadError> {
        let sizes: Vec<u64> = self.weight_bytes.iter().map(|&bytes| self.state_bytes(bytes)).collect();
        let states = sizes.iter().flat_map(|&bytes| std::iter::repeat_n(bytes, self.updating.optimizer.states()));
        if self.states.is_empty() {
            for bytes in states.clone() {
                let state = self.engine.program.allocate(bytes)?;
                self.states.push(state);
            }
        }
        if self.updating.copies_states {
            let mut copies = Vec::new();
            for bytes in states {
                copies.push(self.engine.program.allocate(bytes)?);
            }
            copies.into_iter().try_for_each(|copy| self.engine.program.free(copy))?;
        }
        Ok(())
    }

    pub(super) fn finish(self, name: &str, says: String) -> Workload {
        self.engine.program.finish(name, says)
    }
}
