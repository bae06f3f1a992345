//! The lifetimes of tensors under PyTorch's autograd: which operation keeps which tensors, for how long, and what its
//! backward pass allocates.
//!
//! A model is a sequence of [`Block`]s of [`Operation`]s. An engine runs them: a tensor lives as long as a variable or an
//! operation's saved tensors refer to it. The rules are taken from the notes on activation checkpointing, nano-batching and
//! computation graphs behind the scenarios E7 to E9, and from PyTorch 2.11's `torch/csrc/autograd`:
//!
//! - A tensor that an operation saves for its backward pass is freed when that pass has run, operation by operation.
//! - Views, `detach` and in-place operations have no memory of their own.
//! - A parameter's first gradient is assigned; later ones are added in place and freed. The gradients of a value that is used
//!   twice are added in place, in whichever of the two has no other references.
//! - The backward pass allocates the gradient of an operation's input, then those of its parameters, and then frees the
//!   incoming gradient, as in the recorded programs.
//! - Without a backward pass, an operation's input lives until its output exists.
//!
//! The engine counts the references to each tensor. It runs a block on its own ([`Work`]), or an entire model (`Plan`) with
//! parts that run one after another, some of which are recomputed in the backward pass.

use super::WorkloadError;
use super::options::{Program, Tensor};
use crate::packing::random::Random;
use crate::workload::{Event, Workload};

/// A value in a block: 0 is the block's input, and `i + 1` is the output of operation `i`. The last operation's output is the
/// block's output.
pub type Value = usize;

/// The way in which an operation's backward pass handles the incoming gradient.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Backward {
    /// It computes a new gradient for each input.
    Computes,
    /// It passes the same gradient on to each input, as a view or a sum does.
    Passes,
    /// It stops the gradient: `detach`, or an input without a gradient, such as an embedding's tokens. Parameters still
    /// receive their gradients.
    Stops,
}

/// One operation in a model.
#[derive(Clone, Debug)]
pub struct Operation {
    inputs: Vec<Value>,
    /// The size of the output; `None` if it shares the first input's memory.
    pub(super) bytes: Option<u64>,
    keeps_inputs: bool,
    keeps_output: bool,
    /// Tensors that are allocated in addition to the output and kept for the backward pass: statistics, masks.
    side_bytes: Vec<u64>,
    backward: Backward,
    /// The sizes of the parameters.
    pub(super) parameters: Vec<u64>,
    /// The maximum scratch memory that the operation needs while it runs, forward and backward, if lifetimes are mixed.
    scratch_bytes: u64,
    /// The number of floating-point operations in the forward pass.
    pub(super) work: u64,
    /// Whether it runs in the linear algebra library, which has a workspace.
    is_linear: bool,
}

impl Operation {
    /// Creates an operation that keeps nothing and has its own output.
    #[must_use]
    pub fn new(inputs: &[Value], bytes: u64) -> Operation {
        Operation {
            inputs: inputs.to_vec(),
            bytes: Some(bytes),
            keeps_inputs: false,
            keeps_output: false,
            side_bytes: Vec::new(),
            backward: Backward::Computes,
            parameters: Vec::new(),
            scratch_bytes: 0,
            work: 0,
            is_linear: false,
        }
    }

    /// Creates an operation whose output shares its input's memory.
    #[must_use]
    pub fn in_place(input: Value) -> Operation {
        Operation { bytes: None, ..Operation::new(&[input], 0) }
    }

    /// Creates a sum that overwrites its first operand.
    #[must_use]
    pub fn sum_in_place(first: Value, second: Value) -> Operation {
        Operation { bytes: None, ..Operation::new(&[first, second], 0).backward(Backward::Passes) }
    }

    /// States that its backward pass needs its inputs.
    #[must_use]
    pub fn keeps_inputs(self) -> Operation {
        Operation { keeps_inputs: true, ..self }
    }

    /// States that its backward pass needs its output.
    #[must_use]
    pub fn keeps_output(self) -> Operation {
        Operation { keeps_output: true, ..self }
    }

    /// States that it allocates this tensor in addition to its output and that its backward pass needs the tensor:
    /// statistics, masks.
    #[must_use]
    pub fn side(mut self, bytes: u64) -> Operation {
        self.side_bytes.push(bytes);
        self
    }

    /// Sets what its backward pass does with the incoming gradient.
    #[must_use]
    pub fn backward(self, backward: Backward) -> Operation {
        Operation { backward, ..self }
    }

