"""Asks `parkade replay` whether runs would have fitted that were made on a real GPU, and compares.

python3 conformance/predict_outcomes.py FOLDER [PARKADE]

FOLDER has PROGRAM.default.pickle.xz for each program, and outcomes.jsonl: a line a run with "w" (the program), "conf" (its settings), "limit"
(GiB), "num_ooms" and "reserved_bytes.all.peak". PARKADE is the binary, target/release/parkade if not given. Exit code 1 if more than one is
wrong.
"""

import json
import subprocess
import sys


def main() -> int:
    folder = sys.argv[1]
    parkade = sys.argv[2] if len(sys.argv) > 2 else "target/release/parkade"
    with open(f"{folder}/outcomes.jsonl") as file:
        runs = [json.loads(line) for line in file]
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
            print(f"wrong: {run['w']} {run['conf']!r} {run['limit']} GiB: fits {fits}, predicted {replayed['fits']}; at the extremes of timing {extremes}")
        if fits:
            fitted += 1
            exact += replayed["peak_reserved_bytes"] == run["reserved_bytes.all.peak"]
    print(f"{right} of {len(runs)} outcomes right; of the {fitted} that fitted {exact} with the exact peak of reserved bytes")
    return int(len(runs) - right > 1)


if __name__ == "__main__":
    sys.exit(main())
