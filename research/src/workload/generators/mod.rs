//! Generators: each creates a [`Workload`](super::Workload) from options and a seed.
//!
//! | kind | generators |
//! |---|---|
//! | models, with the lifetimes that autograd gives to tensors | [`transformer`], [`cnn`], [`mlp`] |
//! | the operations of a model by themselves | [`autograd`] |
//! | programs around a model | [`varlen`], [`alternate`], [`prefetch`], [`graphs`] |
//! | a server of a language model | [`serving`] |
//! | a chain of layers whose peak is a formula | [`chain`] |
//! | workloads that attack a policy | [`adversaries`] |
//!
//! **To add one**, write a file here (or in `models/`, if it trains or runs a model): a struct with its options,
//! `workload()`, which writes events into a `Program`, and `impl Generator`, which reads options from text. Add it to `ALL`
//! in `registry.rs`, so that [`parse`](super::parse) finds it by name. A line in the tests' `SMALL` makes the tests try
//! random options with it, an entry in `catalogue.rs` puts it into studies, and the table in `docs/workloads.md` describes
//! it.

pub mod adversaries;
pub mod chain;
mod lengths;
mod models;
mod options;
mod program;
mod registry;
pub mod serving;

pub use lengths::Lengths;
pub use models::{Optimizer, Work, alternate, autograd, cnn, graphs, mlp, prefetch, transformer, varlen};
pub use options::{MAX_BYTES, MAX_EVENTS, WorkloadError};
pub use registry::preallocate;

pub(super) use registry::{TRANSFORMER, keys, make, names, transformer as transformer_of};
