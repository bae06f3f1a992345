// The allocator's interface under one set of names for all releases; TORCH_MINOR is the release's minor version.
// Functions that a release lacks throw.
#pragma once
#include <c10/core/Allocator.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <dlfcn.h>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>
#if TORCH_MINOR >= 2 && TORCH_MINOR < 10
#include <c10/cuda/CUDAAllocatorConfig.h>
#endif

namespace c10::cuda::detail {
C10_CUDA_API void init_p2p_access_cache(int64_t);
}
namespace c10::cuda::_internal {
C10_CUDA_API void setHasPrimaryContext(bool (*func)(DeviceIndex));
}

namespace release {
namespace CCA = c10::cuda::CUDACachingAllocator;

#if TORCH_MINOR >= 5
namespace statistics = c10::CachingDeviceAllocator;
#else
namespace statistics = c10::cuda::CUDACachingAllocator;
#endif
#if TORCH_MINOR >= 11
namespace traces = c10::CachingDeviceAllocator;
#else
namespace traces = c10::cuda::CUDACachingAllocator;
#endif
#if TORCH_MINOR >= 9
using c10::MempoolId_t;
#else
using c10::cuda::MempoolId_t;
#endif
using statistics::DeviceStats;
using traces::TraceEntry;

[[noreturn]] inline void missing() { throw std::runtime_error("not in this release"); }

// The functions that libtorch installs in a program that is linked with it.
inline void install_hooks() {
  c10::cuda::_internal::setHasPrimaryContext([](c10::DeviceIndex) { return true; });
#if TORCH_MINOR >= 11
  c10::cuda::detail::init_p2p_access_cache(c10::cuda::device_count());
#endif
}

// Replaces PyTorch's allocator with parkade, under the policy pytorch with this release's rules, if ORACLE_BRIDGE names
// the library that bridge.sh builds. Call this before the allocator is initialised.
inline void install_bridge(unsigned flags = 0) {
  const char* path = getenv("ORACLE_BRIDGE");
  if (!path || !*path) return;
  void* library = dlopen(path, RTLD_NOW);
  auto install = library ? (int (*)(const char*, const char*, unsigned, unsigned long long))dlsym(
                               library, "parkade_bridge_install")
                         : nullptr;
  auto error_text = library ? (const char* (*)())dlsym(library, "parkade_bridge_error_text") : nullptr;
  const auto name = "2." + std::to_string(TORCH_MINOR);
  const int status = install && error_text ? install("pytorch", name.c_str(), flags, 0) : -1;
  if (status == 0) return;
  const char* problem = status == -1 ? dlerror() : error_text();
  fprintf(stderr, "cannot install the allocator of %s: status %d: %s\n", path, status, problem ? problem : "");
  _Exit(2);
}

// The counters that only some releases have.
inline std::vector<std::pair<const char*, int64_t>> counters(const DeviceStats& d) {
  return {
      {"num_alloc_retries", d.num_alloc_retries},       {"num_ooms", d.num_ooms},
#if TORCH_MINOR >= 3
      {"num_sync_all_streams", d.num_sync_all_streams}, {"num_device_alloc", d.num_device_alloc},
      {"num_device_free", d.num_device_free},
#endif
#if TORCH_MINOR >= 12
      {"num_oom_rejections", d.num_oom_rejections},
#endif
  };
}

inline bool records_pools() { return TORCH_MINOR >= 8; }  // in trace entries
inline MempoolId_t pool_of([[maybe_unused]] const TraceEntry& t) {
#if TORCH_MINOR >= 8
  return t.mempool_;
#else
  return {0, 0};
#endif
}

inline CCA::SnapshotInfo snapshot([[maybe_unused]] MempoolId_t pool, [[maybe_unused]] bool with_traces) {
#if TORCH_MINOR >= 11
  return CCA::snapshot(pool, with_traces);
#elif TORCH_MINOR >= 8
  return CCA::snapshot(pool);
#else
  if (pool != MempoolId_t{0, 0}) missing();
  return CCA::snapshot();
#endif
}
// The number that orders blocks of equal size, in the style of a JSON field.
template <class Segment> std::string registration([[maybe_unused]] const Segment& segment) {
#if TORCH_MINOR >= 11
  return ",\"reg\":" + std::to_string(segment.registration_counter);
#else
  return "";
#endif
}
// The settings as the snapshot has them, without the quoted text, which goes between the two.
struct Config {
  std::string before, last, after;
  bool is_there;
};
inline Config config([[maybe_unused]] const CCA::SnapshotInfo& s) {
#if TORCH_MINOR >= 3
  auto& c = s.config_metadata;
  std::ostringstream before, after;
  before << "\"gc_threshold\":" << c.garbage_collection_threshold << ",\"max_split_size\":" << c.max_split_size
         << ",\"expandable_segments\":" << c.expandable_segments << ",\"release_lock\":" << c.release_lock_on_malloc;
#if TORCH_MINOR >= 9
  before << ",\"graph_reuse\":" << c.graph_capture_record_stream_reuse;
#endif
  for (size_t i = 0; i < c.roundup_power2_divisions.size(); i++)
    after << (i ? "," : "") << c.roundup_power2_divisions[i];
  return {before.str(), c.last_allocator_settings, after.str(), true};
#else
  return {"", "", "", false};
#endif
}

inline void record_history(bool on, size_t entries) {
#if TORCH_MINOR >= 11
  CCA::recordHistory(on, nullptr, entries, traces::RecordContext::NEVER, true, {});
#elif TORCH_MINOR >= 8
  CCA::recordHistory(on, nullptr, entries, traces::RecordContext::NEVER, true);
#else
  CCA::recordHistory(on, nullptr, entries, traces::RecordContext::NEVER);
#endif
}

// Every trace entry as it is made: take() calls `each` for those since begin(). 2.1 has no trackers: there the history
// is switched on again before an operation and read by a snapshot after it, unless the script itself switches it.
class Events {
  bool is_on = false;

