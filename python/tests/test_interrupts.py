"""Ctrl-C ends long work immediately, other threads run during the work, and a process may fork afterwards."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from conftest import RECORDINGS

import parkade

LONG = str(RECORDINGS / "gpt2_varlen.default.pickle.xz")


def native_threads() -> int:
    """The threads of this process, those of Rust included."""
    return len(os.listdir("/proc/self/task")) if sys.platform == "linux" else 0


def test_control_c_raises_keyboard_interrupt():
    before = native_threads()
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        while True:
            # Waits as long as it takes.
            parkade.advise(LONG)
    assert time.monotonic() - begun < 20
    timer.join()
    deadline = time.monotonic() + 30
    while native_threads() > before and time.monotonic() < deadline:
        time.sleep(0.1)
    assert native_threads() <= before, "the work has ended"


def test_control_c_ends_a_sweep_on_threads():
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        parkade.sweep("all", "pytorch", seeds=20)
    timer.join()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("parkade")]


def loaded(pid: int) -> None:
    """Waits until the process has parkade's library: before that a signal meets Python's imports."""
    maps, until = Path(f"/proc/{pid}/maps"), time.monotonic() + 10
    while maps.exists() and "_parkade" not in maps.read_text() and time.monotonic() < until:
        time.sleep(0.01)
    time.sleep(0.5)


@pytest.mark.skipif(sys.platform == "win32", reason="on that system, signals end processes in a different way")
def test_control_c_ends_the_command_as_the_binary():
    process = subprocess.Popen(
        [sys.executable, "-m", "parkade", "advise", LONG], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    loaded(process.pid)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=20)
    # It may already have finished; it must not have printed a traceback.
    assert process.returncode in (-signal.SIGINT, 0) and b"Traceback" not in said


def test_other_threads_run_while_parkade_works():
    counted = 0
    stop = threading.Event()

    def count() -> None:
        nonlocal counted
        while not stop.is_set():
            counted += 1
            time.sleep(0.001)

    thread = threading.Thread(target=count)
    thread.start()
    before = counted
    begun = time.monotonic()
    parkade.advise(LONG)
    elapsed = time.monotonic() - begun
    during = counted - before
    stop.set()
    thread.join()
    # If the interpreter were blocked, it would count only once or twice.
    assert during > 20 * elapsed, (during, elapsed)


def _verified(path: str) -> bool:
    return parkade.verify(path).exact and parkade.advise(path, settings="", only=True).verified


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_process_may_fork_after_a_call(died):
    assert _verified(died)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map_async(_verified, [died, died]).get(timeout=120) == [True, True]
