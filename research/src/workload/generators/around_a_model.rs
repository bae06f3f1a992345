//! Programs around a model: training on samples of different lengths ([`Varlen`]), training and generation in turns
//! ([`Alternate`]), training with batches that are copied ahead ([`Prefetch`]), and graphs captured for many batch sizes
//! ([`Graphs`]).

use super::cnn::Cnn;
use super::lengths::{self, Lengths};
use super::options::{self, Done, Generator, Key, WorkloadError, bytes_of, within};
use super::training::Training;
use super::transformer::{Transformer, set_model, with_model};
use crate::packing::random::Random;
use crate::workload::{Event, Workload};

/// Trains on samples of different lengths, so that tensors change size from step to step.
///
/// A batch is padded to its longest sample, rounded up to a multiple. The model is a [`Transformer`], whose `sequence` is the
/// longest length allowed. Gradient accumulation and everything else work as in the transformer.
#[derive(Clone, PartialEq, Debug)]
pub struct Varlen {
    /// The model; its `sequence` is the longest length.
    pub model: Transformer,
    /// The distribution of the samples' lengths, in tokens.
    pub lengths: Lengths,
    /// Batches are padded to a multiple of this many tokens.
    pub multiple: u64,
    /// The number of training steps.
    pub steps: u64,
    /// The seed of the lengths.
    pub seed: u64,
}

impl Default for Varlen {
    fn default() -> Varlen {
        let lengths = Lengths::LogNormal { median: 300.0, sigma: 0.7 };
        Varlen { model: Transformer::default(), lengths, multiple: 8, steps: 20, seed: 0 }
    }
}

impl Varlen {
    /// Returns the requests of all steps.
    ///
    /// # Errors
    /// Returns [`WorkloadError`] if the value of an option is not allowed, if a size is too large, or if there are too many
    /// events.
    pub fn workload(&self) -> Result<Workload, WorkloadError> {
        within("steps", self.steps, 1, 1_000_000)?;
        within("multiple", self.multiple, 1, 1 << 20)?;
        self.model.check()?;
        let sampler = self.lengths.sampler("lengths", self.model.sequence)?;
        let mut random = Random::new(self.seed);
        let shares = self.model.micro_batches();
        let mut training = self.model.training(&self.model.plan(self.model.batch, 1)?)?;
        for _ in 0..self.steps {
            let mut plans = Vec::new();
            for &samples in &shares {
                let longest = (0..samples).map(|_| sampler.draw(&mut random)).max().unwrap_or(1);
                let length = longest.next_multiple_of(self.multiple).min(self.model.sequence);
                plans.push((self.model.plan(samples, length)?, self.model.batch_bytes(samples, length)?));
            }
            let micro_batches: Vec<_> = plans.iter().map(|(plan, bytes)| (plan, *bytes)).collect();
            training.engine.program.begin_step();
            training.step(&micro_batches, None)?;
        }
        let says = format!(
            "A transformer with {:.2} billion parameters, trained for {} steps of {} samples with lengths {:?} up to {}",
            self.model.parameters() as f64 / 1e9,
            self.steps,
            self.model.batch,
            self.lengths,
            self.model.sequence
        );
        Ok(training.finish("varlen", says))
    }
}

impl Generator for Varlen {
    fn keys(&self) -> Vec<Key> {
        with_model(&["lengths", "multiple", "steps"])
    }

    fn set(&mut self, key: Key, value: &str) -> Done {
        match key {
            "lengths" => self.lengths = lengths::read(key, value)?,
            "multiple" => self.multiple = options::number(key, value)?,
            "steps" => self.steps = options::number(key, value)?,
            _ => set_model(&mut self.model, key, value)?,
        }
        self.seed = self.model.seed;
        Ok(())
    }

    fn make(&self) -> Result<Workload, WorkloadError> {
        self.workload()
    }
}

