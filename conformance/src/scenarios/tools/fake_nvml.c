// A libnvidia-ml.so.1 with one GPU, as far as parkade asks. The environment says who holds what:
// FAKE_NVML_PID lists this process, while it lives, with 3 GiB; FAKE_NVML_WORDS is the width of an entry in words
// (usually 3); FAKE_NVML_INIT is what nvmlInit_v2 returns; FAKE_NVML_LIST what the list of processes does.
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define GIB (1ULL << 30)
#define INSUFFICIENT_SIZE 7

typedef struct {
  uint64_t total, free, used;
} memory_t;
typedef struct {
  uint32_t version;
  uint64_t total, reserved, free, used;
} memory_v2_t;

static int from_environment(const char* name, int otherwise) {
  const char* text = getenv(name);
  return text ? atoi(text) : otherwise;
}

static int listed_pid(void) {
  int pid = from_environment("FAKE_NVML_PID", 0);
  return pid > 0 && kill(pid, 0) == 0 ? pid : 0;
}

static int put(char* text, unsigned room, const char* value) {
  if (strlen(value) >= room) return INSUFFICIENT_SIZE;
  strcpy(text, value);
  return 0;
}

int nvmlInit_v2(void) { return from_environment("FAKE_NVML_INIT", 0); }
int nvmlShutdown(void) { return 0; }
int nvmlSystemGetDriverVersion(char* text, unsigned room) { return put(text, room, "580.95.05"); }
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 1;
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  static int it;
  *device = &it;
  return index == 0 ? 0 : 2;
}
int nvmlDeviceGetName(void* device, char* text, unsigned room) { return put(text, room, "Fake GPU"); }
int nvmlDeviceGetUUID(void* device, char* text, unsigned room) { return put(text, room, "GPU-fake"); }

int nvmlDeviceGetMemoryInfo(void* device, memory_t* memory) {
  uint64_t used = listed_pid() ? 5 * GIB : 2 * GIB;
  *memory = (memory_t){8 * GIB, 8 * GIB - used, used};
  return 0;
}

int nvmlDeviceGetMemoryInfo_v2(void* device, memory_v2_t* memory) {
  uint64_t used = listed_pid() ? 4 * GIB : GIB;
  if (memory->version != (sizeof *memory | 2u << 24)) return 2;
  *memory = (memory_v2_t){memory->version, 8 * GIB, GIB, 7 * GIB - used, used};
  return 0;
}

// The process, and 99 others that hold one byte each, so that the room of a first call does not suffice.
int nvmlDeviceGetComputeRunningProcesses_v3(void* device, unsigned* count, uint64_t* list) {
  int words = from_environment("FAKE_NVML_WORDS", 3), code = from_environment("FAKE_NVML_LIST", 0);
  unsigned room = *count, wanted = 0;
  if (code) return code;
  if (listed_pid()) wanted = 100;
  *count = wanted;
  if (room < wanted) return INSUFFICIENT_SIZE;
  for (unsigned i = 0; i < wanted; i++) {
    uint64_t entry[4] = {i == 0 ? (uint64_t)listed_pid() : 4000000000u + i, i == 0 ? 3 * GIB : 1, UINT64_MAX, 0};
    memcpy(list + i * words, entry, words * sizeof *list);
  }
  return 0;
}

// A GPU for computing has none.
int nvmlDeviceGetGraphicsRunningProcesses_v3(void* device, unsigned* count, uint64_t* list) { return 3; }
