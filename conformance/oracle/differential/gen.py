#!/usr/bin/env python3
"""Writes a random script of allocator operations, in the language of pytorch_harness/README.md, to standard output.

  gen.py [--seed 1] [--n 10000] [--flavour basic] [--live 120] [--release 2.15.0]

Flavours: basic streams oom frac gc pools capture boundary large everything, and poolfree, which is pools with a pool_release after each
pool_end, so that pools can be released; and lend: many pools that come and go, several of which serve when memory is out, and many streams,
where nothing is released while a pool is recorded that other streams use. (poolfree and lend not with expandable segments: there the real
allocator corrupts its heap, docs/spec.md 4.10.)
graphs has captures of graphs on several streams that wait for each other, and addresses is pools with requests for addresses.
by_hand, every_operation and graph_reuse are not random: they are the scripts of these names, whatever the seed and the number of operations.
The same arguments always produce the same script. For a release that lacks an operation, the script has the release's equivalent, or nothing.
"""

import argparse
import os
import random

from releases import minor, release

K, M = 1 << 10, 1 << 20
THRESHOLDS = [
    0,
    1,
    511,
    512,
    513,
    1024,
    4096,
    64 * K,
    512 * K,
    M - 512,
    M,
    2 * M,
    4 * M,
    10 * M,
    12 * M,
    16 * M,
    18 * M,
    19 * M,
    20 * M,
    21 * M,
    22 * M,
    32 * M,
    64 * M,
    100 * M,
    199 * M,
    200 * M,
    201 * M,
    256 * M,
]
STREAMS_FLAVOURS = ("streams", "oom", "gc", "pools", "capture", "everything")
POOLS_FLAVOURS = ("pools", "capture", "everything")
# Scripts in files of these names.
HAND_WRITTEN = ("by_hand", "every_operation", "graph_reuse")
# The minor release that introduced an operation or, if listed with arguments, the operation with these arguments.
SINCE = {
    "pool_use_count": 6,
    "get_fraction": 6,
    "enable": 6,
    "expandable_sizes": 10,
    "meminfo": 10,
    "alloc_at": 13,
    "reserve_class": 15,
}


def size(r, flavour):
    u = r.random()
    if flavour == "large":
        return int(2 ** r.uniform(20, 28))
    if flavour == "boundary" or u < 0.30:
        top = len(THRESHOLDS) if flavour in ("boundary", "everything") else THRESHOLDS.index(64 * M) + 1
        return max(1, THRESHOLDS[r.randrange(1, top)] + r.choice([-513, -512, -511, -1, 0, 0, 1, 511, 512, 513]))
    if u < 0.50:
        return r.randrange(1, 4096)
    if u < 0.72:
        return int(2 ** r.uniform(6, 20))
    if u < 0.92:
        return int(2 ** r.uniform(20, 23.6))
    return int(2 ** r.uniform(23, 25.7))


