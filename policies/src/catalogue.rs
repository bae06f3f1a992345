//! All policies by name.

use alloc::boxed::Box;

use parkade::policy::{Policy, PyTorch};
use parkade::profile::Profile;
use parkade::settings::Settings;
use parkade::units::Bytes;

use crate::{
    BestFit, Bfc, BreakingHandles, CudaAsync, FirstFit, FloatingHandles, GmLake, NextFit, RmmPool, Stalloc, WorstFit, handles,
};

/// A policy by name.
#[derive(Clone, Copy, Debug)]
pub struct Named {
    /// The name: lower case, words joined by hyphens.
    pub name: &'static str,
    /// What it does, in a few words.
    pub says: &'static str,
    /// The paper or code with its rules.
    pub source: &'static str,
    /// Whether its rules forbid releasing memory to the device before it is out of memory.
    pub keeps_memory: bool,
    /// Creates one without state.
    pub make: fn() -> Box<dyn Policy + Send>,
}

/// All policies, PyTorch's first.
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
        name: "first-fit-remap",
        says: "the free block at the lowest address that is large enough; a growing region of remappable pages per stream",
        source: "Knuth, The Art of Computer Programming, 2.5, algorithm A",
        keeps_memory: false,
        make: || Box::new(FirstFit::default()),
    },
    Named {
        name: "next-fit-remap",
        says: "first fit from where the last search ended; a growing region of remappable pages per stream",
        source: "Knuth, The Art of Computer Programming, 2.5, exercise 6",
        keeps_memory: false,
        make: || Box::new(NextFit::default()),
    },
    Named {
        name: "best-fit-remap",
        says: "the smallest free block that is large enough; a growing region of remappable pages per stream",
        source: "Knuth, The Art of Computer Programming, 2.5",
        keeps_memory: false,
        make: || Box::new(BestFit::default()),
    },
    Named {
        name: "worst-fit-remap",
        says: "the largest free block; a growing region of remappable pages per stream",
        source: "Wilson and others, Dynamic Storage Allocation, IWMM 1995",
        keeps_memory: false,
        make: || Box::new(WorstFit::default()),
    },
    Named {
        name: "bfc",
        says: "TensorFlow's best fit with coalescing; each new region is twice as large as the last",
        source: "openxla/xla, xla/tsl/framework/bfc_allocator.cc",
        keeps_memory: false,
        make: || Box::new(Bfc::growing()),
    },
    Named {
        name: "bfc-one-region",
        says: "TensorFlow's without allow_growth: bfc in a single region of the whole limit",
        source: "openxla/xla, xla/tsl/framework/bfc_allocator.cc",
        keeps_memory: true,
        make: || Box::new(Bfc::one_region()),
    },
    Named {
        name: "bfc-xla",
        says: "XLA's: bfc in a single region of 75 % of the device, JAX's default",
        source: "openxla/xla, xla/tsl/framework/bfc_allocator.cc; xla/pjrt/gpu/gpu_helpers.cc",
        keeps_memory: true,
        make: || Box::new(Bfc::xla()),
    },
    Named {
        name: "bfc-xla-growth",
        says: "XLA's with preallocation off: growing regions, up to 75 % of the device; never releases memory",
        source: "openxla/xla, xla/tsl/framework/bfc_allocator.cc; xla/pjrt/gpu/gpu_helpers.cc",
        keeps_memory: true,
        make: || Box::new(Bfc::xla_growing()),
    },
    Named {
        name: "stalloc",
        says: "STAlloc's: in studies the program's first step is planned ahead; everything else is PyTorch's policy",
        source: "STAlloc, arXiv 2507.16274; infinigence/STAlloc",
        keeps_memory: false,
        make: || Box::new(Stalloc::new()),
    },
    Named {
        name: "rmm-pool",
        says: "RAPIDS' pool: best fit per stream, then other streams' blocks; gives back only under a limit",
        source: "rapidsai/rmm, pool_memory_resource, stream_ordered_memory_resource.hpp",
        keeps_memory: true,
        make: || Box::new(RmmPool::new()),
    },
    Named {
        name: "cuda-async",
        says: "a model of cudaMallocAsync's pool as PyTorch configures it: freed memory stays in the pool",
        source: "CUDA Programming Guide, Stream-Ordered Memory Allocator; cudaMemPoolAttr",
        keeps_memory: false,
        make: || Box::new(CudaAsync::new(Bytes::MAX)),
    },
    Named {
        name: "gmlake-like",
        says: "like GMLake, not exact: maps the pages of several free blocks together to serve a large request",
        source: "GMLake, ASPLOS 2024; intelligent-machine-learning/glake",
        keeps_memory: false,
        make: || Box::new(GmLake::default()),
    },
];

