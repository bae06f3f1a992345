"""The cost of an import: next to nothing, because every name is loaded when it is used."""

from __future__ import annotations

import ast
import subprocess
import sys
import time
from pathlib import Path

import parkade


def test_an_import_loads_nothing_else():
    code = "import sys, parkade; print(sorted(name for name in sys.modules if name.startswith('parkade')))"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        == "['parkade']\n"
    )


def least_seconds(*arguments: str) -> float:
    """The minimum of several runs, because others may use the machine."""
    times = []
    for _ in range(7):
        begun = time.perf_counter()
        subprocess.run([sys.executable, *arguments], capture_output=True, check=True)
        times.append(time.perf_counter() - begun)
    return min(times)


def test_an_import_and_the_version_cost_milliseconds():
    bare = least_seconds("-c", "pass")
    assert least_seconds("-c", "import parkade") - bare < 0.025
    # Twice the target, because a test must not fail when the machine is busy.
    assert (
        least_seconds(
            "-c", "import sys; sys.argv = ['parkade', '--version']; from parkade._command_line import main; main()"
        )
        - bare
        < 0.050
    )


def test_every_name_is_where_it_is_said_to_be():
    for name in parkade.__all__:
        assert getattr(parkade, name) is not None and name in dir(parkade)
    # What type checkers see is what is loaded.
    tree = ast.parse(Path(parkade.__file__).read_text("utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    seen = {
        alias.asname or alias.name: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == parkade._HOME and sorted(seen) == sorted(parkade.__all__)
