// Runs a script of operations through the real c10::cuda::CUDACachingAllocator on top of fakecuda.cpp: see
// ../README.md.
#include <c10/cuda/CUDAGuard.h>
#include <sys/personality.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <unordered_map>
#include <vector>
#include "release.hpp"

namespace CCA = c10::cuda::CUDACachingAllocator;
using release::DeviceStats;
using release::MempoolId_t;
using release::TraceEntry;
using std::string;

extern "C" {
void fake_set_log(int);
const char* fake_take_log();
void fake_complete_events(cudaStream_t);
int fake_complete_oldest(cudaStream_t);
void fake_complete_all();
void fake_fail_next(int, int);
void fake_set_capacity(int, size_t);
void fake_set_external(int, size_t);
size_t fake_used(int);
size_t fake_peak(int);
unsigned long long fake_capture_begin(cudaStream_t);
void fake_capture_end(cudaStream_t);
size_t fake_capture_work(cudaStream_t);
int fake_capture_wait(cudaStream_t, cudaStream_t);
int fake_norm(const void*, char*, int);
size_t fake_live_events();
}

// Texts are appended to one string, because a line has dozens of numbers and streams would take most of the time.
template <class N> static void put_number(string& o, N n) {
  char b[24];
  o.append(b, std::to_chars(b, b + sizeof b, n).ptr - b);
}
static void put(string& o, const char* text) { o += text; }
static void put(string& o, const string& text) { o += text; }
template <class N, class = std::enable_if_t<std::is_integral_v<N>>> static void put(string& o, N n) {
  put_number(o, n);
}
template <class First, class... More> static void put(string& o, const First& first, const More&... more) {
  put(o, first);
  (put(o, more), ...);
}
static string norm(const void* p) {
  char b[64];
  return string(b, fake_norm(p, b, sizeof b));
}
static void put_pointer(string& o, const void* p) {
  char b[64];
  o += '"';
  o.append(b, fake_norm(p, b, sizeof b));
  o += '"';
}
static void put_string(string& o, const string& s) {
  o += '"';
  for (unsigned char c : s) {
    if (c == '"' || c == '\\') {
      o += '\\';
      o += c;
    } else if (c == '\n')
      o += "\\n";
    else if (c < 0x20) {
      char b[8];
      snprintf(b, 8, "\\u%04x", c);
      o += b;
    } else
      o += c;
  }
  o += '"';
}
static string jstr(const string& s) {
  string o;
  put_string(o, s);
  return o;
}
// stream 0 = default stream; stream k>0 = external stream with handle 0x1000*k
static cudaStream_t rawst(long k) { return (cudaStream_t)(uintptr_t)(0x1000 * k); }
static long stid(const void* s) { return (long)((uintptr_t)s / 0x1000); }
static c10::cuda::CUDAStream st(long k, int dev) {
  return k == 0 ? c10::cuda::getDefaultCUDAStream(dev) : c10::cuda::getStreamFromExternal(rawst(k), dev);
}
static const char* actname(TraceEntry::Action a) {
  static const char* n[] = {"alloc",       "free_requested", "free_completed", "segment_alloc", "segment_free",
                            "segment_map", "segment_unmap",  "snapshot",       "oom",           "annotate"};
  return n[(int)a];
}

struct Opts {
  int log = 1;
  int stats = 1;
  bool events = true, raw = false, digests = false;
} O;
static int DEV = 0;
static std::unordered_map<string, c10::DataPtr> live;
static std::unordered_map<string, void*> rawlive;
static std::unordered_map<string, uintptr_t> addresses;  // where each id was last allocated
static string evs;                                       // the operation's entries, each after a comma
static std::vector<string> oom_free;
static std::map<string, std::shared_ptr<CCA::AllocatorState>> ckpts;

struct FreeCb : c10::FreeMemoryCallback {
  bool Execute() override {
    if (oom_free.empty()) return false;
    bool any = false;
    auto v = std::move(oom_free);
    oom_free.clear();
    for (auto& id : v) any |= live.erase(id) > 0;
    put(evs, ",[\"free_callback\",", (int)any, "]");
    return any;
  }
};
namespace c10 {
REGISTER_FREE_MEMORY_CALLBACK("oracle_cb", ::FreeCb)
}

