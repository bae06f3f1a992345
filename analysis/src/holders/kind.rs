//! What a block holds, and how that was told.

/// What a block holds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Kind {
    /// The model: weights and buffers.
    Parameters,
    /// Gradients of parameters: made in a backward pass, kept until the optimizer has used them.
    Gradients,
    /// What the optimizer keeps for each parameter, such as Adam's two moments.
    OptimizerStates,
    /// What the forward pass keeps for the backward pass.
    Activations,
    /// Batches of data.
    Inputs,
    /// Made and freed within one part of a step; where nothing trains, within one step.
    Temporaries,
    /// Scratch memory that cuBLAS, cuBLASLt and cuDNN ask for.
    Workspaces,
    /// Made once in a forward pass, or in a step where nothing trains, and kept, such as keys and values of attention.
    Caches,
    /// Not told.
    Unknown,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Kind; 9] = [
        Kind::Parameters,
        Kind::Gradients,
        Kind::OptimizerStates,
        Kind::Activations,
        Kind::Inputs,
        Kind::Temporaries,
        Kind::Workspaces,
        Kind::Caches,
        Kind::Unknown,
    ];

    /// Its name in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Parameters => "parameters",
            Kind::Gradients => "gradients",
            Kind::OptimizerStates => "optimizer_states",
            Kind::Activations => "activations",
            Kind::Inputs => "inputs",
            Kind::Temporaries => "temporaries",
            Kind::Workspaces => "workspaces",
            Kind::Caches => "caches",
            Kind::Unknown => "unknown",
        }
    }
}

/// How the kind of a block was told.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum How {
    /// By the Python calls that it was allocated in.
    Stack,
    /// By the optimizer's own annotation of its step.
    Annotation,
    /// By its size: as many gradients of a size as parameters, or the size of a library's workspace.
    Size,
    /// By the order of frees: a backward pass frees what the forward pass kept in the opposite order.
    Pairing,
    /// By when it was made and freed, against the passes of the run.
    Lifetime,
    /// By its place in a step that did not end: as the same allocation of the step before.
    Repetition,
    /// By the steps of a run that trains nothing: made and freed within one, or carried through several.
    Steps,
    /// It was not told.
    NotTold,
}

impl How {
    /// Its name in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            How::Stack => "stack",
            How::Annotation => "annotation",
            How::Size => "size",
            How::Pairing => "pairing",
            How::Lifetime => "lifetime",
            How::Repetition => "repetition",
            How::Steps => "steps",
            How::NotTold => "not_told",
        }
    }
}

/// What was told of a block.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Told {
    /// What it holds.
    pub kind: Kind,
    /// How that was told.
    pub how: How,
}

impl Told {
    /// Nothing was told.
    pub const NOTHING: Told = Told { kind: Kind::Unknown, how: How::NotTold };

    pub(super) const fn new(kind: Kind, how: How) -> Told {
        Told { kind, how }
    }
}
