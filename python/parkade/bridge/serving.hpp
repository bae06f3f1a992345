// Requests and frees in class Allocator, and the devices that serve them.
#pragma once
#include "allocator.hpp"

namespace parkade {
// With the mutex held.
inline History& Allocator::history_of(c10::DeviceIndex device) {
  auto*& history = histories[device];
  if (!history) {
    auto own = std::make_unique<History>(device);
    for (auto& tracker : trackers) own->track(tracker);
    if (recording)
      own->record(recording->enabled, recording->with, recording->most, recording->when, recording->clear,
                  recording->skip);
    history = own.release();
  }
  return *history;
}
inline Place& Allocator::made(c10::DeviceIndex device) {
  if (device < 0 || device >= device_count.load()) no_device(device);
  if (auto* place = places[device].load(std::memory_order_acquire)) return *place;
  std::lock_guard<std::mutex> lock(mutex);
  if (auto* place = places[device].load()) return *place;
  auto place = std::make_unique<Place>(history_of(device), policy, release, flags, most_rescues, fraction_at_init);
  if (place->history.is_needed()) place->observe();
  if (first < 0) first = device;
  auto* kept = place.release();  // for the life of the process: memory is freed after everything else has ended
  places[device].store(kept, std::memory_order_release);
  return *kept;
}
// The device of a block; null for an unknown address.
inline Place* Allocator::owner(void* address, bool removes) {
  if (owned.load(std::memory_order_relaxed)) {
    std::lock_guard<std::mutex> lock(owners_mutex);
    if (auto it = owners.find(address); it != owners.end()) {
      auto* place = it->second;
      if (removes) {
        owners.erase(it);
        owned--;
      }
      return place;
    }
  }
  return first < 0 ? nullptr : places[first].load(std::memory_order_acquire);
}

// Throws what PyTorch's allocator throws for a failed request, after the observers have seen the failure.
inline void Allocator::fail_request(Place& place, parkade_status status, size_t bytes) {
  const std::string text = parkade_error_text();
  if (status == PARKADE_OUT_OF_MEMORY) observe_failure(place, bytes);
  fail(status, text);
}
inline void Allocator::observe_failure(Place& place, size_t bytes) {
  parkade_shortage shortage{};
  const bool is_short = parkade_error_shortage(&shortage);
  parkade_stats stats{};
  parkade_read_stats(place.core, &stats);
  std::unique_lock<std::mutex> lock(mutex);
  if (is_short) {
    const auto observers = oom_observers;
    lock.unlock();
    c10::reportOutOfMemoryToProfiler(static_cast<int64_t>(bytes), stats.allocated_bytes.all.current,
                                     stats.reserved_bytes.all.current,
                                     c10::Device(c10::DeviceType::CUDA, place.device));
    for (auto& observer : observers)
      observer(place.device, shortage.segment_bytes,
               shortage.limit_bytes ? shortage.limit_bytes : shortage.device_total, shortage.device_free);
    return;
  }
  const auto observers = rejection_observers;
  lock.unlock();
  if (observers.empty()) return;
  size_t free = 0, total = 0;
  if (cudaMemGetInfo(&free, &total) != cudaSuccess) total = 0;
  for (auto& observer : observers) observer(place.device, bytes, stats.reserved_bytes.all.current, total);
}

inline int64_t Allocator::block_bytes(Place& place, void* address) {
  parkade_block_info block{};
  return parkade_block(place.core, address, &block) == PARKADE_OK ? static_cast<int64_t>(block.size) : 0;
}
inline void Allocator::report(Place& place, void* address, int64_t bytes) {
  parkade_stats stats{};
  parkade_read_stats(place.core, &stats);
  c10::reportMemoryUsageToProfiler(address, bytes, stats.allocated_bytes.all.current, stats.reserved_bytes.all.current,
                                   c10::Device(c10::DeviceType::CUDA, place.device));
}

// A request that is served from the cache makes no driver call, so it would leave no context in its thread
// (PARKADE_KEEPS_CONTEXT).
inline void Allocator::begin_thread(Place& of) {
  c10::cuda::CUDAStreamCaptureModeGuard guard{cudaStreamCaptureModeRelaxed};
  uint64_t free_bytes = 0, total_bytes = 0;
  (void)parkade_memory_info(of.core, &free_bytes, &total_bytes);
}
// `ask` has the arguments of parkade_serve. Null is returned if it finds no memory without an error.
template <class Ask>
void* Allocator::serve_by(Ask ask, c10::DeviceIndex device, size_t bytes, cudaStream_t stream, uint32_t flags) {
  auto& to = place(device);
  static thread_local bool has_begun = false;
  if (C10_UNLIKELY(!std::exchange(has_begun, true))) begin_thread(to);
  to.follow_settings(bytes);
  parkade_request request{bytes, reinterpret_cast<uint64_t>(stream), flags, {0, 0}};
  void* address = nullptr;
  const bool is_plain = C10_LIKELY(!to.attention.load(std::memory_order_relaxed));
  const auto status =
      is_plain ? ask(to.core, &request, &address) : serve_attentively(ask, to, request, stream, &address);
  rethrow();
  if (C10_UNLIKELY(to.has_rescued.load(std::memory_order_relaxed))) to.warn_of_rescues();
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
inline void* Allocator::serve(c10::DeviceIndex device, size_t bytes, cudaStream_t stream, uint32_t flags) {
  return serve_by(&parkade_serve, device, bytes, stream, flags);
}
template <class Ask>
parkade_status Allocator::serve_attentively(Ask ask, Place& to, parkade_request& request, cudaStream_t stream,
                                            void** address) {
  Stack stack(to.history.gather(RecordContext::STATE));
  if (!to.may_capture()) return ask(to.core, &request, address);
  // As in PyTorch, driver calls that a capture would forbid are not part of it.
  c10::cuda::CUDAStreamCaptureModeGuard guard{cudaStreamCaptureModeRelaxed};
  to.route(request, stream);
  request.flags |= to.capturing();
  return ask(to.core, &request, address);
}
inline parkade_status Allocator::free_attentively(Place& of, void* address) {
  Stack stack(of.history.gather(RecordContext::ALL));
  if (!of.may_capture()) return parkade_free(of.core, address);
  c10::cuda::CUDAStreamCaptureModeGuard guard{cudaStreamCaptureModeRelaxed};
  return parkade_free_so(of.core, address, of.capturing());
}

inline void* Allocator::direct(size_t bytes) {
  void* address = nullptr;
  C10_CUDA_CHECK(cudaMalloc(&address, bytes));
  if (const auto* interpreter = c10::impl::GPUTrace::get_trace())
    (*interpreter)->trace_gpu_memory_allocation(c10::kCUDA, reinterpret_cast<uintptr_t>(address));
  return address;
}
inline void Allocator::free_direct(void* address) {
  if (const auto* interpreter = c10::impl::GPUTrace::get_trace())
    (*interpreter)->trace_gpu_memory_deallocation(c10::kCUDA, reinterpret_cast<uintptr_t>(address));
  C10_CUDA_CHECK(cudaFree(address));
}

inline c10::DataPtr Allocator::allocate(size_t bytes) {
  constexpr size_t one_exabyte = 1152921504606846976ULL;
  TORCH_CHECK_WITH(OutOfMemoryError, bytes < one_exabyte,
                   "CUDA out of memory. Tried to allocate more than 1EB memory.");
  const auto device = c10::cuda::current_device();
  const c10::Device of(c10::DeviceType::CUDA, device);
  if (C10_UNLIKELY(!caches())) {
    void* address = direct(bytes);
    return {address, address, &free_direct, of};
  }
  void* address = bytes ? serve(device, bytes, c10::cuda::getCurrentCUDAStream(device).stream(), 0) : nullptr;
  return {address, address, &free_block, of};
}
// Serves memory at an address where there was memory before.
inline c10::DataPtr Allocator::allocateWithAddress(size_t bytes, void* at) {
  TORCH_CHECK(caches(), "Exact-address allocation is only supported by the native CUDA caching allocator");
  const auto device = c10::cuda::current_device();
  void* address = nullptr;
  if (bytes) {
    TORCH_CHECK(reinterpret_cast<uintptr_t>(at) % 512 == 0,
                "mallocWithAddress: addr must be aligned to kMinBlockSize (512 bytes), got " + in_text(at));
    AtAddress marks;
    auto ask = [at](parkade_allocator* core, const parkade_request* request, void** out) {
      return parkade_serve_at(core, request, at, out);
    };
    address = serve_by(ask, device, bytes, c10::cuda::getCurrentCUDAStream(device).stream(), 0);
    TORCH_CHECK(address, "Could not allocate CUDA storage at exact address " + in_text(at));
  }
  return {address, address, &free_block, c10::Device(c10::DeviceType::CUDA, device)};
}
inline void Allocator::copy_data(void* to, const void* from, size_t bytes) const {
  C10_CUDA_CHECK(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToDevice));
}
inline void* Allocator::raw_alloc(size_t bytes) {
  if (!bytes) return nullptr;
  const auto device = c10::cuda::current_device();
  return raw_alloc_with_stream(bytes, c10::cuda::getCurrentCUDAStream(device).stream());
}
inline void* Allocator::raw_alloc_with_stream(size_t bytes, cudaStream_t stream) {
  if (!bytes) return nullptr;
  return caches() ? serve(c10::cuda::current_device(), bytes, stream, PARKADE_RAW) : direct(bytes);
}

inline void Allocator::free(void* address) {
  if (!address) return;
  // A forked child has its parent's tensors but not their memory; it must not wait for the parent's locks.
  if (first >= 0 && C10_UNLIKELY(parkade_is_forked(places[first].load()->core))) return;
  auto* of = owner(address, true);
  TORCH_CHECK(of != nullptr, "invalid device pointer: " + in_text(address));
  if (const auto* interpreter = c10::impl::GPUTrace::get_trace(); C10_UNLIKELY(interpreter != nullptr))
    (*interpreter)->trace_gpu_memory_deallocation(c10::kCUDA, reinterpret_cast<uintptr_t>(address));
  of->follow_settings(512);
  const int64_t reported = C10_UNLIKELY(c10::memoryProfilingEnabled()) ? block_bytes(*of, address) : 0;
  const bool is_plain = C10_LIKELY(!of->attention.load(std::memory_order_relaxed));
  const auto status = is_plain ? parkade_free(of->core, address) : free_attentively(*of, address);
  rethrow();
  TORCH_CHECK(status != PARKADE_UNKNOWN_ADDRESS, "invalid device pointer: " + in_text(address));
  if (C10_UNLIKELY(status != PARKADE_OK)) fail(status);
  if (C10_UNLIKELY(reported != 0)) report(*of, address, -reported);
}

inline void Allocator::init(int count) {
  const auto before = device_count.load();
  if (count <= before) return;
  max_split_at_init = static_cast<int64_t>(Config::max_split_size());
  fraction_at_init = settings_fraction();
  device_count = std::min(count, MOST_DEVICES);
}
inline double Allocator::getMemoryFraction(c10::DeviceIndex device) {
  double fraction = 1;
  check(parkade_memory_fraction(place(device).core, &fraction));
  return fraction;
}
inline void Allocator::setMemoryFraction(double fraction, c10::DeviceIndex device) {
  if (device < 0 || device >= device_count.load()) no_device(device);
  check(parkade_set_memory_fraction(place(device).core, fraction));
}
inline void Allocator::emptyCache(MempoolId_t pool) {
  if (pool == MempoolId_t{0, 0})
    for (int i = 0; i < device_count.load(); i++)
      if (!places[i].load()) emptied_unused[i]++;
  each([&](Place& of) {
    Stack stack(of.history.gather(RecordContext::ALL));
    const auto id = in_c(pool);
    const auto* of_pool = pool == MempoolId_t{0, 0} ? nullptr : &id;
    if (of.may_capture()) {
      c10::cuda::CUDAStreamCaptureModeGuard guard{cudaStreamCaptureModeRelaxed};
      check(parkade_empty_cache(of.core, of_pool, of.capturing()));
    } else {
      check(parkade_empty_cache(of.core, of_pool, 0));
    }
    of.forget_lenders();
  });
}
inline void Allocator::recordStream(const c10::DataPtr& block, c10::cuda::CUDAStream stream) {
  // Memory from a different allocator is not ours: PyTorch's allocator also checks the deleter.
  if (!block.get() || block.get_deleter() != &free_block) return;
  auto* of = owner(block.get(), false);
  TORCH_CHECK(of != nullptr, "invalid device pointer: " + in_text(block.get()));
  const auto handle = reinterpret_cast<uint64_t>(stream.stream());
  if (C10_UNLIKELY(stream.device_index() != of->device))
    return check(parkade_record_stream_of(of->core, block.get(), stream.device_index(), handle, of->capturing()));
  check(parkade_record_stream(of->core, block.get(), handle, of->capturing()));
}
}  // namespace parkade
