/* parkade's C interface. Made by cbindgen from capi/src; do not edit. README.md beside it says how to use it. */

#ifndef PARKADE_H
#define PARKADE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// The version of this interface. A program compares it with the version that it was compiled for: if the first number
// of `parkade_interface_version` differs, so does the interface.
#define PARKADE_INTERFACE_VERSION 2

// After a call that needed the driver, a thread without a CUDA context keeps the context of device 0, as it does with
// CUDA's runtime. The runtime is slow in threads without a context. This flag is for an allocator that is never
// destroyed.
#define PARKADE_KEEPS_CONTEXT 1

// The promise required by a policy that breaks handles, such as `compaction`. While the allocator serves a call
// that asks for memory or routes requests to a private pool, no other thread submits work that uses the allocator's
// memory, no other device uses the memory, and the memory is not registered elsewhere (for example for RDMA). Without
// the promise, these policies are refused on a GPU, because data written during such a call could be lost.
#define PARKADE_WORK_IS_SERIAL 2

// Rescues requests that PyTorch's allocator would fail, under the policy `pytorch`, whose segments are then
// expandable: free memory moves to where it is needed, and handles that are partly in use are broken. On a GPU, this
// requires `PARKADE_WORK_IS_SERIAL`.
#define PARKADE_RESCUE 4

// Like `PARKADE_RESCUE`, but only free memory moves. This requires no promise.
#define PARKADE_RESCUE_FREE 8

// A request of 2^60 bytes or more is tried like any other, as in PyTorch's `raw_alloc`.
#define PARKADE_RAW 1

// The caller's current stream is being captured into a graph. The rules of PyTorch 2.13 and later use this flag.
#define PARKADE_CAPTURING 2

// `pool` is the request's pool if requests are routed to that pool with `PARKADE_ROUTE_CHOSEN`.
#define PARKADE_CHOOSES_POOL 4

// The outcome of a call. `parkade_error_text` returns the text of a failure.
enum parkade_status
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // The call succeeded.
  PARKADE_OK = 0,
  // There is no memory, even after the retry ladder.
  PARKADE_OUT_OF_MEMORY = 1,
  // An argument is a null pointer, an unknown name, out of range, or has unknown flags.
  PARKADE_INVALID_ARGUMENT = 2,
  // No block that was handed out begins at the address.
  PARKADE_UNKNOWN_ADDRESS = 3,
  // The device failed for a reason other than lack of memory, or an internal assert of PyTorch failed; the text of an assert
  // is PyTorch's.
  PARKADE_DEVICE_ERROR = 4,
  // The settings string was refused; the text is PyTorch's.
  PARKADE_INVALID_SETTINGS = 5,
  // There is no driver, or no device with this index.
  PARKADE_NO_DEVICE = 6,
  // The state of a private pool does not allow the call; the text is PyTorch's.
  PARKADE_POOL_ERROR = 7,
  // A private pool cannot be saved or restored; the text is PyTorch's.
  PARKADE_CHECKPOINT_ERROR = 8,
  // The process is a forked child, and the allocator belongs to its parent.
  PARKADE_FORKED = 9,
  // The call was made from within a call on the same allocator and would wait for itself.
  PARKADE_REENTERED = 10,
  // The allocator or its device does not support the call.
  PARKADE_UNSUPPORTED = 11,
  // There is a defect in parkade; the allocator may stop serving requests.
  PARKADE_INTERNAL_ERROR = 12,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum parkade_status parkade_status;
#else
typedef int32_t parkade_status;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// The actions of the allocator. The names are PyTorch's.
enum parkade_action
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // A block was handed out; the size is the requested size.
  PARKADE_ALLOC = 0,
  // A block was freed by the program; the size is the requested size.
  PARKADE_FREE_REQUESTED = 1,
  // A freed block became free; the size is the requested size.
  PARKADE_FREE_COMPLETED = 2,
  // A segment was taken from the device.
  PARKADE_SEGMENT_ALLOC = 3,
  // A segment was released to the device.
  PARKADE_SEGMENT_FREE = 4,
  // Pages of an expandable segment were mapped.
  PARKADE_SEGMENT_MAP = 5,
  // Pages of an expandable segment were unmapped.
  PARKADE_SEGMENT_UNMAP = 6,
  // A snapshot was taken; the size is the sum of the active bytes of its segments.
  PARKADE_SNAPSHOT = 7,
  // A request failed for lack of memory; the address contains the device's free bytes.
  PARKADE_OOM = 8,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum parkade_action parkade_action;
