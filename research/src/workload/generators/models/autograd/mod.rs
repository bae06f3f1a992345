//! The lifetimes of tensors under PyTorch's autograd: which operation keeps which tensors, for how long, and what its
//! backward pass allocates.
//!
//! A model is a sequence of [`Block`]s of [`Operation`]s. An engine runs them: a tensor lives as long as a variable or an
//! operation's saved tensors refer to it. The rules are taken from the notes on activation checkpointing, nano-batching and
//! computation graphs behind the scenarios E7 to E9, and from PyTorch 2.11's `torch/csrc/autograd`:
//!
//! - A tensor that an operation saves for its backward pass is freed when that pass has run, operation by operation.
//! - Views, `detach` and in-place operations have no memory of their own.
//! - A parameter's first gradient is assigned; later ones are added in place and freed. The gradients of a value that is used
//!   twice are added in place, in whichever of the two has no other references.
//! - The backward pass allocates the gradient of an operation's input, then those of its parameters, and then frees the
//!   incoming gradient, as in the recorded programs.
//! - Without a backward pass, an operation's input lives until its output exists.

mod block;
mod engine;

pub use block::{Backward, Block, Operation, Value};
pub use engine::Work;
pub(super) use engine::{Engine, Part, Plan, Recompute, Storage, Surroundings};