class Script:
    """A script under construction. The order of the random draws is fixed: a different order produces a different script."""

    def __init__(self, seed, flavour, live_target, out):
        self.random = random.Random(f"{seed}/{flavour}")
        self.releases_pools = flavour == "poolfree"
        self.flavour = "pools" if self.releases_pools else flavour
        self.has_streams = self.flavour in STREAMS_FLAVOURS
        self.has_pools = self.flavour in POOLS_FLAVOURS
        self.streams = 4 if self.has_streams else 1
        self.live_target, self.out = live_target, out
        self.live, self.allocations = {}, 0
        self.pools, self.pools_made = [], 0
        self.routed, self.captured = None, None

    def begin_pool(self):
        r = self.random
        if self.pools and r.random() < 0.5:
            pool = r.choice(self.pools)
        else:
            self.pools_made += 1
            pool = (self.pools_made, 0) if (self.flavour == "capture" or r.random() < 0.5) else (0, self.pools_made)
            is_mempool = pool[0] == 0
            self.out(
                f"pool_create {pool[0]} {pool[1]}"
                + (" use_on_oom" if is_mempool and r.random() < 0.3 else "")
                + (" no_split" if is_mempool and r.random() < 0.2 else "")
            )
            self.pools.append(pool)
        where = "all" if r.random() < 0.6 else f"stream {r.randrange(self.streams)}"
        self.routed = pool
        # PyTorch's order: the pool begins, the capture begins; the capture ends, the pool ends.
        if self.flavour == "capture":
            self.captured = r.randrange(self.streams)
            where = f"stream {self.captured}"
        self.out(f"pool_begin {pool[0]} {pool[1]} {where}")
        if self.captured is not None:
            self.out(f"capture_begin {self.captured}")

    def end_pool(self):
        if self.captured is not None:
            self.out(f"capture_end {self.captured}")
            self.captured = None
        self.out(f"pool_end {self.routed[0]} {self.routed[1]}")
        if self.releases_pools:
            self.out(f"pool_release {self.routed[0]} {self.routed[1]}")
        self.routed = None

    def step(self):
        r, out, live = self.random, self.out, self.live
        u = r.random()
        if self.has_pools and u < 0.02:
            return self.begin_pool() if self.routed is None else self.end_pool()
        if self.has_pools and u < 0.025 and self.pools and self.routed is None:
            pool = self.pools.pop(r.randrange(len(self.pools)))
            return out(f"pool_release {pool[0]} {pool[1]}")
        u = r.random()
        if u < 0.004 and self.captured is None:
            return out("empty_cache")
        if u < 0.006:
            return out("snapshot")
        if u < 0.007:
            return out("cache_info")
        if u < 0.009:
            return out(r.choice(["reset_peak", "reset_accumulated"]))
        if u < 0.010:
            live.clear()
            return out("free_all")
        if u < 0.011 and self.flavour in ("frac", "gc", "everything"):
            return out(f"set_fraction {r.choice([0.1, 0.25, 0.5, 0.75, 1.0])}")
        if self.has_streams and u < 0.08 and live:
            return out(f"record_stream {r.choice(list(live))} {r.randrange(self.streams)}")
        if self.has_streams and u < 0.12:
            return out(
                r.choice(
                    [
                        f"complete {r.randrange(self.streams)}",
                        f"complete_one {r.randrange(self.streams)}",
                        "complete all",
                    ]
                )
            )
        if u < 0.121 and self.captured is None:
            return out("sync")
        allocates = 0.62 if len(live) < self.live_target else 0.42
        if not live or r.random() < allocates:
            self.allocations += 1
            live[f"x{self.allocations}"] = True
            return out(f"alloc x{self.allocations} {size(r, self.flavour)} {r.randrange(self.streams)}")
        name = r.choice(list(live)) if r.random() < 0.7 else list(live)[-1]
        del live[name]
        return out(f"free {name}")


class Lending:
    """A script whose outcome depends on the order of the real allocator's hash tables but on no address."""

    def __init__(self, seed, flavour, live_target, out):
        self.random = random.Random(f"{seed}/{flavour}")
        self.live_target, self.out = live_target // 2, out
        self.live, self.used, self.allocations = {}, set(), 0
        # How often each pool was created or begun; and the pools that were released, whose ids are not reused.
        self.uses, self.gone, self.routed = {}, set(), None

    def id(self):
        number = int(2 ** self.random.uniform(0, 5)) + len(self.gone) // 4
        return self.random.choice([f"0 {number}", f"{number} 0"])

    def alloc(self):
        r = self.random
        self.allocations += 1
        self.live[f"x{self.allocations}"] = True
        self.out(
            f"alloc x{self.allocations} {int(2 ** r.uniform(9, 20)) if r.random() < 0.4 else int(2 ** r.uniform(20, 24.5))} {r.choice([0, 0, 0, 1, 2])}"
        )

    def free(self):
        names = [name for name in self.live if self.routed is None or name not in self.used]
        if names:
            name = self.random.choice(names)
            del self.live[name]
            self.used.discard(name)
            self.out(f"free {name}")

    def create(self):
        pool = self.id()
        if pool in self.gone:
            return
        self.uses[pool] = self.uses.get(pool, 0) + 1
        self.out(f"pool_create {pool}" + self.random.choice([" use_on_oom"] * 4 + ["", " no_use_on_oom"]))

    def fill(self):
        """Sends some requests to a pool. Occasionally the routing remains, for a stream without requests."""
        pool = self.random.choice(list(self.uses))
        self.uses[pool] += 1
        if self.random.random() < 0.3:
            self.routed = pool
            return self.out(f"pool_begin {pool} stream 13")
        self.out(f"pool_begin {pool} all")
        for _ in range(self.random.randrange(1, 6)):
            self.alloc()
        self.out(f"pool_end {pool}")

    def release(self):
        pool = self.random.choice(list(self.uses))
        for _ in range(self.uses[pool] if self.random.random() < 0.7 else 1):
            self.uses[pool] -= 1
            self.out(f"pool_release {pool}")
        if self.uses[pool] == 0:
            del self.uses[pool]
            self.gone.add(pool)
            if self.random.random() < 0.01:
                self.out(f"pool_release {pool}")

    def end_pool(self):
        self.out(f"pool_end {self.routed}")
        self.routed = None

    def step(self):
        r, out, live = self.random, self.out, self.live
        u = r.random()
        if self.routed is not None and u < 0.09:
            return self.end_pool()
        if u < 0.03:
            return self.create()
        if u < 0.08 and self.uses and self.routed is None:
            return self.fill()
        if u < 0.09 and self.uses:
            for _ in range(min(len(self.uses), r.choice([1, 1, 2, 4]))):
                self.release()
            return None
        if u < 0.095:
            return out("empty_cache")
        if u < 0.1:
            return out(f"empty_cache {self.id()}")
        if u < 0.105:
            return out(
                r.choice(
                    [
                        "snapshot",
                        f"snapshot {self.id()}",
                        f"pool_use_count {self.id()}",
                        "reset_peak",
                        "reset_accumulated",
                        "cache_info",
                    ]
                )
            )
        if u < 0.2 and live and self.routed is None:
            name = r.choice(list(live))
            self.used.add(name)
            return out(f"record_stream {name} {r.randrange(13)}")
        if u < 0.23:
            return out(
                r.choice(
                    [
                        f"complete {r.randrange(13)}",
                        f"complete_one {r.randrange(13)}",
                        f"complete_one {r.randrange(13)}",
                        "complete all",
                    ]
                )
            )
        if u < 0.232 and self.routed is None:
            live.clear()
            self.used.clear()
            return out("free_all")
        return self.alloc() if r.random() < (0.6 if len(live) < self.live_target else 0.4) else self.free()


