// Tests the entire interface on the simulated device. Prints what is wrong and exits with 1, or prints "ok".
#include "parkade.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int wrong;
#define CHECK(condition)                                                       \
  do {                                                                         \
    if (!(condition)) {                                                        \
      printf("line %d: %s; %s\n", __LINE__, #condition, parkade_error_text()); \
      wrong = 1;                                                               \
    }                                                                          \
  } while (0)
#define SAYS(words) CHECK(strstr(parkade_error_text(), words))
#define MIB (1ull << 20)

static parkade_allocator* make(const char* policy, const char* settings, uint64_t bytes) {
  struct parkade_options options = {
      .size = sizeof options, .simulated_bytes = bytes, .policy = policy, .settings = settings};
  parkade_allocator* allocator = NULL;
  CHECK(parkade_create(&options, &allocator) == PARKADE_OK);
  return allocator;
}

static void no_handle(void* user, const struct parkade_shared_handle* handle) {
  (void)user;
  CHECK(!handle);
}

// Calls that the library refuses before it accesses a GPU, so the test does not need one.
static void shared(void) {
  struct parkade_shared_handle handles[] = {{.bytes = MIB, .file = 0}, {.bytes = MIB, .file = -1}};
  parkade_shared* memory = NULL;
  void* p = NULL;
  CHECK(parkade_shared_open(0, NULL, 1, NULL, 0, &p, &memory) == PARKADE_INVALID_ARGUMENT);
  CHECK(parkade_shared_open(0, handles, 2, NULL, 0, &p, &memory) == PARKADE_INVALID_ARGUMENT);
  SAYS("has no file descriptor");
  CHECK(parkade_shared_open(0, handles, 0, NULL, 0, &p, &memory) == PARKADE_INVALID_ARGUMENT);
  CHECK(parkade_shared_open(0, handles, 1, NULL, 0, NULL, &memory) == PARKADE_INVALID_ARGUMENT);
  CHECK(parkade_shared_open(0, handles, 1, NULL, 0, &p, NULL) == PARKADE_INVALID_ARGUMENT);
  CHECK(parkade_shared_open(4294967295u, handles, 1, NULL, 0, &p, &memory) == PARKADE_NO_DEVICE && !memory && !p);
  CHECK(parkade_shared_let_peer_access(NULL, 1) == PARKADE_INVALID_ARGUMENT);
  parkade_shared_close(NULL);
}

static void count_rescue(void* user, const struct parkade_rescue* rescue) {
  CHECK(rescue->size == 100 * MIB && rescue->broken_handles > 0 && rescue->copied_bytes > 0);
  ++*(int*)user;
}

// A request that PyTorch would refuse, because each page of 20 MiB contains a block in use.
static void rescue(void) {
  struct parkade_options o = {.size = sizeof o, .simulated_bytes = 200 * MIB};
  o.flags = PARKADE_RESCUE | PARKADE_RESCUE_FREE;
  parkade_allocator* allocator = NULL;
  CHECK(parkade_create(&o, &allocator) == PARKADE_INVALID_ARGUMENT);
  SAYS("mutually exclusive");
  o.flags = PARKADE_RESCUE;
  o.settings = "expandable_segments:False";
  CHECK(parkade_create(&o, &allocator) == PARKADE_INVALID_SETTINGS);
  o.settings = NULL;
  o.policy = "bfc";
  CHECK(parkade_create(&o, &allocator) == PARKADE_INVALID_ARGUMENT);
  SAYS("only the policy pytorch has a rescue");
  o.policy = NULL;
  o.most_rescues = 1;
  CHECK(parkade_create(&o, &allocator) == PARKADE_OK);
  void *blocks[40], *large = NULL, *second = NULL;
  for (int i = 0; i < 40; i++) CHECK(parkade_allocate(allocator, 5 * MIB, 0, &blocks[i]) == PARKADE_OK);
  for (int i = 0; i < 40; i++)
    if (i % 4) CHECK(parkade_free(allocator, blocks[i]) == PARKADE_OK);
  int rescues = 0;
  CHECK(parkade_set_rescue_observer(allocator, &count_rescue, &rescues) == PARKADE_OK);
  CHECK(parkade_allocate(allocator, 100 * MIB, 0, &large) == PARKADE_OK && rescues == 1);
  CHECK(parkade_allocate(allocator, 30 * MIB, 0, &second) == PARKADE_OUT_OF_MEMORY && rescues == 1);
  struct parkade_stats stats;
  CHECK(parkade_read_stats(allocator, &stats) == PARKADE_OK);
  CHECK(stats.num_rescues == 1 && stats.num_ooms == 1 && stats.copied_bytes > 0);
  parkade_destroy(allocator);
}

static void options(void) {
  parkade_allocator* allocator = NULL;
  struct parkade_options o = {.size = sizeof o, .simulated_bytes = MIB, .policy = "no such policy"};
  CHECK(parkade_create(&o, &allocator) == PARKADE_INVALID_ARGUMENT && !allocator);
  SAYS("there is no policy \"no such policy\"");
  o.policy = "best-fit-remap:handle=3MiB";
  CHECK(parkade_create(&o, &allocator) == PARKADE_INVALID_ARGUMENT);
  SAYS("handle=3MiB is not possible; handle is one of 2MiB, 4MiB, ");
  o.policy = "best-fit-remap:handle=32MiB";
  CHECK(parkade_create(&o, &allocator) == PARKADE_OK);
  parkade_destroy(allocator);
  allocator = NULL;
  o.policy = "pytorch";
  o.settings = "max_split_size_mb:1";
  CHECK(parkade_create(&o, &allocator) == PARKADE_INVALID_SETTINGS);
  SAYS("max_split_size");
  o.policy = "bfc";
  o.settings = "expandable_segments:True";
  CHECK(parkade_create(&o, &allocator) == PARKADE_INVALID_SETTINGS);
  o.policy = "pytorch";
  o.settings = NULL;
  o.release = "1.13";
  CHECK(parkade_create(&o, &allocator) == PARKADE_INVALID_ARGUMENT);
  SAYS("1.13");
  o.release = NULL;
  o.flags = 16 | 4;
  CHECK(parkade_create(&o, &allocator) == PARKADE_INVALID_ARGUMENT);
  SAYS("flags 0x14");
  o.flags = PARKADE_KEEPS_CONTEXT;
  CHECK(parkade_create(&o, &allocator) == PARKADE_OK);
  parkade_destroy(allocator);
  allocator = NULL;
  o.flags = 0;
  for (int bit = 4; bit < 32; bit++) {
    o.flags = 1u << bit;
    CHECK(parkade_create(&o, &allocator) == PARKADE_INVALID_ARGUMENT && !allocator);
  }
  o.flags = 0;
  for (size_t size = 0; size < 2 * sizeof o; size++) {
    o.size = size;
    CHECK((parkade_create(&o, &allocator) == PARKADE_OK) == (size == sizeof o));
    CHECK((allocator != NULL) == (size == sizeof o));
    parkade_destroy(allocator);
    allocator = NULL;
  }
  SAYS("set `size`, and compile the program with this library's header");
  CHECK(parkade_create(NULL, &allocator) == PARKADE_INVALID_ARGUMENT);
  CHECK(!strcmp(parkade_policy_name(0), "pytorch") && *parkade_policy_says(0));
  size_t names = 0;
  while (parkade_policy_name(names)) names++;
  CHECK(names > 15 && !parkade_policy_says(names));
  for (size_t i = 0; i < names; i++) {
    // Some policies take the entire device at the start, so make it large.
    parkade_allocator* one = make(parkade_policy_name(i), NULL, 1ull << 36);
    void* block = NULL;
    CHECK(one && parkade_allocate(one, 5 * MIB, 0, &block) == PARKADE_OK && block);
    CHECK(parkade_free(one, block) == PARKADE_OK);
    parkade_destroy(one);
  }
}

static void memory(void) {
  parkade_allocator* a = make("pytorch", NULL, 64 * MIB);
  void *p = (void*)1, *q = NULL;
  CHECK(parkade_allocate(a, 0, 0, &p) == PARKADE_OK && !p);
  CHECK(parkade_allocate(a, 3000000, 0, &p) == PARKADE_OK && p);
  struct parkade_block_info block;
  CHECK(parkade_block(a, p, &block) == PARKADE_OK && block.size == 3000320 && block.requested == 3000000 &&
        block.segment_size == 20 * MIB);
  CHECK(block.segment == (uint64_t)p && !block.is_expandable);
  CHECK(parkade_free(a, (char*)p + 512) == PARKADE_UNKNOWN_ADDRESS);
  SAYS("inside the block");
  CHECK(parkade_free(a, &p) == PARKADE_UNKNOWN_ADDRESS);
  CHECK(parkade_record_stream(a, p, 7, 0) == PARKADE_OK &&
        parkade_record_stream(a, &p, 7, 0) == PARKADE_UNKNOWN_ADDRESS);
  CHECK(parkade_record_stream_of(a, p, 0, 8, 0) == PARKADE_OK &&
        parkade_record_stream_of(a, &p, 0, 8, 0) == PARKADE_UNKNOWN_ADDRESS);
  CHECK(parkade_record_stream_of(a, p, 1, 8, 0) == PARKADE_UNSUPPORTED);
  SAYS("not support streams of other devices");
  uint64_t first = 0;
  CHECK(parkade_share(a, p, &first, no_handle, NULL) == PARKADE_INVALID_ARGUMENT);
  SAYS("not expandable");
  CHECK(parkade_free(a, p) == PARKADE_OK && parkade_free(a, p) == PARKADE_UNKNOWN_ADDRESS &&
        parkade_free(a, NULL) == PARKADE_OK);
  CHECK(parkade_allocate(a, 65 * MIB, 0, &q) == PARKADE_OUT_OF_MEMORY && !q);
  SAYS("CUDA out of memory. Tried to allocate 66.00 MiB");
  struct parkade_shortage shortage;
  CHECK(parkade_error_shortage(&shortage) && shortage.segment_bytes == 66 * MIB && shortage.device_total == 64 * MIB);
  CHECK(parkade_allocate(a, 1ull << 60, 0, &q) == PARKADE_OUT_OF_MEMORY);
  SAYS("more than 1EB");
  struct parkade_request raw = {.bytes = UINT64_MAX, .flags = PARKADE_RAW};
  CHECK(parkade_serve(a, &raw, &q) == PARKADE_OUT_OF_MEMORY);
  CHECK(parkade_set_memory_fraction(a, 1.5) == PARKADE_INVALID_ARGUMENT &&
        parkade_set_memory_fraction(a, 0.5) == PARKADE_OK);
  double fraction = 0;
  CHECK(parkade_memory_fraction(a, &fraction) == PARKADE_OK && fraction == 0.5);
  CHECK(parkade_allocate(a, 33 * MIB, 0, &q) == PARKADE_OUT_OF_MEMORY && parkade_set_limit(a, 0) == PARKADE_OK);
  CHECK(parkade_allocate(a, 33 * MIB, 0, &q) == PARKADE_OK && parkade_free(a, q) == PARKADE_OK);
  CHECK(parkade_empty_cache(a, NULL, 0) == PARKADE_OK);
  struct parkade_stats stats;
  CHECK(parkade_read_stats(a, &stats) == PARKADE_OK && stats.reserved_bytes.all.current == 0 && stats.num_ooms == 2 &&
        stats.allocation.all.allocated == 2);
  uint64_t free_bytes, total, largest;
  CHECK(parkade_memory_info(a, &free_bytes, &total) == PARKADE_OK && free_bytes == 64 * MIB && total == 64 * MIB);
  CHECK(parkade_largest_free_block(a, &largest) == PARKADE_OK && largest == 0);
  void *there = NULL, *front = NULL;
  CHECK(parkade_allocate(a, 4 * MIB, 0, &front) == PARKADE_OK && parkade_free(a, front) == PARKADE_OK);
  struct parkade_request here = {.bytes = 2 * MIB, .flags = 0};
  CHECK(parkade_serve_at(a, &here, (char*)front + 2 * MIB, &there) == PARKADE_OK && there == (char*)front + 2 * MIB);
  CHECK(parkade_serve_at(a, &here, there, &q) == PARKADE_OK && q == NULL);
  CHECK(parkade_serve_at(a, &here, (char*)front + 7, &q) == PARKADE_OK && q == NULL);
  here.bytes = UINT64_MAX;
  CHECK(parkade_serve_at(a, &here, front, &q) == PARKADE_OK && q == NULL);
  CHECK(parkade_serve_at(a, NULL, front, &q) == PARKADE_INVALID_ARGUMENT);
  CHECK(parkade_free(a, there) == PARKADE_OK);
  CHECK(parkade_allocate(NULL, 1, 0, &q) == PARKADE_INVALID_ARGUMENT &&
        parkade_allocate(a, 1, 0, NULL) == PARKADE_INVALID_ARGUMENT);
  parkade_destroy(a);
  parkade_destroy(NULL);
}

static size_t seen[16];
static void observe(void* user, const struct parkade_entry* entry) {
  seen[entry->action]++;
  (void)user;
}
static void* spare;
static parkade_allocator* spares;
static bool give_back(void* user) {
  (void)user;
  void* gone = spare;
  spare = NULL;
  // The call neither waits nor fails: the block is freed when this callback returns.
  CHECK(!gone || parkade_free_so(spares, gone, PARKADE_CAPTURING) == PARKADE_OK);
  CHECK(parkade_empty_cache(spares, NULL, 0) == PARKADE_REENTERED);
  return gone != NULL;
}

static void callbacks(void) {
  spares = make(NULL, NULL, 64 * MIB);
  CHECK(parkade_set_observer(spares, observe, NULL) == PARKADE_OK && parkade_record_history(spares, 2) == PARKADE_OK);
  CHECK(parkade_add_free_memory_callback(spares, give_back, NULL) == PARKADE_OK);
  CHECK(parkade_add_free_memory_callback(spares, NULL, NULL) == PARKADE_INVALID_ARGUMENT);
  void* p = NULL;
  CHECK(parkade_allocate(spares, 40 * MIB, 0, &spare) == PARKADE_OK);
  CHECK(parkade_allocate(spares, 40 * MIB, 0, &p) == PARKADE_OK && !spare);
  CHECK(seen[PARKADE_ALLOC] == 2 && seen[PARKADE_FREE_COMPLETED] == 1 && seen[PARKADE_SEGMENT_ALLOC] == 1);
  memset(seen, 0, sizeof seen);
  CHECK(parkade_read_history(spares, observe, NULL) == PARKADE_OK && seen[PARKADE_ALLOC] == 1 &&
        seen[PARKADE_FREE_COMPLETED] == 1);
  CHECK(parkade_free(spares, p) == PARKADE_OK);
  parkade_destroy(spares);
}

static _Alignas(4096) char own[4 * 1024 * 1024];
static int lent;
static void* lend(void* user, uint64_t bytes) {
  (void)user;
  return bytes <= sizeof own && !lent++ ? own : NULL;
}
static void take_back(void* user, void* address) {
  (void)user;
  lent -= address == own;
}

static void pools(void) {
  parkade_allocator* a = make("pytorch", "expandable_segments:True", 256 * MIB);
  struct parkade_pool pool = {0, 1}, other = {0, 2};
  struct parkade_request request = {.bytes = MIB, .flags = PARKADE_CHOOSES_POOL, .pool = pool};
  void *p = NULL, *q = NULL;
  int64_t uses = 0;
  CHECK(parkade_pool_end(a, pool) == PARKADE_POOL_ERROR);
  SAYS("not currently recording");
  CHECK(parkade_pool_begin(a, pool, 9, 0) == PARKADE_INVALID_ARGUMENT &&
        parkade_pool_begin(a, pool, PARKADE_ROUTE_CHOSEN, 0) == PARKADE_OK);
  CHECK(parkade_serve(a, &request, &p) == PARKADE_OK && parkade_allocate(a, MIB, 0, &q) == PARKADE_OK);
  CHECK(parkade_pool_use_count(a, pool, &uses) == PARKADE_OK && uses == 1);
  parkade_checkpoint* saved = NULL;
  CHECK(parkade_pool_end(a, pool) == PARKADE_OK && parkade_checkpoint_save(a, pool, &saved) == PARKADE_OK);
  bool same = false;
  uint64_t live[] = {(uint64_t)p};
  CHECK(parkade_pool_live_allocations_are(a, pool, live, 1, &same) == PARKADE_OK && same);
  CHECK(parkade_pool_live_allocations_are(a, pool, NULL, 0, &same) == PARKADE_OK && !same);
  CHECK(parkade_free(a, p) == PARKADE_OK);
  struct parkade_restored restored;
  CHECK(parkade_checkpoint_restore(a, saved, &restored) == PARKADE_OK && restored.freed_count == 0 &&
        restored.allocated_count == 1);
  CHECK(restored.allocated[0] == (uint64_t)p && parkade_free(a, p) == PARKADE_OK);
  parkade_restored_free(&restored);
  parkade_checkpoint_free(saved);
  CHECK(parkade_checkpoint_save(a, other, &saved) == PARKADE_CHECKPOINT_ERROR);

  parkade_snapshot* snapshot = NULL;
  size_t segments = 0, blocks = 0;
  CHECK(parkade_snapshot_take(a, &pool, &snapshot) == PARKADE_OK);
  const struct parkade_segment* segment = parkade_snapshot_segments(snapshot, &segments);
  const struct parkade_snapshot_block* block = parkade_snapshot_blocks(snapshot, &blocks);
  CHECK(segments == 1 && segment->pool.second == 1 && segment->is_expandable && blocks == segment->block_count &&
        block->address == (uint64_t)p);
  parkade_snapshot_free(snapshot);

  CHECK(parkade_pool_release(a, pool) == PARKADE_OK && parkade_empty_cache(a, &pool, 0) == PARKADE_OK);
  CHECK(parkade_pool_use_count(a, pool, &uses) == PARKADE_POOL_ERROR);
  // Memory that the program provides. It is never expandable, and is returned with the pool.
  CHECK(parkade_pool_set_memory(a, other, lend, NULL, NULL) == PARKADE_INVALID_ARGUMENT);
  CHECK(parkade_pool_set_memory(a, other, lend, take_back, NULL) == PARKADE_OK);
  CHECK(parkade_pool_begin(a, other, PARKADE_ROUTE_CHOSEN, 0) == PARKADE_OK);
  request.pool = other;
  CHECK(parkade_serve(a, &request, &p) == PARKADE_OK && p == own && lent == 1);
  request.bytes = 3 * MIB;
  CHECK(parkade_serve(a, &request, &q) == PARKADE_OUT_OF_MEMORY);
  CHECK(parkade_free(a, p) == PARKADE_OK && parkade_pool_end(a, other) == PARKADE_OK &&
        parkade_pool_release(a, other) == PARKADE_OK);
  CHECK(parkade_empty_cache(a, NULL, 0) == PARKADE_OK && lent == 0);
  parkade_destroy(a);
}

static void settings(void) {
  parkade_allocator *a = make("pytorch", NULL, 256 * MIB), *bfc = make("bfc", NULL, 256 * MIB);
  struct parkade_settings read;
  CHECK(parkade_read_settings(a, &read) == PARKADE_OK && read.max_split_bytes == UINT64_MAX &&
        !read.expandable_segments);
  CHECK(parkade_apply_settings(a, "max_split_size_mb:64,roundup_power2_divisions:4") == PARKADE_OK);
  CHECK(parkade_read_settings(a, &read) == PARKADE_OK && read.max_split_bytes == 64 * MIB &&
        read.roundup_power2_divisions[15] == 4);
  CHECK(parkade_apply_settings(a, "nothing:1") == PARKADE_INVALID_SETTINGS &&
        parkade_apply_settings(bfc, "") == PARKADE_UNSUPPORTED);
  read.expandable_segments = true;
  CHECK(parkade_set_settings(a, &read) == PARKADE_OK && parkade_set_settings(bfc, &read) == PARKADE_UNSUPPORTED);
  struct parkade_settings odd[] = {read, read, read, read, read, read};
  odd[0].large_segment_bytes = 3;
  odd[1].garbage_collection_threshold = 0.0 / 0.0;
  odd[2].large_segment_bytes = 256 * MIB + 2;
  odd[3].max_split_bytes = 64 * MIB - 1;
  odd[4].max_non_split_rounding_bytes = UINT64_MAX;
  odd[5].roundup_power2_divisions[7] = 3;
  for (int i = 0; i < 6; i++) CHECK(parkade_set_settings(a, &odd[i]) == PARKADE_INVALID_SETTINGS);
  SAYS("roundup_power2_divisions contains 3");
  void* p = NULL;
  struct parkade_block_info block;
  CHECK(parkade_allocate(a, MIB, 0, &p) == PARKADE_OK && parkade_block(a, p, &block) == PARKADE_OK &&
        block.is_expandable);
  uint64_t first = 0;
  CHECK(parkade_share(a, p, &first, no_handle, NULL) == PARKADE_UNSUPPORTED && !first);
  SAYS("simulated device cannot be shared");
  CHECK(parkade_share(a, &p, &first, no_handle, NULL) == PARKADE_UNKNOWN_ADDRESS);
  CHECK(parkade_share(a, p, &first, NULL, NULL) == PARKADE_INVALID_ARGUMENT &&
        parkade_share(a, p, NULL, no_handle, NULL) == PARKADE_INVALID_ARGUMENT);
  parkade_destroy(a);
  parkade_destroy(bfc);
}

static void* work(void* of) {
  for (int i = 0; i < 20000; i++) {
    void* p = NULL;
    if (parkade_allocate(of, 512 + (uint64_t)(i % 7) * 300000, (uint64_t)pthread_self(), &p) != PARKADE_OK ||
        parkade_free(of, p) != PARKADE_OK)
      return of;
  }
  return NULL;
}

static void threads_and_fork(void) {
  parkade_allocator* a = make(NULL, NULL, 1ull << 33);
  pthread_t threads[4];
  for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, work, a);
  // Fork while the other threads repeatedly hold the lock.
  pid_t child = fork();
  if (child == 0) {
    void* p = NULL;
    int good =
        parkade_allocate(a, 1, 0, &p) == PARKADE_FORKED && strstr(parkade_error_text(), "fork") && parkade_is_forked(a);
    parkade_destroy(a);
    _exit(good ? 0 : 1);
  }
  int status = 1;
  CHECK(waitpid(child, &status, 0) == child && status == 0 && !parkade_is_forked(a));
  for (int i = 0; i < 4; i++) {
    void* failed = NULL;
    CHECK(!pthread_join(threads[i], &failed) && !failed);
  }
  struct parkade_stats stats;
  CHECK(parkade_read_stats(a, &stats) == PARKADE_OK && stats.allocation.all.allocated == 80000 &&
        stats.allocation.all.current == 0);
  parkade_destroy(a);
}

