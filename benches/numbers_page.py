#!/usr/bin/env python3
"""Runs the sweeps of docs/numbers.md and writes its tables between the markers on that page.

python3 benches/numbers_page.py           writes the tables into the page
python3 benches/numbers_page.py --check   exits with 1 if the page has different tables

The same sources produce the same tables. The release build is brought up to date first.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

from page import parts, replace_marked

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/numbers.md"
# One shipped recording of each kind: simple ones, one with several streams, graphs and private pools, and serving.
RECORDINGS = [
    "deep_mlp.default",
    "gpt2_varlen.default",
    "resnet50_sweep.default",
    "prefetch_streams.default",
    "pools/graph_reset.default.2",
    "pools/mempool.default.2",
    "studies/cuda_graph.default",
    "studies/llm_serving.tail300k",
]
# The policies of the table by workload; the others are variants of them or hardly differ from one of them.
SHOWN = ["pytorch", "pytorch-expandable", "best-fit-remap", "bfc", "rmm-pool", "cuda-async", "stalloc", "gmlake-like"]
NONE = "–"


def sweep(workloads: list[str]) -> dict:
    """Returns the results of a sweep over these workloads."""
    run = subprocess.run(
        ["target/release/parkade", "sweep", *workloads, "--json"],
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return json.loads(run.stdout)


def table(header: list[str], rows: list[list[str]]) -> str:
    """Returns a table whose first column is text and whose other columns are numbers."""
    lines = [header, ["---"] + ["--:"] * (len(header) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def mean(level: dict | None, unit: float = 1, decimals: int = 3) -> str:
    return f"{level['mean'] / unit:.{decimals}f}" if level else NONE


def by_policy(groups: list[dict]) -> str:
    """Returns the table of policies, with the same columns for each group of workloads."""
    rows = []
    for of_groups in zip(*(group["policies"] for group in groups)):
        row = [f"`{of_groups[0]['policy']}`"]
        for policy in of_groups:
            memory, total = policy["memory_over_load"], len(policy["workloads"])
            fits = f"{round(policy['fits']['1.1'] * total)} of {total}"
            driver = mean(policy["driver_ns"]["plenty"], 1e6, 1)
            row += [mean(memory), f"{memory['low']:.2f}–{memory['high']:.2f}", fits, driver]
        rows.append(row)
    titles = ["recorded", "range", "in 1.1", "ms", "generated", "range", "in 1.1", "ms"]
    return table(["policy", *titles], rows)


def by_workload(groups: list[dict]) -> str:
    """Returns the table of workloads, recorded ones first."""
    rows = []
    for group in groups:
        shown = [policy["workloads"] for policy in group["policies"] if policy["policy"] in SHOWN]
        order = [policy["policy"] for policy in group["policies"] if policy["policy"] in SHOWN]
        for bounds, *cells in zip(group["bounds"], *shown):
            of = {name: mean(cell["memory_over_load"]) for name, cell in zip(order, cells)}
            packed = mean(bounds["packing_over_load"]) + ("" if bounds["packing_converged"] else "*")
            values = [of[name] for name in SHOWN]
            rows.append([bounds["workload"], *values, mean(bounds["load_with_pools_over_load"]), packed])
    return table(["workload", *SHOWN, "LOAD with pools", "packed"], rows)


def tables() -> str:
    """Returns what stands between the markers."""
    subprocess.run(["cargo", "build", "--locked", "--quiet", "--release", "-p", "parkade-cli"], cwd=ROOT, check=True)
    recordings = [f"conformance/recordings/{name}.pickle.xz" for name in RECORDINGS]
    groups = [sweep(recordings), sweep(["all"])]
    folder, cut = "conformance/recordings/", RECORDINGS.index("pools/graph_reset.default.2")
    first, rest = ",".join(RECORDINGS[:cut]), ",".join(RECORDINGS[cut:])
    commands = f"parkade sweep --all {folder}{{{first},\\\n{rest}}}.pickle.xz\nparkade sweep --all all"
    return f"{by_policy(groups)}\n\n### By workload\n\n{by_workload(groups)}\n\n```\n{commands}\n```"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only check that the page matches the sweeps")
    arguments = parser.parse_args()
    before, after = parts(PAGE, "numbers_page.py")  # fail now rather than after minutes
    text = tables()
    if not arguments.check:
        replace_marked(PAGE, "numbers_page.py", text)
        return 0
    if PAGE.read_text() == f"{before}\n\n{text}\n\n{after}":
        return 0
    print(f"{PAGE} is out of date: run python3 benches/numbers_page.py to update its tables", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
