//! A server of a language model: requests arrive at random, each with a key/value cache that grows token by token.
//!
//! Arrivals are a Poisson process; lengths of prompts and answers have distributions of their own. Up to `slots` requests run at
//! once (continuous batching): each turn admits waiting ones, whose prompts run one by one, then makes one token for each that runs. How
//! caches grow is the question that such a server puts to an allocator: [`Growth`]. Simplifications: a request's caches of all layers are
//! `tensors` tensors of the same size; a turn's activations are four tensors.

use std::collections::VecDeque;

use statrs::distribution::ContinuousCDF;

use super::distribution::{Lengths, Sampler, exponential};
use super::error::{bytes_of, within};
use super::program::{Program, Tensor};
use super::{Workload, WorkloadError};
use crate::random::Random;

/// How a cache gets room for more tokens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Growth {
    /// A larger tensor is made, the old one copied and given back: by this many tokens each time. With 1 that is `torch.cat` for each token.
    Reallocate(u64),
    /// The same, to twice the size.
    Double,
    /// Blocks of this many tokens, which stay where they are.
    Blocks(u64),
}

/// The model, the requests and how they are served.
#[derive(Clone, PartialEq, Debug)]
pub struct Serving {
    /// The weights, in tensors of `weight_tensor_bytes` at most.
    pub weight_bytes: u64,
    /// Layers.
    pub layers: u64,
    /// Width of a layer.
    pub hidden: u64,
    /// Width of keys, and of values.
    pub key_width: u64,
    /// Words.
    pub vocabulary: u64,
    /// Tensors that a request's caches of all layers are.
    pub tensors: u64,
    /// How they grow.
    pub growth: Growth,
    /// Requests.
    pub requests: u64,
    /// Requests that run at once, at most.
    pub slots: u64,
    /// Requests that arrive in a second.
    pub rate: f64,
    /// Tokens of prompts.
    pub prompts: Lengths,
    /// Tokens of answers.
    pub answers: Lengths,
    /// The most tokens of a prompt, and of an answer.
    pub longest: u64,
    /// For arrivals and lengths.
    pub seed: u64,
}

impl Default for Serving {
    fn default() -> Serving {
        Serving {
            weight_bytes: 13 << 30,
            layers: 32,
            hidden: 4096,
            key_width: 4096,
            vocabulary: 32_000,
            tensors: 2,
            growth: Growth::Blocks(16),
            requests: 500,
            slots: 32,
            rate: 8.0,
            prompts: Lengths::LogNormal { median: 300.0, sigma: 0.9 },
            answers: Lengths::LogNormal { median: 150.0, sigma: 0.8 },
            longest: 2048,
            seed: 0,
        }
    }
}

/// Bytes of a number.
const ELEMENT_BYTES: u64 = 2;
/// What an H200 reads in a microsecond: a turn reads weights and caches.
const BYTES_PER_US: u64 = 4_000_000;
/// What it computes in a microsecond, in prompts.
const FLOP_PER_US: u64 = 400_000_000;

impl Serving {
    /// The requests of this server.
    ///
    /// # Errors
    /// [`WorkloadError`] if an option cannot have its value, a size is too large, or there are too many events.
    pub fn workload(&self) -> Result<Workload, WorkloadError> {
        let mut server = Server::new(self)?;
        server.load_weights()?;
        while server.arrived < self.requests || !server.running.is_empty() || !server.waiting.is_empty() {
            server.turn()?;
        }
        let says = format!(
            "A server of a model with {} layers: {} requests at {} a second, {} at once, caches: {:?}",
            self.layers, self.requests, self.rate, self.slots, self.growth
        );
        Ok(server.program.finish("serving", says))
    }

    fn check(&self) -> Result<(), WorkloadError> {
        within("weight_bytes", self.weight_bytes, 1, super::MAX_BYTES)?;
        within("layers", self.layers, 1, 1 << 16)?;
        within("hidden", self.hidden, 1, 1 << 24)?;
        within("key_width", self.key_width, 1, 1 << 24)?;
        within("vocabulary", self.vocabulary, 1, 1 << 32)?;
        within("tensors", self.tensors, 1, 2 * self.layers)?;
        within("requests", self.requests, 1, 10_000_000)?;
        within("slots", self.slots, 1, 1 << 20)?;
        match self.growth {
            Growth::Reallocate(tokens) | Growth::Blocks(tokens) => within("growth", tokens, 1, 1 << 20),
            Growth::Double => Ok(()),
        }
    }
}

/// A request that runs.
struct Running {
    tokens: u64,
    remaining: u64,
    /// Tokens that there is room for.
    room: u64,
    caches: Vec<Tensor>,
}

struct Server<'a> {
    options: &'a Serving,
    program: Program,
    random: Random,
    prompts: Sampler,
    answers: Sampler,
    gaps: statrs::distribution::Exp,
    /// Of one token in one of a request's tensors.
    token_bytes: u64,
    now_us: f64,
    next_arrival_us: f64,
    arrived: u64,
    waiting: VecDeque<(u64, u64)>,
    running: Vec<Running>,
}

