"""Replaces PyTorch's allocator with parkade, in this process and before CUDA is used.

PyTorch's interface for allocators is a C++ class whose functions differ from release to release. `_bridge_build`
therefore compiles a class that passes the calls on to parkade, for the installed PyTorch. With `plug_in=True`,
PyTorch's plug-in interface passes them on instead: this needs no compiler, but lacks the functions that the plug-in
interface does not have.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import re
import warnings
from dataclasses import dataclass
from typing import Any, Literal

from . import _bridge_build
from ._errors import EnableError, UsageError
from ._run import Settings, settings_text

__all__ = ["enable", "enabled", "policies"]

_FIRST_MINOR = 8
# The policies that replace the memory of live tensors.
_BREAKING = ("compaction",)

# From parkade.h.
_WORK_IS_SERIAL = 2
_RESCUE = 4
_RESCUE_FREE = 8
_INVALID_ARGUMENT = 2
_INVALID_SETTINGS = 5

# From bridge.cpp: how an installation ended.
_INSTALLED = 0
_ALREADY_INSTALLED = 1
_CUDA_IN_USE = 2

_ALREADY_ENABLED = "enable it once, at the start of the program"
_CALL_EARLIER = "call parkade.enable() before the first use of CUDA"

_enabled: str | None = None
_bridge: ctypes.CDLL | None = None


def enabled() -> str | None:
    """The policy that PyTorch runs on, or None while it runs on its own allocator."""
    return _enabled


def policies(library: str | os.PathLike[str] | None = None) -> dict[str, str]:
    """All policies: a dict from each name to a description. With `library`, those that `enable` knows in it."""
    opened = _library(library)
    opened.parkade_policy_name.restype = opened.parkade_policy_says.restype = ctypes.c_char_p
    found: dict[str, str] = {}
    place = 0
    while name := opened.parkade_policy_name(ctypes.c_size_t(place)):
        found[name.decode()] = opened.parkade_policy_says(ctypes.c_size_t(place)).decode()
        place += 1
    return found


def enable(
    policy: str = "pytorch",
    *,
    library: str | os.PathLike[str] | None = None,
    settings: Settings | None = None,
    rescue: bool | Literal["free"] | None = None,
    max_rescues: int | None = None,
    serial: bool = False,
    plug_in: bool = False,
    verbose: bool = False,
) -> None:
    """Makes PyTorch allocate GPU memory through parkade from now on. Call it once, before CUDA is used.

    policy: a name from `policies()`. Some policies take parameters (`best-fit-remap:handle=32MiB`). `pytorch` makes
        the same decisions as the allocator of the installed PyTorch, under the same settings.
    library: a shared library with parkade's C interface and policies of its own, by its path
        (docs/writing-a-policy.md). PyTorch runs on the parkade in it, and `policy` may also name one of its policies.
    settings: replaces PYTORCH_CUDA_ALLOC_CONF and has the same form. Only the policy `pytorch` takes settings.
    rescue: continue where PyTorch would raise OutOfMemoryError although enough memory is free in pieces. Until then
        every decision is PyTorch's with expandable segments, which this switches on. True also copies live tensors to
        new memory, at the same addresses, and needs `serial=True`; "free" only moves free memory. None means the
        environment variable PARKADE_RESCUE (1 or free). Each rescue is counted in `torch.cuda.memory_stats()` as
        `parkade_rescues`, and a warning reports rescues at most once a minute.
    max_rescues: the maximum number of rescued requests, for a program that relies on the error.
    serial: your promise that only one thread at a time uses the GPU, that no other GPU uses its tensors, and that no
        tensor is registered for RDMA. A rescue and `compaction` need the promise: they replace the memory of live
        tensors while a request waits, and would lose what another thread writes in that time.
        A backward pass keeps the promise if the entire graph is on the GPU, because the calling thread waits for it.
        DataLoader workers keep it too.
    plug_in: use PyTorch's plug-in interface. Nothing is compiled, but there are no statistics, snapshots, memory pools
        or CUDA graph trees, and running out of memory does not raise torch.OutOfMemoryError.
    verbose: print the command that compiles the bridge.

    Raises EnableError if PyTorch cannot run on parkade here, ValueError for an unknown policy, and PyTorch's own
    exception for settings that PyTorch refuses.
    """
    global _enabled
    if settings is not None:
        settings = settings_text(settings)
    if _enabled is not None:
        raise EnableError(f"PyTorch already runs on parkade, with the policy {_enabled!r}: {_ALREADY_ENABLED}")
    torch = _torch()
    if torch.cuda.is_initialized():
        raise EnableError(f"CUDA is in use, and PyTorch's own allocator holds memory: {_CALL_EARLIER}")
    release = _release(torch)
    path, opened = _library_path(library), _library(library)
    policy, reach = _rescue(policy, rescue)
    if max_rescues is not None and (max_rescues < 1 or not reach):
        raise UsageError(f"max_rescues must be at least 1 and needs rescue=True or rescue='free'; it is {max_rescues}")
    if reach:
        settings = _expandable(settings)
    asked = _Asked(policy, settings, release, reach, max_rescues or 0, serial)
    _check_options(opened, asked)
    if settings is not None:
        torch.cuda.memory._set_allocator_settings(settings)
    of_environment = os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or os.environ.get("PYTORCH_ALLOC_CONF")
    if policy != "pytorch" and of_environment:
        warnings.warn(
            f"the policy {policy!r} takes no settings: {of_environment!r} in PYTORCH_CUDA_ALLOC_CONF has no effect",
            stacklevel=2,
        )
    if plug_in:
        _plug_in(torch, path, asked)
    else:
        _install(torch, path, opened, asked, verbose)
        if reach:
            _count_rescues(torch)
    _enabled = {"": policy, "1": "pytorch-rescue", "free": "pytorch-rescue:reach=free"}[reach]


@dataclass
class _Asked:
    """The options that the program asks for."""

    policy: str
    settings: str | None
    release: str
    #: The reach of a rescue, as in PARKADE_RESCUE; empty if nothing is rescued.
    reach: str
    max_rescues: int
    serial: bool

    @property
    def flags(self) -> int:
        rescue = {"": 0, "1": _RESCUE, "free": _RESCUE_FREE}[self.reach]
        return rescue | (_WORK_IS_SERIAL if self.serial else 0)


def _rescue(policy: str, rescue: bool | str | None) -> tuple[str, str]:
    """Returns the policy, and the reach of a rescue, as in PARKADE_RESCUE; empty if nothing is rescued."""
    if rescue is None and policy in ("pytorch-rescue", "pytorch-rescue:reach=free"):
        return "pytorch", "free" if policy.endswith("free") else "1"
    if rescue is None:
        rescue = os.environ.get("PARKADE_RESCUE", "0") if policy == "pytorch" else False
    known: dict[object, str] = {True: "1", False: "", "1": "1", "0": "", "": "", "free": "free"}
    reach = known.get(rescue)
    if reach is None:
        raise UsageError(f"rescue must be True, 'free' or False (in PARKADE_RESCUE: 1, free or 0), not {rescue!r}")
    if reach and policy != "pytorch":
        raise UsageError(f"only the policy 'pytorch' has a rescue, not {policy!r}")
    return policy, reach


def _expandable(settings: str | None) -> str:
    """The settings, or those of the environment, with expandable segments unless they turn these off."""
    if settings is None:
        settings = os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or os.environ.get("PYTORCH_ALLOC_CONF") or ""
    if "expandable_segments" in settings:
        return settings
    return ",".join(filter(None, ("expandable_segments:True", settings)))


def _count_rescues(torch: Any) -> None:
    """Adds `parkade_rescues` to `torch.cuda.memory_stats()`, from the first rescue on."""
    memory, bridge = torch.cuda.memory, _bridge
    original = memory.memory_stats_as_nested_dict
    assert bridge is not None
    bridge.parkade_bridge_rescues.restype = ctypes.c_longlong

    @functools.wraps(original)
    def with_rescues(device: Any = None) -> dict[str, Any]:
        found: dict[str, Any] = original(device)
        if rescues := bridge.parkade_bridge_rescues(memory._get_device_index(device, optional=True)):
            found["parkade_rescues"] = rescues
        return found

    memory.memory_stats_as_nested_dict = torch.cuda.memory_stats_as_nested_dict = with_rescues


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise EnableError(f"parkade.enable() needs PyTorch, which cannot be imported here: {error}") from None
    if torch.version.cuda is None:
        raise EnableError(
            f"this PyTorch ({torch.__version__}) is built without CUDA, so it has no CUDA allocator to replace"
        )
    return torch


def _release(torch: Any) -> str:
    """PyTorch's release, as `2.11`."""
    found = re.match(r"(\d+)\.(\d+)", torch.__version__)
    if found is None:
        raise EnableError(f"PyTorch's version {torch.__version__!r} does not begin with two numbers, as 2.11.0 does")
    major, minor = int(found[1]), int(found[2])
    if (major, minor) < (2, _FIRST_MINOR):
        raise EnableError(
            f"parkade.enable() needs PyTorch 2.{_FIRST_MINOR} or later, but this is {torch.__version__}: "
            "install a later PyTorch"
        )
    return f"{major}.{minor}"


