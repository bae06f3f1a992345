//! A server of a language model: requests arrive at random, each with a key/value cache that grows token by token.
//!
//! Arrivals are a Poisson process; the lengths of prompts and answers have distributions of their own. Up to
//! `slots` requests run at the same time (continuous batching): each turn admits waiting requests, runs their
//! prompts one by one, and then makes one token for each running request. How the caches grow is what such a
//! server asks of an allocator: [`Growth`]. What is simplified: a request's caches of all layers are `tensors`
//! tensors of equal size; a turn's activations are four tensors.

mod options;
mod server;
#[cfg(test)]
mod tests;

pub use options::{Growth, Serving};
