// PyTorch on parkade: a CUDAAllocator of PyTorch whose memory is parkade's. Compiled on the user's machine for the PyTorch that is there.
#include "place.hpp"
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <sys/syscall.h>
#include <unistd.h>

namespace parkade {
namespace {
constexpr int MOST_DEVICES = 64;
[[noreturn]] void no_device(c10::DeviceIndex device) {
  TORCH_CHECK(false, "Allocator not initialized for device ", static_cast<int>(device), ": did you call init?");
  std::abort();  // not reached
}

struct Checkpoint : CCA::AllocatorState {
  parkade_checkpoint* saved;
  explicit Checkpoint(parkade_checkpoint* saved) : saved(saved) {}
  ~Checkpoint() override { parkade_checkpoint_free(saved); }
};

void free_block(void* address);

class Allocator final : public CCA::CUDAAllocator {
  CCA::CUDAAllocator* native = nullptr;
  std::string policy, release;
  uint32_t flags = 0;
  std::mutex mutex;
  std::array<std::atomic<Place*>, MOST_DEVICES> places{};
  // Those of devices that are not used are there for the entries of snapshots. They live as long as the process.
  std::array<History*, MOST_DEVICES> histories{};
  std::atomic<int> device_count{0};
  std::atomic<bool> is_caching{true};
  // PyTorch's switch for tools that look at every allocation.
  const bool is_uncached = c10::utils::check_env("PYTORCH_NO_CUDA_MEMORY_CACHING") == true;
  bool caches() const { return !is_uncached && is_caching.load(std::memory_order_relaxed); }
  // How often the cache was emptied before a device was used: PyTorch's allocator counts that as waiting for all streams.
  std::array<std::atomic<int64_t>, MOST_DEVICES> emptied_unused{};
  int64_t max_split_at_init = 0;
  double fraction_at_init = 1;
  c10::DeviceIndex first = -1;
  // Blocks of devices other than the first that was used, by address.
  std::mutex owners_mutex;
  std::unordered_map<void*, Place*> owners;
  std::atomic<size_t> owned{0};
  // What every device gets, also those that are used later.
  std::vector<AllocatorTraceTracker> trackers;
  struct Recording { bool enabled; CreateContextFn with; size_t most; RecordContext when; bool clear; std::vector<std::string> skip; };
  std::unique_ptr<Recording> recording;
  std::atomic<bool> is_recording{false};
  std::vector<CCA::OutOfMemoryObserver> oom_observers;
#if TORCH_MINOR >= 12
  std::vector<CCA::OomRejectionObserver> rejection_observers;
#endif
  Ring<AnnotationEntry> annotations;
  // Memory of other processes, by its text, for as long as anybody here uses it.
  std::mutex imported_mutex;
  std::unordered_map<std::string, std::weak_ptr<void>> imported;
 public:
  struct Opened;

 private:
  std::vector<Opened*> opened;
  // Which GPU was given access to which one's memory.
  std::vector<std::pair<c10::DeviceIndex, c10::DeviceIndex>> peer_access;
  c10::ApproximateClockToUnixTimeConverter clock;

