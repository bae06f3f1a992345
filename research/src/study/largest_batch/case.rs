//! A way of training a model on a device.

use crate::workload::generators::transformer::{Precision, Transformer};

/// How weights, gradients and activations are stored, and what the optimizer keeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Numbers {
    /// Two bytes everywhere.
    Half,
    /// Two bytes, with a second copy of the weights and with optimizer states of four bytes.
    HalfWithMaster,
    /// Four bytes everywhere.
    Fp32,
}

impl Numbers {
    /// All of these.
    pub const ALL: [Numbers; 3] = [Numbers::Half, Numbers::HalfWithMaster, Numbers::Fp32];

    /// Its name: lower case, words joined by hyphens.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Numbers::Half => "half",
            Numbers::HalfWithMaster => "half-master",
            Numbers::Fp32 => "fp32",
        }
    }

    pub(super) const fn precision(self) -> Precision {
        match self {
            Numbers::Half | Numbers::HalfWithMaster => Precision::Half,
            Numbers::Fp32 => Precision::Fp32,
        }
    }
}

/// A way of training on a device: everything about a point but the policy.
#[derive(Clone, PartialEq, Debug)]
pub struct Case {
    /// The model's name.
    pub model: String,
    /// The model, with one sample per micro-batch.
    pub transformer: Transformer,
    /// How numbers are stored.
    pub numbers: Numbers,
    /// The device's memory, in bytes.
    pub device_bytes: u64,
    /// The device's memory without the driver's context, in bytes.
    pub usable_bytes: u64,
}

impl Case {
    /// The model with this batch.
    #[must_use]
    pub fn with_batch(&self, batch: u64) -> Transformer {
        Transformer { batch, ..self.transformer.clone() }
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
        let each = match self.numbers {
            Numbers::Half | Numbers::Fp32 => element * (2 + states),
            Numbers::HalfWithMaster => 2 * element + 4 * (1 + states),
        };
        self.transformer.parameters().saturating_mul(each)
    }
}
