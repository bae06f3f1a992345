// A deterministic model of the CUDA runtime and of the driver's virtual memory calls that libc10_cuda.so uses. Needs no
// GPU and touches no memory.
//
// Environment, read once, at the first call:
//   FAKE_GPU_BYTES    capacity of each device in bytes (default 8 GiB)
//   FAKE_GPU_COUNT    number of devices (default 1)
//   FAKE_GPU_BASE     bytes that other processes use from the start (default 0)
//   FAKE_ADDR_POLICY  up (default): ascending addresses; down: descending; reuse: the lowest hole first
//   FAKE_EVENTS_AUTO  1: every event is complete immediately (default 0)
//   FAKE_FREE_SYNC    1: cudaFree and cuMemUnmap complete all events (default 0)
//   FAKE_FABRIC       1: cuMemCreate accepts fabric handles (default 0: NOT_PERMITTED)
//   FAKE_SEG_GAP      bytes left free between two cudaMallocs (default 0)
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <unistd.h>
#include <algorithm>
#include <charconv>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#define X extern "C" __attribute__((visibility("default")))

namespace {
constexpr size_t GRAN = 2ull << 20;
constexpr int MAXDEV = 16;
size_t rup(size_t n, size_t g = GRAN) { return (n + g - 1) / g * g; }

struct Seg {
  size_t size;
  int dev;
  int ord;
  char kind;
  bool live;
  size_t phys;
};
struct Handle {
  size_t size;
  int dev;
  int ord;
  int maps;
  bool released;
};
struct StreamSt {
  uint64_t rec = 0, done = 0;
  std::vector<uint64_t> pending;
};
struct Event {
  uintptr_t stream = 0;
  uint64_t seq = 0;
  bool recorded = false;
  int ord;
};
struct Mapping {
  size_t size;
  CUmemGenericAllocationHandle h;
  bool access;
};
struct Capture {
  unsigned long long id;
  std::vector<cudaGraphNode_t> last;
};

struct State {
  std::mutex m;
  int ndev = 1;
  size_t cap[MAXDEV], used[MAXDEV] = {}, ext[MAXDEV] = {};
  size_t peak[MAXDEV] = {};
  size_t gap = 0;
  char policy = 'u';
  bool auto_ev = false, free_sync = false;
  uintptr_t va_c = 0x100000000000ull;  // cudaMalloc region (grows up)
  uintptr_t va_d = 0x1f0000000000ull;  // cudaMalloc region, policy "down"
  uintptr_t va_v = 0x200000000000ull;  // cuMemAddressReserve region
  uintptr_t va_a = 0x300000000000ull;  // cudaMallocAsync region
  std::map<uintptr_t, Seg> segs;       // every range ever handed out (latest)
  std::map<uintptr_t, size_t> holes;   // for policy reuse
  int n_c = 0, n_v = 0, n_h = 0, n_e = 0, n_s = 0, n_a = 0;
  std::unordered_map<unsigned long long, Handle> handles;
  std::map<uintptr_t, Mapping> maps;
  std::unordered_map<uintptr_t, StreamSt> streams;
  std::map<uintptr_t, Capture> captures;
  unsigned long long next_cap = 1;
  std::vector<std::vector<cudaGraphNode_t>> nodes;  // for each node of a graph, the nodes that it depends on
  std::set<int> ev_live;
  int fail_next = 0;
  int log = 0;
  std::string buf;
  State() {
    auto e = [](const char* n, size_t d) {
      const char* v = getenv(n);
      return v && *v ? (size_t)strtoull(v, nullptr, 0) : d;
    };
    ndev = (int)e("FAKE_GPU_COUNT", 1);
    if (ndev > MAXDEV) ndev = MAXDEV;
    for (int i = 0; i < MAXDEV; i++) {
      cap[i] = e("FAKE_GPU_BYTES", 8ull << 30);
      ext[i] = e("FAKE_GPU_BASE", 0);
    }
    gap = e("FAKE_SEG_GAP", 0);
    auto_ev = e("FAKE_EVENTS_AUTO", 0);
    free_sync = e("FAKE_FREE_SYNC", 0);
    if (const char* p = getenv("FAKE_ADDR_POLICY")) policy = p[0];
  }
};
State& S() {
  static State* s = new State;
  return *s;
}
thread_local cudaError_t t_last = cudaSuccess;
thread_local int t_dev = 0;
thread_local cudaStreamCaptureMode t_mode = cudaStreamCaptureModeGlobal;

cudaError_t R(cudaError_t e) {
  if (e != cudaSuccess) t_last = e;
  return e;
}

// A log line is a JSON array [name, result, arguments...]. lv: 1 memory, 2 also events and synchronisation, 3
// everything.
void L(int lv, const char* fmt, ...) {
  State& s = S();
  if (s.log < lv) return;
  char b[512];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(b, sizeof b, fmt, ap);
  va_end(ap);
  if (!s.buf.empty()) s.buf += ',';
  s.buf += b;
}
[[noreturn]] void die(const char* what) {
  fprintf(stderr, "fakecuda: FATAL: %s\n", what);
  abort();
}
// Writes the name of an address into 64 bytes at `b` and returns its length.
int put_name(char* b, uintptr_t p) {
  State& s = S();
  auto it = s.segs.upper_bound(p);
  if (it != s.segs.begin()) {
    --it;
    if (p < it->first + it->second.size) {
      char* at = b;
      *at++ = it->second.kind;
      at = std::to_chars(at, b + 64, it->second.ord).ptr;
      *at++ = '+';
      return (int)(std::to_chars(at, b + 64, (size_t)(p - it->first)).ptr - b);
    }
  }
  return snprintf(b, 64, "0x%zx", (size_t)p);
}
std::string norm_(uintptr_t p) {
  char b[64];
  return std::string(b, put_name(b, p));
}
bool take_phys(int dev, size_t n) {
  State& s = S();
  if (s.fail_next > 0) {
    s.fail_next--;
    return false;
  }
  if (s.used[dev] + s.ext[dev] + n > s.cap[dev]) return false;
  s.used[dev] += n;
  if (s.used[dev] > s.peak[dev]) s.peak[dev] = s.used[dev];
  return true;
}
void complete_all_() {
  State& s = S();
  for (auto& kv : s.streams) {
    kv.second.done = kv.second.rec;
    kv.second.pending.clear();
  }
}
}  // namespace

