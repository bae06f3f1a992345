#!/usr/bin/env python3
"""Runs a program in slightly more memory than its tensors take, under PyTorch's expandable segments and parkade's policies, and compares its losses.

  short.py gpt2 4                                         4 items per batch, in 1.005, 1.01 and 1.02 times the peak of its tensors
  short.py llama 3 --times 1.004 1.006 --policies pytorch-rescue compaction
  short.py gpt2 4 llama 3 t5 6 --jobs 3                   three programs at the same time
  short.py ranks_fsdp 2                                   one process on each of two GPUs

The peak and the losses are those of PyTorch's default allocator with all of the GPU's memory, which runs twice: losses that vary from run to run are
not compared. Every run is a separate process, or one on each of two GPUs. Exit codes: 0 wherever expandable segments complete, the first policy does too, with
the same losses; 1 it does not; 2 something could not be run.
"""

import argparse
import concurrent.futures
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import allocators
import largest
import programs

# Allocators reserve entire pages. A limit is half a page higher, because PyTorch takes it as a fraction, which is rounded.
PAGE_BYTES = 2 << 20
NAMES = (*programs.COUNTED, *programs.ON_RANKS)


def attempt(options):
    """Runs the program in this process. Returns a dictionary: how it ended, its losses, its peaks, the mean time of its later steps."""
    programs.settle()
    allocators.choose("native" if options.side in largest.NATIVE else "parkade", options.side)
    import torch

    if options.side == "expandable":
        torch.cuda.memory._set_allocator_settings("expandable_segments:True")
    torch.cuda.set_device(int(os.environ["RANK"]))
    if options.limit:
        torch.cuda.set_per_process_memory_fraction(options.limit / torch.cuda.get_device_properties(0).total_memory)
    losses, times, ending = [], [], "completes"
    try:
        (name, count), *_ = options.pairs
        step = programs.load(name).start(count)
        for index in range(options.steps):
            torch.cuda.synchronize()
            started = time.perf_counter()
            losses.append(float(step(index)).hex())
            torch.cuda.synchronize()
            times.append((time.perf_counter() - started) * 1e3)
    except torch.OutOfMemoryError:
        ending = "out of memory"
    stats = torch.cuda.memory_stats()
    later = times[options.steps // 2 :] or [0.0]
    peaks = {kind: stats[f"{kind}_bytes.all.peak"] for kind in ("allocated", "reserved")}
    return {
        "ending": ending,
        "losses": losses,
        **peaks,
        "retries": stats["num_alloc_retries"],
        "rescues": stats.get("parkade_rescues", 0),
        "ms": sum(later) / len(later),
    }


def run(options, name, count, side, limit_bytes):
    """Runs a program in new processes, one for each rank. Returns what `attempt` returned, with the largest peaks of all ranks."""
    command = [sys.executable, __file__, name, str(count), "--steps", str(options.steps), "--side", side]
    command += ["--limit", str(limit_bytes)]
    world, pipe = 2 if name in programs.ON_RANKS else 1, subprocess.PIPE
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(world) as pool:
        more = {"WORLD_SIZE": world, "PARKADE_MEETING": pathlib.Path(folder) / "meeting"}
        environments = [allocators.environment(RANK=rank, **more) for rank in range(world)]
        children = [subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=env) for env in environments]
        ended = []

        def wait(child):
            try:
                said, errors = child.communicate(timeout=options.seconds)
            except subprocess.TimeoutExpired:
                child.kill()
                said, errors = child.communicate()[0], f"no answer in {options.seconds} s"
            fails = {"ending": "fails", "error": errors}
            ended.append(fails if child.returncode else json.loads(said.strip().splitlines()[-1]))
            if ended[-1]["ending"] != "completes":
                # The other ranks wait for this one.
                for other in children:
                    other.kill()

        list(pool.map(wait, children))
    # A rank may fail because a different one ran out of memory. Of those that fail, the first one is the cause.
    ended.sort(key=lambda each: ("out of memory", "fails", "completes").index(each["ending"]))
    if "error" in ended[0]:
        raise RuntimeError(f"{name}, {side}: {(ended[0]['error'].strip().splitlines() or ['no message'])[-1]}")
    most = ("allocated", "reserved", "retries", "rescues")
    return {**ended[0], **{key: max(each.get(key, 0) for each in ended) for key in most}}


