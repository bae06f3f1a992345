"""Asks `parkade advise` whether runs would have fitted that were made on a real GPU, and compares.

python3 conformance/advise_outcomes.py FOLDER [PARKADE]

FOLDER has PROGRAM.default.pickle.xz for each program, and outcomes.jsonl: a line a run with "w" (the program), "conf" (its settings), "limit"
(GiB) and "num_ooms". PARKADE is the binary, target/release/parkade if not given. Exit code 1 if more than one is wrong.
"""

import json
import subprocess
import sys


def main() -> int:
    folder = sys.argv[1]
    parkade = sys.argv[2] if len(sys.argv) > 2 else "target/release/parkade"
    with open(f"{folder}/outcomes.jsonl") as file:
        runs = [json.loads(line) for line in file]
    groups = {}
    for run in runs:
        groups.setdefault((run["w"], run["limit"]), []).append(run)
    right = close = 0
    for (program, limit), group in sorted(groups.items()):
        command = [parkade, "advise", f"{folder}/{program}.default.pickle.xz", "--json", "--only", "--capacity", limit + "GiB"]
        for run in group:
            command += ["--settings", run["conf"]]
        report = json.loads(subprocess.run(command, capture_output=True, text=True).stdout)
        options = {option["settings"]: option for option in report["options"]}
        for run in group:
            option = options[run["conf"]]
            fits = run["num_ooms"] == 0
            right += option["fits"] == fits
            close += option["close"]
            if option["fits"] != fits:
                print(f"wrong: {program} {run['conf']!r} {limit} GiB: fits {fits}; close: {option['close']}, timings: {option['timings']}")
    print(f"{right} of {len(runs)} outcomes right; {close} are called close")
    return int(len(runs) - right > 1)


if __name__ == "__main__":
    sys.exit(main())
