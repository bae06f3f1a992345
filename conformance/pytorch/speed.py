#!/usr/bin/env python3
"""Times programs and allocations on PyTorch's own allocator and on parkade, which take turns within each process.

  speed.py OUT                                 steps of five programs, torch.empty, and allocations from C++
  speed.py OUT --quick                         one program and the allocations, two processes, three rounds
  speed.py OUT --programs --rounds 30          no programs: only torch.empty and C++
  speed.py OUT --programs gpt2 --no-allocations
  speed.py OUT --policy compaction --setting expandable_segments:True --limit 8GiB --programs unet --counts unet=13 --no-allocations

Both allocators exist in each process, and PyTorch switches between them. The process, its threads, the weights and their addresses are therefore the same, and only what a step
allocates comes from a different allocator. Programs with CUDA graphs, pools or streams, and all programs with --limit, have a separate copy on each allocator, including the
weights; compile_reduce_overhead has a separate process for each. There are three sides: PyTorch's allocator, parkade, and PyTorch's allocator a second time, which shows how
large differences are when nothing differs.
In a round, every process runs the same few steps on each side, in a random order, while the other processes wait; all are bound to the same processors.
The GPU is idle before and after each step. A step's time on one side is divided by that of the same step in the same round on the other, so a slowdown of the machine that
lasts longer than a round has no effect. A process's ratio is the median of these quotients; the mean of the processes' ratios is shown, and the 95 % interval is computed from
how much the processes differ. Times are means over the steps of the lower quartile of the rounds, and over the processes.
A target is met if the entire interval is below it, missed if the entire interval is above it, and open in all other cases.
Nothing else may run on the machine. Exit codes: 0 no target is missed, 1 some are, 2 something could not be run.
"""

import argparse
import concurrent.futures
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
import both
import largest
import programs

PROGRAMS = ("gpt2", "llama", "mask_rcnn", "cuda_graph", "compile_reduce_overhead")
SIZES = {"512 B": 512, "64 KiB": 1 << 16, "1 MiB": 1 << 20, "8 MiB": 8 << 20, "64 MiB": 64 << 20, "1 GiB": 1 << 30}
# The loop in raw.cpp, the number of threads, and the factor by which parkade must be faster.
RAW = {
    "C++ pairs, 1 thread": (0, 1, 3.0),
    "C++ 32 held, 1 thread": (1, 1, 3.0),
    "C++ pairs, 16 threads, 16 streams": (0, 16, 2.0),
    "C++ 32 held, 16 threads, 16 streams": (1, 16, 2.0),
}
SIDES = {"native": "native", "parkade": "parkade", "again": "native"}
# Programs whose state belongs to one allocator from step to step: graphs, and tensors that streams record.
OWN_COPIES = ("cuda_graph", "streams", "mempool", "random_graphs", "random_pools")
# The trees of CUDA graphs keep one pool per process, so each side runs in separate processes.
APART = ("compile_reduce_overhead",)
ALLOCATIONS = "allocations"
# Quantiles of Student's distribution for a 95 % interval, with 1, 2 and more degrees of freedom.
QUANTILES = (
    12.71,
    4.303,
    3.182,
    2.776,
    2.571,
    2.447,
    2.365,
    2.306,
    2.262,
    2.228,
    2.201,
    2.179,
    2.160,
    2.145,
    2.131,
    2.120,
)
# The number of steps before timing starts: every shape has then been compiled and captured, and the segments exist.
WARM_STEPS = 26
# The number of processors that programs are bound to. Allocations from 16 threads use all processors.
PROCESSORS = 4


def started(name, options):
    """Returns the step function of a new copy of a program."""
    count = options.counts.get(name)
    return programs.load(name).start(count) if count else programs.load(name).start()


def named(allocator, call):
    """Wraps the function so that a failure names the allocator in one line."""

    def carry_out(*arguments):
        try:
            return call(*arguments)
        except Exception as error:
            raise RuntimeError(
                f"on the allocator {allocator}: {(str(error).splitlines() or [type(error).__name__])[0]}"
            ) from error

    return carry_out


