// The declaration of the class that implements PyTorch's CUDA allocator interface with parkade's memory.
//
// Its functions are in serving.hpp (requests and frees), reading.hpp (statistics, snapshots, the memory history),
// sharing.hpp (memory of other processes) and pools.hpp (private pools, checkpoints, other devices).
#pragma once
#include <sys/types.h>
#include <array>
#include <cstddef>
#include <unordered_map>
#include <unordered_set>
#include "place.hpp"

namespace parkade {
constexpr int MOST_DEVICES = 64;
[[noreturn]] inline void no_device(c10::DeviceIndex device) {
  TORCH_CHECK(false, "Allocator not initialized for device " + std::to_string(device) + ": did you call init?");
  std::abort();  // not reached
}

struct Checkpoint : CCA::AllocatorState {
  parkade_checkpoint* saved;
  explicit Checkpoint(parkade_checkpoint* saved) : saved(saved) {}
  ~Checkpoint() override { parkade_checkpoint_free(saved); }
};

// The deleter of tensors' memory.
void free_block(void* address);

class Allocator final : public CCA::CUDAAllocator {
 public:
  void configure(CCA::CUDAAllocator* real, const char* name, const char* of, uint32_t promises, uint64_t rescues) {
    native = real;
    policy = name;
    release = of;
    flags = promises;
    most_rescues = rescues;
  }
  parkade_allocator* core_of(int device) {
    return device < 0 || device >= MOST_DEVICES || !places[device].load() ? nullptr : places[device].load()->core;
  }

  // Requests and frees.
  c10::DataPtr allocate(size_t bytes) override;
  c10::DataPtr allocateWithAddress(size_t bytes, void* at) PARKADE_OVERRIDE_SINCE_13;
  c10::DeleterFnPtr raw_deleter() const override { return caches() ? &free_block : &free_direct; }
  void copy_data(void* to, const void* from, size_t bytes) const override;
  void* raw_alloc(size_t bytes) override;
  void* raw_alloc_with_stream(size_t bytes, cudaStream_t stream) override;
  void raw_delete(void* address) override { caches() ? free(address) : free_direct(address); }
  void free(void* address);
  void init(int count) override;
  bool initialized() override { return device_count.load() > 0; }
  double getMemoryFraction(c10::DeviceIndex device) override;
  void setMemoryFraction(double fraction, c10::DeviceIndex device) override;
  void enable(bool value) override { is_caching = value; }
  bool isEnabled() const override { return is_caching; }
  void emptyCache(MempoolId_t pool) override;
  void recordStream(const c10::DataPtr& block, c10::cuda::CUDAStream stream) override;
  std::string name() override { return "native"; }

  // Statistics, snapshots, the memory history.
  std::vector<StreamSegmentSize> getExpandableSegmentSizes(c10::DeviceIndex device) PARKADE_OVERRIDE_SINCE_10;
  void cacheInfo(c10::DeviceIndex device, size_t* largest) override;
  void* getBaseAllocation(void* address, size_t* size) override;
  DeviceStats getDeviceStats(c10::DeviceIndex device) override;
  void resetAccumulatedStats(c10::DeviceIndex device) override;
  void resetPeakStats(c10::DeviceIndex device) override;
  CCA::SnapshotInfo snapshot(MempoolId_t pool, bool with_traces) PARKADE_OVERRIDE_SINCE_11;
  CCA::SnapshotInfo snapshot(MempoolId_t pool) PARKADE_OVERRIDE_BEFORE_11 { return snapshot(pool, true); }
  bool isHistoryEnabled() override { return is_recording; }
  void recordHistory(bool enabled, CreateContextFn with, size_t most, RecordContext when, bool clear,
                     const std::vector<std::string>& skip) PARKADE_OVERRIDE_SINCE_11;
  void recordHistory(bool enabled, CreateContextFn with, size_t most, RecordContext when,
                     bool clear) PARKADE_OVERRIDE_BEFORE_11 {
    recordHistory(enabled, with, most, when, clear, {});
  }
  void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& texts) override;
  void pushCompileContext(std::string& text) override { call().compile_contexts.push(text); }
  void popCompileContext() override {
    if (!call().compile_contexts.empty()) call().compile_contexts.pop();
  }
  void setUserMetadata(const std::string& text) PARKADE_OVERRIDE_SINCE_10 { call().user_metadata = text; }
  std::string getUserMetadata() PARKADE_OVERRIDE_SINCE_10 { return call().user_metadata; }
  std::shared_ptr<c10::GatheredContext> getContextForPointer(const void* address) PARKADE_OVERRIDE_SINCE_12;
  bool supportsUserMetadata() PARKADE_OVERRIDE_SINCE_14 { return true; }
  void annotateMemory(const void* address, const std::string& text) PARKADE_OVERRIDE_SINCE_14;
  void attachOutOfMemoryObserver(CCA::OutOfMemoryObserver observer) override;
  void attachOomRejectionObserver(OomRejectionObserver observer) PARKADE_OVERRIDE_SINCE_12;
  void attachAllocatorTraceTracker(AllocatorTraceTracker tracker) override;