#else
typedef int32_t parkade_action;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// The requests that a private pool serves while they are routed to it.
enum parkade_route
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // All requests.
  PARKADE_ROUTE_ALL = 0,
  // The requests of one stream.
  PARKADE_ROUTE_STREAM = 1,
  // The requests that choose the pool.
  PARKADE_ROUTE_CHOSEN = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum parkade_route parkade_route;
#else
typedef int32_t parkade_route;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// An allocator on one device. Any thread may call it.
typedef struct parkade_allocator parkade_allocator;

// The state of a private pool.
typedef struct parkade_checkpoint parkade_checkpoint;

// Memory of another process that is open in this one.
typedef struct parkade_shared parkade_shared;

// A heap as plain data.
typedef struct parkade_snapshot parkade_snapshot;

// The numbers of an out-of-memory error.
typedef struct parkade_shortage {
  // The size in bytes of the segment that the allocator requested from the device.
  uint64_t segment_bytes;
  // The device's total memory in bytes.
  uint64_t device_total;
  // The bytes that no process holds.
  uint64_t device_free;
  // The limit; 0 if there is none.
  uint64_t limit_bytes;
} parkade_shortage;

// Options for creating an allocator. Fill the struct with zeros first; fields that are zero have defaults.
typedef struct parkade_options {
  // `sizeof(parkade_options)`.
  size_t size;
  // The device's index.
  uint32_t device;
  // `PARKADE_KEEPS_CONTEXT`, `PARKADE_WORK_IS_SERIAL`, `PARKADE_RESCUE` or `PARKADE_RESCUE_FREE`, a combination of them, or
  // 0; other flags are refused.
  uint32_t flags;
  // If not 0: use the simulated device with this many bytes instead of the GPU.
  uint64_t simulated_bytes;
  // A name that `parkade_policy_name` returns; `pytorch` if null.
  const char *policy;
  // A string in the form of `PYTORCH_CUDA_ALLOC_CONF`; no settings if null. Only for the policy `pytorch`.
  const char *settings;
  // The release of PyTorch whose rules the policy `pytorch` follows, such as `2.11`; 2.11 if null.
  const char *release;
  // The maximum number of rescued requests; 0 for no limit.
  uint64_t most_rescues;
} parkade_options;

// A private pool's id, as in PyTorch: a graph's is (k, 0), a user's (0, k). (0, 0) is the default pool.
typedef struct parkade_pool {
  // The id's first number.
  uint64_t first;
  // The id's second number.
  uint64_t second;
} parkade_pool;

// A request for memory.
typedef struct parkade_request {
  // The requested bytes. A request of 0 bytes gets a null pointer.
  uint64_t bytes;
  // The stream's handle; 0 is the default stream.
  uint64_t stream;
  // `PARKADE_RAW`, `PARKADE_CAPTURING`, `PARKADE_CHOOSES_POOL`, a combination of them, or 0; other flags are
  // refused.
  uint32_t flags;
  // The chosen pool.
  struct parkade_pool pool;
} parkade_request;

// A block and its segment.
typedef struct parkade_block_info {
  // The block's size in bytes.
  uint64_t size;
  // The bytes that were requested.
  uint64_t requested;
  // The first byte of its segment.
  uint64_t segment;
  // The segment's size in bytes.
  uint64_t segment_size;
  // Whether the segment is expandable.
  bool is_expandable;
} parkade_block_info;

// One action of the allocator.
typedef struct parkade_entry {
  // The kind of action.
  parkade_action action;
  // The first byte; for `PARKADE_OOM` the device's free bytes.
  uint64_t address;
  // A size in bytes; its meaning depends on the action.
  uint64_t size;
  // The block's or the segment's stream.
  uint64_t stream;
  // The pool of the block or segment.
  struct parkade_pool pool;
} parkade_entry;

// A function that is called for every entry, in order, while the allocator serves a call. It must not call the same
// allocator.
typedef void (*parkade_observer)(void *user, const struct parkade_entry *entry);

// A rescued request (`PARKADE_RESCUE`).
typedef struct parkade_rescue {
  // The request's rounded size.
  uint64_t size;
  // The duration of the rescue.
  uint64_t duration_ns;
  // The number of handles of free memory that were moved or replaced.
  uint64_t moved_handles;
  // The number of handles that were broken while partly in use.
  uint64_t broken_handles;
  // The bytes in use in the broken handles, which were copied.
  uint64_t copied_bytes;
} parkade_rescue;

