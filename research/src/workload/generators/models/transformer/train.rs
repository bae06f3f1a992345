//! The workload of training a transformer.

use super::options::Transformer;
use crate::workload::Workload;
use crate::workload::generators::WorkloadError;
use crate::workload::generators::checks::within;
use crate::workload::generators::models::autograd::Work;
use crate::workload::generators::models::training::Training;

impl Transformer {
    /// The requests of this many steps of training.
    ///
    /// Each step runs every micro-batch forward and backward, then updates the weights. Adam's states are
    /// allocated in the first update; gradients are freed at the end of each step.
    ///
    /// # Errors
    /// [`WorkloadError`] if the value of an option is not allowed, a size is beyond
    /// [`MAX_BYTES`](crate::workload::generators::MAX_BYTES), or there are more events than
    /// [`MAX_EVENTS`](crate::workload::generators::MAX_EVENTS).
    pub fn workload(&self, steps: u64) -> Result<Workload, WorkloadError> {
        Ok(self.train(steps)?.finish("transformer", self.says(steps)))
    }

    /// The arithmetic of one step.
    ///
    /// # Errors
    /// As for [`Transformer::workload`].
    pub fn work(&self) -> Result<Work, WorkloadError> {
        Ok(self.train(1)?.engine.work)
    }

    fn says(&self, steps: u64) -> String {
        let Transformer { layers, hidden, sequence, batch, checkpointing, .. } = self;
        format!(
            "A transformer of {layers} layers, {hidden} wide, {:.2} billion parameters, trained for {steps} steps of {batch} x \
             {sequence} tokens; checkpointing: {checkpointing:?}",
            self.parameters() as f64 / 1e9
        )
    }

    pub(super) fn train(&self, steps: u64) -> Result<Training, WorkloadError> {
        within("steps", steps, 1, 1_000_000)?;
        self.check()?;
        let plans = self.plans()?;
        let mut training = self.training(&plans[0].1)?;
        let micro_batches: Vec<_> =
            plans.iter().flat_map(|(count, plan, bytes)| std::iter::repeat_n((plan, *bytes), *count)).collect();
        for step in 1..=steps {
            training.engine.program.begin_step();
            training.step(&micro_batches, (step < steps).then_some(micro_batches[0].1))?;
        }
        Ok(training)
    }
}
