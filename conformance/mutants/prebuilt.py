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

# Files that the programs read at run time, at the paths compiled into them.
READ = ["conformance/oracle/golden", "conformance/recordings"]
LIST = "bugs.json"


def write(folder, programs, bugs):
    """Copies the programs, stripped, and what they read into the folder, with the list of bugs."""
    folder.mkdir(parents=True, exist_ok=True)
    names = {}
    for name, path in programs.items():
        names[name] = "bin-" + name.replace(":", "-")
        shutil.copy(path, folder / names[name])
        subprocess.run(["strip", folder / names[name]], check=True)
    # The scripts themselves, so that the folder needs nothing else.
    shutil.copytree(
        pathlib.Path(__file__).parent,
        folder / "mutants",
        dirs_exist_ok=True,
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    for part in READ:
        shutil.copytree(switch.WORK / part, folder / part, dirs_exist_ok=True)
    content = {
        "built_at": str(switch.WORK),
        "programs": names,
        "bugs": [{"bug": dataclasses.asdict(bug), "unseen": unseen} for bug, unseen in bugs],
    }
    (folder / LIST).write_text(json.dumps(content, indent=1))


@contextlib.contextmanager
def opened(folder):
    """Yields the programs and the bugs of a folder.

    If the path where the programs were built does not exist here, it is a link to the folder in the meantime.
    """
    folder = folder.resolve()
    content = json.loads((folder / LIST).read_text())
    programs = {name: str(folder / file) for name, file in content["programs"].items()}
    for path in programs.values():
        # Some ways of copying files lose the file modes.
        pathlib.Path(path).chmod(stat.S_IRWXU)
    bugs = [(switch.Bug(**entry["bug"]), entry["unseen"]) for entry in content["bugs"]]
    built_at = pathlib.Path(content["built_at"])
    is_missing = not built_at.exists()
    if is_missing:
        built_at.parent.mkdir(parents=True, exist_ok=True)
        built_at.symlink_to(folder)
    switch.WORK = folder
    try:
        yield programs, bugs
    finally:
        if is_missing:
            built_at.unlink()
