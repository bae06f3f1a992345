//! D: statistics and tools.

mod commands;
mod recorded_runs;
mod statistics;

use std::path::Path;

use crate::backend::AnyBackend;
use crate::suite::Entry;

use crate::scenarios::story::{Finding, Row};

pub(crate) const ROWS: &[Row] = &[
    Row {
        id: "D1",
        claim: "A program reads memory with `memory_allocated`, `memory_reserved`, `max_memory_*`, `memory_stats` and \
                `memory_summary`.",
        finding: Finding::Reproduced,
        found: "All 122 keys of PyTorch 2.11, with the values that it wrote on the H200; `memory_summary` is the same text.",
    },
    Row {
        id: "D2",
        claim: "Fragmentation is 1 - allocated / reserved; above 30 % it is a risk of out of memory.",
        finding: Finding::Different,
        found: "At 50 % a request of 4 MiB is served or not, depending on where the free bytes are; at 10 % it fails too. The \
                largest hole (2.00 or 6.00 MiB) decides, and parkade shows it beside the ratio.",
    },
    Row {
        id: "D3",
        claim: "`_dump_snapshot` writes a file that pytorch.org/memory_viz shows.",
        finding: Finding::Reproduced,
        found: "parkade reads such files; written again, they are the same recording. A replayed run is written as a file \
                with all keys that the viewer reads, and verifies with 0 differences.",
    },
    Row {
        id: "D4",
        claim: "Out of memory is worked out in five steps: capacity, fragmentation, max_split_size_mb, empty_cache, snapshot.",
        finding: Finding::Reproduced,
        found: "`parkade diagnose` answers all five: one run is fragmentation (4.92 GiB would have fitted in 5.00 GiB), one \
                capacity (2.01 GiB in 2.00 GiB). `empty_cache` would give 0 bytes back in both.",
    },
    Row {
        id: "D5",
        claim: "A script `memory_utils.py` has info, clear, reset, fraction, enable and \"kill all CUDA processes\"; helpers \
                print, clear and copy safely.",
        finding: Finding::Different,
        found: "Each is a command or a call, shown with its effect on the figures. `parkade kill` ends one process: it must \
                be named by its id, hold memory on a GPU, and be confirmed.",
    },
    Row {
        id: "D6",
        claim: "Memory over a training step: parameters, activations rising, falling in backward, then the optimizer.",
        finding: Finding::Reproduced,
        found: "Drawn from a recording of GPT-2 (from 1.93 to 14.68 GiB and back) and from a generated step.",
    },
    Row {
        id: "D7",
        claim: "`memory_stats()['num_oom_retries']` counts retries.",
        finding: Finding::Refuted,
        found: "There is no such key, so the document's `get` always returns 0. The keys are `num_alloc_retries` and \
                `num_ooms`.",
    },
    Row {
        id: "D8",
        claim: "nvidia-smi shows reserved, not allocated.",
        finding: Finding::Different,
        found: "It follows reserved, but includes the CUDA context: 526.81 MiB on the H200. `parkade info` shows what the \
                driver has given out, what processes hold of it, and the difference.",
    },
    Row {
        id: "D9",
        claim: "Clear the cache regularly, or after each save.",
        finding: Finding::Refuted,
        found: "For the program itself it only costs: 80 calls of cudaMalloc and 80 of cudaFree, each of which waits for the \
                device, instead of 4 and none, for the same peak. 10 steps of ResNet-50 take 1698 driver calls instead of \
                119, and no less memory.",
    },
];

pub(crate) fn entries(backend: &AnyBackend, parkade: Option<&Path>) -> Vec<Entry> {
    [
        statistics::own_statistics(backend),
        recorded_runs::entries(backend),
        statistics::helper_calls(),
        statistics::device_memory(backend),
        commands::entries(backend, parkade),
    ]
    .into_iter()
    .flatten()
    .collect()
}