// A function that is called for each rescued request, during the request and on its thread. It must not call the
// allocator.
typedef void (*parkade_rescue_observer)(void *user, const struct parkade_rescue *rescue);

// A function that is called when no free block serves a request, before the device is asked. It may call
// `parkade_free` for the same allocator, but no other function on that allocator; the blocks are freed after it
// returns. It returns whether it freed anything.
typedef bool (*parkade_free_memory)(void *user);

// A function that takes memory for a pool's segments. A null pointer means that there is none.
typedef void *(*parkade_take)(void *user, uint64_t bytes);

// A function that takes back memory that `parkade_take` returned.
typedef void (*parkade_give_back)(void *user, void *address);

// The outcome of restoring a pool.
typedef struct parkade_restored {
  // The pool's blocks that the restore took back.
  const uint64_t *freed;
  // The number of these blocks.
  size_t freed_count;
  // The blocks that are now handed out.
  const uint64_t *allocated;
  // The number of these blocks.
  size_t allocated_count;
} parkade_restored;

// A counter with its history.
typedef struct parkade_stat {
  // The current value.
  int64_t current;
  // The largest value since the peaks were last reset.
  int64_t peak;
  // The sum of all increases since the accumulated values were last reset.
  int64_t allocated;
  // The sum of all decreases since that reset.
  int64_t freed;
} parkade_stat;

// One statistic for all memory, the small pool and the large pool.
typedef struct parkade_stat_set {
  // Both pools.
  struct parkade_stat all;
  // The small pool.
  struct parkade_stat small;
  // The large pool.
  struct parkade_stat large;
} parkade_stat_set;

// All statistics in `torch.cuda.memory_stats()` except the counts for each private pool.
typedef struct parkade_stats {
  // Live allocations.
  struct parkade_stat_set allocation;
  // Segments taken from the device.
  struct parkade_stat_set segment;
  // Active blocks: allocated or pending.
  struct parkade_stat_set active;
  // Free blocks that are only part of their segment.
  struct parkade_stat_set inactive_split;
  // Bytes of allocated blocks.
  struct parkade_stat_set allocated_bytes;
  // Bytes taken from the device.
  struct parkade_stat_set reserved_bytes;
  // Bytes of active blocks.
  struct parkade_stat_set active_bytes;
  // Bytes of free blocks that are only part of their segment.
  struct parkade_stat_set inactive_split_bytes;
  // The requested bytes of active blocks.
  struct parkade_stat_set requested_bytes;
  // Allocations of at least `max_split_size`.
  struct parkade_stat oversize_allocations;
  // Segments of at least `max_split_size`.
  struct parkade_stat oversize_segments;
  // Attempts to take memory after the cache was released.
  int64_t num_alloc_retries;
  // Requests that failed for lack of memory.
  int64_t num_ooms;
  // Waits for all events.
  int64_t num_sync_all_streams;
  // Segments taken from the device, and mappings.
  int64_t num_device_alloc;
  // Segments released to the device, and unmappings.
  int64_t num_device_free;
  // Requests rejected before the device was asked.
  int64_t num_oom_rejections;
  // The setting `max_split_size` when the allocator was created; -1 is unlimited.
  int64_t max_split_size;
  // Requests that were rescued (`PARKADE_RESCUE`). PyTorch has no such statistic.
  int64_t num_rescues;
  // Bytes in use that were copied because their handle was broken. PyTorch has no such statistic.
  int64_t copied_bytes;
} parkade_stats;

// An expandable segment.
typedef struct parkade_expandable {
  // The segment's stream.
  uint64_t stream;
  // The size of each of its pages in bytes.
  uint64_t page;
  // Its mapped bytes.
  uint64_t mapped;
} parkade_expandable;

// A segment in a snapshot. Its blocks are the `block_count` blocks that start at `first_block`.
typedef struct parkade_segment {
  // The segment's first byte.
  uint64_t address;
  // The sum of its blocks' sizes.
  uint64_t total;
  // Bytes of allocated blocks.
  uint64_t allocated;
  // Bytes of allocated and pending blocks.
  uint64_t active;
  // The requested bytes of active blocks.
  uint64_t requested;
  // The segment's stream.
  uint64_t stream;
  // The segment's pool.
  struct parkade_pool pool;
  // The rank of the segment's age, in PyTorch releases that order by age; older segments have lower ranks.
  uint32_t rank;
  // Whether the segment belongs to its pool's large collection.
  bool is_large;
  // Whether the segment is a mapped run of an expandable segment.
  bool is_expandable;
  // The index of the segment's first block among the snapshot's blocks.
  size_t first_block;
  // The number of its blocks.
  size_t block_count;
} parkade_segment;