using Values = std::array<int64_t, 4>;
static Values values(const release::statistics::Stat& s) { return {s.current, s.peak, s.allocated, s.freed}; }
// The statistics as last printed. A statistic that has never been printed counts as zero.
struct Row {
  string name;
  bool is_number;
  Values printed;
};
static std::vector<Row> rows;
static std::map<string, Values> pool_rows;
static void put_stat(string& o, const string& name, bool is_number, const Values& v) {
  put(o, o.back() == '{' ? "\"" : ",\"", name, "\":");
  if (is_number)
    put(o, v[0]);
  else
    put(o, "[", v[0], ",", v[1], ",", v[2], ",", v[3], "]");
}
static void put_pool_stats([[maybe_unused]] string& o, [[maybe_unused]] const DeviceStats& d,
                           [[maybe_unused]] bool delta) {
#if TORCH_MINOR >= 13
  static const char* types[] = {"all", "small", "large"};
  std::map<string, Values> now;
  for (auto& kv : d.reserved_bytes_by_private_pools)
    for (int t = 0; t < 3; t++) {
      string name = "reserved_bytes_by_private_pools.";
      put(name, kv.first.first, ".", kv.first.second, ".", types[t]);
      now[name] = values(kv.second[t]);
    }
  for (auto& kv : now) {
    auto& printed = pool_rows[kv.first];
    if (delta && printed == kv.second) continue;
    printed = kv.second;
    put_stat(o, kv.first, false, kv.second);
  }
#endif
}
// All statistics, or those that changed since they were last printed, after the field's name. With `words`, only those
// of private pools are text; the others go to `words`.
static void put_stats(string& o, const char* field, bool delta, std::vector<int64_t>* words = nullptr) {
  auto d = CCA::getDeviceStats(DEV);
  size_t k = 0;
  auto row = [&](const char* name, const char* type, bool is_number, const Values& v) {
    if (words) return (void)words->insert(words->end(), v.begin(), is_number ? v.begin() + 1 : v.end());
    if (k == rows.size()) rows.push_back({string(name) + type, is_number, {}});
    auto& r = rows[k++];
    if (delta && r.printed == v) return;
    r.printed = v;
    put_stat(o, r.name, is_number, v);
  };
  auto add = [&](const char* name, const release::statistics::StatArray& a) {
    static const char* types[] = {".all", ".small", ".large"};
    for (int t = 0; t < 3; t++) row(name, types[t], false, values(a[t]));
  };
  put(o, field, "{");
  add("allocation", d.allocation);
  add("segment", d.segment);
  add("active", d.active);
  add("inactive_split", d.inactive_split);
  add("allocated_bytes", d.allocated_bytes);
  add("reserved_bytes", d.reserved_bytes);
  add("active_bytes", d.active_bytes);
  add("inactive_split_bytes", d.inactive_split_bytes);
  add("requested_bytes", d.requested_bytes);
  row("oversize_allocations", "", false, values(d.oversize_allocations));
  row("oversize_segments", "", false, values(d.oversize_segments));
  for (auto& [name, value] : release::counters(d)) row(name, "", true, {value});
  put_pool_stats(o, d, delta);
  row("max_split_size", "", true, {(int64_t)d.max_split_size});
  o += '}';
}
static void put_trace(string& o, const TraceEntry& t) {
  put(o, "[\"", actname(t.action_), "\",");
  if (t.action_ == TraceEntry::OOM || t.action_ == TraceEntry::SNAPSHOT)
    put(o, t.addr_);
  else
    put_pointer(o, (void*)t.addr_);
  put(o, ",", t.size_, ",", stid(t.stream_));
  if (release::records_pools()) put(o, ",", release::pool_of(t).first, ",", release::pool_of(t).second);
  o += ']';
}
static void put_snapshot(string& o, MempoolId_t id, bool traces) {
  auto s = release::snapshot(id, traces);
  o += ",\"snapshot\":{\"segments\":[";
  bool f = true;
  for (auto& g : s.segments) {
    put(o, f ? "" : ",", "{\"addr\":");
    f = false;
    put_pointer(o, (void*)g.address);
    put(o, ",\"total\":", g.total_size, ",\"requested\":", g.requested_size, ",\"allocated\":", g.allocated_size,
        ",\"active\":", g.active_size, ",\"stream\":", stid(g.stream), ",\"type\":\"", g.is_large ? "large" : "small",
        "\",\"expandable\":", (int)g.is_expandable, ",\"pool\":[", g.owner_private_pool_id.first, ",",
        g.owner_private_pool_id.second, "],\"device\":", (int)g.device);
    // Before 2.12, no decision depends on it.
    if (!O.digests || TORCH_MINOR >= 12) put(o, release::registration(g));
    o += ",\"blocks\":[";
    size_t off = 0;
    for (auto& b : g.blocks) {
      // [offset, size, requested, state, gc_counter]
      put(o, off ? ",[" : "[", off, ",", b.size, ",", b.requested_size, ",\"",
          b.allocated ? "allocated"
          : b.active  ? "pending_free"
                      : "inactive",
          "\",", b.gc_counter, "]");
      off += b.size;
    }
    o += "]}";
  }
  o += ']';
  if (traces) {
    o += ",\"traces\":[";
    bool ft = true;
    for (auto& d : s.device_traces)
      for (auto& t : d) {
        if (!ft) o += ',';
        ft = false;
        put_trace(o, t);
      }
    o += ']';
  }
  auto c = release::config(s);
  if (c.is_there) put(o, ",\"config\":{", c.before, ",\"last\":", jstr(c.last), ",\"roundup\":[", c.after, "]}");
  o += '}';
}