  // With the mutex held.
  History& history_of(c10::DeviceIndex device) {
    auto*& history = histories[device];
    if (!history) {
      auto own = std::make_unique<History>(device);
      for (auto& tracker : trackers) own->track(tracker);
      if (recording) own->record(recording->enabled, recording->with, recording->most, recording->when, recording->clear, recording->skip);
      history = own.release();
    }
    return *history;
  }
  Place& made(c10::DeviceIndex device) {
    if (device < 0 || device >= device_count.load()) no_device(device);
    if (auto* place = places[device].load(std::memory_order_acquire)) return *place;
    std::lock_guard<std::mutex> lock(mutex);
    if (auto* place = places[device].load()) return *place;
    auto place = std::make_unique<Place>(history_of(device), policy, release, flags, fraction_at_init);
    if (place->history.is_needed()) place->observe();
    if (first < 0) first = device;
    auto* kept = place.release();  // for the life of the process: memory is freed after everything else has ended
    places[device].store(kept, std::memory_order_release);
    return *kept;
  }
  Place& place(c10::DeviceIndex device) {
    if (C10_LIKELY(device >= 0 && device < MOST_DEVICES))
      if (auto* place = places[device].load(std::memory_order_acquire); C10_LIKELY(place != nullptr)) return *place;
    return made(device);
  }
  // The device of a block; null for an address of nobody.
  Place* owner(void* address, bool removes) {
    if (owned.load(std::memory_order_relaxed)) {
      std::lock_guard<std::mutex> lock(owners_mutex);
      if (auto it = owners.find(address); it != owners.end()) {
        auto* place = it->second;
        if (removes) { owners.erase(it); owned--; }
        return place;
      }
    }
    return first < 0 ? nullptr : places[first].load(std::memory_order_acquire);
  }
  template <class Each> void each(Each work) {
    for (int i = 0; i < device_count.load(); i++)
      if (auto* place = places[i].load()) work(*place);
  }

  [[noreturn]] void fail_request(Place& place, parkade_status status, size_t bytes) {
    const std::string text = parkade_error_text();
    parkade_shortage shortage{};
    if (status == PARKADE_OUT_OF_MEMORY && parkade_error_shortage(&shortage)) {
      parkade_stats stats{};
      parkade_read_stats(place.core, &stats);
      c10::reportOutOfMemoryToProfiler(static_cast<int64_t>(bytes), stats.allocated_bytes.all.current, stats.reserved_bytes.all.current,
                                       c10::Device(c10::DeviceType::CUDA, place.device));
      for (auto& observer : oom_observers)
        observer(place.device, shortage.segment_bytes, shortage.limit_bytes ? shortage.limit_bytes : shortage.device_total, shortage.device_free);
    }
#if TORCH_MINOR >= 12
    else if (status == PARKADE_OUT_OF_MEMORY) {
      parkade_stats stats{};
      parkade_read_stats(place.core, &stats);
      size_t free = 0, total = 0;
      if (cudaMemGetInfo(&free, &total) != cudaSuccess) total = 0;
      for (auto& observer : rejection_observers) observer(place.device, bytes, stats.reserved_bytes.all.current, total);
    }
#endif
    fail(status, text);
  }

  static int64_t block_bytes(Place& place, void* address) {
    parkade_block_info block{};
    return parkade_block(place.core, address, &block) == PARKADE_OK ? static_cast<int64_t>(block.size) : 0;
  }
  void report(Place& place, void* address, int64_t bytes) {
    parkade_stats stats{};
    parkade_read_stats(place.core, &stats);
    c10::reportMemoryUsageToProfiler(address, bytes, stats.allocated_bytes.all.current, stats.reserved_bytes.all.current,
                                     c10::Device(c10::DeviceType::CUDA, place.device));
  }