def warmed(name, step, options):
    """Warms up a program until it has made all its shapes: its own step function, or that of a new copy."""
    import torch

    step = step or started(name, options)
    for index in range(WARM_STEPS):
        step(index)
    # Synchronize so that an error on the GPU is raised here, and not under the next allocator.
    torch.cuda.synchronize()
    return step


def copies(name, here, options):
    """Returns {allocator: the program's step function} after warm-up: one program for both, or a copy on each."""
    own, found = name in OWN_COPIES or options.limit, {}
    for allocator in dict.fromkeys(SIDES[side] for side in options.sides):
        here.use(allocator)
        step = None if own or not found else next(iter(found.values()))
        found[allocator] = named(allocator, warmed)(name, step, options)
    return {allocator: named(allocator, step) for allocator, step in found.items()}


def program_blocks(name, here, options):
    """A function that times `steps` steps of a program from the step `first` on, on the side that is in use. {what: milliseconds of each step}."""
    import torch

    found = copies(name, here, options)

    def block(side, first, steps):
        step = found[SIDES[side]]
        # Run one step first, so that this side's data is in the processor's caches again.
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


def allocation_blocks(call, pairs):
    """A function that times `pairs` allocations and frees of each kind from C++, and a tenth of that of each size by torch.empty. {what: [nanoseconds]}."""
    import torch

    def empty(size, many):
        started = time.perf_counter_ns()
        for _ in range(many):
            torch.empty(size, dtype=torch.uint8, device="cuda")
        return (time.perf_counter_ns() - started) / many

    def block(side, first, steps):
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


def tell_peak(options):
    """A process that prints the peak of the bytes in a program's tensors."""
    import torch

    step = started(options.one, options)
    for index in range(WARM_STEPS):
        step(index)
    print(json.dumps(torch.cuda.memory_stats()["allocated_bytes.all.peak"]))


def limit_of(options, what):
    """Returns the bytes that each allocator may reserve for a program; 0 means all."""
    if not isinstance(options.limit, float):
        return options.limit
    # The last --limit counts, and "0x" means no limit.
    command = [sys.executable, __file__, *sys.argv[1:], "--limit", "0x", "--one", what, "--peak"]
    answer = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment_of(options, what, 0))
    if answer.returncode != 0:
        raise RuntimeError(f"{what} cannot run even without a limit: status {answer.returncode}")
    return int(options.limit * int(answer.stdout.split()[-1])) >> 20 << 20


def serve(options):
    """Runs in a child process: warms up, then times each requested block on its sides until no more are requested."""
    library = both.compiled(options.out.resolve() / "raw")
    here = both.Both(library, options.policy)
    if options.limit:
        here.limit(options.limit)
    block = (
        allocation_blocks(library.raw_pairs, options.pairs)
        if options.one == ALLOCATIONS
        else program_blocks(options.one, here, options)
    )
    # Cycles are collected at the same points on every side: before a block.
    gc.freeze()
    gc.disable()
    if options.one != ALLOCATIONS:
        # Bound only now, including the threads of backward passes, because many processes start at the same time.
        for thread in map(int, os.listdir("/proc/self/task")):
            os.sched_setaffinity(thread, sorted(os.sched_getaffinity(0))[-PROCESSORS:])
    print("ready", flush=True)
    order, draw = list(options.sides), random.Random(options.place)
    for line in sys.stdin:
        draw.shuffle(order)
        found = {}
        for side in order:
            here.use(SIDES[side])
            gc.collect(1)
            for what, times in block(side, *map(int, line.split())).items():
                found.setdefault(what, {})[side] = times
        print(json.dumps(found), flush=True)


def environment_of(options, what, place):
    """Returns the environment of the processes at a place."""
    environment = allocators.environment(options.setting, TORCHINDUCTOR_CACHE_DIR=options.out.resolve() / "compiled")
    # Every process orders its dictionaries differently, as users' programs do; processes at the same position share the order.
    environment["PYTHONHASHSEED"] = str(place)
    # All processes of a program run on one GPU; the next program runs on the next GPU, if there are several.
    environment["CUDA_VISIBLE_DEVICES"] = options.gpus[options.things.index(what) % len(options.gpus)]
    return environment