// A block in a snapshot.
typedef struct parkade_snapshot_block {
  // The block's first byte.
  uint64_t address;
  // The block's size in bytes.
  uint64_t size;
  // The bytes that were last requested.
  uint64_t requested;
  // Whether the block is handed out.
  bool is_allocated;
  // Whether the block is handed out, or is freed but waiting for other streams.
  bool is_active;
} parkade_snapshot_block;

// The settings of PyTorch that affect decisions.
typedef struct parkade_settings {
  // `max_split_size_mb` in bytes; 2^64 - 1 is unlimited.
  uint64_t max_split_bytes;
  // `max_non_split_rounding_mb` in bytes.
  uint64_t max_non_split_rounding_bytes;
  // `large_segment_size_mb` in bytes.
  uint64_t large_segment_bytes;
  // `garbage_collection_threshold`; 0 means never.
  double garbage_collection_threshold;
  // `roundup_power2_divisions`: the divisions from 1, 2, 4, ... MiB upwards; 0 and 1 mean none.
  uint64_t roundup_power2_divisions[16];
  // `expandable_segments`.
  bool expandable_segments;
  // `graph_capture_record_stream_reuse`.
  bool graph_capture_record_stream_reuse;
  // `throw_on_cudamalloc_oom`.
  bool throw_on_cudamalloc_oom;
} parkade_settings;

// Memory of an expandable segment that several processes share.
typedef struct parkade_shared_handle {
  // Its size in bytes.
  uint64_t bytes;
  // Its file descriptor. `parkade_share` writes a descriptor of the sharing process, which stays open for as long as
  // the handle is mapped. `parkade_shared_open` takes a descriptor of the calling process.
  int32_t file;
} parkade_shared_handle;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Returns this library's interface version: `PARKADE_INTERFACE_VERSION` in its header.
uint32_t parkade_interface_version(void);

// Returns the text of the calling thread's last failure: what happened, what it means and what to do. The text is
// valid until the thread's next failure. It is empty if there was no failure, or while the thread ends.
const char *parkade_error_text(void);

// Writes the numbers of the calling thread's last failure to `out`. Returns false if the cause of that failure was not
// a lack of memory.
//
// # Safety
// `out` is null or writable.
bool parkade_error_shortage(struct parkade_shortage *out);

// Returns the text of this library's header, for programs that compile other programs.
const char *parkade_header(void);

// Writes the number of GPUs that the driver reports to `out`.
//
// # Safety
// `out` is null or writable.
parkade_status parkade_device_count(uint32_t *out);

// Returns the name of the policy at an index, counted from 0; null beyond the last one. The name
// is valid forever.
const char *parkade_policy_name(size_t at);

// Returns a short description of the policy at an index; null beyond the last one. The description is valid forever.
const char *parkade_policy_says(size_t at);

// Creates an allocator and writes it to `out`. Destroy it with `parkade_destroy`, or keep it
// forever.
//
// Each stream handle passed to the allocator must be a stream of the device's primary context, and must live for as
// long as memory is allocated or recorded for it. The driver does not check handles. While one of these streams takes
// part in a graph capture, no other thread may submit work to a stream in that capture during a call to the allocator:
// CUDA requires this for every graph.
//
// # Safety
// `options` and the data to which it points are readable, `out` is writable, the streams are as described above, and
// work is serial if the flag `PARKADE_WORK_IS_SERIAL` is set.
parkade_status parkade_create(const struct parkade_options *options,
                              struct parkade_allocator **out);

// Destroys an allocator: waits for the device's work and returns all of the allocator's memory, even memory that is
// still handed out. Does nothing for null, or in a forked child for an allocator of the parent.
//
// # Safety
// The allocator was created by `parkade_create`, no other call on it is running, and none follows.
void parkade_destroy(struct parkade_allocator *allocator);

// Serves a request of `bytes` for `stream`, as PyTorch's tensor path does, and writes the address to `out`.
//
// # Safety
// The allocator was created by `parkade_create` and has not been destroyed; `out` is null or
// writable.
parkade_status parkade_allocate(struct parkade_allocator *allocator,
                                uint64_t bytes,
                                uint64_t stream,
                                void **out);

