// A stand-in for libnvidia-ml.so.1, with which out-of-memory messages say "Including non-PyTorch memory, this process
// has X memory in use."
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
typedef struct {
  unsigned pid;
  unsigned long long used;
  unsigned gi, ci;
} proc_t;
extern size_t fake_used(int) __attribute__((weak));
int nvmlInit_v2(void) { return 0; }
// fakecuda.cpp gives device d the bus number d + 1.
int nvmlDeviceGetHandleByPciBusId_v2(const char* id, void** d) {
  unsigned a = 0, b = 1;
  sscanf(id, "%x:%x", &a, &b);
  *d = (void*)(size_t)b;
  return 0;
}
int nvmlDeviceGetNvLinkRemoteDeviceType(void* d, unsigned l, int* t) { return 3; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void* d, unsigned l, void* p) { return 3; }
int nvmlDeviceGetComputeRunningProcesses(void* d, unsigned* n, proc_t* p) {
  const char* e = getenv("FAKE_NVML");
  if (e && e[0] == '0') return 3;  // NOT_SUPPORTED: the OOM message loses the sentence
  if (*n < 1) {
    *n = 1;
    return 7;
  }
  *n = 1;
  memset(p, 0, sizeof *p);
  p->pid = getpid();
  p->used = fake_used ? fake_used((int)(size_t)d - 1) : 0;
  return 0;
}
// Functions for other readers: devices by index, with the UUIDs of fakecuda.cpp.
int nvmlShutdown(void) { return 0; }
int nvmlSystemGetDriverVersion(char* b, unsigned n) {
  snprintf(b, n, "0.0");
  return 0;
}
int nvmlDeviceGetCount_v2(unsigned* n) {
  const char* e = getenv("FAKE_GPU_COUNT");
  *n = e && *e ? (unsigned)atoi(e) : 1;
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void** d) {
  *d = (void*)(size_t)(i + 1);
  return 0;
}
int nvmlDeviceGetName(void* d, char* b, unsigned n) {
  snprintf(b, n, "FakeGPU");
  return 0;
}
int nvmlDeviceGetUUID(void* d, char* b, unsigned n) {
  snprintf(b, n, "GPU-00000000-0000-0000-0000-0000000000%02x", (unsigned)(size_t)d - 1);
  return 0;
}
int nvmlDeviceGetMemoryInfo(void* d, void* m) { return 3; }
int nvmlDeviceGetComputeRunningProcesses_v3(void* d, unsigned* n, proc_t* p) {
  return nvmlDeviceGetComputeRunningProcesses(d, n, p);
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(void* d, unsigned* n, proc_t* p) {
  *n = 0;
  return 0;
}
int nvmlSystemGetCudaDriverVersion_v2(int* v) {
  *v = 13000;
  return 0;
}
// The caller's record says at first that the device is in no fabric: so it is.
int nvmlDeviceGetGpuFabricInfoV(void* d, void* i) { return 0; }
