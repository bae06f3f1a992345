//! B: memory that two streams use.

mod races;
mod single_stream;

use crate::backend::AnyBackend;
use crate::suite::Entry;

use crate::scenarios::row::{Finding, Row};

pub(crate) const ROWS: &[Row] = &[
    Row {
        id: "B1",
        claim: "A tensor made on stream 1 is read by a slow kernel on stream 2, freed, and its memory reused on stream 1: \
                wrong data.",
        finding: Finding::Reproduced,
        found: "The new tensor gets the same address, and the race detector names both accesses. PyTorch on the H200 had \
                wrong data in most runs ([driver-facts.md](driver-facts.md)).",
    },
    Row {
        id: "B2",
        claim: "`record_stream` prevents that. `memory_allocated()` counts the tensor as freed as soon as it is deleted.",
        finding: Finding::Reproduced,
        found: "No race: the memory is not reused until the other stream is done. `allocated` falls at the free, `active` \
                only when the event completes.",
    },
    Row {
        id: "B3",
        claim: "Letting stream 1 wait for stream 2 prevents it too.",
        finding: Finding::Reproduced,
        found: "No race, and the memory is reused at once.",
    },
    Row {
        id: "B4",
        claim: "On a single stream no synchronization is needed.",
        finding: Finding::Reproduced,
        found: "No random program on one stream races; the same programs on two streams do.",
    },
];

pub(crate) fn entries(backend: &AnyBackend) -> Vec<Entry> {
    [races::entries(), single_stream::entries(backend)].into_iter().flatten().collect()
}
