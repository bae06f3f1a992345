// One device: its parkade allocator, its history, and the pools that requests are routed to.
#pragma once
#include <chrono>
#include <functional>
#include <list>
#include <utility>
#include "history.hpp"

namespace parkade {
// Throws what PyTorch's allocator would throw.
[[noreturn]] inline void fail(parkade_status status, const std::string& text = parkade_error_text()) {
  TORCH_CHECK_WITH(OutOfMemoryError, status != PARKADE_OUT_OF_MEMORY, text);
  TORCH_CHECK(false, text);
  std::abort();  // not reached
}
// Rethrows an exception that a tracker or a callback has thrown inside the core.
inline void rethrow() {
  if (C10_LIKELY(!has_thrown.load(std::memory_order_relaxed))) return;
  if (auto thrown = std::exchange(call().thrown, nullptr)) {
    has_thrown--;
    std::rethrow_exception(thrown);
  }
}
inline void check(parkade_status status) {
  rethrow();
  if (C10_UNLIKELY(status != PARKADE_OK)) fail(status);
}
inline parkade_pool in_c(const MempoolId_t& id) { return {id.first, id.second}; }

class Place {
  struct Route {
    MempoolId_t id;
    std::function<bool(cudaStream_t)> accepts;
  };
  // A pool's own allocator. It is kept while the pool is used, and while the core has memory from it.
  struct Lender {
    MempoolId_t pool;
    PoolAllocator allocator;
    std::atomic<size_t> lent{0};
    bool is_used = true;
    Lender(MempoolId_t pool, PoolAllocator allocator) : pool(pool), allocator(std::move(allocator)) {}
  };
  std::mutex mutex;
  std::vector<Route> routes;
  int captures = 0;
  std::list<Lender> lenders;
  parkade_settings settings{};
  SettingsWatch watch;
  std::mutex settings_mutex;
  bool takes_settings;
  // Taken last: the core's lock may be held.
  std::mutex rescue_mutex;
  parkade_rescue last_rescue{};
  uint64_t new_rescues = 0;
  bool has_warned = false;
  std::chrono::steady_clock::time_point warned_at;

  static void rescued(void* own, const parkade_rescue* rescue) noexcept {
    auto& place = *static_cast<Place*>(own);
    std::lock_guard<std::mutex> lock(place.rescue_mutex);
    place.last_rescue = *rescue;
    place.new_rescues++;
    place.has_rescued = true;
  }
  static void told(void* own, const parkade_entry* e) noexcept { static_cast<Place*>(own)->history.tell(*e); }
  static bool free_memory(void*) noexcept {
    bool freed = false;
    call().is_in_callback = true;
    inside_core([&] { free_memory_callbacks(freed); });
    call().is_in_callback = false;
    return freed;
  }
  static void* lend(void* from, uint64_t bytes) noexcept {
    void* address = nullptr;
    inside_core([&] {
      auto& lender = *static_cast<Lender*>(from);
      address = lender.allocator->raw_alloc(bytes);
      if (address) lender.lent++;
    });
    return address;
  }
  static void take_back(void* from, void* address) noexcept {
    auto& lender = *static_cast<Lender*>(from);
    inside_core([&] { lender.allocator->raw_delete(address); });
    lender.lent--;  // last: from then on another thread may destroy it
  }

 public:
  History& history;
  const c10::DeviceIndex device;
  parkade_allocator* core = nullptr;

  // `fraction` is that of the settings when PyTorch's allocator was initialised: later strings do not change it.
  Place(History& history, const std::string& policy, const std::string& release, uint32_t flags, uint64_t most_rescues,
        double fraction)
      : takes_settings(policy == "pytorch"), history(history), device(history.device) {
    const auto text = settings_text();
    parkade_options options{};
    options.size = sizeof options;
    options.device = static_cast<uint32_t>(device);
    options.flags = PARKADE_KEEPS_CONTEXT | flags;
    options.policy = policy.c_str();
    options.release = release.c_str();
    options.settings = takes_settings ? text.c_str() : nullptr;
    options.most_rescues = most_rescues;
    check(parkade_create(&options, &core));
    check(parkade_add_free_memory_callback(core, &free_memory, this));
    check(parkade_set_limit(core, 0));
    if (flags & (PARKADE_RESCUE | PARKADE_RESCUE_FREE)) check(parkade_set_rescue_observer(core, &rescued, this));
    if (fraction < 1) check(parkade_set_memory_fraction(core, fraction));
    watch.see();
    if (takes_settings) check(copy_settings());
  }

  // The state that calls must check in addition to the request.
  static constexpr uint32_t OBSERVED = 1, ROUTING = 2, CAPTURING = 4;
  std::atomic<uint32_t> attention{0};

  // Whether requests were rescued that the program has not been warned of.
  std::atomic<bool> has_rescued{false};
  // Warns about rescued requests, at most once a minute. A warning runs Python, so the caller must not hold the core's
  // lock.
  void warn_of_rescues() noexcept {
    const auto now = std::chrono::steady_clock::now();
    std::unique_lock<std::mutex> lock(rescue_mutex);
    has_rescued = false;
    if (has_warned && now - warned_at < std::chrono::minutes(1)) return;
    has_warned = true;
    warned_at = now;
    const auto count = std::exchange(new_rescues, 0);
    const auto last = last_rescue;
    lock.unlock();
    try {
      const std::string text =
          "parkade rescued " + std::to_string(count) + (count == 1 ? " request" : " requests") +
          " that PyTorch would have refused: it rearranged memory and continued. The last one, for " +
          std::to_string(last.size >> 20) + " MiB, took " + std::to_string((last.duration_ns + 999) / 1000) +
          " us and copied " + std::to_string(last.copied_bytes >> 20) +
          " MiB. If this happens in every step, use less memory.";
      TORCH_WARN(text);
    } catch (...) {  // the program turns warnings into errors; the request has its memory
    }
  }

