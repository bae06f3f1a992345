// PyTorch on parkade: installs a CUDAAllocator of PyTorch whose memory is parkade's. It is compiled on the user's
// machine, for the installed PyTorch, as a single translation unit.
#include "allocator.hpp"
#include "pools.hpp"
#include "reading.hpp"
#include "serving.hpp"
#include "sharing.hpp"

namespace parkade {
// Never destroyed: memory is freed after everything else has ended.
static Allocator& ours() {
  static auto* own = new Allocator;
  return *own;
}
void free_block(void* address) { ours().free(address); }

static thread_local std::string error;
}  // namespace parkade

// The functions that Python calls.
#define PARKADE_PUBLIC extern "C" __attribute__((visibility("default")))

// The outcome of an installation.
enum parkade_bridge_status : int {
  PARKADE_BRIDGE_INSTALLED = 0,
  PARKADE_BRIDGE_ALREADY_INSTALLED = 1,
  PARKADE_BRIDGE_CUDA_IN_USE = 2,  // PyTorch's own allocator has been initialised
  PARKADE_BRIDGE_FAILED = 3,       // parkade_bridge_error_text states the reason
};

PARKADE_PUBLIC unsigned parkade_bridge_interface() noexcept { return PARKADE_INTERFACE_VERSION; }

PARKADE_PUBLIC int parkade_bridge_install(const char* policy, const char* release, unsigned flags,
                                          unsigned long long most_rescues) noexcept {
  using namespace parkade;
  try {
    auto* current = CCA::allocator.load();
    if (current == &ours()) return PARKADE_BRIDGE_ALREADY_INSTALLED;
    if (current->initialized()) return PARKADE_BRIDGE_CUDA_IN_USE;
    ours().configure(current, policy, release, flags, most_rescues);
    watch_settings();
    CCA::allocator.store(&ours());
    c10::SetAllocator(c10::DeviceType::CUDA, &ours(), 1);
    return PARKADE_BRIDGE_INSTALLED;
  } catch (const std::exception& thrown) {
    error = thrown.what();
  } catch (...) {
    error = "PyTorch threw an exception of an unknown type";
  }
  return PARKADE_BRIDGE_FAILED;
}

// Returns the number of requests that the allocator of a device has rescued.
PARKADE_PUBLIC long long parkade_bridge_rescues(int device) noexcept {
  auto* core = parkade::ours().core_of(device);
  parkade_stats stats{};
  return core && parkade_read_stats(core, &stats) == PARKADE_OK ? stats.num_rescues : 0;
}

// Returns the reason why this thread's last installation failed.
PARKADE_PUBLIC const char* parkade_bridge_error_text() noexcept { return parkade::error.c_str(); }

// The allocator of a device; null until the device is used.
PARKADE_PUBLIC parkade_allocator* parkade_bridge_allocator(int device) noexcept {
  return parkade::ours().core_of(device);
}
