#!/usr/bin/env python3
"""Runs a script from standard input through the real allocator and prints the answers for a person, one line per operation.

show.py [--settings STRING] [--bytes N] [--release 2.11.0] [--oracle PROGRAM] < script
"""

import argparse
import itertools
import json
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "differential"))
from releases import built_oracle, release

QUIET_CALLS = ("cudaGetDeviceProperties", "cuMemSetAccess")
EXTRA = ("freed", "allocd", "largest", "fraction", "n", "sizes", "size", "noop", "used")


def summary(calls):
    """Describes driver calls in words; for a sequence of equal calls, the first one and their number."""
    shown = []
    for (name, result), row in itertools.groupby(
        (call for call in calls if call[0] not in QUIET_CALLS), key=lambda call: call[:2]
    ):
        first, *others = row
        shown.append(f"{name}({','.join(map(str, first[2:]))})={result}" + (f" x{1 + len(others)}" if others else ""))
    return " ".join(shown)


def show(answer):
    calls = summary(answer.get("drv", []))
    extra = {field: answer[field] for field in EXTRA if field in answer}
    error = "" if answer["ok"] else f"{answer['err']}: {answer['msg'][:230]}"
    print(f"  {answer['op']:34} {answer.get('ptr') or '':14} {error} {calls} {extra or ''}".rstrip())
    for segment in answer.get("snapshot", {}).get("segments", []):
        blocks = " ".join(
            f"{offset}:{size}({requested}){state[0]}" for offset, size, requested, state, _ in segment["blocks"]
        )
        kind = segment["type"] + (" expandable" if segment["expandable"] else "")
        print(
            f"       segment {segment['addr']} {segment['total']} {kind} stream {segment['stream']} pool {segment['pool']} {blocks}"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", default="")
    parser.add_argument("--bytes", type=int, default=8 << 30)
    parser.add_argument("--release", type=release, default="2.11.0")
    parser.add_argument("--oracle")
    options = parser.parse_args()
    oracle = os.path.abspath(options.oracle) if options.oracle else built_oracle(options.release)
    environment = dict(
        os.environ,
        PYTORCH_ALLOC_CONF=options.settings,
        PYTORCH_CUDA_ALLOC_CONF=options.settings,
        FAKE_GPU_BYTES=str(options.bytes),
    )
    run = subprocess.run(
        [oracle, "--stats=none", "-"],
        stdin=sys.stdin,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    for line in run.stdout.splitlines():
        show(json.loads(line))
    sys.exit(run.returncode)


if __name__ == "__main__":
    main()
