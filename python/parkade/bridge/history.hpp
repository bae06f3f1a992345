// The memory history: trace entries, the stacks of blocks and segments, and the trackers and observers.
//
// The core reports what it does while it holds its lock, in order. What the core does not know is added here: times,
// stacks, texts.
#pragma once
#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <stack>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include "parkade.h"
#include "release.hpp"

namespace parkade {
// A ring that keeps the newest entries.
template <class T> class Ring {
  std::vector<T> entries;
  size_t most = 1, next = 0;

 public:
  void set_most(size_t count) { most = std::max<size_t>(1, count); }
  void insert(const T& entry) {
    if (entries.size() < most) return entries.push_back(entry);
    entries[next++] = entry;
    // There may be more entries than the current maximum; PyTorch keeps them too.
    if (next == most || next >= entries.size()) next = 0;
  }
  void take_copy(std::vector<T>& out) const {
    out.insert(out.end(), entries.begin() + next, entries.end());
    out.insert(out.end(), entries.begin(), entries.begin() + next);
  }
  void clear() {
    next = 0;
    std::vector<T>().swap(entries);
  }
};

// The data that the calling thread adds to the entries of its call.
struct Call {
  Context context;
  std::stack<std::string> compile_contexts;
  std::string user_metadata;
  std::exception_ptr thrown;  // by a tracker: exceptions must not cross the core
  bool is_in_callback = false;
  // A request for an address, and whether it has begun to hand out blocks.
  bool is_at_address = false, has_allocated = false;
};
inline Call& call() {
  thread_local Call own;
  return own;
}
// The number of threads with an exception from inside the core that has not been rethrown yet.
inline std::atomic<int> has_thrown{0};
inline void keep_thrown() noexcept {
  if (!std::exchange(call().thrown, std::current_exception())) has_thrown++;
}
// Runs code inside the core, which no exception may cross: an exception is kept until the end of the call.
template <class Work> void inside_core(Work work) noexcept {
  try {
    work();
  } catch (...) {
    keep_thrown();
  }
}
// The stack of a call, for as long as the call lasts: a callback inside it may make its own calls.
class Stack {
  Context outer;

 public:
  explicit Stack(Context own) : outer(std::exchange(call().context, std::move(own))) {}
  ~Stack() { call().context = std::move(outer); }
};

// Marks the actions of a request for an address, for as long as the request lasts.
struct AtAddress {
  AtAddress() {
    call().is_at_address = true;
    call().has_allocated = false;
  }
  ~AtAddress() { call().is_at_address = false; }
};

class History {
  using Trackers = std::vector<AllocatorTraceTracker>;
  std::mutex mutex;
  bool is_recording = false;
  RecordContext level = RecordContext::NEVER;
  std::unordered_set<int> skipped;
  Ring<TraceEntry> ring;
  // Never changed, only replaced: trackers are called without the mutex, because they may call the allocator.
  std::shared_ptr<const Trackers> trackers;
  std::unordered_map<uint64_t, Context> blocks;  // of allocated and pending blocks
  struct Segment {
    Context context;
    size_t size;
    bool is_whole;
  };
  std::unordered_map<uint64_t, Segment> segments;

  static TraceEntry::Action action_of(const parkade_entry& e) {
    switch (e.action) {
      case PARKADE_ALLOC:
        return TraceEntry::ALLOC;
      case PARKADE_FREE_REQUESTED:
        return TraceEntry::FREE_REQUESTED;
      case PARKADE_FREE_COMPLETED:
        return TraceEntry::FREE_COMPLETED;
      case PARKADE_SEGMENT_ALLOC:
        return TraceEntry::SEGMENT_ALLOC;
      case PARKADE_SEGMENT_FREE:
        return TraceEntry::SEGMENT_FREE;
      case PARKADE_SEGMENT_MAP:
        return TraceEntry::SEGMENT_MAP;
      case PARKADE_SEGMENT_UNMAP:
        return TraceEntry::SEGMENT_UNMAP;
      case PARKADE_SNAPSHOT:
        return TraceEntry::SNAPSHOT;
      default:
        return TraceEntry::OOM;
    }
  }
  static Context found(const std::unordered_map<uint64_t, Context>& in, uint64_t address) {
    auto it = in.find(address);
    return it == in.end() ? nullptr : it->second;
  }

