"""Texts of the command in the words of the function that was called: arguments in place of options, and the names of
recordings in place of those of temporary files.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ._inputs import File

#: A command line that the user is to run as it is, up to the end of the sentence or the HTML element.
_COMMAND = r"`[^`]*`|\b(?:parkade [a-z]+|nvidia-smi) [^;\n<)]*"
#: An option, and the value after it if it looks like one: a number, a size, or a placeholder such as NAME.
_OPTION = re.compile(r"(?<![\w-])--([a-z][a-z-]*)(?:[ =](\d[\w.%/]*|[A-Z]+\b))?")
#: How the parser of the command line names an option: with its placeholder, in quotes.
_QUOTED = r"'--([a-z-]+)[^']*'"
#: The sentences of that parser, and those of the package.
_SENTENCES = [
    (rf"invalid value '(.*)' for {_QUOTED} \[possible values: (.*)\]", r"--\2=\1 is not one of \3"),
    (rf"invalid value '(.*)' for {_QUOTED}", r"--\2=\1"),
    (r"\b0 is not in 1\.\.\d+", "it must be at least 1"),
    (rf"the argument {_QUOTED} cannot be used multiple times", r"--\1 takes one value, not several"),
    (rf"the argument {_QUOTED} cannot be used with {_QUOTED}", r"--\1 and --\2 cannot be combined: leave one out"),
    (r"the following required arguments were not provided: (.*)", r"\1 is missing, and another argument needs it"),
    (r"<?(--[a-z-]+) <(?:1/)?[A-Z][A-Z:|]*>>?", r"\1"),
    (r"(--[a-z-]+)\|(--[a-z-]+)", r"\1 or \2"),
    ("leave the option out", "leave the argument out"),
    ("parkade sweep --list", "parkade.catalogue()"),
    (r"in a log, run parkade diagnose (.*)", r'in a log, call parkade.diagnose(message="\1")'),
]


@functools.cache
def arguments() -> dict[str, str]:
    """The arguments of all functions that run a command, by the option that each stands for: `limit=`, `force=True`."""
    from . import _commands, _sweep

    functions: list[Callable[..., Any]] = [
        function
        for module in (_commands, _sweep)
        for function in vars(module).values()
        if inspect.isfunction(function) and function.__module__ == module.__name__ and function.__name__[0] != "_"
    ]
    # `data` has everything.
    found = {"json": "data", "all": "data", "series-step": "step="}
    for function in functions:
        for name, parameter in inspect.signature(function).parameters.items():
            found[name.replace("_", "-")] = f"{name}=True" if parameter.annotation == "bool" else f"{name}="
    return found


def is_switch(name: str) -> bool:
    """Whether an argument may be True."""
    return name == "steps" or arguments().get(name.replace("_", "-"), "").endswith("=True")


def _literal(value: str) -> str:
    is_bare = re.fullmatch(r"\d+(\.\d+)?|[A-Z]+", value)
    return value if is_bare else repr(value)


@dataclass(frozen=True)
class Words:
    """The words of a call: its options, as the command gets them, and its recordings."""

    options: Sequence[str] = ()
    files: Sequence[File] = ()

    def named(self, text: str) -> str:
        """Returns the text with the names of recordings in place of those of temporary files."""
        for file in self.files:
            text = file.named(text)
        return text

    def __call__(self, text: str) -> str:
        """Returns the text in the words of the call. Names of recordings and command lines stay as they are."""
        text = self.named(text)
        for sentence, instead in _SENTENCES:
            text = re.sub(sentence, instead, text)
        names = [re.escape(file.name) for file in self.files if "--" in file.name]
        parts = re.split(f"({'|'.join([*names, _COMMAND])})", text)
        return "".join(part if at % 2 else self._in_arguments(part) for at, part in enumerate(parts))

    def _in_arguments(self, text: str) -> str:
        for option in self.options:
            name, given, value = option.partition("=")
            if given and (argument := arguments().get(name[2:], "")).endswith("="):
                instead = (argument + _literal(value)).replace("\\", r"\\")
                text = re.sub(rf'{name}[ =]("?){re.escape(value)}\1(?![\w.])', instead, text)
        return _OPTION.sub(_argument, text)


def everywhere(found: dict[str, Any], put: Callable[[str], str]) -> dict[str, Any]:
    """Returns a JSON object with `put` applied to each string in it."""

    def each(value: Any) -> Any:
        if isinstance(value, str):
            return put(value)
        if isinstance(value, list):
            return [each(item) for item in value]
        if isinstance(value, dict):
            return {key: each(item) for key, item in value.items()}
        return value

    return {key: each(value) for key, value in found.items()}


def _argument(found: re.Match[str]) -> str:
    argument, value = arguments().get(found[1]), found[2]
    if argument is None:
        return found[0]
    if value is None:
        return argument
    return argument + _literal(value) if argument.endswith("=") else f"{argument} {value}"
