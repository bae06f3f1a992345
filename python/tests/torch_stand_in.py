"""A stand-in for PyTorch: a package `torch` in a folder, whose snapshot is a recording of this repository."""

from __future__ import annotations

from pathlib import Path

TORCH = '''
import os, pickle, sys, types

__version__ = "2.11.0+cu130"
version = types.SimpleNamespace(cuda="13.0")


class OutOfMemoryError(RuntimeError):
    pass


class _C:
    observers = []
    history = None

    @staticmethod
    def _cuda_attach_out_of_memory_observer(observer):
        _C.observers.append(observer)

    @staticmethod
    def _cuda_isHistoryEnabled():
        return _C.history is not None


memory = types.ModuleType("torch.cuda.memory")


def _record_memory_history(enabled="all", **options):
    _C.history = None if enabled is None else options
    print("history", enabled, sorted(options.items()), flush=True)


def _snapshot():
    with open(os.environ["STAND_IN_SNAPSHOT"], "rb") as file:
        return pickle.load(file)


memory._record_memory_history, memory._snapshot = _record_memory_history, _snapshot
cuda = types.ModuleType("torch.cuda")
cuda.memory = memory
cuda.state = types.SimpleNamespace(begun=False, calls=[])


def _lazy_call(call):
    call() if cuda.state.begun else cuda.state.calls.append(call)


def use():
    """Does what the first tensor on a GPU does."""
    if not cuda.state.begun:
        cuda.state.begun = True
        for call in cuda.state.calls:
            call()


def allocate(wanted=51380224):
    """An allocation for which there is too little memory."""
    use()
    for observer in _C.observers:
        observer(0, wanted, 80 << 30, 22 << 20)
    raise OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 49.00 MiB. GPU 0 has a total capacity of 5.00 "
        "GiB of which 22.00 MiB is free."
    )


cuda._lazy_call, cuda.use, cuda.allocate = _lazy_call, use, allocate
cuda.is_initialized = lambda: cuda.state.begun
cuda.is_available = lambda: True
cuda.current_device = lambda: 0
cuda.mem_get_info = lambda device=None: (22 << 20, 80 << 30)
sys.modules.update({"torch.cuda": cuda, "torch.cuda.memory": memory})
'''


def write_torch(folder: Path) -> Path:
    """Writes the package there, and returns the folder to put on the path."""
    package = folder / "torch"
    package.mkdir()
    (package / "__init__.py").write_text(TORCH)
    return folder