// ---------------------------------------------------------------- control API
X void fake_set_log(int level) { S().log = level; }
X const char* fake_take_log() {  // JSON fragment (comma separated arrays)
  static thread_local std::string out;
  std::lock_guard<std::mutex> g(S().m);
  out.swap(S().buf);
  S().buf.clear();
  return out.c_str();
}
X void fake_complete_events(cudaStream_t st) {
  State& s = S();
  std::lock_guard<std::mutex> g(s.m);
  auto& x = s.streams[(uintptr_t)st];
  x.done = x.rec;
  x.pending.clear();
}
X int fake_complete_oldest(cudaStream_t st) {
  State& s = S();
  std::lock_guard<std::mutex> g(s.m);
  auto& x = s.streams[(uintptr_t)st];
  if (x.pending.empty()) return 0;
  x.done = x.pending.front();
  x.pending.erase(x.pending.begin());
  return 1;
}
X void fake_complete_all() {
  State& s = S();
  std::lock_guard<std::mutex> g(s.m);
  complete_all_();
}
X void fake_fail_next(int n, int) { S().fail_next = n; }
X void fake_set_capacity(int dev, size_t b) { S().cap[dev] = b; }
X void fake_set_external(int dev, size_t b) { S().ext[dev] = b; }
X size_t fake_used(int dev) { return S().used[dev]; }
X size_t fake_peak(int dev) { return S().peak[dev]; }
X unsigned long long fake_capture_begin(cudaStream_t st) {
  State& s = S();
  std::lock_guard<std::mutex> g(s.m);
  auto id = s.next_cap++;
  s.captures[(uintptr_t)st] = {id, {}};
  return id;
}
// Ends the stream's capture on all streams that take part in it.
X void fake_capture_end(cudaStream_t st) {
  State& s = S();
  std::lock_guard<std::mutex> g(s.m);
  auto at = s.captures.find((uintptr_t)st);
  if (at == s.captures.end()) return;
  auto id = at->second.id;
  for (auto it = s.captures.begin(); it != s.captures.end();)
    it = it->second.id == id ? s.captures.erase(it) : std::next(it);
}
// Work on a captured stream: adds a node after the stream's latest nodes. Returns its number, or 0 if the stream is not
// captured.
X size_t fake_capture_work(cudaStream_t st) {
  State& s = S();
  std::lock_guard<std::mutex> g(s.m);
  auto at = s.captures.find((uintptr_t)st);
  if (at == s.captures.end()) return 0;
  s.nodes.push_back(std::move(at->second.last));
  at->second.last = {(cudaGraphNode_t)(uintptr_t)s.nodes.size()};
  return s.nodes.size();
}
// Later work on a stream waits for the work queued so far on another, captured stream, and takes part in that capture.
// Returns 0 if the other stream is not captured, or the stream is in a different capture.
X int fake_capture_wait(cudaStream_t st, cudaStream_t other) {
  State& s = S();
  std::lock_guard<std::mutex> g(s.m);
  auto of = s.captures.find((uintptr_t)other);
  if (of == s.captures.end()) return 0;
  auto& capture = s.captures.try_emplace((uintptr_t)st, Capture{of->second.id, {}}).first->second;
  if (capture.id != of->second.id) return 0;
  for (auto node : of->second.last)
    if (std::find(capture.last.begin(), capture.last.end(), node) == capture.last.end()) capture.last.push_back(node);
  return 1;
}
X int fake_norm(const void* p, char* out, int) {  // writes into 64 bytes, without a NUL, and returns the length
  State& s = S();
  std::lock_guard<std::mutex> g(s.m);
  return put_name(out, (uintptr_t)p);
}
X size_t fake_live_events() { return S().ev_live.size(); }

