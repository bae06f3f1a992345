// The differences between the headers of PyTorch's releases, under one set of names. TORCH_MINOR is the minor version;
// no other file in the bridge uses it.
#pragma once
// Defined as when PyTorch's own library is compiled: without it, the headers say that segments are never expandable.
#define PYTORCH_C10_DRIVER_API_SUPPORTED 1
#include <c10/core/Allocator.h>
#include <c10/core/impl/GPUTrace.h>
#include <c10/cuda/CUDAAllocatorConfig.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/ApproximateClock.h>
#include <c10/util/Exception.h>
#include <c10/util/env.h>
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>
#include "parkade.h"

// `override` for functions that PyTorch's class has only in these releases. In the others, nothing calls them.
#if TORCH_MINOR >= 10
#define PARKADE_OVERRIDE_SINCE_10 override
#else
#define PARKADE_OVERRIDE_SINCE_10
#endif
#if TORCH_MINOR >= 11
#define PARKADE_OVERRIDE_SINCE_11 override
#define PARKADE_OVERRIDE_BEFORE_11
#else
#define PARKADE_OVERRIDE_SINCE_11
#define PARKADE_OVERRIDE_BEFORE_11 override
#endif
#if TORCH_MINOR >= 12
#define PARKADE_OVERRIDE_SINCE_12 override
#else
#define PARKADE_OVERRIDE_SINCE_12
#endif
#if TORCH_MINOR >= 13
#define PARKADE_OVERRIDE_SINCE_13 override
#else
#define PARKADE_OVERRIDE_SINCE_13
#endif
#if TORCH_MINOR >= 14
#define PARKADE_OVERRIDE_SINCE_14 override
#else
#define PARKADE_OVERRIDE_SINCE_14
#endif

