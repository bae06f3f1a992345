//! Training a transformer, from the model's sizes.
//!
//! The model is a decoder like GPT-2, in the operations that PyTorch runs for it, with the lifetimes that autograd
//! gives to tensors: see [`Transformer::workload`]. What is simplified: positions have no parameters; there is no
//! dropout; the logits are freed once the loss's softmax has read them; in half precision weights, gradients and
//! activations all have two bytes, and the optimizer reads gradients of two bytes.

pub(in crate::workload::generators) mod keys;
mod layers;
mod options;
#[cfg(test)]
mod tests;
mod train;

pub use options::{Attention, Checkpointing, Precision, Transformer};
