// Private pools, checkpoints and other devices in class Allocator.
#pragma once
#include "sharing.hpp"

namespace parkade {
inline void Allocator::beginAllocateToPool(c10::DeviceIndex device, MempoolId_t pool,
                                           std::function<bool(cudaStream_t)> filter) {
  place(device).begin(pool, std::move(filter));
}
inline void Allocator::endAllocateToPool(c10::DeviceIndex device, MempoolId_t pool) { place(device).end(pool); }
inline void Allocator::releasePool(c10::DeviceIndex device, MempoolId_t pool) { place(device).release(pool); }
inline int Allocator::getPoolUseCount(c10::DeviceIndex device, MempoolId_t pool) {
  int64_t uses = 0;
  check(parkade_pool_use_count(place(device).core, in_c(pool), &uses));
  return static_cast<int>(uses);
}
inline void Allocator::createOrIncrefPool(c10::DeviceIndex device, MempoolId_t pool, PoolAllocator allocator) {
  place(device).create(pool, std::move(allocator));
}
inline void Allocator::setUseOnOOM(c10::DeviceIndex device, MempoolId_t pool, bool serves) {
  check(parkade_pool_set_use_on_oom(place(device).core, in_c(pool), serves));
}
inline void Allocator::setNoSplit(c10::DeviceIndex device, MempoolId_t pool) {
  check(parkade_pool_set_no_split(place(device).core, in_c(pool)));
}
inline bool Allocator::checkPoolLiveAllocations(c10::DeviceIndex device, MempoolId_t pool,
                                                const std::unordered_set<void*>& expected) {
  std::vector<uint64_t> addresses;
  for (void* address : expected) addresses.push_back(reinterpret_cast<uint64_t>(address));
  bool equal = false;
  check(parkade_pool_live_allocations_are(place(device).core, in_c(pool), addresses.data(), addresses.size(), &equal));
  return equal;
}

inline std::shared_ptr<CCA::AllocatorState> Allocator::getCheckpointState(c10::DeviceIndex device, MempoolId_t pool) {
  parkade_checkpoint* saved = nullptr;
  check(parkade_checkpoint_save(place(device).core, in_c(pool), &saved));
  return std::make_shared<Checkpoint>(saved);
}
inline CCA::CheckpointDelta Allocator::setCheckpointPoolState(c10::DeviceIndex device,
                                                              std::shared_ptr<CCA::AllocatorState> state) {
  auto checkpoint = std::dynamic_pointer_cast<Checkpoint>(state);
  TORCH_CHECK(checkpoint, "the checkpoint is another allocator's: a pool is restored by the allocator that saved it");
  auto& of = place(device);
  // Its frees and allocations have the stack of this call.
  Stack stack(of.history.gather(RecordContext::STATE));
  parkade_restored restored{};
  check(parkade_checkpoint_restore(of.core, checkpoint->saved, &restored));
  CCA::CheckpointDelta delta;
  const bool is_other = device != first;
  std::unique_lock<std::mutex> lock(owners_mutex, std::defer_lock);
  if (is_other) lock.lock();
  for (size_t i = 0; i < restored.freed_count; i++) {
    delta.ptrs_freed.push_back(reinterpret_cast<void*>(restored.freed[i]));
    if (is_other) owners.erase(delta.ptrs_freed.back());
  }
  for (size_t i = 0; i < restored.allocated_count; i++) {
    auto* address = reinterpret_cast<void*>(restored.allocated[i]);
    if (is_other) owners[address] = &of;
    delta.dataptrs_allocd.emplace_back(address, address, &free_block, c10::Device(c10::DeviceType::CUDA, device));
  }
  if (is_other) owned = owners.size();
  parkade_restored_free(&restored);
  return delta;
}

inline void Allocator::enablePeerAccess(c10::DeviceIndex device, c10::DeviceIndex to) {
  c10::cuda::CUDAGuard guard(device);
  const auto error = cudaDeviceEnablePeerAccess(to, 0);
  if (error == cudaErrorPeerAccessAlreadyEnabled)
    (void)cudaGetLastError();
  else
    C10_CUDA_CHECK(error);
  check(parkade_let_peer_access(place(to).core, static_cast<uint32_t>(device)));
  std::lock_guard<std::mutex> lock(imported_mutex);
  peer_access.emplace_back(device, to);
  for (auto* memory : opened)
    if (memory->shared && memory->device == to)
      check(parkade_shared_let_peer_access(memory->shared, static_cast<uint32_t>(device)));
}
inline bool Allocator::has_expandable(int device) {
  if (device < 0 || device >= MOST_DEVICES || !places[device].load()) return false;
  bool any = false;
  check(parkade_read_expandable(
      places[device].load()->core, [](void* to, const parkade_expandable*) { *static_cast<bool*>(to) = true; }, &any));
  return any;
}
inline cudaError_t Allocator::memcpyAsync(void* to, int to_device, const void* from, int from_device, size_t bytes,
                                          cudaStream_t stream, bool p2p_enabled) {
  if (p2p_enabled || to_device == from_device || (!has_expandable(to_device) && !has_expandable(from_device)))
    return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
  return cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes, stream);
}
}  // namespace parkade