class Graphs:
    """Captures of graphs on several streams, which wait for each other in them. Meanwhile, blocks of one stream that
    others use are freed.
    """

    def __init__(self, seed, flavour, live_target, out):
        self.random = random.Random(f"{seed}/{flavour}")
        self.live_target, self.out = live_target // 4, out
        self.live, self.allocations, self.pools = [], 0, 0
        # Uses by other streams are recorded during captures only, and the blocks are freed in the same capture: remembering a use
        # for longer is a defect of the real allocator (docs/fidelity.md).
        self.used = set()
        # The streams that are captured; the first one began the capture.
        self.routed, self.captured = None, []
        if self.random.random() < 0.8:
            out("conf graph_capture_record_stream_reuse:True")

    def begin(self):
        r = self.random
        self.pools += 1
        self.routed = (self.pools, 0) if r.random() < 0.8 else (0, self.pools)
        first = r.randrange(1, 5)
        self.out(f"pool_create {self.routed[0]} {self.routed[1]}")
        self.out(f"pool_begin {self.routed[0]} {self.routed[1]}" + (f" stream {first}" if r.random() < 0.1 else " all"))
        self.out(f"capture_begin {first}")
        self.captured = [first]

    def end_pool(self):
        for name in [name for name in self.live if name in self.used]:
            self.free(name)
        # Occasionally in the wrong order, which may be an internal assert.
        if self.random.random() < 0.05:
            self.out(f"pool_end {self.routed[0]} {self.routed[1]}")
        self.out(f"capture_end {self.random.choice(self.captured)}")
        self.out(f"pool_end {self.routed[0]} {self.routed[1]}")
        self.routed, self.captured = None, []

    def wait(self):
        r = self.random
        stream = r.choice(self.captured) if r.random() < 0.7 else r.randrange(5)
        self.out(f"capture_wait {stream} {r.choice(self.captured)}")
        if stream not in self.captured:
            self.captured.append(stream)

    def alloc(self):
        r = self.random
        stream = r.choice(self.captured) if self.captured and r.random() < 0.9 else r.randrange(5)
        self.allocations += 1
        name = f"x{self.allocations}"
        self.live.append(name)
        self.out(f"alloc {name} {r.choice([512, 4096, 100000, 3 * M, 30 * M])} {stream}")
        for _ in range(r.choice([0, 0, 1, 1, 2]) if self.captured else 0):
            self.used.add(name)
            self.out(f"record_stream {name} {r.choice(self.captured) if r.random() < 0.9 else r.randrange(5)}")

    def free(self, name):
        self.live.remove(name)
        self.out(f"free {name}")

    def step(self):
        r, out = self.random, self.out
        u = r.random()
        if self.routed is None and u < 0.1:
            return self.begin()
        if self.captured and u < 0.02:
            return self.end_pool()
        if self.captured and u < 0.2:
            return out(f"capture_work {r.choice(self.captured) if r.random() < 0.98 else r.randrange(5)}")
        if self.captured and u < 0.4:
            return self.wait()
        if u < 0.42:
            return out(r.choice(["snapshot", "complete all", f"complete_one {r.randrange(5)}", "cache_info"]))
        if u < 0.425:
            return out(
                "empty_cache" if not self.captured else f"conf graph_capture_record_stream_reuse:{r.random() < 0.8}"
            )
        if not self.live or r.random() < (0.55 if len(self.live) < self.live_target else 0.4):
            return self.alloc()
        return self.free(r.choice(self.live))


