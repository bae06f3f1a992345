"""Running a command of parkade in this process."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from typing import Any, Callable, Optional, TypeVar, Union

from . import _parkade
from ._errors import Error, UsageError
from ._inputs import File
from ._progress import Progress, shown

Size = Union[int, str]
_T = TypeVar("_T")


class Answer:
    """What a command printed."""

    def __init__(self, printed: bytes, remarks: Sequence[str], exit_code: int) -> None:
        self.printed = printed
        self.remarks = tuple(remarks)
        self.exit_code = exit_code

    def object(self, files: Sequence[File]) -> dict[str, Any]:
        """The JSON object, in which temporary files have the names of what was given."""
        found: dict[str, Any] = json.loads(self.printed)
        if "error" in found and "file" in found:
            raise Error(_named(str(found["error"]), files))
        temporary = [file for file in files if file.path != file.name]
        return {key: _renamed(value, temporary) for key, value in found.items()} if temporary else found


def run(
    arguments: Sequence[str],
    files: Sequence[File] = (),
    *,
    progress: Progress = False,
    threads: Optional[int] = None,
) -> Answer:
    """Runs `parkade` with these arguments, and then the files."""
    whole = ["parkade", *arguments, *(["--", *(file.path for file in files)] if files else [])]
    with shown(progress) as told:
        return call(lambda: Answer(*_parkade.run(whole, told, threads)), files)


def call(work: Callable[[], _T], files: Sequence[File] = ()) -> _T:
    """Does work of the extension module, with the package's exceptions."""
    try:
        return work()
    except _parkade.UsageError as error:
        raise UsageError(_named(str(error), files)) from None
    except _parkade.CommandError as error:
        raise Error(_named(str(error), files)) from None


def options(**given: Any) -> list[str]:
    """Options of a command: none for None and False, several for a list."""
    arguments: list[str] = []
    for name, value in given.items():
        option = f"--{name.replace('_', '-')}"
        if value is None or value is False:
            continue
        if value is True:
            arguments.append(option)
        elif isinstance(value, str) or not isinstance(value, Iterable):
            arguments.append(f"{option}={_text(option, value)}")
        else:
            arguments.extend(f"{option}={_text(option, item)}" for item in value)
    return arguments


def _text(option: str, value: Any) -> str:
    if isinstance(value, os.PathLike):
        return str(os.fspath(value))
    if isinstance(value, (str, int)):
        return str(value)
    raise TypeError(f"{option[2:].replace('-', '_')} is text or a whole number, and not {type(value).__name__}")


def _named(text: str, files: Sequence[File]) -> str:
    for file in files:
        text = file.named(text)
    return text


def _renamed(value: Any, files: Sequence[File]) -> Any:
    """The same with the files' names in its texts: keys and sentences name files."""
    if isinstance(value, str):
        return _named(value, files)
    if isinstance(value, list):
        return [_renamed(item, files) for item in value]
    if isinstance(value, dict):
        return {key: _renamed(item, files) for key, item in value.items()}
    return value
