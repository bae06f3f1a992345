// Statistics, snapshots and the memory history in class Allocator.
#pragma once
#include "allocator.hpp"

namespace parkade {
inline std::vector<StreamSegmentSize> Allocator::getExpandableSegmentSizes(c10::DeviceIndex device) {
  constexpr uint64_t small_page = 2097152;
  std::vector<StreamSegmentSize> sizes;
  auto add = [](void* to, const parkade_expandable* segment) noexcept {
    inside_core([&] {
      if (segment->stream)
        static_cast<decltype(&sizes)>(to)->emplace_back(reinterpret_cast<cudaStream_t>(segment->stream),
                                                        segment->page == small_page, segment->mapped);
    });
  };
  check(parkade_read_expandable(place(device).core, add, &sizes));
  return sizes;
}
inline void Allocator::cacheInfo(c10::DeviceIndex device, size_t* largest) {
  uint64_t block = 0, free = 0, total = 0;
  auto& of = place(device);
  if (*largest == 0) {
    check(parkade_memory_info(of.core, &free, &total));
    *largest = free;
  }
  check(parkade_largest_free_block(of.core, &block));
  *largest = std::max<size_t>(*largest, block);
}
inline void* Allocator::getBaseAllocation(void* address, size_t* size) {
  auto* of = owner(address, false);
  parkade_block_info block{};
  TORCH_CHECK(of && parkade_block(of->core, address, &block) == PARKADE_OK,
              "invalid device pointer: " + in_text(address));
  TORCH_CHECK(!block.is_expandable,
              "Tensors allocated with expandable_segments:True cannot be shared between processes. Consider using "
              "expandable_segments:False in data loading workers via "
              "torch.cuda.memory._set_allocator_settings('expandable_segments:False')");
  if (size) *size = block.segment_size;
  return reinterpret_cast<void*>(block.segment);
}

inline void set_stat(c10::CachingAllocator::Stat& to, const parkade_stat& from) {
  to.current = from.current;
  to.peak = from.peak;
  to.allocated = from.allocated;
  to.freed = from.freed;
}
inline void set_stats(c10::CachingAllocator::StatArray& to, const parkade_stat_set& from) {
  set_stat(to[0], from.all);
  set_stat(to[1], from.small);
  set_stat(to[2], from.large);
}
inline DeviceStats Allocator::getDeviceStats(c10::DeviceIndex device) {
  DeviceStats out;
  out.max_split_size = max_split_at_init;
  if (is_unused(device)) {
    out.num_sync_all_streams = emptied_unused[device];
    return out;
  }
  parkade_stats in{};
  auto& of = place(device);
  check(parkade_read_stats(of.core, &in));
  set_stats(out.allocation, in.allocation);
  set_stats(out.segment, in.segment);
  set_stats(out.active, in.active);
  set_stats(out.inactive_split, in.inactive_split);
  set_stats(out.allocated_bytes, in.allocated_bytes);
  set_stats(out.reserved_bytes, in.reserved_bytes);
  set_stats(out.active_bytes, in.active_bytes);
  set_stats(out.inactive_split_bytes, in.inactive_split_bytes);
  set_stats(out.requested_bytes, in.requested_bytes);
  set_stat(out.oversize_allocations, in.oversize_allocations);
  set_stat(out.oversize_segments, in.oversize_segments);
  out.num_alloc_retries = in.num_alloc_retries;
  out.num_ooms = in.num_ooms;
  out.num_sync_all_streams = in.num_sync_all_streams + emptied_unused[device];
  out.num_device_alloc = in.num_device_alloc;
  out.num_device_free = in.num_device_free;
  set_oom_rejections(out, in.num_oom_rejections);
  auto add = [](void* to, parkade_pool pool, const parkade_stat_set* reserved) noexcept {
    inside_core([&] {
      if (auto* bytes = reserved_bytes_of(*static_cast<DeviceStats*>(to), {pool.first, pool.second}))
        set_stats(*bytes, *reserved);
    });
  };
  check(parkade_read_pool_stats(of.core, add, &out));
  return out;
}
inline void Allocator::resetAccumulatedStats(c10::DeviceIndex device) {
  if (!is_unused(device)) check(parkade_reset_accumulated_stats(place(device).core));
  emptied_unused[device] = 0;
}
inline void Allocator::resetPeakStats(c10::DeviceIndex device) {
  if (!is_unused(device)) check(parkade_reset_peak_stats(place(device).core));
}

inline SegmentInfo Allocator::segment_of(Place& of, const parkade_segment& from, const parkade_snapshot_block* blocks) {
  SegmentInfo to;
  to.device = of.device;
  to.address = from.address;
  to.total_size = from.total;
  to.requested_size = from.requested;
  to.allocated_size = from.allocated;
  to.active_size = from.active;
  set_stream(to, from.stream);
  set_registration(to, from.rank);
  to.is_large = from.is_large;
  to.is_expandable = from.is_expandable;
  to.owner_private_pool_id = {from.pool.first, from.pool.second};
  to.context_when_allocated = of.history.of_segment(from.address, from.block_count);
  for (size_t i = 0; i < from.block_count; i++) {
    const auto& block = blocks[from.first_block + i];
    BlockInfo info;
    info.size = block.size;
    info.requested_size = block.requested;
    info.allocated = block.is_allocated;
    info.active = block.is_active;
    if (block.is_active) info.context_when_allocated = of.history.of_block(block.address);
    to.blocks.push_back(std::move(info));
  }
  return to;
}
inline void Allocator::snapshot_device(Place& of, MempoolId_t pool, CCA::SnapshotInfo& out) {
  parkade_snapshot* taken = nullptr;
  const auto id = in_c(pool);
  check(parkade_snapshot_take(of.core, pool == MempoolId_t{0, 0} ? nullptr : &id, &taken));
  std::unique_ptr<parkade_snapshot, decltype(&parkade_snapshot_free)> owned_snapshot(taken, &parkade_snapshot_free);
  size_t count = 0;
  const auto* segments = parkade_snapshot_segments(taken, &count);
  const auto* blocks = parkade_snapshot_blocks(taken, nullptr);
  for (size_t i = 0; i < count; i++) out.segments.push_back(segment_of(of, segments[i], blocks));
}
inline CCA::SnapshotInfo Allocator::snapshot(MempoolId_t pool, bool with_traces) {
  // The settings are PyTorch's, and its own allocator, which has no memory, describes them.
  auto config = snapshot_of(native).config_metadata;
  CCA::SnapshotInfo out;
  out.config_metadata = std::move(config);
  auto to_us = [convert = clock.makeConverter()](auto& time) { time.t_ = convert(time.approx_t_) / 1000; };
  for (int device = 0; device < device_count.load(); device++) {
    if (with_traces) out.device_traces.emplace_back();
    auto* of = places[device].load();
    auto& history = of ? of->history : locked_history_of(device);
    if (with_traces) {
      history.take_entries(out.device_traces.back());
      for (auto& entry : out.device_traces.back()) to_us(entry.time_);
    }
    if (of)
      snapshot_device(*of, pool, out);
    else
      history.tell_snapshot(pool);
  }
  if (with_traces) {
    {
      std::lock_guard<std::mutex> lock(mutex);
      annotations.take_copy(out.external_annotations);
    }
    for (auto& annotation : out.external_annotations) to_us(annotation.time_);
  }
  return out;
}

inline void Allocator::recordHistory(bool enabled, CreateContextFn with, size_t most, RecordContext when, bool clear,
                                     const std::vector<std::string>& skip) {
  TORCH_CHECK(when == RecordContext::NEVER || with);
  for (auto& name : skip) (void)action_named(name);  // throws before anything has changed
  {
    std::lock_guard<std::mutex> lock(mutex);
    recording = std::make_unique<Recording>(Recording{enabled, with, most, when, clear, skip});
    is_recording = enabled;
    annotations.set_most(most);
    if (!enabled || clear) annotations.clear();
    for (auto* history : histories)
      if (history) history->record(enabled, with, most, when, clear, skip);
  }
  // Without the mutex: a tracker may want it while the core's lock is held.
  if (enabled) each([](Place& of) { of.observe(); });
}
inline void Allocator::recordAnnotation(const std::vector<std::pair<std::string, std::string>>& texts) {
  std::lock_guard<std::mutex> lock(mutex);
  if (!recording || !recording->enabled) return;
  AnnotationEntry annotation(c10::cuda::current_device(), c10::getApproximateTime());
  for (const auto& text : texts) annotation.recordUserMetadata(text.first, text.second);
  annotations.insert(annotation);
}
inline std::shared_ptr<c10::GatheredContext> Allocator::getContextForPointer(const void* address) {
  auto* of = owner(const_cast<void*>(address), false);
  return of ? of->history.of_block(reinterpret_cast<uint64_t>(address)) : nullptr;
}
inline void Allocator::annotateMemory(const void* address, const std::string& text) {
  if (auto* of = owner(const_cast<void*>(address), false)) of->history.annotate(address, text);
}
inline void Allocator::attachOutOfMemoryObserver(CCA::OutOfMemoryObserver observer) {
  std::lock_guard<std::mutex> lock(mutex);
  oom_observers.push_back(std::move(observer));
}
inline void Allocator::attachOomRejectionObserver(OomRejectionObserver observer) {
  std::lock_guard<std::mutex> lock(mutex);
  rejection_observers.push_back(std::move(observer));
}
inline void Allocator::attachAllocatorTraceTracker(AllocatorTraceTracker tracker) {
  {
    std::lock_guard<std::mutex> lock(mutex);
    trackers.push_back(tracker);
    for (auto* history : histories)
      if (history) history->track(tracker);
  }
  each([](Place& of) { of.observe(); });
}
}  // namespace parkade
