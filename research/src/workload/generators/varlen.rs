//! Trains on samples of different lengths, so that tensors change size from step to step.
//!
//! A batch is padded to its longest sample, rounded up to a multiple. The model is a [`Transformer`], whose `sequence` is the
//! longest length allowed. Gradient accumulation and everything else work as in the transformer.

use super::lengths::{self, Lengths};
use super::options::{self, Done, Generator, Key, WorkloadError, within};
use super::transformer::{Transformer, set_model, with_model};
use crate::packing::random::Random;
use crate::workload::Workload;

/// A model, and the lengths of its training samples.
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
    /// The requests of all steps.
    ///
    /// # Errors
    /// [`WorkloadError`] if the value of an option is not allowed, if a size is too large, or if there are too many events.
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
            "A transformer of {:.2} billion parameters, trained for {} steps of {} samples with lengths {:?} up to {}",
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Event;

    fn small() -> Varlen {
        let model =
            Transformer { layers: 2, hidden: 64, heads: 2, sequence: 512, batch: 3, vocabulary: 100, ..Transformer::default() };
        Varlen { model, steps: 12, ..Varlen::default() }
    }

    /// The padded length of each batch, derived from three consecutive requests: tokens, targets, and the embedding with 64
    /// numbers of 2 bytes per token.
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
        assert!(matches!(Varlen { multiple: 0, ..small() }.workload(), Err(WorkloadError::Option { option: "multiple", .. })));
    }
}
