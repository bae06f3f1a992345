"""PyTorch on parkade: puts parkade in the place of PyTorch's allocator, in this process and before CUDA is used.

PyTorch's interface for allocators is a C++ class whose functions differ from release to release, so the class that leads them to parkade is compiled here, for the PyTorch
that is there, and kept. It needs a C++ compiler and the headers that PyTorch comes with; `plug_in=True` needs neither, and lacks what PyTorch's plug-in interface lacks.
"""
from __future__ import annotations

import contextlib
import ctypes
import hashlib
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import warnings
from typing import Any

from ._errors import EnableError, UsageError
from ._run import Settings, settings_text

__all__ = ["enable", "enabled", "policies"]

_HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bridge")
_FIRST_MINOR = 8
_enabled: str | None = None
_bridge: ctypes.CDLL | None = None


def enabled() -> str | None:
    """The policy that PyTorch runs on, or None while it runs on its own allocator."""
    return _enabled


def policies() -> dict[str, str]:
    """The names of all policies, each with what it does: a dict."""
    library = _library()
    library.parkade_policy_name.restype = library.parkade_policy_says.restype = ctypes.c_char_p
    found: dict[str, str] = {}
    place = 0
    while name := library.parkade_policy_name(ctypes.c_size_t(place)):
        found[name.decode()] = library.parkade_policy_says(ctypes.c_size_t(place)).decode()
        place += 1
    return found


def enable(
    policy: str = "pytorch", *, settings: Settings | None = None, serial: bool = False, plug_in: bool = False, verbose: bool = False
) -> None:
    """From now on PyTorch allocates the GPU's memory through parkade. Call it before CUDA is used, once.

    policy: a name of `policies()`, some with parameters (`floating-handles:handle=32MiB`). `pytorch` decides as the allocator of the
        PyTorch that runs, under the same settings.
    settings: as in PYTORCH_CUDA_ALLOC_CONF, instead of what is there. Only for the policy `pytorch`.
    serial: your promise that one thread at a time uses the GPU, no other GPU uses its tensors, and none is registered for RDMA. `breaking-handles` needs it: it
        replaces the memory of live tensors while a request waits or before a graph is captured, and what another thread wrote meanwhile would be lost. Backward passes keep it where the
        whole graph is on the GPU, since the calling thread waits for them, and so do DataLoader workers.
    plug_in: use PyTorch's plug-in interface: nothing is compiled, but there are no statistics, snapshots, pools and graph trees, and a lack of memory is
        no torch.OutOfMemoryError.
    verbose: say what is compiled.

    Raises EnableError if that is impossible here, ValueError for an unknown policy, and what PyTorch raises for settings that it refuses.
    """
    global _enabled
    if settings is not None:
        settings = settings_text(settings)
    if _enabled is not None:
        raise EnableError(f"PyTorch runs on parkade already, with the policy {_enabled!r}: enable it once, at the start of the program")
    torch = _torch()
    if torch.cuda.is_initialized():
        raise EnableError("CUDA was used before: PyTorch's own allocator holds memory now, so call parkade.enable() before the first use of CUDA")
    release = _release(torch)
    library = _library()
    _check_policy(library, policy, settings, release, serial)
    if settings is not None:
        torch.cuda.memory._set_allocator_settings(settings)
    if policy != "pytorch" and (text := os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or os.environ.get("PYTORCH_ALLOC_CONF")):
        warnings.warn(f"the policy {policy!r} takes no settings: {text!r} of PYTORCH_CUDA_ALLOC_CONF changes nothing", stacklevel=2)
    if plug_in:
        _plug_in(torch, policy, settings, release, serial)
    else:
        _install(torch, library, policy, release, serial, verbose)
    _enabled = policy


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise EnableError(f"parkade.enable() needs PyTorch, which cannot be imported here: {error}") from None
    if torch.version.cuda is None:
        raise EnableError(f"this PyTorch ({torch.__version__}) is built without CUDA: there is no allocator to put parkade in the place of")
    return torch