  // Memory that other processes open, and memory of theirs.
  CCA::ShareableHandle shareIpcHandle(void* address) override;
  std::shared_ptr<void> getIpcDevPtr(std::string text) override;

  // Private pools, checkpoints, other devices.
  void beginAllocateToPool(c10::DeviceIndex device, MempoolId_t pool,
                           std::function<bool(cudaStream_t)> filter) override;
  void endAllocateToPool(c10::DeviceIndex device, MempoolId_t pool) override;
  void releasePool(c10::DeviceIndex device, MempoolId_t pool) override;
  int getPoolUseCount(c10::DeviceIndex device, MempoolId_t pool) override;
  void createOrIncrefPool(c10::DeviceIndex device, MempoolId_t pool, PoolAllocator allocator) override;
  void setUseOnOOM(c10::DeviceIndex device, MempoolId_t pool, bool serves) PARKADE_OVERRIDE_SINCE_11;
  void setUseOnOOM(c10::DeviceIndex device, MempoolId_t pool) PARKADE_OVERRIDE_BEFORE_11 {
    setUseOnOOM(device, pool, true);
  }
  void setNoSplit(c10::DeviceIndex device, MempoolId_t pool) PARKADE_OVERRIDE_SINCE_10;
  void markCaptureBegin(c10::DeviceIndex device) PARKADE_OVERRIDE_SINCE_13 { place(device).count_captures(1); }
  void markCaptureEnd(c10::DeviceIndex device) PARKADE_OVERRIDE_SINCE_13 { place(device).count_captures(-1); }
  bool checkPoolLiveAllocations(c10::DeviceIndex device, MempoolId_t pool,
                                const std::unordered_set<void*>& expected) override;
  std::shared_ptr<CCA::AllocatorState> getCheckpointState(c10::DeviceIndex device, MempoolId_t pool) override;
  CCA::CheckpointDelta setCheckpointPoolState(c10::DeviceIndex device,
                                              std::shared_ptr<CCA::AllocatorState> state) override;
  void enablePeerAccess(c10::DeviceIndex device, c10::DeviceIndex to) override;
  cudaError_t memcpyAsync(void* to, int to_device, const void* from, int from_device, size_t bytes, cudaStream_t stream,
                          bool p2p_enabled) override;

 private:
  struct Opened;
  struct Recording {
    bool enabled;
    CreateContextFn with;
    size_t most;
    RecordContext when;
    bool clear;
    std::vector<std::string> skip;
  };

