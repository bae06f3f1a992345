#!/usr/bin/env python3
"""Verifies every recording of a folder and prints a table (Markdown).

FOLDER holds recordings (NAME.pickle.xz), each with the memory_stats() of its run (NAME.stats.json). For example:

  cargo build --release
  python3 conformance/verify_all.py conformance/recordings
  python3 conformance/verify_all.py conformance/recordings/pools

A recording does not contain the memory limit of its run, so the name says it: limit16 is 16 GiB. The limits of cuda_graph.limit1,
mempool_oom* and *_gc.*, which are not a whole number of GiB, are in this script.

Exit code: 1 if anything differs.
"""

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path


def limit_of(name: str) -> str | None:
    """The run's memory limit as a value of --limit. conformance/src/shipped.rs has the same rules."""
    if name == "cuda_graph.limit1":
        return "1.15GiB"
    if name.startswith("mempool_oom"):
        # One byte below 400 MiB: the limit was set as a fraction of the device's memory.
        return str(400 * 2**20 - 1)
    if "_gc." in name:
        return "260MiB"
    found = re.search(r"limit(\d+)", name)
    return f"{found[1]}GiB" if found else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", metavar="FOLDER", type=Path)
    parser.add_argument(
        "--parkade", metavar="PATH", default="target/release/parkade", help="the binary (default: %(default)s)"
    )
    options = parser.parse_args()
    recordings = sorted(options.folder.glob("*.pickle.xz"))
    if not recordings:
        parser.error(f"{options.folder} has no recordings (*.pickle.xz)")

    print("| recording | limit | entries | compared | mismatches | statistics that differ |\n|---|---|---|---|---|---|")
    worst = 0
    for path in recordings:
        name = path.name.removesuffix(".pickle.xz")
        limit = limit_of(name)
        command = [options.parkade, "verify", path, "--json", "--stats", path.with_name(f"{name}.stats.json")]
        run = subprocess.run(command + (["--limit", limit] if limit else []), capture_output=True, text=True)
        worst = max(worst, run.returncode)
        answer = json.loads(run.stdout)
        if "error" in answer:
            print(f"| {name} | {limit or ''} | {answer['error']} | | | |")
            continue
        statistics = answer["statistics"]
        differing = f"{len(statistics['differences'])} of {statistics['compared']}"
        print(
            f"| {name} | {limit or ''} | {answer['entries']:,} | {answer['decisions']:,} | {answer['mismatches']} | {differing} |"
        )
    return worst


if __name__ == "__main__":
    sys.exit(main())
