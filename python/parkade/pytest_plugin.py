"""A plug-in for pytest: `@pytest.mark.parkade(limit="14GiB")` records what a test allocates, and fails it if the peak is above a bound."""

from __future__ import annotations

import os
import re
from collections.abc import Generator
from pathlib import Path
from typing import Any, Optional

import pytest

from ._errors import Error, NoCuda

MARK = "parkade"
_ARGUMENTS = {"limit", "before", "growth", "keep"}


def pytest_configure(config: pytest.Config) -> None:
    """Declares the mark."""
    config.addinivalue_line(
        "markers",
        "parkade(limit=None, before=None, growth='0%', keep=None): record the test's GPU memory, and fail it if the peak of reserved "
        "memory is above `limit`, or grew by more than `growth` since the recording `before`; `keep` is where the recording is left. "
        "Skipped without a GPU.",
    )


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Records a marked test, and checks it if it passed."""
    mark = pyfuncitem.get_closest_marker(MARK)
    if mark is None:
        return (yield)
    # Not loaded for tests that are not marked.
    from ._record import record
    from ._torch import cuda

    bounds = _bounds(mark)
    path = _path(pyfuncitem, mark.kwargs.get("keep"))
    try:
        # What earlier tests left in the cache is not this one's.
        cuda().empty_cache()
    except NoCuda as error:
        pytest.skip(f"not recorded by parkade: {error}")
    try:
        with record(path):
            result = yield
    except Exception:
        _explain(pyfuncitem, path)
        raise
    _check(path, mark.kwargs.get("before"), bounds)
    return result


def _bounds(mark: pytest.Mark) -> list[str]:
    unknown = set(mark.kwargs) - _ARGUMENTS
    if mark.args or unknown:
        wrong = ", ".join(sorted(unknown)) or "an argument without a name"
        raise pytest.UsageError(f"@pytest.mark.parkade does not know {wrong}; it knows {', '.join(sorted(_ARGUMENTS))}")
    limit, before = mark.kwargs.get("limit"), mark.kwargs.get("before")
    if limit is None and before is None:
        raise pytest.UsageError("@pytest.mark.parkade has nothing to check: give limit='14GiB', or before='a recording.pickle'")
    bounds = [] if limit is None else [str(limit)]
    return bounds if before is None else [*bounds, str(mark.kwargs.get("growth", "0%"))]


def _path(item: pytest.Function, keep: Optional[Any]) -> str:
    if keep is not None:
        return str(os.fspath(keep))
    # The factory is the fixture tmp_path's own.
    folder: Path = item.config._tmp_path_factory.mktemp("parkade")  # type: ignore[attr-defined]
    return str(folder / f"{re.sub(r'[^A-Za-z0-9_.-]', '_', item.name)[:80]}.pickle")


def _check(path: str, before: Optional[Any], bounds: list[str]) -> None:
    from ._inputs import File
    from ._run import options, run

    files = [File(os.fspath(file), os.fspath(file)) for file in (before, path) if file is not None]
    try:
        answer = run(["diff", *options(fail_above=bounds)], files)
    except Error as error:
        pytest.fail(f"parkade could not check the recording {path}: {error}", pytrace=False)
    if answer.exit_code != 0:
        said = re.sub(r"\x1b\[[0-9;]*m", "", answer.printed.decode(errors="replace"))
        pytest.fail(f"{said}\nthe recording is {path}", pytrace=False)


def _explain(item: pytest.Function, path: str) -> None:
    """Of a test that failed for want of memory, the report says why."""
    from ._commands import diagnose

    try:
        found = diagnose(path, progress=False)
    except (Error, OSError):
        return
    causes = [device.headline for device in found.devices if device.moment == "out_of_memory"]
    if causes:
        item.add_report_section("call", "parkade", "\n".join([*causes, f"the recording is {path}"]))
