// Times the real c10::cuda::CUDACachingAllocator on fakecuda.cpp: timed-2.11.0 SEQUENCE, as described in timed.hpp.
//
// Requests go through raw_alloc_with_stream and raw_delete, the shortest path. Other streams can be recorded only for a
// DataPtr, so those steps go through allocate(). Settings come from PYTORCH_CUDA_ALLOC_CONF; FAKE_EVENTS_AUTO=1
// completes every event immediately. If ORACLE_BRIDGE names a library built by bridge.sh, PyTorch runs on parkade.
#include "timed.hpp"
#include "release.hpp"

namespace CCA = c10::cuda::CUDACachingAllocator;

static cudaStream_t handle(uint64_t stream) { return (cudaStream_t)(uintptr_t)(0x1000 * stream); }

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s SEQUENCE\n", argv[0]);
    return 2;
  }
  release::install_hooks();
  release::install_bridge();
  CCA::init(c10::cuda::device_count());
  c10::cuda::set_device(0);
  auto* allocator = CCA::get();
  auto other = c10::cuda::getStreamFromExternal(handle(7), 0);
  timed::run(
      argv[1], [&](size_t bytes, uint64_t stream) { return allocator->raw_alloc_with_stream(bytes, handle(stream)); },
      [&](void* p, size_t, uint64_t) { allocator->raw_delete(p); },
      [&](size_t bytes) {
        auto p = allocator->allocate(bytes);
        allocator->recordStream(p, other);
        p.clear();
      });
}
