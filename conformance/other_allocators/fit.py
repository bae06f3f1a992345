#!/usr/bin/env python3
"""Finds the smallest capacity in which a script fits, for real allocators and for parkade's policies.

  fit.py [--built DIR] [--peer PROGRAM] [--only rmm-pool,bfc,bfc:kind=one-region,bfc:kind=xla,bfc:kind=xla-growth] SCRIPT...

Found by bisection in steps of a 256th of the script's largest load, and printed as a multiple of that load. For RMM, the streams are
the script's; BFC has no streams, so BFC and its policies treat all of them as one. DIR defaults to target/peers and PROGRAM to target/release/examples/peer.
"""

import argparse
import os
import subprocess
import sys

from paths import BUILT, PEER, check

RMM, BFC = "build_rmm.sh", "build_bfc.sh"


def unit(size):
    return size // 256 * 256


def commands(built, peer):
    """For each allocator: the script that builds it, and the commands of the real one and the policy for a capacity and a script."""
    real = lambda name, *words: [os.path.join(built, name), *map(str, words), "stop"]
    policy = lambda name, *words: lambda capacity, script: [peer, name, str(capacity), "-", script, *words, "stop"]
    return {
        "rmm-pool": (
            "rmm_peer",
            RMM,
            lambda c, s: real("rmm_peer", "pool", c, unit(c // 2), "-", s),
            policy("rmm-pool"),
        ),
        "bfc": ("bfc_peer", BFC, lambda c, s: real("bfc_peer", "grow", c, c, s), policy("bfc", "one")),
        "bfc:kind=one-region": (
            "bfc_peer",
            BFC,
            lambda c, s: real("bfc_peer", "one", c, c, s),
            policy("bfc:kind=one-region", "one"),
        ),
        "bfc:kind=xla": (
            "bfc_peer",
            BFC,
            lambda c, s: real("bfc_peer", "prealloc", c, c * 3 // 4, s),
            policy("bfc:kind=xla", "one"),
        ),
        "bfc:kind=xla-growth": (
            "bfc_peer",
            BFC,
            lambda c, s: real("bfc_peer", "grow-keep", c, c * 3 // 4, s),
            policy("bfc:kind=xla-growth", "one"),
        ),
    }


def largest_load(script):
    live, total, largest = {}, 0, 0
    for line in open(script):
        words = line.split()
        if words[:1] == ["a"]:
            live[words[1]] = int(words[2])
            total += live[words[1]]
            largest = max(largest, total)
        elif words[:1] == ["f"]:
            total -= live.pop(words[1], 0)
    return largest


def fits(command):
    """Whether the script fits."""
    done = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ, TF_CPP_MIN_LOG_LEVEL="3"))
    last = done.stdout.rstrip().rsplit("\n", 1)[-1].split()
    if done.returncode or not last or last[0] != "=":
        sys.exit(f"{' '.join(command)} did not finish: {(done.stdout + done.stderr)[-300:]}")
    return last[1] != "hangs" and int(last[4]) == 0


def smallest(make, script, guess=None):
    """The smallest capacity that fits, in steps above the load; None if even 65 times the load does not. If `guess` is given, returns the border next to it."""
    load = largest_load(script)
    step = -(-load // 256)
    does_fit = lambda steps: steps >= 0 and fits(make(load + steps * step, script))
    low, high, by = -1, 1024, 1024
    if guess is not None:
        low, high, by = guess - 1, guess, 1
        while high >= 0 and low >= 0 and does_fit(high) and does_fit(low):
            low, high, by = low - by, low, 2 * by
        low = max(low, -1)
    while not does_fit(high):
        low, high, by = high, high + by, 2 * by
        if high > 1 << 14:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if does_fit(middle) else (middle, high)
    return high


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--built", default=BUILT, help="the folder of the real allocators (default: target/peers)")
    parser.add_argument(
        "--peer", default=PEER, help="the program that runs parkade's policies (default: target/release/examples/peer)"
    )
    parser.add_argument(
        "--only",
        default="rmm-pool,bfc,bfc:kind=one-region,bfc:kind=xla,bfc:kind=xla-growth",
        help="the allocators, separated by commas",
    )
    parser.add_argument(
        "scripts", nargs="+", metavar="SCRIPT", help="scripts of requests, as gen.py and rec2script.py write them"
    )
    options = parser.parse_args()
    known = commands(options.built, options.peer)
    chosen = options.only.split(",")
    for name in chosen:
        if name not in known:
            parser.error(f"there is no {name}: {', '.join(known)}")
        check(os.path.join(options.built, known[name][0]), f"conformance/other_allocators/{known[name][1]}")
    check(options.peer, "cargo build --release -p parkade-benches --example peer")
    for script in options.scripts:
        load = largest_load(script)
        shown = lambda steps: "none" if steps is None else f"{1 + steps * -(-load // 256) / load:.3f}"
        for name in chosen:
            _, _, real, policy = known[name]
            own = smallest(policy, script)
            found = smallest(real, script, own), own
            verdict = "the same" if found[0] == found[1] else "differs"
            script_name = os.path.splitext(os.path.basename(script))[0]
            print(f"{script_name:28} {name:14} real {shown(found[0])} policy {shown(found[1])} {verdict}", flush=True)


if __name__ == "__main__":
    main()
