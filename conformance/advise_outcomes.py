#!/usr/bin/env python3
"""Compares the answers of `parkade advise` with the outcomes of real runs.

FOLDER holds PROGRAM.default.pickle.xz for each program, and outcomes.jsonl with one line per run: "w" (the program), "conf" (its
settings), "limit" (GiB) and "num_ooms". `parkade advise` is asked whether each run fits; a run that fits had no out-of-memory error.

Exit code: 1 if more than one answer is wrong.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path


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
    runs = [json.loads(line) for line in (folder / "outcomes.jsonl").read_text().splitlines()]
    groups = {}
    for run in runs:
        groups.setdefault((run["w"], run["limit"]), []).append(run)
    right = close = 0
    for (program, limit), group in sorted(groups.items()):
        command = [
            parkade,
            "advise",
            f"{folder}/{program}.default.pickle.xz",
            "--json",
            "--only",
            "--capacity",
            limit + "GiB",
        ]
        for run in group:
            command += ["--settings", run["conf"]]
        advice = json.loads(subprocess.run(command, capture_output=True, text=True).stdout)
        options = {option["settings"]: option for option in advice["options"]}
        for run in group:
            option = options[run["conf"]]
            fits = run["num_ooms"] == 0
            right += option["fits"] == fits
            close += option["close"]
            if option["fits"] != fits:
                print(
                    f"wrong: {program} {run['conf']!r} {limit} GiB: fits {fits}; close: {option['close']}, timings: {option['timings']}"
                )
    print(f"{right} of {len(runs)} outcomes right; {close} are called close")
    return int(len(runs) - right > 1)


if __name__ == "__main__":
    sys.exit(main())
