#!/usr/bin/env python3
"""Times parkade's core and the real allocators on the same sequences of requests, and prints ratios.

benches/side_by_side.py [--rounds N] [--cases TEXT...] [--only NAME...] [--rebuild] [--write docs/speed.md]

Builds the programs that are missing or older than their sources: parkade's program, PyTorch's allocator
(conformance/oracle/pytorch_harness), RMM's pool and TensorFlow's BFC
(conformance/other_allocators). Each runs in a separate process that reads the case's sequence, waits for a word, runs the steps once and answers
with the nanoseconds per step, so that only the steps are timed. The processes take turns, round by round, and
processor time is measured, so that other load on the machine affects all of them equally. Every allocator
runs on a device whose calls cost almost nothing.

A time is the median of the rounds. A ratio is the median of the rounds' ratios, with the range of their middle half.
If valgrind is installed, the instructions of a step are also counted.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles

import sequences
from page import origin, parts, replace_marked

ROOT = Path(__file__).resolve().parent.parent
DEVICE_BYTES = str(1 << 42)
POOL_BYTES = str(1 << 30)


@dataclass(frozen=True)
class Allocator:
    """A program that times sequences, and how it is built."""

    name: str
    program: list[str]
    build: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    sources: tuple[str, ...] = ()

    def is_built(self) -> bool:
        """Returns whether the program exists and is newer than its sources. Without sources, the build
        command decides."""
        program = ROOT / self.program[0]
        return (
            bool(self.sources)
            and program.exists()
            and all(program.stat().st_mtime > (ROOT / source).stat().st_mtime for source in self.sources)
        )


HARNESS, OTHERS = "conformance/oracle/pytorch_harness", "conformance/other_allocators"
PARKADE = Allocator(
    "parkade",
    ["target/wheel/timed"],
    ["cargo", "build", "--locked", "--quiet", "--profile", "wheel", "-p", "parkade-benches", "--bin", "timed"],
)
PYTORCH = Allocator(
    "PyTorch 2.11",
    ["target/oracle/timed-2.11.0"],
    [f"{HARNESS}/setup.sh", "11"],
    {"FAKE_GPU_BYTES": DEVICE_BYTES, "FAKE_EVENTS_AUTO": "1"},
    sources=tuple(f"{HARNESS}/src/{name}" for name in ("timed.cpp", "timed.hpp", "fakecuda.cpp")),
)
RMM = Allocator(
    "RMM pool",
    ["target/peers/rmm_peer", "pool", DEVICE_BYTES, POOL_BYTES, "-", "timed"],
    [f"{OTHERS}/build_rmm.sh"],
    sources=(
        f"{HARNESS}/src/timed.hpp",
        *(f"{OTHERS}/src/{name}" for name in ("rmm_peer.cpp", "fake_cudart.cpp", "common.hpp")),
    ),
)
BFC = Allocator(
    "TensorFlow BFC",
    ["target/peers/bfc_peer", "grow", DEVICE_BYTES, DEVICE_BYTES, "timed"],
    [f"{OTHERS}/build_bfc.sh"],
    sources=(f"{HARNESS}/src/timed.hpp", *(f"{OTHERS}/src/{name}" for name in ("bfc_peer.cpp", "common.hpp"))),
)
ALLOCATORS = [PARKADE, PYTORCH, RMM, BFC]
# The other allocators have no expandable segments and record no streams. RMM searches its single list of free blocks
# from end to end, which takes minutes per round. BFC needs 8 bytes for every 256 bytes of the device, which adds up to
# gigabytes.
LEFT_OUT = {
    "pair 2 MiB, expandable segments": {RMM.name, BFC.name},
    "mix of 1,000, expandable segments": {RMM.name, BFC.name},
    "pair 2 MiB, another stream recorded": {RMM.name, BFC.name},
    "mix of 100,000": {RMM.name, BFC.name},
    "mix of 1,000,000": {RMM.name, BFC.name},
}
# The target factors by which parkade should be faster than PyTorch's allocator.
AIMS = {
    **dict.fromkeys(("pair 4 KiB", "pair 2 MiB", "pair 32 MiB", "pair 2 MiB, expandable segments"), 7),
    **dict.fromkeys(("mix of 100", "mix of 1,000", "mix of 10,000", "mix of 1,000, expandable segments"), 5),
    **dict.fromkeys(("replay, 1,000 live", "replay, 10,000 live", "replay of a recording"), 5),
    "pair 2 MiB, another stream recorded": 5,
    **dict.fromkeys((f"pair {size}{sequences.BY_POINTER}" for size in ("4 KiB", "2 MiB", "32 MiB")), 6),
    **dict.fromkeys((f"mix of {live}{sequences.BY_POINTER}" for live in ("100", "1,000")), 4),
}
MOST_INSTRUCTIONS = {"pair 4 KiB": 520, "pair 2 MiB": 520, "pair 32 MiB": 520, "mix of 1,000": 780}
# The number of steps in cases whose instructions are counted: fewer, because valgrind is slow.
COUNTED = {
    "pair 4 KiB": 5_000,
    "pair 2 MiB": 5_000,
    "pair 32 MiB": 5_000,
    f"pair 4 KiB{sequences.BY_POINTER}": 5_000,
    "pair 2 MiB, expandable segments": 5_000,
    "pair 2 MiB, another stream recorded": 5_000,
    "mix of 100": 10_000,
    "mix of 1,000": 10_000,
    f"mix of 1,000{sequences.BY_POINTER}": 10_000,
}


class Running:
    """A program with its sequence, ready to run the steps."""

    def __init__(self, allocator: Allocator, case: str, sequence: Path) -> None:
        self.name = allocator.name
        self.process = subprocess.Popen(
            [ROOT / allocator.program[0], *allocator.program[1:], sequence],
            env=environment(allocator, case),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.grown_bytes = int(self.line().split()[1])
        self.rounds: list[float] = []

    def line(self) -> str:
        line = self.process.stdout.readline()
        if not line:
            sys.exit(
                f"side_by_side.py: {self.name} ended early, with exit code {self.process.wait()}: run {self.process.args} to see why"
            )
        return line

    def run(self) -> float:
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self.line())

    def end(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def environment(allocator: Allocator, case: str) -> dict[str, str]:
    own = {
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True" if "expandable" in case else "",
        "PARKADE_BY_POINTER": "1" if case.endswith(sequences.BY_POINTER) else "0",
    }
    return {**os.environ, **allocator.environment, **own, "TF_CPP_MIN_LOG_LEVEL": "3"}


def build(allocators: list[Allocator], again: bool) -> list[Allocator]:
    """Builds the programs that are missing or older than their sources, and returns those that can be run."""
    built = []
    for allocator in allocators:
        if again or not allocator.is_built():
            print("building:", *allocator.build, file=sys.stderr)
            if subprocess.run(allocator.build, cwd=ROOT, stdout=sys.stderr).returncode:
                print(f"left out: {allocator.name}, which could not be built", file=sys.stderr)
                continue
        built.append(allocator)
    if PARKADE not in built:
        sys.exit("side_by_side.py: without parkade there is nothing to compare")
    return built


def measure(allocators: list[Allocator], case: str, rounds: int, folder: Path) -> dict[str, Running]:
    """Runs a case in all allocators that support it, in turns. The first round is a warm-up."""
    print("timing:", case, file=sys.stderr)
    sequence = folder / "sequence"
    sequences.write(case, sequence)
    running = [
        Running(allocator, case, sequence)
        for allocator in allocators
        if allocator.name not in LEFT_OUT.get(case.removesuffix(sequences.BY_POINTER), ())
    ]
    for number in range(rounds + 1):
        for one in running:
            nanoseconds = one.run()
            if number:
                one.rounds.append(nanoseconds)
    for one in running:
        one.end()
    return {one.name: one for one in running}


def instructions(allocator: Allocator, case: str, folder: Path) -> float:
    """Returns the instructions per step: the difference between a process's first and second round."""
    steps = COUNTED[case]
    sequence = folder / "sequence"
    sequences.write(case, sequence, steps)
    command = [
        "valgrind",
        "--tool=callgrind",
        "--callgrind-out-file=/dev/null",
        ROOT / allocator.program[0],
        *allocator.program[1:],
        sequence,
    ]
    counts = []
    for lines in ("\n", "\n\n"):
        done = subprocess.run(command, env=environment(allocator, case), input=lines, capture_output=True, text=True)
        found = re.search(r"Collected : (\d+)", done.stderr)
        if done.returncode or not found:
            sys.exit(f"side_by_side.py: valgrind could not count {allocator.name}'s instructions:\n{done.stderr}")
        counts.append(int(found[1]))
    return (counts[1] - counts[0]) / steps


