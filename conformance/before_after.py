#!/usr/bin/env python3
"""Compares two parkade binaries, for example from before and after a change that must not change any answer.

  conformance/before_after.py OLD NEW [FOLDER]

Every command that reads a recording runs on every recording in FOLDER (by default conformance/recordings) with both binaries, with `--json` if the
command has it; then `conform --list` runs. Output, messages and exit codes must be equal, except for build names and times, and for policies whose
names changed (NAMES below). Exit code: 1 if anything differs, 2 if a binary cannot run.
"""

import argparse
import concurrent.futures
import os
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
COMMANDS = [
    ["verify", "{}", "--json"],
    ["stats", "{}", "--json"],
    ["diagnose", "{}", "--json"],
    ["advise", "{}", "--json"],
    ["advise", "{}", "--policy", "compaction", "--json"],
    ["replay", "{}", "--json"],
    ["replay", "{}", "--settings", "expandable_segments:True", "--json"],
    ["replay", "{}", "--policy", "best-fit-remap", "--json"],
    ["export", "{}", "--output", "-"],
    ["report", "{}"],
]
# Names that have since become parameters, with their meaning.
NAMES = [
    ("pytorch-2.15-expandable", "pytorch:release=2.15;settings=[expandable_segments:True]"),
    ("pytorch-2.15", "pytorch:release=2.15"),
    ("first-fit-remap", "best-fit-remap:fit=first"),
    ("next-fit-remap", "best-fit-remap:fit=next"),
    ("worst-fit-remap", "best-fit-remap:fit=worst"),
    ("bfc-one-region", "bfc:kind=one-region"),
    ("bfc-xla-growth", "bfc:kind=xla-growth"),
    ("bfc-xla", "bfc:kind=xla"),
]


def run(binary: str, arguments: list[str]) -> tuple[int, str, str]:
    """Returns the exit code, the output without the parts that may differ, and the messages."""
    done = subprocess.run([binary, *arguments], capture_output=True)
    output = re.sub(r'"(seconds|took_s|build)": *[^,}\n]*', r'"\1": 0', done.stdout.decode(errors="replace"))
    return done.returncode, output, done.stderr.decode(errors="replace")


def entries(binary: str) -> set[str]:
    """Returns the entries of the suite under their current names."""
    text = run(binary, ["conform", "--list"])[1]
    for old, new in NAMES:
        text = text.replace(f"policy/{old}/", f"policy/{new}/")
    return {" ".join(line.split()) for line in text.splitlines()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=os.path.abspath)
    parser.add_argument("new", type=os.path.abspath)
    parser.add_argument("folder", nargs="?", type=Path, default=HERE / "recordings")
    options = parser.parse_args()
    recordings = sorted(path for path in options.folder.rglob("*.pickle*") if path.is_file())
    jobs = [([part.format(path) for part in command], path) for path in recordings for command in COMMANDS]
    if not jobs:
        print(f"no recording (*.pickle, *.pickle.xz) is in {options.folder}", file=sys.stderr)
        return 2

    def differs(job: tuple[list[str], Path]) -> str | None:
        arguments, _ = job
        old, new = (run(binary, arguments) for binary in (options.old, options.new))
        if old == new:
            return None
        part = ["exit codes", "outputs", "messages"][next(at for at in range(3) if old[at] != new[at])]
        return f"{part} differ: parkade {' '.join(arguments)}"

    try:
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            different = [line for line in pool.map(differs, jobs) if line]
        old, new = entries(options.old), entries(options.new)
    except OSError as error:
        print(f"before_after.py: {error}", file=sys.stderr)
        return 2
    print("\n".join(different[:40]))
    print(f"{len(jobs)} runs on {len(recordings)} recordings: {len(different)} differ")
    print(f"entries of conform: {len(old)} and {len(new)}; {len(old - new)} only before, {len(new - old)} only after")
    for line in sorted(old ^ new)[:40]:
        print(("- " if line in old else "+ ") + line[:150])
    return 1 if different or old != new else 0


if __name__ == "__main__":
    sys.exit(main())