/// Alternates training and generation, as in reinforcement learning of a language model.
///
/// Each round generates answers to prompts, with growing caches and without gradients, and then trains for some steps on the
/// answers. The model has the weights, gradients and states of a [`Transformer`]. The caches are two tensors per layer for
/// the entire batch, which are reallocated every `stride` tokens (`torch.cat` does that for every token, with more events).
#[derive(Clone, PartialEq, Debug)]
pub struct Alternate {
    /// The model; its `sequence` is the maximum number of tokens in a prompt and its answer together.
    pub model: Transformer,
    /// The number of rounds.
    pub rounds: u64,
    /// The number of training steps per round.
    pub steps: u64,
    /// The number of answers that are generated at the same time.
    pub samples: u64,
    /// The length of the prompts, in tokens.
    pub prompt: u64,
    /// The distribution of the lengths of a round's longest answer, in tokens.
    pub answers: Lengths,
    /// The number of tokens by which caches grow at a time.
    pub stride: u64,
    /// Whether the allocator's cache is emptied between generating and training.
    pub empties_cache: bool,
    /// The seed of the lengths.
    pub seed: u64,
}

impl Default for Alternate {
    fn default() -> Alternate {
        Alternate {
            model: Transformer { layers: 24, hidden: 1024, heads: 16, ..Transformer::default() },
            rounds: 10,
            steps: 2,
            samples: 32,
            prompt: 128,
            answers: Lengths::Uniform { least: 128, most: 512 },
            stride: 32,
            empties_cache: false,
            seed: 0,
        }
    }
}

impl Alternate {
    /// Returns the requests of all rounds.
    ///
    /// # Errors
    /// Returns [`WorkloadError`] if the value of an option is not allowed, if a size is too large, or if there are too many
    /// events.
    pub fn workload(&self) -> Result<Workload, WorkloadError> {
        within("rounds", self.rounds, 1, 1_000_000)?;
        within("steps", self.steps, 1, 1_000_000)?;
        within("samples", self.samples, 1, 1 << 20)?;
        within("stride", self.stride, 1, 1 << 20)?;
        self.model.check()?;
        within("prompt", self.prompt, 1, self.model.sequence.saturating_sub(1).max(1))?;
        let answers = self.answers.sampler("answers", self.model.sequence.saturating_sub(self.prompt).max(1))?;
        let mut random = Random::new(self.seed);
        let shares = self.model.micro_batches();
        let mut training = self.model.training(&self.model.plan(self.model.batch, 1)?)?;
        for _ in 0..self.rounds {
            let answer = answers.draw(&mut random);
            training.engine.program.begin_step();
            self.generate(&mut training, answer)?;
            if self.empties_cache {
                training.engine.program.push(Event::EmptyCache)?;
            }
            for _ in 0..self.steps {
                // A training batch is as long as its longest answer.
                let length = self.prompt + 1 + random.below(answer as usize) as u64;
                let mut plans = Vec::new();
                for &samples in &shares {
                    plans.push((self.model.plan(samples, length)?, self.model.batch_bytes(samples, length)?));
                }
                training.step(&plans.iter().map(|(plan, bytes)| (plan, *bytes)).collect::<Vec<_>>(), None)?;
            }
            if self.empties_cache {
                training.engine.program.push(Event::EmptyCache)?;
            }
        }
        let says = format!(
            "A transformer with {:.2} billion parameters: {} rounds, each generating {} answers and then running {} training steps",
            self.model.parameters() as f64 / 1e9,
            self.rounds,
            self.samples,
            self.steps
        );
        Ok(training.finish("alternate", says))
    }

    /// Runs the prompts, and then the answers token by token.
    fn generate(&self, training: &mut Training, answer: u64) -> Result<(), WorkloadError> {
        let engine = &mut training.engine;
        let prompts = self.model.plan(self.samples, self.prompt)?;
        let one = self.model.plan(self.samples, 1)?;
        let tensors = 2 * self.model.layers as usize;
        let mut caches = Vec::new();
        let mut room = 0;
        for tokens in (self.prompt..self.prompt + answer).step_by(self.stride as usize) {
            let (plan, length) = if room == 0 { (&prompts, self.prompt) } else { (&one, 1) };
            room = tokens + self.stride;
            let element = self.model.precision.bytes();
            let bytes = bytes_of("a cache", &[self.samples, room, self.model.hidden, element])?;
            let mut old = std::mem::take(&mut caches).into_iter();
            for _ in 0..tensors {
                caches.push(engine.program.allocate(bytes)?);
                old.next().map_or(Ok(()), |cache| engine.program.free(cache))?;
            }
            let input = engine.allocate(self.model.batch_bytes(self.samples, length)?.input)?;
            let output = plan.infer(engine, input)?;
            engine.release(output)?;
            // The tokens that come before the caches grow again reuse the same memory.
            engine.wait()?;
        }
        caches.into_iter().try_for_each(|cache| engine.program.free(cache))
    }
}

