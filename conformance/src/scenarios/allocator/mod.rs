//! Scenarios A: how the allocator and the driver below it work.

mod driver;
mod reuse;

use crate::backend::AnyBackend;
use crate::suite::Entry;

use crate::scenarios::story::{Finding, Row};

pub(crate) use reuse::SETTINGS;

pub(crate) const ROWS: &[Row] = &[
    Row {
        id: "A1",
        claim: "256 MB is freed and requested again: the second request never reaches the driver.",
        finding: Finding::Reproduced,
        found: "The first request takes one cudaMalloc; the second takes no call and gets the same address.",
    },
    Row {
        id: "A2",
        claim: "There are two pools, for up to 1 MB and above; segments are 2 MB, 20 MB or more; blocks of 256 B, 512 B, 768 B \
                and 1 kB are cut from them.",
        finding: Finding::Different,
        found: "Pools and segments are as described. Blocks are multiples of 512 B: a 256 B request takes 512 B and a 768 B \
                request takes 1024 B.",
    },
    Row {
        id: "A3",
        claim: "When 3 MB is requested from a free 8 MB block, the block is split into 3 and 5 MB; when the 3 MB is freed, the \
                two are merged into 8 MB.",
        finding: Finding::Reproduced,
        found: "The free block is 8 MiB at first, 5 MiB after the request and 8 MiB after the free; each state is drawn.",
    },
    Row {
        id: "A4",
        claim: "Of six 2 MB pieces, every other one is free: 6 MB is free, but a 4 MB request runs out of memory.",
        finding: Finding::Different,
        found: "True only under a limit that forbids a new segment. Without one, the 4 MiB request gets a new 20.00 MiB \
                segment; with expandable segments, the page has room.",
    },
    Row {
        id: "A5",
        claim: "6 GB is in use and three separate 1 GB pieces are freed: a 2 GB request runs out of memory.",
        finding: Finding::Different,
        found: "It depends on the settings (limit 6.50 GiB). The request runs out of memory by default and with \
                garbage_collection_threshold:0.8; it is served with max_split_size_mb:128, and after 1 retry with \
                max_split_size_mb:2048 or expandable segments.",
    },
    Row {
        id: "A6",
        claim: "When 2 GB and 4 GB are allocated on an 8 GB device and the 2 GB is freed, a 3 GB request may still fit, because \
                CUDA relocates pages.",
        finding: Finding::Reproduced,
        found: "It fits. PyTorch returns the cached 2 GiB to the driver and asks it again (1 retry); reserved memory grows from \
                6,442,450,944 to 7,516,192,768 bytes.",
    },
    Row {
        id: "A7",
        claim: "Holes of a page (2 MB) or more do not matter to the driver, but smaller holes fragment its memory.",
        finding: Finding::Reproduced,
        found: "One cudaMalloc takes all of the 64 MiB holes together. When one of each pair of 1 MiB blocks is freed, the \
                driver's free memory does not change by a byte, and an 8 MiB request fails.",
    },
    Row {
        id: "A8",
        claim: "When cudaMalloc fails, the cache is flushed and cudaMalloc is called again; if that fails, the request runs \
                out of memory.",
        finding: Finding::Reproduced,
        found: "The steps are shown with every driver call: oversize blocks are released first (not counted as a retry), the \
                allocator waits for blocks that other streams still use, and then the entire cache is released.",
    },
    Row {
        id: "A9",
        claim: "`num_alloc_retries` is the number of times that the allocator will retry.",
        finding: Finding::Refuted,
        found: "It is a counter. Each request is retried once, after the cache has been released.",
    },
    Row {
        id: "A10",
        claim: "cudaMalloc and cudaFree cost about 1 ms each and synchronize the device.",
        finding: Finding::Different,
        found: "cudaFree waits for the entire device; cudaMalloc does not. For 256 MiB on an idle H200, they take 96 and 56 \
                microseconds.",
    },
    Row {
        id: "A11",
        claim: "With max_split_size_mb:128, serving 4 MB from a 200 MB block wastes 196 MB; higher values reduce \
                fragmentation.",
        finding: Finding::Refuted,
        found: "The 200 MiB block never serves a 4 MiB request, only requests within 20 MiB of its size, which get all of it. \
                Higher values split more blocks.",
    },
    Row {
        id: "A12",
        claim: "Setting garbage_collection_threshold:0.8 helps.",
        finding: Finding::Different,
        found: "It has no effect unless a memory limit is set.",
    },
    Row {
        id: "A13",
        claim: "expandable_segments:True reduces fragmentation.",
        finding: Finding::Reproduced,
        found: "The requests of A4 and A5 are served. The recorded GPT-2 reserves 15,875,440,640 instead of 21,986,541,568 \
                bytes; a run with little fragmentation reserves 0.6 % more.",
    },
    Row {
        id: "A14",
        claim: "`set_per_process_memory_fraction(0.8)` limits the memory.",
        finding: Finding::Reproduced,
        found: "A request beyond 8/10 of the device is refused before the driver is asked.",
    },
    Row {
        id: "A15",
        claim: "`empty_cache` returns all free blocks to CUDA; it only helps against fragmentation and frees no live tensor.",
        finding: Finding::Different,
        found: "It returns segments that are entirely free. Free blocks that share a segment with a live block stay: \
                14,680,064 bytes in the example.",
    },
    Row {
        id: "A16",
        claim: "There is one pool for each stream, and cached blocks are not shared between streams.",
        finding: Finding::Reproduced,
        found: "A 200 MiB block cached on stream 1 does not serve a 100 MiB request on stream 2. Memory moves to a different \
                stream only through \
                the driver.",
    },
    Row {
        id: "A17",
        claim: "Allocate the major memory early rather than on the fly.",
        finding: Finding::Reproduced,
        found: "This takes 1 cudaMalloc instead of 49, and less than a fifth of the reserved memory. The downside is that \
                `empty_cache` returns none of it as long as the weights are live.",
    },
    Row {
        id: "A18",
        claim: "When an allocation fails, PyTorch triggers Python's garbage collector and tries again.",
        finding: Finding::Refuted,
        found: "The allocator runs registered callbacks on every miss, before the driver is asked; Python's garbage collector \
                is not one of them.",
    },
    Row {
        id: "A19",
        claim: "`CUDA_VISIBLE_DEVICES=0` limits memory usage to 80 %.",
        finding: Finding::Refuted,
        found: "It selects devices and is not a setting of the allocator. The memory fraction stays at 1, which means no limit.",
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
