//! Models that are trained or run, with the tensor lifetimes that result from autograd.

pub mod alternate;
pub mod autograd;
pub mod cnn;
pub mod graphs;
pub mod mlp;
pub mod prefetch;
mod training;
pub mod transformer;
pub mod varlen;

pub use autograd::Work;
pub use training::Optimizer;