static volatile bool is_over;
static parkade_allocator* captured;
static void* capture(void* block) {
  while (!is_over)
    if (parkade_record_stream(captured, block, 0, PARKADE_CAPTURING) != PARKADE_OK ||
        parkade_empty_cache(captured, &(struct parkade_pool){0, 9}, PARKADE_CAPTURING) != PARKADE_OK)
      return block;
  return NULL;
}

// A capture by one thread does not affect the others: PyTorch 2.13 and later check no events while the caller's own
// stream is captured.
static void threads_that_capture(void) {
  struct parkade_options options = {.size = sizeof options, .simulated_bytes = 1ull << 32, .release = "2.15"};
  void *p = NULL, *q = NULL, *failed = NULL;
  pthread_t thread;
  CHECK(parkade_create(&options, &captured) == PARKADE_OK && parkade_allocate(captured, 512, 0, &p) == PARKADE_OK);
  pthread_create(&thread, NULL, capture, p);
  int others = 0;
  for (int i = 0; i < 50000; i++) {
    CHECK(parkade_allocate(captured, 3 * MIB, 0, &p) == PARKADE_OK &&
          parkade_record_stream(captured, p, 7, 0) == PARKADE_OK);
    CHECK(parkade_free(captured, p) == PARKADE_OK && parkade_allocate(captured, 3 * MIB, 0, &q) == PARKADE_OK &&
          parkade_free(captured, q) == PARKADE_OK);
    others += p != q;
  }
  is_over = true;
  CHECK(!pthread_join(thread, &failed) && !failed && others == 0);
  parkade_destroy(captured);
}

