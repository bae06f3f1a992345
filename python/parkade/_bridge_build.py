"""Compiles the bridge, the C++ class that replaces PyTorch's allocator, and keeps the result in the user's cache
folder.

PyTorch's headers differ from release to release, so the bridge is compiled on the user's machine, once for each
PyTorch, compiler and version of parkade.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ._errors import EnableError

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

_SOURCES = Path(__file__).resolve().parent / "bridge"
# The last characters of the compiler's output that an error quotes.
_QUOTED = 3000


def built(torch: Any, library: str, header: bytes, release: str, verbose: bool) -> str:
    """The path of the bridge for this PyTorch, compiled now if it is not in the cache.

    library: the path of parkade's library. header: the text of its parkade.h. release: PyTorch's, as `2.11`.
    """
    compiler = _compiler()
    command = _command(compiler, torch, library, release)
    folder = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "parkade"
    path = folder / f"bridge-{_key(compiler, command, torch.__version__, header)}.so"
    if path.exists():
        return str(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder / "lock"):
            if not path.exists():
                _compile(command, header, path, verbose)
    except OSError as error:
        raise EnableError(
            f"the compiled bridge cannot be stored in {folder}: {error}; set XDG_CACHE_HOME to a folder that you "
            "can write to"
        ) from None
    return str(path)


def _command(compiler: list[str], torch: Any, library: str, release: str) -> list[str]:
    """The compiler's arguments, except for the output file. The compiler runs in a folder that has parkade.h."""
    package = Path(torch.__file__).parent
    libraries = package / "lib"
    minor = int(release.split(".")[1])
    return [
        *compiler,
        *("-shared", "-fPIC", "-O2", "-fvisibility=hidden", "-fno-plt", "-w"),
        f"-std=c++{20 if minor >= 12 else 17}",
        *("-DNDEBUG", f"-DTORCH_MINOR={minor}", f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}"),
        *("-I.", f"-I{package / 'include'}", f"-I{_cuda_include()}"),
        str(_SOURCES / "bridge.cpp"),
        *("-Wl,--no-as-needed", library, f"-Wl,-rpath,{os.path.dirname(library)}"),
        *(f"-L{libraries}", f"-Wl,-rpath,{libraries}", "-lc10", "-lc10_cuda"),
    ]


def _key(compiler: list[str], command: list[str], torch_version: str, header: bytes) -> str:
    """Returns a key that changes whenever the compiled bridge would change."""
    compiler_version = subprocess.run([*compiler, "--version"], capture_output=True, text=True).stdout
    key = hashlib.sha256("\0".join([torch_version, compiler_version, *platform.libc_ver(), *command]).encode())
    key.update(header)
    for source in sorted(_SOURCES.iterdir()):
        if source.suffix in {".cpp", ".hpp"}:
            key.update(source.name.encode() + source.read_bytes())
    return key.hexdigest()[:24]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds the lock, so that only one of a job's processes, which start together, compiles."""
    with path.open("w", encoding="utf-8") as lock:
        if fcntl is not None:
            # Some network file systems have no locks; each process then compiles, and the last one's bridge stays.
            with suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _compile(command: list[str], header: bytes, path: Path, verbose: bool) -> None:
    with tempfile.TemporaryDirectory(prefix="parkade-") as folder:
        Path(folder, "parkade.h").write_bytes(header)
        made = Path(folder, "bridge.so")
        if verbose:
            print("parkade: compiling the bridge for this PyTorch:", shlex.join(command), file=sys.stderr)
        try:
            run = subprocess.run([*command, "-o", str(made)], cwd=folder, capture_output=True, text=True)
        except OSError as error:
            raise EnableError(f"the C++ compiler {command[0]} cannot be run: {error}") from None
        if run.returncode != 0:
            raise EnableError(
                f"{command[0]} cannot compile the bridge for this PyTorch (enable(plug_in=True) needs no compiler):\n"
                f"{run.stderr[-_QUOTED:]}"
            )
        # A process that does not wait for the lock sees a complete file or none.
        new = path.with_suffix(f".{os.getpid()}.new")
        shutil.copyfile(made, new)
        os.replace(new, path)


def _compiler() -> list[str]:
    """The compiler, and the arguments that $CXX has after its name."""
    for name in filter(None, (os.environ.get("CXX"), "c++", "g++", "clang++")):
        first, *more = shlex.split(name)
        if found := shutil.which(first):
            return [found, *more]
    raise EnableError(
        "there is no C++ compiler (c++, g++, clang++ or $CXX): install one, or use enable(plug_in=True), "
        "which needs no compiler but offers less"
    )


def _cuda_include() -> Path:
    """Returns the folder that contains the CUDA headers."""
    homes = [
        Path(home) for home in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda") if home
    ]
    if nvidia := importlib.util.find_spec("nvidia"):
        places = nvidia.submodule_search_locations or []
        homes += [Path(place, part) for place in places for part in ("cu13", "cuda_runtime", "cu12")]
    if nvcc := shutil.which("nvcc"):
        homes.append(Path(nvcc).resolve().parent.parent)
    folders = [home / "include" for home in homes]
    for folder in folders:
        if (folder / "cuda_runtime_api.h").exists():
            return folder
    raise EnableError(
        f"CUDA's headers (cuda_runtime_api.h) are in none of {', '.join(map(str, folders))}: "
        "pip install nvidia-cuda-runtime, or set CUDA_HOME"
    )