def _library_path(given: str | os.PathLike[str] | None = None) -> str:
    """The library that PyTorch is to run on: a given one, or the package's."""
    if given is not None:
        path = os.path.realpath(os.fsdecode(given))
        # Raises the usual exceptions of files.
        os.stat(path)
        return path
    found = importlib.util.find_spec("parkade._parkade")
    if found is None or not found.origin:
        raise EnableError("parkade's library (parkade._parkade) is missing: install the package with pip")
    return os.path.realpath(found.origin)


def _library(given: str | os.PathLike[str] | None = None) -> ctypes.CDLL:
    path = _library_path(given)
    try:
        library = ctypes.CDLL(path)
        version = library.parkade_interface_version()
    except (OSError, AttributeError) as error:
        if given is None:
            raise
        raise EnableError(
            f"{path} is not a library with parkade's C interface: {error}; docs/writing-a-policy.md describes how to "
            "build one"
        ) from None
    library.parkade_error_text.restype = library.parkade_header.restype = ctypes.c_char_p
    if given is not None:
        _declare(path, library, version)
    return library


def _declare(path: str, library: ctypes.CDLL, version: int) -> None:
    """Makes the names of a library's own policies known, if it has any."""
    expected = _library().parkade_interface_version()
    if version != expected:
        raise EnableError(
            f"{path} has version {version} of parkade's C interface, but this package needs version {expected}: build "
            "both from the same sources of parkade"
        )
    # The catalogue is all that a library without this function has.
    declares = getattr(library, "parkade_declare_policies", None)
    if declares is not None and declares():
        raise EnableError(f"{path}: {library.parkade_error_text().decode()}")