  // Reports entries from the first time that a listener exists, so that the stacks of blocks stay right.
  void observe() {
    attention |= OBSERVED;
    check(parkade_set_observer(core, &told, this));
  }

  // Settings may change at any time; PyTorch's allocator reads them again for each request.
  void follow_settings(size_t bytes) {
    if (C10_UNLIKELY(takes_settings && watch.may_differ(settings, bytes)) && !call().is_in_callback) follow(bytes);
  }

  // The pool for a request on the stream: the newest routing that accepts it decides; before 2.10, the oldest.
  void route(parkade_request& request, cudaStream_t stream) {
    std::lock_guard<std::mutex> lock(mutex);
    request.flags |= PARKADE_CHOOSES_POOL;
    for (size_t i = 0; i < routes.size(); i++) {
      auto& route = routes[NEWEST_ROUTE_DECIDES ? routes.size() - 1 - i : i];
      if (!route.accepts(stream)) continue;
      request.pool = in_c(route.id);
      return;
    }
  }
  // Whether requests are routed, as in every capture, or PyTorch has said that one has begun.
  bool may_capture() const { return attention.load(std::memory_order_relaxed) & (ROUTING | CAPTURING); }
  uint32_t capturing() const {
    if (C10_LIKELY(!may_capture())) return 0;
    cudaStreamCaptureStatus status{};
    C10_CUDA_CHECK(cudaStreamIsCapturing(c10::cuda::getCurrentCUDAStream(device).stream(), &status));
    return status == cudaStreamCaptureStatusNone ? 0 : PARKADE_CAPTURING;
  }
  void count_captures(int by) {
    std::lock_guard<std::mutex> lock(mutex);
    captures += by;
    if (captures > 0)
      attention |= CAPTURING;
    else
      attention &= ~CAPTURING;
  }

  void begin(MempoolId_t id, std::function<bool(cudaStream_t)> accepts) {
    // Without the lock, because the thread that holds the core's lock may wait for this one.
    check(parkade_pool_begin(core, in_c(id), PARKADE_ROUTE_CHOSEN, 0));
    std::lock_guard<std::mutex> lock(mutex);
    routes.push_back({id, std::move(accepts)});
    attention |= ROUTING;
  }
  void end(MempoolId_t id) {
    check(parkade_pool_end(core, in_c(id)));
    std::lock_guard<std::mutex> lock(mutex);
    routes.erase(std::remove_if(routes.begin(), routes.end(), [&](auto& route) { return route.id == id; }),
                 routes.end());
    if (routes.empty()) attention &= ~ROUTING;
  }
  void create(MempoolId_t id, PoolAllocator allocator) {
    check(parkade_pool_create(core, in_c(id)));
    if (!allocator) return;
    std::lock_guard<std::mutex> lock(mutex);
    auto& lender = lenders.emplace_back(id, std::move(allocator));
    check(parkade_pool_set_memory(core, in_c(id), &lend, &take_back, &lender));
  }
  void release(MempoolId_t id) {
    check(parkade_pool_release(core, in_c(id)));
    int64_t uses = 0;
    if (parkade_pool_use_count(core, in_c(id), &uses) == PARKADE_OK && uses > 0) return;
    {
      std::lock_guard<std::mutex> lock(mutex);
      for (auto& lender : lenders) {
        if (lender.pool != id || !std::exchange(lender.is_used, false)) continue;
        check(parkade_pool_set_memory(core, in_c(id), nullptr, nullptr, nullptr));
      }
    }
    forget_lenders();
  }
  // Releases the allocators of unused pools after the core has returned all of their memory.
  void forget_lenders() {
    std::list<Lender> gone;  // destroyed without the mutex: the last owner of an allocator runs its destructor
    std::lock_guard<std::mutex> lock(mutex);
    for (auto it = lenders.begin(); it != lenders.end();) {
      const auto lender = it++;
      if (!lender->is_used && lender->lent == 0) gone.splice(gone.end(), lenders, lender);
    }
  }

 private:
  // Frees call this too, so it does not throw: a later call reads what cannot be read now.
  void follow(size_t bytes) {
    if (parkade_is_forked(core)) return;
    std::lock_guard<std::mutex> lock(settings_mutex);
    const bool has_changed = watch.see();
    if (!has_changed && are_settings(settings, bytes)) return;
    // For settings that exist only in the text. The result is ignored: PyTorch has already reported errors to its
    // caller.
    parkade_apply_settings(core, settings_text().c_str());
    copy_settings();
  }
  parkade_status copy_settings() {
    parkade_settings now{};
    const auto status = parkade_read_settings(core, &now);
    if (status != PARKADE_OK) return status;
    read_settings(now);
    read_divisions(now);
    settings = now;
    return parkade_set_settings(core, &now);
  }
};
}  // namespace parkade
