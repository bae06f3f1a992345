"""Keeps track of what was compared, in a file with one line of JSON for each script, covering all requested settings and orders of addresses."""

import collections
import json
import os

from gen import HAND_WRITTEN
from releases import minor, releases


def key(options, flavour, seed):
    """Returns the key that shows whether a script has already been compared."""
    return {
        "release": options.release,
        "flavour": flavour,
        "seed": seed,
        "n": options.n,
        "rotate": options.rotate,
        "configs": options.configs,
        "addresses": options.addresses,
    }


def lines(path):
    """Returns the complete lines of the file; a line that was cut off is ignored."""
    if not os.path.exists(path):
        return
    with open(path, encoding="utf-8") as file:
        for line in file:
            if line.endswith("}\n"):
                yield json.loads(line)


def left(options):
    """Returns the scripts that are not in the file: a list of (flavour, seed)."""

    def seeds(flavour):
        # Without rotation, a script that is the same for all seeds runs with one seed.
        return options.seeds[:1] if flavour in HAND_WRITTEN and not options.rotate else options.seeds

    asked = [(flavour, seed) for flavour in options.flavours.split(",") for seed in seeds(flavour)]
    asked.sort(key=lambda script: script[1])
    if not options.progress:
        return asked
    compared = [{name: line[name] for name in key(options, "", 0)} for line in lines(options.progress)]
    return [(flavour, seed) for flavour, seed in asked if key(options, flavour, seed) not in compared]


def keep(options, flavour, seed, results):
    """Adds the results of `one` in run.py."""
    if not options.progress:
        return
    ended = collections.Counter(why for *_, why in results if why)
    line = key(options, flavour, seed) | {
        "runs": len(results),
        "operations": sum(operations for _, operations, *_ in results),
        "tolerated": sum(tolerated for _, _, tolerated, *_ in results),
        "differences": [f"{name}: {where}" for name, _, _, where, _ in results if where],
        "ended": dict(ended),
    }
    with open(options.progress, "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def sums(path):
    """For each minor release, oldest first: (name, scripts, runs, operations, orders tolerated, runs that ended early,
    runs that differ).
    """
    rows = collections.defaultdict(lambda: [0] * 6)
    for line in lines(path):
        counts = (
            1,
            line["runs"],
            line["operations"],
            line["tolerated"],
            sum(line["ended"].values()),
            len(line["differences"]),
        )
        row = rows[minor(line["release"])]
        row[:] = map(sum, zip(row, counts))
    return [(f"2.{number}", *rows[number]) for number in sorted({minor(name) for name in releases()} & rows.keys())]


def print_sums(path):
    print(
        f"{'release':8} {'scripts':>8} {'runs':>8} {'operations':>13} {'orders tolerated':>17} {'ended early':>12} {'runs that differ':>17}"
    )
    rows = sums(path)
    rows.append(("all", *map(sum, zip(*(row[1:] for row in rows)))))
    for name, scripts, runs, operations, tolerated, ended, differing in rows:
        print(f"{name:8} {scripts:8,} {runs:8,} {operations:13,} {tolerated:17,} {ended:12,} {differing:17,}")