    /// Sets the sizes of its parameters.
    #[must_use]
    pub fn parameters(self, bytes: &[u64]) -> Operation {
        Operation { parameters: bytes.to_vec(), ..self }
    }

    /// Sets the scratch memory that it needs while it runs, forward and backward, if lifetimes are mixed.
    #[must_use]
    pub fn scratch(self, scratch_bytes: u64) -> Operation {
        Operation { scratch_bytes, ..self }
    }

    /// Creates a linear layer with a bias, which keeps its input. Its parameters are the weight and the bias.
    #[must_use]
    pub fn linear(input: Value, bytes: u64, parameters: &[u64], work: &[u64]) -> Operation {
        let operation = Operation { is_linear: true, ..Operation::new(&[input], bytes) };
        operation.keeps_inputs().parameters(parameters).work(work)
    }

    /// Sets the floating-point operations in its forward pass: the product of the factors.
    #[must_use]
    pub fn work(self, factors: &[u64]) -> Operation {
        Operation { work: factors.iter().fold(1, |work, &factor| work.saturating_mul(factor)), ..self }
    }
}

/// Operations, and the last use of each value.
#[derive(Clone, Debug)]
pub struct Block {
    operations: Vec<Operation>,
    /// The size of each value; values that share memory have the same size.
    values: Vec<u64>,
    /// The operation that uses each value last, if any.
    last_use: Vec<Option<usize>>,
}

impl Block {
    /// Creates an empty block with an input of this size.
    #[must_use]
    pub fn new(input_bytes: u64) -> Block {
        Block { operations: Vec::new(), values: vec![input_bytes], last_use: vec![None] }
    }

    /// Appends an operation. Returns its output.
    ///
    /// # Panics
    /// Panics if one of its inputs is not a value in this block.
    pub fn push(&mut self, operation: Operation) -> Value {
        for &input in &operation.inputs {
            self.last_use[input] = Some(self.operations.len());
        }
        self.values.push(operation.bytes.unwrap_or(self.values[operation.inputs[0]]));
        self.last_use.push(None);
        self.operations.push(operation);
        self.operations.len()
    }

    /// Returns the sizes of the parameters, in operation order.
    pub fn parameters(&self) -> impl Iterator<Item = u64> {
        self.operations.iter().flat_map(|operation| operation.parameters.iter().copied())
    }

    /// Returns the number of its parameters.
    #[must_use]
    pub fn parameter_count(&self) -> usize {
        self.operations.iter().map(|operation| operation.parameters.len()).sum()
    }

    fn input_bytes(&self) -> u64 {
        self.values[0]
    }

    fn output_bytes(&self) -> u64 {
        *self.values.last().expect("every block has an input")
    }

    pub(super) fn work(&self) -> u128 {
        self.operations.iter().map(|operation| u128::from(operation.work)).sum()
    }
}

/// The name of a reference-counted tensor. A copy of the name is not a reference: [`Engine::refer`] adds one,
/// [`Engine::release`] drops one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Storage(usize);

/// The activity in addition to the model's own operations.
#[derive(Clone, Copy, Debug)]
pub(super) struct Surroundings {
    /// If set, operations need scratch memory, with sizes drawn from this seed.
    pub(super) scratch_seed: Option<u64>,
    /// Whether the linear algebra libraries keep a workspace after their first use in a thread.
    pub(super) libraries: bool,
    /// The number of floating-point operations that the device performs in a microsecond.
    pub(super) flop_per_us: u64,
}

/// The workspace that cuBLAS keeps for a thread and stream on a Hopper GPU under PyTorch 2.11, from the first matrix product in
/// that thread, as in the recordings.
const CUBLAS_BYTES: u64 = 32 << 20;
/// The workspace that cuBLASLt keeps, from the first forward pass through a linear layer with a bias in that thread.
const CUBLAS_LT_BYTES: u64 = 1 << 20;

/// The memory that the forward pass keeps for the backward pass: the tensors that each operation saved.
type Tape = Vec<Vec<Storage>>;

/// The way in which a block runs forward.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Pass {
    /// It keeps what the backward pass needs.
    Keep,
    /// It keeps nothing, as under `no_grad`.
    Forget,
    /// It runs a second time, for the backward pass, and keeps what that pass needs.
    Again,
}