// Serves a request with flags or a pool, and writes the address to `out`. Like every call with flags, it fails with
// `PARKADE_INVALID_ARGUMENT` for unknown flags.
//
// # Safety
// The allocator was created by `parkade_create` and has not been destroyed; `request` is null or readable, `out` null
// or writable.
parkade_status parkade_serve(struct parkade_allocator *allocator,
                             const struct parkade_request *request,
                             void **out);

// Serves a request at `at`, a multiple of 512, from a free block in the request's pool and stream that has enough
// bytes from there onwards, and writes the address to `out`. Writes null if there is no such block, and does not ask
// the device for memory. Like PyTorch's `allocateWithAddress`, it first hands out the memory before `at` and takes it
// back afterwards; observers see both.
//
// # Safety
// As for `parkade_serve`.
parkade_status parkade_serve_at(struct parkade_allocator *allocator,
                                const struct parkade_request *request,
                                void *at,
                                void **out);

// Frees a block. Does nothing for null, or in a forked child, because the memory belongs to the parent.
//
// # Safety
// The allocator was created by `parkade_create` and has not been destroyed. The caller has recorded all work on other
// streams that uses the block.
parkade_status parkade_free(struct parkade_allocator *allocator,
                            void *address);

// Like `parkade_free`, but takes `PARKADE_CAPTURING` or 0 as flags; fails for other flags.
//
// # Safety
// As for `parkade_free`.
parkade_status parkade_free_so(struct parkade_allocator *allocator, void *address, uint32_t flags);

// Records that work on `stream` uses the block. After the block is freed, it stays pending until that work is done.
// The flags are `PARKADE_CAPTURING` or 0; the call fails for other flags.
//
// # Safety
// The allocator was created by `parkade_create` and has not been destroyed.
parkade_status parkade_record_stream(struct parkade_allocator *allocator,
                                     void *address,
                                     uint64_t stream,
                                     uint32_t flags);

// Like `parkade_record_stream`, but for a stream of the GPU with the index `device`, which may differ from the
// allocator's GPU. 0 is the default stream of that GPU. Like PyTorch, the policy `pytorch` ignores a stream with the
// same handle as the block's stream. If the block was allocated for the default stream, it therefore also ignores the
// default streams of other GPUs. After the first stream of another GPU, the allocator no longer breaks handles. Work
// on other GPUs' streams must be done before the allocator is destroyed.
//
// # Safety
// As for `parkade_record_stream`; the stream belongs to that GPU's primary context, and exists for as long as it has
// work that uses the block.
parkade_status parkade_record_stream_of(struct parkade_allocator *allocator,
                                        void *address,
                                        uint32_t device,
                                        uint64_t stream,
                                        uint32_t flags);

// Writes what the allocator knows about an allocated block and its segment to `out`.
//
// # Safety
// The allocator was created by `parkade_create` and has not been destroyed; `out` is null or
// writable.
parkade_status parkade_block(struct parkade_allocator *allocator,
                             const void *address,
                             struct parkade_block_info *out);

// Returns cached memory to the device: all of it, or the memory of one private pool without uses. The flags are
// `PARKADE_CAPTURING` or 0; the call fails for other flags.
//
// # Safety
// The allocator was created by `parkade_create` and has not been destroyed; `pool` is null or
// readable.
parkade_status parkade_empty_cache(struct parkade_allocator *allocator,
                                   const struct parkade_pool *pool,
                                   uint32_t flags);

// Limits the memory taken from the device to a fraction of its total memory, from 0 to 1; 1 removes the limit.
//
// # Safety
// The allocator was created by `parkade_create` and has not been destroyed.
parkade_status parkade_set_memory_fraction(struct parkade_allocator *allocator,
                                           double fraction);

// Writes the limit as a fraction of the device's total memory to `out`; 1 if there is no limit.
//
// # Safety
// The allocator was created by `parkade_create` and has not been destroyed; `out` is null or
// writable.
parkade_status parkade_memory_fraction(struct parkade_allocator *allocator, double *out);

// Limits the memory taken from the device to this many bytes; 0 removes the limit.
//
// # Safety
// The allocator was created by `parkade_create` and has not been destroyed.
parkade_status parkade_set_limit(struct parkade_allocator *allocator, uint64_t limit_bytes);

// Grants another GPU access to the allocator's current and future expandable segments.
//
// # Safety
// The allocator was created by `parkade_create` and has not been destroyed.
parkade_status parkade_let_peer_access(struct parkade_allocator *allocator, uint32_t peer);

