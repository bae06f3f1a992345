"""Opens exported snapshots with PyTorch's own tools.

python3 conformance/viewer_check.py MEMORY_VIZ_PY RECORDING... [--parkade PATH] [--settings S]...

MEMORY_VIZ_PY is torch/cuda/_memory_viz.py, which is in every torch wheel and not in this repository. Every recording is exported under every one of the
settings (its own and expandable_segments:True if none is given), then: the opcodes are those that the page (MemoryViz.js) knows; each command of
_memory_viz.py runs, and the blocks that its flame graphs are made of add up to the segments; and parkade verify finds 0 mismatches. Exit code 1 if
anything fails.
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

# Spec 7.6: what the page's unpickler knows.
KNOWN = """APPEND APPENDS BINGET LONG_BINGET BINPUT LONG_BINPUT MEMOIZE BININT BININT1 BININT2 LONG1 BINFLOAT EMPTY_DICT EMPTY_LIST EMPTY_TUPLE LIST DICT TUPLE
TUPLE1 TUPLE2 TUPLE3 MARK SETITEM SETITEMS SHORT_BINUNICODE BINUNICODE FRAME NEWTRUE NEWFALSE NONE STOP PROTO""".split()


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
    for command in (["stats"], ["trace"], ["trace_plot", "-o", output], ["trace_plot", "-s", "-o", output], ["trace_plot", "-f", "-o", output],
                    ["segment_plot", "-o", output]):
        run(*python, command[0], file, *command[1:])
    # The flame graphs need a script from the network; the lines that go into it are what counts.
    snapshot = pickle.loads(data)
    for make in (tools.memory, tools.segments):
        lines = make(snapshot, format_flamegraph=lambda text: text).splitlines()
        assert sum(int(line.rsplit(" ", 1)[1]) for line in lines) == sum(segment["total_size"] for segment in snapshot["segments"])
    verified = json.loads(run(arguments.parkade, "verify", "--json", file))
    assert verified["mismatches"] == 0, verified["first_mismatch"]
    return f"{exported['devices'][0]['entries']} entries"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("memory_viz")
    parser.add_argument("recordings", nargs="+", type=Path)
    parser.add_argument("--parkade", default="target/release/parkade")
    parser.add_argument("--settings", action="append")
    arguments = parser.parse_args()
    spec = importlib.util.spec_from_file_location("memory_viz", arguments.memory_viz)
    tools = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tools)
    failed = 0
    for recording in arguments.recordings:
        for settings in arguments.settings or [None, "expandable_segments:True"]:
            name = f"{recording.name} {'its own' if settings is None else repr(settings)}"
            with tempfile.TemporaryDirectory() as folder:
                try:
                    print(f"{name}: {check(arguments, tools, recording, settings, Path(folder))}")
                except AssertionError as error:
                    failed += 1
                    print(f"{name}: FAILED: {error}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
