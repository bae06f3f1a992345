"""`parkade run` and `on_oom` with a stand-in for PyTorch: what they write and print, and that the program runs."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
import time

import pytest
from conftest import REPOSITORY
from torch_stand_in import write_torch

import parkade

LINE = "export PYTORCH_CUDA_ALLOC_CONF="


@pytest.fixture
def run(tmp_path, died_bytes):
    """Runs a program with these options before it."""
    (tmp_path / "snapshot").write_bytes(died_bytes)
    torch = write_torch(tmp_path)
    package = os.path.dirname(os.path.dirname(parkade.__file__))
    paths = [str(torch), package, *filter(None, [os.environ.get("PYTHONPATH")])]
    own = {
        "PYTHONPATH": os.pathsep.join(paths),
        "STAND_IN_SNAPSHOT": str(tmp_path / "snapshot"),
        "PYTHONWARNINGS": "error",
    }

    def run(program, *options, arguments=(), wrapped=True, wait=True, **variables):
        (tmp_path / "train.py").write_text(program)
        command = ["-m", "parkade", "run", *options] if wrapped else []
        if "-m" not in options:
            command.append("train.py")
        whole = [sys.executable, *command, *arguments]
        clean = {
            name: value
            for name, value in os.environ.items()
            if name not in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "SLURM_PROCID")
        }
        env = {**clean, **own, **variables}
        if not wait:
            return subprocess.Popen(
                whole, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        return subprocess.run(whole, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)

    return run


DIES = """
import torch
def step():
    torch.cuda.allocate()
step()
"""


def test_a_program_that_dies_is_explained_after_its_own_traceback(run, tmp_path):
    found = run(DIES)
    name = f"oom-{socket.gethostname()}-0.pickle"
    said = found.stderr.splitlines()
    own = said.index("Traceback (most recent call last):")
    assert found.returncode == 1 and 'train.py", line 5, in <module>' in said[own + 1], (
        "the traceback begins with the program"
    )
    assert "runpy" not in found.stderr and "_run_program" not in found.stderr
    assert (
        said[0]
        == f"parkade: out of memory on device 0: tried to allocate 49.00 MiB; the process may reserve 80.00 GiB, "
        f"and the device has 22.00 MiB free; the snapshot is {name}"
    )
    told = said[next(place for place, line in enumerate(said) if line.startswith("torch.OutOfMemoryError")) + 1 :]
    assert told[0] == "parkade: why the program died, and what helps" and told[-3].startswith(LINE), told
    assert told[-2] == f"all    parkade advise {name} --all"
    assert told[1].startswith("5.01 GiB is probably not enough")
    assert any(line.startswith("why    ") for line in told) and any("reduce the peak by" in line for line in told)
    assert told[-1] == f"page   parkade report {name} -o {name.replace('.pickle', '.html')}"
    assert len(told) <= 14 and all(len(line) <= 80 for line in told[:-1])
    assert found.stdout == "history all [('max_entries', 1000000), ('stacks', 'python')]\n"
    written = pickle.loads((tmp_path / name).read_bytes())
    assert written["parkade"]["limit_source"] == "mem_get_info" and not list(tmp_path.glob("*.part"))
    assert parkade.diagnose(tmp_path / name).devices[0].verdict == "fragmentation"


def test_an_error_that_is_caught_gets_one_line_and_no_more_for_a_minute(run, tmp_path):
    program = """
import torch
for size in range(3):
    try:
        torch.cuda.allocate()
    except torch.OutOfMemoryError:
        print("smaller")
