#!/usr/bin/env python3
"""Times the core on a CUDA device, compared with PyTorch's allocator and cudaMallocAsync, in one process and
taking turns.

  beside_pytorch.py LIBRARY [--rounds N]

LIBRARY is libtimed_core.so, from `cargo build --release -p parkade-gpu --example timed_core`. It needs
PyTorch with CUDA, its headers
and a C++ compiler. Each line has the median of the rounds, and the shortest and longest time. The program
uses less than 20 GiB of device memory and releases everything.

Exit code: 0, or 2 if something could not run.
"""

import argparse
import ctypes
import os
import statistics
import sys

SOURCE = r"""
#include <c10/cuda/CUDACachingAllocator.h>
#include <cuda_runtime_api.h>
#include <chrono>
#include <stdexcept>
#include <vector>

using Clock = std::chrono::steady_clock;
namespace allocator = c10::cuda::CUDACachingAllocator;

static double since(Clock::time_point start) {
  return std::chrono::duration<double, std::nano>(Clock::now() - start).count();
}

static void check(cudaError_t code) {
  if (code != cudaSuccess) throw std::runtime_error(cudaGetErrorString(code));
}

double torch_pairs(int64_t bytes, int64_t pairs) {
  allocator::raw_delete(allocator::raw_alloc_with_stream(bytes, cudaStream_t(nullptr)));
  auto start = Clock::now();
  for (int64_t i = 0; i < pairs; ++i) allocator::raw_delete(allocator::raw_alloc_with_stream(bytes, cudaStream_t(nullptr)));
  double time_ns = since(start) / pairs;
  allocator::emptyCache();
  return time_ns;
}

double torch_growth(int64_t bytes, int64_t count) {
  std::vector<void*> blocks(count);
  auto start = Clock::now();
  for (auto& block : blocks) block = allocator::raw_alloc_with_stream(bytes, cudaStream_t(nullptr));
  double time_ns = since(start);
  for (auto block : blocks) allocator::raw_delete(block);
  allocator::emptyCache();
  return time_ns;
}

// The pool keeps its memory, as under PyTorch's cudaMallocAsync backend.
double async_pairs(int64_t bytes, int64_t pairs) {
  cudaMemPool_t pool;
  check(cudaDeviceGetDefaultMemPool(&pool, 0));
  uint64_t keep = UINT64_MAX, before = 0;
  check(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &before));
  check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep));
  void* block;
  check(cudaMallocAsync(&block, bytes, 0));
  check(cudaFreeAsync(block, 0));
  auto start = Clock::now();
  for (int64_t i = 0; i < pairs; ++i) {
    check(cudaMallocAsync(&block, bytes, 0));
    check(cudaFreeAsync(block, 0));
  }
  double time_ns = since(start) / pairs;
  check(cudaDeviceSynchronize());
  check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &before));
  check(cudaMemPoolTrimTo(pool, 0));
  return time_ns;
}
"""

MIB = 1 << 20


def load(path):
    library = ctypes.CDLL(path)
    for name in ("parkade_time_pairs", "parkade_time_growth", "parkade_time_simulated_growth"):
        function = getattr(library, name)
        function.argtypes = [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_bool]
        function.restype = ctypes.c_double
    return library


def show(name, rows, unit_ns, unit):
    """Prints one line for each allocator: median, shortest and longest time, and the median relative to that
    of the first allocator."""
    first = None
    for allocator, times in rows.items():
        if min(times) < 0:
            sys.exit(2)
        median = statistics.median(times)
        first = first or median
        spread = f"{min(times) / unit_ns:10.1f} .. {max(times) / unit_ns:.1f}"
        print(f"{name:<32} {allocator:<28} {median / unit_ns:10.1f} {unit}  {spread:<24} {median / first:6.2f} x")


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("library")
    arguments.add_argument("--rounds", type=int, default=11)
    given = arguments.parse_args()
    try:
        import torch
        from torch.utils.cpp_extension import load_inline

        if not torch.cuda.is_available():
            raise RuntimeError("PyTorch finds no CUDA device")
        library = load(os.path.abspath(given.library))
        torch.cuda.init()
        native = load_inline("beside", SOURCE, functions=["torch_pairs", "torch_growth", "async_pairs"], with_cuda=True)
    except (ImportError, OSError, RuntimeError) as error:
        print(f"beside_pytorch.py: {error}", file=sys.stderr)
        return 2
    driver = torch.cuda.get_device_properties(0)
    print(f"{driver.name}, PyTorch {torch.__version__}, CUDA {torch.version.cuda}, {given.rounds} rounds in turns")
    # PyTorch 2.11 has both names and deprecates the second.
    setting = getattr(torch._C, "_accelerator_setAllocatorSettings", None) or torch.cuda.memory._set_allocator_settings
    for bytes_, text in ((4096, "4 KiB"), (2 * MIB, "2 MiB"), (32 * MIB, "32 MiB")):
        rows = {"parkade": [], "PyTorch": [], "cudaMallocAsync": []}
        for _ in range(given.rounds):
            rows["parkade"].append(library.parkade_time_pairs(bytes_, 200_000, False))
            rows["PyTorch"].append(native.torch_pairs(bytes_, 200_000))
            rows["cudaMallocAsync"].append(native.async_pairs(bytes_, 20_000))
        show(f"cached pair, {text}", rows, 1, "ns")
    for expandable in (False, True):
        setting(f"expandable_segments:{expandable}")
        name = "growth, expandable" if expandable else "growth, segments"
        rows = {"parkade": [], "PyTorch": [], "parkade without the driver": []}
        for _ in range(given.rounds):
            rows["parkade"].append(library.parkade_time_growth(32 * MIB, 256, expandable))
            rows["PyTorch"].append(native.torch_growth(32 * MIB, 256))
            rows["parkade without the driver"].append(library.parkade_time_simulated_growth(32 * MIB, 256, expandable))
        show(f"{name}, 256 x 32 MiB", rows, 1000, "us")
    return 0


if __name__ == "__main__":
    sys.exit(main())
