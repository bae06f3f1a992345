//! The lifetimes that PyTorch's autograd gives to tensors: which operation keeps what, for how long, and what its backward makes.
//!
//! A model is a row of [`Block`]s of [`Operation`]s. [`Engine`] runs them: a tensor lives as long as a variable or an operation's saved
//! tensors refer to it. The rules, and where they come from (the notes on activation checkpointing, nano-batching and computation
//! graphs that the scenarios E7 to E9 were read from, and PyTorch 2.11's `torch/csrc/autograd`):
//!
//! - What an operation saves for its backward lives until that backward ran, and is given back operation by operation.
//! - A view, `detach` and what works in place have no memory of their own.
//! - A gradient that nobody has yet is assigned; later ones are added in place and given back. Gradients of values that are used
//!   twice are summed in place in the one that nobody else refers to.
//! - Backward asks for the gradients of an operation's input, then of its parameters, and then gives back the gradient that came in:
//!   the order of the recorded programs.
//! - Forward only keeps an operation's input until its output is there.

mod alone;
mod block;
mod engine;
mod plan;
#[cfg(test)]
mod tests;

pub use block::{Backward, Block, Operation, Value};
pub(super) use engine::{Engine, Storage, Surroundings};
pub(super) use plan::{Part, Plan, Recompute};

/// Arithmetic work, in floating-point operations.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Work {
    /// Of the forward pass, once.
    pub forward: u128,
    /// Of the backward pass: two products for each of the forward's, one for the input's gradient and one for the other operand's.
    pub backward: u128,
    /// Forward work done again because its results were not kept.
    pub recomputed: u128,
}

impl Work {
    /// The work done again, over that which has to be done.
    #[must_use]
    pub fn overhead(&self) -> f64 {
        self.recomputed as f64 / (self.forward + self.backward).max(1) as f64
    }
}