  CCA::CUDAAllocator* native = nullptr;
  std::string policy, release;
  uint32_t flags = 0;
  uint64_t most_rescues = 0;
  std::mutex mutex;
  std::array<std::atomic<Place*>, MOST_DEVICES> places{};
  // Unused devices have a history too, for the entries of snapshots. They live as long as the process.
  std::array<History*, MOST_DEVICES> histories{};
  std::atomic<int> device_count{0};
  std::atomic<bool> is_caching{true};
  // PyTorch's switch for tools that inspect every allocation.
  const bool is_uncached = c10::utils::check_env("PYTORCH_NO_CUDA_MEMORY_CACHING") == true;
  // The number of times that the cache was emptied before a device was used: PyTorch's allocator counts that as waiting
  // for all streams.
  std::array<std::atomic<int64_t>, MOST_DEVICES> emptied_unused{};
  int64_t max_split_at_init = 0;
  double fraction_at_init = 1;
  c10::DeviceIndex first = -1;
  // Blocks of devices other than the first that was used, by address.
  std::mutex owners_mutex;
  std::unordered_map<void*, Place*> owners;
  std::atomic<size_t> owned{0};
  // The trackers, observers and annotations for every device, including devices that are used later.
  std::vector<AllocatorTraceTracker> trackers;
  std::unique_ptr<Recording> recording;
  std::atomic<bool> is_recording{false};
  std::vector<CCA::OutOfMemoryObserver> oom_observers;
  std::vector<OomRejectionObserver> rejection_observers;
  Ring<AnnotationEntry> annotations;
  c10::ApproximateClockToUnixTimeConverter clock;
  // Memory of other processes, keyed by its description, for as long as this process uses it.
  std::mutex imported_mutex;
  std::unordered_map<std::string, std::weak_ptr<void>> imported;
  std::vector<Opened*> opened;
  // The pairs of GPUs in which one was granted access to the other's memory.
  std::vector<std::pair<c10::DeviceIndex, c10::DeviceIndex>> peer_access;

  // Devices.
  bool caches() const { return !is_uncached && is_caching.load(std::memory_order_relaxed); }
  History& history_of(c10::DeviceIndex device);
  History& locked_history_of(c10::DeviceIndex device) {
    std::lock_guard<std::mutex> lock(mutex);
    return history_of(device);
  }
  Place& made(c10::DeviceIndex device);
  Place& place(c10::DeviceIndex device) {
    if (C10_LIKELY(device >= 0 && device < MOST_DEVICES))
      if (auto* place = places[device].load(std::memory_order_acquire); C10_LIKELY(place != nullptr)) return *place;
    return made(device);
  }
  // A device that has not been used has nothing to reset and needs no context.
  bool is_unused(c10::DeviceIndex device) {
    return device >= 0 && device < device_count.load() && !places[device].load();
  }
  Place* owner(void* address, bool removes);
  template <class Each> void each(Each work) {
    for (int i = 0; i < device_count.load(); i++)
      if (auto* place = places[i].load()) work(*place);
  }

  // Requests and frees.
  [[noreturn]] void fail_request(Place& place, parkade_status status, size_t bytes);
  void observe_failure(Place& place, size_t bytes);
  static int64_t block_bytes(Place& place, void* address);
  static void report(Place& place, void* address, int64_t bytes);
  static void begin_thread(Place& of);
  void* serve(c10::DeviceIndex device, size_t bytes, cudaStream_t stream, uint32_t flags);
  template <class Ask>
  void* serve_by(Ask ask, c10::DeviceIndex device, size_t bytes, cudaStream_t stream, uint32_t flags);
  template <class Ask>
  static parkade_status serve_attentively(Ask ask, Place& to, parkade_request& request, cudaStream_t stream,
                                          void** address);
  static parkade_status free_attentively(Place& of, void* address);
  static void* direct(size_t bytes);
  static void free_direct(void* address);

  // Snapshots.
  static SegmentInfo segment_of(Place& of, const parkade_segment& from, const parkade_snapshot_block* blocks);
  void snapshot_device(Place& of, MempoolId_t pool, CCA::SnapshotInfo& out);

  // Memory of other processes.
  static CCA::ShareableHandle share_handles(Place& of, void* address);
  static void close_opened(Opened* gone);
  void open(Opened& to);
  void open_handles(Opened& to, bool are_alike);

  bool has_expandable(int device);
};
}  // namespace parkade
