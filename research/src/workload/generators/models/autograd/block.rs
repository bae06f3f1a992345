//! A block of a model: operations in the order in which they run.

/// A value in a block: 0 is the block's input, and `i + 1` is the output of operation `i`. The last operation's output is the
/// block's output.
pub type Value = usize;

/// What an operation's backward pass does with the incoming gradient.
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
    pub(super) inputs: Vec<Value>,
    /// The size of the output; `None` if it shares the first input's memory.
    pub(super) bytes: Option<u64>,
    pub(super) keeps_inputs: bool,
    pub(super) keeps_output: bool,
    /// Tensors that are allocated in addition to the output and kept for the backward pass: statistics, masks.
    pub(super) side_bytes: Vec<u64>,
    pub(super) backward: Backward,
    /// The sizes of the parameters.
    pub(super) parameters: Vec<u64>,
    /// The maximum scratch memory that the operation needs while it runs, forward and backward, if lifetimes are mixed.
    pub(super) scratch_bytes: u64,
    /// The number of floating-point operations in the forward pass.
    pub(super) work: u64,
    /// Whether it runs in the linear algebra library, which has a workspace.
    pub(super) is_linear: bool,
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
    pub(super) operations: Vec<Operation>,
    /// The size of each value; values that share memory have the same size.
    pub(super) values: Vec<u64>,
    /// The operation that uses each value last, if any.
    pub(super) last_use: Vec<Option<usize>>,
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
    /// If one of its inputs is not a value in this block.
    pub fn push(&mut self, operation: Operation) -> Value {
        for &input in &operation.inputs {
            self.last_use[input] = Some(self.operations.len());
        }
        self.values.push(operation.bytes.unwrap_or(self.values[operation.inputs[0]]));
        self.last_use.push(None);
        self.operations.push(operation);
        self.operations.len()
    }

    /// The sizes of the parameters, in operation order.
    pub fn parameters(&self) -> impl Iterator<Item = u64> {
        self.operations.iter().flat_map(|operation| operation.parameters.iter().copied())
    }

    /// The number of its parameters.
    #[must_use]
    pub fn parameter_count(&self) -> usize {
        self.operations.iter().map(|operation| operation.parameters.len()).sum()
    }

    pub(super) fn input_bytes(&self) -> u64 {
        self.values[0]
    }

    pub(super) fn output_bytes(&self) -> u64 {
        *self.values.last().expect("a block has its input")
    }

    pub(super) fn work(&self) -> u128 {
        self.operations.iter().map(|operation| u128::from(operation.work)).sum()
    }
}
