//! How much a model computes.

/// The arithmetic of a step, in floating-point operations.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Work {
    /// The forward pass, once.
    pub forward: u128,
    /// The backward pass: two products for each one of the forward pass, for the gradients of its two operands.
    pub backward: u128,
    /// Forward work that is repeated because its results were not kept.
    pub recomputed: u128,
}

impl Work {
    /// Repeated work as a fraction of the necessary work.
    #[must_use]
    pub fn overhead(&self) -> f64 {
        self.recomputed as f64 / (self.forward + self.backward).max(1) as f64
    }
}