  // A request that the cache serves asks nothing of the driver, and so would leave no context in its thread (PARKADE_KEEPS_CONTEXT).
  static void begin_thread(Place& of) {
    c10::cuda::CUDAStreamCaptureModeGuard guard{cudaStreamCaptureModeRelaxed};
    uint64_t free_bytes = 0, total_bytes = 0;
    (void)parkade_memory_info(of.core, &free_bytes, &total_bytes);
  }
  void* serve(c10::DeviceIndex device, size_t bytes, cudaStream_t stream, uint32_t flags) {
    return serve_by(&parkade_serve, device, bytes, stream, flags);
  }
  // `ask` has the arguments of parkade_serve. Null is returned if it finds no memory without an error.
  template <class Ask> void* serve_by(Ask ask, c10::DeviceIndex device, size_t bytes, cudaStream_t stream, uint32_t flags) {
    auto& to = place(device);
    static thread_local bool has_begun = false;
    if (C10_UNLIKELY(!std::exchange(has_begun, true))) begin_thread(to);
    to.follow_settings(bytes);
    parkade_request request{bytes, reinterpret_cast<uint64_t>(stream), flags, {0, 0}};
    void* address = nullptr;
    const bool is_plain = C10_LIKELY(!to.attention.load(std::memory_order_relaxed));
    const auto status = is_plain ? ask(to.core, &request, &address) : serve_attentively(ask, to, request, stream, &address);
    rethrow();
    if (C10_UNLIKELY(status != PARKADE_OK)) fail_request(to, status, bytes);
    if (C10_UNLIKELY(address == nullptr)) return nullptr;
    if (C10_UNLIKELY(device != first)) {
      std::lock_guard<std::mutex> lock(owners_mutex);
      owners[address] = &to;
      owned = owners.size();
    }
    if (C10_UNLIKELY(c10::memoryProfilingEnabled())) report(to, address, block_bytes(to, address));
    if (const auto* interpreter = c10::impl::GPUTrace::get_trace(); C10_UNLIKELY(interpreter != nullptr))
      (*interpreter)->trace_gpu_memory_allocation(c10::kCUDA, reinterpret_cast<uintptr_t>(address));
    return address;
  }
  template <class Ask> static parkade_status serve_attentively(Ask ask, Place& to, parkade_request& request, cudaStream_t stream, void** address) {
    Stack stack(to.history.gather(RecordContext::STATE));
    if (!to.may_capture()) return ask(to.core, &request, address);
    // As PyTorch's: calls of the driver that a capture would forbid are not part of it.
    c10::cuda::CUDAStreamCaptureModeGuard guard{cudaStreamCaptureModeRelaxed};
    to.route(request, stream);
    request.flags |= to.capturing();
    return ask(to.core, &request, address);
  }
  static parkade_status free_attentively(Place& of, void* address) {
    Stack stack(of.history.gather(RecordContext::ALL));
    if (!of.may_capture()) return parkade_free(of.core, address);
    c10::cuda::CUDAStreamCaptureModeGuard guard{cudaStreamCaptureModeRelaxed};
    return parkade_free_so(of.core, address, of.capturing());
  }

  void* direct(size_t bytes) {
    void* address = nullptr;
    C10_CUDA_CHECK(cudaMalloc(&address, bytes));
    if (const auto* interpreter = c10::impl::GPUTrace::get_trace())
      (*interpreter)->trace_gpu_memory_allocation(c10::kCUDA, reinterpret_cast<uintptr_t>(address));
    return address;
  }
  static void free_direct(void* address) {
    if (const auto* interpreter = c10::impl::GPUTrace::get_trace())
      (*interpreter)->trace_gpu_memory_deallocation(c10::kCUDA, reinterpret_cast<uintptr_t>(address));
    C10_CUDA_CHECK(cudaFree(address));
  }

 public:
  void configure(CCA::CUDAAllocator* real, const char* name, const char* of, uint32_t promises) {
    native = real; policy = name; release = of; flags = promises;
  }
  parkade_allocator* core_of(int device) { return device < 0 || device >= MOST_DEVICES || !places[device].load() ? nullptr : places[device].load()->core; }