class _Options(ctypes.Structure):
    """`parkade_options`."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("device", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("simulated_bytes", ctypes.c_uint64),
        ("policy", ctypes.c_char_p),
        ("settings", ctypes.c_char_p),
        ("release", ctypes.c_char_p),
        ("most_rescues", ctypes.c_uint64),
    )


def _check_options(library: ctypes.CDLL, asked: _Asked) -> None:
    """Raises if parkade does not know the release, the policy or the settings."""
    needs_promise = asked.reach == "1" or asked.policy.partition(":")[0] in _BREAKING
    if needs_promise and not asked.serial:
        what = "a rescue" if asked.reach else f"the policy {asked.policy!r}"
        raise UsageError(
            f"{what} replaces the memory of live tensors, so data that another thread writes at the same time is lost: "
            "pass serial=True if only one thread at a time uses the GPU, or use rescue='free'"
        )
    if problem := _refusal(library, _Asked("pytorch", None, asked.release, "", 0, False)):
        raise EnableError(problem[1])
    if problem := _refusal(library, asked):
        status, text = problem
        raise UsageError(text) if status in (_INVALID_ARGUMENT, _INVALID_SETTINGS) else EnableError(text)


def _refusal(library: ctypes.CDLL, asked: _Asked) -> tuple[int, str] | None:
    """Why parkade creates no allocator with these options: the status and the text. None if it creates one on a
    simulated GPU.
    """
    options = _Options(
        size=ctypes.sizeof(_Options),
        flags=asked.flags,
        simulated_bytes=1 << 30,
        policy=asked.policy.encode(),
        settings=asked.settings.encode() if asked.settings else None,
        release=asked.release.encode(),
        most_rescues=asked.max_rescues,
    )
    made = ctypes.c_void_p()
    if status := library.parkade_create(ctypes.byref(options), ctypes.byref(made)):
        return status, library.parkade_error_text().decode()
    library.parkade_destroy(made)
    return None


def _install(torch: Any, library_path: str, library: ctypes.CDLL, asked: _Asked, verbose: bool) -> None:
    """Installs the bridge, which is compiled if it is not in the cache."""
    global _bridge
    path = _bridge_build.built(torch, library_path, library.parkade_header(), asked.release, verbose)
    try:
        bridge = ctypes.CDLL(path)
    except OSError as error:
        raise EnableError(
            f"the compiled bridge cannot be loaded: {error}; remove {path} to have it compiled again"
        ) from None
    if bridge.parkade_bridge_interface() != library.parkade_interface_version():
        raise EnableError(
            f"the compiled bridge is for a different version of parkade's interface: remove {path} to have it "
            "compiled again"
        )
    # PyTorch keeps pointers into it for the life of the process.
    _bridge = bridge
    bridge.parkade_bridge_error_text.restype = ctypes.c_char_p
    status = bridge.parkade_bridge_install(
        asked.policy.encode(), asked.release.encode(), ctypes.c_uint(asked.flags), ctypes.c_ulonglong(asked.max_rescues)
    )
    if status == _INSTALLED:
        return
    if status == _ALREADY_INSTALLED:
        raise EnableError(f"PyTorch already runs on parkade: {_ALREADY_ENABLED}")
    if status == _CUDA_IN_USE:
        raise EnableError(f"PyTorch's own allocator is in use: {_CALL_EARLIER}")
    raise EnableError(f"PyTorch does not accept parkade's allocator: {bridge.parkade_bridge_error_text().decode()}")


def _plug_in(torch: Any, path: str, asked: _Asked) -> None:
    # PyTorch calls these functions without a pointer of ours, so the library reads its options from the environment.
    os.environ.update(
        PARKADE_POLICY=asked.policy,
        PARKADE_RELEASE=asked.release,
        PARKADE_WORK_IS_SERIAL=str(int(asked.serial)),
        PARKADE_RESCUE=asked.reach,
    )
    if asked.settings is not None:
        os.environ["PARKADE_SETTINGS"] = asked.settings
    allocator = torch.cuda.memory.CUDAPluggableAllocator(path, "parkade_plug_alloc", "parkade_plug_free")
    record = ctypes.cast(ctypes.CDLL(path).parkade_plug_record_stream, ctypes.c_void_p).value
    allocator._allocator.set_record_stream_fn(record)
    torch.cuda.memory.change_current_allocator(allocator)
