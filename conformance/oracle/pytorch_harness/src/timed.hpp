// Times an allocator on a sequence of requests: the loops of benches/side_by_side.py, for every program around a real
// allocator.
//
// The sequence is a file of words, written by benches/sequences.py:
//   pairs BYTES STEPS              allocates a block and frees it, on stream 0
//   recorded BYTES STEPS           the same, with one other stream recorded in between
//   threads COUNT BYTES STEPS      pairs on COUNT threads at the same time, each on its own stream
//   mix LIVE STEPS, then LIVE times BYTES, then STEPS times SLOT BYTES        replaces one live block per step
//   replay SLOTS STEPS, then STEPS times SLOT BYTES; 0 bytes free the slot's block
// First, the blocks of a mix are allocated, and "ready BYTES" reports how much the process grew. Then each line of
// standard input runs the steps once and is answered with the nanoseconds per step, in processor time, which excludes
// other programs. For threads, it is the wall-clock time until all are done, divided by the steps of all threads.
#pragma once
#include <time.h>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

namespace timed {
struct Step {
  uint32_t slot;
  size_t bytes;
};
struct Block {
  void* pointer = nullptr;
  size_t bytes = 0;
};
struct Sequence {
  std::string kind;
  size_t count = 1, bytes = 0, steps = 0;
  std::vector<size_t> fill;
  std::vector<Step> list;
};

[[noreturn]] inline void fail(const std::string& what) {
  std::fprintf(stderr, "timed: %s\n", what.c_str());
  std::exit(2);
}

inline Sequence read(const char* path) {
  std::ifstream in(path);
  Sequence q;
  if (!(in >> q.kind)) fail(std::string(path) + " cannot be read: write it with benches/sequences.py");
  if (q.kind == "pairs" || q.kind == "recorded")
    in >> q.bytes >> q.steps;
  else if (q.kind == "threads")
    in >> q.count >> q.bytes >> q.steps;
  else if (q.kind == "mix" || q.kind == "replay") {
    in >> q.count >> q.steps;
    if (q.kind == "mix")
      for (size_t i = 0, bytes; i < q.count && in >> bytes; i++) q.fill.push_back(bytes);
    for (Step s; q.list.size() < q.steps && in >> s.slot >> s.bytes;) {
      if (s.slot >= q.count) fail("a step names a slot that is not there");
      q.list.push_back(s);
    }
  } else
    fail("unknown kind of sequence: " + q.kind);
  if (!in || !q.steps) fail(std::string(path) + " ends too early");
  return q;
}

// The process's memory, in bytes.
inline size_t resident() {
  std::ifstream in("/proc/self/status");
  for (std::string word; in >> word;)
    if (size_t kib; word == "VmRSS:" && in >> kib) return kib << 10;
  return 0;
}

template <class Allocate> void* need(Allocate& allocate, size_t bytes, uint64_t stream) {
  void* p = allocate(bytes, stream);
  if (!p) fail("out of memory: give the device more");
  return p;
}

inline double now(clockid_t clock) {
  timespec t;
  clock_gettime(clock, &t);
  return t.tv_sec * 1e9 + t.tv_nsec;
}

// Runs the steps once and returns the nanoseconds per step.
template <class Allocate, class Free, class Record>
double round(const Sequence& q, std::vector<Block>& blocks, Allocate& allocate, Free& free_, Record& record) {
  const bool threads_run = q.kind == "threads";
  const clockid_t clock = threads_run ? CLOCK_MONOTONIC : CLOCK_THREAD_CPUTIME_ID;
  double from = now(clock), ended = 0;
  if (q.kind == "pairs") {
    for (size_t i = 0; i < q.steps; i++) free_(need(allocate, q.bytes, 0), q.bytes, 0);
  } else if (q.kind == "recorded") {
    for (size_t i = 0; i < q.steps; i++) record(q.bytes);
  } else if (q.kind == "mix") {
    for (auto& s : q.list) {
      auto& b = blocks[s.slot];
      free_(b.pointer, b.bytes, 0);
      b = {need(allocate, s.bytes, 0), s.bytes};
    }
  } else if (q.kind == "replay") {
    for (auto& s : q.list) {
      auto& b = blocks[s.slot];
      if (s.bytes)
        b = {need(allocate, s.bytes, 0), s.bytes};
      else {
        free_(b.pointer, b.bytes, 0);
        b.pointer = nullptr;
      }
    }
    ended = now(clock);
    for (auto& b : blocks)
      if (b.pointer) {
        free_(b.pointer, b.bytes, 0);
        b.pointer = nullptr;
      }
  } else {
    std::atomic<size_t> waiting{0};
    std::atomic<bool> start{false};
    std::vector<std::thread> threads;
    for (size_t t = 1; t <= q.count; t++)
      threads.emplace_back([&, t] {
        waiting++;
        while (!start) std::this_thread::yield();
        for (size_t i = 0; i < q.steps; i++) free_(need(allocate, q.bytes, t), q.bytes, t);
      });
    while (waiting < q.count) std::this_thread::yield();
    from = now(clock);
    start = true;
    for (auto& t : threads) t.join();
  }
  if (ended == 0) ended = now(clock);
  return (ended - from) / (threads_run ? q.steps * q.count : q.steps);
}

// allocate(bytes, stream) -> pointer or null; free_(pointer, bytes, stream); record(bytes): a whole step of "recorded".
template <class Allocate, class Free, class Record>
void run(const char* path, Allocate allocate, Free free_, Record record) {
  Sequence q = read(path);
  std::vector<Block> blocks(q.kind == "mix" || q.kind == "replay" ? q.count : 0);
  size_t before = resident();
  for (size_t i = 0; i < q.fill.size(); i++) blocks[i] = {need(allocate, q.fill[i], 0), q.fill[i]};
  std::printf("ready %zu\n", resident() - before);
  std::fflush(stdout);
  for (std::string line; std::getline(std::cin, line);) {
    std::printf("%.3f\n", round(q, blocks, allocate, free_, record));
    std::fflush(stdout);
  }
  std::_Exit(0);  // no destructors: the libraries' own runtimes have no device
}

// For an allocator whose blocks belong to one stream.
template <class Allocate, class Free> void run(const char* path, Allocate allocate, Free free_) {
  run(path, allocate, free_, [](size_t) { fail("this allocator records no other streams"); });
}
}  // namespace timed
