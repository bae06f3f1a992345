#!/usr/bin/env python3
"""Shows in which of the core's files a step spends its instructions, as counted by valgrind.

benches/where.py [--cases CASE...] [--write docs/speed.md]

The cases are those of the program `count`, which is built first. A count is the difference between a run and
a second run with twice the steps. Standard-library code that is inlined counts towards the file into which it
is inlined.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from page import origin, parts, replace_marked

ROOT = Path(__file__).resolve().parent.parent
STEPS = 20_000
# A name is only written once, after its number; a leading c means that the line is about a call.
FILE = re.compile(r"(c?)f[lie]=\((\d+)\)(?: (.*))?")
# Files with fewer instructions per step than this in every case are not listed.
SHOWN = 10


def place(path: str) -> str | None:
    """Returns the place to which a source file belongs: a file of the core, or a description; None for the
    standard library."""
    if "/.cargo/" in path or path.startswith(("/rustc/", "/rust/")):
        return None
    if found := re.search(r"(?:^|/)(benches/)?src/(.*\.rs)$", path):
        return "the loop" if found[1] else f"src/{found[2]}"
    return "memory of the C library: malloc, free, memcpy"


def costs(path: Path) -> Counter:
    """Returns the instructions of each place from a file that callgrind has written."""
    names: dict[str, str] = {}
    total: Counter = Counter()
    now, skip = "", False
    for line in path.read_text().splitlines():
        if found := FILE.fullmatch(line):
            if found[3]:
                names[found[2]] = found[3]
            if found[1]:
                continue
            if where := place(names[found[2]]):
                now = where
            elif line.startswith("fl="):
                now = "the standard library: functions that are not inlined"
        elif line.startswith("calls="):
            skip = True
        elif re.match(r"[+*\-\d]", line):
            if not skip:
                total[now] += int(line.split()[1])
            skip = False
    return total


def of_a_step(case: str, folder: Path) -> Counter:
    runs = []
    for steps in (STEPS, 2 * STEPS):
        out = folder / str(steps)
        command = [
            "valgrind",
            "--tool=callgrind",
            f"--callgrind-out-file={out}",
            "target/wheel/count",
            case,
            str(steps),
        ]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"where.py: the instructions of {case} could not be counted:\n{done.stderr}")
        runs.append(costs(out))
    return Counter({where: (count - runs[0][where]) / STEPS for where, count in runs[1].items()})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--cases", nargs="+", metavar="CASE", default=["4KiB", "mix1000", "replay", "expandable", "streams"]
    )
    parser.add_argument(
        "--write", type=Path, metavar="PAGE", help="also write the table into a page, between its markers"
    )
    arguments = parser.parse_args()
    if arguments.write:
        parts(arguments.write, "where.py")  # fail now rather than after minutes
    subprocess.run(
        ["cargo", "build", "--locked", "--quiet", "--profile", "wheel", "-p", "parkade-benches", "--bin", "count"],
        cwd=ROOT,
        # The profile is stripped; the names and lines are needed here.
        env={**os.environ, "CARGO_PROFILE_WHEEL_STRIP": "false", "CARGO_PROFILE_WHEEL_DEBUG": "line-tables-only"},
        check=True,
    )
    with tempfile.TemporaryDirectory() as folder:
        counted = {case: of_a_step(case, Path(folder)) for case in arguments.cases}
    places = sorted(
        {where for counts in counted.values() for where in counts},
        key=lambda where: -sum(counts[where] for counts in counted.values()),
    )
    lines = [
        f"`benches/where.py`, {origin()}:",
        "",
        "| instructions a step | " + " | ".join(counted) + " |",
        "|---" + "|--:" * len(counted) + "|",
    ]
    rest: dict[str, float] = dict.fromkeys(counted, 0.0)
    for where in places:
        if max(counts[where] for counts in counted.values()) >= SHOWN:
            lines.append("| " + " | ".join([where, *(f"{counts[where]:.0f}" for counts in counted.values())]) + " |")
        else:
            rest = {case: sum + counted[case][where] for case, sum in rest.items()}
    lines.append("| other files | " + " | ".join(f"{sum:.0f}" for sum in rest.values()) + " |")
    lines.append("| all | " + " | ".join(f"{counts.total():.0f}" for counts in counted.values()) + " |")
    text = "\n".join(lines)
    print(text)
    if arguments.write:
        replace_marked(arguments.write, "where.py", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
