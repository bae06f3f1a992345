//! A training of a transformer, and that on a device.

use crate::workload::generators::transformer::{Precision, Transformer};

/// A transformer, how it is trained and for how long. Its batch is what is searched for.
#[derive(Clone, PartialEq, Debug)]
pub struct Training {
    /// Its name.
    pub name: String,
    /// The model; its batch is replaced.
    pub transformer: Transformer,
    /// The number of training steps. The second step is the first that starts with the optimizer's states.
    pub steps: u64,
}

impl Training {
    /// The model with this batch.
    #[must_use]
    pub fn with_batch(&self, batch: u64) -> Transformer {
        Transformer { batch, ..self.transformer.clone() }
    }

    /// The smallest batch: each piece of a micro-batch needs a sample.
    #[must_use]
    pub fn least_batch(&self) -> u64 {
        self.transformer.accumulation.saturating_mul(self.transformer.chunks).max(1)
    }

    /// The bytes of the parameters.
    #[must_use]
    pub fn parameter_bytes(&self) -> u64 {
        self.transformer.parameters().saturating_mul(self.transformer.precision.bytes())
    }

    /// The bytes of parameters, gradients and the optimizer's states together, including the second copy: what
    /// training needs with any batch.
    #[must_use]
    pub fn state_bytes(&self) -> u64 {
        let states = self.transformer.optimizer.states() as u64;
        let element = self.transformer.precision.bytes();
        let each = if self.transformer.master_copy && self.transformer.precision == Precision::Half {
            2 * element + 4 * (1 + states)
        } else {
            element * (2 + states)
        };
        self.transformer.parameters().saturating_mul(each)
    }
}

/// A training on a device: everything about a point but the policy.
#[derive(Clone, PartialEq, Debug)]
pub struct Case {
    /// The training.
    pub training: Training,
    /// The device's memory, in bytes.
    pub device_bytes: u64,
    /// The device's memory without the driver's context, in bytes.
    pub usable_bytes: u64,
}
