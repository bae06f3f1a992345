#!/usr/bin/env python3
"""Finds the largest batch that fits in the same memory, and the least memory for the same batch, under PyTorch's default allocator, its expandable segments, and
a policy of parkade.

  largest.py OUT                               six programs
  largest.py OUT --programs gpt2 llama --limit 16GiB
  largest.py OUT --policy pytorch              another policy of parkade
  largest.py OUT --no-times --no-least         only the batches and the losses
  largest.py OUT --quick                       one program, few steps

A batch fits if `--steps` steps do not run out of memory in a new process that may reserve `--limit` bytes. Then the largest batch of the policy is run on
PyTorch's allocator with all of the GPU's memory: the losses must be the same bits. The least memory is that of the largest batch that fits under all three, to
0.5 % of what its tensors take. Last, steps are timed alone at this batch, with plenty of memory and with the limit. Exit codes: 0 the policy's batches are the largest and the losses the same, 1 not so, 2 something could not be run.
"""

import argparse
import concurrent.futures
import json
import multiprocessing
import pathlib
import statistics
import sys
import time

import allocators
import programs

SIDES = ("default", "expandable", "policy")
# What a process may reserve, unless --limit says otherwise: together less than the GPU has.
LIMITS = {"gpt2": "24GiB", "llama": "24GiB", "mask_rcnn": "24GiB", "generate": "16GiB", "compile_reduce_overhead": "1GiB", "streams": "4GiB"}
# The least memory is found to one part in this many of what the tensors take.
PRECISION = 200
UNITS = {"MiB": 1 << 20, "GiB": 1 << 30}
PRELOADED = ["torch", "torchvision", "transformers.models.gpt2.modeling_gpt2", "transformers.models.llama.modeling_llama"]


def attempt(job, answer):
    """Runs a program in this process and sends a dictionary: whether it fits, the losses, milliseconds of a step, the peaks."""
    programs.settle()
    allocators.choose("parkade" if job["side"] == "policy" else "native", job["policy"])
    import torch

    if job["side"] == "expandable":
        torch.cuda.memory._set_allocator_settings("expandable_segments:True")
    if job["limit_bytes"]:
        torch.cuda.set_per_process_memory_fraction(job["limit_bytes"] / torch.cuda.get_device_properties(0).total_memory)
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
        result.update(allocated_bytes=stats["allocated_bytes.all.peak"], reserved_bytes=stats["reserved_bytes.all.peak"])
    except torch.OutOfMemoryError as error:
        result["error"] = str(error).split(". ")[0]
    except Exception as error:  # a compiler may wrap it; whatever else ends a program is reported
        result["error"], result["failed"] = f"{type(error).__name__}: {error}"[:300], "out of memory" not in str(error)
    answer.send(result)


class Runner:
    """Runs attempts in processes of their own, forked from one that has imported PyTorch and has not used CUDA."""

    def __init__(self, options):
        self.options, self.log = options, []
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(PRELOADED)

    def run(self, program, side, count, limit_bytes, repeats=0):
        job = {"program": program, "side": side, "count": count, "limit_bytes": limit_bytes, "repeats": repeats}
        job.update(steps=self.options.steps, policy=self.options.policy)
        mine, theirs = self.context.Pipe(duplex=False)
        process = self.context.Process(target=attempt, args=(job, theirs))
        process.start()
        theirs.close()
        result = {"fits": False, "failed": True, "error": "no answer: the process died"}
        try:
            if mine.poll(self.options.seconds):
                result = mine.recv()
            else:
                result["error"] = f"no answer in {self.options.seconds} s"
        except EOFError:
            pass
        process.join(5)
        if process.is_alive():
            process.kill()
            process.join()
        self.log.append({**job, **result})
        return result

    def keep(self):
        """Writes what was run so far."""
        (self.options.out / "largest.json").write_text(json.dumps(list(self.log), indent=1))


