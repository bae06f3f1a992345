//! A block on its own, without a model around it: what its operations allocate and free.

use super::block::Block;
use super::engine::{Engine, Pass, Surroundings};
use crate::workload::Workload;
use crate::workload::generators::WorkloadError;

impl Block {
    /// The requests of this many passes forward and backward. Gradients of parameters live to the end, those of the
    /// input do not.
    ///
    /// # Errors
    /// [`WorkloadError`] if a size is too large, or there are too many events.
    ///
    /// # Panics
    /// If the block has no operations.
    pub fn trained(&self, passes: usize) -> Result<Workload, WorkloadError> {
        let mut engine = engine();
        for _ in 0..passes {
            let input = engine.allocate(self.input_bytes())?;
            let (output, tape) = engine.forward(self, input, Pass::Keep)?;
            engine.release(output)?;
            let gradient = engine.allocate(self.output_bytes())?;
            if let Some(gradient) = engine.backward(self, tape, gradient, 0, true)? {
                engine.release(gradient)?;
            }
        }
        engine.drop_gradients()?;
        Ok(engine.program.finish("block", "A block of operations, forward and backward".into()))
    }

    /// The requests of this many equal blocks one after the other, forward only.
    ///
    /// # Errors
    /// As for [`Block::trained`].
    pub fn forward_only(&self, blocks: usize) -> Result<Workload, WorkloadError> {
        let mut engine = engine();
        let mut value = engine.allocate(self.input_bytes())?;
        for _ in 0..blocks {
            value = engine.forward(self, value, Pass::Forget)?.0;
        }
        engine.release(value)?;
        Ok(engine.program.finish("block", "Blocks of operations, forward only".into()))
    }
}

/// An engine that allocates nothing but what its blocks need.
fn engine() -> Engine {
    Engine::new(Surroundings { scratch_seed: None, libraries: false, flop_per_us: 1 })
}
