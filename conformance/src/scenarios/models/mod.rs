//! E: how much memory models take, by formulas and by generated programs.

mod activations;
mod lifetimes;
mod training;

use crate::backend::AnyBackend;
use crate::suite::Entry;

use crate::scenarios::row::{Finding, Row};

pub(crate) const ROWS: &[Row] = &[
    Row {
        id: "E1",
        claim: "Activations take L B S H 4 bytes: about 1.5 GB for 24 x 8 x 2048 x 1024; with checkpointing every sqrt(L) \
                layers about 310 MB.",
        finding: Finding::Different,
        found: "The first is exact: 1,610,612,736 bytes, which is 1.5 GiB. The second is only what is kept (335.5 MB with \
                whole layers); the peak also has a group that is being recomputed: 536.9 MB.",
    },
    Row {
        id: "E2",
        claim: "Peaks with N layers: (X + Y) N; recomputing every layer X N + Y; every M layers X N / M + X (M - 1) + Y M.",
        finding: Finding::Reproduced,
        found: "The generated peak equals the formula in all 660 programs of a grid.",
    },
    Row {
        id: "E3",
        claim: "Nano-batching: N X + Y / chunks.",
        finding: Finding::Reproduced,
        found: "The generated peak equals the formula in all 480 programs of a grid.",
    },
    Row {
        id: "E4",
        claim: "Toy programs: 940.07 and 688.08 MB; 1516.14, 880.14 and 748.14 MB; 4.11, 15.83 and 8.24 GB.",
        finding: Finding::Reproduced,
        found: "The sizes are not in the notes. With sizes fitted once, all numbers come out within 0.1 %; only 748.14 MB \
                (747.64) tests the fit.",
    },
    Row {
        id: "E5",
        claim: "Smaller batches, gradient accumulation, mixed precision, memory-efficient attention and selective \
                checkpointing help against out of memory.",
        finding: Finding::Reproduced,
        found: "Each lowers the peak of GPT-2, to between 35 and 59 %. All but the smaller batch itself raise the largest \
                batch that fits, from 18 to between 31 and 72.",
    },
    Row {
        id: "E6",
        claim: "Training a 7B model with Adam takes more than 4 to 6 times its parameters.",
        finding: Finding::Reproduced,
        found: "Before activations it is 4 times in half precision and 8 times with a master copy: 49.55 GiB, too much for a \
                card of 40 GB, and 99.09 GiB, which need one of 141 GB.",
    },
    Row {
        id: "E7",
        claim: "Checkpointing costs about 33 % more compute.",
        finding: Finding::Reproduced,
        found: "A third (33.3 %) for the layers that are recomputed. For the whole of GPT-2 it is 24.3 %, since its head is \
                not.",
    },
    Row {
        id: "E8",
        claim: "The optimizer step holds a second copy of its states for a moment.",
        finding: Finding::Reproduced,
        found: "With such a copy the peak of a small model is 6.00 times its weights instead of 4.05. It is an option of the \
                generator, as not every optimizer makes one.",
    },
    Row {
        id: "E9",
        claim: "Lifetimes in autograd: what is saved lives until its backward; softmax saves its output; detach allocates \
                nothing; gradients are assigned, then added in place; forward only holds two activations.",
        finding: Finding::Reproduced,
        found: "Each rule is shown on the requests of a few operations, in order; forward only, at most 2 activations live. \
                The patterns of the notes are drawn.",
    },
];

/// No device takes part in any of them.
pub(crate) fn entries(backend: &AnyBackend) -> Vec<Entry> {
    if !backend.is_simulated() {
        return Vec::new();
    }
    [activations::entries(), training::entries(), lifetimes::entries()].into_iter().flatten().collect()
}