print("done")
"""
    found = run(program, "--snapshot", "caught-{rank}.pickle", RANK="3", WORLD_SIZE="8")
    assert found.returncode == 0 and found.stdout.endswith("smaller\nsmaller\nsmaller\ndone\n")
    assert len(found.stderr.splitlines()) == 1 and found.stderr.endswith("the snapshot is caught-3.pickle\n")
    assert (tmp_path / "caught-3.pickle").exists()


def test_exit_codes_arguments_and_names_are_the_programs_own(run, tmp_path):
    program = (
        "import sys\nprint(sys.argv, __name__, sys.path[0] == sys.argv[1])\n"
        "print(__import__('helper').said)\nsys.exit(3)\n"
    )
    (tmp_path / "helper.py").write_text("said = 'helped'\n")
    folder = os.path.realpath(tmp_path)
    expected = run(program, arguments=[folder, "--limit", "5"], wrapped=False)
    found = run(program, arguments=[folder, "--limit", "5"])
    assert (found.returncode, found.stdout, found.stderr) == (3, expected.stdout, expected.stderr)
    module = run(program, "-m", "train", arguments=[folder, "-m"])
    assert module.returncode == 3 and "__main__ True" in module.stdout and "'-m'" in module.stdout
    assert run("raise SystemExit('enough')").stderr == "enough\n"
    assert run("print('fine')").returncode == 0
    broken = run("raise ValueError('no')")
    assert broken.returncode == 1 and broken.stderr.endswith("ValueError: no\n") and "parkade" not in broken.stderr
    assert run("def (:\n").stderr.count("parkade") == 0


def test_an_error_that_ends_the_program_with_a_code_of_its_own_is_explained(run):
    program = """
import sys, torch
try:
    torch.cuda.allocate()
except torch.OutOfMemoryError as error:
    print("giving up")
    sys.exit(3)
"""
    found = run(program)
    assert found.returncode == 3 and f"\n{LINE}" in found.stderr


def test_the_snapshot_is_written_at_the_end_if_asked_for(run, tmp_path):
    found = run("import torch\ntorch.cuda.use()\n", "--always", "--snapshot=run.pickle", "--limit=14GiB")
    assert found.returncode == 0 and found.stderr == "parkade: the snapshot is run.pickle\n"
    assert pickle.loads((tmp_path / "run.pickle").read_bytes())["parkade"] == {
        "limit_bytes": 14 << 30,
        "limit_source": "given",
    }
    unused = run("print('no GPU')", "--always", "--snapshot=other.pickle")
    assert unused.returncode == 0 and "did not use CUDA" in unused.stderr and not (tmp_path / "other.pickle").exists()
    failed = run("import torch\ntorch.cuda.use()\nraise SystemExit(4)\n", "--always", "--snapshot=run.pickle")
    assert failed.returncode == 4 and failed.stderr.endswith("the snapshot is run.pickle\n")


def test_settings_that_the_program_makes_before_its_import_hold(run):
    program = (
        "import sys\nassert 'torch' not in sys.modules\nimport torch\n"
        "assert torch.__spec__.loader.__class__.__name__ == 'SourceFileLoader'\n"
    )
    assert run(program).stderr == ""


def test_a_history_of_the_programs_own_is_left_as_it_is(run):
    program = "import torch\ntorch.cuda.memory._record_memory_history(max_entries=7)\n" + DIES
    found = run(program)
    assert found.stdout.splitlines() == ["history all [('max_entries', 7)]"]


def test_a_snapshot_that_cannot_be_written_does_not_change_the_error(run, tmp_path):
    program = "import os, torch\nos.environ['STAND_IN_SNAPSHOT'] = 'nowhere'\n" + DIES
    found = run(program)
    assert found.returncode == 1 and "torch.OutOfMemoryError: CUDA out of memory" in found.stderr
    assert "could not be written: " in found.stderr and "\ncause: " in found.stderr, "from the message alone"


@pytest.mark.parametrize(
    "options, said",
    [
        ((), "no program to run"),
        (("--limit", "12 apples", "train.py"), "apples"),
        (("--limti", "12GiB", "train.py"), "--limti"),
        (("--serial", "train.py"), "--policy"),
        (("nowhere.py",), "no file nowhere.py"),
        (("--snapshot", "nowhere/oom.pickle", "train.py"), "nowhere"),
        (("--policy", "nonsense", "train.py"), "nonsense"),
    ],
)
def test_what_cannot_be_started_is_refused_with_exit_code_2(run, tmp_path, options, said):
    run("")
    package = os.path.dirname(os.path.dirname(parkade.__file__))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), package])}
    found = subprocess.run(
        [sys.executable, "-m", "parkade", "run", *options], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert found.returncode == 2 and said in found.stderr and "Traceback" not in found.stderr, found.stderr


def test_help_names_the_options(command):
    for asked in (["run", "--help"], ["help", "run"]):
        found = command(*asked)
        assert found.returncode == 0 and all(
            option in found.stdout for option in (b"--snapshot", b"--policy", b"Exit code: the program's own")
        )


@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_signals_are_the_programs_own(run):
    program = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
print("ready", flush=True)
while True:
    time.sleep(0.05)
"""
    process = run(program, wait=False)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 7
    process = run(program, wait=False)
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == -signal.SIGINT and "KeyboardInterrupt" in errors