impl Generator for Alternate {
    fn keys(&self) -> Vec<Key> {
        with_model(&["rounds", "steps", "samples", "prompt", "answers", "stride", "empties_cache"])
    }

    fn set(&mut self, key: Key, value: &str) -> Done {
        match key {
            "rounds" => self.rounds = options::number(key, value)?,
            "steps" => self.steps = options::number(key, value)?,
            "samples" => self.samples = options::number(key, value)?,
            "prompt" => self.prompt = options::number(key, value)?,
            "answers" => self.answers = lengths::read(key, value)?,
            "stride" => self.stride = options::number(key, value)?,
            "empties_cache" => self.empties_cache = options::switch(key, value)?,
            _ => set_model(&mut self.model, key, value)?,
        }
        self.seed = self.model.seed;
        Ok(())
    }

    fn make(&self) -> Result<Workload, WorkloadError> {
        self.workload()
    }
}

/// Training with batches that are copied to the device ahead of the computation, on a separate stream.
///
/// A batch is allocated on the copy stream and used on the compute stream (`record_stream`). The host runs ahead and frees
/// batches long before the computation is done; their memory remains allocated until then. The computation is the network of
/// a [`Cnn`]. Each batch arrives in compressed form and is decoded on the copy
/// stream; the result of the computation is copied back to the host on a third stream.
/// Times follow from sizes: 25 GB/s for copies, and the network's arithmetic. A workload has no event for the computation
/// waiting for its batch; the work on each stream is still in order, and the missing wait does not cause any memory to be
/// freed too early.
#[derive(Clone, PartialEq, Debug)]
pub struct Prefetch {
    /// The network. Its options `batches`, `repeats` and `empties_cache` are ignored.
    pub network: Cnn,
    /// The distribution of the batch sizes, in samples.
    pub batches: Lengths,
    /// The number of training steps.
    pub steps: u64,
    /// The number of batches that are copied ahead.
    pub depth: u64,
    /// The host waits for the computation each time this many steps have run.
    pub synchronize_every: u64,
    /// The seed of the batch sizes.
    pub seed: u64,
}

impl Default for Prefetch {
    fn default() -> Prefetch {
        let batches = Lengths::Uniform { least: 24, most: 64 };
        Prefetch { network: Cnn::default(), batches, steps: 40, depth: 3, synchronize_every: 10, seed: 0 }
    }
}

/// The streams.
const COMPUTE: u16 = 0;
const COPY_IN: u16 = 1;
const COPY_OUT: u16 = 2;
/// The number of bytes that a copy between host and device moves in a microsecond.
const COPIED_BYTES_PER_US: u64 = 25_000;
/// The size of a decoded image, with four-byte values, relative to the size of the copied image.
const DECODED: u64 = 4;

impl Prefetch {
    /// Returns the requests of all steps.
    ///
    /// # Errors
    /// Returns [`WorkloadError`] if the value of an option is not allowed, if a size is too large, or if there are too many
    /// events.
    pub fn workload(&self) -> Result<Workload, WorkloadError> {
        within("steps", self.steps, 1, 1_000_000)?;
        within("depth", self.depth, 1, 1 << 10)?;
        within("synchronize_every", self.synchronize_every, 1, 1_000_000)?;
        let sampler = self.batches.sampler("batches", 1 << 20)?;
        let mut random = Random::new(self.seed);
        let mut training = self.network.training()?;
        let mut ahead = std::collections::VecDeque::new();
        for step in 1..=self.steps + self.depth {
            let program = &mut training.engine.program;
            if step <= self.steps {
                let samples = sampler.draw(&mut random);
                program.switch(COPY_IN);
                let bytes = self.network.batch_bytes(samples)?.input;
                let packed = program.allocate(bytes / DECODED)?;
                program.launch(bytes / DECODED / COPIED_BYTES_PER_US)?;
                let batch = program.allocate(bytes)?;
                program.free(packed)?;
                program.switch(COMPUTE);
                ahead.push_back((samples, batch));
            }
            if step <= self.depth {
                continue;
            }
            let Some((samples, batch)) = ahead.pop_front() else { break };
            program.begin_step();
            program.record(&batch, COMPUTE)?;
            let result = program.allocate(samples * 4)?;
            let input = training.engine.adopt(batch);
            self.network.plan(samples)?.train(&mut training.engine, input)?;
            training.update_only()?;
            let program = &mut training.engine.program;
            program.record(&result, COPY_OUT)?;
            program.switch(COPY_OUT);
            program.launch(samples * 4 / COPIED_BYTES_PER_US)?;
            program.switch(COMPUTE);
            program.free(result)?;
            if (step - self.depth).is_multiple_of(self.synchronize_every) {
                program.push(Event::Synchronize { stream: COMPUTE })?;
            }
        }
        let says = format!(
            "A residual network trained for {} steps, with {} batches copied ahead on another stream",
            self.steps, self.depth
        );
        Ok(training.finish("prefetch", says))
    }
}