/// Runs blocks and writes what they allocate and free into a program.
#[derive(Debug)]
pub(super) struct Engine {
    pub(super) program: Program,
    pub(super) work: Work,
    surroundings: Surroundings,
    scratch: Option<Random>,
    storages: Vec<(Option<Tensor>, u32)>,
    unused: Vec<usize>,
    gradients: Vec<Option<Tensor>>,
    /// Whether cuBLAS and cuBLASLt have their workspaces: in the forward thread, and in the backward thread.
    workspaces: [[bool; 2]; 2],
}

impl Engine {
    pub(super) fn new(surroundings: Surroundings) -> Engine {
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
    pub(super) fn allocate(&mut self, bytes: u64) -> Result<Storage, WorkloadError> {
        let tensor = self.program.allocate(bytes)?;
        Ok(self.adopt(tensor))
    }

    /// Takes over an existing tensor, with one reference.
    pub(super) fn adopt(&mut self, tensor: Tensor) -> Storage {
        let place = self.unused.pop().unwrap_or_else(|| {
            self.storages.push((None, 0));
            self.storages.len() - 1
        });
        self.storages[place] = (Some(tensor), 1);
        Storage(place)
    }

    /// Adds a reference.
    pub(super) fn refer(&mut self, storage: Storage) -> Storage {
        self.storages[storage.0].1 += 1;
        storage
    }

    /// Drops a reference; the last one frees the tensor.
    pub(super) fn release(&mut self, storage: Storage) -> Result<(), WorkloadError> {
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
    fn forward(&mut self, block: &Block, input: Storage, pass: Pass) -> Result<(Storage, Tape), WorkloadError> {
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

    /// Runs a block backward. Takes over one reference to the gradient of its output and, if the gradient of its input is
    /// wanted, returns one reference to it. The block's parameters are numbered starting from `first_parameter`.
    fn backward(
        &mut self,
        block: &Block,
        tape: Tape,
        gradient: Storage,
        first_parameter: usize,
        wants_input: bool,
    ) -> Result<Option<Storage>, WorkloadError> {
        let mut gradients: Vec<Option<Storage>> = vec![None; block.values.len()];
        *gradients.last_mut().expect("every block has an input") = Some(gradient);
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

    /// Adds a gradient to a value's gradient, in place in whichever of the two has no other references.
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

    /// Frees all gradients, like `zero_grad(set_to_none=True)`.
    pub(super) fn drop_gradients(&mut self) -> Result<(), WorkloadError> {
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

    /// Allocates the workspaces that cuBLAS allocates when a thread first uses it and then keeps.
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

    pub(super) fn launch(&mut self, work: u128) -> Result<(), WorkloadError> {
        let us = work / u128::from(self.surroundings.flop_per_us.max(1));
        self.program.launch(u64::try_from(us).unwrap_or(u64::MAX))
    }

    /// Makes the host wait for the device in order to read the loss.
    pub(super) fn wait(&mut self) -> Result<(), WorkloadError> {
        self.program.push(Event::Synchronize { stream: 0 })
    }
}

/// The arithmetic of a step, in floating-point operations.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Work {
    /// The forward pass, once.
    pub forward: u128,
    /// The backward pass: two products for each one in the forward pass, for the gradients of its two operands.
    pub backward: u128,
    /// Forward work that is repeated because its results were not kept.
    pub recomputed: u128,
}

impl Work {
    /// Returns the repeated work as a fraction of the necessary work.
    #[must_use]
    pub fn overhead(&self) -> f64 {
        self.recomputed as f64 / (self.forward + self.backward).max(1) as f64
    }
}

/// Whether a part's results are kept for the backward pass.
#[derive(Clone, Debug)]
pub(super) enum Recompute {
    /// The results are kept.
    No,
    /// Only the input is kept; the backward pass runs the part forward again.
    Whole,
    /// Like `Whole`, but in pieces: the forward and backward passes run piece by piece, so that only one piece's results are
    /// live at a time. Contains the part's block for each piece of the batch.
    Pieces(Vec<Block>),
}

/// A number of equal blocks in a row, each with its own parameters.
#[derive(Clone, Debug)]
pub(super) struct Part {
    /// The block, as an index into [`Plan::blocks`].
    pub(super) block: usize,
    /// The number of times that it runs in a row.
    pub(super) repeats: usize,
    /// Whether its results are kept.
    pub(super) recompute: Recompute,
    /// If set, the part has no parameters of its own but uses those starting from this number, as a head that shares the
    /// embedding's weights does.
    pub(super) shares: Option<usize>,
}

/// A model for one batch size. Parameters are numbered in part order.
#[derive(Clone, Debug, Default)]
pub(super) struct Plan {
    /// The kinds of blocks.
    pub(super) blocks: Vec<Block>,
    /// The parts, in the order in which they run. The last part computes the loss.
    pub(super) parts: Vec<Part>,
}

/// The tensors that a part's forward pass leaves behind.
enum Left {
    Tapes(Vec<Tape>),
    Input(Storage),
}

impl Plan {
    /// Appends a part with its own block.
    pub(super) fn push(&mut self, block: Block) {
        self.blocks.push(block);
        self.parts.push(Part { block: self.blocks.len() - 1, repeats: 1, recompute: Recompute::No, shares: None });
    }

    /// Returns the number of parameters that belong to the part itself.
    fn own_parameters(&self, part: &Part) -> usize {
        if part.shares.is_some() { 0 } else { part.repeats * self.blocks[part.block].parameter_count() }
    }

    /// Returns the sizes of all parameters.
    pub(super) fn parameters(&self) -> impl Iterator<Item = u64> {
        let of_part = |part: &Part| (0..part.repeats).flat_map(|_| self.blocks[part.block].parameters()).collect::<Vec<_>>();
        self.parts.iter().filter(|part| part.shares.is_none()).flat_map(of_part)
    }

    /// Runs the forward and backward passes. Takes over one reference to `input`; the loss is freed at the end.
    pub(super) fn train(&self, engine: &mut Engine, input: Storage) -> Result<(), WorkloadError> {
        let mut left = Vec::new();
        let mut value = input;
        for part in &self.parts {
            let (output, of_part) = self.part_forward(engine, part, value)?;
            value = output;
            left.push(of_part);
        }
        let last = &self.blocks[self.parts.last().map_or(0, |part| part.block)];
        // The caller of `backward` holds the first gradient until `backward` returns.
        let root = engine.allocate(last.output_bytes())?;
        let mut gradient = Some(engine.refer(root));
        let mut parameter = self.parts.iter().map(|part| self.own_parameters(part)).sum();
        for (at, (part, of_part)) in self.parts.iter().zip(left).enumerate().rev() {
            parameter -= self.own_parameters(part);
            let incoming = gradient.take().expect("only the first part may stop the gradient");
            let first = part.shares.unwrap_or(parameter);
            gradient = self.part_backward(engine, part, of_part, incoming, first, at > 0)?;
        }
        if let Some(unused) = gradient {
            engine.release(unused)?;
        }
        engine.release(root)?;
        engine.release(value)
    }

    /// Runs only the forward pass, keeping nothing. Takes over one reference to `input` and returns one to the output.
    pub(super) fn infer(&self, engine: &mut Engine, input: Storage) -> Result<Storage, WorkloadError> {
        let mut value = input;
        for part in &self.parts {
            for _ in 0..part.repeats {
                value = engine.forward(&self.blocks[part.block], value, Pass::Forget)?.0;
            }
        }
        Ok(value)
    }

    fn part_forward(&self, engine: &mut Engine, part: &Part, input: Storage) -> Result<(Storage, Left), WorkloadError> {
        let block = &self.blocks[part.block];
        let mut value = input;
        match &part.recompute {
            Recompute::No => {
                let mut tapes = Vec::new();
                for _ in 0..part.repeats {
                    let (output, tape) = engine.forward(block, value, Pass::Keep)?;
                    value = output;
                    tapes.push(tape);
                }
                Ok((value, Left::Tapes(tapes)))
            }
            Recompute::Whole => {
                let kept = engine.refer(input);
                for _ in 0..part.repeats {
                    value = engine.forward(block, value, Pass::Forget)?.0;
                }
                Ok((value, Left::Input(kept)))
            }
            Recompute::Pieces(pieces) => {
                let whole = engine.allocate(block.output_bytes())?;
                for piece in pieces {
                    // A piece of the input is a view of it; the piece's output is copied into the full output.
                    let view = engine.refer(input);
                    let output = engine.forward(piece, view, Pass::Forget)?.0;
                    engine.release(output)?;
                }
                Ok((whole, Left::Input(input)))
            }
        }
    }

    fn part_backward(
        &self,
        engine: &mut Engine,
        part: &Part,
        left: Left,
        gradient: Storage,
        first_parameter: usize,
        wants_input: bool,
    ) -> Result<Option<Storage>, WorkloadError> {
        let block = &self.blocks[part.block];
        let tapes = match (left, &part.recompute) {
            (Left::Tapes(tapes), _) => tapes,
            (Left::Input(input), Recompute::Pieces(pieces)) => {
                return pieces_backward(engine, (block, pieces), input, gradient, first_parameter);
            }
            (Left::Input(input), _) => {
                let mut tapes = Vec::new();
                let mut value = input;
                for _ in 0..part.repeats {
                    let (output, tape) = engine.forward(block, value, Pass::Again)?;
                    value = output;
                    tapes.push(tape);
                }
                // This output is not needed again.
                engine.release(value)?;
                tapes
            }
        };
        let mut gradient = Some(gradient);
        for (at, tape) in tapes.into_iter().enumerate().rev() {
            let incoming = gradient.take().expect("every inner block passes its gradient on");
            let first = first_parameter + at * block.parameter_count();
            gradient = engine.backward(block, tape, incoming, first, wants_input || at > 0)?;
        }
        Ok(gradient)
    }
}

/// Runs the backward pass in pieces: each piece runs forward and backward before the next one, and its gradient is copied
/// into the full input's gradient.
fn pieces_backward(
    engine: &mut Engine,
    (block, pieces): (&Block, &[Block]),
    input: Storage,
    gradient: Storage,
    first_parameter: usize,
) -> Result<Option<Storage>, WorkloadError> {
    let whole = engine.allocate(block.input_bytes())?;
    for piece in pieces {
        let view = engine.refer(input);
        let (output, tape) = engine.forward(piece, view, Pass::Again)?;
        engine.release(output)?;
        let incoming = engine.refer(gradient);
        if let Some(of_piece) = engine.backward(piece, tape, incoming, first_parameter, true)? {
            engine.release(of_piece)?;
        }
    }
    engine.release(input)?;
    engine.release(gradient)?;
    Ok(Some(whole))
}

impl Block {
    /// Returns the requests of this many forward and backward passes. Gradients of parameters live until the end; gradients
    /// of the input do not.
    ///
    /// # Errors
    /// Returns [`WorkloadError`] if a size is too large, or if there are too many events.
    ///
    /// # Panics
    /// Panics if the block has no operations.
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

    /// Returns the requests of this many equal blocks, one after another, forward only.
    ///
    /// # Errors
    /// Fails in the same cases as [`Block::trained`].
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

/// Creates an engine that allocates only what its blocks need.
fn engine() -> Engine {
    Engine::new(Surroundings { scratch_seed: None, libraries: false, flop_per_us: 1 })
}

#[cfg(test)]
mod tests {
    //! Contains one test for each rule, on the allocations and frees of a small model.

    use super::*;

    /// Returns an engine's allocations and frees: `+size` and `-size`, in order.
    fn story(engine: Engine) -> String {
        let mut sizes = Vec::new();
        let mut story = Vec::new();
        for event in engine.program.finish("", String::new()).events {
            match event {
                Event::Allocate { bytes, .. } => {
                    sizes.push(bytes);
                    story.push(format!("+{bytes}"));
                }
                Event::Free { buffer } => story.push(format!("-{}", sizes[buffer as usize])),
                _ => {}
            }
        }
        story.join(" ")
    }

    /// Returns an input of 1 byte, then operations with outputs of different sizes.
    fn block(operations: Vec<Operation>) -> Block {
        let mut block = Block::new(1);
        for operation in operations {
            block.push(operation);
        }
        block
    }

    /// Returns the allocations and frees of one block, run forward and backward; the gradient of the input also has 1 byte.
    fn run(block: &Block) -> String {
        let mut engine = engine();
        let input = engine.allocate(1).unwrap();
        let (output, tape) = engine.forward(block, input, Pass::Keep).unwrap();
        engine.release(output).unwrap();
        let gradient = engine.allocate(block.output_bytes()).unwrap();
        if let Some(gradient) = engine.backward(block, tape, gradient, 0, true).unwrap() {
            engine.release(gradient).unwrap();
        }
        story(engine)
    }

    #[test]
    fn what_an_operation_saves_lives_until_its_backward_ran() {
        // The first operation keeps its input (1), the second keeps nothing, and the third keeps its input (20).
        let block = block(vec![
            Operation::new(&[0], 10).keeps_inputs(),
            Operation::new(&[1], 20),
            Operation::new(&[2], 30).keeps_inputs(),
        ]);
        let forward = "+1 +10 +20 -10 +30 -30";
        let backward = "+30 +20 -30 -20 +10 -20 +1 -10 -1 -1";
        assert_eq!(run(&block), format!("{forward} {backward}"));
    }

    #[test]
    fn softmax_saves_its_output_and_not_its_input() {
        let block = block(vec![Operation::new(&[0], 10), Operation::new(&[1], 11).keeps_output(), Operation::new(&[2], 5)]);
        // The input (10) is freed once the output (11) exists; the output is freed in softmax's backward pass.
        assert!(run(&block).starts_with("+1 +10 -1 +11 -10 +5 -5 "), "{}", run(&block));
        assert!(run(&block).contains("+10 -11 -11 "), "{}", run(&block));
    }

    #[test]
    fn detach_allocates_nothing_and_stops_the_gradient() {
        let detached = block(vec![
            Operation::new(&[0], 10).keeps_inputs(),
            Operation::in_place(1).backward(Backward::Stops),
            Operation::new(&[2], 30).keeps_inputs(),
        ]);
        // The operation shares the first operation's memory. The first operation's gradient is not computed, but what it
        // saved is freed nevertheless.
        assert_eq!(run(&detached), "+1 +10 +30 -30 +30 +10 -30 -10 -10 -1");
    }

    #[test]
    fn the_first_gradient_is_assigned_and_later_ones_are_added_in_place() {
        let block = block(vec![Operation::new(&[0], 10).keeps_inputs().parameters(&[7, 3])]);
        let mut engine = engine();
        for _ in 0..2 {
            let input = engine.allocate(1).unwrap();
            let (output, tape) = engine.forward(&block, input, Pass::Keep).unwrap();
            engine.release(output).unwrap();
            let gradient = engine.allocate(10).unwrap();
            assert_eq!(engine.backward(&block, tape, gradient, 0, false).unwrap(), None);
        }
        engine.drop_gradients().unwrap();
        assert_eq!(story(engine), "+1 +10 -10 +10 +7 +3 -10 -1 +1 +10 -10 +10 +7 +3 -10 -1 -7 -3 -7 -3");
    }

    #[test]
    fn gradients_of_a_value_used_twice_are_summed_in_place() {
        let mut residual = Block::new(1);
        let inner = residual.push(Operation::new(&[0], 10).keeps_inputs());
        residual.push(Operation::new(&[0, inner], 1).backward(Backward::Passes));
        // The sum's gradient goes to both inputs; when the inner operation's backward pass is done, only the other input
        // refers to it.
        assert_eq!(run(&residual), "+1 +10 +1 -10 -1 +1 +1 -1 -1 -1");
    }

    #[test]
    fn forward_only_keeps_at_most_two_activations() {
        let block = block((0..10).map(|_| Operation::new(&[0], 1).keeps_inputs().keeps_output()).take(1).collect());
        let mut engine = engine();
        let mut value = engine.allocate(1).unwrap();
        for _ in 0..10 {
            value = engine.forward(&block, value, Pass::Forget).unwrap().0;
        }
        engine.release(value).unwrap();
        let workload = engine.program.finish("", String::new());
        assert_eq!(workload.load_bytes(1), 2);
        assert_eq!(workload.buffers(), 11);
    }

    #[test]
    fn recomputed_parts_keep_what_goes_in_and_do_the_forward_work_again() {
        let layer = block(vec![Operation::new(&[0], 100).keeps_inputs().work(&[6]), Operation::new(&[1], 1).keeps_inputs()]);
        let load_and_work = |recompute: Recompute| {
            let part = Part { block: 0, repeats: 1, recompute, shares: None };
            let plan = Plan { blocks: vec![layer.clone()], parts: vec![part; 4] };
            let mut engine = engine();
            let input = engine.allocate(1).unwrap();
            plan.train(&mut engine, input).unwrap();
            let work = engine.work;
            (engine.program.finish("", String::new()).load_bytes(1), work)
        };
        let (kept, work) = load_and_work(Recompute::No);
        // Four layers of 100 + 1, the output and its gradient, and the gradient inside the last layer.
        assert_eq!(kept, 4 * 101 + 1 + 1 + 100);
        assert_eq!(work, Work { forward: 24, backward: 48, recomputed: 0 });
        let (recomputed, work) = load_and_work(Recompute::Whole);
        assert_eq!(recomputed, 4 + 100 + 1 + 1 + 100);
        assert_eq!(work, Work { forward: 24, backward: 48, recomputed: 24 });
        assert!((work.overhead() - 1.0 / 3.0).abs() < 1e-12);
    }
}
