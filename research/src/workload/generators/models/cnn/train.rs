//! The workload of training a residual network.

use super::layers::{ELEMENT_BYTES, INDEX_BYTES};
use super::options::Cnn;
use crate::workload::generators::WorkloadError;
use crate::workload::generators::models::autograd::{Engine, Surroundings};
use crate::workload::generators::models::training::{Optimizer, Training, Updating};
use crate::workload::{Event, Workload};

impl Cnn {
    /// The requests of all batch sizes.
    ///
    /// # Errors
    /// [`WorkloadError`] if the value of an option is not allowed, a size is too large, or there are too many events.
    pub fn workload(&self) -> Result<Workload, WorkloadError> {
        let mut training = self.training()?;
        for (at, &batch) in self.batches.iter().enumerate() {
            if self.empties_cache {
                training.engine.program.push(Event::EmptyCache)?;
            }
            let plan = self.plan(batch)?;
            for step in 1..=self.repeats {
                let following = if step < self.repeats { Some(batch) } else { self.batches.get(at + 1).copied() };
                let next = following.map(|batch| self.batch_bytes(batch)).transpose()?;
                training.engine.program.begin_step();
                training.step(&[(&plan, self.batch_bytes(batch)?)], next)?;
            }
        }
        let says =
            format!("A residual network of {:?} blocks, batches of {:?}, each {} times", self.stages, self.batches, self.repeats);
        Ok(training.finish("cnn", says))
    }

    /// A training loop that has allocated the weights of this network.
    pub(in crate::workload::generators::models) fn training(&self) -> Result<Training, WorkloadError> {
        let surroundings =
            Surroundings { scratch_seed: self.mixed.then_some(self.seed), libraries: true, flop_per_us: 50_000_000 };
        let updating = Updating {
            optimizer: self.optimizer,
            element_bytes: ELEMENT_BYTES,
            has_master_copy: false,
            copies_states: false,
            drops_gradients: self.optimizer != Optimizer::Sgd,
            is_mixed: self.mixed,
        };
        self.check()?;
        let plan = self.plan(1)?;
        let mut training = Training::new(Engine::new(surroundings), plan.parameters(), updating)?;
        self.running_statistics(&mut training)?;
        Ok(training)
    }

    /// What batch normalizations keep besides their parameters: running mean, running variance and the number of
    /// batches.
    fn running_statistics(&self, training: &mut Training) -> Result<(), WorkloadError> {
        for channels in self.normalized_channels() {
            for bytes in [channels * ELEMENT_BYTES, channels * ELEMENT_BYTES, INDEX_BYTES] {
                training.engine.program.allocate(bytes)?;
            }
        }
        Ok(())
    }
}
