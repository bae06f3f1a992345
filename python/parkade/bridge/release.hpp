// What differs between the headers of PyTorch's releases, under one set of names. TORCH_MINOR is the minor version.
#pragma once
// As PyTorch's own library is compiled: without it the headers say that segments are never expandable.
#define PYTORCH_C10_DRIVER_API_SUPPORTED 1
#include "parkade.h"
#include <algorithm>
#include <atomic>
#include <c10/core/Allocator.h>
#include <c10/core/impl/GPUTrace.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/ApproximateClock.h>
#include <c10/util/Exception.h>
#include <c10/util/env.h>
#include <c10/cuda/CUDAAllocatorConfig.h>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace parkade {
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

// A pool's own allocator: PyTorch owns it, since 2.11 together with whoever keeps it.
#if TORCH_MINOR >= 11
using PoolAllocator = std::shared_ptr<CCA::CUDAAllocator>;
#else
using PoolAllocator = CCA::CUDAAllocator*;
#endif

inline TraceEntry entry(TraceEntry::Action action, c10::DeviceIndex device, size_t address, size_t size, uint64_t stream, MempoolId_t pool,
                        Context context, std::string compile_context, [[maybe_unused]] std::string user_metadata) {
  return TraceEntry(action, device, address, size, reinterpret_cast<cudaStream_t>(stream), pool, c10::getApproximateTime(), std::move(context),
                    std::move(compile_context)
#if TORCH_MINOR >= 10
                    , std::move(user_metadata)
#endif
  );
}

inline void set_stream(SegmentInfo& segment, uint64_t stream) { segment.stream = reinterpret_cast<cudaStream_t>(stream); }
inline void set_registration([[maybe_unused]] SegmentInfo& segment, [[maybe_unused]] uint32_t rank) {
#if TORCH_MINOR >= 11
  segment.registration_counter = static_cast<int32_t>(rank);
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

// The settings that PyTorch's allocator reads anew for each request; those that the release does not have stay as they are.
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
// PyTorch looks the division up by the size's power of two, from 1 MiB on.
inline size_t division_place(size_t bytes) { return std::min(std::max(63 - __builtin_clzll(bytes | 1) - 20, 0), 15); }
// The fraction of the memory that the settings allow.
inline double settings_fraction() {
#if TORCH_MINOR >= 10
  return CCA::CUDAAllocatorConfig::per_process_memory_fraction();
#else
  return 1;
#endif
}
// Whether they are, but for the divisions of sizes other than `bytes`.
inline bool are_settings(const parkade_settings& known, size_t bytes) {
  if (Config::max_split_size() != known.max_split_bytes || Config::max_non_split_rounding_size() != known.max_non_split_rounding_bytes ||
      Config::garbage_collection_threshold() != known.garbage_collection_threshold || CCA::CUDAAllocatorConfig::expandable_segments() != known.expandable_segments)
    return false;
#if TORCH_MINOR >= 9
  if (CCA::CUDAAllocatorConfig::graph_capture_record_stream_reuse() != known.graph_capture_record_stream_reuse) return false;
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

// How often settings were changed. Since 2.10 PyTorch calls a hook for each accepted change; its own parser is what the hook does besides.
inline std::atomic<uint64_t> changes{1};
inline uint64_t settings_changes() { return changes.load(std::memory_order_relaxed); }
inline void watch_settings() {
#if TORCH_MINOR >= 10
  Config::registerDeviceConfigParserHook([](const std::string& text) {
    try {
      CCA::CUDAAllocatorConfig::instance().parseArgs(text);
    } catch (...) {
      changes++;  // what came before the error is set
      throw;
    }
    changes++;
  }, {});
#endif
}
#if TORCH_MINOR >= 10
// The members of PyTorch's settings that its accessors read, one call each: read here for every request. An explicit instantiation may name private members.
template <class Tag, auto Member> struct Reach {
  friend constexpr auto member(Tag) { return Member; }
};
struct MaxSplit { friend constexpr auto member(MaxSplit); };
struct NonSplit { friend constexpr auto member(NonSplit); };
struct Threshold { friend constexpr auto member(Threshold); };
struct Expandable { friend constexpr auto member(Expandable); };
struct Divisions { friend constexpr auto member(Divisions); };
template struct Reach<MaxSplit, &Config::max_split_size_>;
template struct Reach<NonSplit, &Config::max_non_split_rounding_size_>;
template struct Reach<Threshold, &Config::garbage_collection_threshold_>;
template struct Reach<Expandable, &Config::use_expandable_segments_>;
template struct Reach<Divisions, &Config::roundup_power2_divisions_>;
#if TORCH_MINOR >= 11
struct LargeSegment { friend constexpr auto member(LargeSegment); };
template struct Reach<LargeSegment, &Config::large_segment_size_>;
#endif
#endif

// Where the settings are, and what they were when they were read. PyTorch sets some of them before it refuses a string, and then calls no hook.
class SettingsWatch {
  uint64_t seen = 0;
#if TORCH_MINOR >= 10
  const Config& config = Config::instance();
#endif
 public:
  bool see() {
    const auto before = std::exchange(seen, settings_changes());
    return before != seen;
  }
  bool may_differ([[maybe_unused]] const parkade_settings& known, [[maybe_unused]] size_t bytes) const {
#if TORCH_MINOR >= 10
    constexpr auto relaxed = std::memory_order_relaxed;
    const auto& divisions = config.*member(Divisions{});
    const size_t place = division_place(bytes);
    return C10_UNLIKELY(seen != settings_changes() || (config.*member(MaxSplit{})).load(relaxed) != known.max_split_bytes ||
                        (config.*member(NonSplit{})).load(relaxed) != known.max_non_split_rounding_bytes ||
                        (config.*member(Threshold{})).load(relaxed) != known.garbage_collection_threshold ||
                        (config.*member(Expandable{})).load(relaxed) != known.expandable_segments ||
#if TORCH_MINOR >= 11
                        (config.*member(LargeSegment{})).load(relaxed) != known.large_segment_bytes ||
#endif
                        (place < divisions.size() && divisions[place] != known.roundup_power2_divisions[place]));
#else
    return true;
#endif
  }
};

inline void free_memory_callbacks(bool& freed) {
  for (const auto& name : c10::FreeCudaMemoryCallbacksRegistry()->Keys()) freed |= c10::FreeCudaMemoryCallbacksRegistry()->Create(name)->Execute();
}
}  // namespace parkade