def test_on_oom_does_the_same_in_a_program(run, tmp_path):
    program = "import parkade\nwatcher = parkade.on_oom('own-{rank}.pickle')\n" + DIES
    found = run(program, wrapped=False)
    said = found.stderr.splitlines()
    assert found.returncode == 1 and said[0].endswith("the snapshot is own-0.pickle")
    assert said.index("Traceback (most recent call last):") < next(
        place for place, line in enumerate(said) if LINE in line
    )
    again = (
        "import parkade\nfirst = parkade.on_oom()\n"
        "assert parkade.on_oom('other.pickle') is first and first.path == 'other.pickle'\n"
    )
    assert run(again, wrapped=False).returncode == 0


def test_what_helps_is_not_looked_for_without_end(monkeypatch, died):
    from parkade import _oom

    monkeypatch.setattr(_oom, "_AT_MOST", -1.0)
    told = _oom._of_snapshot(died, MemoryError("out of memory"))
    assert told[-1].startswith("page   parkade report ") and len(told) <= 5


def test_on_oom_needs_a_gpu(no_torch):
    with pytest.raises(parkade.NoCuda):
        parkade.on_oom()


def test_a_fraction_is_the_limit_where_one_is_set():
    from parkade import _snapshot

    assert _snapshot.smaller_limit(10 << 30, 12 << 30) == _snapshot.Limit(10 << 30, "fraction")
    assert _snapshot.smaller_limit(14 << 30, 12 << 30) == _snapshot.Limit(12 << 30, "mem_get_info"), (
        "others hold the rest"
    )
    assert _snapshot.smaller_limit(None, 12 << 30).limit_source == "mem_get_info"


def test_the_kept_limit_is_read_by_advise_and_diagnose(died, snapshot):
    for source, of_diagnose in [("fraction", 6 << 30), ("given", 6 << 30), ("mem_get_info", None)]:
        kept = {**snapshot, "parkade": {"limit_bytes": 6 << 30, "limit_source": source}}
        assert parkade.advise(kept).capacity_bytes == 6 << 30
        found = parkade.diagnose(kept)
        assert found.limit_bytes == of_diagnose and found.devices[0].limit["known"] == "given"
        assert parkade.verify(kept).data["tolerated"]["unknown_top_keys"] == {}
    given = parkade.advise({**snapshot, "parkade": {"limit_bytes": 6 << 30, "limit_source": "given"}}, limit="7GiB")
    assert given.capacity_bytes == 7 << 30, "what is given comes first"
    less = parkade.advise({**snapshot, "parkade": {"limit_bytes": 1 << 30, "limit_source": "given"}})
    assert less.capacity_bytes == parkade.advise(died).capacity_bytes, "the run reserved more"
    with pytest.raises(parkade.Error, match="limit_bytes"):
        parkade.advise({**snapshot, "parkade": {"limit_bytes": "much", "limit_source": "given"}})


def test_the_documentation_has_the_options_of_the_help():
    page = (REPOSITORY / "docs" / "python.md").read_text("utf-8")
    for option in ("--limit", "--snapshot", "--always", "--policy"):
        assert option in page
