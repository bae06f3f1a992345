//! A server for a language model: requests arrive at random, each with a key/value cache that grows token by token.
//!
//! Arrivals are a Poisson process; prompts and answers each have a length distribution. Up to `slots` requests run at the
//! same time (continuous batching): each turn admits waiting requests, runs their prompts one by one, and then generates one
//! token for each running request. The growth of the caches dominates what a server requests from an allocator: [`Growth`].
//! The model is simplified: a request's caches for all layers are `tensors` tensors of equal size, and a turn's activations
//! are four tensors.

use std::collections::VecDeque;

use statrs::distribution::{ContinuousCDF, Exp};

use super::lengths::{self, Lengths, Sampler, exponential};
use super::options::{self, Done, Generator, Key, MAX_BYTES, Program, Tensor, WorkloadError, bytes_of, shares, within};
use crate::packing::random::Random;
use crate::workload::Workload;

/// How a cache grows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Growth {
    /// A tensor that is larger by this many tokens is allocated, and the old one is copied and freed. With 1, this is
    /// `torch.cat` per token.
    Reallocate(u64),
    /// The same, with a tensor of twice the size.
    Double,
    /// Blocks of this many tokens are added; none is ever copied.
    Blocks(u64),
}

/// A model, its requests and how they are served.
#[derive(Clone, PartialEq, Debug)]
pub struct Serving {
    /// The size of all weights in bytes, in four tensors per layer.
    pub weight_bytes: u64,
    /// The number of layers.
    pub layers: u64,
    /// The width of a layer.
    pub hidden: u64,
    /// The width of the keys, and of the values.
    pub key_width: u64,
    /// The size of the vocabulary.
    pub vocabulary: u64,
    /// The number of tensors that hold a request's caches for all layers.
    pub tensors: u64,
    /// The way in which the caches grow.
    pub growth: Growth,
    /// The number of requests.
    pub requests: u64,
    /// The maximum number of requests that run at the same time.
    pub slots: u64,
    /// The number of arrivals per second.
    pub rate: f64,
    /// The distribution of the lengths of prompts, in tokens.
    pub prompts: Lengths,
    /// The distribution of the lengths of answers, in tokens.
    pub answers: Lengths,
    /// The maximum length of a prompt, and of an answer, in tokens.
    pub longest: u64,
    /// The seed of arrivals and lengths.
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

impl Serving {
    /// Checks every option except the distributions.
    fn check(&self) -> Result<(), WorkloadError> {
        within("weight_bytes", self.weight_bytes, 1, MAX_BYTES)?;
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

impl Generator for Serving {
    fn keys(&self) -> Vec<Key> {
        vec![
            "weight_bytes",
            "layers",
            "hidden",
            "key_width",
            "vocabulary",
            "tensors",
            "growth",
            "requests",
            "slots",
            "rate",
            "prompts",
            "answers",
            "longest",
            "seed",
        ]
    }

    fn set(&mut self, key: Key, value: &str) -> Done {
        match key {
            "weight_bytes" => self.weight_bytes = options::bytes(key, value)?,
            "layers" => self.layers = options::number(key, value)?,
            "hidden" => self.hidden = options::number(key, value)?,
            "key_width" => self.key_width = options::number(key, value)?,
            "vocabulary" => self.vocabulary = options::number(key, value)?,
            "tensors" => self.tensors = options::number(key, value)?,
            "growth" => self.growth = growth(key, value)?,
            "requests" => self.requests = options::number(key, value)?,
            "slots" => self.slots = options::number(key, value)?,
            "rate" => self.rate = options::real(key, value)?,
            "prompts" => self.prompts = lengths::read(key, value)?,
            "answers" => self.answers = lengths::read(key, value)?,
            "longest" => self.longest = options::number(key, value)?,
            _ => self.seed = options::number(key, value)?,
        }
        Ok(())
    }

    fn make(&self) -> Result<Workload, WorkloadError> {
        self.workload()
    }
}

fn growth(option: Key, value: &str) -> Result<Growth, WorkloadError> {
    match (value.split_once('/'), value) {
        (None, "double") => Ok(Growth::Double),
        (Some(("blocks", tokens)), _) => Ok(Growth::Blocks(options::number(option, tokens)?)),
        (Some(("reallocate", tokens)), _) => Ok(Growth::Reallocate(options::number(option, tokens)?)),
        _ => options::refused(option, value, "double, blocks/TOKENS or reallocate/TOKENS"),
    }
}

/// The size of a number, in bytes.
const ELEMENT_BYTES: u64 = 2;
/// The number of bytes that an H200 reads in a microsecond; a turn reads the weights and the caches.
const BYTES_PER_US: u64 = 4_000_000;
/// The number of floating-point operations that an H200 performs in a microsecond of a prompt.
const FLOP_PER_US: u64 = 400_000_000;

impl Serving {
    /// Returns the requests to the allocator while this server serves all of its clients' requests.
    ///
    /// # Errors
    /// Returns [`WorkloadError`] if the value of an option is not allowed, if a size is too large, or if there are too many
    /// events.
    pub fn workload(&self) -> Result<Workload, WorkloadError> {
        let mut server = Server::new(self)?;
        server.load_weights()?;
        while server.arrived < self.requests || !server.running.is_empty() || !server.waiting.is_empty() {
            server.turn()?;
        }
        let says = format!(
            "A server for a model with {} layers: {} requests, arriving at {} per second, at most {} at a time, with these \
             caches: {:?}",
            self.layers, self.requests, self.rate, self.slots, self.growth
        );
        Ok(server.program.finish("serving", says))
    }
}

/// A running request.
struct Running {
    tokens: u64,
    remaining: u64,
    /// The number of tokens that its caches have room for.
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
    /// The size of one token in one of a request's tensors, in bytes.
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

    /// Accepts the requests that have arrived by now. An idle server first waits for the next one.
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

    /// Runs a prompt: allocates its caches and, temporarily, its activations.
    fn admit(&mut self, prompt: u64, answer: u64) -> Result<(), WorkloadError> {
        let mut request = Running { tokens: 0, remaining: answer, room: 0, caches: Vec::new() };
        self.grow(&mut request, prompt)?;
        self.activations(prompt)?;
        let flop = 2 * (self.options.weight_bytes / ELEMENT_BYTES) as u128 * u128::from(prompt);
        self.work(flop as f64 / FLOP_PER_US as f64)?;
        self.running.push(request);
        Ok(())
    }

    /// Generates one token for each running request.
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

    /// Allocates the temporary memory for the tokens of one pass, and frees it: two tensors as wide as a layer, one as wide
    /// as the MLP, and the logits of the last token of a prompt or of each request.
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

    /// Makes room for more tokens in a request.
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
    use crate::workload::Event;

    #[test]
    fn arrivals_per_second_are_as_many_as_said() {
        let options = Serving { rate: 50.0, requests: 1_000_000, ..Serving::default() };
        let mut server = Server::new(&options).unwrap();
        server.now_us = 100e6;
        server.arrive();
        assert!(server.arrived.abs_diff(5000) < 300, "{}", server.arrived);
    }

    fn small(growth: Growth) -> Serving {
        Serving {
            weight_bytes: 1 << 20,
            layers: 2,
            hidden: 64,
            key_width: 64,
            vocabulary: 100,
            growth,
            requests: 40,
            ..Serving::default()
        }
    }

    #[test]
    fn programs_are_well_formed_and_caches_all_go_back() {
        for growth in [Growth::Blocks(16), Growth::Reallocate(1), Growth::Reallocate(64), Growth::Double] {
            let workload = small(growth).workload().unwrap();
            assert_eq!(workload.check(), Ok(()));
            assert_eq!(workload.curve().last(), Some(&(1 << 20)), "{growth:?}: only the weights are left");
            assert_eq!(small(growth).workload().unwrap(), workload);
        }
    }

    #[test]
    fn a_cache_grows_as_it_is_told() {
        let one = |growth| {
            let (prompts, answers) = (Lengths::Fixed(5), Lengths::Fixed(6));
            let serving = Serving { requests: 1, tensors: 1, prompts, answers, ..small(growth) };
            let workload = serving.workload().unwrap();
            // A token has 2 x 2 x 64 x 2 bytes; the activations of one to five tokens have 128 to 2,560 bytes.
            let tokens = |event: &Event| match *event {
                Event::Allocate { bytes, .. } if bytes >= 4 * 512 && bytes != 2560 && bytes < 1 << 17 => Some(bytes / 512),
                _ => None,
            };
            workload.events.iter().filter_map(tokens).collect::<Vec<_>>()
        };
        assert_eq!(one(Growth::Blocks(4)), [4, 4, 4]);
        assert_eq!(one(Growth::Reallocate(4)), [8, 12]);
        assert_eq!(one(Growth::Double), [10, 20]);
        assert_eq!(one(Growth::Reallocate(1)), [6, 7, 8, 9, 10, 11]);
    }

    #[test]
    fn more_requests_at_once_need_more() {
        let load = |slots| Serving { slots, rate: 1e6, ..small(Growth::Blocks(16)) }.workload().unwrap().load_bytes(1);
        assert!(load(1) < load(4) && load(4) < load(16));
    }

    #[test]
    fn bad_options_are_errors() {
        let refused = |serving: Serving| serving.workload().unwrap_err().to_string();
        let plain = small(Growth::Blocks(16));
        assert!(refused(Serving { rate: 0.0, ..plain.clone() }).starts_with("rate is"));
        assert!(refused(Serving { slots: 0, ..plain.clone() }).starts_with("slots is 0"));
        assert!(refused(small(Growth::Blocks(0))).starts_with("growth is 0"));
        assert!(refused(Serving { longest: 1 << 60, ..plain.clone() }).starts_with("prompts is"));
        assert!(refused(Serving { tensors: 5, ..plain }).starts_with("tensors is 5; allowed: 1 to 4"));
    }
}
