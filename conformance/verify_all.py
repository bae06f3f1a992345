#!/usr/bin/env python3
"""Verifies every recording of a folder with its statistics and prints the table of docs/fidelity.md.

  verify_all.py DIR [--parkade target/release/parkade]

A recording's limit, which it does not contain, is in its name: limit16 is 16 GiB; cuda_graph.limit1 is 1.15 GiB.
Exit code 1 if anything differs.
"""
import argparse
import json
import pathlib
import re
import subprocess
import sys

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("folder", type=pathlib.Path)
parser.add_argument("--parkade", default="target/release/parkade")
options = parser.parse_args()

print("| recording | limit | entries | compared | mismatches | statistics that differ |\n|---|---|---|---|---|---|")
worst = 0
for path in sorted(options.folder.glob("*.pickle.xz")):
    name = path.name.removesuffix(".pickle.xz")
    found = re.search(r"limit(\d+)", name)
    limit = {"cuda_graph.limit1": "1.15GiB"}.get(name, f"{found[1]}GiB" if found else None)
    command = [options.parkade, "verify", path, "--json", "--stats", path.with_name(f"{name}.stats.json")]
    run = subprocess.run(command + (["--limit", limit] if limit else []), capture_output=True, text=True)
    worst = max(worst, run.returncode)
    answer = json.loads(run.stdout)
    if "error" in answer:
        print(f"| {name} | {limit or ''} | {answer['error']} | | | |")
        continue
    statistics = answer["statistics"]
    known = f"{len(statistics['differences'])} of {statistics['compared']}"
    print(f"| {name} | {limit or ''} | {answer['entries']:,} | {answer['decisions']:,} | {answer['mismatches']} | {known} |")
sys.exit(worst)