static release::Events events;
static void keep(const TraceEntry& t) {
  evs += ',';
  put_trace(evs, t);
}

// Answers that have not been written yet. If the heap is damaged, the fake driver aborts, and these are still written.
static string unwritten;
static void write_out() {
  for (size_t at = 0; at < unwritten.size();) {
    ssize_t n = write(1, unwritten.data() + at, unwritten.size() - at);
    if (n <= 0) _exit(1);
    at += n;
  }
  unwritten.clear();
}
static void on_abort(int) {
  write_out();
  signal(SIGABRT, SIG_DFL);
  raise(SIGABRT);
}

// Before 2.10, the properties of the device are read for each message and each range of addresses, but no decision
// depends on them.
static void drop_properties(string& calls) {
  static const string start = "[\"cudaGetDeviceProperties\"";
  for (size_t at; (at = calls.find(start)) != string::npos;) {
    size_t end = calls.find(']', at) + 1;
    if (end < calls.size())
      end++;
    else if (at)
      at--;
    calls.erase(at, end - at);
  }
}
// 16 hexadecimal digits for a line and its statistics, as in parkade's replay/src/ops/session.rs.
static void put_digest(string& o, const string& line, const std::vector<int64_t>& words) {
  uint64_t h = line.size();
  auto add = [&](uint64_t word) {
    h = (h ^ word) * 0x9e3779b97f4a7c15;
    h ^= h >> 32;
  };
  for (size_t at = 0; at < line.size(); at += 8) {
    uint64_t word = 0;
    memcpy(&word, line.data() + at, std::min<size_t>(8, line.size() - at));
    add(word);
  }
  for (auto word : words) add(word);
  for (int k = 60; k >= 0; k -= 4) o += "0123456789abcdef"[h >> k & 15];
}

