#!/usr/bin/env python3
"""Runs many steps of random requests while driver calls fail at random, and tests every way in which a process can end.

  endurance.py OUT                             10,000 steps under three settings, and the ends, on parkade
  endurance.py OUT --quick                     500 steps, one setting, and the ends
  endurance.py OUT --allocator native          the same on PyTorch's own allocator, to compare with
  endurance.py OUT --only ends

Driver calls fail because the memory is taken: the process itself takes random amounts of memory from the driver, bypassing the allocator, and returns
them. After the steps, everything is dropped. Nothing may be left: no byte may be allocated or reserved, and the GPU's free memory must be the same, within
--tolerance-mib, as after the first tenth of the steps, when everything was dropped once before.
Exit codes: 0 success, 1 something leaked, crashed or ended badly, 2 nothing could be run.
"""

import argparse
import concurrent.futures
import ctypes
import gc
import json
import pathlib
import random
import subprocess
import sys
import time

import allocators
import exits

SETTINGS = {
    "default": "",
    "expandable": "expandable_segments:True",
    "split and gc": "max_split_size_mb:64,garbage_collection_threshold:0.7",
}
MIB = 1 << 20


class Balloon:
    """Memory that the process takes from the driver itself. Its size decides which of the allocator's calls fail."""

    def __init__(self, draw):
        self.draw, self.driver, self.chunks = draw, ctypes.CDLL("libcuda.so.1"), []

    def take(self, size_bytes):
        pointer = ctypes.c_uint64()
        if self.driver.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size_bytes)) == 0:
            self.chunks.append((pointer, size_bytes))
            return True
        return False

    def give(self):
        pointer, _ = self.chunks.pop(self.draw.randrange(len(self.chunks)))
        assert self.driver.cuMemFree_v2(pointer) == 0

    def leave(self, wanted_bytes):
        """Takes and returns chunks until about `wanted_bytes` are free on the GPU."""
        import torch

        while self.chunks and torch.cuda.mem_get_info()[0] < wanted_bytes:
            self.give()
        excess_bytes = torch.cuda.mem_get_info()[0] - wanted_bytes
        while excess_bytes > 64 * MIB:
            size_bytes = min(excess_bytes, self.draw.choice((256, 1024, 8192)) * MIB)
            if not self.take(size_bytes):
                break
            excess_bytes -= size_bytes

    def empty(self):
        while self.chunks:
            self.give()


class Program:
    """Random requests on several streams, in private pools and in graphs. Each tensor is filled with a number that is checked when the tensor is freed."""

    def __init__(self, seed):
        import torch

        self.torch, self.draw = torch, random.Random(seed)
        self.kept, self.pools, self.graphs = [], [], []
        self.streams = [torch.cuda.current_stream(), *(torch.cuda.Stream() for _ in range(3))]
        self.failures = {"out of memory": 0, "other driver calls": 0}
        self.acts = [
            (self.take, 50),
            (self.drop, 40),
            (self.pool, 6),
            (self.drop_pool, 2),
            (self.graph, 2),
            (self.drop_graph, 2),
            (self.empty, 1),
        ]

    def take(self):
        torch, draw = self.torch, self.draw
        size_bytes, value = int(2 ** draw.uniform(7, 29)), draw.randrange(256)
        with torch.cuda.stream(draw.choice(self.streams)):
            tensor = torch.empty(size_bytes, dtype=torch.uint8, device="cuda")
            tensor.fill_(value)
        self.kept.append((tensor, value))

    def drop(self):
        if not self.kept:
            return
        torch, draw = self.torch, self.draw
        tensor, value = self.kept.pop(draw.randrange(len(self.kept)))
        if draw.random() < 0.2:
            torch.cuda.synchronize()
            ends = (tensor[0].item(), tensor[-1].item())
            if ends != (value, value):
                raise SystemExit(
                    f"a tensor of {tensor.numel()} bytes contained {ends} instead of {value}: its memory was handed out twice"
                )
        if draw.random() < 0.4:
            tensor.record_stream(draw.choice(self.streams))

    def pool(self):
        torch, draw = self.torch, self.draw
        if len(self.pools) < 3:
            self.pools.append(torch.cuda.MemPool())
        with torch.cuda.use_mem_pool(draw.choice(self.pools)):
            self.take()

    def drop_pool(self):
        if self.pools:
            self.pools.pop(self.draw.randrange(len(self.pools)))

    def graph(self):
        torch, draw = self.torch, self.draw
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.streams[1]):
            x = torch.empty(int(2 ** draw.uniform(10, 27)), device="cuda", dtype=torch.uint8).fill_(3)
            if draw.random() < 0.1:
                raise KeyError("an exception in a capture")
            y = x + 1
        graph.replay()
        self.graphs.append((graph, y))

    def drop_graph(self):
        if self.graphs:
            self.graphs.pop(self.draw.randrange(len(self.graphs)))

    def empty(self):
        self.torch.cuda.empty_cache()

    def step(self):
        """Does ten random things. Running out of memory is expected; other failures of the driver for lack of memory are counted separately."""
        acts, weights = zip(*self.acts)
        for act in self.draw.choices(acts, weights, k=10):
            failed = False
            try:
                act()
            except self.torch.OutOfMemoryError:
                self.failures["out of memory"] += 1
                failed = True
            except KeyError:
                pass
            except RuntimeError as error:
                if "out of memory" not in str(error):
                    raise
                self.failures["other driver calls"] += 1
                failed = True
            while len(self.kept) > (20 if failed else 60):
                self.kept.pop(self.draw.randrange(len(self.kept)))

    def drop_all(self):
        """Drops everything. Returns the bytes that are then free on the GPU."""
        torch = self.torch
        self.kept.clear()
        self.graphs.clear()
        self.pools.clear()
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info()[0]


