"""The command `parkade` is the binary's: answers, exit codes, and where they are printed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import parkade


def test_exit_codes_are_those_of_the_binary(command, died, tmp_path):
    missing = tmp_path / "missing.pickle"
    assert command("verify", died).returncode == 0
    assert command("verify", died, "--settings", "max_split_size_mb:32").returncode == 1
    refused = command("verify", missing)
    assert refused.returncode == 2 and refused.stderr.startswith(b"parkade: ") and refused.stderr.count(b"\n") == 1
    assert command("diff", died, "--fail-above", "5GiB").returncode == 3
    assert command("nonsense").returncode == 2


def test_it_prints_what_the_functions_return(command, died):
    printed = json.loads(command("diagnose", died, "--json").stdout)
    assert printed == parkade.diagnose(died).data


def test_help_and_usage_name_the_command(command):
    assert b"Usage: parkade" in command("--help").stdout
    wrong = command("advise", "--jsn")
    assert b"Usage: parkade advise" in wrong.stderr and wrong.returncode == 2
    as_json = command("advise", "--json", "--nosuch")
    assert "--nosuch" in json.loads(as_json.stdout)["error"]
    assert command("--version").stdout.decode().split() == ["parkade", parkade.__version__]


@pytest.mark.parametrize("arguments", [["--json"], ["--csv"], []])
def test_a_closed_pipe_is_no_failure(died, arguments):
    process = subprocess.Popen(
        [sys.executable, "-m", "parkade", "stats", died, "--every", "1", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.read(1)
    process.stdout.close()
    assert process.stderr.read() == b"" and process.wait() == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["completions", "bash"]])
def test_a_full_disk_is_a_failure(arguments):
    with open("/dev/full", "wb") as full:
        run = subprocess.run(
            [sys.executable, "-m", "parkade", *arguments], stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert run.returncode == 2 and run.stderr.startswith(b"parkade: cannot write standard output: ")


def test_it_is_on_the_path(died):
    script = Path(sysconfig.get_path("scripts")) / "parkade"
    if not script.exists() and shutil.which("parkade") is None:
        pytest.skip("the package is not installed; it runs from its sources")
    found = subprocess.run([script if script.exists() else "parkade", "verify", died], capture_output=True, check=False)
    assert found.returncode == 0 and b"every decision is the same" in found.stdout


def run_with_path(path: Path) -> subprocess.CompletedProcess[bytes]:
    arguments = [sys.executable, "-m", "parkade", "conform", "--seed", "7"]
    return subprocess.run(arguments, capture_output=True, check=False, env={**os.environ, "PATH": str(path)})


@pytest.mark.skipif(os.name == "nt", reason="the stand-in for the binary is a shell script")
def test_conform_runs_the_binary_on_the_path(tmp_path):
    stand_in = tmp_path / "parkade"
    stand_in.write_text('#!/bin/sh\necho ran "$@"; exit 1\n')
    stand_in.chmod(0o755)
    run = run_with_path(tmp_path)
    assert (run.returncode, run.stdout) == (1, b"ran conform --seed 7\n")


def test_conform_without_a_binary_names_the_way_to_one(tmp_path):
    # This package installs a Python script, which would only lead back here.
    (tmp_path / "parkade").write_text(f"#!{sys.executable}\nraise SystemExit(0)\n")
    run = run_with_path(tmp_path)
    assert run.returncode == 2 and b"cargo install --path cli" in run.stderr
