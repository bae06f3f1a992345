#!/usr/bin/env python3
"""Tests whether the policies answer random scripts, and the requests in PyTorch memory snapshots, as the real allocators do.

  identical.py [--only NAME,...] [--random SCRIPTS] [--operations N] [--built DIR] [--peer PROGRAM] [SNAPSHOT.pickle[.xz]...]

The names are rmm-pool, bfc, bfc:kind=one-region, bfc:kind=xla and bfc:kind=xla-growth; all that are built unless --only names some.
Random scripts: each has its own capacity, largest request and load, starting from seed 1; RMM's use one, three and eight streams. Every second script for
BFC comes in waves. Snapshots run with 300, 110 and 102 % of their largest load; those with the same requests count
once. Unpickling runs code, so the files must come from you.

Placements, growths, refusals, releases and waits are compared. Prints what differs, and how many scripts are answered
identically; exit code 1 if any is not. A script that TensorFlow 2.21.0 never returns from is compared up to there, and
counted.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

import compare
from fit import largest_load
from paths import BUILT, PEER, check

HERE = os.path.dirname(os.path.abspath(__file__))
MIB = 1 << 20
BFC = {"bfc": "grow", "bfc:kind=one-region": "one", "bfc:kind=xla": "prealloc", "bfc:kind=xla-growth": "grow-keep"}
PROGRAM = {"rmm-pool": "rmm_peer"} | dict.fromkeys(BFC, "bfc_peer")
BUILDS = {"rmm_peer": "build_rmm.sh", "bfc_peer": "build_bfc.sh"}


def multiple(size):
    """RMM takes multiples of 256 bytes."""
    return size // 256 * 256


def commands(name, device, limit):
    """Returns the arguments for the real program and for the policy, without the script."""
    if name == "rmm-pool":
        # RMM begins with half of the device, or with the maximum if that is less, and may exceed the maximum by up to 255 bytes.
        initial = multiple(device // 2) if limit is None else min(multiple(device // 2), multiple(limit))
        most = ("-", "-") if limit is None else (multiple(limit), multiple(limit) + 255)
        return ["pool", device, initial, most[0]], [name, device, most[1]]
    share = (limit or device) * (3 if "xla" in name else 4) // 4
    return [BFC[name], device, share], [name, device, limit or "-"]


def random_job(name, seed, streams, operations):
    """Returns a random script's arguments, the device and the limit."""
    r = random.Random(f"{name.replace(':', '-').split('-')[0]} {seed} {streams}")
    size = r.choice(
        [1 << 31, 2_000_000_000, 1_999_999_999, 1 << 30, 1 << 29, int(r.uniform(2e8, 3e9)), int(r.uniform(2e7, 5e8))]
    )
    device, limit = size, None
    if name == "rmm-pool":
        # RMM runs with maxima of many sizes, because only then does it release segments.
        limit = r.choice([None, int(size * r.uniform(0.5, 1)), int(size * r.uniform(0.5, 1)), size])
    else:
        device, limit = r.choice([(size, None), (size, size), (2 * size, size), (size + size // 50, size)])
    live = r.choice([50, 80, 90, 97, 100, 130])
    largest = min(size, r.choice([16 << 10, MIB, 64 * MIB, 64 * MIB, 512 * MIB, size // 8 + 1024, size]))
    waves = 40 if name in BFC and seed % 2 == 0 else 0
    words = [seed, operations, streams, (limit or device) * live // 100, largest, "--waves", waves]
    return [sys.executable, os.path.join(HERE, "gen.py"), *map(str, words)], device, limit


def recorded_jobs(name, load):
    """The devices and limits for a recording: 300, 110 and 102 % of the load."""
    for percent in (300, 110, 102):
        size = load * percent // 100
        if name == "rmm-pool":
            yield f"{percent} %", size, None
            yield f"{percent} %, as a maximum", 2 * size, size
        elif "xla" in name:
            yield f"{percent} %", -(-size * 4 // 3), None
        else:
            yield f"{percent} %", 2 * size, size


def answers(options, name, device, limit, script):
    """Returns how the two differ (None if they do not), whether the real one hung, and how many operations were compared."""
    real, policy = commands(name, device, limit)
    one = ["one"] if name in BFC else []
    environment = dict(os.environ, TF_CPP_MIN_LOG_LEVEL="3")
    both = [os.path.join(options.built, PROGRAM[name]), *real, script], [options.peer, *policy, script, *one]
    with tempfile.TemporaryDirectory() as folder:
        paths = [os.path.join(folder, "real"), os.path.join(folder, "policy")]
        for command, path in zip(both, paths):
            with open(path, "w") as file:
                done = subprocess.run(
                    list(map(str, command)), stdout=file, stderr=subprocess.PIPE, text=True, env=environment
                )
            if done.returncode:
                return f"{' '.join(map(str, command))}: exit code {done.returncode}: {done.stderr[-200:]}", False, 0
        hung = open(paths[0]).read().endswith("= hangs\n")
        (ours, totals), (theirs, _) = compare.read(paths[1]), compare.read(paths[0])
    if not totals or (len(ours) != len(theirs) and not hung):
        return f"the real allocator answered {len(theirs)} operations, and the policy {len(ours)}", hung, 0
    first = compare.first_difference(theirs, ours)
    return (
        None if first is None else f"operation {first}: real {theirs[first]}, policy {ours[first]}",
        hung,
        len(theirs),
    )


def run(options, job):
    name, says, make, device, limit, path = job
    if path:
        return (name, says, *answers(options, name, device, limit, path))
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        subprocess.run(make, stdout=file, check=True)
        return (name, says, *answers(options, name, device, limit, file.name))


def jobs(options, folder):
    seen = set()
    for name in options.only:
        for seed in range(1, options.random + 1):
            for streams in (1,) if name in BFC else (1, 3, 8):
                make, device, limit = random_job(name, seed, streams, options.operations)
                yield name, f"{' '.join(make[2:])}, device {device}, limit {limit}", make, device, limit, None
    for number, snapshot in enumerate(options.snapshots):
        made = subprocess.run(
            [sys.executable, os.path.join(HERE, "rec2script.py"), snapshot], capture_output=True, text=True, check=True
        )
        path = os.path.join(folder, f"{number}.txt")
        with open(path, "w") as file:
            file.write(made.stdout)
        load = 0 if made.stdout in seen else largest_load(path)
        seen.add(made.stdout)
        if load:
            for name in options.only:
                for says, device, limit in recorded_jobs(name, load):
                    yield name, f"{os.path.basename(snapshot)}, {says}", None, device, limit, path


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="the policies, separated by commas (default: all that are built)")
    parser.add_argument(
        "--random",
        type=int,
        default=0,
        metavar="SCRIPTS",
        help="the number of random scripts for each policy (default: 0)",
    )
    parser.add_argument(
        "--operations",
        type=int,
        default=10000,
        metavar="N",
        help="the number of operations in a random script (default: 10000)",
    )
    parser.add_argument("--built", default=BUILT, help="the folder of the real allocators (default: target/peers)")
    parser.add_argument(
        "--peer", default=PEER, help="the program that runs parkade's policies (default: target/release/examples/peer)"
    )
    parser.add_argument("snapshots", nargs="*", metavar="SNAPSHOT", help="snapshots taken with the history on")
    options = parser.parse_args()
    is_built = lambda name: os.access(os.path.join(options.built, PROGRAM[name]), os.X_OK)
    options.only = options.only.split(",") if options.only else list(filter(is_built, PROGRAM))
    for name in options.only:
        if name not in PROGRAM:
            parser.error(f"there is no {name}: {', '.join(PROGRAM)}")
        check(os.path.join(options.built, PROGRAM[name]), f"conformance/other_allocators/{BUILDS[PROGRAM[name]]}")
    check(options.peer, "cargo build --release -p parkade-benches --example peer")
    counts = {}
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as workers:
        for name, says, differs, hung, operations in workers.map(lambda job: run(options, job), jobs(options, folder)):
            count = counts.setdefault(name, [0, 0, 0, 0])
            for place, more in enumerate((differs is None, 1, hung, operations)):
                count[place] += more
            if differs:
                print(f"{name}, {says}: {differs}", flush=True)
    for name, (same, all_, hangs, operations) in counts.items():
        until = f", {hangs} of them up to where the original never returns" if hangs else ""
        print(f"{name}: {same} of {all_} identical{until}; {operations:,} operations")
    sys.exit(any(same != all_ for same, all_, *_ in counts.values()) or not counts)


if __name__ == "__main__":
    main()