impl Generator for Prefetch {
    fn keys(&self) -> Vec<Key> {
        vec![
            "preset",
            "stages",
            "width",
            "image",
            "classes",
            "optimizer",
            "mixed",
            "batches",
            "steps",
            "depth",
            "synchronize_every",
            "seed",
        ]
    }

    fn set(&mut self, key: Key, value: &str) -> Done {
        match key {
            "batches" => self.batches = lengths::read(key, value)?,
            "steps" => self.steps = options::number(key, value)?,
            "depth" => self.depth = options::number(key, value)?,
            "synchronize_every" => self.synchronize_every = options::number(key, value)?,
            _ => self.network.set(key, value)?,
        }
        self.seed = self.network.seed;
        Ok(())
    }

    fn make(&self) -> Result<Workload, WorkloadError> {
        self.workload()
    }
}

/// The order of captures.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Order {
    /// The smallest batch first.
    Ascending,
    /// The largest first, as servers do.
    #[default]
    Descending,
    /// In random order.
    Shuffled,
}

/// Graphs captured for many batch sizes, as an inference server does before it starts serving.
///
/// For each batch size, the model (a [`Transformer`], one token per sample) runs a few times to warm up, and then once while
/// its requests go to a private pool. Its output lives as long as the graph. Graphs may share a pool; the *order* of the
/// captures then determines whether a later graph fits in the memory that an earlier one has left free. Replaying a graph
/// allocates nothing.
#[derive(Clone, PartialEq, Debug)]
pub struct Graphs {
    /// The model. Only its sizes and its precision matter here.
    pub model: Transformer,
    /// The batch sizes.
    pub batches: Vec<u64>,
    /// The order in which they are captured.
    pub order: Order,
    /// Whether all graphs in a round share a pool; if not, each has its own.
    pub shared: bool,
    /// The number of warm-up runs before each capture.
    pub warm_ups: u64,
    /// The number of replays per graph.
    pub replays: u64,
    /// The number of runs without a graph after each round, on more tokens than any graph: a prompt.
    pub eager_runs: u64,
    /// The number of times that all graphs are captured; after each round, they are all destroyed.
    pub rounds: u64,
    /// The seed of a random order.
    pub seed: u64,
}

impl Default for Graphs {
    fn default() -> Graphs {
        Graphs {
            model: Transformer { layers: 24, hidden: 2048, heads: 16, ..Transformer::default() },
            batches: [1, 2, 4].into_iter().chain((8..=256).step_by(8)).collect(),
            order: Order::default(),
            shared: true,
            warm_ups: 1,
            replays: 3,
            eager_runs: 1,
            rounds: 1,
            seed: 0,
        }
    }
}

