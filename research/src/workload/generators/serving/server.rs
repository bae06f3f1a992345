//! The server at work: arrivals, turns, and the caches of running requests.

use std::collections::VecDeque;

use statrs::distribution::{ContinuousCDF, Exp};

use super::options::{Growth, Serving};
use crate::packing::random::Random;
use crate::workload::Workload;
use crate::workload::generators::checks::{bytes_of, shares};
use crate::workload::generators::error::WorkloadError;
use crate::workload::generators::lengths::{Sampler, exponential};
use crate::workload::generators::program::{Program, Tensor};

/// The bytes of a number.
const ELEMENT_BYTES: u64 = 2;
/// The bytes that an H200 reads in a microsecond: a turn reads the weights and the caches.
const BYTES_PER_US: u64 = 4_000_000;
/// The floating-point operations that it does in a microsecond of a prompt.
const FLOP_PER_US: u64 = 400_000_000;

impl Serving {
    /// The allocator's requests while this server serves all of its own.
    ///
    /// # Errors
    /// [`WorkloadError`] if the value of an option is not allowed, a size is too large, or there are too many events.
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
}

/// A running request.
struct Running {
    tokens: u64,
    remaining: u64,
    /// The tokens that its caches have room for.
    room: u64,
    caches: Vec<Tensor>,
}

struct Server<'a> {
    options: &'a Serving,
    program: Program,
    random: Random,
    prompts: Sampler,
    answers: Sampler,
    gaps: Exp,
    /// The bytes of one token in one of a request's tensors.
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
        for (count, bytes) in shares(self.options.weight_bytes, tensors) {
            for _ in 0..count {
                self.program.allocate(bytes)?;
            }
        }
        Ok(())
    }

    fn turn(&mut self) -> Result<(), WorkloadError> {
        self.arrive();
        self.program.begin_step();
        while (self.running.len() as u64) < self.options.slots
            && let Some((prompt, answer)) = self.waiting.pop_front()
        {
            self.admit(prompt, answer)?;
        }
        self.step()
    }

    /// Takes in the requests that have arrived by now. An idle server first waits for the next one.
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

    /// Runs a prompt: allocates its caches, and its activations for a moment.
    fn admit(&mut self, prompt: u64, answer: u64) -> Result<(), WorkloadError> {
        let mut request = Running { tokens: 0, remaining: answer, room: 0, caches: Vec::new() };
        self.grow(&mut request, prompt)?;
        self.activations(prompt)?;
        let flop = 2 * (self.options.weight_bytes / ELEMENT_BYTES) as u128 * u128::from(prompt);
        self.work(flop as f64 / FLOP_PER_US as f64)?;
        self.running.push(request);
        Ok(())
    }

    /// Makes one token for each running request.
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

    /// What the tokens of one pass need for a moment: two tensors as wide as a layer, one as wide as the MLP, and
    /// the logits of the last token of a prompt or of each request.
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

    /// Makes room for more tokens of a request.
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
mod tests {
    use super::*;

    #[test]
    fn arrivals_per_second_are_as_many_as_said() {
        let options = Serving { rate: 50.0, requests: 1_000_000, ..Serving::default() };
        let mut server = Server::new(&options).unwrap();
        server.now_us = 100e6;
        server.arrive();
        assert!(server.arrived.abs_diff(5000) < 300, "{}", server.arrived);
    }
}
