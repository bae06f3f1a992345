"""The folder in which the programs are built."""

import os
import sys

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
BUILT = os.path.join(ROOT, "target", "peers")
PEER = os.path.join(ROOT, "target", "release", "examples", "peer")


def check(path, command):
    """Ends this program with one line if a program is missing."""
    if not os.access(path, os.X_OK):
        sys.exit(f"{path} is missing: build it with `{command}`")
