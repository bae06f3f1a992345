// The shared parts of the programs around real allocators: a device that only does arithmetic, the script, the output.
//
// Script, one request per line, other lines ignored:
//   a ID BYTES STREAM     allocate
//   f ID                  free
// Output:
//   + N BYTES             the device provided segment N
//   ! BYTES               it refused one
//   - N                   it got one back
//   w                     a stream waits for another's event
//   a ID N+OFFSET         where the block lies, or "a ID oom"
//   f ID                  freed, or "f ID none" where the ID has no memory
//   = ops ... peak ...    the totals, as the last line
#pragma once
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

namespace peer {
// Hands out ascending addresses; each segment takes whole pages of the capacity.
struct Device {
  size_t capacity = ~size_t{0}, page = 2u << 20, used = 0, peak = 0, gap = 0;
  uintptr_t next = 0x100000000000ull;
  int count = 0;
  bool quiet = false;
  unsigned long long waits = 0, mallocs = 0;
  struct Seg {
    int ord;
    size_t bytes;
  };
  std::map<uintptr_t, Seg> segs;
  size_t pages(size_t n) const { return (n + page - 1) / page * page; }
  void* take(size_t n) {
    mallocs++;
    size_t r = pages(n);
    if (n > capacity || used + r > capacity) {
      if (!quiet) std::printf("! %zu\n", n);
      return nullptr;
    }
    used += r;
    if (used > peak) peak = used;
    uintptr_t a = next;
    next += r + gap;
    segs[a] = {count, n};
    if (!quiet) std::printf("+ %d %zu\n", count, n);
    count++;
    return (void*)a;
  }
  void give(void* p) {
    auto it = segs.find((uintptr_t)p);
    if (it == segs.end()) {
      std::fprintf(stderr, "give: unknown %p\n", p);
      std::abort();
    }
    used -= pages(it->second.bytes);
    if (!quiet) std::printf("- %d\n", it->second.ord);
    segs.erase(it);
  }
  std::string name(void* p) const {
    auto it = segs.upper_bound((uintptr_t)p);
    if (it == segs.begin()) return "?";
    --it;
    return std::to_string(it->second.ord) + "+" + std::to_string((uintptr_t)p - it->first);
  }
};
inline Device& device() {
  static Device d;
  return d;
}

struct Op {
  bool alloc;
  uint64_t id;
  size_t bytes;
  uint64_t stream;
};
inline std::vector<Op> read_script(const char* path) {
  std::ifstream f;
  std::istream* in = &std::cin;
  if (path && std::strcmp(path, "-")) {
    f.open(path);
    if (!f) {
      std::perror(path);
      std::exit(2);
    }
    in = &f;
  }
  std::vector<Op> ops;
  std::string k;
  std::string line;
  while (std::getline(*in, line)) {
    unsigned long long id, b, s;
    if (std::sscanf(line.c_str(), "a %llu %llu %llu", &id, &b, &s) == 3)
      ops.push_back({true, id, b, s});
    else if (std::sscanf(line.c_str(), "f %llu", &id) == 1)
      ops.push_back({false, id, 0, 0});
  }
  return ops;
}
// alloc(bytes, stream) -> pointer or null; free(pointer, bytes, stream)
template <class A, class F> int run(const std::vector<Op>& ops, A alloc, F free_, bool stop_at_oom = false) {
  struct Live {
    void* p;
    size_t bytes;
    uint64_t stream;
  };
  std::unordered_map<uint64_t, Live> live;
  size_t ooms = 0, n = 0;
  for (auto& op : ops) {
    n++;
    if (op.alloc) {
      void* p = alloc(op.bytes, op.stream);
      if (!p) {
        ooms++;
        std::printf("a %llu oom\n", (unsigned long long)op.id);
        if (stop_at_oom) break;
        continue;
      }
      std::printf("a %llu %s\n", (unsigned long long)op.id, device().name(p).c_str());
      live[op.id] = {p, op.bytes, op.stream};
    } else {
      auto it = live.find(op.id);
      if (it == live.end()) {
        std::printf("f %llu none\n", (unsigned long long)op.id);
        continue;
      }
      free_(it->second.p, it->second.bytes, it->second.stream);
      live.erase(it);
      std::printf("f %llu\n", (unsigned long long)op.id);
    }
  }
  std::printf("= ops %zu ooms %zu peak %zu mallocs %llu waits %llu\n", n, ooms, device().peak, device().mallocs,
              device().waits);
  for (auto& [id, l] : live) free_(l.p, l.bytes, l.stream);
  return 0;
}
// Medians of 7 rounds, ns per alloc+free pair: hit of one size; a random one of `live` blocks replaced, 512 B..8 MiB
// (small: 512 B..1 MiB).
template <class A, class F> void bench(const char* who, A alloc, F free_) {
  device().quiet = true;
  auto now = [] { return std::chrono::steady_clock::now(); };
  auto med = [](std::vector<double> v) {
    std::sort(v.begin(), v.end());
    return v[v.size() / 2];
  };
  for (size_t bytes : {size_t{4096}, size_t{2} << 20}) {
    std::vector<double> r;
    for (int k = 0; k < 7; k++) {
      const int n = 200000;
      auto t = now();
      for (int i = 0; i < n; i++) {
        void* p = alloc(bytes, 0);
        free_(p, bytes, 0);
      }
      r.push_back(std::chrono::duration<double, std::nano>(now() - t).count() / n);
    }
    std::printf("%s hit %zu: %.1f ns/pair\n", who, bytes, med(r));
  }
  for (size_t live : {size_t{100}, size_t{1000}, size_t{10000}}) {
    std::vector<std::pair<void*, size_t>> b(live, {nullptr, 0});
    uint64_t s = 88172645463325252ull;
    auto rnd = [&] {
      s ^= s << 13;
      s ^= s >> 7;
      s ^= s << 17;
      return s;
    };
    auto size = [&] {
      size_t e = 9 + rnd() % 14;
      return (size_t{1} << e) + rnd() % (size_t{1} << e);
    };  // 512 B .. 8 MiB
    for (auto& x : b) {
      x.second = size();
      x.first = alloc(x.second, 0);
      if (!x.first) {
        std::printf("%s mix: oom\n", who);
        return;
      }
    }
    std::vector<double> r;
    const int n = live >= 10000 ? 20000 : 50000;
    for (int k = 0; k < 8; k++) {
      auto t = now();
      for (int i = 0; i < n; i++) {
        auto& x = b[rnd() % live];
        free_(x.first, x.second, 0);
        x.second = size();
        x.first = alloc(x.second, 0);
        if (!x.first) {
          std::printf("%s mix: oom\n", who);
          return;
        }
      }
      if (k) r.push_back(std::chrono::duration<double, std::nano>(now() - t).count() / n);
    }
    std::printf("%s mix 512B-8MiB, %zu live: %.1f ns/pair (device: %d segments, %zu MiB)\n", who, live, med(r),
                device().count, device().used >> 20);
    for (auto& x : b) free_(x.first, x.second, 0);
  }
}
}  // namespace peer