// Sets the observer, which receives an entry for every action of the allocator; null removes it.
//
// # Safety
// The allocator was created by `parkade_create` and has not been destroyed. The function may be called with `user` on
// any thread that calls the allocator, until a different observer is set.
parkade_status parkade_set_observer(struct parkade_allocator *allocator,
                                    parkade_observer observer,
                                    void *user);

// Sets the function that is called for each rescued request; null removes it.
//
// # Safety
// The allocator was created by `parkade_create` and has not been destroyed. The function may be called with `user` on
// any thread that calls the allocator, until a different function is set.
parkade_status parkade_set_rescue_observer(struct parkade_allocator *allocator,
                                           parkade_rescue_observer observer,
                                           void *user);

// Adds a function that may free memory when no free block serves a request.
//
// # Safety
// The allocator was created by `parkade_create` and has not been destroyed. The function may be called with `user` on
// any thread that calls the allocator, for as long as the allocator exists.
parkade_status parkade_add_free_memory_callback(struct parkade_allocator *allocator,
                                                parkade_free_memory callback,
                                                void *user);

// Returns whether this process was forked from the one that created the allocator.
//
// # Safety
// The allocator was created by `parkade_create` and has not been destroyed.
bool parkade_is_forked(const struct parkade_allocator *allocator);

// `alloc_fn`: returns memory for a tensor. Returns null if there is none, and reports why on stderr the first time.
void *parkade_plug_alloc(ptrdiff_t bytes,
                         int32_t device,
                         void *stream);

// `free_fn`.
void parkade_plug_free(void *address, ptrdiff_t _bytes, int32_t device, void *_stream);

// The function for `set_record_stream_fn`.
void parkade_plug_record_stream(void *address, void *stream);

// Creates a private pool, or adds a use to it.
//
// # Safety
// The allocator was created by `parkade_create` and has not been destroyed.
parkade_status parkade_pool_create(struct parkade_allocator *allocator, struct parkade_pool pool);

// Routes requests to a pool from now on, and adds a use to it. `route` is a `parkade_route`; `stream` matters only for
// `PARKADE_ROUTE_STREAM`.
//
// # Safety
// The allocator was created by `parkade_create` and has not been destroyed.
parkade_status parkade_pool_begin(struct parkade_allocator *allocator,
                                  struct parkade_pool pool,
                                  int32_t route,
                                  uint64_t stream);

// Stops routing requests to a pool. This does not remove a use.
//
// # Safety
// The allocator was created by `parkade_create` and has not been destroyed.
parkade_status parkade_pool_end(struct parkade_allocator *allocator, struct parkade_pool pool);

// Removes a use. The memory of a pool without uses is released at the next opportunity.
//
// # Safety
// The allocator was created by `parkade_create` and has not been destroyed.
parkade_status parkade_pool_release(struct parkade_allocator *allocator, struct parkade_pool pool);

// Writes the number of uses of a pool to `out`.
//
// # Safety
// The allocator was created by `parkade_create` and has not been destroyed; `out` is null or
// writable.
parkade_status parkade_pool_use_count(struct parkade_allocator *allocator,
                                      struct parkade_pool pool,
                                      int64_t *out);

// Sets whether a pool's free blocks may serve requests to the default pool when the device is out of memory.
//
// # Safety
// The allocator was created by `parkade_create` and has not been destroyed.
parkade_status parkade_pool_set_use_on_oom(struct parkade_allocator *allocator,
                                           struct parkade_pool pool,
                                           bool serves);

// Stops splitting a pool's blocks.
//
// # Safety
// The allocator was created by `parkade_create` and has not been destroyed.
parkade_status parkade_pool_set_no_split(struct parkade_allocator *allocator,
                                         struct parkade_pool pool);

// Sets the source of the memory for a pool's segments: these functions of the program, or the device if `take` is
// null. This affects only requests that choose the pool with `PARKADE_CHOOSES_POOL`.
//
// # Safety
// The allocator was created by `parkade_create` and has not been destroyed. The functions may be called with `user` on
// any thread that calls the allocator, until all memory from `take` has been returned. The memory that they return is
// usable by the device.
parkade_status parkade_pool_set_memory(struct parkade_allocator *allocator,
                                       struct parkade_pool pool,
                                       parkade_take take,
                                       parkade_give_back give_back,
                                       void *user);

