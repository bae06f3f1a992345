#!/usr/bin/env python3
"""Times programs and allocations on PyTorch's own allocator and on parkade, in processes that take turns.

  speed.py OUT                                 steps of three programs, torch.empty, and allocations from C++
  speed.py OUT --quick                         one program, three rounds
  speed.py OUT --programs --rounds 9           no programs: only torch.empty and C++
  speed.py OUT --programs gpt2 --no-allocations
  speed.py OUT --control                       PyTorch's allocator on both sides: how far apart are equal things?

Each number is the median over the rounds; a round is one process on each allocator, and who is first changes from round to round. The ratio is the median
of the rounds' ratios. Nothing else may run on the machine. Exit codes: 0 every target is met, 1 some are not, 2 something could not be run.
"""

import argparse
import ctypes
import json
import pathlib
import statistics
import subprocess
import sys
import time

import allocators
import programs

PROGRAMS = ("gpt2", "llama", "mask_rcnn")
SIZES = {"512 B": 512, "64 KiB": 1 << 16, "1 MiB": 1 << 20, "8 MiB": 8 << 20, "64 MiB": 64 << 20, "1 GiB": 1 << 30}
# Kind of the loop in raw.cpp, threads, and how many times faster parkade has to be.
RAW = {
    "C++ pairs, 1 thread": (0, 1, 3.0),
    "C++ 32 held, 1 thread": (1, 1, 3.0),
    "C++ pairs, 16 threads, 16 streams": (0, 16, 2.0),
    "C++ 32 held, 16 threads, 16 streams": (1, 16, 2.0),
}


def library_of(out):
    return out.resolve() / "raw" / "parkade_raw.so"


def build(out):
    """Compiles raw.cpp into the folder."""
    from torch.utils import cpp_extension

    source = pathlib.Path(__file__).with_name("raw.cpp")
    folder = library_of(out).parent
    folder.mkdir(parents=True, exist_ok=True)
    command = {"extra_cflags": ["-O2"], "with_cuda": True, "is_python_module": False, "build_directory": str(folder)}
    cpp_extension.load("parkade_raw", [str(source)], **command)


def time_program(name, steps):
    """Milliseconds of a step: the median over three runs of `steps` steps, after one that warms up."""
    import torch

    step, times = programs.load(name).start(), []
    for repeat in range(4):
        torch.cuda.synchronize()
        started = time.perf_counter()
        for index in range(steps):
            step(index)
        torch.cuda.synchronize()
        if repeat:
            times.append((time.perf_counter() - started) / steps * 1e3)
    return {f"{name}, ms a step": statistics.median(times)}


def time_empty(pairs):
    """Nanoseconds of torch.empty and of dropping the tensor, for each size."""
    import torch

    result = {}
    for text, size in SIZES.items():
        times = []
        for repeat in range(6):
            started = time.perf_counter_ns()
            for _ in range(pairs):
                torch.empty(size, dtype=torch.uint8, device="cuda")
            if repeat:
                times.append((time.perf_counter_ns() - started) / pairs)
        result[f"torch.empty {text}, ns a pair"] = statistics.median(times)
    return result


