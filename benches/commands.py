#!/usr/bin/env python3
"""Measures parkade's slow commands end to end: processor time, elapsed time and memory.

benches/commands.py RECORDING [--rounds N] [--sweep] [--write docs/speed.md]

RECORDING is a snapshot file, compressed or not; it is decompressed first, and both forms are measured. Times
are from the round with the shortest processor time. Memory is the maximum over all rounds. --sweep adds a
sweep of the catalogue, which takes minutes. The release build is brought up to date first.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from page import origin, parts, replace_marked

ROOT = Path(__file__).resolve().parent.parent
PARKADE = "target/release/parkade"
EVENTS = "target/release/examples/events"
SHIPPED = "conformance/recordings"
SWEPT = ",".join(
    ["all", *(f"{SHIPPED}/{name}.default.pickle.xz" for name in ("deep_mlp", "gpt2_varlen", "resnet50_sweep"))]
)
# Runs in a separate process, because Linux also attributes a process's peak memory to the processes that it starts.
UNPACK = "import lzma, shutil, sys; shutil.copyfileobj(lzma.open(sys.argv[1]), open(sys.argv[2], 'wb'))"
# Loads once and drops the result, like a program that reads a snapshot.
PICKLE = "import pickle, sys; pickle.load(open(sys.argv[1], 'rb'))"


@dataclass
class Cost:
    """The time and memory used by a command."""

    processor_s: float
    wall_s: float
    peak_bytes: int
    output: str


def run(command: list[str]) -> Cost:
    with tempfile.TemporaryFile("w+") as out:
        start = time.perf_counter()
        child = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(child.pid, 0)
        wall = time.perf_counter() - start
        child.returncode = os.waitstatus_to_exitcode(status)
        # Exit codes 1 and 3 are also answers: the program does not fit, or the answer is unknown.
        if child.returncode not in (0, 1, 3):
            sys.exit(f"commands.py: {' '.join(command)} failed with exit code {child.returncode}: run it to see why")
        out.seek(0)
        return Cost(usage.ru_utime + usage.ru_stime, wall, usage.ru_maxrss << 10, out.read())


def best(command: list[str], rounds: int) -> Cost:
    """Returns the round with the least processor time, with the largest memory of all rounds."""
    print("running:", *command, file=sys.stderr)
    costs = [run(command) for _ in range(rounds)]
    least = min(costs, key=lambda cost: cost.processor_s)
    least.peak_bytes = max(cost.peak_bytes for cost in costs)
    return least


def seconds(cost: Cost) -> str:
    return f"{cost.processor_s:.2f} s of processor time, {cost.wall_s:.2f} s in all"


def of_recording(recording: Path, rounds: int, folder: Path) -> list[list[str]]:
    """Measures `verify` and `advise` on a recording."""
    unpacked = folder / recording.name.removesuffix(".xz")
    if recording.name.endswith(".xz"):
        subprocess.run([sys.executable, "-c", UNPACK, recording, unpacked], check=True)
    else:
        shutil.copyfile(recording, unpacked)
    size = unpacked.stat().st_size
    pickle = best([sys.executable, "-c", PICKLE, str(unpacked)], 3)
    verify = best([PARKADE, "verify", str(unpacked)], rounds)
    entries = re.search(rf"^{re.escape(unpacked.name)}\s+(\d+)", verify.output, re.MULTILINE)
    speed = f", {int(entries[1]) / verify.processor_s / 1e6:.1f} million entries a second" if entries else ""
    name = f"`{unpacked.name}` ({size / 1e6:.0f} MB)"
    rows = [
        [f"CPython's `pickle.load` of {name}, for comparison", seconds(pickle), ""],
        ["`parkade verify` of it", seconds(verify) + speed, "0.12 s of processor time"],
        [
            "its memory",
            f"{verify.peak_bytes / 1e6:.0f} MB, {verify.peak_bytes / size:.1f} times the file",
            "3 times the file",
        ],
    ]
    if recording.name.endswith(".xz"):
        rows.append(
            ["`parkade verify` of the packed file", seconds(best([PARKADE, "verify", str(recording)], rounds)), ""]
        )
    rows.append(
        [
            "`parkade advise` on the unpacked file",
            seconds(best([PARKADE, "advise", str(unpacked)], 1)),
            "5 s in all, on two cores",
        ]
    )
    return rows


def of_policies() -> list[list[str]]:
    """Returns the events per second under PyTorch's policy, best-fit-remap:fit=next, and the slowest policy."""
    lines = re.findall(r"^(\S+)\s+(\d+)\s", best([EVENTS], 1).output, re.MULTILINE)
    speeds = {name: int(speed) / 1e6 for name, speed in lines}
    slowest = min(speeds, key=speeds.__getitem__)
    return [
        ["policy `pytorch`, million events a second", f"{speeds['pytorch']:.1f}", "20"],
        ["policy `best-fit-remap:fit=next`", f"{speeds['best-fit-remap:fit=next']:.1f}", "5"],
        [f"the slowest of the {len(speeds)} policies, `{slowest}`", f"{speeds[slowest]:.1f}", "5"],
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recording", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sweep", action="store_true", help="also sweep the catalogue and three recordings")
    parser.add_argument(
        "--write", type=Path, metavar="PAGE", help="also write the table into a page, between its markers"
    )
    arguments = parser.parse_args()
    if arguments.write:
        parts(arguments.write, "commands.py")  # fail now rather than after minutes
    for build in (["-p", "parkade-cli"], ["-p", "parkade-benches", "--example", "events"]):
        subprocess.run(["cargo", "build", "--locked", "--quiet", "--release", *build], cwd=ROOT, check=True)
    with tempfile.TemporaryDirectory() as folder:
        rows = of_recording(arguments.recording.resolve(), arguments.rounds, Path(folder))
    rows += of_policies()
    if arguments.sweep:
        rows.append(
            [
                "`parkade sweep` on the catalogue and three recordings",
                seconds(best([PARKADE, "sweep", "-w", SWEPT, "--markdown"], 1)),
                "88 s of processor time",
            ]
        )
    head = f"`benches/commands.py {arguments.recording.name} --rounds {arguments.rounds}`, {origin()}:\n\n"
    text = head + "\n".join("| " + " | ".join(row) + " |" for row in [["", "measured", "aim"], ["---"] * 3, *rows])
    print(text)
    if arguments.write:
        replace_marked(arguments.write, "commands.py", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
