// RMM's pool or arena, out of librmm.so, on a device made of arithmetic.
// usage: rmm_peer pool|arena CAPACITY INITIAL MAXIMUM|- SCRIPT|-|bench [stop]     (arena: INITIAL is the arena's size)
//        rmm_peer pool|arena CAPACITY INITIAL MAXIMUM|- timed SEQUENCE            times a sequence: timed.hpp
//
// librmm.so has a CUDA runtime of its own linked in, which finds no driver here. What RMM has in headers (lists, search, streams) is compiled into
// this program and calls fake_cudart.cpp. What is in the library (growth, back-off, reclaiming, cutting, the arenas) makes only two CUDA calls that
// matter: for the pool's first segment, and the wait before arenas defragment. This program does both itself.
// Build with -fno-access-control.
#include <algorithm>
#include "common.hpp"
#include "timed.hpp"
#include <rmm/cuda_device.hpp>
#include <rmm/error.hpp>
#include <rmm/mr/detail/arena_memory_resource_impl.hpp>
#include <rmm/mr/detail/pool_memory_resource_impl.hpp>
#include <rmm/logger.hpp>

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

// The arenas' constructor asks for the device's memory even when it is told a size, and the library's own runtime would throw: this replaces it.
RMM_NAMESPACE_BEGIN
std::pair<std::size_t, std::size_t> available_device_memory() {
  return {peer::device().capacity - peer::device().used, peer::device().capacity};
}
RMM_NAMESPACE_END

static cuda::stream_ref stream(uint64_t s) { return cuda::stream_ref{(cudaStream_t)(s ? 0x1000 * s : 0)}; }

int main(int argc, char** argv) {
  if (argc < 6) { std::fprintf(stderr, "usage: %s pool|arena CAPACITY INITIAL MAXIMUM|- SCRIPT|-|bench | ... timed SEQUENCE\n", argv[0]); return 2; }
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
    if (is_bench) { peer::bench(kind.c_str(), alloc, free_); std::fflush(stdout); std::_Exit(0); }
    if (sequence) timed::run(sequence, alloc, free_);
    int r = peer::run(peer::read_script(argv[5]), alloc, free_, stop);
    std::fflush(stdout);
    std::_Exit(r);  // no destructors: the library's own CUDA runtime has no device
  };
  cuda::mr::any_resource<cuda::mr::device_accessible> up{Upstream{}};
  if (kind == "pool") {
    rmm::mr::detail::pool_memory_resource_impl pool{up, 0, maximum};
    if (initial) {  // initialize_pool, whose copy in the library would ask its own CUDA runtime for an event
      auto legacy = cuda::stream_ref{cudaStreamLegacy};
      pool.insert_block(pool.try_to_expand(initial, initial, legacy), legacy);
    }
    go([&](std::size_t n, uint64_t s) -> void* {
         try { return pool.allocate(stream(s), n, 256); } catch (rmm::out_of_memory const&) { return nullptr; }
       },
       [&](void* p, std::size_t n, uint64_t s) { pool.deallocate(stream(s), p, n, 256); });
  } else {
    rmm::mr::detail::arena_memory_resource_impl arena{up, std::optional<std::size_t>{initial}, false};
    auto once = [&](std::size_t n, uint64_t s, bool& asked) -> void* {
      try { return arena.allocate(stream(s), n, 256); }
      catch (rmm::cuda_error const&) { asked = true; return nullptr; }        // defragment: cudaDeviceSynchronize, no driver
      catch (rmm::out_of_memory const&) { return nullptr; }
    };
    go([&](std::size_t n, uint64_t s) -> void* {
         bool asked = false;
         void* p = once(n, s, asked);
         if (!p && asked) {
           if (!is_bench) std::printf("d\n");
           for (auto& t : arena.thread_arenas_) t.second->clean();
           for (auto& t : arena.stream_arenas_) t.second.clean();
           p = once(n, s, asked);
         }
         return p;
       },
       [&](void* p, std::size_t n, uint64_t s) { arena.deallocate(stream(s), p, n, 256); });
  }
}