impl Graphs {
    /// Returns the requests of all rounds.
    ///
    /// # Errors
    /// Returns [`WorkloadError`] if the value of an option is not allowed, if a size is too large, or if there are too many
    /// events.
    pub fn workload(&self) -> Result<Workload, WorkloadError> {
        self.check()?;
        let mut engine = self.model.engine();
        for bytes in self.model.plan(1, 1)?.parameters() {
            engine.program.allocate(bytes)?;
        }
        let largest = self.batches.iter().copied().max().unwrap_or(1);
        // Graphs read and write tensors that remain allocated.
        for bytes in [8, 8, self.model.hidden * self.model.precision.bytes()] {
            engine.program.allocate(bytes_of("the static inputs", &[largest, bytes])?)?;
        }
        let mut random = Random::new(self.seed);
        let mut pool = 0;
        for _ in 0..self.rounds {
            let first = pool + 1;
            let mut outputs = Vec::new();
            for (at, batch) in self.in_order(&mut random).into_iter().enumerate() {
                let plan = self.model.plan(batch, 1)?;
                let tokens = self.model.batch_bytes(batch, 1)?.input;
                engine.program.begin_step();
                for _ in 0..self.warm_ups {
                    let input = engine.allocate(tokens)?;
                    let output = plan.infer(&mut engine, input)?;
                    engine.release(output)?;
                }
                engine.wait()?;
                pool += u16::from(at == 0 || !self.shared);
                engine.program.push(Event::BeginPool { pool })?;
                let input = engine.allocate(tokens)?;
                outputs.push(plan.infer(&mut engine, input)?);
                engine.program.push(Event::EndPool { pool })?;
                for _ in 0..self.replays {
                    engine.launch(engine.work.forward / 1000)?;
                }
            }
            for _ in 0..self.eager_runs {
                engine.program.begin_step();
                let input = engine.allocate(self.model.batch_bytes(1, self.model.sequence)?.input)?;
                let output = self.model.plan(1, self.model.sequence)?.infer(&mut engine, input)?;
                engine.release(output)?;
            }
            engine.wait()?;
            outputs.into_iter().try_for_each(|output| engine.release(output))?;
            (first..=pool).try_for_each(|pool| engine.program.push(Event::DropPool { pool }))?;
        }
        let says = format!(
            "Graphs of a model with {} layers for {} batch sizes, {:?}, {}",
            self.model.layers,
            self.batches.len(),
            self.order,
            if self.shared { "in one pool" } else { "each in its own pool" }
        );
        Ok(engine.program.finish("graphs", says))
    }

    fn check(&self) -> Result<(), WorkloadError> {
        self.model.check()?;
        within("batches", self.batches.len() as u64, 1, 1 << 10)?;
        self.batches.iter().try_for_each(|&batch| within("batches", batch, 1, 1 << 20))?;
        within("warm_ups", self.warm_ups, 0, 1_000_000)?;
        within("replays", self.replays, 0, 1_000_000)?;
        within("eager_runs", self.eager_runs, 0, 1_000_000)?;
        let pools = if self.shared { 1 } else { self.batches.len() as u64 };
        within("rounds", self.rounds, 1, u64::from(u16::MAX) / pools)
    }

    fn in_order(&self, random: &mut Random) -> Vec<u64> {
        let mut batches = self.batches.clone();
        batches.sort_unstable();
        match self.order {
            Order::Ascending => {}
            Order::Descending => batches.reverse(),
            Order::Shuffled => {
                for last in (1..batches.len()).rev() {
                    batches.swap(last, random.below(last + 1));
                }
            }
        }
        batches
    }
}

impl Generator for Graphs {
    fn keys(&self) -> Vec<Key> {
        with_model(&["batches", "order", "shared", "warm_ups", "replays", "eager_runs", "rounds"])
    }

    fn set(&mut self, key: Key, value: &str) -> Done {
        match key {
            "batches" => self.batches = options::list(key, value)?,
            "order" => self.order = order(key, value)?,
            "shared" => self.shared = options::switch(key, value)?,
            "warm_ups" => self.warm_ups = options::number(key, value)?,
            "replays" => self.replays = options::number(key, value)?,
            "eager_runs" => self.eager_runs = options::number(key, value)?,
            "rounds" => self.rounds = options::number(key, value)?,
            _ => set_model(&mut self.model, key, value)?,
        }
        self.seed = self.model.seed;
        Ok(())
    }

    fn make(&self) -> Result<Workload, WorkloadError> {
        self.workload()
    }
}

fn order(option: Key, value: &str) -> Result<Order, WorkloadError> {
    let orders = [("ascending", Order::Ascending), ("descending", Order::Descending), ("shuffled", Order::Shuffled)];
    options::one_of(option, value, &orders)
}

#[cfg(test)]
mod tests {
    mod varlen {
        use super::super::*;

        fn small() -> Varlen {
            let model = Transformer {
                layers: 2,
                hidden: 64,
                heads: 2,
                sequence: 512,
                batch: 3,
                vocabulary: 100,
                ..Transformer::default()
            };
            Varlen { model, steps: 12, ..Varlen::default() }
        }

