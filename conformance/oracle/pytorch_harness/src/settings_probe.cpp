// Prints every field of the real allocator's configuration, including those that no snapshot shows.
//
//   settings_probe run    each line of the input is a settings string in hex, or "!" to set a neutral state; one line
//   of output each settings_probe load   the settings that the environment gave, after the initialisation of one device
//
// Output, tab separated: error kind (- c10 std), message in hex, then name=value for every field; doubles as their bits
// in hex.
#include <c10/cuda/CUDAAllocatorConfig.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <sstream>
#include <string>
using std::string;
using Common = c10::CachingAllocator::AcceleratorAllocatorConfig;
using Cuda = c10::cuda::CUDACachingAllocator::CUDAAllocatorConfig;
namespace CCA = c10::cuda::CUDACachingAllocator;
namespace c10::cuda::detail {
C10_CUDA_API void init_p2p_access_cache(int64_t);
}
namespace c10::cuda::_internal {
C10_CUDA_API void setHasPrimaryContext(bool (*func)(DeviceIndex));
}

static string hex(const string& s) {
  static const char* d = "0123456789abcdef";
  string o;
  for (unsigned char c : s) {
    o += d[c >> 4];
    o += d[c & 15];
  }
  return o;
}
static string unhex(const string& s) {
  string o;
  for (size_t i = 0; i + 1 < s.size(); i += 2) o += (char)std::stoi(s.substr(i, 2), nullptr, 16);
  return o;
}
static string bits(double d) {
  unsigned long long u;
  memcpy(&u, &d, 8);
  char b[20];
  snprintf(b, 20, "%016llx", u);
  return b;
}
static void print(const char* kind, const string& message) {
  std::ostringstream out;
  out << kind << '\t' << hex(message) << "\tlarge=" << Common::large_segment_size()
      << "\tsplit=" << Common::max_split_size() << "\trounding=" << Common::max_non_split_rounding_size()
      << "\tgc=" << bits(Common::garbage_collection_threshold()) << "\texpandable=" << Common::use_expandable_segments()
      << "\tbackground=" << Common::pinned_use_background_threads()
      << "\trelease=" << Cuda::release_lock_on_cudamalloc() << "\tgraph=" << Cuda::graph_capture_record_stream_reuse()
      << "\tfraction=" << bits(Cuda::per_process_memory_fraction())
      << "\tregister=" << Cuda::pinned_use_cuda_host_register() << "\tthreads=" << Cuda::pinned_num_register_threads()
      << "\treserve=" << Cuda::pinned_reserve_segment_size_mb() << "\tbackend=" << CCA::get()->name() << "\troundup=";
  auto& r = Common::roundup_power2_divisions();
  for (size_t i = 0; i < r.size(); i++) out << (i ? "," : "") << r[i];
  out << "\ttext=" << hex(Common::last_allocator_settings()) << "\n";
  std::cout << out.str();
}
static void apply(const string& s) {
  try {
    CCA::setAllocatorSettings(s);
    print("-", "");
  } catch (const c10::ValueError& e) {
    print("value", e.what_without_backtrace());
  } catch (const c10::Error& e) {
    print("internal", e.what_without_backtrace());
  } catch (const std::invalid_argument& e) {
    print("argument", e.what());
  } catch (const std::out_of_range& e) {
    print("range", e.what());
  }
}
int main(int argc, char** argv) {
  std::ios::sync_with_stdio(false);
  string mode = argc > 1 ? argv[1] : "run";
  if (mode == "load") {
    c10::cuda::_internal::setHasPrimaryContext([](c10::DeviceIndex) { return true; });
    const char* kind = "-";
    string message;
    try {
      c10::cuda::detail::init_p2p_access_cache(c10::cuda::device_count());
      CCA::init(c10::cuda::device_count());
      c10::cuda::set_device(0);
      Cuda::release_lock_on_cudamalloc();  // with the cudaMallocAsync backend nothing has read the string yet: the
                                           // native order
      print("-", "");
      std::cout.flush();
      _Exit(0);
    } catch (const c10::ValueError& e) {
      kind = "value";
      message = e.what_without_backtrace();
    } catch (const c10::Error& e) {
      kind = "internal";
      message = e.what_without_backtrace();
    } catch (const std::invalid_argument& e) {
      kind = "argument";
      message = e.what();
    } catch (const std::out_of_range& e) {
      kind = "range";
      message = e.what();
    }
    std::cout << kind << '\t' << hex(message) << "\n";
    std::cout.flush();
    _Exit(0);
  }
  string line;
  while (std::getline(std::cin, line)) {
    if (line == "!") {
      try {
        CCA::setAllocatorSettings(
            "large_segment_size_mb:20,expandable_segments:False,pinned_use_background_threads:False,"
            "release_lock_on_cudamalloc:False,graph_capture_record_stream_reuse:False,per_process_memory_fraction:1,"
            "pinned_use_cuda_host_register:False,pinned_num_register_threads:1");
      } catch (...) {}
      CCA::setAllocatorSettings("");
      print("-", "");
    } else
      apply(unhex(line));
  }
  std::cout.flush();
  _Exit(0);
}
