#!/usr/bin/env python3
"""Finds the largest batch that fits in the same memory, and the smallest memory for the same batch, under PyTorch's default allocator, its expandable segments,
and parkade's policies.

  largest.py OUT                               all programs
  largest.py OUT --programs gpt2 llama --limit 16GiB
  largest.py OUT --policies pytorch            other parkade policies
  largest.py OUT --no-times --no-least         only the batches and the losses
  largest.py OUT --quick                       one program, few steps

A batch fits if `--steps` steps do not run out of memory in a new process that may reserve `--limit` bytes. Then the largest batch of each policy is run on
PyTorch's allocator with all of the GPU's memory: the losses must be identical bit for bit. The smallest memory is searched for the largest batch that fits under
all of them, to within 0.5 % of what its tensors take. Finally, steps are timed at this batch, one process at a time, with plenty of memory and with the limit.
Except for timing, as many processes run at the same time as `--together` bytes and `--jobs` allow. Exit codes: 0 the first policy's batches are the largest and
its losses are the same, 1 they are not, 2 something could not be run.
"""

import argparse
import concurrent.futures
import contextlib
import json
import multiprocessing
import pathlib
import statistics
import sys
import threading
import time

import allocators
import programs

NATIVE = ("default", "expandable")
# The most that a process may reserve, unless --limit sets another value.
LIMITS = {"gpt2": "12GiB", "llama": "12GiB", "mask_rcnn": "12GiB", "compile_reduce_overhead": "1GiB", "streams": "4GiB"}
USUAL_LIMIT = "8GiB"
# The memory that a process takes from the GPU besides what it reserves: CUDA's context and kernels.
CONTEXT = 1 << 30
# The smallest memory is found to within this fraction (1 / N) of what the tensors take.
PRECISION = 200
UNITS = {"MiB": 1 << 20, "GiB": 1 << 30}
PRELOADED = [
    "torch",
    "torchvision",
    "transformers.models.gpt2.modeling_gpt2",
    "transformers.models.llama.modeling_llama",
]


def attempt(job, answer):
    """Runs a program in this process and sends a dictionary: whether it fits, the losses, milliseconds of a step, the peaks."""
    programs.settle()
    allocators.choose("native" if job["side"] in NATIVE else "parkade", job["side"])
    import torch

    if job["side"] == "expandable":
        torch.cuda.memory._set_allocator_settings("expandable_segments:True")
    if job["limit_bytes"]:
        torch.cuda.set_per_process_memory_fraction(
            job["limit_bytes"] / torch.cuda.get_device_properties(0).total_memory
        )
    result = {"fits": False, "losses": []}
    try:
        step = programs.load(job["program"]).start(job["count"])
        for index in range(job["steps"]):
            result["losses"].append(float(step(index)).hex())
        times = []
        for _ in range(job["repeats"]):
            torch.cuda.synchronize()
            started = time.perf_counter()
            for index in range(job["steps"]):
                step(index)
            torch.cuda.synchronize()
            times.append((time.perf_counter() - started) / job["steps"] * 1e3)
        stats = torch.cuda.memory_stats()
        result.update(fits=True, ms=min(times, default=0), retries=stats["num_alloc_retries"])
        result.update(
            allocated_bytes=stats["allocated_bytes.all.peak"], reserved_bytes=stats["reserved_bytes.all.peak"]
        )
    except torch.OutOfMemoryError as error:
        result["error"] = str(error).split(". ")[0]
    except Exception as error:  # a compiler may wrap the error; any other error is reported
        result["error"], result["failed"] = f"{type(error).__name__}: {error}"[:300], "out of memory" not in str(error)
    answer.send(result)


class Gate:
    """Admits as many attempts as there are bytes for; an attempt that needs more than all of them runs alone."""

    def __init__(self, total_bytes):
        self.total_bytes, self.used_bytes, self.changed = total_bytes, 0, threading.Condition()

    @contextlib.contextmanager
    def entered(self, wanted_bytes):
        with self.changed:
            self.changed.wait_for(lambda: self.used_bytes == 0 or self.used_bytes + wanted_bytes <= self.total_bytes)
            self.used_bytes += wanted_bytes
        try:
            yield
        finally:
            with self.changed:
                self.used_bytes -= wanted_bytes
                self.changed.notify_all()