        /// Returns the padded length of each batch, derived from three consecutive requests: tokens, targets, and the
        /// embedding with 64 numbers of 2 bytes per token.
        fn lengths(workload: &Workload) -> Vec<u64> {
            let mut lengths = Vec::new();
            for three in workload.events.windows(3) {
                if let [
                    Event::Allocate { bytes: input, .. },
                    Event::Allocate { bytes: targets, .. },
                    Event::Allocate { bytes: embedding, .. },
                ] = *three
                    && input == targets
                    && embedding == 16 * input
                {
                    lengths.push(input / 24);
                }
            }
            lengths
        }

        #[test]
        fn lengths_vary_between_steps_and_end_at_the_models() {
            let workload = Varlen { steps: 40, ..small() }.workload().unwrap();
            assert_eq!(workload.check(), Ok(()));
            let mut lengths = lengths(&workload);
            assert_eq!(lengths.len(), 40);
            assert!(lengths.iter().all(|length| length.is_multiple_of(8)), "{lengths:?}");
            lengths.sort_unstable();
            lengths.dedup();
            assert!(lengths.len() > 5 && lengths.last() == Some(&512), "{lengths:?}");
        }

        #[test]
        fn the_same_length_each_time_is_the_transformer() {
            let varlen = Varlen { lengths: Lengths::Fixed(512), steps: 3, ..small() };
            assert_eq!(varlen.workload().unwrap().events, varlen.model.workload(3).unwrap().events);
        }

        #[test]
        fn the_seed_decides() {
            assert_eq!(small().workload(), small().workload());
            assert_ne!(small().workload().unwrap().events, Varlen { seed: 1, ..small() }.workload().unwrap().events);
            assert!(matches!(
                Varlen { multiple: 0, ..small() }.workload(),
                Err(WorkloadError::Option { option: "multiple", .. })
            ));
        }
    }

    mod alternate {
        use super::super::*;

        fn small() -> Alternate {
            let model = Transformer {
                layers: 2,
                hidden: 64,
                heads: 2,
                sequence: 256,
                batch: 2,
                vocabulary: 100,
                ..Transformer::default()
            };
            Alternate { model, rounds: 3, prompt: 16, answers: Lengths::Uniform { least: 30, most: 200 }, ..Alternate::default() }
        }

        #[test]
        fn programs_are_well_formed_and_only_weights_and_states_are_left() {
            for empties_cache in [false, true] {
                let alternate = Alternate { empties_cache, ..small() };
                let workload = alternate.workload().unwrap();
                assert_eq!(workload.check(), Ok(()));
                assert_eq!(workload.curve().last(), Some(&(2 * 3 * alternate.model.parameters())));
                let emptied = workload.events.iter().filter(|event| **event == Event::EmptyCache).count();
                assert_eq!(emptied, if empties_cache { 6 } else { 0 });
            }
            assert_eq!(small().workload(), small().workload());
        }

        #[test]
        fn caches_of_more_samples_need_more_while_generating() {
            let load = |samples| Alternate { samples, ..small() }.workload().unwrap().load_bytes(1);
            assert!(load(256) > load(1));
        }

        #[test]
        fn bad_options_are_errors() {
            let refused = |alternate: Alternate| alternate.workload().unwrap_err().to_string();
            assert_eq!(refused(Alternate { prompt: 256, ..small() }), "prompt is 256; allowed: 1 to 255");
            assert!(
                refused(Alternate { answers: Lengths::Fixed(241), ..small() }).starts_with("answers is 241; allowed: 1 to 240")
            );
            assert!(refused(Alternate { stride: 0, ..small() }).starts_with("stride is 0"));
        }
    }

    mod prefetch {
        use super::super::*;
        use crate::workload::generators::Optimizer;

        fn small() -> Prefetch {
            let network = Cnn { width: 8, image: 32, optimizer: Optimizer::Momentum, ..Cnn::default() };
            Prefetch { network, steps: 9, batches: Lengths::Uniform { least: 2, most: 9 }, ..Prefetch::default() }
        }

