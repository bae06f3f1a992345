#!/usr/bin/env python3
"""Compares the predictions of `parkade replay` with the outcomes of real runs.

FOLDER holds PROGRAM.default.pickle.xz for each program, and outcomes.jsonl with one line per run: "w" (the program), "conf" (its
settings), "limit" (GiB), "num_ooms" and "reserved_bytes.all.peak". `parkade replay` predicts each run from the program's recording:
whether it fits, and its peak.

Exit code: 1 if more than one prediction of whether a run fits is wrong.
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
    right = fitted = exact = 0
    for run in runs:
        command = [parkade, "replay", f"{folder}/{run['w']}.default.pickle.xz", "--json"]
        command += ["--settings", run["conf"], "--limit", run["limit"] + "GiB"]
        replayed = json.loads(subprocess.run(command, capture_output=True, text=True).stdout)
        fits = run["num_ooms"] == 0
        if replayed["fits"] == fits:
            right += 1
        else:
            extremes = f"{replayed.get('fits_earliest', '-')} / {replayed.get('fits_latest', '-')}"
            print(
                f"wrong: {run['w']} {run['conf']!r} {run['limit']} GiB: fits {fits}, predicted {replayed['fits']}; at the extremes of timing {extremes}"
            )
        if fits:
            fitted += 1
            exact += replayed["peak_reserved_bytes"] == run["reserved_bytes.all.peak"]
    print(
        f"{right} of {len(runs)} outcomes right; of the {fitted} that fit, {exact} have the exact peak of reserved bytes"
    )
    return int(len(runs) - right > 1)


if __name__ == "__main__":
    sys.exit(main())
