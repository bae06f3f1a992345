#!/usr/bin/env python3
"""Compares `parkade stats --steps` with the statistics that real runs printed after each step.

FOLDER holds recordings (PROGRAM.NAME.pickle.xz) and steps.jsonl with one line per step: "w" (the program), "conf" (its settings), "limit"
(GiB, or empty), "step" (a number) and keys of memory_stats(). A recording is compared if steps.jsonl has as many steps for its program,
settings and limit as the recording marks, or one more: the step in which the program died.

Exit code: 1 if anything differs.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

NOT_KEYS = {"w", "conf", "limit", "step"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", metavar="FOLDER", type=Path)
    parser.add_argument(
        "parkade",
        metavar="PARKADE",
        nargs="?",
        default="target/release/parkade",
        help="the binary (default: %(default)s)",
    )
    arguments = parser.parse_args()
    folder, parkade = arguments.folder, arguments.parkade
    runs = {}
    for line in (folder / "steps.jsonl").read_text().splitlines():
        row = json.loads(line)
        if isinstance(row["step"], int) and row["limit"] is not None:
            runs.setdefault((row["w"], row["conf"], row["limit"]), []).append(row)
    differ = compared = 0
    for path in sorted(folder.glob("*.pickle.xz")):
        name = path.name.removesuffix(".pickle.xz")
        limits = {
            limit
            for program, _, limit in runs
            if program == name.split(".")[0] and limit and f"limit{limit.split('.')[0]}" in name
        }
        if "tail" in name or len(limits) > 1:
            continue
        limit = limits.pop() if limits else ""
        command = [parkade, "stats", str(path), "--steps", "--json"] + (["--limit", limit + "GiB"] if limit else [])
        shown = json.loads(subprocess.run(command, capture_output=True, text=True).stdout)
        truth = runs.get((name.split(".")[0], shown.get("settings"), limit), [])
        moments = shown["devices"][0]["moments"] if "devices" in shown else []
        if not moments or len(truth) - len(moments) not in (0, 1):
            print(f"{name}: not compared, because {len(moments)} steps are marked and {len(truth)} were printed")
            continue
        wrong = [
            f"step {row['step']} {key}: {moment['memory_stats'][key]}, printed {value}"
            for moment, row in zip(moments, truth)
            for key, value in row.items()
            if key in moment["memory_stats"] and moment["memory_stats"][key] != value
        ]
        keys = sum(key in moments[0]["memory_stats"] for key in truth[0].keys() - NOT_KEYS)
        compared += len(moments) * keys
        differ += len(wrong)
        print(f"{name}: {len(moments)} steps, {keys} keys each, {len(wrong)} differ {wrong[:1]}")
    print(f"{differ} of {compared} numbers differ")
    return int(differ > 0)


if __name__ == "__main__":
    sys.exit(main())
