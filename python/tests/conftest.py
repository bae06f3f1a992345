"""Shared by the tests: shipped recordings, a stand-in for PyTorch, and the command line."""

from __future__ import annotations

import lzma
import os
import pickle
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest_plugins = ["pytester"]

REPOSITORY = Path(__file__).resolve().parents[2]
RECORDINGS = REPOSITORY / "conformance" / "recordings"
#: A sweep of a few jobs that takes a moment.
SMALL = "transformer:layers=2,hidden=64,heads=2,vocabulary=100,sequence=64,batch=8,steps=2"


@pytest.fixture(scope="session")
def died() -> str:
    """The recording of a run that died of an out-of-memory error."""
    return str(RECORDINGS / "resnet50_sweep.limit5_oom.pickle.xz")


@pytest.fixture(scope="session")
def died_bytes(died: str) -> bytes:
    """The same as a pickle."""
    with lzma.open(died) as file:
        return file.read()


@pytest.fixture
def snapshot(died_bytes: bytes) -> dict[str, Any]:
    """The same as `torch.cuda.memory._snapshot()` returns it."""
    found: dict[str, Any] = pickle.loads(died_bytes)
    return found


@pytest.fixture(scope="session")
def command() -> Callable[..., subprocess.CompletedProcess[bytes]]:
    """Runs the `parkade` on the path."""

    def run(*arguments: object) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [sys.executable, "-m", "parkade", *map(os.fspath, arguments)], capture_output=True, check=False
        )  # type: ignore[call-overload]

    return run


class FakeMemory(types.ModuleType):
    """`torch.cuda.memory` of the stand-in: it writes a shipped recording."""

    def __init__(self, data: bytes) -> None:
        super().__init__("torch.cuda.memory")
        self.data = data
        self.calls: list[tuple[str, Any]] = []
        self.seconds = 0.0
        self.clock: FakeClock | None = None

    def _record_memory_history(self, enabled: str | None = "all", **options: Any) -> None:
        self.calls.append(("record", {"enabled": enabled, **options}))

    def _dump_snapshot(self, path: str) -> None:
        self.calls.append(("dump", path))
        Path(path).write_bytes(self.data)

    def _snapshot(self) -> Any:
        self.calls.append(("snapshot", None))
        if self.clock is not None:
            self.clock.now += self.seconds
        return pickle.loads(self.data)


class FakeClock:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class FakeCuda(types.ModuleType):
    """`torch.cuda` of the stand-in."""

    def __init__(self, data: bytes) -> None:
        super().__init__("torch.cuda")
        self.memory = FakeMemory(data)
        self.there = True
        self.emptied = 0
        self.asked = 0
        self.stats = {
            "allocated_bytes.all.current": 600,
            "reserved_bytes.all.current": 1000,
            "inactive_split_bytes.all.current": 300,
            "allocation.all.allocated": 1000,
            "allocation.all.freed": 900,
            "num_ooms": 1,
            "num_alloc_retries": 2,
        }

    def is_available(self) -> bool:
        return self.there

    def memory_stats(self, device: int | None = None) -> dict[str, int]:
        self.asked += 1
        return dict(self.stats)

    def empty_cache(self) -> None:
        self.emptied += 1


@pytest.fixture
def fake_cuda(monkeypatch: pytest.MonkeyPatch, died_bytes: bytes) -> FakeCuda:
    """A stand-in for PyTorch with a GPU."""
    torch = types.ModuleType("torch")
    torch.cuda = FakeCuda(died_bytes)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", torch)
    return torch.cuda  # type: ignore[no-any-return,attr-defined]


@pytest.fixture
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without PyTorch."""
    monkeypatch.setitem(sys.modules, "torch", None)