// ---------------------------------------------------------------- runtime API
X cudaError_t cudaGetDeviceCount(int* n) {
  *n = S().ndev;
  L(3, "[\"cudaGetDeviceCount\",0,%d]", *n);
  return cudaSuccess;
}
X cudaError_t cudaGetDevice(int* d) {
  *d = t_dev;
  return cudaSuccess;
}
X cudaError_t cudaSetDevice(int d) {
  if (d < 0 || d >= S().ndev) return R(cudaErrorInvalidDevice);
  t_dev = d;
  L(3, "[\"cudaSetDevice\",0,%d]", d);
  return cudaSuccess;
}
X cudaError_t cudaGetLastError(void) {
  auto e = t_last;
  t_last = cudaSuccess;
  if (e) L(3, "[\"cudaGetLastError\",%d]", (int)e);
  return e;
}
X cudaError_t cudaPeekAtLastError(void) { return t_last; }
X cudaError_t cudaDriverGetVersion(int* v) {
  *v = CUDART_VERSION;
  return cudaSuccess;
}
X cudaError_t cudaRuntimeGetVersion(int* v) {
  *v = CUDART_VERSION;
  return cudaSuccess;
}
X cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int d) {
  memset(p, 0, sizeof *p);
  snprintf(p->name, sizeof p->name, "FakeGPU");
  p->totalGlobalMem = S().cap[d];
  p->major = 9;
  p->minor = 0;
  p->multiProcessorCount = 132;
  p->warpSize = 32;
  p->maxThreadsPerBlock = 1024;
  p->pciBusID = d + 1;
  L(1, "[\"cudaGetDeviceProperties\",0,%d,%zu]", d, p->totalGlobalMem);
  return cudaSuccess;
}
X cudaError_t cudaMemGetInfo(size_t* f, size_t* t) {
  State& s = S();
  std::lock_guard<std::mutex> g(s.m);
  size_t u = s.used[t_dev] + s.ext[t_dev];
  *t = s.cap[t_dev];
  *f = u > *t ? 0 : *t - u;
  L(1, "[\"cudaMemGetInfo\",0,%zu,%zu]", *f, *t);
  return cudaSuccess;
}
X cudaError_t cudaMalloc(void** p, size_t n) {
  State& s = S();
  std::lock_guard<std::mutex> g(s.m);
  size_t r = rup(n ? n : 1);
  if (n == 0) {
    *p = nullptr;
    L(1, "[\"cudaMalloc\",0,0,\"null\"]");
    return cudaSuccess;
  }
  if (!take_phys(t_dev, r)) {
    *p = nullptr;
    L(1, "[\"cudaMalloc\",2,%zu]", n);
    return R(cudaErrorMemoryAllocation);
  }
  uintptr_t a = 0;
  if (s.policy == 'd') {
    s.va_d -= r + s.gap;
    a = s.va_d;
  } else {
    if (s.policy == 'r')
      for (auto it = s.holes.begin(); it != s.holes.end(); ++it)
        if (it->second >= r) {
          a = it->first;
          size_t rest = it->second - r;
          s.holes.erase(it);
          if (rest) s.holes[a + r] = rest;
          break;
        }
    if (!a) {
      a = s.va_c;
      s.va_c += r + s.gap;
    } else {  // drop stale records inside the reused range
      for (auto it = s.segs.lower_bound(a); it != s.segs.end() && it->first < a + r;) it = s.segs.erase(it);
    }
  }
  s.segs[a] = Seg{r, t_dev, s.n_c++, 'c', true, r};
  *p = (void*)a;
  L(1, "[\"cudaMalloc\",0,%zu,\"c%d\"]", n, s.segs[a].ord);
  return cudaSuccess;
}
X cudaError_t cudaFree(void* p) {
  State& s = S();
  std::lock_guard<std::mutex> g(s.m);
  if (!p) {
    L(1, "[\"cudaFree\",0,\"null\"]");
    return cudaSuccess;
  }
  auto it = s.segs.find((uintptr_t)p);
  if (it == s.segs.end() || !it->second.live) {
    L(1, "[\"cudaFree\",1,\"%s\"]", norm_((uintptr_t)p).c_str());
    die("cudaFree of a pointer that is not a live cudaMalloc");
  }
  it->second.live = false;
  s.used[it->second.dev] -= it->second.phys;
  if (s.free_sync) complete_all_();
  if (s.policy == 'r') {
    uintptr_t a = it->first;
    size_t n = it->second.size;
    auto h = s.holes.emplace(a, n).first;
    auto nx = std::next(h);
    if (nx != s.holes.end() && h->first + h->second == nx->first) {
      h->second += nx->second;
      s.holes.erase(nx);
    }
    if (h != s.holes.begin()) {
      auto pv = std::prev(h);
      if (pv->first + pv->second == h->first) {
        pv->second += h->second;
        s.holes.erase(h);
      }
    }
  }
  L(1, "[\"cudaFree\",0,\"%c%d\"]", it->second.kind, it->second.ord);
  return cudaSuccess;
}
// stream-ordered allocator (backend:cudaMallocAsync)
X cudaError_t cudaMallocAsync(void** p, size_t n, cudaStream_t st) {
  State& s = S();
  std::lock_guard<std::mutex> g(s.m);
  size_t r = rup(n ? n : 1);
  if (!take_phys(t_dev, r)) {
    *p = nullptr;
    L(1, "[\"cudaMallocAsync\",2,%zu,%zu]", n, (size_t)st);
    return R(cudaErrorMemoryAllocation);
  }
  uintptr_t a = s.va_a;
  s.va_a += r;
  s.segs[a] = Seg{r, t_dev, s.n_a++, 'a', true, r};
  *p = (void*)a;
  L(1, "[\"cudaMallocAsync\",0,%zu,%zu,\"a%d\"]", n, (size_t)st, s.segs[a].ord);
  return cudaSuccess;
}
X cudaError_t cudaFreeAsync(void* p, cudaStream_t st) {
  State& s = S();
  std::lock_guard<std::mutex> g(s.m);
  auto it = s.segs.find((uintptr_t)p);
  if (it == s.segs.end() || !it->second.live) die("cudaFreeAsync of a pointer that is not live");
  it->second.live = false;
  s.used[it->second.dev] -= it->second.phys;
  L(1, "[\"cudaFreeAsync\",0,%zu,\"a%d\"]", (size_t)st, it->second.ord);
  return cudaSuccess;
}
X cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* p, int d) {
  *p = (cudaMemPool_t)(uintptr_t)(0x500000 + d);
  return cudaSuccess;
}
X cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t p, cudaMemPoolAttr a, void* v) {
  int d = (int)((uintptr_t)p - 0x500000);
  *(uint64_t*)v = (a == cudaMemPoolAttrReservedMemHigh || a == cudaMemPoolAttrUsedMemHigh) ? S().peak[d] : S().used[d];
  return cudaSuccess;
}
X cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) { return cudaSuccess; }
X cudaError_t cudaMemPoolSetAccess(cudaMemPool_t, const cudaMemAccessDesc*, size_t) { return cudaSuccess; }
X cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, size_t) { return cudaSuccess; }
X cudaError_t cudaDeviceGetGraphMemAttribute(int, cudaGraphMemAttributeType, void* v) {
  *(uint64_t*)v = 0;
  return cudaSuccess;
}
X cudaError_t cudaDeviceSetGraphMemAttribute(int, cudaGraphMemAttributeType, void*) { return cudaSuccess; }