def time_raw(library, pairs):
    """Nanoseconds of one allocation and free from C++; with several threads, of all threads together."""
    import torch

    torch.cuda.init()
    torch.empty(1, device="cuda")
    call = ctypes.CDLL(str(library)).raw_pairs
    call.restype, call.argtypes = ctypes.c_double, [ctypes.c_int, ctypes.c_int, ctypes.c_int64]
    result = {}
    for text, (kind, threads, _) in RAW.items():
        each = max(pairs // threads, 64) // 32 * 32
        times = [call(kind, threads, each) for _ in range(6)][1:]
        if min(times) < 0:
            raise RuntimeError(f"{text}: an allocation failed")
        result[f"{text}, ns a pair"] = statistics.median(times) / (each * threads)
    return result


def one(options):
    """The numbers of one process, as a line of JSON."""
    allocators.choose(options.allocator)
    if options.one == "allocations":
        result = {**time_empty(options.pairs // 10), **time_raw(library_of(options.out), options.pairs)}
    else:
        result = time_program(options.one, options.steps)
    print(json.dumps(result))


def child(options, what, allocator):
    command = [sys.executable, __file__, str(options.out), "--one", what, "--allocator", allocator]
    command += ["--steps", str(options.steps), "--pairs", str(options.pairs)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=allocators.environment(options.setting))
    except subprocess.TimeoutExpired:
        print(f"{what} on {allocator} took more than 300 s", flush=True)
        return {}
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        print(f"{what} on {allocator}: status {done.returncode}: {last}", flush=True)
        return {}
    return json.loads(done.stdout.strip().splitlines()[-1])


def measure(options, things):
    """{thing: [(native, other) of each round]}; processes take turns, and so does who is first."""
    sides, found, failed = ("native", "native" if options.control else "parkade"), {}, 0
    for what in things:
        for turn in range(options.rounds):
            order = (0, 1) if turn % 2 == 0 else (1, 0)
            answers = {}
            for side in order:
                answers[side] = child(options, what, sides[side])
            failed += not (answers[0] and answers[1])
            for key in answers[0]:
                if key in answers[1]:
                    found.setdefault(key, []).append((answers[0][key], answers[1][key]))
        print(f"{what}: {options.rounds} rounds", flush=True)
    return found, failed


def target(thing):
    """The largest ratio of parkade's time to PyTorch's that is good enough."""
    for text, (_, _, faster) in RAW.items():
        if thing.startswith(text):
            return 1 / faster
    # A program's step and torch.empty: no slower, but for what equal things differ by.
    return 1.01


def row(thing, rounds):
    """The medians of both sides, the median ratio, and the range of ratios."""
    ratios = [theirs / ours for ours, theirs in rounds]
    return statistics.median(ours for ours, _ in rounds), statistics.median(theirs for _, theirs in rounds), statistics.median(ratios), min(ratios), max(ratios)


def table(found):
    missed = 0
    print("| what | native | parkade | parkade / native | range | at most | met |\n|---|---|---|---|---|---|---|")
    for thing, rounds in found.items():
        ours, theirs, ratio, low, high = row(thing, rounds)
        met = ratio <= target(thing)
        missed += not met
        print(f"| {thing} | {ours:.4g} | {theirs:.4g} | {ratio:.3f} | {low:.3f} to {high:.3f} | {target(thing):.3f} | {'yes' if met else 'no'} |")
    return missed


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path, metavar="OUT")
    parser.add_argument("--programs", nargs="*", choices=programs.NAMES, default=PROGRAMS, metavar="NAME", help=" ".join(programs.NAMES))
    parser.add_argument("--no-allocations", dest="allocations", action="store_false", help="neither torch.empty nor C++")
    parser.add_argument("--rounds", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--steps", type=int, default=24, help="of each program, in each of four runs (default: %(default)s)")
    parser.add_argument("--pairs", type=int, default=1_000_000, help="allocations from C++ in each run (default: %(default)s)")
    parser.add_argument("--setting", default="", help="PYTORCH_CUDA_ALLOC_CONF of both sides (default: empty)")
    parser.add_argument("--quick", action="store_true", help="gpt2 and the allocations, three rounds")
    parser.add_argument("--control", action="store_true", help="PyTorch's allocator on both sides")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--allocator", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if min(options.rounds, options.steps, options.pairs) < 1:
        parser.error("--rounds, --steps and --pairs must be at least 1")
    if options.quick:
        options.programs, options.rounds = ["gpt2"], 3
    return parser, options


def main():
    parser, options = arguments()
    if options.one:
        one(options)
        return 0
    allocators.need_torch(parser)
    if not options.control:
        allocators.need_parkade(parser)
    options.out.mkdir(parents=True, exist_ok=True)
    things = list(options.programs)
    if options.allocations:
        # In a child: this process stays free of CUDA, and a failure is one line.
        code = f"import pathlib, speed; speed.build(pathlib.Path({str(options.out)!r}))"
        built = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=allocators.environment(PYTHONPATH=pathlib.Path(__file__).resolve().parent))
        if built.returncode:
            (options.out / "raw.log").write_text(built.stdout + built.stderr)
            print("raw.cpp does not build: raw.log in OUT says why", flush=True)
            return 2
        things.insert(0, "allocations")
    found, failed = measure(options, things)
    (options.out / "speed.json").write_text(json.dumps(found, indent=1))
    missed = table(found)
    return 2 if failed else int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
