#!/usr/bin/env python3
"""Times programs and allocations on PyTorch's own allocator and on parkade, in processes that all live at once and work one at a time.

  speed.py OUT                                 steps of five programs, torch.empty, and allocations from C++
  speed.py OUT --quick                         one program and the allocations, two processes, three rounds
  speed.py OUT --programs --rounds 30          no programs: only torch.empty and C++
  speed.py OUT --programs gpt2 --no-allocations

There are several processes of each side: PyTorch's allocator, parkade, and PyTorch's allocator once more, which shows how far apart equal things are.
In a round every process does the same few steps, in an order of processes drawn anew, while the others wait; all are bound to the same processors.
Each round repeats the same steps, and the GPU is idle before and after each of them. What else happens on the machine only makes a step longer, so a step's time in a
process is the lower quartile of its rounds. A process' number is the mean of its steps, and a side's is the mean of its processes.
The interval of a ratio is for 95 of 100, from how far processes of one side differ.
A target is met if the whole interval is below it, missed if the whole interval is above it, and open otherwise.
Nothing else may run on the machine. Exit codes: 0 no target is missed, 1 some are, 2 something could not be run.
"""

import argparse
import concurrent.futures
import ctypes
import gc
import json
import math
import os
import pathlib
import random
import statistics
import subprocess
import sys
import time

import allocators
import programs

PROGRAMS = ("gpt2", "llama", "mask_rcnn", "cuda_graph", "compile_reduce_overhead")
SIZES = {"512 B": 512, "64 KiB": 1 << 16, "1 MiB": 1 << 20, "8 MiB": 8 << 20, "64 MiB": 64 << 20, "1 GiB": 1 << 30}
# Kind of the loop in raw.cpp, threads, and how many times faster parkade has to be.
RAW = {
    "C++ pairs, 1 thread": (0, 1, 3.0),
    "C++ 32 held, 1 thread": (1, 1, 3.0),
    "C++ pairs, 16 threads, 16 streams": (0, 16, 2.0),
    "C++ 32 held, 16 threads, 16 streams": (1, 16, 2.0),
}
SIDES = {"native": "native", "parkade": "parkade", "again": "native"}
ALLOCATIONS = "allocations"
# Of Student's distribution, for an interval of 95 of 100, with 1, 2 and more degrees of freedom.
QUANTILES = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120)
# Steps before anything is timed: every shape has been compiled and captured, and the segments are there.
WARM_STEPS = 26
# Processors that programs are bound to. Allocations from 16 threads have all of them.
PROCESSORS = 4


def raw_pairs(out):
    """The function of raw.cpp, which the first of several processes that ask compiles."""
    from torch.utils import cpp_extension

    folder = out.resolve() / "raw"
    folder.mkdir(parents=True, exist_ok=True)
    source = pathlib.Path(__file__).with_name("raw.cpp")
    cpp_extension.load("parkade_raw", [str(source)], extra_cflags=["-O2"], with_cuda=True, is_python_module=False, build_directory=str(folder))
    call = ctypes.CDLL(str(folder / "parkade_raw.so")).raw_pairs
    call.restype, call.argtypes = ctypes.c_double, [ctypes.c_int, ctypes.c_int, ctypes.c_int64]
    return call


def program_blocks(name):
    """A function that times `steps` steps of a program from the step `first` on. {what: milliseconds of each step}."""
    import torch

    step = programs.load(name).start()

    def block(first, steps):
        # One step before, so that what this process had in the processor's caches is there again.
        step(first)
        times = []
        for index in range(first, first + steps):
            torch.cuda.synchronize()
            started = time.perf_counter()
            step(index)
            torch.cuda.synchronize()
            times.append((time.perf_counter() - started) * 1e3)
        return {f"{name}, ms a step": times}

    return block