X cudaError_t cudaMemcpy(void*, const void*, size_t, cudaMemcpyKind) { return cudaSuccess; }
X cudaError_t cudaMemcpyAsync(void*, const void*, size_t, cudaMemcpyKind, cudaStream_t) { return cudaSuccess; }
X cudaError_t cudaMemcpyPeerAsync(void*, int, const void*, int, size_t, cudaStream_t) { return cudaSuccess; }
X cudaError_t cudaDeviceCanAccessPeer(int* r, int a, int b) {
  *r = a != b;
  return cudaSuccess;
}
X cudaError_t cudaDeviceEnablePeerAccess(int p, unsigned) {
  L(2, "[\"cudaDeviceEnablePeerAccess\",0,%d]", p);
  return cudaSuccess;
}
X cudaError_t cudaDeviceGetStreamPriorityRange(int* l, int* h) {
  *l = 0;
  *h = -5;
  return cudaSuccess;
}
X cudaError_t cudaStreamGetPriority(cudaStream_t, int* p) {
  *p = 0;
  return cudaSuccess;
}
X cudaError_t cudaStreamCreateWithPriority(cudaStream_t* st, unsigned, int) {
  State& s = S();
  std::lock_guard<std::mutex> g(s.m);
  *st = (cudaStream_t)(uintptr_t)(0x900000 + 0x100 * s.n_s++);
  return cudaSuccess;
}
X cudaError_t cudaStreamSynchronize(cudaStream_t st) {
  fake_complete_events(st);
  L(2, "[\"cudaStreamSynchronize\",0,%zu]", (size_t)st);
  return cudaSuccess;
}
X cudaError_t cudaStreamQuery(cudaStream_t st) {
  State& s = S();
  std::lock_guard<std::mutex> g(s.m);
  auto& x = s.streams[(uintptr_t)st];
  return (s.auto_ev || x.done >= x.rec) ? cudaSuccess : R(cudaErrorNotReady);
}
X cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }
X cudaError_t cudaDeviceSynchronize(void) {
  State& s = S();
  std::lock_guard<std::mutex> g(s.m);
  complete_all_();
  L(2, "[\"cudaDeviceSynchronize\",0]");
  return cudaSuccess;
}

