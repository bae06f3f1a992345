"""Errors are reported in an exception of a fitting type."""

from __future__ import annotations

import io
import os
import pickle

import pytest
from conftest import SMALL

import parkade
from parkade._inputs import File
from parkade._words import Words

COMMANDS = [parkade.verify, parkade.advise, parkade.diagnose, parkade.report, parkade.diff, parkade.stats]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.__name__)
def test_what_is_no_recording_is_refused(command, tmp_path):
    with pytest.raises(FileNotFoundError):
        command(tmp_path / "missing.pickle")
    with pytest.raises(IsADirectoryError, match="diagnose_many"):
        command(tmp_path)
    for data in [b"", b"no pickle", pickle.dumps([1, 2]), pickle.dumps({"segments": 3})]:
        with pytest.raises(parkade.Error) as caught:
            command(data)
        assert str(caught.value) and "parkade-" not in str(caught.value), "no name of a temporary file"
    with pytest.raises(TypeError, match="int"):
        command(3)
    with pytest.raises(TypeError, match="binary"):
        command(io.StringIO("text"))
    with pytest.raises(parkade.Error, match="segments"):
        command({"a": 1})


def test_a_pickle_that_would_run_code_runs_none(tmp_path):
    class Runs:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "made"),)

    with pytest.raises(parkade.Error, match="never does"):
        parkade.verify(pickle.dumps({"segments": [], "device_traces": [[Runs()]]}))
    assert not (tmp_path / "made").exists()


def test_a_snapshot_with_what_cannot_be_pickled_is_refused():
    with pytest.raises(parkade.Error, match="pickled"):
        parkade.verify({"segments": [lambda: None]})


def test_wrong_arguments_are_named(died):
    for wrong, said in [({"limit": "12 apples"}, "apples"), ({"profile": "9.9"}, "9.9"), ({"limit": "1"}, "1")]:
        with pytest.raises(parkade.UsageError, match=said):
            parkade.advise(died, **wrong)
    with pytest.raises(ValueError, match="apples"):
        parkade.verify(died, limit="12 apples")
    with pytest.raises(TypeError, match="limit"):
        parkade.verify(died, limit=3.5)
    with pytest.raises(parkade.Error, match="nonsense"):
        parkade.advise(died, settings="nonsense:1")
    with pytest.raises(parkade.Error, match="device 7"):
        parkade.diagnose(died, device=7)


def test_settings_may_be_a_dictionary(died):
    found = parkade.advise(died, settings=[{"expandable_segments": True}, {"max_split_size_mb": 64}], only=True)
    assert {option.settings for option in found.options} >= {"expandable_segments:True", "max_split_size_mb:64"}
    assert parkade.verify(died, settings={"max_split_size_mb": 32}).exit_code == 1
    for wrong in ({"expandable_segments": None}, {3: 4}):
        with pytest.raises(TypeError, match="settings map names to text or numbers"):
            parkade.verify(died, settings=wrong)
    with pytest.raises(TypeError, match="limit must be text"):
        parkade.verify(died, limit={"GiB": 3})


def test_what_is_given_and_refused_is_a_wrong_argument(died):
    with pytest.raises(parkade.UsageError, match="nonsense"):
        parkade.verify(died, settings="nonsense:1")
    with pytest.raises(parkade.UsageError, match="no policy"):
        parkade.sweep(SMALL, "nonsense")
    with pytest.raises(parkade.UsageError, match="no-such-workload"):
        parkade.sweep("no-such-workload")


def test_numbers_and_devices_are_taken_as_programs_have_them(died):
    class Index:
        def __index__(self):
            return 6 << 30

    class Device:
        def __str__(self):
            return "cuda:0"

    assert parkade.diagnose(died, limit=12e9).limit_bytes == 12_000_000_000
    assert parkade.diagnose(died, limit=Index()).limit_bytes == 6 << 30
    for device in (0, "cuda:0", "cuda", "0", Device()):
        assert parkade.diagnose(died, device=device).devices[0].device == 0
    for device in ("cpu", "", "cuda:", True, 1.0, -1):
        with pytest.raises((parkade.UsageError, parkade.Error)):
            parkade.diagnose(died, device=device)
    with pytest.raises(parkade.UsageError, match="cuda:0"):
        parkade.diagnose(died, device="cpu")


