#!/usr/bin/env python3
"""Which releases answer alike: the same random scripts through the real allocators of neighbours, and the first difference of each kind.

  between_releases.py [RELEASE...] [--seeds 1] [--n 2000] [--flavours a,b] [--configs a,b] [--exact] [--all-runs]

Without RELEASE all that setup.sh has built; each is compared with the next in order. What only one of two releases has is not compared: settings that one refuses,
operations that one lacks, fields and statistics of later releases, the source line in a message. --exact compares every byte of the same output instead.

A row says in how many of the runs nothing differed, then for each kind of difference in how many it occurred:
  decisions    pointers, errors, trace entries: where blocks lie, and in which order things happen
  driver       driver calls
  statistics, snapshot, messages
Below the table: the first operation of each kind, in the shortest run that shows it. Exit code 1 if anything differs.
"""
import argparse
import collections
import json
import os
import re
import subprocess
import sys

import gen
from releases import accepts, built_oracle, minor, program, release, releases
from run import CHECKPOINTS, CONFIGS, FLAVOURS, SINCE, environment, seeds

KINDS = {"ok": "decisions", "ptr": "decisions", "err": "decisions", "ev": "decisions", "drv": "driver", "st": "statistics", "stats": "statistics", "snapshot": "snapshot", "msg": "messages"}
PLACE = re.compile(r'"[^"]*\.(?:cpp|h)":\d+|\(function [^)]*\)')
# Calls that ask and change nothing; how often a release asks is of no interest.
QUESTIONS = ("cudaGetDeviceProperties", "cudaMemGetInfo")


def normal(line, keys):
    """An answer without what only one of two releases has. `keys`: the statistics that both have."""
    answer = json.loads(line)
    if "msg" in answer:
        answer["msg"] = PLACE.sub("", answer["msg"])
    if "ev" in answer:
        answer["ev"] = [event[:4] for event in answer["ev"]]
    answer["drv"] = [call for call in answer.get("drv", []) if call[0] not in QUESTIONS]
    snapshot = answer.get("snapshot", {})
    snapshot.pop("config", None)
    for segment in snapshot.get("segments", []):
        segment.pop("reg", None)
    for field in ("st", "stats"):
        answer[field] = {key: value for key, value in answer.get(field, {}).items() if key in keys}
    return answer


def run(oracle, script, flavour, config):
    return subprocess.run([oracle, "-"], input=script, env=environment(flavour, config, "up"), capture_output=True, check=True).stdout.decode().splitlines()


def all_keys(oracle):
    """The names of the statistics that a release has."""
    return set(json.loads(run(oracle, b"stats", "basic", "default")[0])["stats"])


def differences(first, second, keys):
    """The first line of each kind of difference: kind -> (number, field, one side, the other)."""
    found = {}
    for number, (one, other) in enumerate(zip(first, second)):
        if one == other:
            continue
        one, other = normal(one, keys), normal(other, keys)
        for field in sorted(one.keys() | other.keys()):
            if one.get(field) != other.get(field):
                found.setdefault(KINDS.get(field, "decisions"), (number, field, one.get(field), other.get(field)))
    return found


def narrowed(one, other):
    """What differs of two values, for the eye."""
    if isinstance(one, dict) and isinstance(other, dict) and "segments" not in one:
        keys = [key for key in sorted(one.keys() | other.keys()) if one.get(key) != other.get(key)]
        one, other = ({key: side.get(key) for key in keys} for side in (one, other))
    if isinstance(one, dict) and "segments" in one:
        pairs = [(a, b) for a, b in zip(one["segments"], other["segments"]) if a != b]
        one, other = pairs[0] if pairs else (len(one["segments"]), len(other["segments"]))
    one, other = (json.dumps(side) for side in (one, other))
    same = len(os.path.commonprefix([one, other]))
    start = max(0, same - 60)
    return ("..." if start else "") + one[start:start + 300], ("..." if start else "") + other[start:start + 300]


def compare_pair(older, newer, options):
    """A row of the table and the first differences of two releases."""
    oracles = [built_oracle(name) for name in (older, newer)]
    configs = [config for config in options.configs.split(",") if all(accepts(oracle, CONFIGS[config]) for oracle in oracles)]
    keys = set.intersection(*map(all_keys, oracles))
    runs, equal, counts, shortest = 0, 0, collections.Counter(), {}
    differing = collections.Counter()
    for flavour in options.flavours.split(","):
        if flavour in CHECKPOINTS or minor(older) < SINCE.get(flavour, 0):
            continue
        for config in configs:
            if flavour in SINCE and config.startswith("exp"):
                continue  # the real allocator corrupts its heap there (docs/fidelity.md, section 5)
            for seed in options.seeds:
                lines = []
                gen.gen(seed, options.n, flavour, out=gen.for_release(lines.append, older))
                answers = [run(oracle, ("\n".join(lines) + "\n").encode(), flavour, config) for oracle in oracles]
                found = {"bytes": (0, "", "", "")} if options.exact and answers[0] != answers[1] else {} if options.exact else differences(*answers, keys)
                runs, equal = runs + 1, equal + (not found)
                counts.update(found.keys())
                if found:
                    differing[f"{flavour}.{config}"] += 1
                for kind, (number, field, one, other) in found.items():
                    if kind not in shortest or number < shortest[kind][0]:
                        shortest[kind] = (number, f"{flavour}.{config} seed {seed}, operation {number}: {lines[number]}: {field}", *narrowed(one, other))
    return (older, newer, runs, equal, counts, len(configs)), shortest, differing


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("releases", nargs="*", type=release, metavar="RELEASE", help="releases, in order; without any all that are built")
    parser.add_argument("--seeds", type=seeds, default=seeds("1"), help="the seeds, as 7 or 1-20")
    parser.add_argument("--n", type=int, default=2000, help="how many operations a script has")
    parser.add_argument("--flavours", default=",".join(FLAVOURS), help="kinds of scripts, separated by commas (default: all)")
    parser.add_argument("--configs", default=",".join(CONFIGS), help="settings by name, separated by commas (default: all)")
    parser.add_argument("--exact", action="store_true", help="compare every byte")
    parser.add_argument("--all-runs", action="store_true", help="name every flavour and setting that differs")
    options = parser.parse_args()
    names = options.releases or [name for name in reversed(releases()) if os.path.exists(program(name))]
    kinds = ["bytes"] if options.exact else list(dict.fromkeys(KINDS.values()))
    print("| releases | runs | equal | " + " | ".join(kinds) + " |\n" + "|---" * (3 + len(kinds)) + "|", flush=True)
    details, is_different = [], False
    for older, newer in zip(names, names[1:]):
        (_, _, runs, equal, counts, _), shortest, differing = compare_pair(older, newer, options)
        print(f"| {older}, {newer} | {runs} | {equal} | " + " | ".join(str(counts[kind]) for kind in kinds) + " |", flush=True)
        is_different |= runs != equal
        details.append((older, newer, shortest, differing))
    for older, newer, shortest, differing in details:
        if shortest:
            print(f"\n## {older}, {newer}")
            if options.all_runs:
                print("differ:", ", ".join(sorted(differing)))
            for kind in kinds:
                if kind in shortest:
                    _, where, one, other = shortest[kind]
                    print(f"- {kind}: {where}\n  - {older}: `{one}`\n  - {newer}: `{other}`")
    sys.exit(is_different)


if __name__ == "__main__":
    main()