// Writes whether exactly these blocks of a pool are allocated to `out`.
//
// # Safety
// The allocator was created by `parkade_create` and has not been destroyed; `addresses` has `count` elements; `out` is
// null or writable.
parkade_status parkade_pool_live_allocations_are(struct parkade_allocator *allocator,
                                                 struct parkade_pool pool,
                                                 const uint64_t *addresses,
                                                 size_t count,
                                                 bool *out);

// Saves the state of a private pool. Free the checkpoint with `parkade_checkpoint_free`.
//
// # Safety
// The allocator was created by `parkade_create` and has not been destroyed; `out` is null or
// writable.
parkade_status parkade_checkpoint_save(struct parkade_allocator *allocator,
                                       struct parkade_pool pool,
                                       struct parkade_checkpoint **out);

// Restores a pool. Writes the blocks that were taken back and the blocks that are now handed out to `out`; free these
// lists with `parkade_restored_free`.
//
// # Safety
// The allocator was created by `parkade_create` and has not been destroyed, the checkpoint was
// created by `parkade_checkpoint_save`, and `out` is null or writable.
parkade_status parkade_checkpoint_restore(struct parkade_allocator *allocator,
                                          const struct parkade_checkpoint *checkpoint,
                                          struct parkade_restored *out);

// Frees the lists of a restore.
//
// # Safety
// `restored` was written by `parkade_checkpoint_restore`, and is freed only once.
void parkade_restored_free(struct parkade_restored *restored);

// Frees a checkpoint. Does nothing for null.
//
// # Safety
// The checkpoint was created by `parkade_checkpoint_save` and is freed only once.
void parkade_checkpoint_free(struct parkade_checkpoint *checkpoint);

// Writes the statistics to `out`.
//
// # Safety
// The allocator was created by `parkade_create` and has not been destroyed; `out` is null or
// writable.
parkade_status parkade_read_stats(struct parkade_allocator *allocator, struct parkade_stats *out);

// Calls `each` with the bytes that each private pool has reserved, under the rules of PyTorch releases that count
// them.
//
// # Safety
// The allocator was created by `parkade_create` and has not been destroyed; the function can be called with `user` and
// does not call the allocator.
parkade_status parkade_read_pool_stats(struct parkade_allocator *allocator,
                                       void (*each)(void *user,
                                                    struct parkade_pool pool,
                                                    const struct parkade_stat_set *reserved),
                                       void *user);

// Sets every peak to its current value.
//
// # Safety
// The allocator was created by `parkade_create` and has not been destroyed.
parkade_status parkade_reset_peak_stats(struct parkade_allocator *allocator);

// Sets every sum and counter to 0.
//
// # Safety
// The allocator was created by `parkade_create` and has not been destroyed.
parkade_status parkade_reset_accumulated_stats(struct parkade_allocator *allocator);

// Writes the device's free and total memory, as the driver reports them.
//
// # Safety
// The allocator was created by `parkade_create` and has not been destroyed; `free` and `total` are
// null or writable.
parkade_status parkade_memory_info(struct parkade_allocator *allocator,
                                   uint64_t *free,
                                   uint64_t *total);

// Writes the size of the largest free block to `out`; 0 if there is none.
//
// # Safety
// The allocator was created by `parkade_create` and has not been destroyed; `out` is null or
// writable.
parkade_status parkade_largest_free_block(struct parkade_allocator *allocator, uint64_t *out);

// Calls `each` for every expandable segment, in order of creation.
//
// # Safety
// The allocator was created by `parkade_create` and has not been destroyed; the function can be called with `user` and
// does not call the allocator.
parkade_status parkade_read_expandable(struct parkade_allocator *allocator,
                                       void (*each)(void *user,
                                                    const struct parkade_expandable *segment),
                                       void *user);

// Takes a snapshot of all segments, or of one private pool's segments. Free it with `parkade_snapshot_free`.
//
// # Safety
// The allocator was created by `parkade_create` and has not been destroyed; `pool` is null or readable, `out` null or
// writable.
parkade_status parkade_snapshot_take(struct parkade_allocator *allocator,
                                     const struct parkade_pool *pool,
                                     struct parkade_snapshot **out);

// Returns the segments of a snapshot, by address, and writes their number to `count`. They exist as long as the
// snapshot.
//
// # Safety
// The snapshot was created by `parkade_snapshot_take` and has not been freed; `count` is null or
// writable.
const struct parkade_segment *parkade_snapshot_segments(const struct parkade_snapshot *snapshot,
                                                        size_t *count);