static pthread_key_t at_end;
static parkade_allocator* ends;
static size_t ended;
static bool frees_at_end(void* user) {
  (void)user;
  return parkade_free(ends, spare) == PARKADE_OK;
}
// Runs after the library's data for the thread has been destroyed.
static void end_of_thread(void* block) {
  void* p = NULL;
  if (parkade_free(ends, (char*)block + 512) == PARKADE_UNKNOWN_ADDRESS &&
      parkade_allocate(ends, 40 * MIB, 0, &p) == PARKADE_OK && parkade_error_text())
    ended++;
}
static void* begin_thread(void* block) {
  (void)parkade_free(ends, (char*)block + 512);
  pthread_setspecific(at_end, block);
  return NULL;
}

static void destructors_of_threads(void) {
  ends = make(NULL, NULL, 64 * MIB);
  pthread_t thread;
  CHECK(parkade_allocate(ends, 40 * MIB, 0, &spare) == PARKADE_OK &&
        parkade_add_free_memory_callback(ends, frees_at_end, NULL) == PARKADE_OK);
  CHECK(!pthread_key_create(&at_end, end_of_thread) && !pthread_create(&thread, NULL, begin_thread, spare) &&
        !pthread_join(thread, NULL) && ended == 1);
  parkade_destroy(ends);
}