class Process:
    """A child that times blocks."""

    def __init__(self, options, what, place, sides, limit_bytes):
        command = [
            sys.executable,
            __file__,
            *sys.argv[1:],
            "--limit",
            f"{limit_bytes >> 20}MiB" if limit_bytes else "0x",
        ]
        command += ["--one", what, "--place", str(place), "--sides", *sides]
        environment = environment_of(options, what, place)
        self.log = options.out / f"{what}.{place}.{'.'.join(sides)}.log"
        with open(self.log, "w") as log:
            self.child = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=environment
            )

    def line(self):
        """Returns the next line of output that is the child's answer. Programs print too."""
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
        # The side has no state to save, and other sides wait for the GPU's memory.
        with self.child:
            self.child.kill()


class Place:
    """Starts the process that has all sides, or one process for each."""

    def __init__(self, options, what, place, limit_bytes):
        parts = [[side] for side in SIDES] if what in APART else [list(SIDES)]
        self.processes, self.rounds, self.draw = (
            [Process(options, what, place, sides, limit_bytes) for sides in parts],
            [],
            random.Random(place),
        )
        for process in self.processes:
            process.line()

    def block(self, first, steps):
        """{what: {side: times}}."""
        found = {}
        self.draw.shuffle(self.processes)
        for process in self.processes:
            for what, sides in process.block(first, steps).items():
                found.setdefault(what, {}).update(sides)
        return found

    def end(self):
        for process in self.processes:
            process.end()


def start_all(options, things):
    """Returns the places of each thing, warm and waiting: {thing: places}. A thing that cannot be started has the reason instead."""

    def first(what):
        # By itself, because it compiles the kernels that the others then find.
        limit_bytes = limit_of(options, what)
        return limit_bytes, Place(options, what, 0, limit_bytes)

    result = {}
    with concurrent.futures.ThreadPoolExecutor(options.starts) as pool:
        firsts, futures = {what: pool.submit(first, what) for what in things}, {}
        for what, future in firsts.items():
            concurrent.futures.wait([future])
            if not future.exception():
                limit_bytes = future.result()[0]
                futures[what] = [
                    pool.submit(Place, options, what, place, limit_bytes) for place in range(1, options.processes)
                ]
        for what in things:
            try:
                result[what] = [firsts[what].result()[1], *(future.result() for future in futures[what])]
            except (RuntimeError, OSError) as error:
                result[what] = error
    return result


def measure(options, things):
    """{thing: {side: [process][round][step]}} of times, and how many things could not be measured."""
    found, failed = {}, 0
    for some in [things] if options.together else [[what] for what in things]:
        for what, places in start_all(options, some).items():
            try:
                if isinstance(places, Exception):
                    raise places
                found.update(rounds_of(options, what, places))
            except (RuntimeError, OSError) as error:
                failed += 1
                print(f"{what}: {error}", flush=True)
            else:
                with concurrent.futures.ThreadPoolExecutor(len(places)) as pool:
                    pool.map(Place.end, places)
            (options.out / "speed.json").write_text(json.dumps(found, indent=1))
    return found, failed


def rounds_of(options, what, places):
    steps = 1
    if what != ALLOCATIONS:
        times = next(iter(places[0].block(WARM_STEPS, 8).values()))["native"]
        steps = max(round(options.block_ms / statistics.fmean(times)), 2)
    order, draw = list(places), random.Random(1)
    for _ in range(options.rounds):
        draw.shuffle(order)
        for place in order:
            place.rounds.append(place.block(WARM_STEPS, steps))
    print(f"{what}: {options.rounds} rounds in {len(places)} processes, {steps} steps each", flush=True)
    return {
        thing: {side: [[block[thing][side] for block in place.rounds] for place in places] for side in SIDES}
        for thing in places[0].rounds[0]
    }


