#!/usr/bin/env python3
"""Collects the real allocator's out-of-memory messages, with the numbers that each was made from.

  oom_messages.py [--oracle PROGRAM] [--ops 4000] [--seed 1] [--bytes N] [--base N] [--conf SETTINGS] [--processes none|own|three]

PROGRAM is target/oracle/oracle-2.11.0, which conformance/oracle/pytorch_harness/setup.sh builds. Prints tab-separated rows: segment, device, total, free, processes,
limit, allocated, reserved, private, message. The numbers are taken only from the driver log, the statistics and the snapshots; a limit is
trunc(fraction x total). `cargo run --example oom_check` reads the rows and compares each message with parkade's.

--processes states which processes PROGRAM's NVML lists, because the rows must state this: "own" is the stand-in that is built; for "none", remove fake/nvml from a
copy of the folder; for "three", build one that lists processes 1, itself and 4194304.
"""

import argparse
import json
import os
import subprocess

import gen
from releases import built, program

LARGE = 20 << 20


def rounded_up(size, unit):
    return -(-size // unit) * unit


def segment_of(size):
    """The segment that is requested for a block of this size (docs/spec.md, section 1.6)."""
    if size <= 1 << 20:
        return 2 << 20
    return LARGE if size < 10 << 20 else rounded_up(size, 2 << 20)


def answers(options, flavour):
    """The real allocator's answers to a script with a snapshot after every request."""
    lines = []
    gen.gen(options.seed, options.ops, flavour, out=lines.append)
    lines = [part for line in lines for part in ([line, "snapshot"] if line.startswith("alloc ") else [line])]
    environment = dict(
        os.environ,
        FAKE_GPU_BYTES=str(options.bytes),
        FAKE_GPU_BASE=str(options.base),
        PYTORCH_CUDA_ALLOC_CONF=options.conf,
    )
    run = subprocess.run(
        [options.oracle, "--log=3", "-"],
        input="\n".join(lines) + "\n",
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in run.stdout.splitlines()]


def rows(options, answered):
    stats, fraction = {}, None
    for answer, after in zip(answered, answered[1:] + [{}]):
        stats.update(answer.get("st", {}))
        words = answer["op"].split()
        if words[0] == "set_fraction" and answer["ok"]:
            fraction = float(words[1])
        if answer.get("err") != "oom":
            continue
        free, total = [call for call in answer["drv"] if call[0] == "cudaMemGetInfo"][-1][2:4]
        limit = "-" if fraction is None or fraction >= 1 else str(int(fraction * options.bytes))
        private = sum(
            block[1]
            for segment in after["snapshot"]["segments"]
            if segment["pool"] != [0, 0]
            for block in segment["blocks"]
            if block[3] == "inactive"
        )
        size = [event for event in answer["ev"] if event[0] == "oom"][-1][2]
        used = total - free - options.base
        processes = {"none": "", "own": f"self={used}", "three": f"1=1152,self={used},4194304=5368709120"}[
            options.processes
        ]
        allocated, reserved = (stats.get(f"{name}.all", [0])[0] for name in ("allocated_bytes", "reserved_bytes"))
        yield segment_of(size), 0, total, free, processes, limit, allocated, reserved, private, answer["msg"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--oracle", default=program("2.11.0"), help="the real allocator (default: target/oracle/oracle-2.11.0)"
    )
    parser.add_argument("--ops", type=int, default=4000, help="the number of operations")
    parser.add_argument("--seed", default="1", help="the seed of the script")
    parser.add_argument("--bytes", type=int, default=1 << 28, help="the device's memory")
    parser.add_argument("--base", type=int, default=0, help="bytes that are in use before the program begins")
    parser.add_argument("--conf", default="", help="the settings")
    parser.add_argument(
        "--processes", choices=["none", "own", "three"], default="own", help="the processes that PROGRAM's NVML lists"
    )
    options = parser.parse_args()
    options.oracle = os.path.abspath(options.oracle)
    built(options.oracle, "conformance/oracle/pytorch_harness/setup.sh")
    for flavour in ("oom", "pools", "poolfree", "frac", "everything"):
        for row in rows(options, answers(options, flavour)):
            print(*row, sep="\t")


if __name__ == "__main__":
    main()
