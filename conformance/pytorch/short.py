#!/usr/bin/env python3
"""Runs a program in slightly more memory than its tensors take, under PyTorch's expandable segments and parkade's policies, and compares its losses.

  short.py gpt2 4                                         4 items per batch, in 1.005, 1.01 and 1.02 times the peak of its tensors
  short.py llama 3 --times 1.004 1.006 --policies pytorch-rescue breaking-handles

The peak and the losses are those of PyTorch's default allocator with all of the GPU's memory. Every run is a separate process. Exit codes: 0 wherever
expandable segments complete, the first policy does too, with the same losses; 1 it does not; 2 something could not be run.
"""

import argparse
import json
import math
import subprocess
import sys
import time

import allocators
import largest
import programs

# Allocators reserve entire pages. A limit is half a page higher, because PyTorch takes it as a fraction, which is rounded.
PAGE_BYTES = 2 << 20


def attempt(options):
    """Runs the program in this process. Returns a dictionary: how it ended, its losses, its peaks, the mean time of its later steps."""
    programs.settle()
    allocators.choose("native" if options.side in largest.NATIVE else "parkade", options.side)
    import torch

    if options.side == "expandable":
        torch.cuda.memory._set_allocator_settings("expandable_segments:True")
    if options.limit:
        torch.cuda.set_per_process_memory_fraction(options.limit / torch.cuda.get_device_properties(0).total_memory)
    losses, times, ending = [], [], "completes"
    try:
        step = programs.load(options.program).start(options.count)
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


def run(options, side, limit_bytes):
    command = [
        sys.executable,
        __file__,
        options.program,
        str(options.count),
        "--steps",
        str(options.steps),
        "--side",
        side,
        "--limit",
        str(limit_bytes),
    ]
    child = subprocess.run(command, capture_output=True, text=True)
    if child.returncode:
        raise RuntimeError(f"{side}: {(child.stderr.strip().splitlines() or ['no message'])[-1]}")
    return json.loads(child.stdout.strip().splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", choices=programs.COUNTED, metavar="NAME", help=" ".join(programs.COUNTED))
    parser.add_argument("count", type=int, help="number of items in a batch")
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
    parser.add_argument("--side", help=argparse.SUPPRESS)
    parser.add_argument("--limit", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if min(options.count, options.steps) < 1 or min(options.times) < 1:
        parser.error("the count and --steps must be at least 1, and --times at least 1.0")
    if options.side:
        print(json.dumps(attempt(options)))
        return 0
    try:
        # torch.compile's trials take memory too, and their results are kept on disk, so the second run is like the following ones.
        run(options, "default", 0)
        free = run(options, "default", 0)
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 2
    if free["ending"] != "completes":
        print(
            f"{options.program} with batch {options.count} ends with {free['ending']} even with all of the GPU's memory: try a smaller batch",
            file=sys.stderr,
        )
        return 2
    print(
        "| program | times its tensors | policy | ending | same losses | reserved, MiB | retries | rescues | ms a step |\n|---|--:|---|---|---|--:|--:|--:|--:|"
    )
    is_good = True
    for times in options.times:
        limit_bytes = math.ceil(free["allocated"] * times / PAGE_BYTES) * PAGE_BYTES + PAGE_BYTES // 2
        completes = {}
        for side in ["expandable", *options.policies]:
            try:
                found = run(options, side, limit_bytes)
            except RuntimeError as error:
                print(error, file=sys.stderr)
                return 2
            completes[side] = found["ending"] == "completes" and found["losses"] == free["losses"]
            same = "yes" if found["losses"] == free["losses"] else "no"
            cells = [f"{options.program}, {options.count}", f"{times:g}", side, found["ending"], same]
            print(
                "| "
                + " | ".join(
                    [
                        *cells,
                        str(found["reserved"] >> 20),
                        str(found["retries"]),
                        str(found["rescues"]),
                        f"{found['ms']:.1f}",
                    ]
                )
                + " |",
                flush=True,
            )
        is_good &= completes[options.policies[0]] or not completes["expandable"]
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
