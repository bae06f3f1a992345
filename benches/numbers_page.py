#!/usr/bin/env python3
"""Runs the sweep of docs/numbers.md and writes its tables between the markers on that page.

python3 benches/numbers_page.py           writes the tables into the page
python3 benches/numbers_page.py --check   exits with 1 if the page has different tables

The same sources produce the same tables. The release build is brought up to date first. --rows FILE keeps the
rows of the sweep, so that an interrupted sweep can continue where it stopped; further options for `parkade
sweep`, such as --threads, can follow after `--`.
"""

import argparse
import re
import subprocess
import sys
import textwrap
from pathlib import Path

from page import parts, replace_marked

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/numbers.md"
SHIPPED = "conformance/recordings"
# One shipped recording of each kind: a simple one, one with several streams, one with graphs and private pools, and
# one of serving.
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
SWEPT = ["-w", ",".join(["all", *(f"{SHIPPED}/{name}.pickle.xz" for name in RECORDINGS)]), "-p", "all"]


def tables(more: list[str]) -> str:
    """Returns the output of the sweep."""
    subprocess.run(["cargo", "build", "--locked", "--quiet", "--release", "-p", "parkade-cli"], cwd=ROOT, check=True)
    command = ["target/release/parkade", "sweep", *SWEPT, "--markdown", *more]
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def on_lines(text: str) -> str:
    """Returns notes with one sentence per line and no line too long."""
    lines = []
    for line in text.split("\n"):
        sentences = [line] if line.startswith("|") else re.split(r"(?<=\.) (?=[A-Z–])", line)
        for sentence in sentences:
            lines += (
                [sentence]
                if line.startswith("|")
                else textwrap.wrap(sentence, 190, break_long_words=False, break_on_hyphens=False) or [""]
            )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only check that the page matches the sweep")
    parser.add_argument(
        "--rows", type=Path, metavar="FILE", help="keep the rows in this file, or continue from the rows in it"
    )
    parser.add_argument("more", nargs="*", metavar="OPTION", help="more options of parkade sweep")
    arguments = parser.parse_args()
    before, after = parts(PAGE, "numbers_page.py")  # fail now rather than after minutes
    kept = ["-o", str(arguments.rows.resolve())] if arguments.rows else []
    text = on_lines(tables([*kept, *arguments.more]))
    if not arguments.check:
        replace_marked(PAGE, "numbers_page.py", text)
        return 0
    if PAGE.read_text() == f"{before}\n\n{text}\n\n{after}":
        return 0
    print(f"{PAGE} is out of date: run python3 benches/numbers_page.py to update its tables", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