// Checks that a call succeeds with known flags and fails with unknown ones.
#define ANSWERS(known, call)                     \
  do {                                           \
    if (known)                                   \
      CHECK((call) == PARKADE_OK);               \
    else {                                       \
      CHECK((call) == PARKADE_INVALID_ARGUMENT); \
      SAYS("flags 0x");                          \
    }                                            \
  } while (0)

// Every call with flags refuses every unknown bit before it does anything, and accepts every known bit.
static void flags(void) {
  parkade_allocator* a = make("pytorch", NULL, 64 * MIB);
  struct parkade_stats before, after;
  void *held = NULL, *p = NULL;
  CHECK(parkade_allocate(a, 2 * MIB, 0, &held) == PARKADE_OK && parkade_read_stats(a, &before) == PARKADE_OK);
  for (int bit = 0; bit <= 32; bit++) {
    const uint32_t flag = bit < 32 ? 1u << bit : UINT32_MAX;
    const bool is_options = flag == PARKADE_KEEPS_CONTEXT || flag == PARKADE_WORK_IS_SERIAL || flag == PARKADE_RESCUE ||
                            flag == PARKADE_RESCUE_FREE;
    const bool is_requests = flag == PARKADE_RAW || flag == PARKADE_CAPTURING || flag == PARKADE_CHOOSES_POOL;
    const bool is_captures = flag == PARKADE_CAPTURING;
    struct parkade_options options = {.size = sizeof options, .simulated_bytes = MIB, .flags = flag};
    parkade_allocator* made = NULL;
    ANSWERS(is_options, parkade_create(&options, &made));
    parkade_destroy(made);
    for (uint64_t bytes = 0; bytes <= 2 * MIB; bytes += 2 * MIB) {
      struct parkade_request request = {.bytes = bytes, .flags = flag};
      p = NULL;
      ANSWERS(is_requests, parkade_serve(a, &request, &p));
      CHECK(!p == !(is_requests && bytes) && parkade_free(a, p) == PARKADE_OK);
      p = NULL;
      ANSWERS(is_requests, parkade_serve_at(a, &request, (char*)held + 2 * MIB, &p));
      CHECK(!p == !(is_requests && bytes) && parkade_free(a, p) == PARKADE_OK);
    }
    ANSWERS(is_captures, parkade_record_stream(a, held, 0, flag));
    ANSWERS(is_captures, parkade_record_stream_of(a, held, 0, 0, flag));
    ANSWERS(is_captures, parkade_empty_cache(a, NULL, flag));
    ANSWERS(is_captures, parkade_free_so(a, NULL, flag));
    if (!is_captures) ANSWERS(false, parkade_free_so(a, held, flag));
  }
  for (int route = -1; route <= 4; route++) {
    const struct parkade_pool pool = {0, 7 + route};
    const bool is_route = route == PARKADE_ROUTE_ALL || route == PARKADE_ROUTE_STREAM || route == PARKADE_ROUTE_CHOSEN;
    CHECK(parkade_pool_begin(a, pool, route, 0) == (is_route ? PARKADE_OK : PARKADE_INVALID_ARGUMENT));
    if (is_route) CHECK(parkade_pool_end(a, pool) == PARKADE_OK && parkade_pool_release(a, pool) == PARKADE_OK);
  }
  CHECK(parkade_read_stats(a, &after) == PARKADE_OK &&
        after.allocated_bytes.all.current == before.allocated_bytes.all.current);
  CHECK(parkade_free_so(a, held, 0) == PARKADE_OK);
  parkade_destroy(a);
}

// PyTorch's plug-in interface writes to stderr even if nobody reads it. This must not end the program.
static void stderr_that_nobody_reads(void) {
  int ends[2], status = -1;
  CHECK(!pipe(ends));
  close(ends[0]);
  const pid_t child = fork();
  if (!child) {
    signal(SIGPIPE, SIG_IGN);
    dup2(ends[1], 2);
    _exit(parkade_plug_alloc(-1, 0, NULL) != NULL);
  }
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  close(ends[1]);
}

int main(void) {
  CHECK(parkade_interface_version() == PARKADE_INTERFACE_VERSION && strstr(parkade_header(), "parkade_create"));
  options();
  rescue();
  shared();
  memory();
  callbacks();
  pools();
  settings();
  flags();
  stderr_that_nobody_reads();
  threads_and_fork();
  threads_that_capture();
  destructors_of_threads();
  if (!wrong) puts("ok");
  return wrong;
}
