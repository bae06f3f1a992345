"""The pytest plug-in, in separate runs of pytest."""

from __future__ import annotations

import pytest
from conftest import RECORDINGS, REPOSITORY

STAND_IN = """
import lzma, pickle, sys, types

class Memory:
    def _record_memory_history(self, enabled="all", **options): pass
    def _snapshot(self):
        return pickle.loads(lzma.open(r"{recording}").read())

class Cuda:
    memory = Memory()
    def is_available(self): return {there}
    def empty_cache(self): pass

torch = types.ModuleType("torch")
torch.cuda = Cuda()
sys.modules["torch"] = torch
"""

TESTS = """
import pytest

@pytest.mark.parkade(limit="{limit}")
def test_fits():
    pass

@pytest.mark.parkade(before=r"{before}", growth="2%")
def test_grew():
    pass

def test_unmarked():
    pass
"""


@pytest.fixture
def run(pytester, monkeypatch):
    """Runs tests with a recording in place of a GPU."""
    # The plug-in is found by its entry point, where the package is installed.
    installed = any(plugin.name == "parkade.pytest_plugin" for plugin in _entry_points())
    options = [] if installed else ["-p", "parkade.pytest_plugin"]
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY / "python") if not installed else "")

    def run(tests, recording="prefetch_streams.limit6.pickle.xz", there=True):
        pytester.makeconftest(STAND_IN.format(recording=RECORDINGS / recording, there=there))
        pytester.makepyfile(tests)
        return pytester.runpytest_subprocess("--strict-markers", "-rs", *options)

    return run


def _entry_points():
    from importlib.metadata import entry_points

    found = entry_points()
    plugins = found.select(group="pytest11") if hasattr(found, "select") else found.get("pytest11", [])
    return [type("Plugin", (), {"name": plugin.value}) for plugin in plugins]


def test_bounds_that_hold(run):
    before = RECORDINGS / "prefetch_streams.limit6.pickle.xz"
    run(TESTS.format(limit="14GiB", before=before)).assert_outcomes(passed=3)


def test_bounds_that_are_exceeded(run):
    before = RECORDINGS / "deep_mlp.default.pickle.xz"
    found = run(TESTS.format(limit="1GiB", before=before))
    found.assert_outcomes(passed=1, failed=2)
    found.stdout.fnmatch_lines(["*peak*", "*the recording is *test_fits.pickle*"])


def test_skipped_without_a_gpu(run):
    found = run(TESTS.format(limit="14GiB", before="x"), there=False)
    found.assert_outcomes(passed=1, skipped=2)
    found.stdout.fnmatch_lines(["*PyTorch sees none*"])


def test_a_failure_is_explained(run):
    tests = (
        'import pytest\n@pytest.mark.parkade(limit="9GiB", keep="kept.pickle")\ndef test_dies():\n'
        '    raise MemoryError("CUDA out of memory")\n'
    )
    found = run(tests, recording="resnet50_sweep.limit5_oom.pickle.xz")
    found.assert_outcomes(failed=1)
    found.stdout.fnmatch_lines(["*fragmentation: 49.00 MiB requested*", "*kept.pickle*"])


def test_wrong_marks_are_named(run):
    found = run('import pytest\n@pytest.mark.parkade(limits="9GiB")\ndef test_a():\n    pass\n')
    assert "has no argument limits" in found.stdout.str() + found.stderr.str()
    found = run("import pytest\n@pytest.mark.parkade()\ndef test_a():\n    pass\n")
    assert "nothing to check" in found.stdout.str() + found.stderr.str()


METHOD = """
import unittest, pytest

class TestTraining(unittest.TestCase):
    @pytest.mark.parkade(limit="{limit}")
    def test_fits(self):
        pass

    @pytest.mark.parkade(limit="{limit}")
    def test_fails(self):
        self.fail("on its own")
"""


def test_methods_of_test_cases_are_recorded_too(run):
    run(METHOD.format(limit="14GiB")).assert_outcomes(passed=1, failed=1)
    found = run(METHOD.format(limit="1GiB"))
    found.assert_outcomes(failed=2)
    found.stdout.fnmatch_lines(["*the peak of reserved memory is *, and 1GiB allows 1.00 GiB*"])


@pytest.mark.parametrize(
    "mark, said",
    [
        ("limit='14GiB', growth='2%'", "add before="),
        ("limit='12 apples'", "limit='12 apples': "),
        ("before=__file__, growth='much'", "growth='much': "),
        ("before='nowhere.pickle'", "nowhere.pickle"),
    ],
)
def test_arguments_are_checked_before_the_test_runs(run, mark, said):
    found = run(f"import pytest\n@pytest.mark.parkade({mark})\ndef test_a():\n    raise SystemExit('it ran')\n")
    text = found.stdout.str() + found.stderr.str()
    assert said in text and "it ran" not in text.replace("raise SystemExit('it ran')", "")


def test_what_a_run_that_died_does_not_tell_is_said_so(run):
    tests = 'import pytest\n@pytest.mark.parkade(limit="14GiB")\ndef test_survives():\n    pass\n'
    found = run(tests, recording="resnet50_sweep.limit5_oom.pickle.xz")
    found.assert_outcomes(failed=1)
    found.stdout.fnmatch_lines(["*cannot tell whether 14GiB holds*"])


def test_nothing_is_loaded_without_a_mark(run):
    tests = (
        "import sys\ndef test_a():\n"
        "    loaded = [name for name in sys.modules if name.startswith('parkade')]\n"
        "    assert loaded == ['parkade', 'parkade.pytest_plugin'], loaded\n"
    )
    run(tests).assert_outcomes(passed=1)


def test_the_plug_in_asks_for_no_newer_pluggy():
    # `wrapper=True` was added in pluggy 1.2, but pluggy 1.0 is still in use.
    text = (REPOSITORY / "python" / "parkade" / "pytest_plugin.py").read_text("utf-8")
    assert "wrapper=" not in text