static void run_script(std::istream& in) {
  string line, answer;
  long i = 0;
  std::vector<string> a;
  std::vector<int64_t> words;
  auto num = [](const string& s) { return std::stoull(s, nullptr, 0); };
  for (;;) {
    // A caller that waits for an answer before it sends the next line gets the answer now.
    if (unwritten.size() > 1 << 16 || in.rdbuf()->in_avail() <= 0) write_out();
    if (!std::getline(in, line)) break;
    auto h = line.find('#');
    if (h != string::npos) line.resize(h);
    a.clear();
    for (size_t at = 0; (at = line.find_first_not_of(" \t\v\f\r", at)) != string::npos;) {
      size_t end = std::min(line.find_first_of(" \t\v\f\r", at), line.size());
      a.push_back(line.substr(at, end - at));
      at = end;
    }
    if (a.empty()) continue;
    string res, err;
    evs.clear();
    events.begin();
    auto A = [&](size_t k) -> const string& {
      if (k >= a.size()) throw std::runtime_error("missing argument");
      return a[k];
    };
    auto pool = [&](size_t k) { return MempoolId_t{num(A(k)), num(A(k + 1))}; };
    auto ptrout = [&](const void* p) {
      res += ",\"ptr\":" + (p ? jstr(norm(p)) : string("null"));
      if (O.raw) {
        char b[32];
        snprintf(b, 32, "%zu", (size_t)p);
        res += string(",\"addr\":") + b;
      }
    };
    try {
      const string& op = a[0];
      if (op == "alloc") {  // alloc id bytes [stream]
        long s = a.size() > 3 ? std::stol(a[3]) : 0;
        c10::cuda::setCurrentCUDAStream(st(s, DEV));
        if (live.count(A(1))) throw std::runtime_error("id already live");
        auto p = CCA::get()->allocate(num(A(2)));
        ptrout(p.get());
        addresses[a[1]] = (uintptr_t)p.get();
        live[a[1]] = std::move(p);
      } else if (op == "free") {
        auto it = live.find(A(1));
        if (it != live.end()) {
          auto p = std::move(it->second);
          live.erase(it);
          p.clear();
        } else
          res += ",\"noop\":1";
      } else if (op == "rawalloc") {  // through raw_alloc_with_stream
        void* p = CCA::raw_alloc_with_stream(num(A(2)), rawst(a.size() > 3 ? std::stol(a[3]) : 0));
        ptrout(p);
        rawlive[a[1]] = p;
      } else if (op == "rawfree") {
        auto it = rawlive.find(A(1));
        if (it != rawlive.end()) {
          CCA::raw_delete(it->second);
          rawlive.erase(it);
        } else
          res += ",\"noop\":1";
      } else if (op == "record_stream") {
        auto it = live.find(A(1));
        if (it != live.end())
          CCA::recordStream(it->second, st(std::stol(A(2)), DEV));
        else
          res += ",\"noop\":1";
      } else if (op == "complete") {
        if (A(1) == "all")
          fake_complete_all();
        else
          fake_complete_events(rawst(std::stol(a[1])));
      } else if (op == "complete_one") {
        res += ",\"n\":" + std::to_string(fake_complete_oldest(rawst(std::stol(A(1)))));
      } else if (op == "empty_cache") {
        if (a.size() > 2)
          release::empty_cache(pool(1));
        else
          release::empty_cache();
      } else if (op == "set_fraction")
        CCA::setMemoryFraction(std::stod(A(1)), DEV);
      else if (op == "get_fraction") {
        char b[40];
        snprintf(b, 40, "%.17g", release::memory_fraction(DEV));
        res += string(",\"fraction\":") + b;
      } else if (op == "reset_peak")
        CCA::resetPeakStats(DEV);
      else if (op == "reset_accumulated")
        CCA::resetAccumulatedStats(DEV);
      else if (op == "conf")
        CCA::setAllocatorSettings(a.size() > 1 ? line.substr(line.find("conf") + 5) : "");
      else if (op == "snapshot") {
        auto of = a.size() > 2 ? pool(1) : MempoolId_t{0, 0};
        put_snapshot(res, of, false);
      } else if (op == "trace")
        put_snapshot(res, {0, 0}, true);
      else if (op == "history") {  // history on|off [max_entries]
        events.leave_to_script();
        release::record_history(A(1) == "on", a.size() > 2 ? num(a[2]) : 1000000);
      } else if (op == "stats")
        put_stats(res, ",\"stats\":", false);
      else if (op == "cache_info") {
        size_t l = 0;
        CCA::cacheInfo(DEV, &l);
        res += ",\"largest\":" + std::to_string(l);
      } else if (op == "base") {
        size_t n = 0;
        auto it = live.find(A(1));
        if (it != live.end()) {
          ptrout(CCA::getBaseAllocation(it->second.get(), &n));
          res += ",\"size\":" + std::to_string(n);
        } else
          res += ",\"noop\":1";
      } else if (op == "pool_create") {  // pool_create a b [use_on_oom] [no_split]
        auto id = pool(1);
        release::pool_create(DEV, id, {a.begin() + 3, a.end()});
      } else if (op == "pool_begin") {  // pool_begin a b [all | stream k]
        long s = -1;
        if (a.size() > 4 && a[3] == "stream") s = std::stol(a[4]);
        release::pool_begin(DEV, pool(1), s < 0, rawst(s));
      } else if (op == "pool_end")
        release::pool_end(DEV, pool(1));
      else if (op == "pool_release")
        CCA::releasePool(DEV, pool(1));
      else if (op == "pool_use_count")
        res += ",\"n\":" + std::to_string(release::pool_use_count(DEV, pool(1)));
      else if (op == "capture_begin") {
        res += ",\"capture\":" + std::to_string(fake_capture_begin(rawst(std::stol(A(1)))));
        release::capture_begins(DEV);
      } else if (op == "capture_end") {
        fake_capture_end(rawst(std::stol(A(1))));
        release::capture_ends(DEV);
      } else if (op == "capture_work") {  // capture_work stream
        auto number = fake_capture_work(rawst(std::stol(A(1))));
        if (!number) throw std::runtime_error("stream " + a[1] + " is not captured");
        res += ",\"node\":" + std::to_string(number);
      } else if (op == "capture_wait") {  // capture_wait stream other
        if (!fake_capture_wait(rawst(std::stol(A(1))), rawst(std::stol(A(2)))))
          throw std::runtime_error("stream " + a[1] + " cannot wait for stream " + a[2] + " in its capture");
      } else if (op == "ckpt_save")
        ckpts[A(1)] = CCA::getCheckpointState(DEV, pool(2));
      else if (op == "ckpt_load") {
        auto d = CCA::setCheckpointPoolState(DEV, ckpts.at(A(1)));
        res += ",\"freed\":[";
        bool f = true;
        for (void* p : d.ptrs_freed) {
          if (!f) res += ',';
          f = false;
          res += jstr(norm(p));
          for (auto it = live.begin(); it != live.end(); ++it)
            if (it->second.get() == p) {
              it->second.release_context();
              live.erase(it);
              break;
            }
        }
        res += "],\"allocd\":[";
        f = true;
        for (auto& dp : d.dataptrs_allocd) {
          if (!f) res += ',';
          f = false;
          string id = "ck_" + A(1) + "_" + norm(dp.get());
          res += jstr(id);
          live[id] = std::move(dp);
        }
        res += "]";
      } else if (op == "oom_free") {
        oom_free.assign(a.begin() + 1, a.end());
      } else if (op == "capacity")
        fake_set_capacity(DEV, num(A(1)));
      else if (op == "external")
        fake_set_external(DEV, num(A(1)));
      else if (op == "fail_next")
        fake_fail_next((int)num(A(1)), 2);
      else if (op == "device") {
        DEV = (int)num(A(1));
        c10::cuda::set_device(DEV);
        rows.clear();
        pool_rows.clear();
      } else if (op == "sync")
        c10::cuda::device_synchronize();
      else if (op == "free_all") {
        std::vector<string> ks;
        for (auto& kv : live) ks.push_back(kv.first);
        std::sort(ks.begin(), ks.end());
        for (auto& k : ks) live.erase(k);
      } else if (op == "driver")
        res += ",\"used\":" + std::to_string(fake_used(DEV)) + ",\"peak\":" + std::to_string(fake_peak(DEV)) +
               ",\"events\":" + std::to_string(fake_live_events());
      else if (op == "expandable_sizes") {
        res += ",\"sizes\":[";
        bool f = true;
        for (auto& s : release::expandable_sizes(DEV)) {
          if (!f) res += ',';
          f = false;
          res += "[" + std::to_string(stid(s.stream)) + "," + (s.is_small_pool ? "\"small\"" : "\"large\"") + "," +
                 std::to_string(s.total_size) + "]";
        }
        res += "]";
      } else if (op == "meminfo") {
        auto m = release::memory_info(DEV);
        res += ",\"free\":" + std::to_string(m.first) + ",\"total\":" + std::to_string(m.second);
      } else if (op == "enable")
        release::enable(A(1) == "1");
      else if (op == "name")
        res += ",\"name\":" + jstr(CCA::name());
      else if (op == "alloc_at") {  // alloc_at id bytes stream of offset
        c10::cuda::setCurrentCUDAStream(st(std::stol(A(3)), DEV));
        if (live.count(A(1))) throw std::runtime_error("id already live");
        auto of = addresses.find(A(4));
        if (of == addresses.end()) throw std::runtime_error("no such id");
        auto p = release::allocate_at(num(A(2)), (void*)(of->second + num(A(5))));
        ptrout(p.get());
        live[a[1]] = std::move(p);
      } else if (op == "reserve_class")
        release::reserve_class(rawst(std::stol(A(1))), a.size() > 2 ? a[2] : "");
      else
        throw std::runtime_error("unknown op " + op);
    } catch (const c10::OutOfMemoryError& e) {
      err = string(",\"err\":\"oom\",\"msg\":") + jstr(e.what_without_backtrace());
    } catch (const c10::Error& e) {
      err = string(",\"err\":\"c10\",\"msg\":") + jstr(e.what_without_backtrace());
    } catch (const std::exception& e) {
      err = string(",\"err\":\"std\",\"msg\":") + jstr(e.what());
    }
    answer.clear();
    put(answer, "{\"i\":", i++, ",\"op\":");
    string op;
    for (size_t k = 0; k < a.size(); k++) put(op, k ? " " : "", a[k]);
    put_string(answer, op);
    put(answer, ",\"ok\":", err.empty() ? "1" : "0", res, err);
    string calls = O.log ? fake_take_log() : "";
    if (O.digests && TORCH_MINOR < 10) drop_properties(calls);
    events.take(keep);
    if (O.events && !evs.empty()) {
      answer += ",\"ev\":[";
      answer.append(evs, 1, string::npos);
      answer += ']';
    }
    if (!calls.empty()) put(answer, ",\"drv\":[", calls, "]");
    words.clear();
    if (O.stats) {
      size_t before = answer.size();
      put_stats(answer, ",\"st\":", O.stats == 1, O.digests ? &words : nullptr);
      if (answer[answer.size() - 2] == '{') answer.resize(before);
    }
    answer += '}';
    if (O.digests)
      put_digest(unwritten, answer, words);
    else
      unwritten += answer;
    unwritten += '\n';
  }
}