class Addresses(Script):
    """The flavour `pools`, in which half of the requests are for addresses that were used before."""

    def __init__(self, seed, flavour, live_target, out):
        super().__init__(seed, "pools", live_target // 2, self.put)
        self.random = random.Random(f"{seed}/{flavour}")
        # The places of current and former blocks: id, bytes and stream.
        self.write, self.placed, self.freed = out, {}, []

    def put(self, line):
        r, words = self.random, line.split()
        if words[0] == "free" and words[1] in self.placed:
            self.freed.append(self.placed[words[1]])
        if words[0] == "alloc" and self.freed and r.random() < 0.5:
            of, size, stream = r.choice(self.freed[-12:] if r.random() < 0.9 else list(self.placed.values()))
            offset = r.choice(
                [0, 512 * r.randrange(1 + size // 512), 512 * r.randrange(1 + size // 512), r.randrange(1 + 2 * size)]
            )
            bytes = max(1, size - offset) if r.random() < 0.2 else r.randrange(1, 2 + max(0, size - offset))
            if r.random() < 0.02:
                bytes = r.choice([0, 1 << 60, (1 << 63) + 5, (1 << 64) - 512])
            line = f"alloc_at {words[1]} {bytes} {stream if r.random() < 0.9 else words[3]} {of} {offset}"
        elif words[0] == "alloc":
            self.placed[words[1]] = (words[1], int(words[2]), words[3])
        self.write(line)


def hand_written(flavour):
    """The lines of a hand-written script, without comments."""
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), f"{flavour}.txt"), encoding="utf-8") as file:
        return [line for line in file.read().splitlines() if line.strip() and not line.startswith("#")]


def gen(seed, n, flavour, live_target=120, out=print):
    if flavour in HAND_WRITTEN:
        for line in hand_written(flavour):
            out(line)
        return
    script = {"lend": Lending, "graphs": Graphs, "addresses": Addresses}.get(flavour, Script)(
        seed, flavour, live_target, out
    )
    if flavour in ("frac", "gc"):
        out("set_fraction 0.5")
    for _ in range(n):
        script.step()
    if script.routed is not None:
        script.end_pool()
    for line in ("snapshot", "free_all", "complete all", "empty_cache", "snapshot", "stats", "driver"):
        out(line)


def adapted(line, minor):
    """Returns a line in the form that a release knows, or None: 2.11 knows all lines."""
    kind, *words = line.split()
    if kind == "pool_create":
        # Before 2.6 a pool begins with the first request for it. src/release.hpp of the harness lists what a release lacks.
        options = {"use_on_oom": 8, "no_use_on_oom": 11, "no_split": 10}
        return " ".join([kind, *(word for word in words if minor >= options.get(word, 0))]) if minor >= 6 else None
    if kind == "pool_begin" and minor < 3 and words[2:] == ["all"]:
        return f"pool_begin {words[0]} {words[1]} stream 0"
    if kind == "snapshot" and minor < 8:
        return kind
    is_missing = (kind == "empty_cache" and words and minor < 8) or minor < SINCE.get(kind, 0)
    return None if is_missing else line


def for_release(out, release):
    """Prints the part of a script that a release supports."""

    def put(line):
        line = adapted(line, minor(release))
        if line is not None:
            out(line)

    return put


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", default="1", help="the seed; the same arguments always produce the same script")
    parser.add_argument("--n", type=int, default=10000, help="the number of operations")
    parser.add_argument("--flavour", default="basic", help="the kind of script: one of the names above")
    parser.add_argument("--live", type=int, default=120, help="the approximate number of live blocks")
    parser.add_argument(
        "--release", type=release, default="2.15.0", help="the release of PyTorch that the script is for, such as 2.7.1"
    )
    options = parser.parse_args()
    gen(options.seed, options.n, options.flavour, options.live, for_release(print, options.release))
