//! A: how the allocator and the driver below it work.

mod driver;
mod reuse;

use crate::backend::AnyBackend;
use crate::suite::Entry;

use crate::scenarios::story::{Finding, Row};

pub(crate) use reuse::SETTINGS;

pub(crate) const ROWS: &[Row] = &[
    Row {
        id: "A1",
        claim: "256 MB, freed and asked for again: the second request never reaches the driver.",
        finding: Finding::Reproduced,
        found: "One cudaMalloc for the first request; for the second no call, and the same address.",
    },
    Row {
        id: "A2",
        claim: "Two pools, up to 1 MB and above; segments of 2 MB, 20 MB and more; blocks of 256 B, 512 B, 768 B and 1 kB cut \
                from them.",
        finding: Finding::Different,
        found: "Pools and segments are as described. Blocks are multiples of 512 B: 256 B take 512 and 768 B take 1024.",
    },
    Row {
        id: "A3",
        claim: "3 MB from a free block of 8 MB: it is split into 3 and 5, and merged to 8 when the 3 are freed.",
        finding: Finding::Reproduced,
        found: "Free blocks before, between and after: 8, 5 and 8 MiB, drawn.",
    },
    Row {
        id: "A4",
        claim: "Six pieces of 2 MB, every other one free: 6 MB are free and 4 MB are out of memory.",
        finding: Finding::Different,
        found: "True only under a limit that forbids a new segment. Without one, 4 MiB get a new segment of 20.00 MiB; with \
                expandable segments the page has room.",
    },
    Row {
        id: "A5",
        claim: "6 GB in use, three separate 1 GB freed: 2 GB are out of memory.",
        finding: Finding::Different,
        found: "It depends on the settings (limit 6.50 GiB). Out of memory by default and with \
                garbage_collection_threshold:0.8; served with max_split_size_mb:128, and after 1 retry with \
                max_split_size_mb:2048 or expandable segments.",
    },
    Row {
        id: "A6",
        claim: "2 GB and 4 GB on 8 GB, the 2 GB freed: 3 GB might still fit, since CUDA relocates pages.",
        finding: Finding::Reproduced,
        found: "They fit. PyTorch gives the cached 2 GiB back and asks the driver again (1 retry); reserved goes from \
                6,442,450,944 to 7,516,192,768 bytes.",
    },
    Row {
        id: "A7",
        claim: "Holes of a page (2 MB) or more do not matter to the driver; smaller ones fragment its memory.",
        finding: Finding::Reproduced,
        found: "One cudaMalloc takes all holes of 64 MiB together. When one of each pair of 1 MiB blocks is freed, the \
                driver's free memory does not change by a byte, and 8 MiB are refused.",
    },
    Row {
        id: "A8",
        claim: "When cudaMalloc fails, the cache is flushed and cudaMalloc called again; then it is out of memory.",
        finding: Finding::Reproduced,
        found: "Shown step by step, with every driver call: oversize blocks are released first (not counted as a retry), \
                blocks that other streams still use are waited for, then the whole cache is released.",
    },
    Row {
        id: "A9",
        claim: "`num_alloc_retries` is how many times the allocator will retry.",
        finding: Finding::Refuted,
        found: "It is a counter. Each request is retried once, after the cache was released.",
    },
    Row {
        id: "A10",
        claim: "cudaMalloc and cudaFree cost about 1 ms each and synchronize the device.",
        finding: Finding::Different,
        found: "cudaFree waits for the whole device, cudaMalloc does not. For 256 MiB on an idle H200 they take 96 and 56 \
                microseconds.",
    },
    Row {
        id: "A11",
        claim: "With max_split_size_mb:128, 4 MB from a block of 200 MB waste 196 MB; higher values reduce fragmentation.",
        finding: Finding::Refuted,
        found: "The block of 200 MiB is not used for 4 MiB at all, only for requests within 20 MiB of its size, which get all \
                of it. Higher values split more blocks.",
    },
    Row {
        id: "A12",
        claim: "Setting garbage_collection_threshold:0.8 helps.",
        finding: Finding::Different,
        found: "It does nothing unless a memory limit is set.",
    },
    Row {
        id: "A13",
        claim: "expandable_segments:True reduces fragmentation.",
        finding: Finding::Reproduced,
        found: "The requests of A4 and A5 are served. The recorded GPT-2 reserves 15,875,440,640 instead of 21,986,541,568 \
                bytes; a run that is hardly fragmented reserves 0.6 % more.",
    },
    Row {
        id: "A14",
        claim: "`set_per_process_memory_fraction(0.8)` limits memory.",
        finding: Finding::Reproduced,
        found: "A request beyond 8/10 of the device is refused before the driver is asked.",
    },
    Row {
        id: "A15",
        claim: "`empty_cache` returns all free blocks to CUDA; it helps only against fragmentation and frees no live tensor.",
        finding: Finding::Different,
        found: "It returns segments that are free as a whole. Free blocks that share a segment with a live one stay: \
                14,680,064 bytes in the example.",
    },
    Row {
        id: "A16",
        claim: "There is one pool for each stream, and cached blocks are not shared between streams.",
        finding: Finding::Reproduced,
        found: "200 MiB cached on stream 1 do not serve 100 MiB on stream 2. Memory changes streams only by way of the driver.",
    },
    Row {
        id: "A17",
        claim: "Allocate the major memory early rather than on the fly.",
        finding: Finding::Reproduced,
        found: "1 cudaMalloc instead of 49, and less than a fifth of the reserved memory. The price: while the weights live, \
                `empty_cache` returns none of it.",
    },
    Row {
        id: "A18",
        claim: "When an allocation fails, PyTorch triggers Python's garbage collector and tries again.",
        finding: Finding::Refuted,
        found: "The allocator runs registered callbacks on every miss, before the driver is asked; Python's collector is not \
                among them.",
    },
    Row {
        id: "A19",
        claim: "`CUDA_VISIBLE_DEVICES=0` limits memory usage to 80 %.",
        finding: Finding::Refuted,
        found: "It selects devices and is not a setting of the allocator. The memory fraction stays 1: no limit.",
    },
];

pub(crate) fn entries(backend: &AnyBackend) -> Vec<Entry> {
    [
        reuse::whole_blocks(),
        reuse::pieces(backend),
        driver::pages_and_holes(),
        driver::retry_ladder(),
        reuse::settings(),
        reuse::reserved_first(),
    ]
    .into_iter()
    .flatten()
    .collect()
}
