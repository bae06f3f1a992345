//! C: the experiments and the log of the documents.

mod holes;
mod message;
mod recorded_peaks;

use crate::backend::AnyBackend;
use crate::suite::Entry;

use crate::scenarios::row::{Finding, Row};

pub(crate) const ROWS: &[Row] = &[
    Row {
        id: "C1",
        claim: "39 tensors of 1 GB on 39.59 GiB; six are deleted; 2 GB then fit because the allocator combines the cached \
                blocks of the deleted ones.",
        finding: Finding::Different,
        found: "2 GB fit, without a retry, but in a 40th segment from the driver: reserved grows from 39,994,785,792 to \
                42,043,703,296 bytes. Blocks of different segments are never combined.",
    },
    Row {
        id: "C2",
        claim: "0.9, 1.1, 0.5 and 2 GB in turn until the memory is full; three are deleted; 3.4 GiB then fail because of \
                fragmentation.",
        finding: Finding::Refuted,
        found: "35 tensors fit. Then 3.4 GiB are served after one retry: each deleted tensor was a whole segment, and \
                cudaFree gives all of them back.",
    },
    Row {
        id: "C3",
        claim: "100 tensors of 4 MB, every other one freed; 100 MB then fail because of fragmentation.",
        finding: Finding::Different,
        found: "209,715,200 bytes are free in pieces, and none of them serves 100 MB; but the device has room for a new \
                segment. They fail only under a limit of 409.60 MiB.",
    },
    Row {
        id: "C4",
        claim: "\"Tried to allocate 4.88 GiB (39.59 GiB total; 28.60 GiB allocated; 3.92 GiB free; 33.95 GiB reserved)\" is a \
                sign of fragmentation.",
        finding: Finding::Reproduced,
        found: "5.35 GiB are reserved and not allocated, more than the 4.88 GiB that were tried. parkade reads this old form \
                of the message and today's.",
    },
    Row {
        id: "C5",
        claim: "Is the peak of ResNet-50, forward and backward, linear in the batch size (1 to 64)?",
        finding: Finding::Reproduced,
        found: "Yes, from batch 2 on: 86 to 87 MB for each sample. The recorded peaks are reproduced to the byte.",
    },
    Row {
        id: "C6",
        claim: "Checkpointing lowers the peak of a perceptron of 20 layers, 4096 wide.",
        finding: Finding::Refuted,
        found: "2,755,265,536 bytes without, 2,756,314,112 with checkpointing: 20 activations of 1 MiB are little beside the \
                weights and their gradients.",
    },
];

pub(crate) fn entries(backend: &AnyBackend) -> Vec<Entry> {
    [holes::entries(), message::entries(), recorded_peaks::entries(backend)].into_iter().flatten().collect()
}