        #[test]
        fn batches_are_ahead_and_used_on_the_other_stream() {
            let fixed = Prefetch { batches: Lengths::Fixed(5), ..small() };
            let workload = fixed.workload().unwrap();
            assert_eq!(workload.check(), Ok(()));
            let (mut ahead, mut most) = (0, 0);
            let mut is_batch = std::collections::BTreeSet::new();
            for event in &workload.events {
                match *event {
                    Event::Allocate { buffer, bytes, stream: COPY_IN } if bytes == 5 * 3 * 32 * 32 * 4 => {
                        is_batch.insert(buffer);
                        ahead += 1;
                        most = most.max(ahead);
                    }
                    Event::Use { buffer, stream: COMPUTE } => {
                        assert!(is_batch.remove(&buffer), "only batches are used on the compute stream");
                        ahead -= 1;
                    }
                    _ => {}
                }
            }
            assert_eq!((most, is_batch.len()), (4, 0));
            let waits = workload.events.iter().filter(|event| matches!(event, Event::Synchronize { .. })).count();
            assert_eq!(waits, 0);
            let synchronized = Prefetch { synchronize_every: 3, ..fixed }.workload().unwrap();
            assert_eq!(synchronized.events.len(), workload.events.len() + 3);
        }

        #[test]
        fn a_deeper_queue_needs_more() {
            let load = |depth| Prefetch { depth, batches: Lengths::Fixed(64), ..small() }.workload().unwrap().load_bytes(1);
            assert_eq!(load(4) - load(2), 2 * 64 * 3 * 32 * 32 * 4);
        }

        #[test]
        fn bad_options_are_errors() {
            let refused = |prefetch: Prefetch| prefetch.workload().unwrap_err().to_string();
            assert!(refused(Prefetch { depth: 0, ..small() }).starts_with("depth is 0"));
            assert!(refused(Prefetch { batches: Lengths::Fixed(0), ..small() }).starts_with("batches is 0"));
            assert!(refused(Prefetch { network: Cnn { image: 1, ..Cnn::default() }, ..small() }).starts_with("image is 1"));
        }
    }

    mod graphs {
        use super::super::*;

        fn small() -> Graphs {
            let model = Transformer { layers: 2, hidden: 64, heads: 2, sequence: 64, vocabulary: 1000, ..Transformer::default() };
            Graphs { model, batches: vec![1, 2, 4, 8, 16], rounds: 2, ..Graphs::default() }
        }

        /// Returns the pool and the batch size of each capture: the first request in a capture is for 8 bytes per sample.
        fn captured(graphs: &Graphs) -> Vec<(u16, u64)> {
            let workload = graphs.workload().unwrap();
            assert_eq!(workload.check(), Ok(()));
            let mut captured = Vec::new();
            for pair in workload.events.windows(2) {
                if let [Event::BeginPool { pool }, Event::Allocate { bytes, .. }] = *pair {
                    captured.push((pool, bytes / 8));
                }
            }
            captured
        }

        #[test]
        fn captures_come_in_the_order_that_was_asked_for() {
            let descending = captured(&small());
            assert_eq!(descending[..5], [(1, 16), (1, 8), (1, 4), (1, 2), (1, 1)]);
            assert_eq!(descending[5..], [(2, 16), (2, 8), (2, 4), (2, 2), (2, 1)]);
            let ascending = captured(&Graphs { order: Order::Ascending, shared: false, ..small() });
            assert_eq!(ascending[3..7], [(4, 8), (5, 16), (6, 1), (7, 2)]);
            let shuffled = captured(&Graphs { order: Order::Shuffled, ..small() });
            let mut sorted: Vec<u64> = shuffled[..5].iter().map(|capture| capture.1).collect();
            sorted.sort_unstable();
            assert_eq!(sorted, [1, 2, 4, 8, 16]);
            assert_ne!(shuffled[..5], descending[..5]);
        }

        #[test]
        fn what_a_graph_makes_stays_as_long_as_it() {
            let workload = Graphs { rounds: 1, eager_runs: 0, ..small() }.workload().unwrap();
            // After the last capture, the five outputs are freed before the pool is dropped.
            let last = workload.events.iter().rposition(|event| matches!(event, Event::EndPool { .. })).unwrap();
            let freed = workload.events[last..].iter().filter(|event| matches!(event, Event::Free { .. })).count();
            assert_eq!(freed, 5);
            assert_eq!(workload.events.last(), Some(&Event::DropPool { pool: 1 }));
        }

        #[test]
        fn bad_options_are_errors() {
            let refused = |graphs: Graphs| graphs.workload().unwrap_err().to_string();
            assert_eq!(refused(Graphs { rounds: 20_000, shared: false, ..small() }), "rounds is 20000; allowed: 1 to 13107");
            assert!(refused(Graphs { batches: vec![], ..small() }).starts_with("batches is 0"));
            assert!(refused(Graphs { batches: vec![0], ..small() }).starts_with("batches is 0"));
        }
    }
}
