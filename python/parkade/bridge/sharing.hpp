// Memory that other processes open, and memory from other processes, in class Allocator.
#pragma once
#include <sys/syscall.h>
#include <unistd.h>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include "allocator.hpp"

namespace parkade {
// The type that follows the version in a description: memory from cudaMalloc; handles of one size, as PyTorch writes
// them; handles of any sizes, which only parkade reads.
constexpr char PLAIN = 'c', ALIKE = 'e', MIXED = 'p';
// Before the third version it has no type (spec 4.9).
struct Shared {
  int32_t pid;
  uint64_t bytes;
  uint64_t count;
  int32_t type;
};
constexpr int32_t FILES = 1;
constexpr uint64_t MOST_HANDLES = 1 << 20;
constexpr size_t header_bytes(char version) { return version >= 3 ? sizeof(Shared) : offsetof(Shared, type); }

// The description has the version and the origin of the memory, as PyTorch's allocator writes and reads them.
inline CCA::ShareableHandle Allocator::shareIpcHandle(void* address) {
  auto* of = owner(address, false);
  parkade_block_info block{};
  TORCH_CHECK(of && parkade_block(of->core, address, &block) == PARKADE_OK,
              "invalid device pointer: " + in_text(address));
  if (block.is_expandable) return share_handles(*of, address);
  cudaIpcMemHandle_t handle;
  C10_CUDA_CHECK(cudaIpcGetMemHandle(&handle, reinterpret_cast<void*>(block.segment)));
  std::string text{HANDLE_VERSION, PLAIN};
  text.append(reinterpret_cast<const char*>(&handle), sizeof handle);
  return {static_cast<ptrdiff_t>(reinterpret_cast<uint64_t>(address) - block.segment), text};
}
inline CCA::ShareableHandle Allocator::share_handles(Place& of, void* address) {
  std::vector<parkade_shared_handle> handles;
  uint64_t start = 0;
  auto add = [](void* to, const parkade_shared_handle* handle) noexcept {
    inside_core([&] { static_cast<std::vector<parkade_shared_handle>*>(to)->push_back(*handle); });
  };
  const auto status = parkade_share(of.core, address, &start, add, &handles);
  rethrow();
  TORCH_CHECK(
      status == PARKADE_OK,
      std::string("memory of this expandable segment cannot be shared: ") + parkade_error_text() +
          ". Each handle needs an open file (ulimit -n); or set expandable_segments:False in the process that shares");
  bool are_alike = true;
  for (auto& handle : handles) are_alike &= handle.bytes == handles[0].bytes;
  std::string text{HANDLE_VERSION, are_alike ? ALIKE : MIXED};
  Shared header;
  std::memset(&header, 0, sizeof header);  // equal memory has equal texts
  header.pid = getpid();
  header.bytes = are_alike ? handles[0].bytes : 0;
  header.count = handles.size();
  header.type = FILES;
  text.append(reinterpret_cast<const char*>(&header), header_bytes(HANDLE_VERSION));
  for (auto& handle : handles) {
    if (!are_alike) text.append(reinterpret_cast<const char*>(&handle.bytes), sizeof handle.bytes);
    text.append(reinterpret_cast<const char*>(&handle.file), sizeof handle.file);
  }
  return {static_cast<ptrdiff_t>(reinterpret_cast<uint64_t>(address) - start), text};
}

// File descriptors of another process, duplicated into this one until the end of the scope.
struct Files {
  long process;
  std::vector<int> taken;
  explicit Files(int32_t pid) : process(syscall(SYS_PIDFD_OPEN, pid, 0)) {
    TORCH_CHECK(process >= 0, failed("pidfd_open"));
  }
  Files(const Files&) = delete;
  ~Files() {
    for (int file : taken) close(file);
    close(static_cast<int>(process));
  }
  int take(int32_t file) {
    const auto own = syscall(SYS_PIDFD_GETFD, process, file, 0);
    TORCH_CHECK(own >= 0, failed("pidfd_getfd"));
    return taken.emplace_back(static_cast<int>(own));
  }
  static std::string failed(const char* call) {
    return std::string(call) + ": " + std::strerror(errno) +
           ": memory of an expandable segment cannot be taken from the process that shares it. " +
           "It must run, be of the same user, and let this process trace it; otherwise set expandable_segments:False "
           "there";
  }
  // From Linux 5.3 and 5.6; older headers do not define them.
  static constexpr long SYS_PIDFD_OPEN = 434, SYS_PIDFD_GETFD = 438;
};

// Memory of another process, open in this one. It is closed with the mutex held, because it can be opened again only
// after that. A forked child closes nothing.
struct Allocator::Opened {
  Allocator* by;
  std::string text;
  c10::DeviceIndex device = c10::cuda::current_device();
  pid_t process = getpid();
  void* address = nullptr;
  parkade_shared* shared = nullptr;
  Opened(Allocator* by, std::string text) : by(by), text(std::move(text)) {}
  Opened(const Opened&) = delete;
  ~Opened() {
    if (getpid() != process) return;
    by->opened.erase(std::remove(by->opened.begin(), by->opened.end(), this), by->opened.end());
    c10::cuda::CUDAStreamCaptureModeGuard relaxed{cudaStreamCaptureModeRelaxed};
    parkade_shared_close(shared);
    if (shared) return;
    c10::cuda::CUDAGuard guard(device);
    if (address && cudaIpcCloseMemHandle(address) != cudaSuccess) (void)cudaGetLastError();
  }
};
inline void Allocator::close_opened(Opened* gone) {
  if (getpid() != gone->process) return;
  auto& by = *gone->by;
  std::lock_guard<std::mutex> lock(by.imported_mutex);
  if (auto it = by.imported.find(gone->text); it != by.imported.end() && it->second.expired()) by.imported.erase(it);
  delete gone;
}
// A process can open another process's memory only once, so it is kept.
inline std::shared_ptr<void> Allocator::getIpcDevPtr(std::string text) {
  std::unique_lock<std::mutex> lock(imported_mutex);
  if (auto it = imported.find(text); it != imported.end())
    if (auto known = it->second.lock()) return known;
  TORCH_CHECK(text.empty() || text[0] <= HANDLE_VERSION,
              "received sharable handle from a future version of torch that this version does not know how to handle");
  auto made = std::make_unique<Opened>(this, text);
  open(*made);
  opened.push_back(made.get());
  auto& kept = imported[text];
  // If there is no memory for the pointer's own block, it closes what it was given at once, which takes the mutex.
  lock.unlock();
  std::shared_ptr<Opened> owner(made.release(), &close_opened);
  lock.lock();
  std::shared_ptr<void> shared(owner, owner->address);
  kept = shared;
  return shared;
}
inline void Allocator::open(Opened& to) {
  const auto& text = to.text;
  const char kind = text.size() < 2 ? 0 : text[1];
  TORCH_CHECK(kind == PLAIN || kind == ALIKE || kind == MIXED,
              "this handle of another process's memory is damaged, or of an allocator that parkade does not know");
  if (kind != PLAIN) return open_handles(to, kind == ALIKE);
  cudaIpcMemHandle_t handle;
  TORCH_CHECK(text.size() == 2 + sizeof handle, "the handle of another process's memory has " +
                                                    std::to_string(text.size()) + " bytes instead of " +
                                                    std::to_string(2 + sizeof handle));
  std::memcpy(&handle, text.data() + 2, sizeof handle);
  C10_CUDA_CHECK(cudaIpcOpenMemHandle(&to.address, handle, cudaIpcMemLazyEnablePeerAccess));
}
inline void Allocator::open_handles(Opened& to, bool are_alike) {
  const auto& text = to.text;
  Shared header{};
  const size_t each = sizeof(int32_t) + (are_alike ? 0 : sizeof(uint64_t)), begin = 2 + header_bytes(text[0]);
  if (text.size() >= begin) std::memcpy(&header, text.data() + 2, begin - 2);
  TORCH_CHECK(text.size() >= begin && header.count <= MOST_HANDLES && text.size() == begin + header.count * each &&
                  (text[0] < 3 || header.type == FILES),
              "this handle of another process's memory is damaged, or has fabric handles, which parkade does not open: "
              "set expandable_segments:False in that process");
  Files files(header.pid);
  std::vector<parkade_shared_handle> handles(header.count, {header.bytes, -1});
  const char* at = text.data() + begin;
  for (auto& handle : handles) {
    if (!are_alike) std::memcpy(&handle.bytes, std::exchange(at, at + sizeof handle.bytes), sizeof handle.bytes);
    std::memcpy(&handle.file, std::exchange(at, at + sizeof handle.file), sizeof handle.file);
    handle.file = files.take(handle.file);
  }
  std::vector<uint32_t> peers;
  for (auto [device, of] : peer_access)
    if (of == to.device) peers.push_back(static_cast<uint32_t>(device));
  check(parkade_shared_open(static_cast<uint32_t>(to.device), handles.data(), handles.size(), peers.data(),
                            peers.size(), &to.address, &to.shared));
}
}  // namespace parkade
