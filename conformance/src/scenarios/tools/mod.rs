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
        found: "All 122 keys of PyTorch 2.11 exist, with the values that it wrote on the H200; `memory_summary` is the same \
                text.",
    },
    Row {
        id: "D2",
        claim: "Fragmentation is 1 - allocated / reserved; above 30 % it is a risk of out of memory.",
        finding: Finding::Different,
        found: "At 50 %, a request for 4 MiB is served or not, depending on where the free bytes are; it can fail at 10 % \
                too. The largest hole (2.00 or 6.00 MiB) decides, and parkade shows it next to the ratio.",
    },
    Row {
        id: "D3",
        claim: "`_dump_snapshot` writes a file that pytorch.org/memory_viz displays.",
        finding: Finding::Reproduced,
        found: "parkade reads these files; written again, they are the same recording. A replayed run is written as a file \
                with all the keys that the viewer reads, and it is verified with 0 differences.",
    },
    Row {
        id: "D4",
        claim: "Out of memory is diagnosed in five steps: capacity, fragmentation, max_split_size_mb, empty_cache, snapshot.",
        finding: Finding::Reproduced,
        found: "`parkade diagnose` answers all five: one run fails because of fragmentation (4.92 GiB would have fitted in \
                5.00 GiB), the other because of capacity (2.01 GiB in 2.00 GiB). `empty_cache` would return 0 bytes in both.",
    },
    Row {
        id: "D5",
        claim: "A script `memory_utils.py` has info, clear, reset, fraction, enable and \"kill all CUDA processes\"; helpers \
                print, clear and copy safely.",
        finding: Finding::Different,
        found: "Each is a command or a call, shown with its effect on the figures. `parkade kill` ends one process: the \
                process must be named by its id and hold memory on a GPU, and the command must be confirmed.",
    },
    Row {
        id: "D6",
        claim: "Memory over a training step: parameters, activations that rise in forward and fall in backward, then the \
                optimizer.",
        finding: Finding::Reproduced,
        found: "It is drawn from a recording of GPT-2 (from 1.93 to 14.68 GiB and back) and from a generated step.",
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
        claim: "nvidia-smi shows reserved memory, not allocated memory.",
        finding: Finding::Different,
        found: "It follows reserved memory, but includes the CUDA context: 526.81 MiB on the H200. `parkade info` shows what \
                the driver has handed out, what processes hold of it, and the difference.",
    },
    Row {
        id: "D9",
        claim: "The cache should be cleared regularly, or after each save.",
        finding: Finding::Refuted,
        found: "For the program itself this only costs time: 80 calls to cudaMalloc and 80 to cudaFree, each of which waits \
                for the device, instead of 4 and none, for the same peak. 10 steps of ResNet-50 take 1698 driver calls \
                instead of 119, and use no less memory.",
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
