"""Writes the measurements of the other programs in this folder to a page, between two markers, with the place
of the measurement."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path


def parts(path: Path, program: str) -> tuple[str, str]:
    """Returns the part of a page up to and including a program's first marker, and the part from its second
    marker. Ends the program if a marker is missing."""
    first, second = f"<!-- what benches/{program} writes -->", f"<!-- the end of what benches/{program} writes -->"
    page = path.read_text() if path.exists() else ""
    if page.count(first) != 1 or page.count(second) != 1 or page.index(first) > page.index(second):
        sys.exit(f"{program}: {path} must contain the line {first} and, after it, the line {second}, once each")
    return page[: page.index(first)] + first, page[page.index(second) :]


def replace_marked(path: Path, program: str, text: str) -> None:
    """Writes the text between a program's markers."""
    before, after = parts(path, program)
    path.write_text(f"{before}\n\n{text}\n\n{after}")


def origin() -> str:
    """Returns the day, the commit and the machine, in words."""
    root = Path(__file__).resolve().parent
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=root, capture_output=True, text=True
    ).stdout.strip()
    if subprocess.run(["git", "diff", "--quiet", "HEAD", "--", ":/", ":!/docs"], cwd=root).returncode:
        commit += " with changes"
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return f"{time.strftime('%-d %B %Y')}, commit {commit}, {cpu[1] if cpu else 'unknown processor'}, {os.cpu_count()} processors"
