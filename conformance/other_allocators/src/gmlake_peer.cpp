// GMLake's CUDACachingAllocator.cpp (glake 0274a9c, for PyTorch 2.0), compiled against the headers of torch 2.0.1, on the fake driver of
// conformance/oracle/pytorch_harness.
// usage: FAKE_GPU_BYTES=CAPACITY FAKE_EVENTS_AUTO=1 gmlake_peer SCRIPT|-|bench [stop]     (GMLake's own: vmmDefragment, fragLimit, ...)
#include "common.hpp"
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/util/Exception.h>
extern "C" { size_t fake_peak(int); void fake_set_log(int); const char* fake_take_log(); int fake_norm(const void*, char*, int); }
namespace A = c10::cuda::CUDACachingAllocator;
int main(int argc, char** argv) {
  if (argc < 2) { std::fprintf(stderr, "usage: %s SCRIPT|-|bench [stop]\n", argv[0]); return 2; }
  A::init(1);
  auto alloc = [&](size_t n, uint64_t s) -> void* {
    try { return A::get()->raw_alloc_with_stream(n, (cudaStream_t)(s * 0x1000)); } catch (c10::OutOfMemoryError const&) { return nullptr; }
  };
  auto free_ = [&](void* p, size_t, uint64_t) { A::get()->raw_delete(p); };
  if (!std::strcmp(argv[1], "bench")) { peer::bench("gmlake", alloc, free_); std::fflush(stdout); std::_Exit(0); }
  bool stop = argc > 2 && !std::strcmp(argv[2], "stop");
  auto ops = peer::read_script(argv[1]);
  fake_set_log(std::getenv("LOG") ? 1 : 0);
  struct L { void* p; size_t n; uint64_t s; };
  std::unordered_map<uint64_t, L> live; size_t n = 0, ooms = 0;
  for (auto& op : ops) {
    n++;
    if (op.alloc) {
      void* p = alloc(op.bytes, op.stream);
      const char* l = fake_take_log(); if (*l) std::printf("# %s\n", l);
      char name[64] = ""; if (p) fake_norm(p, name, sizeof name);
      if (!p) { ooms++; std::printf("a %llu oom\n", (unsigned long long)op.id); if (stop) break; continue; }
      std::printf("a %llu %s\n", (unsigned long long)op.id, name);
      live[op.id] = {p, op.bytes, op.stream};
    } else if (auto it = live.find(op.id); it != live.end()) {
      free_(it->second.p, 0, 0); live.erase(it); std::printf("f %llu\n", (unsigned long long)op.id);
    } else std::printf("f %llu none\n", (unsigned long long)op.id);
  }
  auto st = A::get()->getDeviceStats(0);
  std::printf("= ops %zu ooms %zu peak %zu reserved %zu\n", n, ooms, fake_peak(0), (size_t)st.reserved_bytes[0].peak);
  std::fflush(stdout); std::_Exit(0);
}