def largest(fits, start):
    """The largest count that fits, 0 if none does: from `start` in growing strides to a count of each kind, then between them. `fits` is asked for counts from 1."""
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
    """The least of `low`, `low + step` and so on below `high` that fits, by bisection; `high` is known to fit."""
    low -= step
    while high - low > step:
        place = low + max((high - low) // step // 2, 1) * step
        if fits(place):
            high = place
        else:
            low = place
    return high


def guess(runner, program):
    """About the largest batch whose tensors alone fit, from two small ones."""
    small, large = runner.options.probe
    first, second = (runner.run(program, "default", count, 0) for count in (small, large))
    if not (first["fits"] and second["fits"]):
        return None
    each = (second["allocated_bytes"] - first["allocated_bytes"]) / (large - small)
    return max(int((limit_of(runner.options, program) - first["allocated_bytes"]) / max(each, 1)) + small, 1)


def search(runner, program):
    """{side: the largest batch that fits}, or a text that says what failed."""
    start = guess(runner, program)
    if start is None:
        return runner.log[-1].get("error", "does not run")
    found = {}
    for side in SIDES:

        def fits(count):
            result = runner.run(program, side, count, limit_of(runner.options, program))
            if result.get("failed"):
                raise RuntimeError(f"{side}, batch {count}: {result['error']}")
            return result["fits"]

        try:
            found[side] = largest(fits, start)
        except RuntimeError as error:
            return str(error)
        start = found[side] or start
    return found


def same_losses(runner, program, count):
    """Whether the policy's losses in the limit are PyTorch's with all of the memory."""
    short = runner.run(program, "policy", count, limit_of(runner.options, program))
    free = runner.run(program, "default", count, 0)
    return short["fits"] and free["fits"] and short["losses"] == free["losses"]


def least_memory(runner, program, count):
    """{side: the least memory over what the tensors take}, and that in bytes."""
    free = {side: runner.run(program, side, count, 0) for side in SIDES}
    if not all(result["fits"] for result in free.values()):
        return {}, 0
    load = min(result["allocated_bytes"] for result in free.values())
    found = {}
    for side in SIDES:

        def fits(limit_bytes):
            return runner.run(program, side, count, limit_bytes)["fits"]

        step = max(load // PRECISION, 2 << 20)
        found[side] = least(fits, load, max(free[side]["reserved_bytes"], limit_of(runner.options, program)) + step, step) / load
    return found, load


def timed(runner, program, count):
    """{(side, has plenty): (median milliseconds of a step, retries)}; processes take turns."""
    times, retries = {}, {}
    for turn in range(runner.options.rounds):
        for side in SIDES if turn % 2 == 0 else reversed(SIDES):
            for plenty in (True, False):
                result = runner.run(program, side, count, 0 if plenty else limit_of(runner.options, program), repeats=2)
                if result["fits"]:
                    times.setdefault((side, plenty), []).append(result["ms"])
                    retries[side, plenty] = result["retries"]
    return {key: (statistics.median(values), retries[key]) for key, values in times.items()}


def limit_of(options, program):
    """The bytes that a program may reserve."""
    return options.limit_bytes or size(LIMITS[program])


def size(text):
    number, unit = text[:-3], text[-3:]
    if unit not in UNITS or not number.isdigit() or int(number) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no size: write it as 8GiB or 700MiB")
    return int(number) * UNITS[unit]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path, metavar="OUT")
    names = programs.COUNTED
    parser.add_argument("--programs", nargs="+", choices=names, default=names, metavar="NAME", help=" ".join(names))
    parser.add_argument("--policy", default="floating-handles", help="of parkade (default: %(default)s)")
    parser.add_argument("--limit", type=size, dest="limit_bytes", metavar="SIZE", help=f"what a process may reserve (default: {', '.join(' '.join(item) for item in LIMITS.items())})")
    parser.add_argument("--steps", type=int, default=12, help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=3, help="of timing (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=6, help="programs at the same time, but for timing (default: %(default)s)")
    parser.add_argument("--seconds", type=int, default=120, help="for one process (default: %(default)s)")
    parser.add_argument("--probe", type=int, nargs=2, default=(2, 4), metavar="COUNT", help="two small batches to begin with (default: 2 4)")
    parser.add_argument("--no-least", dest="least", action="store_false", help="no least memory")
    parser.add_argument("--no-times", dest="times", action="store_false", help="no timing")
    parser.add_argument("--quick", action="store_true", help="gpt2, eight steps, only the batches")
    options = parser.parse_args()
    if min(options.steps, options.rounds, options.jobs, options.seconds, *options.probe) < 1 or options.probe[0] >= options.probe[1]:
        parser.error("numbers must be at least 1, and the second batch of --probe larger than the first")
    if options.quick:
        options.programs, options.steps, options.times, options.least = ("gpt2",), 8, False, False
    return parser, options


def main():
    parser, options = arguments()
    allocators.need_torch(parser)
    allocators.need_parkade(parser)
    options.out.mkdir(parents=True, exist_ok=True)
    runner, bad, failed = Runner(options), 0, 0
    print(f"| program | largest batch: default | expandable | {options.policy} | the same losses | least memory: default | expandable | {options.policy} | tensors, bytes |", flush=True)
    print("|---|--:|--:|--:|---|--:|--:|--:|--:|", flush=True)
    found = {}
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:

        def one(program):
            counts = search(runner, program)
            if isinstance(counts, str):
                return counts, False, ({}, 0)
            same = counts["policy"] > 0 and same_losses(runner, program, counts["policy"])
            count = min(counts.values())
            return counts, same, least_memory(runner, program, count) if options.least and count else ({}, 0)

        for program, (counts, same, (memory, load)) in zip(options.programs, pool.map(one, options.programs)):
            if isinstance(counts, str):
                failed += 1
                print(f"| {program} | {counts} |", flush=True)
                continue
            found[program] = counts
            bad += not same or counts["policy"] < max(counts.values())
            cells = [str(counts[side]) for side in SIDES] + ["yes" if same else "no"]
            cells += [f"{memory[side]:.3f}" if side in memory else "" for side in SIDES] + [str(load) if load else ""]
            print(f"| {program} | {' | '.join(cells)} |", flush=True)
            runner.keep()
    if options.times:
        print("\n| program | batch | memory | default, ms a step (retries) | expandable | policy |\n|---|--:|---|--:|--:|--:|", flush=True)
        for program, counts in found.items():
            count = min(counts.values())
            result = timed(runner, program, count) if count else {}
            for plenty in (True, False):
                cells = [result.get((side, plenty)) for side in SIDES]
                shown = " | ".join(f"{cell[0]:.1f} ({cell[1]})" if cell else "" for cell in cells)
                print(f"| {program} | {count} | {'plenty' if plenty else 'limit'} | {shown} |", flush=True)
            runner.keep()
    return 2 if failed else int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
