"""`parkade run`: runs a Python program in this process as Python would and explains what helps if it runs out of
memory.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal, NoReturn

from ._errors import Error, UsageError
from ._oom import PATH, OnOom, say, when_torch_is_imported

#: The same text is in cli/src/commands/run.rs, for `parkade run --help`.
_USAGE = (
    "Usage: parkade run [--limit auto|SIZE] [--snapshot FILE] [--always] [--rescue|--policy NAME] [--serial] "
    "PROGRAM.py|-m MODULE [ARGUMENTS]"
)


@dataclass
class _Asked:
    """The command line."""

    limit: str = "auto"
    snapshot: str = PATH
    always: bool = False
    policy: str | None = None
    rescue: bool = False
    serial: bool = False
    #: The program: a path, or a module.
    program: str = ""
    is_module: bool = False
    arguments: list[str] = field(default_factory=list)


def _asked(arguments: Sequence[str]) -> _Asked:
    """Reads the command line: the options of `run` come before the program, and the program's arguments after it."""
    asked, rest = _Asked(), list(arguments)

    def value(name: str, given: str | None) -> str:
        if given is not None:
            return given
        if not rest:
            raise UsageError(f"{name} needs a value")
        return rest.pop(0)

    while rest:
        word = rest.pop(0)
        name, equals, after = word.partition("=")
        given = after if equals else None
        if name in ("--limit", "--snapshot", "--policy"):
            setattr(asked, name[2:], value(name, given))
        elif word in ("--always", "--rescue", "--serial"):
            setattr(asked, word[2:], True)
        elif word == "-m":
            return _program(asked, value("-m", None), True, rest)
        elif word == "--" and rest:
            return _program(asked, rest.pop(0), False, rest)
        elif word.startswith("-"):
            raise UsageError(
                f"parkade run has no option {word}; its options come before the program, and the program's after it"
            )
        else:
            return _program(asked, word, False, rest)
    raise UsageError("there is no program to run: pass a .py file, or -m and a module")


def _program(asked: _Asked, program: str, is_module: bool, arguments: list[str]) -> _Asked:
    if not is_module and not os.path.exists(program):
        raise UsageError(f"there is no file {program} to run")
    if asked.serial and asked.policy is None and not asked.rescue:
        raise UsageError("--serial is needed only with --rescue and some policies: leave it out, or add one of them")
    if asked.rescue and asked.policy is not None:
        raise UsageError("--rescue works only with PyTorch's own rules: leave out --policy")
    asked.program, asked.is_module, asked.arguments = program, is_module, arguments
    return asked


def main(arguments: Sequence[str]) -> NoReturn:
    """Runs the program of this command line, and ends with its exit code, or with 2 if the program could not be
    started.
    """
    try:
        asked = _asked(arguments)
        watcher = OnOom(asked.snapshot, asked.limit)
        if asked.policy is not None or asked.rescue:
            from ._enable import enable

            # Without the promise, only free memory moves.
            rescue: bool | Literal["free"] | None = ("free", True)[asked.serial] if asked.rescue else None
            enable(asked.policy or "pytorch", rescue=rescue, serial=asked.serial)
    except UsageError as error:
        say(str(error))
        print(_USAGE, file=sys.stderr)
        sys.exit(2)
    except (Error, OSError, ValueError) as error:
        say(str(error))
        sys.exit(2)
    when_torch_is_imported(watcher.begin)
    try:
        exit_code = _run(asked, watcher)
    finally:
        if asked.always:
            _write_at_the_end(watcher)
    sys.exit(exit_code)


def _run(asked: _Asked, watcher: OnOom) -> int:
    """Runs the program as `python PROGRAM` or `python -m MODULE` would, and lets SystemExit and KeyboardInterrupt
    through.
    """
    is_safe = bool(getattr(sys.flags, "safe_path", False))
    if not is_safe:
        # Replaces the folder of this command.
        sys.path[0] = os.getcwd() if asked.is_module else os.path.dirname(os.path.realpath(asked.program))
    sys.argv = [asked.program, *asked.arguments]
    try:
        if asked.is_module:
            runpy.run_module(asked.program, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(asked.program, run_name="__main__")
    except SystemExit as error:
        if error.code not in (None, 0):
            # The program may have caught an out-of-memory error and ended because of it.
            watcher.explain(error)
        raise
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        # The program may have set a hook.
        sys.excepthook(type(error), error.with_traceback(_own(error.__traceback__)), error.__traceback__)
        watcher.explain(error)
        return 1
    return 0


def _own(trace: TracebackType | None) -> TracebackType | None:
    """Returns the traceback without the frames of this module and of runpy."""
    around = (__file__, runpy.__file__, "<frozen runpy>")
    while trace is not None and trace.tb_frame.f_code.co_filename in around:
        trace = trace.tb_next
    return trace


def _write_at_the_end(watcher: OnOom) -> None:
    if not watcher.is_own:
        return
    if not watcher.is_recording:
        say("no snapshot was written, because the program did not use CUDA")
        return
    try:
        watcher.write()
        say(f"the snapshot is {watcher.path}")
    except Exception as error:
        say(f"the snapshot {watcher.path} could not be written: {error}")