/// Policies that every command takes by name, but that are not among `all` and not in the tables of `docs/numbers.md`.
pub const BESIDE: &[Named] = &[
    Named {
        name: "floating-handles",
        says: "best fit on few, large handles; those that are wholly free move to where a request needs them",
        source: "our own",
        keeps_memory: false,
        make: || Box::new(FloatingHandles::default()),
    },
    Named {
        name: "breaking-handles",
        says: "best fit on few, large handles; where memory is short, those that are partly in use are broken, and their contents copied",
        source: "our own",
        keeps_memory: false,
        make: || Box::new(BreakingHandles::default()),
    },
];

fn expandable() -> Settings {
    Settings { expandable_segments: true, ..Settings::default() }
}

/// Policies whose originals have no private pools, so that a program would make one more allocator for each.
const WITHOUT_PRIVATE_POOLS: &[&str] = &["bfc", "bfc-one-region", "bfc-xla", "bfc-xla-growth", "rmm-pool"];

/// Whether a private pool is one more allocator under the policy with this name, and so gives its memory back when the
/// program drops it ([`release_cached_pool`](parkade::Allocator::release_cached_pool)).
#[must_use]
pub fn pools_are_allocators(name: &str) -> bool {
    WITHOUT_PRIVATE_POOLS.contains(&name)
}

/// Policies that break handles.
const BREAKING: &[&str] = &["breaking-handles"];

/// Whether the policy with this name needs serial work, because it breaks handles
/// ([`Relief::Break`](parkade::policy::Relief::Break)): while the allocator serves a call, no other thread may give the device
/// work that uses its memory. Where the device breaks none
/// ([`DeviceBackend::breaks_handles`](parkade::device::DeviceBackend::breaks_handles)) the policy serves requests, and needs more
/// memory.
#[must_use]
pub fn needs_serial_work(name: &str) -> bool {
    BREAKING.contains(&name)
}

/// The policy with this name, which may have an option (`first-fit-remap:handle=20MiB`).
#[must_use]
pub fn named(name: &str) -> Option<&'static Named> {
    CATALOGUE.iter().chain(BESIDE).find(|policy| policy.name == name).or_else(|| handles::named(name))
}

/// Names that policies had before, and what they are called now.
const RENAMED: &[(&str, &str)] = &[
    ("first-fit", "first-fit-remap"),
    ("next-fit", "next-fit-remap"),
    ("best-fit", "best-fit-remap"),
    ("worst-fit", "worst-fit-remap"),
    ("bfc-prealloc", "bfc-xla"),
    ("gmlake", "gmlake-like"),
];

/// What a policy is called now that had this name before; `None` if none had.
#[must_use]
pub fn renamed(name: &str) -> Option<&'static str> {
    RENAMED.iter().find(|(before, _)| *before == name).map(|(_, now)| *now)
}

/// Policies that parkade no longer has, and the one to use instead, by what it needs or by its original.
const REMOVED: &[(&str, &str)] = &[
    ("buddy", "best-fit-remap"),
    ("pytorch-expandable-reuse", "pytorch-expandable"),
    ("rmm-arena", "rmm-pool"),
    ("slab", "best-fit-remap"),
    ("tlsf", "bfc-one-region"),
    ("tlsf-remap", "best-fit-remap"),
];

/// What to use instead of the policy that had this name and was removed; `None` if there was none.
#[must_use]
pub fn removed(name: &str) -> Option<&'static str> {
    REMOVED.iter().find(|(before, _)| *before == name).map(|(_, instead)| *instead)
}