def _release(torch: Any) -> str:
    """The series, as 2.11."""
    major, minor = (int("".join(filter(str.isdigit, part)) or 0) for part in torch.__version__.split("+")[0].split(".")[:2])
    if (major, minor) < (2, _FIRST_MINOR):
        raise EnableError(f"parkade.enable() is for PyTorch 2.{_FIRST_MINOR} and later, and this is {torch.__version__}")
    return f"{major}.{minor}"


def _library_path() -> str:
    found = importlib.util.find_spec("parkade._parkade")
    if found is None or not found.origin:
        raise EnableError("parkade's library (parkade._parkade) is missing: install the package with pip")
    return os.path.realpath(found.origin)


def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(_library_path())
    library.parkade_error_text.restype = library.parkade_header.restype = ctypes.c_char_p
    return library


class _Options(ctypes.Structure):
    """`parkade_options`."""
    _fields_ = [
        ("size", ctypes.c_size_t), ("device", ctypes.c_uint32), ("flags", ctypes.c_uint32), ("simulated_bytes", ctypes.c_uint64),
        ("policy", ctypes.c_char_p), ("settings", ctypes.c_char_p), ("release", ctypes.c_char_p),
    ]


_INVALID_SETTINGS = 5
# `PARKADE_WORK_IS_SERIAL`.
_WORK_IS_SERIAL = 2
# Policies that replace the memory of live tensors.
_BREAKING = ("breaking-handles",)


def _check_policy(library: ctypes.CDLL, policy: str, settings: str | None, release: str, serial: bool) -> None:
    """Whether there is such a policy for such a release, asked on a simulated device."""
    if policy in _BREAKING and not serial:
        raise UsageError(
            f"the policy {policy!r} replaces the memory of live tensors, which loses what another thread writes meanwhile: "
            "pass serial=True if one thread at a time uses the GPU, or use 'floating-handles'"
        )
    given = settings.encode() if settings else None
    options = _Options(ctypes.sizeof(_Options), 0, 0, 1 << 30, policy.encode(), given, release.encode())
    made = ctypes.c_void_p()
    if status := library.parkade_create(ctypes.byref(options), ctypes.byref(made)):
        text = library.parkade_error_text().decode()
        raise UsageError(text) if status == _INVALID_SETTINGS or "policy" in text else EnableError(text)
    library.parkade_destroy(made)


def _install(torch: Any, library: ctypes.CDLL, policy: str, release: str, serial: bool, verbose: bool) -> None:
    """Compiles the bridge if need be, and installs it."""
    global _bridge
    try:
        bridge = ctypes.CDLL(_built(torch, library, release, verbose))
    except OSError as error:
        raise EnableError(f"the compiled bridge cannot be loaded or kept: {error}") from None
    if bridge.parkade_bridge_interface() != library.parkade_interface_version():
        raise EnableError("the compiled bridge is of another version of parkade's interface: remove the folder parkade in your cache folder (~/.cache)")
    bridge.parkade_bridge_install.restype = ctypes.c_char_p
    # PyTorch keeps pointers into it for the life of the process.
    _bridge = bridge
    problem = bridge.parkade_bridge_install(policy.encode(), release.encode(), ctypes.c_uint(_WORK_IS_SERIAL if serial else 0))
    if problem is not None:
        known = {
            b"already": "PyTorch runs on parkade already: enable it once, at the start of the program",
            b"initialized": "PyTorch's own allocator is in use already: call parkade.enable() before the first use of CUDA",
        }
        raise EnableError(known.get(problem) or problem.decode())