namespace parkade {
// Texts are made with these functions and `+`. If a compiler links a second C++ library into the bridge, its streams
// crash at the first number or pointer, and PyTorch's macros join their arguments by a stream if there are several.
inline std::string in_text(const void* address) {
  if (!address) return "0";  // as a stream writes it
  char text[2 + 2 * sizeof address + 1];
  std::snprintf(text, sizeof text, "%p", address);
  return text;
}

namespace CCA = c10::cuda::CUDACachingAllocator;
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
using c10::CachingDeviceAllocator::DeviceStats;
using traces::AllocatorTraceTracker;
using traces::AnnotationEntry;
using traces::BlockInfo;
using traces::CreateContextFn;
using traces::RecordContext;
using traces::SegmentInfo;
using traces::TraceEntry;
using Context = std::shared_ptr<c10::GatheredContext>;

// A pool's own allocator: PyTorch owns it; from 2.11 onwards, it shares ownership with anyone who keeps the allocator.
#if TORCH_MINOR >= 11
using PoolAllocator = std::shared_ptr<CCA::CUDAAllocator>;
#else
using PoolAllocator = CCA::CUDAAllocator*;
#endif

// The newest of several routings that accept a stream decides; before 2.10, the oldest.
constexpr bool NEWEST_ROUTE_DECIDES = TORCH_MINOR >= 10;
// The version of the texts that describe shared memory.
constexpr char HANDLE_VERSION = TORCH_MINOR >= 13 ? 3 : 2;

#if TORCH_MINOR >= 10
using CCA::StreamSegmentSize;
#else
struct StreamSegmentSize {
  StreamSegmentSize(cudaStream_t, bool, size_t) {}
};
#endif
#if TORCH_MINOR >= 12
using CCA::OomRejectionObserver;
#else
using OomRejectionObserver = std::function<void(int64_t device, size_t bytes, size_t reserved, size_t total)>;
#endif

inline TraceEntry entry(TraceEntry::Action action, c10::DeviceIndex device, size_t address, size_t size,
                        uint64_t stream, MempoolId_t pool, Context context, std::string compile_context,
                        [[maybe_unused]] std::string user_metadata) {
  return TraceEntry(action, device, address, size, reinterpret_cast<cudaStream_t>(stream), pool,
                    c10::getApproximateTime(), std::move(context), std::move(compile_context)
#if TORCH_MINOR >= 10
                                                                       ,
                    std::move(user_metadata)
#endif
  );
}

#if TORCH_MINOR >= 14
constexpr auto ANNOTATE = TraceEntry::ANNOTATE;
#else
constexpr auto ANNOTATE = TraceEntry::SNAPSHOT;  // never recorded: no earlier release annotates memory
#endif
// Marks an entry that a request for an address has made, if the release does so.
inline void mark_at_address([[maybe_unused]] TraceEntry& entry) {
#if TORCH_MINOR >= 15
  entry.internal_metadata_ = "mallocWithAddress";
#endif
}
// The action with this name. Throws if there is none.
inline TraceEntry::Action action_named(const std::string& name) {
#if TORCH_MINOR >= 11
  return traces::parseTraceEntryAction(name);
#else
  TORCH_CHECK(false, "this release cannot leave out the action " + name);
#endif
}

inline void set_stream(SegmentInfo& segment, uint64_t stream) {
  segment.stream = reinterpret_cast<cudaStream_t>(stream);
}
inline void set_registration([[maybe_unused]] SegmentInfo& segment, [[maybe_unused]] uint32_t rank) {
#if TORCH_MINOR >= 11
  segment.registration_counter = static_cast<int32_t>(rank);
#endif
}

inline void set_oom_rejections([[maybe_unused]] DeviceStats& stats, [[maybe_unused]] int64_t count) {
#if TORCH_MINOR >= 12
  stats.num_oom_rejections = count;
#endif
}
// The place of a private pool's reserved bytes in the statistics; null in releases whose statistics lack them.
inline c10::CachingAllocator::StatArray* reserved_bytes_of([[maybe_unused]] DeviceStats& stats,
                                                           [[maybe_unused]] MempoolId_t pool) {
#if TORCH_MINOR >= 13
  return &stats.reserved_bytes_by_private_pools[pool];
#else
  return nullptr;
#endif
}

inline CCA::SnapshotInfo snapshot_of(CCA::CUDAAllocator* allocator) {
#if TORCH_MINOR >= 11
  return allocator->snapshot({0, 0}, false);
#else
  return allocator->snapshot({0, 0});
#endif
}

#if TORCH_MINOR >= 10
using Config = c10::CachingAllocator::AcceleratorAllocatorConfig;
inline std::string settings_text() { return c10::CachingAllocator::getAllocatorSettings(); }
#else
using Config = CCA::CUDAAllocatorConfig;
inline std::string settings_text() { return Config::last_allocator_settings(); }
#endif

// The settings that PyTorch's allocator reads again for each request; those that the release lacks stay unchanged.
inline void read_settings(parkade_settings& to) {
  to.max_split_bytes = Config::max_split_size();
  to.max_non_split_rounding_bytes = Config::max_non_split_rounding_size();
  to.garbage_collection_threshold = Config::garbage_collection_threshold();
  to.expandable_segments = CCA::CUDAAllocatorConfig::expandable_segments();
#if TORCH_MINOR >= 9
  to.graph_capture_record_stream_reuse = CCA::CUDAAllocatorConfig::graph_capture_record_stream_reuse();
#endif
#if TORCH_MINOR >= 11
  to.large_segment_bytes = Config::large_segment_size();
#endif
#if TORCH_MINOR >= 12
  to.throw_on_cudamalloc_oom = CCA::CUDAAllocatorConfig::throw_on_cudamalloc_oom();
#endif
}
// PyTorch looks up the division by the size's power of two, starting at 1 MiB.
inline size_t division_place(size_t bytes) { return std::min(std::max(63 - __builtin_clzll(bytes | 1) - 20, 0), 15); }
// The fraction of the memory that the settings allow.
inline double settings_fraction() {
#if TORCH_MINOR >= 10
  return CCA::CUDAAllocatorConfig::per_process_memory_fraction();
#else
  return 1;
#endif
}
// Whether the known settings equal the current ones, ignoring the divisions of sizes other than `bytes`.
inline bool are_settings(const parkade_settings& known, size_t bytes) {
  if (Config::max_split_size() != known.max_split_bytes ||
      Config::max_non_split_rounding_size() != known.max_non_split_rounding_bytes ||
      Config::garbage_collection_threshold() != known.garbage_collection_threshold ||
      CCA::CUDAAllocatorConfig::expandable_segments() != known.expandable_segments)
    return false;
#if TORCH_MINOR >= 9
  if (CCA::CUDAAllocatorConfig::graph_capture_record_stream_reuse() != known.graph_capture_record_stream_reuse)
    return false;
#endif
#if TORCH_MINOR >= 11
  if (Config::large_segment_size() != known.large_segment_bytes) return false;
#endif
#if TORCH_MINOR >= 12
  if (CCA::CUDAAllocatorConfig::throw_on_cudamalloc_oom() != known.throw_on_cudamalloc_oom) return false;
#endif
  return Config::roundup_power2_divisions(bytes) == known.roundup_power2_divisions[division_place(bytes)];
}
inline void read_divisions(parkade_settings& to) {
  const std::vector<size_t> divisions = Config::roundup_power2_divisions();
  for (size_t i = 0; i < 16 && i < divisions.size(); i++) to.roundup_power2_divisions[i] = divisions[i];
}

// The number of times that settings were changed. From 2.10 onwards, PyTorch calls a hook for each accepted change; the
// hook also runs PyTorch's own parser.
inline std::atomic<uint64_t> changes{1};
inline uint64_t settings_changes() { return changes.load(std::memory_order_relaxed); }
inline void watch_settings() {
#if TORCH_MINOR >= 10
  Config::registerDeviceConfigParserHook(
      [](const std::string& text) {
        try {
          CCA::CUDAAllocatorConfig::instance().parseArgs(text);
        } catch (...) {
          changes++;  // what came before the error is set
          throw;
        }
        changes++;
      },
      {});
#endif
}
#if TORCH_MINOR >= 11
constexpr bool HAS_LARGE_SEGMENT = true;
#else
constexpr bool HAS_LARGE_SEGMENT = false;
#endif

// The members of PyTorch's settings that its accessors read, one call each. The bridge compares them for every request,
// so it reads them without a call. An explicit instantiation may name private members. This also compiles for a release
// without a member of that name; the accessors are then called.
template <class Tag, auto Member> struct Reach {
  friend constexpr auto member(Tag) { return Member; }
};
// Can be derived from, whatever form PyTorch's class has.
using ReachableConfig = std::conditional_t<std::is_final_v<Config>, std::monostate, Config>;
#define PARKADE_REACH(Tag, name)                                                                             \
  struct Tag {                                                                                               \
    struct Absent {                                                                                          \
      int name;                                                                                              \
    };                                                                                                       \
    /* The name is ambiguous here, and therefore no pointer to it can be formed, if the settings have it. */ \
    struct Both : ReachableConfig, Absent {};                                                                \
    template <class T, class = void> struct Has : std::true_type {};                                         \
    template <class T> struct Has<T, std::void_t<decltype(&T::name)>> : std::false_type {};                  \
    struct From : std::conditional_t<Has<Both>::value, ReachableConfig, Absent> {};                          \
    friend constexpr auto member(Tag);                                                                       \
  };                                                                                                         \
  template struct Reach<Tag, &Tag::From::name>
PARKADE_REACH(MaxSplit, max_split_size_);
PARKADE_REACH(NonSplit, max_non_split_rounding_size_);
PARKADE_REACH(Threshold, garbage_collection_threshold_);
PARKADE_REACH(Expandable, use_expandable_segments_);
PARKADE_REACH(Divisions, roundup_power2_divisions_);
PARKADE_REACH(LargeSegment, large_segment_size_);
#undef PARKADE_REACH

// Whether a member and the value that was read from it differ; true if they cannot be compared.
template <class T, class Known>
auto differ(const std::atomic<T>& now, const Known& known, int) -> decltype(bool(now.load() != known)) {
  return now.load(std::memory_order_relaxed) != known;
}
template <class T, class Known> auto differ(const T& now, const Known& known, long) -> decltype(bool(now != known)) {
  return now != known;
}
template <class T, class Known> bool differ(const T&, const Known&, ...) { return true; }
// The same for one position of a list, which is missing if PyTorch's list is too short.
template <class T, class Known>
auto differ_at(const std::vector<T>& now, size_t place, const Known& known, int) -> decltype(bool(now[0] != known)) {
  return place < now.size() && now[place] != known;
}
template <class T, class Known> bool differ_at(const T&, size_t, const Known&, long) { return true; }

// The location of the settings, and their values when they were read. PyTorch sets some of them before it refuses a
// string, and then calls no hook.
class SettingsWatch {
  uint64_t seen = 0;
  const Config& config = Config::instance();

