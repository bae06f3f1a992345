// Allocates and frees through PyTorch's allocator from C++, without a tensor: one thread or several, each on its own
// stream. Also reports which allocator PyTorch uses, and makes it use a different one. speed.py builds it and calls its
// C functions.

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

// The number of blocks that a thread holds before it frees them, in a different order from the one it took them in.
constexpr int HELD = 32;

// Sizes in both pools, and one block that takes most of a segment.
constexpr size_t SIZES[] = {512, 4096, 100000, 700000, 1500000, 3000000, 9000000, 512};

size_t size_of(int kind, uint64_t round) { return kind == 1 ? SIZES[round % 8] : 65536; }

// kind 0: a block of 64 KiB is taken and freed. kind 1: 32 blocks of several sizes are taken, and freed in another
// order.
void work(int kind, int64_t pairs, cudaStream_t stream) {
  auto* allocator = c10::cuda::CUDACachingAllocator::get();
  if (kind == 0) {
    for (int64_t i = 0; i < pairs; i++) {
      allocator->raw_delete(allocator->raw_alloc_with_stream(size_of(0, 0), stream));
    }
    return;
  }
  void* held[HELD];
  for (int64_t round = 0; round < pairs / HELD; round++) {
    for (int i = 0; i < HELD; i++) {
      held[i] = allocator->raw_alloc_with_stream(size_of(1, i + round), stream);
    }
    for (int i = 0; i < HELD; i++) {
      allocator->raw_delete(held[(i * 13) % HELD]);
    }
  }
}

}  // namespace

// Nanoseconds for `pairs` allocations and frees in each of `threads` threads, from the start of the first to the end of
// the last. Returns a negative number if a thread met an error.
extern "C" double raw_pairs(int kind, int threads, int64_t pairs) {
  std::vector<c10::cuda::CUDAStream> streams;
  for (int i = 0; i < threads; i++) {
    streams.push_back(c10::cuda::getStreamFromPool());
  }
  std::atomic<int> ready{0};
  std::atomic<bool> go{false}, failed{false};
  std::vector<std::thread> workers;
  for (int i = 0; i < threads; i++) {
    workers.emplace_back([&, i] {
      try {
        c10::cuda::CUDAGuard guard(0);
        // The segments exist when the clock starts.
        work(kind, 4 * HELD, streams[i].stream());
        ready++;
        while (!go) {}
        work(kind, pairs, streams[i].stream());
      } catch (...) {
        failed = true;
        ready++;
      }
    });
  }
  while (ready < threads) {
    std::this_thread::yield();
  }
  auto start = Clock::now();
  go = true;
  for (auto& worker : workers) {
    worker.join();
  }
  double nanoseconds = std::chrono::duration<double, std::nano>(Clock::now() - start).count();
  return failed ? -1.0 : nanoseconds;
}

extern "C" void* allocator_in_use() { return c10::cuda::CUDACachingAllocator::get(); }

// Blocks return to the allocator that they came from, whichever allocator is in use at that time.
extern "C" void use_allocator(void* address) {
  auto* allocator = static_cast<c10::cuda::CUDACachingAllocator::CUDAAllocator*>(address);
  c10::cuda::CUDACachingAllocator::allocator.store(allocator);
  c10::SetAllocator(c10::DeviceType::CUDA, allocator, 1);
}

// For an allocator that was not in use when PyTorch began to use CUDA, which would have done it. Returns whether it
// worked.
extern "C" bool begin_allocator(void* address, int devices) {
  try {
    static_cast<c10::cuda::CUDACachingAllocator::CUDAAllocator*>(address)->init(devices);
    return true;
  } catch (...) {
    return false;
  }
}