X cudaError_t cudaEventCreateWithFlags(cudaEvent_t* e, unsigned f) {
  State& s = S();
  std::lock_guard<std::mutex> g(s.m);
  auto* x = new Event;
  x->ord = s.n_e++;
  s.ev_live.insert(x->ord);
  *e = (cudaEvent_t)x;
  L(2, "[\"cudaEventCreate\",0,%d,%u]", x->ord, f);
  return cudaSuccess;
}
X cudaError_t cudaEventCreate(cudaEvent_t* e) { return cudaEventCreateWithFlags(e, 0); }
X cudaError_t cudaEventDestroy(cudaEvent_t e) {
  State& s = S();
  std::lock_guard<std::mutex> g(s.m);
  auto* x = (Event*)e;
  s.ev_live.erase(x->ord);
  L(2, "[\"cudaEventDestroy\",0,%d]", x->ord);
  delete x;
  return cudaSuccess;
}
X cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t st) {
  State& s = S();
  std::lock_guard<std::mutex> g(s.m);
  auto* x = (Event*)e;
  auto& q = s.streams[(uintptr_t)st];
  x->stream = (uintptr_t)st;
  x->seq = ++q.rec;
  x->recorded = true;
  if (s.auto_ev)
    q.done = q.rec;
  else
    q.pending.push_back(x->seq);
  L(2, "[\"cudaEventRecord\",0,%d,%zu]", x->ord, (size_t)st);
  return cudaSuccess;
}
X cudaError_t cudaEventRecordWithFlags(cudaEvent_t e, cudaStream_t st, unsigned) { return cudaEventRecord(e, st); }
X cudaError_t cudaEventQuery(cudaEvent_t e) {
  State& s = S();
  std::lock_guard<std::mutex> g(s.m);
  auto* x = (Event*)e;
  bool ok = !x->recorded || s.streams[x->stream].done >= x->seq;
  L(2, "[\"cudaEventQuery\",%d,%d]", ok ? 0 : 600, x->ord);
  return ok ? cudaSuccess : R(cudaErrorNotReady);
}
X cudaError_t cudaEventSynchronize(cudaEvent_t e) {
  State& s = S();
  std::lock_guard<std::mutex> g(s.m);
  auto* x = (Event*)e;
  if (x->recorded) {
    auto& q = s.streams[x->stream];
    if (q.done < x->seq) q.done = x->seq;
    while (!q.pending.empty() && q.pending.front() <= q.done) q.pending.erase(q.pending.begin());
  }
  L(2, "[\"cudaEventSynchronize\",0,%d]", x->ord);
  return cudaSuccess;
}
X cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t, cudaEvent_t) {
  *ms = 0;
  return cudaSuccess;
}
X cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* m) {
  auto o = t_mode;
  t_mode = *m;
  *m = o;
  return cudaSuccess;
}
X cudaError_t cudaStreamIsCapturing(cudaStream_t st, cudaStreamCaptureStatus* o) {
  State& s = S();
  std::lock_guard<std::mutex> g(s.m);
  *o = s.captures.count((uintptr_t)st) ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
// CUDA 13 added the edges' data.
#if CUDART_VERSION >= 13000
#define EDGE_DATA_OUT const cudaGraphEdgeData **ed,
#define EDGE_DATA cudaGraphEdgeData*,
#define NO_EDGE_DATA nullptr,
#else
#define EDGE_DATA_OUT
#define EDGE_DATA
#define NO_EDGE_DATA
#endif
X cudaError_t cudaStreamGetCaptureInfo(cudaStream_t st, cudaStreamCaptureStatus* o, unsigned long long* id,
                                       cudaGraph_t* gr, const cudaGraphNode_t** deps, EDGE_DATA_OUT size_t* nd) {
  State& s = S();
  std::lock_guard<std::mutex> g(s.m);
  auto it = s.captures.find((uintptr_t)st);
  bool c = it != s.captures.end();
  *o = c ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  if (id) *id = c ? it->second.id : 0;
  if (gr) *gr = c ? (cudaGraph_t)(uintptr_t)(0x700000 + it->second.id * 0x100) : nullptr;
  if (deps) *deps = c && !it->second.last.empty() ? it->second.last.data() : nullptr;
#if CUDART_VERSION >= 13000
  if (ed) *ed = nullptr;
#endif
  if (nd) *nd = c ? it->second.last.size() : 0;
  return cudaSuccess;
}
// A graph's nodes are the script's work and the empty nodes that 2.9 adds to remember the stream's progress when a
// block was freed; 1 is the first.
static cudaGraphNode_t node(size_t number) { return (cudaGraphNode_t)(uintptr_t)number; }
X cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t at, cudaGraphNode_t* out, EDGE_DATA size_t* n) {
  State& s = S();
  std::lock_guard<std::mutex> g(s.m);
  auto& before = s.nodes.at((uintptr_t)at - 1);
  if (out && before.empty()) return R(cudaErrorInvalidValue);  // as on an H100 with driver 580.159.04
  if (out)
    for (size_t i = 0; i < *n && i < before.size(); i++) out[i] = before[i];
  if (n) *n = before.size();
  return cudaSuccess;
}
#if CUDART_VERSION < 13000
X cudaError_t cudaGraphAddEmptyNode(cudaGraphNode_t* out, cudaGraph_t, const cudaGraphNode_t* before, size_t n) {
  State& s = S();
  std::lock_guard<std::mutex> g(s.m);
  s.nodes.emplace_back(before, before + n);
  *out = node(s.nodes.size());
  L(2, "[\"cudaGraphAddEmptyNode\",0,%zu]", s.nodes.size());
  return cudaSuccess;
}
X cudaError_t cudaGraphNodeGetType(cudaGraphNode_t, cudaGraphNodeType* type) {
  *type = cudaGraphNodeTypeEmpty;
  return cudaSuccess;
}
X cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t st, cudaGraphNode_t* nodes, size_t n, unsigned flags) {
  State& s = S();
  std::lock_guard<std::mutex> g(s.m);
  auto it = s.captures.find((uintptr_t)st);
  if (it == s.captures.end()) return R(cudaErrorInvalidValue);
  auto& last = it->second.last;
  if (flags == cudaStreamSetCaptureDependencies) last.clear();
  last.insert(last.end(), nodes, nodes + n);
  return cudaSuccess;
}
#endif
X cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* h, void* p) {
  memset(h, 0, sizeof *h);
  memcpy(h, &p, sizeof p);
  return cudaSuccess;
}
X cudaError_t cudaIpcOpenMemHandle(void** p, cudaIpcMemHandle_t h, unsigned) {
  memcpy(p, &h, sizeof *p);
  return cudaSuccess;
}
X cudaError_t cudaIpcCloseMemHandle(void*) { return cudaSuccess; }
X const char* cudaGetErrorName(cudaError_t e) {
  switch (e) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorNotReady:
      return "cudaErrorNotReady";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorInvalidDevice:
      return "cudaErrorInvalidDevice";
    default:
      return "cudaErrorUnknown";
  }
}
X const char* cudaGetErrorString(cudaError_t e) {
  switch (e) {
    case cudaSuccess:
      return "no error";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorNotReady:
      return "device not ready";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    default:
      return "unknown error";
  }
}