def _built(torch: Any, library: ctypes.CDLL, release: str, verbose: bool) -> str:
    """The path of the compiled bridge for this PyTorch, this library and this compiler."""
    compiler = _compiler()
    includes = [os.path.join(os.path.dirname(torch.__file__), "include"), _cuda_include()]
    libraries = os.path.join(os.path.dirname(torch.__file__), "lib")
    own = _library_path()
    header: bytes = library.parkade_header()
    minor = release.split(".")[1]
    command = [
        *compiler, "-shared", "-fPIC", "-O2", "-fvisibility=hidden", "-fno-plt", "-DNDEBUG", "-w", f"-std=c++{20 if int(minor) >= 12 else 17}", f"-DTORCH_MINOR={minor}",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}", "-I.", *(f"-I{folder}" for folder in includes), os.path.join(_HERE, "bridge.cpp"),
        "-Wl,--no-as-needed", own, f"-Wl,-rpath,{os.path.dirname(own)}", f"-L{libraries}", f"-Wl,-rpath,{libraries}", "-lc10", "-lc10_cuda",
    ]
    version = subprocess.run([*compiler, "--version"], capture_output=True, text=True).stdout
    key = hashlib.sha256("\0".join([torch.__version__, version, *platform.libc_ver(), *command]).encode() + header)
    for name in sorted(os.listdir(_HERE)):
        with open(os.path.join(_HERE, name), "rb") as file:
            key.update(name.encode() + file.read())
    folder = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "parkade")
    path = os.path.join(folder, f"bridge-{key.hexdigest()[:24]}.so")
    if os.path.exists(path):
        return path
    try:
        os.makedirs(folder, exist_ok=True)
        lock = open(os.path.join(folder, "lock"), "w", encoding="utf-8")
    except OSError as error:
        raise EnableError(f"the compiled bridge cannot be kept: {error}; set XDG_CACHE_HOME to a folder that can be written") from None
    # Of the processes of one job, which start together, one compiles.
    with lock:
        with contextlib.suppress(ImportError):
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.exists(path):
            _compile(command, header, path, verbose)
    return path


def _compile(command: list[str], header: bytes, path: str, verbose: bool) -> None:
    with tempfile.TemporaryDirectory(prefix="parkade-") as folder:
        with open(os.path.join(folder, "parkade.h"), "wb") as file:
            file.write(header)
        made = os.path.join(folder, "bridge.so")
        if verbose:
            print("parkade: compiling the bridge for this PyTorch:", *command, file=sys.stderr)
        try:
            run = subprocess.run([*command, "-o", made], cwd=folder, capture_output=True, text=True)
        except OSError as error:
            raise EnableError(f"the C++ compiler {command[0]} cannot be run: {error}") from None
        if run.returncode != 0:
            raise EnableError(f"the bridge to this PyTorch cannot be compiled with {command[0]} (enable(plug_in=True) needs no compiler):\n{run.stderr[-3000:]}")
        shutil.copyfile(made, path + ".new")
        os.replace(path + ".new", path)


def _compiler() -> list[str]:
    """The compiler, with the words that $CXX has before or after it."""
    for name in filter(None, (os.environ.get("CXX"), "c++", "g++", "clang++")):
        first, *more = shlex.split(name)
        if found := shutil.which(first):
            return [found, *more]
    raise EnableError("there is no C++ compiler (c++, g++, clang++ or $CXX): install one, or use enable(plug_in=True), which needs none and can do less")


def _cuda_include() -> str:
    """The folder with CUDA's headers."""
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    folders = [os.path.join(home, "include") for home in homes if home]
    if nvidia := importlib.util.find_spec("nvidia"):
        folders += [os.path.join(place, *part, "include") for place in nvidia.submodule_search_locations or [] for part in (("cu13",), ("cuda_runtime",), ("cu12",))]
    if nvcc := shutil.which("nvcc"):
        folders.append(os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(nvcc))), "include"))
    for folder in folders:
        if os.path.exists(os.path.join(folder, "cuda_runtime_api.h")):
            return folder
    raise EnableError(f"CUDA's headers (cuda_runtime_api.h) are in none of {', '.join(folders)}: pip install nvidia-cuda-runtime, or set CUDA_HOME")


def _plug_in(torch: Any, policy: str, settings: str | None, release: str, serial: bool) -> None:
    os.environ.update(PARKADE_POLICY=policy, PARKADE_RELEASE=release, PARKADE_WORK_IS_SERIAL=str(int(serial)))
    if settings is not None:
        os.environ["PARKADE_SETTINGS"] = settings
    path = _library_path()
    allocator = torch.cuda.memory.CUDAPluggableAllocator(path, "parkade_plug_alloc", "parkade_plug_free")
    record = ctypes.cast(ctypes.CDLL(path).parkade_plug_record_stream, ctypes.c_void_p).value
    allocator._allocator.set_record_stream_fn(record)
    torch.cuda.memory.change_current_allocator(allocator)