 public:
  template <class Each> void attach([[maybe_unused]] Each each) {
#if TORCH_MINOR >= 2
    CCA::attachAllocatorTraceTracker(each);
#else
    record_history(true, 1);
#endif
    is_on = true;
  }
  void leave_to_script() { is_on = false; }
  void begin() {
#if TORCH_MINOR < 2
    if (is_on) record_history(true, 1 << 24);
#endif
  }
  template <class Each> void take([[maybe_unused]] Each each) {
#if TORCH_MINOR < 2
    if (!is_on) return;
    for (auto& entries : CCA::snapshot().device_traces)
      for (auto& entry : entries) each(entry);  // without this snapshot's own, which comes later
#endif
  }
};

inline void empty_cache() { CCA::emptyCache(); }
inline void empty_cache([[maybe_unused]] MempoolId_t pool) {
#if TORCH_MINOR >= 8
  CCA::emptyCache(pool);
#else
  missing();
#endif
}
inline double memory_fraction([[maybe_unused]] int device) {
#if TORCH_MINOR >= 6
  return CCA::getMemoryFraction(device);
#else
  missing();
#endif
}
inline void enable([[maybe_unused]] bool on) {
#if TORCH_MINOR >= 6
  CCA::enable(on);
#else
  missing();
#endif
}
inline std::pair<size_t, size_t> memory_info([[maybe_unused]] int device) {
#if TORCH_MINOR >= 10
  return CCA::get()->getMemoryInfo(device);
#else
  missing();
#endif
}

struct ExpandableSize {
  void* stream;
  bool is_small_pool;
  size_t total_size;
};
inline std::vector<ExpandableSize> expandable_sizes([[maybe_unused]] int device) {
#if TORCH_MINOR >= 10
  std::vector<ExpandableSize> sizes;
  for (auto& s : CCA::getExpandableSegmentSizes(device))
    sizes.push_back({(void*)s.stream, s.is_small_pool, s.total_size});
  return sizes;
#else
  missing();
#endif
}

// The options are use_on_oom, no_use_on_oom and no_split; other words are ignored.
inline void pool_create([[maybe_unused]] int device, [[maybe_unused]] MempoolId_t pool,
                        const std::vector<std::string>& options) {
  for (auto& option : options)
    if ((option == "use_on_oom" && TORCH_MINOR < 8) || (option == "no_use_on_oom" && TORCH_MINOR < 11) ||
        (option == "no_split" && TORCH_MINOR < 10))
      missing();
#if TORCH_MINOR >= 8
  CCA::createOrIncrefPool(device, pool);
#elif TORCH_MINOR >= 6
  CCA::ensureExistsAndIncrefPool(device, pool);
#else
  missing();
#endif
  for (auto& option : options) {
#if TORCH_MINOR >= 11
    if (option == "use_on_oom") CCA::setUseOnOOM(device, pool, true);
    if (option == "no_use_on_oom") CCA::setUseOnOOM(device, pool, false);
#elif TORCH_MINOR >= 8
    if (option == "use_on_oom") CCA::setUseOnOOM(device, pool);
#endif
#if TORCH_MINOR >= 10
    if (option == "no_split") CCA::setNoSplit(device, pool);
#endif
  }
}
inline int pool_use_count([[maybe_unused]] int device, [[maybe_unused]] MempoolId_t pool) {
#if TORCH_MINOR >= 6
  return CCA::getPoolUseCount(device, pool);
#else
  missing();
#endif
}

// Requests of one stream, or of all, go to a pool. Up to 2.2, a stream is named instead of matched by a filter, so
// there is no "all".
#if TORCH_MINOR < 3
inline std::map<MempoolId_t, cudaStream_t>& routed() {
  static std::map<MempoolId_t, cudaStream_t> streams;
  return streams;
}
#endif
inline void pool_begin(int device, MempoolId_t pool, bool of_all, cudaStream_t stream) {
#if TORCH_MINOR >= 3
  CCA::beginAllocateToPool(device, pool, [of_all, stream](cudaStream_t x) { return of_all || x == stream; });
#else
  if (of_all) missing();
  CCA::beginAllocateStreamToPool(device, stream, pool);
  routed()[pool] = stream;
#endif
}
inline void pool_end(int device, MempoolId_t pool) {
#if TORCH_MINOR >= 3
  CCA::endAllocateToPool(device, pool);
#else
  auto it = routed().find(pool);
  if (it == routed().end()) missing();
  CCA::endAllocateStreamToPool(device, it->second);
#endif
}
inline void capture_begins([[maybe_unused]] int device) {
#if TORCH_MINOR >= 13
  CCA::markCaptureBegin(device);
#endif
}
inline void capture_ends([[maybe_unused]] int device) {
#if TORCH_MINOR >= 13
  CCA::markCaptureEnd(device);
#endif
}

inline c10::DataPtr allocate_at([[maybe_unused]] size_t bytes, [[maybe_unused]] void* address) {
#if TORCH_MINOR >= 13
  return CCA::allocateWithAddress(bytes, address);
#else
  missing();
#endif
}
inline void reserve_class([[maybe_unused]] cudaStream_t stream, [[maybe_unused]] const std::string& name) {
#if TORCH_MINOR >= 15
  CCA::setExpandableSegmentReserveClassForStream(stream, name);
#else
  missing();
#endif
}
}  // namespace release
