#!/usr/bin/env python3
"""Measures how many of cargo-mutants' mutants of the core the tests catch. Tries an even sample of them, all in one build (switch.py).

  cargo install cargo-mutants --locked
  cargo mutants --list --json -p parkade > target/mutants/list.json
  conformance/mutants/sample.py target/mutants/list.json --count 300

The list is sorted by file and line. Every k-th mutant is taken, from a start that --seed chooses, so each file has its share. A mutant is
tried with one program after the other until one fails: the core's own tests, the laws at 60 cases, the recorded answers, the laws at 250
cases, the tests with recordings. Results are kept in --results and not computed again.

Exit code: 0 if at least 95 % of the mutants that compile are caught, else 1.
"""

import argparse
import json
import pathlib
import random
import sys
import time

import child
import switch
import tomllib


def read_mutants(path):
    """Reads cargo-mutants' list as bugs, numbered by their positions in it."""
    texts, bugs = {}, []
    for number, entry in enumerate(json.loads(path.read_text()), start=1):
        file = entry["file"]
        if file not in texts:
            text = (switch.ROOT / file).read_text()
            starts = [0]
            for line in text.splitlines(keepends=True):
                starts.append(starts[-1] + len(line))
            texts[file] = starts
        place = lambda point: texts[file][point["line"] - 1] + point["column"] - 1
        start, end = place(entry["span"]["start"]), place(entry["span"]["end"])
        name = entry["name"]
        bugs.append(switch.Bug(name, file, start, end, entry["replacement"], entry["genre"], number))
    return bugs


def even_sample(bugs, count, seed):
    """Returns every k-th bug, from a random start."""
    step = max(len(bugs) / count, 1)
    first = random.Random(seed).random() * step
    places = [int(first + step * turn) for turn in range(int(len(bugs) / step) + 1)]
    return [bugs[place] for place in dict.fromkeys(places) if place < len(bugs)]


def equivalents(bugs):
    """Returns the mutants that equivalent.toml lists, with the reasons."""
    listed = tomllib.loads((switch.ROOT / "conformance/mutants/equivalent.toml").read_text())["equivalent"]
    known = {(entry["mutant"], entry["line"]): entry["why"] for entry in listed}

    def line(bug):
        text = (switch.ROOT / bug.file).read_text()
        return text[text.rfind("\n", 0, bug.start) + 1 :].split("\n")[0].strip()

    reasons = {bug.id: known.get((bug.id.split(": ", 1)[1], line(bug))) for bug in bugs}
    return {name: why for name, why in reasons.items() if why}


def stages(built):
    """Returns the name, command and working folder of each program that may catch a mutant, quick ones first."""
    program = lambda test: [str(switch.HOME / test.path), "-q"]
    core = [(test.name, program(test), test.room) for test in built.tests if test.crate == "core"]
    (tests,) = [test for test in built.tests if test.name == "conformance:laws"]
    suite = [str(switch.HOME / built.suite), "conform", "--json", "--filter", "law/", "--cases"]
    laws = lambda cases: (f"laws at {cases} cases", [*suite, str(cases)], "work")
    recordings = lambda module: (module, [*program(tests), f"recordings::{module}::"], tests.room)
    return [*core, laws(60), recordings("golden"), laws(250), recordings("settings_change"), recordings("verified")]


def ask(stages, number, limits):
    """Returns the name of the stage that catches the mutant, marked if it hung; None if no stage does."""
    for name, command, room in stages:
        ended = child.run(command, switch.HOME / room, number, limits[name])
        if ended.code != 0:
            return f"{name}, by a hang" if ended.hang else name
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("list", metavar="LIST", type=pathlib.Path, help="the output of `cargo mutants --list --json`")
    parser.add_argument("--count", type=int, default=300, help="the size of the sample (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="where the sample begins (default: %(default)s)")
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        metavar="TEXT",
        help="instead of a sample, the mutants whose names contain one of these texts",
    )
    parser.add_argument(
        "--results",
        type=pathlib.Path,
        default=switch.ROOT / "target/mutants/results.jsonl",
        help="default: target/mutants/results.jsonl",
    )
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this time")
    options = parser.parse_args()
    bugs = read_mutants(options.list)
    sample = (
        [bug for bug in bugs if any(text in bug.id for text in options.only)]
        if options.only
        else even_sample(bugs, options.count, options.seed)
    )
    viable, refused, built = switch.build(sample)
    print(f"{len(bugs)} mutants listed, {len(sample)} sampled, {len(refused)} do not compile", flush=True)
    todo, limits = stages(built), {}
    for name, command, room in todo:
        plain = child.run(command, switch.HOME / room, 0)
        if plain.code != 0:
            sys.exit(f"{name} fails without a mutant:\n{plain.output[-2000:]}")
        limits[name] = child.limit_s(plain)
        print(f"without a mutant {name} takes {plain.cpu_s:.1f} s", flush=True)
    known = {}
    if options.results.exists() and not options.only:
        known = {row["name"]: row for row in map(json.loads, options.results.read_text().splitlines())}
    # In random order, so that a sample is unbiased even if --seconds cuts it short.
    order = list(viable)
    random.Random(options.seed).shuffle(order)
    end, rows = time.monotonic() + options.seconds, []
    for bug in order:
        if bug.id not in known:
            if time.monotonic() > end:
                break
            known[bug.id] = {"name": bug.id, "by": ask(todo, bug.number, limits)}
            with options.results.open("a") as file:
                file.write(json.dumps(known[bug.id]) + "\n")
            if not known[bug.id]["by"]:
                print(f"missed {bug.id}", flush=True)
        rows.append(known[bug.id])
    by, same = {}, equivalents(viable)
    for row in rows:
        name = row["by"] or ("equivalent" if row["name"] in same else "missed")
        by[name] = by.get(name, 0) + 1
    for name, count in sorted(by.items(), key=lambda pair: -pair[1]):
        print(f"{count:5} {name}")
    for row in rows:
        if not row["by"]:
            print(f"not caught: {row['name']}: {same.get(row['name'], 'MISSED')}")
    missed, equivalent = by.get("missed", 0), by.get("equivalent", 0)
    caught = len(rows) - missed - equivalent
    print(
        f"{caught} of {len(rows)} viable mutants caught: {100 * caught / max(len(rows), 1):.1f} %; {equivalent} are equivalent; ",
        end="",
    )
    print(f"of the other {len(rows) - equivalent}, {100 * caught / max(len(rows) - equivalent, 1):.1f} % are caught")
    return 0 if caught >= 0.95 * len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
