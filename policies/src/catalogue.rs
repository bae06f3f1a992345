//! The policies that can be chosen by name.

use alloc::boxed::Box;

use crate::{BestFit, Bfc, Buddy, CudaAsync, FirstFit, GmLake, NextFit, RmmArena, RmmPool, Tlsf, WorstFit};
use parkade::policy::{Policy, PyTorch};
use parkade::profile::Profile;
use parkade::settings::Settings;
use parkade::units::Bytes;

/// A named policy.
#[derive(Clone, Copy, Debug)]
pub struct Named {
    /// The name: lower case, words joined by hyphens.
    pub name: &'static str,
    /// One sentence: what it does.
    pub says: &'static str,
    /// The paper or code that its rules come from.
    pub source: &'static str,
    /// Whether its rules forbid giving memory back to the device before it reports out of memory.
    pub keeps_memory: bool,
    /// Creates one.
    pub make: fn() -> Box<dyn Policy + Send>,
}

/// All named policies, PyTorch's first.
pub const CATALOGUE: &[Named] = &[
    Named {
        name: "pytorch",
        says: "PyTorch 2.11's default settings",
        source: "c10/cuda/CUDACachingAllocator.cpp of PyTorch 2.11",
        keeps_memory: false,
        make: || Box::new(PyTorch::new(Settings::default())),
    },
    Named {
        name: "pytorch-expandable",
        says: "PyTorch 2.11 with expandable_segments:True",
        source: "c10/cuda/CUDACachingAllocator.cpp of PyTorch 2.11",
        keeps_memory: false,
        make: || Box::new(PyTorch::new(expandable())),
    },
    Named {
        name: "pytorch-2.15",
        says: "PyTorch 2.15's default settings",
        source: "c10/cuda/CUDACachingAllocator.cpp of PyTorch 2.15",
        keeps_memory: false,
        make: || Box::new(PyTorch::of(&Profile::PYTORCH_2_15, Settings::default())),
    },
    Named {
        name: "pytorch-2.15-expandable",
        says: "PyTorch 2.15 with expandable_segments:True",
        source: "c10/cuda/CUDACachingAllocator.cpp of PyTorch 2.15",
        keeps_memory: false,
        make: || Box::new(PyTorch::of(&Profile::PYTORCH_2_15, expandable())),
    },
    Named {
        name: "first-fit",
        says: "the lowest address that suffices, on one growing region a stream",
        source: "Knuth, The Art of Computer Programming, 2.5, algorithm A",
        keeps_memory: false,
        make: || Box::new(FirstFit::default()),
    },
    Named {
        name: "next-fit",
        says: "the next address that suffices, on one growing region a stream",
        source: "Knuth, The Art of Computer Programming, 2.5, exercise 6",
        keeps_memory: false,
        make: || Box::new(NextFit::default()),
    },
    Named {
        name: "best-fit",
        says: "the tightest free block, on one growing region a stream",
        source: "Knuth, The Art of Computer Programming, 2.5",
        keeps_memory: false,
        make: || Box::new(BestFit::default()),
    },
    Named {
        name: "worst-fit",
        says: "the largest free block, on one growing region a stream",
        source: "Wilson and others, Dynamic Storage Allocation, IWMM 1995",
        keeps_memory: false,
        make: || Box::new(WorstFit::default()),
    },
    Named {
        name: "buddy",
        says: "powers of two, cut in halves and merged with the other half",
        source: "Knowlton, A Fast Storage Allocator, CACM 1965; Knuth, 2.5, algorithms R and S",
        keeps_memory: false,
        make: || Box::new(Buddy),
    },
    Named {
        name: "tlsf",
        says: "two-level segregated fit, on one growing region a stream",
        source: "Masmano and others, TLSF, ECRTS 2004; mattconte/tlsf",
        keeps_memory: false,
        make: || Box::new(Tlsf::default()),
    },
    Named {
        name: "bfc",
        says: "TensorFlow's and XLA's best fit with coalescing, growing by doubled regions",
        source: "openxla/xla, xla/tsl/framework/bfc_allocator.cc",
        keeps_memory: false,
        make: || Box::new(Bfc::growing()),
    },
    Named {
        name: "bfc-prealloc",
        says: "the same in one region of 75 % of the device, as JAX begins",
        source: "openxla/xla, xla/tsl/framework/bfc_allocator.cc; JAX, GPU memory allocation",
        keeps_memory: true,
        make: || Box::new(Bfc::preallocating()),
    },
    Named {
        name: "rmm-pool",
        says: "RAPIDS' pool: best fit a stream, taking from other streams, never giving back",
        source: "rapidsai/rmm, pool_memory_resource, stream_ordered_memory_resource.hpp",
        keeps_memory: true,
        make: || Box::new(RmmPool::new()),
    },
    Named {
        name: "rmm-arena",
        says: "RAPIDS' arenas: superblocks a stream for small requests, first fit for large ones",
        source: "rapidsai/rmm, arena_memory_resource, detail/arena.hpp",
        keeps_memory: false,
        make: || Box::new(RmmArena),
    },
    Named {
        name: "cuda-async",
        says: "a model of cudaMallocAsync's pool as PyTorch sets it up: it keeps everything",
        source: "CUDA Programming Guide, Stream-Ordered Memory Allocator; cudaMemPoolAttr",
        keeps_memory: false,
        make: || Box::new(CudaAsync::new(Bytes::MAX)),
    },
    Named {
        name: "gmlake",
        says: "stitching: pages of several free blocks are put together for a large request",
        source: "GMLake, ASPLOS 2024; intelligent-machine-learning/glake",
        keeps_memory: false,
        make: || Box::new(GmLake::default()),
    },
];

fn expandable() -> Settings {
    Settings { expandable_segments: true, ..Settings::default() }
}

/// The policy of this name.
#[must_use]
pub fn named(name: &str) -> Option<&'static Named> {
    CATALOGUE.iter().find(|policy| policy.name == name)
}