  c10::DataPtr allocate(size_t bytes) override {
    constexpr size_t one_exabyte = 1152921504606846976ULL;
    TORCH_CHECK_WITH(OutOfMemoryError, bytes < one_exabyte, "CUDA out of memory. Tried to allocate more than 1EB memory.");
    const auto device = c10::cuda::current_device();
    const c10::Device of(c10::DeviceType::CUDA, device);
    if (C10_UNLIKELY(!caches())) {
      void* address = direct(bytes);
      return {address, address, &free_direct, of};
    }
    void* address = bytes ? serve(device, bytes, c10::cuda::getCurrentCUDAStream(device).stream(), 0) : nullptr;
    return {address, address, &free_block, of};
  }
#if TORCH_MINOR >= 13
  // Memory at an address where there was some before.
  c10::DataPtr allocateWithAddress(size_t bytes, void* at) override {
    TORCH_CHECK(caches(), "Exact-address allocation is only supported by the native CUDA caching allocator");
    const auto device = c10::cuda::current_device();
    void* address = nullptr;
    if (bytes) {
      TORCH_CHECK(reinterpret_cast<uintptr_t>(at) % 512 == 0, "mallocWithAddress: addr must be aligned to kMinBlockSize (512 bytes), got ", at);
      AtAddress marks;
      auto ask = [at](parkade_allocator* core, const parkade_request* request, void** out) { return parkade_serve_at(core, request, at, out); };
      address = serve_by(ask, device, bytes, c10::cuda::getCurrentCUDAStream(device).stream(), 0);
      TORCH_CHECK(address, "Could not allocate CUDA storage at exact address ", at);
    }
    return {address, address, &free_block, c10::Device(c10::DeviceType::CUDA, device)};
  }
#endif
  c10::DeleterFnPtr raw_deleter() const override { return caches() ? &free_block : &free_direct; }
  void copy_data(void* to, const void* from, size_t bytes) const override { C10_CUDA_CHECK(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToDevice)); }
  void* raw_alloc(size_t bytes) override {
    if (!bytes) return nullptr;
    const auto device = c10::cuda::current_device();
    return raw_alloc_with_stream(bytes, c10::cuda::getCurrentCUDAStream(device).stream());
  }
  void* raw_alloc_with_stream(size_t bytes, cudaStream_t stream) override {
    if (!bytes) return nullptr;
    return caches() ? serve(c10::cuda::current_device(), bytes, stream, PARKADE_RAW) : direct(bytes);
  }
  void raw_delete(void* address) override { caches() ? free(address) : free_direct(address); }

  void free(void* address) {
    if (!address) return;
    // A child of fork has its parent's tensors, and not their memory; it waits for no lock of the parent's.
    if (first >= 0 && C10_UNLIKELY(parkade_is_forked(places[first].load()->core))) return;
    auto* of = owner(address, true);
    TORCH_CHECK(of != nullptr, "invalid device pointer: ", address);
    if (const auto* interpreter = c10::impl::GPUTrace::get_trace(); C10_UNLIKELY(interpreter != nullptr))
      (*interpreter)->trace_gpu_memory_deallocation(c10::kCUDA, reinterpret_cast<uintptr_t>(address));
    of->follow_settings(512);
    const int64_t reported = C10_UNLIKELY(c10::memoryProfilingEnabled()) ? block_bytes(*of, address) : 0;
    const bool is_plain = C10_LIKELY(!of->attention.load(std::memory_order_relaxed));
    const auto status = is_plain ? parkade_free(of->core, address) : free_attentively(*of, address);
    rethrow();
    TORCH_CHECK(status != PARKADE_UNKNOWN_ADDRESS, "invalid device pointer: ", address);
    if (C10_UNLIKELY(status != PARKADE_OK)) fail(status);
    if (C10_UNLIKELY(reported != 0)) report(*of, address, -reported);
  }

