// What GMLake's file needs besides the fake driver.
#include <cuda.h>
#include <cstdlib>
namespace c10::cuda::CUDACachingAllocator {
class CUDAAllocator;
namespace CudaMallocAsync { CUDAAllocator* allocator() { std::abort(); } }
}
extern "C" CUresult cuCtxGetDevice(CUdevice* d) { *d = 0; return CUDA_SUCCESS; }
