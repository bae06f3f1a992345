//! Alternates training and generation, as in reinforcement learning of a language model.
//!
//! Each round generates answers to prompts, with growing caches and without gradients, and then trains for some steps on the
//! answers. The model's weights, gradients and states are those of a [`Transformer`]. The caches are two tensors per layer
//! for the whole batch, which are reallocated every `stride` tokens (`torch.cat` does that for every token, with more
//! events).

use super::lengths::{self, Lengths};
use super::options::{self, Done, Generator, Key, WorkloadError, bytes_of, within};
use super::training::Training;
use super::transformer::{Transformer, set_model, with_model};
use crate::packing::random::Random;
use crate::workload::{Event, Workload};

/// A model, and the rounds that it goes through.
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
    /// The requests of all rounds.
    ///
    /// # Errors
    /// [`WorkloadError`] if the value of an option is not allowed, if a size is too large, or if there are too many events.
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
            "A transformer of {:.2} billion parameters: {} rounds of {} answers generated and {} training steps",
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

#[cfg(test)]
mod tests {
    use super::*;

    fn small() -> Alternate {
        let model =
            Transformer { layers: 2, hidden: 64, heads: 2, sequence: 256, batch: 2, vocabulary: 100, ..Transformer::default() };
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
        assert!(refused(Alternate { answers: Lengths::Fixed(241), ..small() }).starts_with("answers is 241; allowed: 1 to 240"));
        assert!(refused(Alternate { stride: 0, ..small() }).starts_with("stride is 0"));
    }
}