  void init(int count) override {
    const auto before = device_count.load();
    if (count <= before) return;
    max_split_at_init = static_cast<int64_t>(Config::max_split_size());
    fraction_at_init = settings_fraction();
    device_count = std::min(count, MOST_DEVICES);
  }
  bool initialized() override { return device_count.load() > 0; }
  double getMemoryFraction(c10::DeviceIndex device) override {
    double fraction = 1;
    check(parkade_memory_fraction(place(device).core, &fraction));
    return fraction;
  }
  void setMemoryFraction(double fraction, c10::DeviceIndex device) override {
    TORCH_CHECK(0 <= device && device < device_count.load(), "Allocator not initialized for device ", static_cast<int>(device), ": did you call init?");
    check(parkade_set_memory_fraction(place(device).core, fraction));
  }
#if TORCH_MINOR >= 10
  std::vector<CCA::StreamSegmentSize> getExpandableSegmentSizes(c10::DeviceIndex device) override {
    std::vector<CCA::StreamSegmentSize> sizes;
    check(parkade_read_expandable(place(device).core, [](void* to, const parkade_expandable* segment) {
      if (segment->stream) static_cast<decltype(&sizes)>(to)->emplace_back(reinterpret_cast<cudaStream_t>(segment->stream), segment->page == 2097152, segment->mapped);
    }, &sizes));
    return sizes;
  }
#endif
  void enable(bool value) override { is_caching = value; }
  bool isEnabled() const override { return is_caching; }
  void emptyCache(MempoolId_t pool) override {
    if (pool == MempoolId_t{0, 0})
      for (int i = 0; i < device_count.load(); i++)
        if (!places[i].load()) emptied_unused[i]++;
    each([&](Place& of) {
      Stack stack(of.history.gather(RecordContext::ALL));
      const auto id = in_c(pool);
      const auto* of_pool = pool == MempoolId_t{0, 0} ? nullptr : &id;
      if (!of.may_capture()) return check(parkade_empty_cache(of.core, of_pool, 0));
      c10::cuda::CUDAStreamCaptureModeGuard guard{cudaStreamCaptureModeRelaxed};
      check(parkade_empty_cache(of.core, of_pool, of.capturing()));
    });
  }
  void cacheInfo(c10::DeviceIndex device, size_t* largest) override {
    uint64_t block = 0, free = 0, total = 0;
    auto& of = place(device);
    if (*largest == 0) { check(parkade_memory_info(of.core, &free, &total)); *largest = free; }
    check(parkade_largest_free_block(of.core, &block));
    *largest = std::max<size_t>(*largest, block);
  }
  void* getBaseAllocation(void* address, size_t* size) override {
    auto* of = owner(address, false);
    parkade_block_info block{};
    TORCH_CHECK(of && parkade_block(of->core, address, &block) == PARKADE_OK, "invalid device pointer: ", address);
    TORCH_CHECK(!block.is_expandable,
                "Tensors allocated with expandable_segments:True cannot be shared between processes. Consider using expandable_segments:False in data "
                "loading workers via torch.cuda.memory._set_allocator_settings('expandable_segments:False')");
    if (size) *size = block.segment_size;
    return reinterpret_cast<void*>(block.segment);
  }
  void recordStream(const c10::DataPtr& block, c10::cuda::CUDAStream stream) override {
    // Memory of somebody else is none of ours: PyTorch's allocator looks at the deleter, too.
    if (!block.get() || block.get_deleter() != &free_block) return;
    auto* of = owner(block.get(), false);
    TORCH_CHECK(of != nullptr, "invalid device pointer: ", block.get());
    const auto handle = reinterpret_cast<uint64_t>(stream.stream());
    if (C10_UNLIKELY(stream.device_index() != of->device))
      return check(parkade_record_stream_of(of->core, block.get(), stream.device_index(), handle, of->capturing()));
    check(parkade_record_stream(of->core, block.get(), handle, of->capturing()));
  }
#include "reading.inc"
#include "sharing.inc"
#include "pools.inc"
};

Allocator& ours() {
  static auto* own = new Allocator;
  return *own;
}
void free_block(void* address) { ours().free(address); }

thread_local std::string error;
}  // namespace
}  // namespace parkade

// What Python calls. A text says what went wrong; null that nothing did.
#define PARKADE_PUBLIC extern "C" __attribute__((visibility("default")))
PARKADE_PUBLIC unsigned parkade_bridge_interface() { return PARKADE_INTERFACE_VERSION; }
PARKADE_PUBLIC const char* parkade_bridge_install(const char* policy, const char* release, unsigned flags) {
  using namespace parkade;
  try {
    auto* current = CCA::allocator.load();
    if (current == &ours()) return "already";
    if (current->initialized()) return "initialized";
    ours().configure(current, policy, release, flags);
    watch_settings();
    CCA::allocator.store(&ours());
    c10::SetAllocator(c10::DeviceType::CUDA, &ours(), 1);
    return nullptr;
  } catch (const std::exception& thrown) {
    return (error = thrown.what()).c_str();
  }
}
PARKADE_PUBLIC parkade_allocator* parkade_bridge_allocator(int device) { return parkade::ours().core_of(device); }
