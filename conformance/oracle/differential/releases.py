"""The releases of PyTorch that the harness builds, and the names of their programs in target/oracle."""

import argparse
import os
import subprocess
import sys

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", ".."))
BUILT = os.path.join(ROOT, "target", "oracle")
HARNESS = os.path.join("conformance", "oracle", "pytorch_harness")


def releases():
    """Every release, newest first, as 2.15.0."""
    with open(os.path.join(ROOT, HARNESS, "releases.txt"), encoding="utf-8") as lines:
        return [line.split()[0] for line in lines if line.strip() and not line.startswith("#")]


def release(text):
    """Returns a release by its full name, or a minor release's .0 by the minor's name: 2.7 is 2.7.0. For argparse: the
    error for an unknown one lists those that exist.
    """
    name = text if text.count(".") == 2 else text + ".0"
    if name not in releases():
        raise argparse.ArgumentTypeError(f"there is no release {text}, only {' '.join(reversed(releases()))}")
    return name


def minor(name):
    """7 for 2.7.1."""
    return int(name.split(".")[1])


def short(name):
    """2.7 for 2.7.0, 2.7.1 for itself: the name of parkade's profile."""
    return name.removesuffix(".0")


def program(name, folder=BUILT):
    """Returns the path of a release's real allocator."""
    return os.path.join(folder, f"oracle-{name}")


def accepts(oracle, settings):
    """Whether the release of this program takes the settings string. A string that it refuses ends the program before
    it reads its script.
    """
    environment = dict(os.environ, PYTORCH_ALLOC_CONF=settings, PYTORCH_CUDA_ALLOC_CONF=settings)
    return (
        not settings or subprocess.run([oracle, "-"], input=b"", env=environment, capture_output=True).returncode == 0
    )


def built(path, command):
    """Ends this program with one line if a program is missing."""
    if not os.access(path, os.X_OK):
        sys.exit(f"{path} is missing: build it with `{command}`")


def built_oracle(name, folder=BUILT):
    """Returns the path of a release's real allocator; ends this program with one line if it is missing."""
    path = program(name, folder)
    built(path, f"{HARNESS}/setup.sh {name}")
    return os.path.abspath(path)