def number_of(rounds):
    """Returns the time that a side of a process takes per step: the mean over the steps of the lower quartile of the rounds."""
    return statistics.fmean(sorted(step)[len(rounds) // 4] for step in zip(*rounds))


def ratio_of(ours, theirs):
    """Returns how many times as long a process's step takes on one side as on the other: the median over all steps of all rounds."""
    return statistics.median(one / other for our, their in zip(ours, theirs) for one, other in zip(our, their))


def ratio(sides, side, base="native"):
    """Returns how many times as long `side` takes as `base`: the number and the ends of its interval, from the logarithms of the processes' ratios."""
    logs = [math.log(ratio_of(ours, theirs)) for ours, theirs in zip(sides[side], sides[base])]
    middle = statistics.fmean(logs)
    either_way = QUANTILES[min(len(logs) - 1, len(QUANTILES)) - 1] * statistics.stdev(logs) / math.sqrt(len(logs))
    return tuple(math.exp(middle + end) for end in (0, -either_way, either_way))


def target(thing):
    """Returns the largest ratio of parkade's time to PyTorch's that is good enough."""
    for text, (_, _, faster) in RAW.items():
        if thing.startswith(text):
            return 1 / faster
    # A program's step and torch.empty must be no slower, apart from the noise between equal sides.
    return 1.01


def verdict(low, high, most):
    return "met" if high <= most else "missed" if low > most else "open"


def table(found):
    """Prints the table. Returns how many targets are missed."""
    missed = 0
    print(
        "| what | native | parkade | parkade / native | interval | native again / native | interval | at most | |\n|---|---|---|---|---|---|---|---|---|"
    )
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


def limit(text):
    """Parses bytes, or a multiple of what tensors take: 8GiB or 1.05x; 0 for 0x."""
    if not text.endswith("x"):
        return largest.size(text)
    try:
        share = float(text[:-1])
    except ValueError:
        share = math.nan
    if not (share == 0 or 1 <= share < math.inf):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a limit: write it like 8GiB or, as a multiple of what the tensors take, like 1.05x"
        )
    return share or 0


def counted(text):
    name, _, count = text.partition("=")
    if name not in programs.COUNTED or not count.isdigit() or int(count) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a program's batch: write it like unet=13")
    return name, int(count)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path, metavar="OUT")
    parser.add_argument(
        "--programs", nargs="*", choices=programs.NAMES, default=PROGRAMS, metavar="NAME", help=" ".join(programs.NAMES)
    )
    parser.add_argument(
        "--no-allocations",
        dest="allocations",
        action="store_false",
        help="skip the allocations with torch.empty and from C++",
    )
    parser.add_argument("--policy", default="pytorch", help="parkade's policy (default: %(default)s)")
    parser.add_argument(
        "--limit",
        type=limit,
        default=0,
        metavar="SIZE",
        help="the memory that each allocator may reserve: 8GiB, or 1.05x of what the tensors take (default: all)",
    )
    parser.add_argument(
        "--counts",
        nargs="+",
        type=counted,
        default=(),
        metavar="NAME=N",
        help="batches of programs: " + " ".join(programs.COUNTED),
    )
    parser.add_argument(
        "--processes",
        type=int,
        default=6,
        help="processes for each program; each ratio compares times within one process (default: %(default)s)",
    )
    parser.add_argument("--rounds", type=int, default=12, help="default: %(default)s")
    parser.add_argument(
        "--block-ms", type=int, default=300, help="the approximate duration of a block of steps (default: %(default)s)"
    )
    parser.add_argument(
        "--pairs", type=int, default=100_000, help="allocations from C++ in a block (default: %(default)s)"
    )
    parser.add_argument(
        "--starts", type=int, default=8, help="processes that start at the same time (default: %(default)s)"
    )
    parser.add_argument(
        "--together",
        action="store_true",
        help="start the processes of all programs first: faster, if the GPU has enough memory",
    )
    parser.add_argument("--setting", default="", help="PYTORCH_CUDA_ALLOC_CONF (default: empty)")
    parser.add_argument(
        "--quick", action="store_true", help="time only gpt2 and the allocations, in two processes and three rounds"
    )
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--place", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--peak", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--sides", nargs="+", default=list(SIDES), help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.counts = dict(options.counts)
    if min(options.rounds, options.block_ms, options.pairs, options.starts) < 1 or options.processes < 2:
        parser.error(
            "--rounds, --block-ms, --pairs and --starts must be at least 1, and --processes must be at least 2"
        )
    if options.quick:
        options.programs, options.processes, options.rounds = ["gpt2"], 2, 3
    return parser, options


def main():
    parser, options = arguments()
    if options.one:
        (tell_peak if options.peak else serve)(options)
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