  template <class Member> static constexpr bool reaches(Member Config::*) { return true; }
  static constexpr bool reaches(...) { return false; }
  template <class Tag, class Known> bool differs(const Known& known) const {
    if constexpr (constexpr auto at = member(Tag{}); reaches(at))
      return differ(config.*at, known, 0);
    else
      return true;
  }
  template <class Tag, class Known> bool differs_at(size_t place, const Known& known) const {
    if constexpr (constexpr auto at = member(Tag{}); reaches(at))
      return differ_at(config.*at, place, known, 0);
    else
      return true;
  }

 public:
  bool see() {
    const auto before = std::exchange(seen, settings_changes());
    return before != seen;
  }
  // Whether the settings may differ from these; sizes other than `bytes` may have different divisions.
  bool may_differ(const parkade_settings& known, size_t bytes) const {
    const size_t place = division_place(bytes);
    return C10_UNLIKELY(seen != settings_changes() || differs<MaxSplit>(known.max_split_bytes) ||
                        differs<NonSplit>(known.max_non_split_rounding_bytes) ||
                        differs<Threshold>(known.garbage_collection_threshold) ||
                        differs<Expandable>(known.expandable_segments) ||
                        (HAS_LARGE_SEGMENT && differs<LargeSegment>(known.large_segment_bytes)) ||
                        differs_at<Divisions>(place, known.roundup_power2_divisions[place]));
  }
};

inline void free_memory_callbacks(bool& freed) {
  for (const auto& name : c10::FreeCudaMemoryCallbacksRegistry()->Keys())
    freed |= c10::FreeCudaMemoryCallbacksRegistry()->Create(name)->Execute();
}
}  // namespace parkade
