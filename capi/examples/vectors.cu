// Adds two vectors in parkade's memory on one stream and reads the result on another. README.md explains how to build
// it.
#include "parkade.h"

#include <cuda_runtime.h>
#include <cstdio>
#include <cstdlib>
#include <vector>

static void must(parkade_status status) {
  if (status == PARKADE_OK) return;
  std::fprintf(stderr, "parkade: %s\n", parkade_error_text());
  std::exit(1);
}

__global__ void fill(float* to, float value, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) to[i] = value * i;
}

__global__ void add(float* to, const float* from, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) to[i] += from[i];
}

int main() {
  constexpr int count = 1 << 20, blocks = count / 256;
  constexpr size_t bytes = count * sizeof(float);
  if (parkade_interface_version() != PARKADE_INTERFACE_VERSION)
    return std::fprintf(stderr, "another version of parkade\n"), 1;
  cudaStream_t adds, reads;
  cudaStreamCreate(&adds);
  cudaStreamCreate(&reads);

  parkade_options options{};
  options.size = sizeof options;
  options.settings = "expandable_segments:True";
  parkade_allocator* allocator;
  must(parkade_create(&options, &allocator));

  void *a, *b;
  must(parkade_allocate(allocator, bytes, (uint64_t)adds, &a));
  must(parkade_allocate(allocator, bytes, (uint64_t)adds, &b));
  fill<<<blocks, 256, 0, adds>>>((float*)a, 1, count);
  fill<<<blocks, 256, 0, adds>>>((float*)b, 2, count);
  add<<<blocks, 256, 0, adds>>>((float*)a, (float*)b, count);
  // Work that is already on `adds` runs before any later use of memory allocated for that stream, so this block
  // becomes free immediately.
  must(parkade_free(allocator, b));

  cudaStreamSynchronize(adds);
  std::vector<float> sums(count);
  cudaMemcpyAsync(sums.data(), a, bytes, cudaMemcpyDeviceToHost, reads);
  // Another stream uses the block, so it becomes free only after that stream's work is done.
  must(parkade_record_stream(allocator, a, (uint64_t)reads, 0));
  must(parkade_free(allocator, a));
  cudaStreamSynchronize(reads);

  parkade_stats stats{};
  must(parkade_read_stats(allocator, &stats));
  std::printf("sum of the last: %.0f; reserved %lld bytes, at most %lld allocated\n", sums.back(),
              (long long)stats.reserved_bytes.all.current, (long long)stats.allocated_bytes.all.peak);
  parkade_destroy(allocator);
  return sums.back() == 3.0f * (count - 1) ? 0 : 1;
}
