//! Runs blocks forward and backward, and counts the references to each tensor.

use super::block::{Backward, Block, Operation};
use super::work::Work;
use crate::packing::random::Random;
use crate::workload::Event;
use crate::workload::generators::WorkloadError;
use crate::workload::generators::program::{Program, Tensor};

/// The name of a tensor with references. A copy of the name is not a reference: [`Engine::refer`] adds one,
/// [`Engine::release`] drops one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::workload::generators::models) struct Storage(usize);

/// What happens beside the model's own operations.
#[derive(Clone, Copy, Debug)]
pub(in crate::workload::generators::models) struct Surroundings {
    /// Operations need scratch memory, of sizes drawn with this seed.
    pub(in crate::workload::generators::models) scratch_seed: Option<u64>,
    /// The linear algebra libraries keep a workspace from their first use in a thread on.
    pub(in crate::workload::generators::models) libraries: bool,
    /// Floating-point operations that the device does in a microsecond.
    pub(in crate::workload::generators::models) flop_per_us: u64,
}

/// The workspace that cuBLAS keeps for a thread and stream on a Hopper GPU under PyTorch 2.11, from the first
/// matrix product in that thread on, as in the recordings.
const CUBLAS_BYTES: u64 = 32 << 20;
/// The workspace that cuBLASLt keeps, from the first forward pass of a linear layer with a bias in that thread on.
const CUBLAS_LT_BYTES: u64 = 1 << 20;

/// What the forward pass keeps for the backward pass: the tensors that each operation saved.
pub(in crate::workload::generators::models) type Tape = Vec<Vec<Storage>>;

/// How a block runs forward.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::workload::generators::models) enum Pass {
    /// It keeps what backward needs.
    Keep,
    /// It keeps nothing: under `no_grad`.
    Forget,
    /// It runs a second time, for backward, and keeps what backward needs.
    Again,
}

/// Runs blocks and writes what they allocate and free into a program.
#[derive(Debug)]
pub(in crate::workload::generators::models) struct Engine {
    pub(in crate::workload::generators::models) program: Program,
    pub(in crate::workload::generators::models) work: Work,
    surroundings: Surroundings,
    scratch: Option<Random>,
    storages: Vec<(Option<Tensor>, u32)>,
    unused: Vec<usize>,
    gradients: Vec<Option<Tensor>>,
    /// Whether cuBLAS and cuBLASLt have their workspaces: in the forward thread, and in the backward thread.
    workspaces: [[bool; 2]; 2],
}

impl Engine {
    pub(in crate::workload::generators::models) fn new(surroundings: Surroundings) -> Engine {
        Engine {
            program: Program::default(),
            work: Work::default(),
            surroundings,
            scratch: surroundings.scratch_seed.map(Random::new),
            storages: Vec::new(),
            unused: Vec::new(),
            gradients: Vec::new(),
            workspaces: [[false; 2]; 2],
        }
    }

    /// Allocates a tensor, with one reference.
    pub(in crate::workload::generators::models) fn allocate(&mut self, bytes: u64) -> Result<Storage, WorkloadError> {
        let tensor = self.program.allocate(bytes)?;
        Ok(self.adopt(tensor))
    }

    /// Takes over a tensor that exists, with one reference.
    pub(in crate::workload::generators::models) fn adopt(&mut self, tensor: Tensor) -> Storage {
        let place = self.unused.pop().unwrap_or_else(|| {
            self.storages.push((None, 0));
            self.storages.len() - 1
        });
        self.storages[place] = (Some(tensor), 1);
        Storage(place)
    }

    /// Adds a reference.
    pub(in crate::workload::generators::models) fn refer(&mut self, storage: Storage) -> Storage {
        self.storages[storage.0].1 += 1;
        storage
    }