class Runner:
    """Runs attempts in separate processes, forked from one that has imported PyTorch and has not used CUDA."""

    def __init__(self, options):
        self.options, self.log, self.gate, self.jobs = (
            options,
            [],
            Gate(options.together_bytes),
            threading.Semaphore(options.jobs),
        )
        self.sides = (*NATIVE, *options.policies)
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(PRELOADED)

    def run(self, program, side, count, limit_bytes, repeats=0):
        job = {
            "program": program,
            "side": side,
            "count": count,
            "limit_bytes": limit_bytes,
            "repeats": repeats,
            "steps": self.options.steps,
        }
        # Without a limit the default allocator rarely takes more than one and a half times as much.
        wanted = (limit_bytes or limit_of(self.options, program) * 3 // 2) + CONTEXT
        with self.jobs, self.gate.entered(wanted):
            return self.carry_out(job)

    def carry_out(self, job):
        mine, theirs = self.context.Pipe(duplex=False)
        process = self.context.Process(target=attempt, args=(job, theirs))
        process.start()
        theirs.close()
        result = {"fits": False, "failed": True, "error": "the process died without an answer"}
        try:
            if mine.poll(self.options.seconds):
                result = mine.recv()
            else:
                result["error"] = f"there was no answer within {self.options.seconds} s"
        except EOFError:
            pass
        process.join(5)
        if process.is_alive():
            process.kill()
            process.join()
        self.log.append({**job, **result})
        return result

    def keep(self):
        """Writes the results so far."""
        (self.options.out / "largest.json").write_text(json.dumps(list(self.log), indent=1))


def largest(fits, start):
    """Returns the largest count that fits, or 0 if none does: from `start` in growing strides to a count of each kind, then between them. `fits` is asked for counts from 1."""
    low, high, stride, place = 0, None, 1, max(start, 1)
    while high is None or high - low > 1:
        if fits(place):
            low = max(low, place)
        else:
            high = place
        if high is None:
            place = low + stride
        elif low == 0 and high > 1:
            place = max(high - stride, 1)
        else:
            place = (low + high) // 2
        stride *= 2
        if high is not None and high <= 1:
            return 0
    return low


def least(fits, low, high, step):
    """Returns the least of `low`, `low + step` and so on below `high` that fits, by bisection; `high` is known to fit."""
    low -= step
    while high - low > step:
        place = low + max((high - low) // step // 2, 1) * step
        if fits(place):
            high = place
        else:
            low = place
    return high


def guess(runner, program):
    """Estimates, from two small batches, the largest batch whose tensors fit."""
    small, large = runner.options.probe
    first, second = (runner.run(program, "default", count, 0) for count in (small, large))
    if not (first["fits"] and second["fits"]):
        return None
    each = (second["allocated_bytes"] - first["allocated_bytes"]) / (large - small)
    return max(int((limit_of(runner.options, program) - first["allocated_bytes"]) / max(each, 1)) + small, 1)


def search(runner, program):
    """Returns {side: the largest batch that fits}, or a text that says what failed."""
    start = guess(runner, program)
    if start is None:
        return runner.log[-1].get("error", "does not run")

    def largest_of(side):
        def fits(count):
            result = runner.run(program, side, count, limit_of(runner.options, program))
            if result.get("failed"):
                raise RuntimeError(f"{side}, batch {count}: {result['error']}")
            return result["fits"]

        return largest(fits, start)

    try:
        found = {"default": largest_of("default")}
        start = found["default"] or start
        found.update(zip(runner.sides[1:], at_once(largest_of, runner.sides[1:])))
    except RuntimeError as error:
        return str(error)
    return found


def same_losses(runner, program, counts):
    """Returns {policy: whether its losses under the limit equal PyTorch's with all of the memory}."""

    def same(policy):
        short = runner.run(program, policy, counts[policy], limit_of(runner.options, program))
        free = runner.run(program, "default", counts[policy], 0)
        return short["fits"] and free["fits"] and short["losses"] == free["losses"]

    return dict(zip(runner.options.policies, at_once(same, runner.options.policies)))


def at_once(ask, sides):
    """Returns the answers for all sides, which run at the same time."""
    with concurrent.futures.ThreadPoolExecutor(len(sides)) as pool:
        return list(pool.map(ask, sides))


def least_memory(runner, program, count):
    """Returns {side: the smallest memory divided by what the tensors take}, and that memory in bytes."""
    free = dict(zip(runner.sides, at_once(lambda side: runner.run(program, side, count, 0), runner.sides)))
    if not all(result["fits"] for result in free.values()):
        return {}, 0
    load = min(result["allocated_bytes"] for result in free.values())
    step = max(load // PRECISION, 2 << 20)

    def least_of(side):
        def fits(limit_bytes):
            return runner.run(program, side, count, limit_bytes)["fits"]

        return (
            least(fits, load, max(free[side]["reserved_bytes"], limit_of(runner.options, program)) + step, step) / load
        )

    return dict(zip(runner.sides, at_once(least_of, runner.sides))), load


def timed(runner, program, count):
    """Returns {(side, has plenty): (median milliseconds per step, retries)}; the processes take turns."""
    times, retries = {}, {}
    for turn in range(runner.options.rounds):
        for side in runner.sides if turn % 2 == 0 else reversed(runner.sides):
            for plenty in (True, False):
                result = runner.run(program, side, count, 0 if plenty else limit_of(runner.options, program), repeats=2)
                if result["fits"]:
                    times.setdefault((side, plenty), []).append(result["ms"])
                    retries[side, plenty] = result["retries"]
    return {key: (statistics.median(values), retries[key]) for key, values in times.items()}


def limit_of(options, program):
    """Returns the bytes that a program may reserve."""
    return options.limit_bytes or size(LIMITS.get(program, USUAL_LIMIT))


def size(text):
    number, unit = text[:-3], text[-3:]
    if unit not in UNITS or not number.isdigit() or int(number) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size: write it like 8GiB or 700MiB")
    return int(number) * UNITS[unit]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path, metavar="OUT")
    names = programs.COUNTED
    parser.add_argument("--programs", nargs="+", choices=names, default=names, metavar="NAME", help=" ".join(names))
    parser.add_argument(
        "--policies",
        nargs="+",
        default=["pytorch-rescue:reach=free"],
        metavar="NAME",
        help="parkade's policies (default: pytorch-rescue:reach=free)",
    )
    parser.add_argument(
        "--limit",
        type=size,
        dest="limit_bytes",
        metavar="SIZE",
        help=f"the memory that a process may reserve (default: {', '.join(' '.join(item) for item in LIMITS.items())}, others {USUAL_LIMIT})",
    )
    parser.add_argument(
        "--together",
        type=size,
        default="120GiB",
        dest="together_bytes",
        metavar="SIZE",
        help="the GPU memory for processes that run at the same time (default: %(default)s)",
    )
    parser.add_argument("--steps", type=int, default=12, help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=3, help="timing rounds (default: %(default)s)")
    parser.add_argument(
        "--jobs",
        type=int,
        default=6,
        help="processes that run at the same time, except for timing (default: %(default)s)",
    )
    parser.add_argument("--seconds", type=int, default=120, help="time limit for one process (default: %(default)s)")
    parser.add_argument(
        "--probe",
        type=int,
        nargs=2,
        default=(2, 4),
        metavar="COUNT",
        help="two small batches to start with (default: 2 4)",
    )
    parser.add_argument("--no-least", dest="least", action="store_false", help="do not search for the least memory")
    parser.add_argument("--no-times", dest="times", action="store_false", help="do not measure times")
    parser.add_argument("--quick", action="store_true", help="search only for gpt2's largest batch, with eight steps")
    options = parser.parse_args()
    if (
        min(options.steps, options.rounds, options.jobs, options.seconds, *options.probe) < 1
        or options.probe[0] >= options.probe[1]
    ):
        parser.error("numbers must be at least 1, and the second batch of --probe must be larger than the first")
    if options.quick:
        options.programs, options.steps, options.times, options.least = ("gpt2",), 8, False, False
    return parser, options


def main():
    parser, options = arguments()
    allocators.need_torch(parser)
    allocators.need_parkade(parser)
    options.out.mkdir(parents=True, exist_ok=True)
    runner, bad, failed = Runner(options), 0, 0
    sides, policies = runner.sides, options.policies
    header = [
        "program",
        "limit",
        *(f"batch: {side}" for side in sides),
        *(f"same losses: {policy}" for policy in policies),
    ]
    header += [f"least memory: {side}" for side in sides] + ["tensors, bytes"]
    print(f"| {' | '.join(header)} |\n|{'---|' * len(header)}", flush=True)
    found = {}
    with concurrent.futures.ThreadPoolExecutor(len(options.programs)) as pool:

        def one(program):
            counts = search(runner, program)
            if isinstance(counts, str):
                return program, counts, {}, ({}, 0)
            same = same_losses(runner, program, counts) if all(counts[policy] for policy in policies) else {}
            count = min(counts.values())
            return program, counts, same, least_memory(runner, program, count) if options.least and count else ({}, 0)

        for done in concurrent.futures.as_completed([pool.submit(one, program) for program in options.programs]):
            program, counts, same, (memory, load) = done.result()
            if isinstance(counts, str):
                failed += 1
                print(f"| {program} | {counts} |", flush=True)
                continue
            found[program] = counts
            bad += not same.get(policies[0]) or counts[policies[0]] < max(counts.values())
            cells = [str(counts[side]) for side in sides] + ["yes" if same.get(policy) else "no" for policy in policies]
            cells += [f"{memory[side]:.3f}" if side in memory else "" for side in sides] + [str(load) if load else ""]
            print(f"| {program} | {limit_of(options, program) >> 20} MiB | {' | '.join(cells)} |", flush=True)
            runner.keep()
    if options.times:
        print(f"\n| program | batch | memory | {' | '.join(sides)} |\n|---|--:|---|{'--:|' * len(sides)}", flush=True)
        for program, counts in found.items():
            count = min(counts.values())
            result = timed(runner, program, count) if count else {}
            for plenty in (True, False):
                cells = [result.get((side, plenty)) for side in sides]
                shown = " | ".join(f"{cell[0]:.1f} ms ({cell[1]} retries)" if cell else "" for cell in cells)
                print(f"| {program} | {count} | {'plenty' if plenty else 'limit'} | {shown} |", flush=True)
            runner.keep()
    return 2 if failed else int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