def allocation_blocks(out, pairs):
    """A function that times `pairs` allocations and frees of each kind from C++, and a tenth of that of each size by torch.empty. {what: [nanoseconds]}."""
    import torch

    call = raw_pairs(out)
    torch.cuda.init()
    torch.empty(1, device="cuda")

    def empty(size, many):
        started = time.perf_counter_ns()
        for _ in range(many):
            torch.empty(size, dtype=torch.uint8, device="cuda")
        return (time.perf_counter_ns() - started) / many

    def block(first, steps):
        result = {}
        many = max(pairs // 10, 1)
        for text, size in SIZES.items():
            empty(size, many // 10 + 1)
            result[f"torch.empty {text}, ns a pair"] = [empty(size, many)]
        for text, (kind, threads, _) in RAW.items():
            each = max(pairs // threads, 64) // 32 * 32
            nanoseconds = call(kind, threads, each)
            if nanoseconds < 0:
                raise RuntimeError(f"{text}: an allocation failed")
            result[f"{text}, ns a pair"] = [nanoseconds / (each * threads)]
        return result

    return block


def serve(options):
    """A process of a side: warms up, then times each block that it is asked for, until nothing more is asked."""
    allocators.choose(options.allocator)
    if options.one == ALLOCATIONS:
        block = allocation_blocks(options.out, options.pairs)
        block(0, 1)
    else:
        block = program_blocks(options.one)
        block(0, WARM_STEPS)
    # Cycles are collected at the same place in every process: before a block.
    gc.freeze()
    gc.disable()
    if options.one != ALLOCATIONS:
        # Only now, and with the threads of backward passes: many processes start at the same time.
        for thread in map(int, os.listdir("/proc/self/task")):
            os.sched_setaffinity(thread, sorted(os.sched_getaffinity(0))[-PROCESSORS:])
    print("ready", flush=True)
    for line in sys.stdin:
        gc.collect(1)
        print(json.dumps(block(*map(int, line.split()))), flush=True)


class Process:
    """A child that times blocks."""

    def __init__(self, options, what, side, place):
        command = [sys.executable, __file__, str(options.out), "--one", what, "--allocator", SIDES[side], "--pairs", str(options.pairs)]
        environment = allocators.environment(options.setting, TORCHINDUCTOR_CACHE_DIR=options.out.resolve() / "compiled")
        # Every process of a side has another order of its dictionaries, as programs of users have; the sides have the same ones.
        environment["PYTHONHASHSEED"] = str(place)
        # All processes of a program are on one GPU; the next program is on the next, where there are several.
        environment["CUDA_VISIBLE_DEVICES"] = options.gpus[options.things.index(what) % len(options.gpus)]
        self.side, self.rounds, self.log = side, [], options.out / f"{what}.{side}.{place}.log"
        with open(self.log, "w") as log:
            self.child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=environment)

    def line(self):
        """The next line of the answers that is the child's own. Programs print, too."""
        for line in self.child.stdout:
            if line == "ready\n" or line.startswith("{"):
                return line
        self.child.wait()
        last = (self.log.read_text().strip().splitlines() or ["no message"])[-1]
        raise RuntimeError(f"{self.log.stem}: status {self.child.returncode}: {last}")

    def block(self, first, steps):
        self.child.stdin.write(f"{first} {steps}\n")
        self.child.stdin.flush()
        return json.loads(self.line())

    def end(self):
        # It has nothing to put away, and others wait for the GPU's memory.
        with self.child:
            self.child.kill()


def start_all(options, things):
    """The processes of all sides of each thing, warm and waiting; {thing: processes}. A thing that cannot be started has the reason instead."""

    def start(job):
        process = Process(options, *job)
        process.line()
        return process

    others = [(side, place) for place in range(options.processes) for side in SIDES][1:]
    result = {}
    with concurrent.futures.ThreadPoolExecutor(options.starts) as pool:
        # One by itself: it compiles what the others then find.
        first = [pool.submit(start, (what, "native", 0)) for what in things]
        futures = {}
        for what, future in zip(things, first):
            concurrent.futures.wait([future])
            futures[what] = [future, *(pool.submit(start, (what, *job)) for job in others)]
        for what in things:
            try:
                result[what] = [future.result() for future in futures[what]]
            except (RuntimeError, OSError) as error:
                result[what] = error
    return result


def measure(options, things):
    """{thing: {side: [process][round][step]}} of times, and how many things could not be measured."""
    found, failed = {}, 0
    for some in [things] if options.together else [[what] for what in things]:
        for what, processes in start_all(options, some).items():
            try:
                if isinstance(processes, Exception):
                    raise processes
                found.update(rounds_of(options, what, processes))
            except (RuntimeError, OSError) as error:
                failed += 1
                print(f"{what}: {error}", flush=True)
            else:
                with concurrent.futures.ThreadPoolExecutor(len(processes)) as pool:
                    pool.map(Process.end, processes)
            (options.out / "speed.json").write_text(json.dumps(found, indent=1))
    return found, failed


def rounds_of(options, what, processes):
    steps = 1
    if what != ALLOCATIONS:
        times = next(iter(processes[0].block(WARM_STEPS, 8).values()))
        steps = max(round(options.block_ms / statistics.fmean(times)), 2)
    order, draw = list(processes), random.Random(1)
    for _ in range(options.rounds):
        draw.shuffle(order)
        for process in order:
            process.rounds.append(process.block(WARM_STEPS, steps))
    print(f"{what}: {options.rounds} rounds of {len(processes)} processes, {steps} steps each", flush=True)
    found = {}
    for thing in processes[0].rounds[0]:
        found[thing] = {side: [[block[thing] for block in process.rounds] for process in processes if process.side == side] for side in SIDES}
    return found


def number_of(rounds):
    """What a process takes for a step: the mean over the steps of the lower quartile of the rounds."""
    return statistics.fmean(sorted(step)[len(rounds) // 4] for step in zip(*rounds))


def ratio(sides, side, base="native"):
    """How many times as long `side` takes as `base`: the number, and the ends of its interval, by Welch's test of the logarithms."""
    logs = [[math.log(number_of(rounds)) for rounds in sides[one]] for one in (base, side)]
    distance = statistics.fmean(logs[1]) - statistics.fmean(logs[0])
    errors = [statistics.variance(numbers) / len(numbers) for numbers in logs]
    freedom = sum(errors) ** 2 / sum(error**2 / (len(numbers) - 1) for error, numbers in zip(errors, logs)) if sum(errors) else 1
    either_way = QUANTILES[min(int(freedom), len(QUANTILES)) - 1] * math.sqrt(sum(errors))
    return tuple(math.exp(distance + end) for end in (0, -either_way, either_way))


def target(thing):
    """The largest ratio of parkade's time to PyTorch's that is good enough."""
    for text, (_, _, faster) in RAW.items():
        if thing.startswith(text):
            return 1 / faster
    # A program's step and torch.empty: no slower, but for what equal things differ by.
    return 1.01


def verdict(low, high, most):
    return "met" if high <= most else "missed" if low > most else "open"


def table(found):
    """Prints the table. How many targets are missed."""
    missed = 0
    print("| what | native | parkade | parkade / native | interval | native again / native | interval | at most | |\n|---|---|---|---|---|---|---|---|---|")
    for thing, sides in found.items():
        ours, theirs = (statistics.fmean(map(number_of, sides[side])) for side in ("native", "parkade"))
        (middle, low, high), (control, *ends) = ratio(sides, "parkade"), ratio(sides, "again")
        said = verdict(low, high, target(thing))
        missed += said == "missed"
        print(
            f"| {thing} | {ours:.4g} | {theirs:.4g} | {middle:.3f} | {low:.3f} to {high:.3f} "
            f"| {control:.3f} | {ends[0]:.3f} to {ends[1]:.3f} | {target(thing):.3f} | {said} |"
        )
    return missed


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path, metavar="OUT")
    parser.add_argument("--programs", nargs="*", choices=programs.NAMES, default=PROGRAMS, metavar="NAME", help=" ".join(programs.NAMES))
    parser.add_argument("--no-allocations", dest="allocations", action="store_false", help="neither torch.empty nor C++")
    parser.add_argument("--processes", type=int, default=5, help="of each of the three sides (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=12, help="default: %(default)s")
    parser.add_argument("--block-ms", type=int, default=300, help="how long a block of steps takes, about (default: %(default)s)")
    parser.add_argument("--pairs", type=int, default=100_000, help="allocations from C++ in a block (default: %(default)s)")
    parser.add_argument("--starts", type=int, default=8, help="processes that start at the same time (default: %(default)s)")
    parser.add_argument("--together", action="store_true", help="start the processes of all programs first: faster, if the GPU's memory is enough")
    parser.add_argument("--setting", default="", help="PYTORCH_CUDA_ALLOC_CONF of all sides (default: empty)")
    parser.add_argument("--quick", action="store_true", help="gpt2 and the allocations, two processes of a side, three rounds")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--allocator", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if min(options.rounds, options.block_ms, options.pairs, options.starts) < 1 or options.processes < 2:
        parser.error("--rounds, --block-ms, --pairs and --starts must be at least 1, and --processes at least 2")
    if options.quick:
        options.programs, options.processes, options.rounds = ["gpt2"], 2, 3
    return parser, options


def main():
    parser, options = arguments()
    if options.one:
        serve(options)
        return 0
    count = allocators.need_torch(parser)
    allocators.need_parkade(parser)
    options.gpus = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(count)))).split(",")
    options.out.mkdir(parents=True, exist_ok=True)
    things = options.things = list(options.programs)
    if options.allocations:
        things.insert(0, ALLOCATIONS)
    found, failed = measure(options, things)
    missed = table(found)
    return 2 if failed else int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
