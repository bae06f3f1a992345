"""Generates random scripts with checkpoints of private pools, together with the real allocator's answers.

The name of a restored block depends on its address, so these scripts cannot be written in advance: the real allocator is asked line by line,
and its answers determine the rest. Flavours: `ckpt`, in which blocks are used only on their own stream, and `ckptstreams`, in which other
streams use them and graphs are captured.

A script ends when the real allocator's heap is damaged: when a restore fails after it has taken blocks back (some
blocks then have no holder, and some holders no block), or hands out a block that waits for events.
"""

import json
import random
import subprocess

from compare import follow_pending, reuses_pending
from gen import adapted
from releases import minor

K, M = 1 << 10, 1 << 20
KEYS = [f"k{number}" for number in range(6)]


class Ended(Exception):
    """The real allocator's state is meaningless from here on."""


class Script:
    """A random script in the making."""

    def __init__(self, process, seed, flavour, releases, release):
        self.process = process
        self.minor = minor(release)
        self.random = random.Random(f"{seed}/{flavour}")
        self.with_streams = flavour == "ckptstreams"
        self.releases = releases
        self.lines, self.answers = [], []
        self.names = {}  # name -> pointer
        self.owners = {}  # name -> pool
        self.pools = {}  # id -> references
        self.saved = {}  # key -> pool
        self.routed, self.captured = None, None
        self.where = "all"
        self.made = 0
        self.pending = set()
        self.used, self.used_now = (
            set(),
            set(),
        )  # names of blocks that other streams may use; names whose use began while a pool was routed to

    def do(self, line):
        """Runs a line and returns its answer. A line that the release does not know is left out."""
        line = adapted(line, self.minor)
        if line is None:
            return {"ok": 1}
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()
        self.lines.append(line)
        self.answers.append(self.process.stdout.readline().decode().rstrip("\n"))
        answer = json.loads(self.answers[-1])
        is_damaged = line.startswith("ckpt_load") and (
            reuses_pending(self.pending, answer) or (answer["ok"] == 0 and "ev" in answer)
        )
        follow_pending(self.pending, answer)
        if is_damaged:
            raise Ended
        return answer

    def size(self):
        r = self.random
        u = r.random()
        if u < 0.35:
            return r.randrange(1, 4 * K)
        if u < 0.55:
            return int(2 ** r.uniform(9, 20))
        if u < 0.65:
            return r.choice([M, M + 1, 2 * M, 10 * M, 18 * M, 19 * M, 20 * M, 30 * M]) + r.choice([0, 0, 0, -512, 512])
        return int(2 ** r.uniform(20, 24.7))

    def alloc(self):
        self.made += 1
        name = f"x{self.made}"
        size, stream = self.size(), self.random.choice([0, 0, 0, 1, 2])
        answer = self.do(f"alloc {name} {size} {stream}")
        if answer["ok"]:
            self.names[name] = answer["ptr"]
            self.owners[name] = self.owner(answer["ev"][-1], stream)

    def owner(self, event, stream):
        """Returns the pool that served a request. Before 2.8, no entry states it, so it is inferred from the routing of requests."""
        if len(event) > 4:
            return f"{event[4]} {event[5]}"
        is_routed = self.routed is not None and self.where in ("all", f"stream {stream}")
        return self.routed if is_routed else "0 0"

    def free(self):
        name = self.random.choice(list(self.names))
        del self.names[name]
        self.do(f"free {name}")

    def route(self):
        """Begins or ends the routing of requests to a pool."""
        r = self.random
        if self.routed is None:
            if self.pools and r.random() < 0.7:
                pool = r.choice(list(self.pools))
            else:
                # The id may have belonged to another pool before.
                number = r.randrange(1, 6)
                pool = r.choice([f"{number} 0", f"0 {number}"])
                if not self.do(f"pool_create {pool}" + r.choice(["", "", "", "", " no_split"]))["ok"]:
                    return
                self.pools[pool] = self.pools.get(pool, 0) + (self.minor >= 6)
            where = r.choice(["all", "all", f"stream {r.randrange(3)}"])
            if self.with_streams and r.random() < 0.4:
                self.captured = r.randrange(3)
                where = f"stream {self.captured}"
            if not self.do(f"pool_begin {pool} {where}")["ok"]:
                self.captured = None
                return
            self.where = self.lines[-1].split(" ", 3)[3]
            self.pools[pool] += 1
            self.routed = pool
            if self.captured is not None:
                self.do(f"capture_begin {self.captured}")
            return
        # When the real allocator frees these blocks, it forgets only the uses that were recorded in this routing: it would take
        # later uses of the same stream for them, and drop those (docs/fidelity.md, section 5).
        self.free_all(self.used_now)
        if self.captured is not None:
            self.do(f"capture_end {self.captured}")
            self.captured = None
        self.do(f"pool_end {self.routed}")
        if self.releases:
            self.release(self.routed)
        self.routed = None

    def release(self, pool):
        if self.pools[pool] == 1 and self.random.random() < 0.7:
            self.free_all({name for name in self.names if self.owners[name] == pool})
        self.do(f"pool_release {pool}")
        self.pools[pool] -= 1
        if self.pools[pool] == 0:
            del self.pools[pool]
            if self.captured is None and self.random.random() < 0.5:
                self.do("empty_cache")

    def save(self):
        pool = self.random.choice(list(self.pools)) if self.pools and self.random.random() < 0.97 else "9 9"
        key = self.random.choice(KEYS)
        if self.do(f"ckpt_save {key} {pool}")["ok"]:
            self.saved[key] = pool

    def free_all(self, names):
        for name in sorted(names & self.names.keys()):
            del self.names[name]
            self.do(f"free {name}")
        names.clear()

    def settle(self):
        """After this, nothing waits for events or will wait for them."""
        if self.routed is not None:
            self.route()
        self.free_all(self.used)
        self.do("complete all")
        self.alloc()

    def load(self):
        r = self.random
        if self.with_streams and r.random() < 0.98:
            self.settle()
        key = r.choice(KEYS)
        answer = self.do(f"ckpt_load {key}")
        if not answer["ok"]:
            return
        gone = set(answer["freed"])
        self.names = {name: pointer for name, pointer in self.names.items() if pointer not in gone}
        for name in answer["allocd"]:
            self.names[name] = name.split("_", 2)[2]
            self.owners[name] = self.saved[key]
        if r.random() < 0.8:
            self.do("reset_peak")

    def step(self):
        r = self.random
        u = r.random()
        if u < 0.035:
            self.route()
        elif u < 0.06:
            self.save()
        elif u < 0.085:
            self.load()
        elif u < 0.10:
            self.do("snapshot" if self.routed is None or r.random() < 0.5 else f"snapshot {self.routed}")
        elif u < 0.104 and self.captured is None:
            self.do("empty_cache")
        elif u < 0.106:
            self.do(r.choice(["reset_peak", "reset_accumulated", "cache_info", "stats"]))
        elif u < 0.108 and self.releases and self.routed is None and self.pools:
            self.release(r.choice(list(self.pools)))
        elif u < 0.109:
            self.names = {}
            self.do("free_all")
        elif self.with_streams and u < 0.14 and self.names:
            name = r.choice(list(self.names))
            self.used.add(name)
            if self.routed is not None:
                self.used_now.add(name)
            self.do(f"record_stream {name} {r.randrange(4)}")
        elif self.with_streams and u < 0.22:
            self.do(r.choice([f"complete {r.randrange(4)}", f"complete_one {r.randrange(4)}", "complete all"]))
        elif not self.names or r.random() < (0.6 if len(self.names) < 60 else 0.4):
            self.alloc()
        else:
            self.free()

    def finish(self):
        if self.routed is not None:
            self.route()
        for line in ("snapshot", "free_all", "complete all", "empty_cache", "snapshot", "stats", "driver"):
            self.do(line)


def drive(program, environment, seed, n, flavour, releases, release="2.15.0"):
    """Makes a script of about n lines. Returns its lines and the real allocator's answers.

    `releases`: whether pools are released and their ids reused. Not with expandable segments, whose memory the real allocator
    then corrupts (docs/fidelity.md, section 5).
    """
    with subprocess.Popen(
        [program, "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
    ) as process:
        script = Script(process, seed, flavour, releases, release)
        try:
            while len(script.lines) < n:
                script.step()
            script.finish()
        except Ended:
            pass
        process.stdin.close()
        process.stdout.read()
    return script.lines, script.answers
