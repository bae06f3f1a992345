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
from ._words import Words, everywhere, is_switch

#: A number of bytes, such as 12e9, or text such as "12GiB".
Size = int | float | str
#: Settings of PyTorch's allocator: text as in PYTORCH_CUDA_ALLOC_CONF, or a dictionary.
Settings = str | Mapping[str, object]
#: A device: its number, text such as "cuda:0", or a `torch.device`. Without a number, it is device 0.
Device = int | str | object
_T = TypeVar("_T")


class Answer:
    """What a command printed with `--json`."""

    def __init__(
        self, printed: bytes, exit_code: int = 0, text: str = "", html: str = "", words: Words | None = None
    ) -> None:
        self.printed = printed
        self.exit_code = exit_code
        #: The command's output without `--json`, and the same as HTML.
        self.text = text
        self.html = html
        self.words = words or Words()

    def object(self) -> dict[str, Any]:
        """Returns the JSON object, with the names of the recordings."""
        found: dict[str, Any] = json.loads(self.printed)
        if "error" in found and "file" in found:
            said = self.words(str(found["error"]))
            # A command with several files reports the error for each file, as `VerifyError::GivenSettings`.
            raise (UsageError if re.match(r'the settings ".*" are refused: ', said) else Error)(said)
        is_renamed = any(file.path != file.name for file in self.words.files)
        return everywhere(found, self.words.named) if is_renamed else found

    def in_arguments(self, found: dict[str, Any]) -> dict[str, Any]:
        """Returns the object with arguments in place of options in its texts."""
        return everywhere(found, self.words) if b"--" in self.printed else found


def run(
    arguments: Sequence[str],
    files: Sequence[File] = (),
    *,
    progress: Progress = False,
    threads: int | None = None,
    with_text: bool = True,
) -> Answer:
    """Runs `parkade` with these arguments, followed by the files. `with_text` also makes the text and HTML output."""
    words = Words(arguments, files)
    whole = ["parkade", *arguments, *(["--", *(file.path for file in files)] if files else [])]
    if threads is not None:
        at_least_one("threads", threads)

    def work() -> Answer:
        printed, exit_code, text, html = _parkade.run(whole, told, threads, with_text)
        return Answer(printed, exit_code, words.named(text.rstrip("\n")), words.named(html), words)

    with shown(progress) as told:
        return call(work, words)


def call(work: Callable[[], _T], words: Words) -> _T:
    """Calls the extension module, and raises the package's exceptions instead of the module's."""
    try:
        return work()
    except _parkade.UsageError as error:
        raise UsageError(words(str(error))) from None
    except _parkade.CommandError as error:
        raise Error(words(str(error))) from None


def options(**given: Any) -> list[str]:
    """Returns a command's options. None and False produce no option, and a list produces several."""
    arguments: list[str] = []
    for name, value in given.items():
        option = f"--{name.replace('_', '-')}"
        if value is None or value is False:
            continue
        if value is True and is_switch(name):
            arguments.append(option)
        else:
            is_one = isinstance(value, (str, os.PathLike, Mapping)) or not isinstance(value, Iterable)
            arguments.extend(f"{option}={_text(name, item)}" for item in ([value] if is_one else value))
    return arguments


def listed(name: str, given: Any) -> list[Any]:
    """Returns one path, text or factor, or several, as a list."""
    if isinstance(given, (str, os.PathLike, float)):
        return [given]
    if not isinstance(given, Iterable):
        raise TypeError(f"{name} must be text, a path or a list of them, not {given!r} ({type(given).__name__})")
    return list(given)


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
    if not isinstance(settings, Mapping):
        raise TypeError(f"settings must be text or a dictionary, not {settings!r} ({type(settings).__name__})")
    for key, value in settings.items():
        if not isinstance(key, str) or not isinstance(value, (str, int, float)):
            raise TypeError(f"settings map names to text or numbers, and {key!r} is mapped to {value!r}")
    return ",".join(f"{key}:{value}" for key, value in settings.items())


def device_number(device: Device) -> int:
    """Returns the number of a device."""
    # The text of a `torch.device` looks like "cuda:0", and that of a number of numpy like 0.
    found = re.fullmatch(r"(?:cuda|hip)(?::(\d+))?|(\d+)", str(device))
    if found is None:
        raise UsageError(f"device must be a number such as 0 or a device such as 'cuda:0', not {device!r}")
    return int(found[1] or found[2] or 0)


def _text(name: str, value: Any) -> str:
    if name == "settings":
        return settings_text(value)
    if name == "device":
        return str(device_number(value))
    if isinstance(value, os.PathLike):
        return os.fsdecode(value)
    if isinstance(value, str):
        return value
    whole = _whole(name, value, "text or a whole number")
    if whole < 0:
        raise UsageError(f"{name}={whole}: it must not be negative")
    return str(whole)


def at_least_one(name: str, value: Any) -> None:
    """Raises unless the value is a whole number above 0."""
    if _whole(name, value, "a whole number") < 1:
        raise UsageError(f"{name}={value}: it must be at least 1")


def _whole(name: str, value: Any, kind: str) -> int:
    """Returns a whole number, such as 12e9 or a number of numpy."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be {kind}, not {value!r} ({type(value).__name__})")
    return operator.index(value)