    /// Drops a reference; the last one frees the tensor.
    pub(in crate::workload::generators::models) fn release(&mut self, storage: Storage) -> Result<(), WorkloadError> {
        let (tensor, references) = &mut self.storages[storage.0];
        *references -= 1;
        if *references == 0 {
            let tensor = tensor.take().expect("a tensor with references is live");
            self.unused.push(storage.0);
            self.program.free(tensor)?;
        }
        Ok(())
    }

    /// Runs a block forward. Takes over one reference to `input` and returns one to the output.
    pub(in crate::workload::generators::models) fn forward(
        &mut self,
        block: &Block,
        input: Storage,
        pass: Pass,
    ) -> Result<(Storage, Tape), WorkloadError> {
        let mut values = vec![input];
        let mut tape = Tape::new();
        for (at, operation) in block.operations.iter().enumerate() {
            self.prepare_library(operation, pass == Pass::Again, true)?;
            let scratch = self.take_scratch(operation)?;
            let output = match operation.bytes {
                Some(bytes) => self.allocate(bytes)?,
                None => self.refer(values[operation.inputs[0]]),
            };
            let mut saved = Vec::new();
            for &bytes in &operation.side_bytes {
                saved.push(self.allocate(bytes)?);
            }
            self.give_back_scratch(scratch)?;
            if pass == Pass::Forget {
                for side in saved.drain(..) {
                    self.release(side)?;
                }
            } else {
                self.save(operation, &values, output, &mut saved);
            }
            tape.push(saved);
            values.push(output);
            for (place, &value) in operation.inputs.iter().enumerate() {
                if block.last_use[value] == Some(at) && !operation.inputs[..place].contains(&value) {
                    self.release(values[value])?;
                }
            }
        }
        let work = block.work();
        match pass {
            Pass::Again => self.work.recomputed += work,
            _ => self.work.forward += work,
        }
        self.launch(work)?;
        Ok((values[values.len() - 1], tape))
    }

    fn save(&mut self, operation: &Operation, values: &[Storage], output: Storage, saved: &mut Vec<Storage>) {
        if operation.keeps_inputs {
            for &input in &operation.inputs {
                saved.push(self.refer(values[input]));
            }
        }
        if operation.keeps_output {
            saved.push(self.refer(output));
        }
    }

    /// Runs a block backward. Takes over one reference to the gradient of its output, and returns one to that of
    /// its input if it is wanted. The block's parameters are numbered from `first_parameter` on.
    pub(in crate::workload::generators::models) fn backward(
        &mut self,
        block: &Block,
        tape: Tape,
        gradient: Storage,
        first_parameter: usize,
        wants_input: bool,
    ) -> Result<Option<Storage>, WorkloadError> {
        let mut gradients: Vec<Option<Storage>> = vec![None; block.values.len()];
        *gradients.last_mut().expect("a block has its input") = Some(gradient);
        let mut parameter = first_parameter + block.parameter_count();
        for (at, (operation, saved)) in block.operations.iter().zip(tape).enumerate().rev() {
            parameter -= operation.parameters.len();
            let Some(incoming) = gradients[at + 1].take() else {
                self.release_all(saved)?;
                continue;
            };
            if operation.backward == Backward::Passes {
                for &input in &operation.inputs {
                    let same = self.refer(incoming);
                    self.sum(&mut gradients[input], same)?;
                }
                self.release(incoming)?;
                self.release_all(saved)?;
                continue;
            }
            self.prepare_library(operation, true, false)?;
            let scratch = self.take_scratch(operation)?;
            let mut made = Vec::new();
            if operation.backward == Backward::Computes {
                for &input in operation.inputs.iter().filter(|&&input| input > 0 || wants_input) {
                    made.push((input, self.allocate(block.values[input])?));
                }
            }
            let mut of_parameters = Vec::new();
            for &bytes in &operation.parameters {
                of_parameters.push(self.program.allocate(bytes)?);
            }
            self.give_back_scratch(scratch)?;
            self.release(incoming)?;
            self.release_all(saved)?;
            for (input, gradient) in made {
                self.sum(&mut gradients[input], gradient)?;
            }
            for (place, gradient) in of_parameters.into_iter().enumerate() {
                self.accumulate(parameter + place, gradient)?;
            }
        }
        let work = 2 * block.work();
        self.work.backward += work;
        self.launch(work)?;
        Ok(gradients[0].take())
    }