def test_errors_name_arguments_and_not_options(died, died_bytes, tmp_path):
    several = {"segments": [], "device_traces": pickle.loads(died_bytes)["device_traces"] * 2}
    with pytest.raises(parkade.Error) as caught:
        parkade.diagnose(several, entry=3)
    assert "device=" in str(caught.value) and "--" not in str(caught.value)
    (tmp_path / "page.html").write_text("")
    with pytest.raises(parkade.Error, match="force=True"):
        parkade.report(died, tmp_path / "page.html")
    with pytest.raises(parkade.UsageError) as caught:
        parkade.advise(died, limit="12 apples")
    assert str(caught.value).startswith("limit='12 apples': ") and "--" not in str(caught.value)
    for call, said in [
        (lambda: parkade.stats(died, entry=3, every=4), "entry= and every= cannot be combined: leave one out"),
        (lambda: parkade.stats(died, policy=["bfc", "pytorch"]), "policy= takes one value, not several"),
        (lambda: parkade.stats(died, bounds=3), "policy= is missing, and another argument needs it"),
        (lambda: parkade.advise(died, only=True), "settings= or policy= is missing, and another argument needs it"),
        (lambda: parkade.stats(died, every=0), "every=0: it must be at least 1"),
        (lambda: parkade.stats(died, entry=-1), "entry=-1: it must not be negative"),
        (lambda: parkade.advise(died, threads=0), "threads=0: it must be at least 1"),
        (
            lambda: parkade.export(died, tmp_path / "x", format="nope"),
            "format='nope' is not one of snapshot, perfetto, requests",
        ),
        (
            lambda: parkade.replay(died, policy="nope"),
            f'{died}: there is no policy "nope"; parkade.catalogue() lists all',
        ),
    ]:
        with pytest.raises(parkade.UsageError) as caught:
            call()
        assert str(caught.value) == said
    with pytest.raises(parkade.Error, match="^fail_above='2%' is growth"):
        parkade.diff(died, fail_above="2%")
    with pytest.raises(TypeError, match="limit must be text or a whole number, not True"):
        parkade.advise(died, limit=True)
    with pytest.raises(TypeError, match="settings must be text or a dictionary"):
        parkade.verify(died, settings=3)
    for steps in (3, (1,), "10:500"):
        with pytest.raises(TypeError, match="steps must be a pair"):
            parkade.diff(died, steps=steps)


def test_answers_name_arguments_but_keep_commands_and_files(died_bytes, tmp_path):
    path = tmp_path / "run --limit 3.pickle"
    path.write_bytes(died_bytes)
    found = parkade.diagnose(path, limit="5GiB")
    assert found.file == found.data["file"] == str(path)
    texts = [*found.devices[0].notes, str(found)]
    told = Words(["--limit=5GiB"], [File(str(path), str(path))])
    assert told(f"{path}: --limit 5GiB, `--limit`; run parkade diagnose x --limit 5GiB; (--entry N, --bounds)") == (
        f"{path}: limit='5GiB', `--limit`; run parkade diagnose x --limit 5GiB; (entry=N, bounds=)"
    )
    assert (
        told("nvidia-smi --query-compute-apps=pid --format=csv") == "nvidia-smi --query-compute-apps=pid --format=csv"
    )
    assert not any(" --limit sets" in text for text in texts)


def test_many_results_have_lines_and_slices(died, tmp_path):
    (tmp_path / "bad.pickle").write_bytes(b"")
    found = parkade.diagnose_many([died, died, tmp_path / "bad.pickle"])
    assert len(found[0:2]) == 2 and found[-1:].lines == found.lines[2:] and repr(found[:2]) == "Diagnoses(2 files)"
    assert repr(found) == "Diagnoses(3 files, 1 of which could not be diagnosed)"
    assert repr(parkade.sweep(SMALL, "pytorch", capacities=[1.0])).startswith("Sweep(")


def test_errors_are_named_as_they_are_imported():
    for name in ("Error", "UsageError", "NoCuda", "LostJobs", "EnableError"):
        kind = getattr(parkade, name)
        assert f"{kind.__module__}.{kind.__qualname__}" == f"parkade.{name}"
        assert isinstance(pickle.loads(pickle.dumps(kind("said"))), kind)


def test_a_path_that_looks_like_an_option_is_a_path(died_bytes, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "--json").write_bytes(died_bytes)
    assert parkade.verify("--json").exact


def test_bytes_in_names_that_are_no_text_are_kept(died_bytes, tmp_path):
    path = os.fsencode(tmp_path) + b"/\xff.pickle"
    with open(path, "wb") as file:
        file.write(died_bytes)
    assert parkade.verify(os.fsdecode(path)).exact


def test_sweeps_refuse_what_is_not_there(tmp_path):
    with pytest.raises(parkade.Error, match="no policy"):
        parkade.sweep(SMALL, "nonsense")
    with pytest.raises(parkade.Error, match="no-such-workload"):
        parkade.sweep("no-such-workload")
    with pytest.raises(parkade.UsageError, match="jobs_per_task=0"):
        parkade.sweep(SMALL, "pytorch", jobs_per_task=0)
    foreign = tmp_path / "foreign.txt"
    foreign.write_text("mine\n")
    with pytest.raises(parkade.Error, match="a different sweep"):
        parkade.sweep(SMALL, "pytorch", output=foreign)
    assert foreign.read_text() == "mine\n"


def test_without_pytorch_the_rest_works(no_torch, died, tmp_path):
    assert parkade.verify(died).exact
    with pytest.raises(parkade.NoCuda, match="which cannot be imported"):
        parkade.watch()
    with pytest.raises(parkade.NoCuda, match="which cannot be imported"), parkade.record(tmp_path / "run.pickle"):
        pass
    assert not (tmp_path / "run.pickle").exists()


def test_without_a_gpu_the_rest_works(fake_cuda, died, tmp_path):
    fake_cuda.there = False
    assert parkade.verify(died).exact
    with pytest.raises(parkade.NoCuda, match="needs a GPU"):
        parkade.watch()
    with pytest.raises(parkade.NoCuda, match="needs a GPU"), parkade.record(tmp_path / "run.pickle"):
        pass


def test_public_names_are_there():
    for name in parkade.__all__:
        # Anything that needs a GPU is loaded when it is used.
        assert name == "enable" or getattr(parkade, name) is not None
    with pytest.raises(AttributeError, match="nothing_like_it"):
        parkade.nothing_like_it
    assert repr(parkade.Error).startswith("<class 'parkade.Error")