  // Returns the stack of an entry and updates the remembered ones: a free has its own stack or else the allocation's.
  Context context_of(const parkade_entry& e) {
    Context own = call().context;
    switch (e.action) {
      case PARKADE_ALLOC:
        if (own)
          blocks[e.address] = own;
        else
          blocks.erase(e.address);
        // A segment that has been split has lost its stack (the remainder has it).
        if (auto it = segments.find(e.address); it != segments.end() && e.size + (1 << 20) < it->second.size)
          it->second.is_whole = false;
        return own;
      case PARKADE_FREE_REQUESTED:
        return own ? own : found(blocks, e.address);
      case PARKADE_FREE_COMPLETED: {
        Context context = own ? own : found(blocks, e.address);
        blocks.erase(e.address);
        return context;
      }
      case PARKADE_SEGMENT_ALLOC:
      case PARKADE_SEGMENT_MAP:
        if (own) segments[e.address] = {own, e.size, true};
        return own;
      case PARKADE_SEGMENT_FREE:
      case PARKADE_SEGMENT_UNMAP: {
        auto it = segments.find(e.address);
        Context context = own ? own : it == segments.end() ? nullptr : it->second.context;
        if (it != segments.end()) segments.erase(it);
        return context;
      }
      case PARKADE_SNAPSHOT:
        return nullptr;
      default:
        return own;
    }
  }

 public:
  const c10::DeviceIndex device;
  explicit History(c10::DeviceIndex device) : device(device) {}
  std::atomic<int> gathers{0};  // the level at which calls gather stacks
  std::atomic<CreateContextFn> recorder{nullptr};

  // The stack of a call, if stacks are gathered at this level.
  Context gather(RecordContext at) const {
    if (gathers.load(std::memory_order_relaxed) < static_cast<int>(at)) return nullptr;
    auto record = recorder.load();
    return record ? record() : nullptr;
  }

  bool is_needed() {
    std::lock_guard<std::mutex> lock(mutex);
    return is_recording || trackers;
  }

  void record(bool enabled, CreateContextFn with, size_t most, RecordContext when, bool clear,
              const std::vector<std::string>& skip) {
    std::lock_guard<std::mutex> lock(mutex);
    is_recording = enabled;
    ring.set_most(most);
    level = enabled ? when : RecordContext::NEVER;
    recorder.store(enabled ? with : nullptr);
    gathers.store(static_cast<int>(level));
    if (!enabled || clear) ring.clear();
    skipped.clear();
    for (auto& name : skip) skipped.insert(static_cast<int>(action_named(name)));
  }

  void track(AllocatorTraceTracker tracker) {
    std::lock_guard<std::mutex> lock(mutex);
    auto more = trackers ? std::make_shared<Trackers>(*trackers) : std::make_shared<Trackers>();
    more->push_back(std::move(tracker));
    trackers = std::move(more);
  }

  void tell(const parkade_entry& e) noexcept {
    inside_core([&] {
      std::unique_lock<std::mutex> lock(mutex);
      Context context = context_of(e);
      keep(lock, action_of(e), e.address, e.size, e.stream, {e.pool.first, e.pool.second}, std::move(context));
    });
  }

  // A snapshot of a device that has not been used.
  void tell_snapshot(const MempoolId_t& pool) {
    std::unique_lock<std::mutex> lock(mutex);
    keep(lock, TraceEntry::SNAPSHOT, 0, 0, 0, pool, nullptr);
  }

  // An annotation of a live allocation is a separate entry.
  void annotate(const void* address, const std::string& text) {
    std::lock_guard<std::mutex> lock(mutex);
    if (!is_recording) return;
    auto made = entry(ANNOTATE, device, reinterpret_cast<size_t>(address), 0, 0, {0, 0}, nullptr, "N/A", text);
    if (!skipped.count(ANNOTATE)) ring.insert(made);
  }

  Context of_block(uint64_t address) {
    std::lock_guard<std::mutex> lock(mutex);
    return found(blocks, address);
  }
  Context of_segment(uint64_t address, size_t blocks_now) {
    std::lock_guard<std::mutex> lock(mutex);
    auto it = segments.find(address);
    if (it == segments.end()) return nullptr;
    if (blocks_now > 1) it->second.is_whole = false;
    return it->second.is_whole ? it->second.context : nullptr;
  }
  void take_entries(std::vector<TraceEntry>& out) {
    std::lock_guard<std::mutex> lock(mutex);
    ring.take_copy(out);
  }

 private:
  // Call this with the mutex held; trackers are called without it.
  void keep(std::unique_lock<std::mutex>& lock, TraceEntry::Action action, size_t address, size_t size, uint64_t stream,
            MempoolId_t pool, Context context) {
    if (!is_recording && !trackers) return;
    auto& own = call();
    auto made =
        entry(action, device, address, size, stream, pool, level >= RecordContext::ALLOC ? std::move(context) : nullptr,
              own.compile_contexts.empty() ? "N/A" : own.compile_contexts.top(), own.user_metadata);
    // Frees that complete before the request is served are not part of the request.
    own.has_allocated |= action == TraceEntry::ALLOC;
    if (own.is_at_address && own.has_allocated) mark_at_address(made);
    if (auto attached = trackers) {
      lock.unlock();
      for (auto& tracker : *attached) tracker(made);
      lock.lock();
    }
    if (is_recording && !skipped.count(action)) ring.insert(made);
  }
};
}  // namespace parkade
