#!/usr/bin/env python3
"""Shows which releases give the same answers: runs the same random scripts through the real allocators of neighbouring releases, and finds the first difference of each kind.

  between_releases.py [RELEASE...] [--seeds 1] [--n 2000] [--flavours a,b] [--configs a,b] [--exact]

Without RELEASE, all releases that setup.sh has built are used; each is compared with the next in order. Anything that
only one of two releases has is not compared: settings that one refuses, operations that one lacks, fields and
statistics of later releases, the source line in a message. --exact compares every byte of the outputs instead.

A row shows how many runs are equal, out of how many: with ordinary segments, with expandable ones, with private pools, and for the hand-written scripts. It then shows, for each
kind of difference, in how many runs it occurs: decisions (pointers, errors, trace entries), driver calls, statistics, snapshots, messages. Nothing is compared after the first
differing decision and, with private pools, after the first operation whose answer depends on addresses of the allocator's own objects. Below the table are the first operations
of each kind. Exit code 1 if anything differs.
"""

import argparse
import collections
import itertools
import json
import os
import re
import subprocess
import sys

import gen
from programs import ADDRESS_DEPENDENT, CHECKPOINTS, CONFIGS, FLAVOURS, RELEASES_POOLS, SINCE, environment
from releases import accepts, built_oracle, minor, program, release, releases
from run import seeds

KINDS = {
    "ok": "decisions",
    "ptr": "decisions",
    "err": "decisions",
    "ev": "decisions",
    "drv": "driver",
    "st": "statistics",
    "stats": "statistics",
    "snapshot": "snapshot",
    "msg": "messages",
}
PLACE = re.compile(r'"[^"]*\.(?:cpp|h)":\d+|\(function [^)]*\)')
POOLS = (*ADDRESS_DEPENDENT, *RELEASES_POOLS)
ASLR_RUNS = 8
GROUPS = ("ordinary", "expandable", "private pools", "by hand")
# Calls that only query; how often a release makes them does not matter.
QUESTIONS = ("cudaGetDeviceProperties", "cudaMemGetInfo")


def normal(line, keys):
    """Returns an answer without anything that only one of the two releases has. `keys`: the statistics that both have."""
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


def run(oracle, script, flavour, config, more=()):
    return (
        subprocess.run(
            [oracle, "-"], input=script, env=environment(flavour, config, "up", more), capture_output=True, check=True
        )
        .stdout.decode()
        .splitlines()
    )


def settled(oracle, script, flavour, config):
    """Returns the answers that do not depend on the addresses of the release's own objects: up to the first line in which its runs disagree."""
    answers = run(oracle, script, flavour, config)
    if flavour not in ADDRESS_DEPENDENT:
        return answers
    others = [run(oracle, script, flavour, config, {"ORACLE_ASLR": "1"}) for _ in range(ASLR_RUNS)]
    return list(
        itertools.takewhile(
            lambda line: line is not None,
            (lines[0] if len(set(lines)) == 1 else None for lines in zip(answers, *others)),
        )
    )


def all_keys(oracle):
    """Returns the names of the statistics that a release has."""
    return set(json.loads(run(oracle, b"stats", "basic", "default")[0])["stats"])


def differences(first, second, keys):
    """The first line of each kind of difference, up to the first decision that differs: kind -> (number, field, one side, the other)."""
    found = {}
    for number, (one, other) in enumerate(zip(first, second)):
        if one == other:
            continue
        one, other = normal(one, keys), normal(other, keys)
        fields = [field for field in sorted(one.keys() | other.keys()) if one.get(field) != other.get(field)]
        decided = [field for field in fields if KINDS.get(field, "decisions") == "decisions"]
        for field in decided or fields:
            found.setdefault(KINDS.get(field, "decisions"), (number, field, one.get(field), other.get(field)))
        if decided:
            break
    return found


def group_of(flavour, config):
    if flavour in gen.HAND_WRITTEN:
        return "by hand"
    if flavour in POOLS:
        return "private pools"
    return "expandable" if config.startswith("exp") else "ordinary"