    fn release_all(&mut self, storages: Vec<Storage>) -> Result<(), WorkloadError> {
        storages.into_iter().try_for_each(|storage| self.release(storage))
    }

    /// Adds a gradient to that of a value, in place in the one that nothing else refers to.
    fn sum(&mut self, so_far: &mut Option<Storage>, new: Storage) -> Result<(), WorkloadError> {
        let Some(old) = *so_far else {
            *so_far = Some(new);
            return Ok(());
        };
        let is_alone = |engine: &Engine, storage: Storage| engine.storages[storage.0].1 == 1;
        if is_alone(self, old) {
            return self.release(new);
        }
        if is_alone(self, new) {
            *so_far = Some(new);
            return self.release(old);
        }
        let bytes = self.storages[old.0].0.as_ref().map_or(0, Tensor::bytes);
        *so_far = Some(self.allocate(bytes)?);
        self.release(old)?;
        self.release(new)
    }

    /// Assigns a parameter's first gradient; adds a later one in place.
    fn accumulate(&mut self, parameter: usize, gradient: Tensor) -> Result<(), WorkloadError> {
        if self.gradients.len() <= parameter {
            self.gradients.resize_with(parameter + 1, || None);
        }
        if self.gradients[parameter].is_some() {
            return self.program.free(gradient);
        }
        self.gradients[parameter] = Some(gradient);
        Ok(())
    }

    /// `zero_grad(set_to_none=True)`.
    pub(in crate::workload::generators::models) fn drop_gradients(&mut self) -> Result<(), WorkloadError> {
        for gradient in self.gradients.drain(..).flatten() {
            self.program.free(gradient)?;
        }
        Ok(())
    }

    fn take_scratch(&mut self, operation: &Operation) -> Result<Option<Tensor>, WorkloadError> {
        let most = operation.scratch_bytes;
        match &mut self.scratch {
            Some(random) if most >= 512 => {
                let bytes = 512 + ((u128::from(random.bits()) * u128::from(most - 511)) >> 64) as u64;
                self.program.allocate(bytes).map(Some)
            }
            _ => Ok(None),
        }
    }

    fn give_back_scratch(&mut self, scratch: Option<Tensor>) -> Result<(), WorkloadError> {
        scratch.map_or(Ok(()), |tensor| self.program.free(tensor))
    }

    /// The workspaces that cuBLAS allocates when a thread first uses it, and keeps.
    fn prepare_library(
        &mut self,
        operation: &Operation,
        in_backward_thread: bool,
        is_forward: bool,
    ) -> Result<(), WorkloadError> {
        if !self.surroundings.libraries || !operation.is_linear {
            return Ok(());
        }
        let has = &mut self.workspaces[usize::from(in_backward_thread)];
        if !std::mem::replace(&mut has[0], true) {
            self.program.allocate(CUBLAS_BYTES)?;
        }
        if is_forward && !std::mem::replace(&mut has[1], true) {
            self.program.allocate(CUBLAS_LT_BYTES)?;
        }
        Ok(())
    }

    pub(in crate::workload::generators::models) fn launch(&mut self, work: u128) -> Result<(), WorkloadError> {
        let us = work / u128::from(self.surroundings.flop_per_us.max(1));
        self.program.launch(u64::try_from(us).unwrap_or(u64::MAX))
    }

    /// The host waits for the device, to read the loss.
    pub(in crate::workload::generators::models) fn wait(&mut self) -> Result<(), WorkloadError> {
        self.program.push(Event::Synchronize { stream: 0 })
    }
}
