"""A plug-in for pytest: `@pytest.mark.parkade(limit="14GiB")` records what a test allocates, and fails the test if the
peak is too high.

The plug-in imports nothing else until a test with the mark runs. It wraps the item's `runtest`, so it also records
methods of `unittest.TestCase`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ._run import Answer

MARK = "parkade"
_ARGUMENTS = {"limit", "before", "growth", "keep"}


def pytest_configure(config: pytest.Config) -> None:
    """Registers the mark."""
    config.addinivalue_line(
        "markers",
        "parkade(limit=None, before=None, growth='0%', keep=None): record the test's GPU memory, and fail the "
        "test if the peak of reserved memory is above `limit`, or has grown by more than `growth` since the recording "
        "`before`; `keep` is the path to save the recording to. Without a GPU the test is skipped.",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """Records a marked test, and checks its memory if it passes."""
    mark = item.get_closest_marker(MARK)
    if mark is None:
        return
    runs = item.runtest

    def recorded() -> None:
        # Restored, because plug-ins may run a test again.
        del item.runtest
        _recorded(item, mark, runs)

    item.runtest = recorded  # type: ignore[method-assign]


def _recorded(item: pytest.Item, mark: pytest.Mark, runs: Callable[[], None]) -> None:
    from ._errors import NoCuda
    from ._record import record
    from ._torch import cuda

    bounds = _bounds(mark)
    before = mark.kwargs.get("before")
    path = _path(item, mark.kwargs.get("keep"))
    try:
        # Earlier tests may have left memory in the cache.
        cuda().empty_cache()
    except NoCuda as error:
        pytest.skip(f"not recorded by parkade: {error}")
    _check_arguments(bounds, before)
    try:
        with record(path, force=True):
            runs()
    except Exception:
        _explain(item, path)
        raise
    # A method of unittest.TestCase does not raise its failure, but leaves it for pytest.
    if getattr(item, "_excinfo", None):
        _explain(item, path)
    else:
        _check(path, before, list(bounds.values()))


def _bounds(mark: pytest.Mark) -> dict[str, Any]:
    """Returns the bounds on the peak by the arguments that set them."""
    unknown = set(mark.kwargs) - _ARGUMENTS
    if mark.args or unknown:
        wrong = ", ".join(sorted(unknown)) or "without a name"
        raise pytest.UsageError(
            f"@pytest.mark.parkade has no argument {wrong}; its arguments are {', '.join(sorted(_ARGUMENTS))}"
        )
    limit, before = mark.kwargs.get("limit"), mark.kwargs.get("before")
    if before is None and "growth" in mark.kwargs:
        raise pytest.UsageError(
            "@pytest.mark.parkade has growth= but no recording to compare with: add before='a recording.pickle'"
        )
    if limit is None and before is None:
        raise pytest.UsageError(
            "@pytest.mark.parkade has nothing to check: add limit='14GiB' or before='a recording.pickle'"
        )
    bounds = {"limit": limit, "growth": None if before is None else str(mark.kwargs.get("growth", "0%"))}
    return {name: bound for name, bound in bounds.items() if bound is not None}


def _check_arguments(bounds: dict[str, Any], before: Any | None) -> None:
    """Raises if the arguments are wrong, before the test runs, which may take long."""
    from ._errors import Error, UsageError
    from ._inputs import as_file
    from ._run import options, run

    for name, bound in bounds.items():
        try:
            # The command reads the bounds before it reads files.
            run(["diff", *options(fail_above=bound), "--", os.devnull, os.devnull])
        except (UsageError, TypeError) as error:
            raise pytest.UsageError(f"@pytest.mark.parkade: {str(error).replace('fail_above', name)}") from None
        except Error:
            pass
    if before is not None:
        try:
            with as_file(os.fspath(before)):
                pass
        except OSError as error:
            raise pytest.UsageError(f"@pytest.mark.parkade: before= cannot be read: {error}") from None


def _path(item: pytest.Item, keep: Any | None) -> str:
    if keep is not None:
        return os.fsdecode(keep)
    # The factory that the fixture tmp_path uses.
    folder: Path = item.config._tmp_path_factory.mktemp("parkade")  # type: ignore[attr-defined]
    return str(folder / f"{re.sub(r'[^A-Za-z0-9_.-]', '_', item.name)[:80]}.pickle")


def _check(path: str, before: Any | None, bounds: list[Any]) -> None:
    from ._errors import Error
    from ._inputs import File
    from ._run import options, run

    files = [File(os.fsdecode(file), os.fsdecode(file)) for file in (before, path) if file is not None]
    try:
        answer = run(["diff", "--json", *options(fail_above=bounds)], files)
    except Error as error:
        pytest.fail(f"parkade could not check the recording {path}: {error}", pytrace=False)
    if answer.exit_code != 0:
        pytest.fail(f"{_verdict(answer)}\n{answer.text}\nthe recording is {path}", pytrace=False)


def _verdict(answer: Answer) -> str:
    """Returns a line for each bound that does not hold."""
    from ._html import size

    lines = []
    for check in answer.object()["checks"]:
        peak, allowed = size(check["peak_reserved_bytes"]), size(check["allowed_bytes"])
        device, bound = f"device {check['device']}", check["fail_above"]
        if check["check"] == "exceeded":
            lines.append(f"{device}: the peak of reserved memory is {peak}, and {bound} allows {allowed}")
        elif check["check"] == "not_known":
            lines.append(
                f"{device}: parkade cannot tell whether {bound} holds: the recorded peak is {peak}, but an "
                "out-of-memory error ended the run, which would have needed more"
            )
    return "\n".join(lines) or "the bounds cannot be checked with this recording"


def _explain(item: pytest.Item, path: str) -> None:
    """Adds the cause to the report of a test that ran out of memory."""
    from ._commands import diagnose
    from ._errors import Error

    try:
        found = diagnose(path, progress=False)
    except (Error, OSError):
        return
    causes = [device.headline for device in found.devices if device.moment == "out_of_memory"]
    if causes:
        item.add_report_section("call", "parkade", "\n".join([*causes, f"the recording is {path}"]))