def ratio(one: Running, ours: Running) -> tuple[float, str]:
    """Returns the ratio of one allocator's time to the other's, with the range of the middle half of the rounds."""
    ratios = [theirs / own for theirs, own in zip(one.rounds, ours.rounds)]
    low, middle, high = quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    return middle, f"{middle:.1f} ({low:.1f} to {high:.1f})"


def threads_of(case: str) -> int:
    """Returns the number of threads of a case that measures threads, and 0 for other cases."""
    found = re.match(r"(\d+) threads?, ", case)
    return int(found[1]) if found else 0


def row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def table_of_times(measured: dict[str, dict[str, Running]], names: list[str]) -> list[str]:
    others = [name for name in names if name != PARKADE.name]
    head = ["nanoseconds a step", *names, *(f"{name} / parkade" for name in others), "aim"]
    lines = [row(head), "|---" + "|--:" * (len(head) - 1) + "|"]
    for case, running in measured.items():
        if threads_of(case):
            continue
        times = [f"{median(running[name].rounds):.1f}" if name in running else "" for name in names]
        ratios = {name: ratio(running[name], running[PARKADE.name]) for name in others if name in running}
        aim = ""
        if case in AIMS and PYTORCH.name in ratios:
            aim = f"{AIMS[case]} x PyTorch" + ("" if ratios[PYTORCH.name][0] >= AIMS[case] else ": not reached")
        lines.append(row([case, *times, *(ratios[name][1] if name in ratios else "" for name in others), aim]))
    return lines