def narrowed(one, other):
    """Shows the difference between two values for a human reader."""
    if isinstance(one, dict) and isinstance(other, dict) and "segments" not in one:
        keys = [key for key in sorted(one.keys() | other.keys()) if one.get(key) != other.get(key)]
        one, other = ({key: side.get(key) for key in keys} for side in (one, other))
    if isinstance(one, dict) and "segments" in one:
        pairs = [(a, b) for a, b in zip(one["segments"], other["segments"]) if a != b]
        one, other = pairs[0] if pairs else (len(one["segments"]), len(other["segments"]))
    one, other = (json.dumps(side) for side in (one, other))
    same = next((i for i, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))
    start = max(0, same - 60)
    return ("..." if start else "") + one[start : start + 300], ("..." if start else "") + other[start : start + 300]


def scripts(older, newer, options):
    """Every run of two releases: (flavour, setting, seed, script), the script limited to what the older one knows."""
    oracles = [program(name) for name in (older, newer)]
    configs = [
        config for config in options.configs.split(",") if all(accepts(oracle, CONFIGS[config]) for oracle in oracles)
    ]
    flavours = [
        flavour
        for flavour in options.flavours.split(",")
        if flavour not in CHECKPOINTS and minor(older) >= SINCE.get(flavour, 0)
    ]
    for flavour, config, seed in itertools.product(flavours, configs, options.seeds):
        if (flavour in RELEASES_POOLS or flavour == "every_operation") and config.startswith("exp"):
            continue  # as in run.py
        lines = []
        gen.gen(seed, options.n, flavour, out=gen.for_release(lines.append, older))
        yield flavour, config, seed, lines


def compare_pair(older, newer, options):
    """The numbers of runs compared and of equal runs in each group, the number in which each kind differs, and its
    first difference.
    """
    oracles = [built_oracle(name) for name in (older, newer)]
    keys = set.intersection(*map(all_keys, oracles))
    runs, equal, counts, first = collections.Counter(), collections.Counter(), collections.Counter(), {}
    for flavour, config, seed, lines in scripts(older, newer, options):
        answers = [
            (run if options.exact else settled)(oracle, ("\n".join(lines) + "\n").encode(), flavour, config)
            for oracle in oracles
        ]
        if options.exact:
            place = next((number for number, (one, other) in enumerate(zip(*answers)) if one != other), None)
            found = {} if place is None else {"bytes": (place, "", answers[0][place], answers[1][place])}
        else:
            found = differences(*answers, keys)
        group = group_of(flavour, config)
        runs[group] += 1
        equal[group] += not found
        counts.update(found.keys())
        for kind, (number, field, one, other) in found.items():
            if (kind, group) not in first or number < first[kind, group][0]:
                first[kind, group] = (
                    number,
                    f"{flavour}.{config} seed {seed}, operation {number}: `{lines[number]}`: {field}",
                    *narrowed(one, other),
                )
    return runs, equal, counts, first


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "releases",
        nargs="*",
        type=release,
        metavar="RELEASE",
        help="releases, in order (default: all that are built)",
    )
    parser.add_argument("--seeds", type=seeds, default=seeds("1"), help="the seeds, such as 7 or 1-20")
    parser.add_argument("--n", type=int, default=2000, help="the number of operations in a script")
    parser.add_argument(
        "--flavours", default=",".join(FLAVOURS), help="kinds of scripts, separated by commas (default: all)"
    )
    parser.add_argument(
        "--configs", default=",".join(CONFIGS), help="settings by name, separated by commas (default: all)"
    )
    parser.add_argument("--exact", action="store_true", help="compare every byte")
    options = parser.parse_args()
    names = options.releases or [name for name in reversed(releases()) if os.path.exists(program(name))]
    kinds = ["bytes"] if options.exact else list(dict.fromkeys(KINDS.values()))
    print(
        f"| releases | {' | '.join(GROUPS)} | {' | '.join(kinds)} |\n" + "|---" * (1 + len(GROUPS) + len(kinds)) + "|",
        flush=True,
    )
    details = []
    for older, newer in itertools.pairwise(names):
        runs, equal, counts, first = compare_pair(older, newer, options)
        cells = [f"{equal[group]} of {runs[group]}" for group in GROUPS] + [str(counts[kind]) for kind in kinds]
        print(f"| {older}, {newer} | {' | '.join(cells)} |", flush=True)
        if first:
            details.append(f"\n### {older}, {newer}\n")
        for (kind, group), (_, where, one, other) in sorted(first.items()):
            details.append(f"- {kind}, {group}: {where}\n  - {older}: `{one}`\n  - {newer}: `{other}`")
    print("\n".join(details))
    sys.exit(bool(details))


if __name__ == "__main__":
    main()
