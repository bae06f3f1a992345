"""Runs commands of parkade in this process."""

from __future__ import annotations

import json
import operator
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from . import _parkade
from ._errors import Error, UsageError
from ._inputs import File
from ._progress import Progress, shown

#: A number of bytes, such as 12e9, or text such as "12GiB".
Size = int | float | str
#: Settings of PyTorch's allocator: text as in PYTORCH_CUDA_ALLOC_CONF, or a dictionary.
Settings = str | Mapping[str, object]
#: A device: its number, text such as "cuda:0", or a `torch.device`. Without a number, it is device 0.
Device = int | str | object
_T = TypeVar("_T")

#: Options of the commands and the arguments that stand for them, which error messages name.
_FLAGS = {
    "--force": "force=True",
    "--lifetimes": "lifetimes=True",
    "--only": "only=True",
    "--stop-at-oom": "stop_at_oom=True",
}
_OPTIONS = [
    "blocks",
    "bounds",
    "capacity",
    "device",
    "entry",
    "every",
    "fail-above",
    "format",
    "limit",
    "message",
    "output",
    "policy",
    "profile",
    "recorded-limit",
    "settings",
    "steps",
    "workload",
    "workloads",
    "policies",
    "capacities",
    "seeds",
    "prealloc",
    "addresses",
]


class Answer:
    """What a command printed."""

    def __init__(self, printed: bytes, remarks: Sequence[str], exit_code: int, text: str = "", html: str = "") -> None:
        self.printed = printed
        self.remarks = tuple(remarks)
        self.exit_code = exit_code
        #: The command's output without `--json`, and the same as HTML.
        self.text = text
        self.html = html

    def object(self, files: Sequence[File]) -> dict[str, Any]:
        """Returns the JSON object. Names of temporary files in it are replaced with the names of the arguments."""
        found: dict[str, Any] = json.loads(self.printed)
        if "error" in found and "file" in found:
            said = _as_arguments(_named(str(found["error"]), files))
            # A command with several files reports the error for each file, as `VerifyError::GivenSettings`.
            raise (UsageError if re.match(r'the settings ".*" are refused: ', said) else Error)(said)
        temporary = [file for file in files if file.path != file.name]
        return {key: _renamed(value, temporary) for key, value in found.items()} if temporary else found


def run(
    arguments: Sequence[str],
    files: Sequence[File] = (),
    *,
    progress: Progress = False,
    threads: int | None = None,
    with_text: bool = True,
) -> Answer:
    """Runs `parkade` with these arguments, followed by the files. `with_text` also makes the text and HTML output."""
    whole = ["parkade", *arguments, *(["--", *(file.path for file in files)] if files else [])]

    def work() -> Answer:
        printed, remarks, exit_code, text, html = _parkade.run(whole, told, threads, with_text)
        return Answer(printed, remarks, exit_code, _named(text.rstrip("\n"), files), _named(html, files))

    with shown(progress) as told:
        return call(work, files)


def call(work: Callable[[], _T], files: Sequence[File] = ()) -> _T:
    """Calls the extension module, and raises the package's exceptions instead of the module's."""
    try:
        return work()
    except _parkade.UsageError as error:
        raise UsageError(_as_arguments(_named(str(error), files))) from None
    except _parkade.CommandError as error:
        raise Error(_as_arguments(_named(str(error), files))) from None


def options(**given: Any) -> list[str]:
    """Returns a command's options. None and False produce no option, and a list produces several."""
    arguments: list[str] = []
    for name, value in given.items():
        option = f"--{name.replace('_', '-')}"
        if value is None or value is False:
            continue
        if value is True:
            arguments.append(option)
        elif name == "device":
            arguments.append(f"{option}={device_number(value)}")
        elif name == "settings" and isinstance(value, Mapping):
            arguments.append(f"{option}={settings_text(value)}")
        elif isinstance(value, (str, os.PathLike)) or not isinstance(value, Iterable):
            arguments.append(f"{option}={_text(name, value)}")
        elif isinstance(value, Mapping):
            raise TypeError(f"{name} must be text, a number or a list of them, not a dictionary")
        else:
            each = (
                settings_text(item) if name == "settings" and isinstance(item, Mapping) else _text(name, item)
                for item in value
            )
            arguments.extend(f"{option}={text}" for text in each)
    return arguments


def size_bytes(name: str, size: Size) -> int:
    """Returns a size in bytes, read as the commands read it."""
    text = _text(name, size)
    try:
        return _parkade.size(text)
    except _parkade.UsageError as error:
        raise UsageError(f"{name}={size!r}: {error}") from None


def settings_text(settings: Settings) -> str:
    """Returns settings as in PYTORCH_CUDA_ALLOC_CONF: `{"expandable_segments": True}` becomes
    `expandable_segments:True`.
    """
    if isinstance(settings, str):
        return settings
    for key, value in settings.items():
        if not isinstance(key, str) or not isinstance(value, (str, int, float)):
            raise TypeError(f"settings map names to text or numbers, and {key!r} is mapped to {value!r}")
    return ",".join(f"{key}:{value}" for key, value in settings.items())


def device_number(device: Device) -> int:
    """Returns the number of a device."""
    if not isinstance(device, bool):
        try:
            return operator.index(device)  # type: ignore[arg-type]
        except TypeError:
            pass
    # The text of a `torch.device` looks like "cuda:0".
    found = re.fullmatch(r"(?:cuda|hip)(?::(\d+))?|(\d+)", str(device))
    if found is None or isinstance(device, bool):
        raise UsageError(f"device must be a number such as 0 or a device such as 'cuda:0', not {device!r}")
    return int(found[1] or found[2] or 0)


def _text(name: str, value: Any) -> str:
    if isinstance(value, os.PathLike):
        return os.fsdecode(value)
    if isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    try:
        return str(operator.index(value))
    except TypeError:
        raise TypeError(f"{name} must be text or a whole number, not {value!r} ({type(value).__name__})") from None


def _as_arguments(text: str) -> str:
    """Returns a command's error message with arguments of functions in place of options, except in command lines that
    the user is to run.
    """

    def argument(found: re.Match[str]) -> str:
        flag = found[0]
        return _FLAGS.get(flag) or (f"{flag[2:].replace('-', '_')}=" if flag[2:] in _OPTIONS else flag)

    parts = re.split(r"(`[^`]*`|\bparkade [a-z]+ [^;\n]*)", text)
    return "".join(
        part if at % 2 else re.sub(r"(?<![\w-])--[a-z][a-z-]*", argument, part) for at, part in enumerate(parts)
    )


def _named(text: str, files: Sequence[File]) -> str:
    for file in files:
        text = file.named(text)
    return text


def _renamed(value: Any, files: Sequence[File]) -> Any:
    """Returns the value with the names of temporary files replaced in all texts."""
    if isinstance(value, str):
        return _named(value, files)
    if isinstance(value, list):
        return [_renamed(item, files) for item in value]
    if isinstance(value, dict):
        return {key: _renamed(item, files) for key, item in value.items()}
    return value