// ---------------------------------------------------------------- driver API
#undef cuMemCreate
X CUresult cuInit(unsigned) { return CUDA_SUCCESS; }
X CUresult cuDeviceGet(CUdevice* d, int o) {
  *d = o;
  return CUDA_SUCCESS;
}
X CUresult cuDeviceGetAttribute(int* v, CUdevice_attribute a, CUdevice) {
  switch (a) {
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
      *v = 1;
      break;
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
      *v = 1;
      break;
    default:
      *v = 0;
  }
  L(3, "[\"cuDeviceGetAttribute\",0,%d,%d]", (int)a, *v);
  return CUDA_SUCCESS;
}
X CUresult cuMemGetAllocationGranularity(size_t* g, const CUmemAllocationProp*, CUmemAllocationGranularity_flags) {
  *g = GRAN;
  return CUDA_SUCCESS;
}
X CUresult cuMemAddressReserve(CUdeviceptr* p, size_t n, size_t al, CUdeviceptr a, unsigned long long) {
  State& s = S();
  std::lock_guard<std::mutex> g(s.m);
  if (n % GRAN) {
    L(1, "[\"cuMemAddressReserve\",1,%zu]", n);
    return CUDA_ERROR_INVALID_VALUE;
  }
  uintptr_t r = s.va_v;
  s.va_v += rup(n, 1ull << 30) + (1ull << 30);
  s.segs[r] = Seg{n, t_dev, s.n_v++, 'v', true, 0};
  *p = r;
  L(1, "[\"cuMemAddressReserve\",0,%zu,\"v%d\"]", n, s.segs[r].ord);
  return CUDA_SUCCESS;
}
X CUresult cuMemAddressFree(CUdeviceptr p, size_t n) {
  State& s = S();
  std::lock_guard<std::mutex> g(s.m);
  auto it = s.segs.find(p);
  if (it == s.segs.end() || !it->second.live || it->second.size != n)
    die("cuMemAddressFree: not a live reservation of that size");
  auto m = s.maps.lower_bound(p);
  if (m != s.maps.end() && m->first < p + n) die("cuMemAddressFree: range still mapped");
  it->second.live = false;
  L(1, "[\"cuMemAddressFree\",0,\"v%d\",%zu]", it->second.ord, n);
  return CUDA_SUCCESS;
}
X CUresult cuMemCreate(CUmemGenericAllocationHandle* h, size_t n, const CUmemAllocationProp* pr, unsigned long long) {
  State& s = S();
  std::lock_guard<std::mutex> g(s.m);
  int dev = pr->location.id;
  static const bool fabric = getenv("FAKE_FABRIC") && atoi(getenv("FAKE_FABRIC"));
  if (!fabric && ((int)pr->requestedHandleTypes & (int)CU_MEM_HANDLE_TYPE_FABRIC)) {
    L(1, "[\"cuMemCreate\",800,%zu,%d]", n, (int)pr->requestedHandleTypes);
    return CUDA_ERROR_NOT_PERMITTED;
  }
  if (n % GRAN) {
    L(1, "[\"cuMemCreate\",1,%zu]", n);
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (!take_phys(dev, n)) {
    L(1, "[\"cuMemCreate\",2,%zu]", n);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  int o = s.n_h++;
  *h = 0x10000 + o;
  s.handles[*h] = Handle{n, dev, o, 0, false};
  L(1, "[\"cuMemCreate\",0,%zu,\"h%d\",%d]", n, o, (int)pr->requestedHandleTypes);
  return CUDA_SUCCESS;
}
static void maybe_drop(State& s, unsigned long long h) {
  auto it = s.handles.find(h);
  if (it->second.released && it->second.maps == 0) {
    s.used[it->second.dev] -= it->second.size;
    s.handles.erase(it);
  }
}
X CUresult cuMemRelease(CUmemGenericAllocationHandle h) {
  State& s = S();
  std::lock_guard<std::mutex> g(s.m);
  auto it = s.handles.find(h);
  if (it == s.handles.end() || it->second.released) die("cuMemRelease: bad handle");
  it->second.released = true;
  L(1, "[\"cuMemRelease\",0,\"h%d\"]", it->second.ord);
  maybe_drop(s, h);
  return CUDA_SUCCESS;
}
X CUresult cuMemMap(CUdeviceptr p, size_t n, size_t off, CUmemGenericAllocationHandle h, unsigned long long) {
  State& s = S();
  std::lock_guard<std::mutex> g(s.m);
  auto it = s.handles.find(h);
  if (it == s.handles.end()) die("cuMemMap: bad handle");
  if (off != 0 || n != it->second.size || p % GRAN) die("cuMemMap: bad size/offset/alignment");
  auto sg = s.segs.upper_bound(p);
  if (sg == s.segs.begin()) die("cuMemMap: not in a reservation");
  --sg;
  if (sg->second.kind != 'v' || !sg->second.live || p + n > sg->first + sg->second.size)
    die("cuMemMap: outside its reservation");
  auto m = s.maps.lower_bound(p);
  if (m != s.maps.end() && m->first < p + n) die("cuMemMap: overlaps the next mapping");
  if (m != s.maps.begin()) {
    auto q = std::prev(m);
    if (q->first + q->second.size > p) die("cuMemMap: overlaps the previous mapping");
  }
  s.maps[p] = Mapping{n, h, false};
  it->second.maps++;
  L(1, "[\"cuMemMap\",0,\"%s\",%zu,\"h%d\"]", norm_(p).c_str(), n, it->second.ord);
  return CUDA_SUCCESS;
}
X CUresult cuMemSetAccess(CUdeviceptr p, size_t n, const CUmemAccessDesc* d, size_t c) {
  State& s = S();
  std::lock_guard<std::mutex> g(s.m);
  size_t at = p;
  while (at < p + n) {
    auto m = s.maps.find(at);
    if (m == s.maps.end()) die("cuMemSetAccess: range not fully mapped");
    m->second.access = true;
    at += m->second.size;
  }
  L(1, "[\"cuMemSetAccess\",0,\"%s\",%zu,%d]", norm_(p).c_str(), n, (int)d->location.id);
  return CUDA_SUCCESS;
}
X CUresult cuMemUnmap(CUdeviceptr p, size_t n) {
  State& s = S();
  std::lock_guard<std::mutex> g(s.m);
  size_t at = p;
  while (at < p + n) {
    auto m = s.maps.find(at);
    if (m == s.maps.end()) die("cuMemUnmap: range not fully mapped");
    auto h = m->second.h;
    at += m->second.size;
    s.maps.erase(m);
    s.handles[h].maps--;
    maybe_drop(s, h);
  }
  if (s.free_sync) complete_all_();
  L(1, "[\"cuMemUnmap\",0,\"%s\",%zu]", norm_(p).c_str(), n);
  return CUDA_SUCCESS;
}
X CUresult cuMemExportToShareableHandle(void*, CUmemGenericAllocationHandle, CUmemAllocationHandleType,
                                        unsigned long long) {
  return CUDA_ERROR_NOT_SUPPORTED;
}
X CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle*, void*, CUmemAllocationHandleType) {
  return CUDA_ERROR_NOT_SUPPORTED;
}
X CUresult cuGetErrorString(CUresult e, const char** s) {
  *s = e == CUDA_SUCCESS               ? "no error"
       : e == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory"
       : e == CUDA_ERROR_INVALID_VALUE ? "invalid argument"
                                       : "unknown error";
  return CUDA_SUCCESS;
}
X CUresult fake_cuMemGetAddressRange(CUdeviceptr* b, size_t* n, CUdeviceptr p) {
  State& s = S();
  std::lock_guard<std::mutex> g(s.m);
  auto it = s.segs.upper_bound(p);
  if (it == s.segs.begin()) return CUDA_ERROR_NOT_FOUND;
  --it;
  if (!it->second.live || p >= it->first + it->second.size) return CUDA_ERROR_NOT_FOUND;
  if (b) *b = it->first;
  if (n) *n = it->second.size;
  L(1, "[\"cuMemGetAddressRange\",0,\"%s\"]", norm_(p).c_str());
  return CUDA_SUCCESS;
}
// Functions that releases look up under these names but do not call here.
#define UNMODELLED(name)                   \
  X CUresult fake_##name() __asm__(#name); \
  X CUresult fake_##name() { die(#name " is not modelled"); }
UNMODELLED(cuMemRetainAllocationHandle)
UNMODELLED(cuMemGetAllocationPropertiesFromHandle)
UNMODELLED(cuMemsetD32Async)
UNMODELLED(cuStreamWriteValue32)
UNMODELLED(cuMulticastAddDevice)
UNMODELLED(cuMulticastBindMem)
UNMODELLED(cuMulticastCreate)
static void* entry(const char* n) {
#define E(f) \
  if (!strcmp(n, #f)) return (void*)&f;
  E(cuDeviceGet)
  E(cuDeviceGetAttribute)
  E(cuMemAddressReserve)
  E(cuMemRelease)
  E(cuMemMap)
  E(cuMemAddressFree)
  E(cuMemSetAccess)
  E(cuMemUnmap)
  E(cuMemCreate)
  E(cuMemGetAllocationGranularity)
  E(cuMemExportToShareableHandle)
  E(cuMemImportFromShareableHandle)
  E(cuGetErrorString)
  E(cuInit)
#undef E
  if (!strcmp(n, "cuMemGetAddressRange")) return (void*)&fake_cuMemGetAddressRange;
#define E(f) \
  if (!strcmp(n, #f)) return (void*)&fake_##f;
  E(cuMemRetainAllocationHandle)
  E(cuMemGetAllocationPropertiesFromHandle)
  E(cuMemsetD32Async)
  E(cuStreamWriteValue32)
#undef E
  return nullptr;
}
X cudaError_t cudaGetDriverEntryPointByVersion(const char* sym, void** f, unsigned v, unsigned long long,
                                               cudaDriverEntryPointQueryResult* r) {
  void* p = entry(sym);
  *f = p;
  if (r) *r = p ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  L(3, "[\"cudaGetDriverEntryPointByVersion\",0,\"%s\",%u,%d]", sym, v, p != nullptr);
  return cudaSuccess;
}
#if CUDART_VERSION < 13000
X cudaError_t cudaGetDriverEntryPoint(const char* sym, void** f, unsigned long long flags,
                                      cudaDriverEntryPointQueryResult* r) {
  return cudaGetDriverEntryPointByVersion(sym, f, CUDART_VERSION, flags, r);
}
#endif

// ---------------------------------------------------------------- the rest of the driver API, for programs that use it
// instead of the runtime's
#undef cuDeviceTotalMem
#undef cuMemGetInfo
#undef cuMemAlloc
#undef cuMemFree
#undef cuStreamDestroy
#undef cuEventDestroy
#undef cuDevicePrimaryCtxRelease
#undef cuDeviceGetUuid
static CUresult as_driver(cudaError_t e) {
  t_last = cudaSuccess;  // the runtime does not see driver errors
  return e == cudaErrorMemoryAllocation ? CUDA_ERROR_OUT_OF_MEMORY
         : e == cudaErrorNotReady       ? CUDA_ERROR_NOT_READY
                                        : (CUresult)e;
}
X CUresult cuDriverGetVersion(int* v) {
  *v = CUDART_VERSION;
  return CUDA_SUCCESS;
}
X CUresult cuDeviceGetCount(int* n) {
  *n = S().ndev;
  return CUDA_SUCCESS;
}
X CUresult cuDeviceGetName(char* b, int n, CUdevice) {
  snprintf(b, n, "FakeGPU");
  return CUDA_SUCCESS;
}
X CUresult cuDeviceTotalMem_v2(size_t* n, CUdevice d) {
  *n = S().cap[d];
  return CUDA_SUCCESS;
}
X CUresult cuDeviceGetUuid_v2(CUuuid* u, CUdevice d) {
  memset(u, 0, sizeof *u);
  u->bytes[15] = (char)d;
  return CUDA_SUCCESS;
}
X CUresult cuDeviceGetPCIBusId(char* b, int n, CUdevice d) {
  snprintf(b, n, "0000:%02x:00.0", d + 1);
  return CUDA_SUCCESS;
}
X CUresult cuDeviceCanAccessPeer(int* c, CUdevice a, CUdevice b) {
  *c = a != b;
  return CUDA_SUCCESS;
}
X CUresult cuDevicePrimaryCtxRetain(CUcontext* c, CUdevice d) {
  *c = (CUcontext)(uintptr_t)(0x500000 + 0x1000 * d);
  return CUDA_SUCCESS;
}
X CUresult cuDevicePrimaryCtxRelease_v2(CUdevice) { return CUDA_SUCCESS; }
X CUresult cuCtxGetCurrent(CUcontext* c) {
  *c = (CUcontext)(uintptr_t)(0x500000 + 0x1000 * t_dev);
  return CUDA_SUCCESS;
}
X CUresult cuCtxSetCurrent(CUcontext c) {
  if (c) t_dev = (int)(((uintptr_t)c - 0x500000) / 0x1000);
  return CUDA_SUCCESS;
}
X CUresult cuCtxGetId(CUcontext c, unsigned long long* id) {
  *id = (uintptr_t)c;
  return CUDA_SUCCESS;
}
X CUresult cuCtxSynchronize() { return as_driver(cudaDeviceSynchronize()); }
X CUresult cuMemGetInfo_v2(size_t* f, size_t* t) { return as_driver(cudaMemGetInfo(f, t)); }
X CUresult cuMemAlloc_v2(CUdeviceptr* p, size_t n) { return as_driver(cudaMalloc((void**)p, n)); }
X CUresult cuMemFree_v2(CUdeviceptr p) { return as_driver(cudaFree((void*)p)); }
X CUresult cuStreamCreate(CUstream* st, unsigned f) { return as_driver(cudaStreamCreateWithPriority(st, f, 0)); }
X CUresult cuStreamDestroy_v2(CUstream) { return CUDA_SUCCESS; }
X CUresult cuStreamQuery(CUstream st) { return as_driver(cudaStreamQuery(st)); }
// As in CUDA 12.3 and later; CUDA 12's header has different names for them.
X CUresult cuStreamGetCaptureInfo_v3(CUstream st, CUstreamCaptureStatus* o, cuuint64_t* id, CUgraph* gr,
                                     const CUgraphNode** deps, const CUgraphEdgeData** ed, size_t* nd) {
  cudaStreamCaptureStatus status;
  unsigned long long number;
  auto e =
      cudaStreamGetCaptureInfo(st, &status, &number, (cudaGraph_t*)gr, (const cudaGraphNode_t**)deps, NO_EDGE_DATA nd);
  *o = (CUstreamCaptureStatus)status;
  if (id) *id = number;
  if (ed) *ed = nullptr;
  return as_driver(e);
}
X CUresult cuGraphNodeGetDependencies_v2(CUgraphNode at, CUgraphNode* out, CUgraphEdgeData*, size_t* n) {
  return as_driver(cudaGraphNodeGetDependencies((cudaGraphNode_t)at, (cudaGraphNode_t*)out, NO_EDGE_DATA n));
}
X CUresult cuStreamSynchronize(CUstream st) { return as_driver(cudaStreamSynchronize(st)); }
X CUresult cuStreamWaitEvent(CUstream, CUevent, unsigned) { return CUDA_SUCCESS; }
X CUresult cuEventCreate(CUevent* e, unsigned f) { return as_driver(cudaEventCreateWithFlags(e, f)); }
X CUresult cuEventDestroy_v2(CUevent e) { return as_driver(cudaEventDestroy(e)); }
X CUresult cuEventRecord(CUevent e, CUstream st) { return as_driver(cudaEventRecord(e, st)); }
X CUresult cuEventQuery(CUevent e) { return as_driver(cudaEventQuery(e)); }
X CUresult cuEventSynchronize(CUevent e) { return as_driver(cudaEventSynchronize(e)); }
UNMODELLED(cuMemcpyDtoH_v2)
UNMODELLED(cuMemcpyDtoDAsync_v2)
UNMODELLED(cuModuleLoadData)
UNMODELLED(cuModuleGetFunction)
UNMODELLED(cuModuleUnload)
UNMODELLED(cuLaunchKernel)