impl Server<'_> {
    fn new(options: &Serving) -> Result<Server<'_>, WorkloadError> {
        options.check()?;
        let both = bytes_of("a token's cache", &[2, options.layers, options.key_width, ELEMENT_BYTES])?;
        Ok(Server {
            options,
            program: Program::default(),
            random: Random::new(options.seed),
            prompts: options.prompts.sampler("prompts", options.longest)?,
            answers: options.answers.sampler("answers", options.longest)?,
            gaps: exponential("rate", 1e6 / options.rate)?,
            token_bytes: both.div_ceil(options.tensors),
            now_us: 0.0,
            next_arrival_us: 0.0,
            arrived: 0,
            waiting: VecDeque::new(),
            running: Vec::new(),
        })
    }

    fn load_weights(&mut self) -> Result<(), WorkloadError> {
        let tensors = 4 * self.options.layers;
        for (count, bytes) in super::transformer::shares(self.options.weight_bytes, tensors) {
            for _ in 0..count {
                self.program.allocate(bytes)?;
            }
        }
        Ok(())
    }

    fn turn(&mut self) -> Result<(), WorkloadError> {
        self.arrive();
        while (self.running.len() as u64) < self.options.slots
            && let Some((prompt, answer)) = self.waiting.pop_front()
        {
            self.admit(prompt, answer)?;
        }
        self.step()
    }

    /// Requests that have arrived by now. If there is nothing to do, time goes on to the next one.
    fn arrive(&mut self) {
        let is_idle = self.running.is_empty() && self.waiting.is_empty();
        if is_idle {
            self.now_us = self.now_us.max(self.next_arrival_us);
        }
        while self.arrived < self.options.requests && self.next_arrival_us <= self.now_us {
            self.arrived += 1;
            let prompt = self.prompts.draw(&mut self.random);
            self.waiting.push_back((prompt, self.answers.draw(&mut self.random)));
            self.next_arrival_us += self.gaps.inverse_cdf(self.random.unit());
        }
    }

    /// Runs a prompt: its caches, and its activations for a moment.
    fn admit(&mut self, prompt: u64, answer: u64) -> Result<(), WorkloadError> {
        let mut request = Running { tokens: 0, remaining: answer, room: 0, caches: Vec::new() };
        self.grow(&mut request, prompt)?;
        self.activations(prompt)?;
        let flop = 2 * (self.options.weight_bytes / ELEMENT_BYTES) as u128 * u128::from(prompt);
        self.work(flop as f64 / FLOP_PER_US as f64)?;
        self.running.push(request);
        Ok(())
    }

    /// One token for each request that runs.
    fn step(&mut self) -> Result<(), WorkloadError> {
        let mut running = std::mem::take(&mut self.running);
        self.activations(running.len() as u64)?;
        let mut cached = 0_u64;
        for request in &mut running {
            self.grow(request, 1)?;
            request.remaining -= 1;
            cached = cached.saturating_add(request.tokens * self.token_bytes * self.options.tensors);
        }
        self.work(self.options.weight_bytes.saturating_add(cached) as f64 / BYTES_PER_US as f64)?;
        for request in running {
            if request.remaining == 0 {
                request.caches.into_iter().try_for_each(|cache| self.program.free(cache))?;
            } else {
                self.running.push(request);
            }
        }
        Ok(())
    }

    fn work(&mut self, us: f64) -> Result<(), WorkloadError> {
        self.now_us += us.max(1.0);
        self.program.launch(us as u64)
    }

    /// What the tokens of one pass need for a moment: two rows as wide as a layer, one as wide as the MLP, and the scores of words for
    /// the last one of a prompt or of each request.
    fn activations(&mut self, tokens: u64) -> Result<(), WorkloadError> {
        let row = bytes_of("activations", &[tokens, self.options.hidden, ELEMENT_BYTES])?;
        let wide = bytes_of("activations", &[row, 4])?;
        let scores = bytes_of("the scores", &[tokens.min(self.options.slots), self.options.vocabulary, ELEMENT_BYTES])?;
        let residual = self.program.allocate(row)?;
        let inner = self.program.allocate(wide)?;
        let output = self.program.allocate(row)?;
        self.program.free(inner)?;
        self.program.free(residual)?;
        let scores = self.program.allocate(scores)?;
        self.program.free(output)?;
        self.program.free(scores)
    }

    /// Room for more tokens of one request.
    fn grow(&mut self, request: &mut Running, more: u64) -> Result<(), WorkloadError> {
        request.tokens += more;
        if request.tokens <= request.room {
            return Ok(());
        }
        if let Growth::Blocks(block) = self.options.growth {
            let bytes = bytes_of("a block of a cache", &[self.token_bytes, block])?;
            while request.room < request.tokens {
                for _ in 0..self.options.tensors {
                    request.caches.push(self.program.allocate(bytes)?);
                }
                request.room += block;
            }
            return Ok(());
        }
        request.room = match self.options.growth {
            Growth::Reallocate(step) => request.tokens.next_multiple_of(step),
            _ => request.tokens.max(2 * request.room),
        };
        let bytes = bytes_of("a cache", &[self.token_bytes, request.room])?;
        let old = std::mem::take(&mut request.caches);
        let mut old = old.into_iter();
        for _ in 0..self.options.tensors {
            request.caches.push(self.program.allocate(bytes)?);
            old.next().map_or(Ok(()), |cache| self.program.free(cache))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
