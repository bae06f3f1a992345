// The BFC allocator of TensorFlow and XLA, from libtensorflow_framework.so.2, on a device that only does arithmetic.
// usage: bfc_peer KIND CAPACITY LIMIT SCRIPT|-|bench [stop]
//        bfc_peer KIND CAPACITY LIMIT timed SEQUENCE      times a sequence: timed.hpp
//   grow       allow_growth and garbage_collection: TensorFlow's GPU allocator
//   grow-keep  only allow_growth: XLA's and JAX's with preallocation off
//   one        only garbage_collection, one region of LIMIT bytes: TensorFlow's without allow_growth
//   prealloc   neither, one region of LIMIT bytes: XLA's and JAX's
// Prints "= hangs" and ends where the allocator would keep asking a device that refuses.
// LIMIT is the allocator's total_memory. BFC has no streams; the script's are ignored.
#include "common.hpp"
#include "timed.hpp"
#include "xla/tsl/framework/bfc_allocator.h"

struct Sub : tsl::SubAllocator {
  Sub() : tsl::SubAllocator({}, {}) {}
  void* Alloc(size_t, size_t n, size_t* got) override {
    void* p = peer::device().take(n);
    if (!p && n <= 2304) {
      // Nine tenths of 2,304 bytes or fewer are rounded up to the same size again, so 2.21.0 keeps asking forever.
      std::printf("= hangs\n");
      std::fflush(stdout);
      std::_Exit(0);
    }
    *got = n;
    return p;
  }
  void Free(void* p, size_t) override { peer::device().give(p); }
  bool SupportsCoalescing() const override { return false; }
};

int main(int argc, char** argv) {
  if (argc < 5) {
    std::fprintf(stderr,
                 "usage: %s grow|grow-keep|one|prealloc CAPACITY LIMIT SCRIPT|-|bench [stop] | ... timed SEQUENCE\n",
                 argv[0]);
    return 2;
  }
  auto& d = peer::device();
  std::string kind = argv[1];
  d.capacity = std::strtoull(argv[2], nullptr, 0);
  size_t limit = std::strtoull(argv[3], nullptr, 0);
  tsl::BFCAllocator::Options o;
  o.allow_growth = kind != "prealloc" && kind != "one";
  o.garbage_collection = kind == "grow" || kind == "one";
  o.allow_retry_on_failure = false;  // no other thread will return anything
  auto* bfc = new tsl::BFCAllocator(std::make_unique<Sub>(), limit, "peer", o);
  tsl::AllocationAttributes quiet(/*retry_on_failure=*/false, /*allocation_will_be_logged=*/false, nullptr);
  auto alloc = [&](size_t n, uint64_t) { return bfc->AllocateRaw(256, n, quiet); };
  auto free_ = [&](void* p, size_t, uint64_t) { bfc->DeallocateRaw(p); };
  if (!std::strcmp(argv[4], "bench")) {
    peer::bench("bfc", alloc, free_);
    std::fflush(stdout);
    std::_Exit(0);
  }
  if (argc > 5 && !std::strcmp(argv[4], "timed")) {
    d.quiet = true;
    timed::run(argv[5], alloc, free_);
  }
  int r = peer::run(peer::read_script(argv[4]), alloc, free_, argc > 5 && !std::strcmp(argv[5], "stop"));
  std::fflush(stdout);
  std::_Exit(r);
}
