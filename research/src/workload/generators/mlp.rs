//! A deep perceptron: linear layers and rectifiers, like the program behind the recording `deep_mlp` (scenario C6).
//!
//! That program adds up the outputs, runs the backward pass, and never updates. With 20 layers of width 4,096 and 64 samples,
//! its peaks match to the byte: both `requested_bytes.all.peak` in the recording's stats after each step and, rounded to 512,
//! `allocated_bytes.all.peak`. They are 2,755,264,520 and 2,755,265,536 without checkpointing, and 2,756,313,096 and
//! 2,756,314,112 with it. Checkpointing does not help this program. At the end of the backward pass, where the peak is, only
//! one layer's activations are left; and with larger batches, a layer's input is what the rectifier before it keeps anyway.
//! The additional 1 MiB is cuBLASLt's workspace for the thread that recomputes.

use super::autograd::{Backward, Block, Engine, Operation, Part, Plan, Recompute, Surroundings};
use super::options::{self, Done, Generator, Key, Trained, WorkloadError, bytes_of, within};
use super::training::{BatchBytes, Optimizer, Training, Updating, optimizer};
use crate::workload::Workload;

/// A perceptron and how it is trained. The default is the recorded program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mlp {
    /// The width of a layer.
    pub width: u64,
    /// The number of layers.
    pub depth: u64,
    /// The number of samples per step.
    pub batch: u64,
    /// Whether each layer keeps only its input and is recomputed.
    pub checkpointing: bool,
    /// The optimizer that updates the weights.
    pub optimizer: Optimizer,
    /// Whether the linear algebra libraries keep workspaces.
    pub libraries: bool,
    /// Whether gradients are freed after each step.
    pub drops_gradients: bool,
}

impl Default for Mlp {
    fn default() -> Mlp {
        Mlp {
            width: 4096,
            depth: 20,
            batch: 64,
            checkpointing: false,
            optimizer: Optimizer::Sgd,
            libraries: true,
            drops_gradients: false,
        }
    }
}

/// The size of a number, in bytes.
const ELEMENT_BYTES: u64 = 4;

impl Mlp {
    /// Returns the requests of this many training steps.
    ///
    /// # Errors
    /// Returns [`WorkloadError`] if the value of an option is not allowed, if a size is too large, or if there are too many
    /// events.
    pub fn workload(&self, steps: u64) -> Result<Workload, WorkloadError> {
        within("steps", steps, 1, 1_000_000)?;
        within("width", self.width, 1, 1 << 24)?;
        within("depth", self.depth, 1, 1 << 20)?;
        within("batch", self.batch, 1, 1 << 32)?;
        let activation = bytes_of("an activation", &[self.batch, self.width, ELEMENT_BYTES])?;
        let plan = self.plan(activation)?;
        let surroundings = Surroundings { scratch_seed: None, libraries: self.libraries, flop_per_us: 50_000_000 };
        let updating = Updating {
            optimizer: self.optimizer,
            element_bytes: ELEMENT_BYTES,
            has_master_copy: false,
            copies_states: false,
            drops_gradients: self.drops_gradients,
            is_mixed: false,
        };
        let mut training = Training::new(Engine::new(surroundings), plan.parameters(), updating)?;
        for _ in 0..steps {
            training.engine.program.begin_step();
            training.step(&[(&plan, BatchBytes { input: activation, targets: 0 })], None)?;
        }
        let says = format!("{self:?}, {steps} steps");
        Ok(training.finish("mlp", says))
    }

    fn plan(&self, activation: u64) -> Result<Plan, WorkloadError> {
        let weight = bytes_of("a weight", &[self.width, self.width, ELEMENT_BYTES])?;
        let mut layer = Block::new(activation);
        let parameters = [weight, self.width * ELEMENT_BYTES];
        let work = [2, self.batch, self.width, self.width];
        let linear = layer.push(Operation::linear(0, activation, &parameters, &work));
        layer.push(Operation::new(&[linear], activation).keeps_output());
        let (count, repeats, recompute) = match self.checkpointing {
            false => (1, self.depth as usize, Recompute::No),
            true => (self.depth as usize, 1, Recompute::Whole),
        };
        let mut plan = Plan { blocks: vec![layer], parts: vec![Part { block: 0, repeats, recompute, shares: None }; count] };
        let mut sum = Block::new(activation);
        // The gradient of a sum is one value, expanded to many.
        sum.push(Operation::new(&[0], ELEMENT_BYTES).backward(Backward::Passes));
        plan.push(sum);
        Ok(plan)
    }
}

impl Generator for Trained<Mlp> {
    fn keys(&self) -> Vec<Key> {
        vec!["width", "depth", "batch", "checkpointing", "optimizer", "libraries", "drops_gradients", "steps", "seed"]
    }

    fn set(&mut self, key: Key, value: &str) -> Done {
        match key {
            "width" => self.model.width = options::number(key, value)?,
            "depth" => self.model.depth = options::number(key, value)?,
            "batch" => self.model.batch = options::number(key, value)?,
            "checkpointing" => self.model.checkpointing = options::switch(key, value)?,
            "optimizer" => self.model.optimizer = optimizer(key, value)?,
            "libraries" => self.model.libraries = options::switch(key, value)?,
            "drops_gradients" => self.model.drops_gradients = options::switch(key, value)?,
            "steps" => self.steps = options::number(key, value)?,
            _ => options::unused_seed(key, value)?,
        }
        Ok(())
    }

    fn make(&self) -> Result<Workload, WorkloadError> {
        self.model.workload(self.steps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `requested_bytes.all.peak` and `allocated_bytes.all.peak` for the steps of `deep_mlp.default`, in the recordings'
    /// steps.jsonl.
    const RECORDED: [(bool, u64, u64); 2] = [(false, 2_755_264_520, 2_755_265_536), (true, 2_756_313_096, 2_756_314_112)];

    #[test]
    fn the_peaks_are_the_recorded_ones() {
        for (checkpointing, requested, allocated) in RECORDED {
            let workload = Mlp { checkpointing, ..Mlp::default() }.workload(1).unwrap();
            assert_eq!(workload.check(), Ok(()));
            assert_eq!((workload.load_bytes(1), workload.load_bytes(512)), (requested, allocated), "{checkpointing}");
        }
    }

    /// A layer's input is what the rectifier before it keeps anyway.
    #[test]
    fn checkpointing_every_layer_saves_nothing_here() {
        for batch in [64, 4096, 65_536] {
            let load = |checkpointing| Mlp { checkpointing, batch, ..Mlp::default() }.workload(1).unwrap().load_bytes(1);
            assert!(load(true) >= load(false), "{batch}");
        }
    }

    #[test]
    fn bad_options_are_errors() {
        let refused = |mlp: Mlp| mlp.workload(1).unwrap_err().to_string();
        assert_eq!(refused(Mlp { depth: 0, ..Mlp::default() }), "depth is 0; allowed: 1 to 1048576");
        let wide = Mlp { batch: 1 << 32, width: 1 << 24, ..Mlp::default() };
        assert_eq!(wide.workload(1), Err(WorkloadError::TooLarge { what: "an activation" }));
    }
}
