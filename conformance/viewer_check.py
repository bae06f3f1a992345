#!/usr/bin/env python3
"""Opens exported snapshots with PyTorch's own tools.

Every RECORDING is exported under each of the --settings; without --settings, under its own and under expandable_segments:True. Then
- the pickle must use only opcodes that PyTorch's page (MemoryViz.js) knows;
- each command of _memory_viz.py must run, and the blocks behind its flame graphs must add up to the segments;
- `parkade verify` must find 0 mismatches.

MEMORY_VIZ_PY is torch/cuda/_memory_viz.py. It is in every torch wheel, and not in this repository.

Exit code: 1 if anything fails.
"""

import argparse
import importlib.util
import json
import pickle
import pickletools
import subprocess
import sys
import tempfile
from pathlib import Path

# The opcodes that the page's unpickler knows (spec 7.6).
KNOWN = [
    "APPEND",
    "APPENDS",
    "BINGET",
    "LONG_BINGET",
    "BINPUT",
    "LONG_BINPUT",
    "MEMOIZE",
    "BININT",
    "BININT1",
    "BININT2",
    "LONG1",
    "BINFLOAT",
    "EMPTY_DICT",
    "EMPTY_LIST",
    "EMPTY_TUPLE",
    "LIST",
    "DICT",
    "TUPLE",
    "TUPLE1",
    "TUPLE2",
    "TUPLE3",
    "MARK",
    "SETITEM",
    "SETITEMS",
    "SHORT_BINUNICODE",
    "BINUNICODE",
    "FRAME",
    "NEWTRUE",
    "NEWFALSE",
    "NONE",
    "STOP",
    "PROTO",
]


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(command[:3])}: {(done.stderr or done.stdout).strip()[-600:]}")
    return done.stdout


def check(arguments, tools, recording: Path, settings: str | None, folder: Path) -> str:
    file = str(folder / "exported.pickle")
    options = [] if settings is None else ["--settings", settings]
    exported = json.loads(run(arguments.parkade, "export", str(recording), *options, "-o", file, "--json"))
    data = Path(file).read_bytes()
    unknown = {opcode.name for opcode, _, _ in pickletools.genops(data)} - set(KNOWN)
    assert data[:2] == b"\x80\x04" and not unknown, f"opcodes {unknown}"
    python = (sys.executable, arguments.memory_viz)
    output = str(folder / "output.html")
    for command in (
        ["stats"],
        ["trace"],
        ["trace_plot", "-o", output],
        ["trace_plot", "-s", "-o", output],
        ["trace_plot", "-f", "-o", output],
        ["segment_plot", "-o", output],
    ):
        run(*python, command[0], file, *command[1:])
    # The flame graphs themselves need a script from the network, so their input is checked.
    snapshot = pickle.loads(data)
    for make in (tools.memory, tools.segments):
        lines = make(snapshot, format_flamegraph=lambda text: text).splitlines()
        assert sum(int(line.rsplit(" ", 1)[1]) for line in lines) == sum(
            segment["total_size"] for segment in snapshot["segments"]
        )
    verified = json.loads(run(arguments.parkade, "verify", "--json", file))
    assert verified["mismatches"] == 0, verified["first_mismatch"]
    return f"{exported['devices'][0]['entries']} entries"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("memory_viz", metavar="MEMORY_VIZ_PY")
    parser.add_argument("recordings", metavar="RECORDING", nargs="+", type=Path)
    parser.add_argument(
        "--parkade", metavar="PATH", default="target/release/parkade", help="the binary (default: %(default)s)"
    )
    parser.add_argument("--settings", action="append", help="a settings string; may be given several times")
    arguments = parser.parse_args()
    spec = importlib.util.spec_from_file_location("memory_viz", arguments.memory_viz)
    tools = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tools)
    failed = 0
    for recording in arguments.recordings:
        for settings in arguments.settings or [None, "expandable_segments:True"]:
            name = f"{recording.name} {'its own settings' if settings is None else repr(settings)}"
            with tempfile.TemporaryDirectory() as folder:
                try:
                    print(f"{name}: {check(arguments, tools, recording, settings, Path(folder))}")
                except AssertionError as error:
                    failed += 1
                    print(f"{name}: FAILED: {error}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
