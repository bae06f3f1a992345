//! The allocator tests of PyTorch's own suite, under their original names (spec section 12; `test/test_cuda.py` and
//! `test/test_cuda_multigpu.py`).
//!
//! A tensor becomes an allocation of its bytes, `del` a free, and a kernel a fill, a copy or a spin.
//! `test_x/expandable` is PyTorch's second run of the test, with `expandable_segments:True`. PyTorch runs the memory
//! pool tests in ordinary mode only. Assertions that concern only Python are left out. If a test sets a limit as a
//! fraction that was chosen to yield a number of bytes, the limit is set in bytes here.
//!
//! These tests are not reproduced:
//!
//! | test | why |
//! |---|---|
//! | test_cublas_workspace_explicit_allocation | queries the sizes of cuBLAS's own workspaces |
//! | test_cuda_memory_leak_detection_propagates_errors | concerns the test runner |
//! | test_memory_stats_multigpu | needs two devices at once, but a backend opens only one |
//! | test_memory_stats_of_multiple_generators_and_graphs | counts the tensors of PyTorch's random number generators |
//! | test_resize_storage_hint_*, test_resize_split_block | newer than 2.11 |
//! | test_memory_snapshot_with_cpp, test_memory_snapshot_script, test_memory_snapshot_forward_trace | concerns Python
//! and C++ stacks |
//! | test_memory_snapshot_skip_actions | tests a switch of Python's recorder; here an observer can ignore any entry |
//! | test_memory_profiler_viz, test_memory_plots, test_memory_plots_* | concerns PyTorch's viewer |
//! | test_memory_compile_regions, test_cycles, test_direct_traceback | concerns the compiler, and Python's garbage
//! collector and stacks |
//! | test_allocation_traceback, test_allocation_traceback_no_recording | newer than 2.11, and concerns Python stacks |
//! | test_throw_on_cudamalloc_oom | newer than 2.11 |
//! | test_allocator_backend | asks which allocator the process uses; here there is only one |
//! | test_cachingAllocator_raw_alloc, first half | switches caching off; here a program calls the device directly instead |
//! | TestBlockStateAbsorption (12.3) | pool checkpoints have their own tests |
//! | test_mempool_id, test_mempool_multithread | the caller chooses a pool's id here |
//! | test_pool_id_in_snapshot | newer than 2.11 |
//! | test_mempool_ctx_multithread | an allocator here has one owner and no threads |
//! | test_graph_capture_reclaim_2_streams, test_graph_capture_reclaim_4_streams | query dependencies in the graph under capture |
//! | test_graph_capture_reclaim_shared_pool, test_graph_capture_pre_capture_stream_use | newer than 2.11 |
//! | test_mempool_expandable | concerns a pool with its own allocator, which pools do not have here
//! |
//! | test_multi_threads_alloc_in_same_order, test_nccl_mem_alloc_addresses_in_random_order | newer than 2.11 |
//! | TestCachingHostAllocator* (12.5) | concerns host memory |

mod contents;
mod limits;
mod pools;
mod statistics;
mod support;

use crate::backend::AnyBackend;
use crate::suite::Entry;

/// Returns the entries of this group.
pub fn entries(_: &AnyBackend) -> Vec<Entry> {
    let mut entries = Vec::new();
    entries.extend(limits::oom_entries());
    entries.extend(limits::fraction_entries());
    entries.extend(contents::stream_entries());
    entries.extend(statistics::entries());
    entries.extend(limits::settings_entries());
    entries.extend(pools::entries());
    entries.extend(pools::graph_entries());
    entries.extend(statistics::snapshot_entries());
    entries.extend(contents::fuzz_entries());
    entries
}