def compare(options, name, count):
    """Runs a program under each limit and prints a row for each run. Returns the exit code."""
    # torch.compile's trials take memory too, and their results are kept on disk, so the second run is like the following ones.
    first, free = (run(options, name, count, "default", 0) for _ in range(2))
    if free["ending"] != "completes":
        raise RuntimeError(
            f"{name} with batch {count} runs {free['ending']} with all of the GPU's memory: try a smaller batch"
        )
    code = 0
    for times in options.times:
        limit_bytes = math.ceil(free["allocated"] * times / PAGE_BYTES) * PAGE_BYTES + PAGE_BYTES // 2
        completes = {}
        for side in ["expandable", *options.policies]:
            found = run(options, name, count, side, limit_bytes)
            same = "yes" if found["losses"] == free["losses"] else "no"
            if first["losses"] != free["losses"]:
                same = "vary"
            completes[side] = found["ending"] == "completes" and same != "no"
            cells = [f"{name}, {count}", f"{times:g}", side, found["ending"], same, str(found["reserved"] >> 20)]
            cells += [str(found["retries"]), str(found["rescues"]), f"{found['ms']:.1f}"]
            print(f"| {' | '.join(cells)} |", flush=True)
        if completes["expandable"] and not completes[options.policies[0]]:
            code = 1
    return code


def pairs(words):
    """Returns the programs and their batch sizes, which take turns in `words`."""
    names, counts = words[::2], words[1::2]
    if len(names) != len(counts) or not all(count.isdigit() and int(count) for count in counts):
        raise ValueError("a batch size of at least 1 must follow each program: gpt2 4 llama 3")
    for name in names:
        if name not in NAMES:
            raise ValueError(f"there is no program {name!r}: choose from {' '.join(NAMES)}")
    return list(zip(names, map(int, counts)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "pairs", nargs="+", metavar="NAME COUNT", help=f"a program and its items a batch: {' '.join(NAMES)}"
    )
    parser.add_argument(
        "--times",
        type=float,
        nargs="+",
        default=[1.005, 1.01, 1.02],
        help="memory limits, as multiples of the peak of the tensors (default: %(default)s)",
    )
    parser.add_argument(
        "--policies",
        nargs="+",
        default=["pytorch-rescue"],
        metavar="NAME",
        help="parkade's policies (default: %(default)s)",
    )
    parser.add_argument("--steps", type=int, default=12, help="default: %(default)s")
    parser.add_argument(
        "--jobs",
        type=int,
        default=1,
        help="programs at the same time; step times mean something only with 1 (default: %(default)s)",
    )
    parser.add_argument("--seconds", type=int, default=600, help="for one run (default: %(default)s)")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    parser.add_argument("--limit", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    try:
        options.pairs = pairs(options.pairs)
    except ValueError as error:
        parser.error(str(error))
    if min(options.steps, options.jobs, options.seconds) < 1 or min(options.times) < 1:
        parser.error("--steps, --jobs and --seconds must be at least 1, and --times at least 1.0")
    if options.side:
        print(json.dumps(attempt(options)), flush=True)
        # NCCL would wait at exit for ranks that no longer run.
        os._exit(0)
    header = ["program", "times its tensors", "policy", "ending", "same losses", "reserved, MiB", "retries", "rescues"]
    print(f"| {' | '.join(header)} | ms a step |\n|---|--:|---|---|---|--:|--:|--:|--:|", flush=True)
    codes = set()
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for row in [pool.submit(compare, options, *pair) for pair in options.pairs]:
            try:
                codes.add(row.result())
            except RuntimeError as error:
                print(error, file=sys.stderr, flush=True)
                codes.add(2)
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
