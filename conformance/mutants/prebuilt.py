"""Folders with the switched programs and everything that they read, so that one machine can build and a different one can judge.

run.py writes and reads such folders; this module is not a command. It needs Python 3.10 and no Rust.
"""

import contextlib
import dataclasses
import json
import pathlib
import shutil
import stat
import subprocess

import switch

LIST = "bugs.json"


def write(folder, built, bugs):
    """Copies the programs, stripped, and the copy of the workspace, which they read, into the folder, with the list of bugs."""
    shutil.copytree(switch.HOME / "work", folder / "work", dirs_exist_ok=True)
    for path in [built.suite, *(test.path for test in built.tests)]:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["strip", switch.HOME / path, "-o", folder / path], check=True)
    # The scripts themselves, so that the folder needs nothing else.
    shutil.copytree(pathlib.Path(__file__).parent, folder / "mutants", dirs_exist_ok=True)
    content = {
        "built_at": str(switch.HOME),
        "built": dataclasses.asdict(built),
        "bugs": [dataclasses.asdict(bug) for bug in bugs],
    }
    (folder / LIST).write_text(json.dumps(content, indent=1))


@contextlib.contextmanager
def opened(folder):
    """Yields the programs and the bugs of a folder.

    If the path where the programs were built does not exist here, it is a link to the folder in the meantime.
    """
    folder = folder.resolve()
    content = json.loads((folder / LIST).read_text())
    built = switch.Built(**content["built"])
    built.tests = [switch.Program(**test) for test in built.tests]
    for path in [built.suite, *(test.path for test in built.tests)]:
        # Some ways of copying files lose the file modes.
        (folder / path).chmod(stat.S_IRWXU)
    built_at = pathlib.Path(content["built_at"])
    is_missing = not built_at.exists()
    if is_missing:
        built_at.parent.mkdir(parents=True, exist_ok=True)
        built_at.symlink_to(folder)
    switch.HOME = folder
    try:
        yield built, [switch.Bug(**bug) for bug in content["bugs"]]
    finally:
        if is_missing:
            built_at.unlink()