def table_of_sums(
    measured: dict[str, dict[str, Running]], counts: dict[str, dict[str, float]], names: list[str]
) -> list[str]:
    """Returns the rows that combine several cases or are not times."""
    lines = [row(["", *names, "aim for parkade"]), "|---" + "|--:" * (len(names) + 1) + "|"]

    def middle(case: str, name: str) -> float:
        return median(measured[case][name].rounds)

    def each(text: str, digits: int, value, *needed: str, least: float = 0.0, most: float = float("inf")) -> None:
        """Returns a row with a number for each allocator that has all the required cases; the target range
        for parkade is from least to most."""
        numbers = {name: value(name) for name in names if all(name in measured.get(case, {}) for case in needed)}
        if not numbers:
            return
        aim = f"at least {least:g}" if least else f"at most {most:g}" if most < float("inf") else ""
        if aim and not least <= numbers[PARKADE.name] <= most:
            aim += ": not reached"
        lines.append(row([text, *(f"{numbers[name]:,.{digits}f}" if name in numbers else "" for name in names), aim]))

    for case in ("replay, 1,000 live", "replay, 10,000 live", "replay of a recording"):
        each(f"{case}: million events a second", 1, lambda name: 1e3 / middle(case, name), case)
    one = "1 thread, pair 4 KiB"
    for case in measured:
        if (count := threads_of(case)) > 1:
            text = f"{count} threads, each on its stream: pairs a second, over those of one"
            each(
                text,
                2,
                lambda name, case=case: middle(one, name) / middle(case, name),
                one,
                case,
                least=1 if count == 2 else 0,
            )
    few, many = "mix of 100,000", "mix of 1,000,000"
    each(
        "a step of the mix of 1,000,000, over one of 100,000",
        2,
        lambda name: middle(many, name) / middle(few, name),
        few,
        many,
        most=3,
    )
    for live in (10_000, 1_000_000):
        case = f"mix of {live:,}"
        each(
            f"{case}: bytes of memory a live block",
            0,
            lambda name: measured[case][name].grown_bytes / live,
            case,
            most=96,
        )
    pointers = f"mix of 100,000{sequences.BY_POINTER}"
    each(
        f"{pointers}: bytes of memory a live block",
        0,
        lambda name: measured[pointers][name].grown_bytes / 100_000,
        pointers,
    )
    for case, count in counts.items():
        each(f"{case}: instructions a step", 0, count.__getitem__, case, most=MOST_INSTRUCTIONS.get(case, float("inf")))
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--cases", nargs="+", metavar="TEXT", help="only cases whose name contains one of these")
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", help="beside parkade, only allocators whose name contains one of these"
    )
    parser.add_argument(
        "--rebuild", action="store_true", help="rebuild the real allocators' programs, even those that already exist"
    )
    parser.add_argument(
        "--write", type=Path, metavar="PAGE", help="also write the tables into a page, between its markers"
    )
    arguments = parser.parse_args()
    if arguments.write:
        parts(arguments.write, "side_by_side.py")  # fail now rather than after minutes
    allocators = [
        one
        for one in ALLOCATORS
        if one is PARKADE or not arguments.only or any(text.lower() in one.name.lower() for text in arguments.only)
    ]
    cases = [case for case in sequences.CASES if not arguments.cases or any(text in case for text in arguments.cases)]
    allocators = build(allocators, arguments.rebuild)
    names = [one.name for one in allocators]
    with tempfile.TemporaryDirectory() as folder:
        measured = {case: measure(allocators, case, arguments.rounds, Path(folder)) for case in cases}
        counts = {}
        for case in (case for case in COUNTED if case in cases and shutil.which("valgrind")):
            print("counting:", case, file=sys.stderr)
            counts[case] = {
                one.name: instructions(one, case, Path(folder)) for one in allocators if one.name in measured[case]
            }
    lines = [f"`benches/side_by_side.py --rounds {arguments.rounds}`, {origin()}:", ""]
    lines += table_of_times(measured, names) + [""] + table_of_sums(measured, counts, names)
    if not shutil.which("valgrind"):
        lines += ["", "Instructions were not counted: valgrind is not installed."]
    text = "\n".join(lines)
    print(text)
    if arguments.write:
        replace_marked(arguments.write, "side_by_side.py", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
