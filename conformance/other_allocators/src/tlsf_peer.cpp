// mattconte/tlsf on a plain region of addresses (mmap, never touched but for its headers).
// usage: tlsf_peer unit|raw CAPACITY SCRIPT|-|bench [stop]
//   unit  requests rounded so that blocks with their headers are multiples of 512 bytes
//   raw   requests as they are
#include "common.hpp"
#include <sys/mman.h>
extern "C" {
#include "tlsf.h"
}
int main(int argc, char** argv) {
  if (argc < 4) { std::fprintf(stderr, "usage: %s unit|raw CAPACITY SCRIPT|-|bench [stop]\n", argv[0]); return 2; }
  bool unit = !std::strcmp(argv[1], "unit");
  size_t cap = std::strtoull(argv[2], nullptr, 0) & ~size_t{511};
  auto& d = peer::device();
  size_t overhead = tlsf_pool_overhead();
  char* m = (char*)mmap(nullptr, cap + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (m == MAP_FAILED) { std::perror("mmap"); return 2; }
  static char control[1 << 20];
  if (tlsf_size() > sizeof control) return 2;
  tlsf_t t = tlsf_create(control);
  // The first block begins at offset 0, its header before it. Each block ends with the header of the next, the last one with the pool's second header.
  pool_t p = tlsf_add_pool(t, m, cap - overhead / 2 + overhead);
  if (!p) { std::fprintf(stderr, "tlsf_add_pool\n"); return 2; }
  d.segs[(uintptr_t)m + 8] = {0, cap}; d.used = d.peak = cap;
  auto alloc = [&](size_t n, uint64_t) { return tlsf_malloc(t, unit ? (n + 511) / 512 * 512 - tlsf_alloc_overhead() : n); };
  auto free_ = [&](void* q, size_t, uint64_t) { tlsf_free(t, q); };
  if (!std::strcmp(argv[3], "bench")) { peer::bench("tlsf", alloc, free_); return 0; }
  int r = peer::run(peer::read_script(argv[3]), alloc, free_, argc > 4 && !std::strcmp(argv[4], "stop"));
  std::fflush(stdout); std::_Exit(r);
}
