//! The kinds of blocks, and the ways to recognise them.

/// What a block holds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Kind {
    /// The model: weights and buffers.
    Parameters,
    /// Gradients of parameters: allocated in a backward pass and kept until the optimizer has used them.
    Gradients,
    /// Values that the optimizer keeps for each parameter, such as Adam's two moments.
    OptimizerStates,
    /// Blocks that the forward pass keeps for the backward pass.
    Activations,
    /// Batches of data.
    Inputs,
    /// Allocated and freed within one part of a step; in a run that does not train, within one step.
    Temporaries,
    /// Scratch memory of cuBLAS, cuBLASLt and cuDNN.
    Workspaces,
    /// Allocated once in a forward pass (or in a step of a run that does not train) and kept, such as attention keys and
    /// values.
    Caches,
    /// Not recognised.
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
}

parkade_recording::names! {
    Kind {
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

/// The evidence by which the kind of a block was recognised.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum How {
    /// By the Python calls of its allocation.
    Stack,
    /// By the optimizer's own annotation of its step.
    Annotation,
    /// By its size: there are as many gradients of that size as parameters, or it is the size of a library's workspace.
    Size,
    /// By the order of frees: a backward pass frees what the forward pass kept, in the opposite order.
    Pairing,
    /// By when it was allocated and freed, relative to the passes of the run.
    Lifetime,
    /// By its position in an unfinished step: it is classified like the same allocation in the step before.
    Repetition,
    /// By the steps of a run that does not train: allocated and freed within one step, or carried through several.
    Steps,
    /// It was not recognised.
    NotTold,
}

parkade_recording::names! {
    How {
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

/// The classification of a block.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Told {
    /// What it holds.
    pub kind: Kind,
    /// The evidence by which its kind was recognised.
    pub how: How,
}

impl Told {
    /// Not classified.
    pub const NOTHING: Told = Told { kind: Kind::Unknown, how: How::NotTold };

    pub(super) const fn new(kind: Kind, how: How) -> Told {
        Told { kind, how }
    }
}
