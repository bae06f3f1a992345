"""Runs a program with one bug, and ends it when it computes for far too long or no longer computes at all.

Only processor time counts, because time on the clock says nothing on a busy machine.

run.py and sample.py use this module; it is not a command. It needs Linux.
"""

import dataclasses
import math
import os
import pathlib
import resource
import signal
import subprocess
import tempfile
import time

# A program that uses no processor time for so long is in a deadlock.
IDLE_S = 60
# A bug must not take the machine's memory: each process has this much.
MEMORY_BYTES = 8 << 30


@dataclasses.dataclass
class Ended:
    """A program that has ended. `hang` says why it was ended early; it is empty for a program that ended by itself."""

    code: int
    output: str
    cpu_s: float
    hang: str


def limit_s(plain):
    """Returns the processor time that a program may use with a bug: ten times what it used without one, and some for the start."""
    return math.ceil(10 * plain.cpu_s) + 5


def run(command, room, number, limit_s=None):
    """Runs a program in a folder with one bug switched on; each of its processes may use `limit_s` of processor time."""
    environment = {
        **os.environ,
        "PARKADE_MUTANT": str(number),
        "RUST_BACKTRACE": "0",
        # A failure must be found, not kept for later runs, and not be made short.
        "INSTA_UPDATE": "no",
        "PROPTEST_MAX_SHRINK_ITERS": "100",
    }
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        process = subprocess.Popen(
            command,
            cwd=room,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        resource.prlimit(process.pid, resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
        if limit_s:
            resource.prlimit(process.pid, resource.RLIMIT_CPU, (limit_s, limit_s + 1))
        usage, is_idle = wait(process)
        hang = ""
        if is_idle:
            hang = f"no processor time used for {IDLE_S} s"
        elif process.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
            hang = f"more than {limit_s} s of processor time used"
        output.seek(0)
        return Ended(process.returncode, output.read(), usage.ru_utime + usage.ru_stime, hang)


def wait(process):
    """Waits until the program ends. Returns the resources that it used, and whether it was ended because it was idle."""
    start = changed = time.monotonic()
    used, is_idle = 0, False
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            return usage, is_idle
        now = time.monotonic()
        if (ticks := session_ticks(process.pid)) != used:
            used, changed = ticks, now
        elif now - changed > IDLE_S:
            is_idle = True
            os.killpg(process.pid, signal.SIGKILL)
        time.sleep(min(1, 0.01 + (now - start) / 20))


def session_ticks(session):
    """Returns the processor time that the processes of a session have used, with their children that have ended."""
    total = 0
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        if int(fields[3]) == session:
            total += sum(map(int, fields[11:15]))
    return total
