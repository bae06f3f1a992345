// Checks the parts of the bridge that no script in the comparison reaches: trackers that call the allocator or throw,
// and the lifetime of a pool's own allocator. bridge.sh builds and runs it, with ORACLE_BRIDGE set.
#include <unistd.h>
#include <cstring>
#include <functional>
#include <memory>
#include "release.hpp"

namespace {
namespace CCA = release::CCA;
using release::MempoolId_t;

int failures = 0;
void expect(bool is_so, const char* what) {
  if (is_so) return;
  fprintf(stderr, "bridge_checks: %s\n", what);
  failures++;
}

// The tracker's action for the next entry; a tracker cannot be detached.
std::function<void()> on_entry;
void track(const release::TraceEntry&) {
  if (auto work = std::exchange(on_entry, nullptr)) work();
}

void a_tracker_may_call_the_allocator() {
  bool is_refused = false, is_annotated = false;
  on_entry = [&] {
    // A snapshot takes the mutex of the history and then calls the core, which is busy with this request.
    try {
      (void)release::snapshot({0, 0}, true);
    } catch (const c10::Error&) {
      is_refused = true;
    }
    CCA::get()->recordAnnotation({{"key", "value"}});
    is_annotated = true;
  };
  void* address = CCA::raw_alloc(1 << 20);
  expect(address != nullptr, "a request is not served while its tracker calls the allocator");
  expect(is_refused && is_annotated, "a tracker that asks for a snapshot is not refused with an error");
  CCA::raw_delete(address);
}

void an_exception_of_a_tracker_reaches_the_caller() {
  on_entry = [] { throw std::runtime_error("of a tracker"); };
  bool is_thrown = false;
  try {
    CCA::raw_delete(CCA::raw_alloc(1 << 20));
  } catch (const std::runtime_error& error) {
    is_thrown = !strcmp(error.what(), "of a tracker");
  }
  expect(is_thrown, "an exception of a tracker is lost");
  CCA::raw_delete(CCA::raw_alloc(1 << 20));  // and it is thrown once
}

// The warnings that PyTorch's handler receives.
struct Warnings : c10::WarningHandler {
  std::vector<std::string> texts;
  void process(const c10::Warning& warning) override { texts.push_back(warning.msg()); }
};

void a_rescue_is_told_once_a_minute() {
  CCA::setAllocatorSettings("expandable_segments:True");
  Warnings warnings;
  c10::WarningUtils::WarningHandlerGuard guard(&warnings);
  void* first = CCA::raw_alloc(20 << 20);
  // Leaves 34 MiB on the device.
  size_t free = 0, total = 0;
  void* rest = nullptr;
  cudaMemGetInfo(&free, &total);
  expect(cudaMalloc(&rest, free - (34 << 20)) == cudaSuccess, "the device's memory cannot be taken");
  expect(warnings.texts.empty(), "a request that PyTorch serves is told as a rescue");
  void* second = CCA::raw_alloc(30 << 20);  // PyTorch maps two pages of 20 MiB
  expect(second != nullptr && warnings.texts.size() == 1, "a rescue is not told");
  expect(!warnings.texts.empty() && warnings.texts[0].find("rescued 1 request") != std::string::npos,
         "the warning does not count the rescue");
  CCA::raw_delete(second);
  CCA::raw_delete(CCA::raw_alloc(30 << 20));
  expect(warnings.texts.size() == 1, "a rescue is told twice in a minute");
  CCA::raw_delete(first);
  CCA::emptyCache();
  cudaFree(rest);
  CCA::setAllocatorSettings("expandable_segments:False");
}

#if TORCH_MINOR >= 11
void a_pools_own_allocator_lives_as_long_as_its_memory(CCA::CUDAAllocator* native) {
  bool is_gone = false;
  const MempoolId_t pool{0, 77};
  const auto before = native->getDeviceStats(0).allocated_bytes[0].current;
  CCA::createOrIncrefPool(0, pool,
                          std::shared_ptr<CCA::CUDAAllocator>(native, [&](CCA::CUDAAllocator*) { is_gone = true; }));
  CCA::beginAllocateToPool(0, pool, [](cudaStream_t) { return true; });
  void* address = CCA::raw_alloc(1 << 20);
  CCA::get()->endAllocateToPool(0, pool);
  expect(native->getDeviceStats(0).allocated_bytes[0].current > before, "a pool's memory is not its own allocator's");
  CCA::releasePool(0, pool);
  CCA::releasePool(0, pool);
  CCA::emptyCache();
  expect(!is_gone, "a pool's own allocator is destroyed before its memory is given back");
  CCA::raw_delete(address);
  CCA::emptyCache();
  expect(native->getDeviceStats(0).allocated_bytes[0].current == before, "a pool's memory is not given back");
  expect(is_gone, "a pool's own allocator is kept after the pool");
}
#endif
}  // namespace

int main() {
  alarm(60);  // a deadlock fails
  release::install_hooks();
  [[maybe_unused]] auto* native = CCA::get();
  release::install_bridge(8);  // PARKADE_RESCUE_FREE
  expect(CCA::get() != native, "the bridge of ORACLE_BRIDGE is not installed");
  native->init(c10::cuda::device_count());
  CCA::init(c10::cuda::device_count());
  c10::cuda::set_device(0);
  CCA::attachAllocatorTraceTracker(&track);
  a_tracker_may_call_the_allocator();
  an_exception_of_a_tracker_reaches_the_caller();
  a_rescue_is_told_once_a_minute();
#if TORCH_MINOR >= 11
  a_pools_own_allocator_lives_as_long_as_its_memory(native);
#endif
  if (!failures) printf("bridge_checks: all hold with PyTorch 2.%d\n", TORCH_MINOR);
  fflush(stdout);
  _Exit(failures ? 1 : 0);
}
