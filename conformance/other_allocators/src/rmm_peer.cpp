// RMM's pool, from librmm.so, on a device that only does arithmetic.
// usage: rmm_peer pool CAPACITY INITIAL MAXIMUM|- SCRIPT|-|bench [stop]
//        rmm_peer pool CAPACITY INITIAL MAXIMUM|- timed SEQUENCE            times a sequence: timed.hpp
//
// librmm.so is linked with its own CUDA runtime, which finds no driver here. What RMM has in headers (lists,
// search, streams) is compiled into this program and calls fake_cudart.cpp. What is in the library (growth, back-off,
// reclaiming, cutting) makes only one CUDA call that matters: for the pool's first segment. This program makes that
// call itself. Build with -fno-access-control.
#include <algorithm>

#include "common.hpp"
#include "timed.hpp"

#include <rmm/cuda_device.hpp>
#include <rmm/error.hpp>
#include <rmm/logger.hpp>
#include <rmm/mr/detail/pool_memory_resource_impl.hpp>

struct Upstream {
  void* allocate_sync(std::size_t n, std::size_t) {
    void* p = peer::device().take(n);
    if (!p) throw rmm::out_of_memory("device");
    return p;
  }
  void deallocate_sync(void* p, std::size_t, std::size_t) noexcept { peer::device().give(p); }
  void* allocate(cuda::stream_ref, std::size_t n, std::size_t a) { return allocate_sync(n, a); }
  void deallocate(cuda::stream_ref, void* p, std::size_t n, std::size_t a) noexcept { deallocate_sync(p, n, a); }
  bool operator==(Upstream const&) const noexcept { return true; }
  bool operator!=(Upstream const&) const noexcept { return false; }
  friend void get_property(Upstream const&, cuda::mr::device_accessible) noexcept {}
};

static cuda::stream_ref stream(uint64_t s) { return cuda::stream_ref{(cudaStream_t)(s ? 0x1000 * s : 0)}; }

int main(int argc, char** argv) {
  if (argc < 6 || std::strcmp(argv[1], "pool")) {
    std::fprintf(stderr, "usage: %s pool CAPACITY INITIAL MAXIMUM|- SCRIPT|-|bench | ... timed SEQUENCE\n", argv[0]);
    return 2;
  }
  rmm::default_logger().set_level(rapids_logger::level_enum::off);
  auto& d = peer::device();
  std::string kind = argv[1];
  d.capacity = std::strtoull(argv[2], nullptr, 0);
  std::size_t initial = std::strtoull(argv[3], nullptr, 0);
  std::optional<std::size_t> maximum;
  if (std::strcmp(argv[4], "-")) maximum = std::strtoull(argv[4], nullptr, 0);
  bool is_bench = !std::strcmp(argv[5], "bench");
  const char* sequence = !std::strcmp(argv[5], "timed") && argc > 6 ? argv[6] : nullptr;
  d.quiet = sequence != nullptr;
  bool stop = argc > 6 && !std::strcmp(argv[6], "stop");
  auto go = [&](auto alloc, auto free_) {
    if (is_bench) {
      peer::bench(kind.c_str(), alloc, free_);
      std::fflush(stdout);
      std::_Exit(0);
    }
    if (sequence) timed::run(sequence, alloc, free_);
    int r = peer::run(peer::read_script(argv[5]), alloc, free_, stop);
    std::fflush(stdout);
    std::_Exit(r);  // no destructors: the library's own CUDA runtime has no device
  };
  cuda::mr::any_resource<cuda::mr::device_accessible> up{Upstream{}};
  rmm::mr::detail::pool_memory_resource_impl pool{up, 0, maximum};
  if (initial) {  // initialize_pool, whose copy in the library would ask its own CUDA runtime for an event
    auto legacy = cuda::stream_ref{cudaStreamLegacy};
    pool.insert_block(pool.try_to_expand(initial, initial, legacy), legacy);
  }
  go(
      [&](std::size_t n, uint64_t s) -> void* {
        try {
          return pool.allocate(stream(s), n, 256);
        } catch (rmm::out_of_memory const&) {
          return nullptr;
        }
      },
      [&](void* p, std::size_t n, uint64_t s) { pool.deallocate(stream(s), p, n, 256); });
}