int main(int argc, char** argv) {
  // The allocator walks hash sets keyed by Block* (frees deferred during a capture), so the order of its events follows
  // from heap addresses: address randomisation is switched off.
  if (!getenv("ORACLE_ASLR")) {
    int p = personality(0xffffffff);
    if (p >= 0 && !(p & ADDR_NO_RANDOMIZE) && personality(p | ADDR_NO_RANDOMIZE) >= 0) execv("/proc/self/exe", argv);
  }
  signal(SIGABRT, on_abort);
  string file;
  for (int i = 1; i < argc; i++) {
    string s = argv[i];
    auto val = [&](const char* p) -> const char* {
      size_t l = strlen(p);
      return s.compare(0, l, p) == 0 ? s.c_str() + l : nullptr;
    };
    if (auto v = val("--log="))
      O.log = atoi(v);
    else if (auto v = val("--stats="))
      O.stats = !strcmp(v, "none") ? 0 : !strcmp(v, "full") ? 2 : 1;
    else if (auto v = val("--events="))
      O.events = atoi(v);
    else if (s == "--raw")
      O.raw = true;
    else if (s == "--digests")
      O.digests = true;
    else
      file = s;
  }
  fake_set_log(O.log);
  try {
    release::install_hooks();
    release::install_bridge();
    CCA::init(c10::cuda::device_count());
    c10::cuda::set_device(0);
  } catch (const c10::Error& e) {  // a bad settings string
    printf("{\"i\":-1,\"op\":\"init\",\"ok\":0,\"err\":\"c10\",\"msg\":%s}\n",
           jstr(e.what_without_backtrace()).c_str());
    fflush(stdout);
    _Exit(3);
  }
  if (O.events) {
    try {
      events.attach(keep);
    } catch (const c10::Error&) {
      O.events = false;
    }  // backend:cudaMallocAsync
  }
  std::ios::sync_with_stdio(false);
  if (file.empty() || file == "-")
    run_script(std::cin);
  else {
    std::ifstream f(file);
    if (!f) {
      fprintf(stderr, "cannot open %s\n", file.c_str());
      return 2;
    }
    run_script(f);
  }
  _Exit(0);  // no destructors: they would free the live blocks after the allocator is gone
}