// Returns the blocks of a snapshot, segment by segment, and writes their number to `count`. They exist as long as the
// snapshot.
//
// # Safety
// The snapshot was created by `parkade_snapshot_take` and has not been freed; `count` is null or
// writable.
const struct parkade_snapshot_block *parkade_snapshot_blocks(const struct parkade_snapshot *snapshot,
                                                             size_t *count);

// Frees a snapshot. Does nothing for null.
//
// # Safety
// The snapshot was created by `parkade_snapshot_take` and is freed only once.
void parkade_snapshot_free(struct parkade_snapshot *snapshot);

// Starts an empty history that keeps the newest `most_entries` entries; 0 ends the history.
//
// # Safety
// The allocator was created by `parkade_create` and has not been destroyed.
parkade_status parkade_record_history(struct parkade_allocator *allocator, size_t most_entries);

// Calls `each` for the entries in the history, oldest first.
//
// # Safety
// The allocator was created by `parkade_create` and has not been destroyed; the function can be called with `user` and
// does not call the allocator.
parkade_status parkade_read_history(struct parkade_allocator *allocator,
                                    void (*each)(void *user, const struct parkade_entry *entry),
                                    void *user);

// Applies a string in the form of `PYTORCH_CUDA_ALLOC_CONF` at run time, as the PyTorch release does: some settings
// that the string does not name are reset, others are kept. Settings applied before an error are kept. This is only
// for the policy `pytorch`.
//
// # Safety
// The allocator was created by `parkade_create` and has not been destroyed; `settings` is null or
// a text.
parkade_status parkade_apply_settings(struct parkade_allocator *allocator,
                                      const char *settings);

// Writes the settings to `out`. This is only for the policy `pytorch`.
//
// # Safety
// The allocator was created by `parkade_create` and has not been destroyed; `out` is null or
// writable.
parkade_status parkade_read_settings(struct parkade_allocator *allocator,
                                     struct parkade_settings *out);

// Sets the settings, in the form in which `parkade_read_settings` writes them; they apply from the next decision.
// Refuses settings that PyTorch would refuse, and changes nothing in that case. This is only for the policy `pytorch`.
//
// # Safety
// The allocator was created by `parkade_create` and has not been destroyed; `settings` is null or
// readable.
parkade_status parkade_set_settings(struct parkade_allocator *allocator,
                                    const struct parkade_settings *settings);

// Calls `each` for every GPU memory handle under an allocated block in an expandable segment, lowest address first,
// and writes the address where the first one is mapped. Another process finds the block at the same distance from the
// start of the memory that it opens. It first duplicates the file descriptors (pidfd_getfd) or receives them
// (SCM_RIGHTS). They stay open until the handle is unmapped; as long as a forked child has inherited copies of them,
// the memory stays on the device. The block must stay allocated for as long as another process has it open. The
// allocator does not break a shared handle.
//
// # Safety
// The allocator was created by `parkade_create` and has not been destroyed; `first` is null or writable; the function
// can be called with `user` and does not call the allocator.
parkade_status parkade_share(struct parkade_allocator *allocator,
                             const void *address,
                             uint64_t *first,
                             void (*each)(void *user, const struct parkade_shared_handle *handle),
                             void *user);

// Opens handles of another process's expandable segment on the GPU with the index `device`, at consecutive addresses,
// and writes their address in this process. The GPUs in `peers` also get access. The file descriptors must be valid in
// this process, and may be closed afterwards. Close the memory with `parkade_shared_close`; until then, it stays on
// the device, even if the other process has released it.
//
// # Safety
// `handles` and `peers` are null or have `count` and `peer_count` readable, aligned elements that nothing changes
// during the call, and the file descriptors are open; `address` and `out` are null or writable.
parkade_status parkade_shared_open(uint32_t device,
                                   const struct parkade_shared_handle *handles,
                                   size_t count,
                                   const uint32_t *peers,
                                   size_t peer_count,
                                   void **address,
                                   struct parkade_shared **out);

// Grants the GPU `peer` access to memory of another process.
//
// # Safety
// The memory was opened by `parkade_shared_open` and has not been closed.
parkade_status parkade_shared_let_peer_access(const struct parkade_shared *shared, uint32_t peer);

// Waits for the GPU's work, then unmaps memory of another process. Does nothing for null.
//
// # Safety
// The memory was opened by `parkade_shared_open` and is closed only once.
void parkade_shared_close(struct parkade_shared *shared);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* PARKADE_H */
