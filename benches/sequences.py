#!/usr/bin/env python3
"""Writes the sequences of requests that side_by_side.py times, in the format of
conformance/oracle/pytorch_harness/src/timed.hpp.

benches/sequences.py CASE FILE [--steps N]     writes one case; without arguments, lists the names of all cases

Sizes and places are drawn from the splitmix64 generator with seed 1. The sizes in a mix are log-uniform from
512 B to 8 MiB, those in a
replay from 64 B to 16 MiB. "replay of a recording" consists of the requests in a shipped recording, on one stream.
"""

import argparse
import lzma
import pickle
import sys
from pathlib import Path
from typing import TextIO

RECORDING = Path(__file__).parent.parent / "conformance/recordings/gpt2_varlen.default.pickle.xz"
KIB, MIB = 1 << 10, 1 << 20
MASK = (1 << 64) - 1


class Random:
    """The generator of parkade_benches::Random."""

    def __init__(self, seed: int) -> None:
        self.state = seed

    def number(self) -> int:
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return z ^ (z >> 31)

    def size(self, low: int, doublings: int) -> int:
        """Returns a size of 2^low or more, log-uniform over the given number of doublings."""
        return int(2.0 ** (low + doublings * (self.number() >> 11) / (1 << 53)))


def pairs(size: int):
    return lambda out, steps: print("pairs", size, steps, file=out)


def recorded(size: int):
    return lambda out, steps: print("recorded", size, steps, file=out)


def threads(count: int, size: int):
    return lambda out, steps: print("threads", count, size, steps, file=out)


def mix(live: int):
    def write(out: TextIO, steps: int) -> None:
        random = Random(1)
        print("mix", live, steps, file=out)
        out.writelines(f"{random.size(9, 14)}\n" for _ in range(live))
        out.writelines(f"{random.number() % live} {random.size(9, 14)}\n" for _ in range(steps))

    return write


def replay(live: int):
    """Generates allocations and frees in random order: 60 % are allocations below the given number of live
    blocks, 40 % above it."""

    def write(out: TextIO, steps: int) -> None:
        random = Random(1)
        used, unused = [], list(range(2 * live))
        print("replay", 2 * live, steps, file=out)
        for _ in range(steps):
            allocates = not used or (unused and random.number() % 100 < (60 if len(used) < live else 40))
            taken, given = (unused, used) if allocates else (used, unused)
            place = random.number() % len(taken)
            taken[place], taken[-1] = taken[-1], taken[place]
            slot = taken.pop()
            given.append(slot)
            print(slot, random.size(6, 18) if allocates else 0, file=out)

    return write


def recording(out: TextIO, steps: int) -> None:
    """Returns a recording's requests up to the given number of steps; what has not been freed by the end
    stays allocated."""
    with lzma.open(RECORDING) as file:
        snapshot = pickle.load(file)
    live, unused, slots, lines = {}, [], 0, []
    for entry in (entry for trace in snapshot["device_traces"] for entry in trace):
        if entry["action"] == "alloc" and entry["size"]:
            slot = unused.pop() if unused else slots
            slots = max(slots, slot + 1)
            live[entry["addr"]] = slot
            lines.append(f"{slot} {entry['size']}\n")
        elif entry["action"] == "free_completed" and entry["addr"] in live:
            unused.append(live.pop(entry["addr"]))
            lines.append(f"{unused[-1]} 0\n")
    lines = lines[:steps]
    print("replay", slots, len(lines), file=out)
    out.writelines(lines)


# Each case has its notation and the default number of steps in a round.
CASES = {
    "pair 4 KiB": (pairs(4 * KIB), 200_000),
    "pair 2 MiB": (pairs(2 * MIB), 200_000),
    "pair 32 MiB": (pairs(32 * MIB), 200_000),
    "pair 2 MiB, expandable segments": (pairs(2 * MIB), 200_000),
    "pair 2 MiB, another stream recorded": (recorded(2 * MIB), 50_000),
    "mix of 100": (mix(100), 200_000),
    "mix of 1,000": (mix(1_000), 200_000),
    "mix of 10,000": (mix(10_000), 200_000),
    "mix of 100,000": (mix(100_000), 200_000),
    "mix of 1,000,000": (mix(1_000_000), 200_000),
    "mix of 1,000, expandable segments": (mix(1_000), 200_000),
    "replay, 1,000 live": (replay(1_000), 200_000),
    "replay, 10,000 live": (replay(10_000), 200_000),
    "replay of a recording": (recording, 200_000),
    "1 thread, pair 4 KiB": (threads(1, 4 * KIB), 400_000),
    "2 threads, pair 4 KiB": (threads(2, 4 * KIB), 200_000),
    "4 threads, pair 4 KiB": (threads(4, 4 * KIB), 100_000),
    "8 threads, pair 4 KiB": (threads(8, 4 * KIB), 50_000),
    "16 threads, pair 4 KiB": (threads(16, 4 * KIB), 25_000),
}
# The same sequences again, but with parkade's blocks identified by their addresses, as the other allocators' blocks
# always are.
BY_POINTER = ", by pointer"
for case in (
    "pair 4 KiB",
    "pair 2 MiB",
    "pair 32 MiB",
    "mix of 100",
    "mix of 1,000",
    "mix of 10,000",
    "mix of 100,000",
    "replay of a recording",
):
    CASES[case + BY_POINTER] = CASES[case]


def write(case: str, path: Path, steps: int | None = None) -> None:
    """Writes a case to a file, by default with its usual number of steps per round."""
    make, usual = CASES[case]
    with open(path, "w") as out:
        make(out, steps or usual)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", nargs="?")
    parser.add_argument("file", nargs="?", type=Path)
    parser.add_argument("--steps", type=int)
    arguments = parser.parse_args()
    if not arguments.file:
        print(*CASES, sep="\n")
        return 0
    if arguments.case not in CASES:
        print(f"sequences.py: there is no case {arguments.case!r}; without arguments it lists them", file=sys.stderr)
        return 2
    write(arguments.case, arguments.file, arguments.steps)
    return 0


if __name__ == "__main__":
    sys.exit(main())