def steps_here(options):
    """The steps, in this process. Prints a line of JSON."""
    allocators.choose(options.allocator)
    import torch

    torch.cuda.init()
    torch.ones(1, device="cuda").item()
    program, balloon = Program(options.seed), Balloon(random.Random(options.seed + 1))
    started, done, before_bytes = time.monotonic(), 0, None
    while done < options.steps and time.monotonic() - started < options.seconds:
        if done % 3 == 0:
            balloon.leave(int(2 ** balloon.draw.uniform(28.5, 32.5)))
        program.step()
        done += 1
        if done == max(options.steps // 10, 1):
            balloon.empty()
            before_bytes = program.drop_all()
    balloon.empty()
    after_bytes = program.drop_all()
    stats = torch.cuda.memory_stats()
    result = {"steps": done, **program.failures, "retries": stats["num_alloc_retries"]}
    result["allocated_bytes"], result["reserved_bytes"] = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    result["active_bytes"] = stats["active_bytes.all.current"]
    result["lost_bytes"] = (before_bytes or after_bytes) - after_bytes
    print(json.dumps(result))


def judge(result, options):
    """Returns what is wrong with the result of the steps, or an empty text."""
    wrong = [f"{key} {result[key]}" for key in ("allocated_bytes", "reserved_bytes", "active_bytes") if result[key]]
    if result["lost_bytes"] > options.tolerance_mib * MIB:
        wrong.append(f"{result['lost_bytes']} bytes of the GPU's memory are lost")
    if result["steps"] < options.steps:
        wrong.append(f"only {result['steps']} steps were done in {options.seconds} s")
    if not result["out of memory"] and not result["retries"]:
        wrong.append("no driver call failed, so this run shows nothing")
    return wrong


def run_steps(options, name):
    command = [
        sys.executable,
        __file__,
        str(options.out),
        "--one",
        "steps",
        "--allocator",
        options.allocator,
        "--steps",
        str(options.steps),
    ]
    command += ["--seed", str(options.seed), "--seconds", str(options.seconds)]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=options.seconds + 120,
            env=allocators.environment(SETTINGS[name]),
        )
    except subprocess.TimeoutExpired:
        return [f"did not finish within {options.seconds + 120} s"], {}
    (options.out / f"steps.{name.replace(' ', '_')}.{options.allocator}.log").write_text(done.stdout + done.stderr)
    if done.returncode:
        return [f"status {done.returncode}: {(done.stderr.strip().splitlines() or ['no message'])[-1]}"], {}
    result = json.loads(done.stdout.strip().splitlines()[-1])
    return judge(result, options), result


def run_ends(options):
    """Runs every way of ending and prints its row. Returns how many ended badly."""

    def one(job):
        case, setting = job
        command = [sys.executable, __file__, str(options.out), "--one", case.__name__, "--allocator", options.allocator]
        return exits.outcome(command, allocators.environment(SETTINGS[setting]))

    jobs = [(case, setting) for setting in ("default", "expandable") for case in exits.CASES]
    print("\n| end | setting | result |\n|---|---|---|", flush=True)
    bad = 0
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for (case, setting), wrong in zip(jobs, pool.map(one, jobs)):
            print(f"| {case.__name__} | {setting} | {wrong or 'good'} |", flush=True)
            bad += bool(wrong)
    return bad


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path, metavar="OUT")
    parser.add_argument("--allocator", choices=allocators.NAMES, default="parkade", help="default: %(default)s")
    parser.add_argument("--steps", type=int, default=10_000, help="steps under each setting (default: %(default)s)")
    parser.add_argument("--seconds", type=int, default=160, help="time limit under each setting (default: %(default)s)")
    parser.add_argument(
        "--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS), metavar="NAME", help=", ".join(SETTINGS)
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of the random requests (default: %(default)s)")
    parser.add_argument(
        "--tolerance-mib",
        type=int,
        default=32,
        help="memory that the driver may keep for itself (default: %(default)s)",
    )
    parser.add_argument(
        "--jobs", type=int, default=6, help="endings that are tested at the same time (default: %(default)s)"
    )
    parser.add_argument("--only", choices=("steps", "ends"), help="run only the steps or only the endings")
    parser.add_argument("--quick", action="store_true", help="run only 500 steps under one setting")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if min(options.steps, options.seconds, options.jobs) < 1:
        parser.error("--steps, --seconds and --jobs must be at least 1")
    if options.quick:
        options.steps, options.settings = 500, ["default"]
    return parser, options


def main():
    parser, options = arguments()
    if options.one == "steps":
        steps_here(options)
        return 0
    if options.one:
        exits.run(options.one, options.allocator)
        return 0
    allocators.need_torch(parser)
    if options.allocator == "parkade":
        allocators.need_parkade(parser)
    options.out.mkdir(parents=True, exist_ok=True)
    bad = 0
    if options.only != "ends":
        print(
            "| settings | steps | out of memory | retries | other failures | lost bytes | result |\n|---|---|---|---|---|---|---|"
        )
        for name in options.settings:
            wrong, result = run_steps(options, name)
            bad += bool(wrong)
            shown = [
                result.get(key, "") for key in ("steps", "out of memory", "retries", "other driver calls", "lost_bytes")
            ]
            print(f"| {name} | {' | '.join(map(str, shown))} | {'; '.join(wrong) or 'good'} |", flush=True)
    if options.only != "steps":
        bad += run_ends(options)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
