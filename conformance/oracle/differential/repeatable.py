#!/usr/bin/env python3
"""Checks a build of the real allocator: every flavour of script under every settings string, each run twice.

  repeatable.py [--release 2.11.0] [--n 10000] [--seeds 1] [--only SUBSTRING] [--out DIR] [--oracle PROGRAM]

A run must end with status 0 and one line of JSON per operation, and both runs must print the same bytes. --out keeps scripts and answers.
"""

import argparse
import collections
import hashlib
import json
import os
import subprocess
import sys

import gen
from programs import CHECKPOINTS, CONFIGS, FLAVOURS, SINCE
from releases import accepts, built_oracle, release

# Settings that parkade does not model but that the real allocator must survive.
MORE_CONFIGS = {
    "async": "backend:cudaMallocAsync",
    "throw_oom": "throw_on_cudamalloc_oom:True",
    "exp_reserve": "expandable_segments:True,expandable_segments_reserve:0.25",
}


def twice(oracle, script, capacity, settings):
    environment = dict(
        os.environ, FAKE_GPU_BYTES=str(capacity), PYTORCH_ALLOC_CONF=settings, PYTORCH_CUDA_ALLOC_CONF=settings
    )
    if not settings:
        del environment["PYTORCH_ALLOC_CONF"], environment["PYTORCH_CUDA_ALLOC_CONF"]
    return [
        subprocess.run([oracle, "-"], input=script.encode(), env=environment, capture_output=True) for _ in range(2)
    ]


def error_mark(kind):
    return f'"err":"{kind}"'.encode()


def unexpected(output):
    """The four most frequent errors that are not out of memory: (count, (operation, message))."""
    errors = (
        json.loads(line) for line in output.splitlines() if error_mark("c10") in line or error_mark("std") in line
    )
    return [
        (count, kind)
        for kind, count in collections.Counter((e["op"].split()[0], e["msg"][:150]) for e in errors).most_common(4)
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--release", type=release, default="2.11.0", help="the release of PyTorch, such as 2.7.1 (default: 2.11.0)"
    )
    parser.add_argument("--oracle", help="the real allocator (default: in target/oracle)")
    parser.add_argument("--n", type=int, default=10000, help="the number of operations in a script")
    parser.add_argument("--seeds", type=int, default=1, help="the number of scripts of each kind")
    parser.add_argument("--only", default="", help="only do runs whose name contains this text")
    parser.add_argument("--out", help="keep scripts and answers in this folder")
    options = parser.parse_args()
    oracle = os.path.abspath(options.oracle) if options.oracle else built_oracle(options.release)
    configs = {name: settings for name, settings in (CONFIGS | MORE_CONFIGS).items() if accepts(oracle, settings)}
    # poolfree corrupts the real allocator's heap where segments are expandable (docs/spec.md, section 4.10).
    flavours = {
        flavour: capacity
        for flavour, capacity in FLAVOURS.items()
        if flavour not in CHECKPOINTS and flavour not in SINCE
    }
    runs = operations = bad = 0
    for seed in range(1, options.seeds + 1):
        for flavour, capacity in flavours.items():
            lines = []
            gen.gen(seed, options.n, flavour, out=gen.for_release(lines.append, options.release))
            script = "\n".join(lines) + "\n"
            for config, settings in configs.items():
                name = f"{config}.{flavour}.{seed}"
                if options.only not in name:
                    continue
                first, second = twice(oracle, script, capacity, settings)
                output = first.stdout
                count = output.count(b"\n")
                is_good = first.returncode == second.returncode == 0 and count == len(lines) and output == second.stdout
                runs, operations, bad = runs + 1, operations + count, bad + (not is_good)
                errors = " ".join(f"{kind}={output.count(error_mark(kind))}" for kind in ("oom", "c10", "std"))
                print(
                    f"{'ok ' if is_good else 'BAD'} {name:26} status={first.returncode} answers={count}/{len(lines)} {errors}"
                    f" sha256={hashlib.sha256(output).hexdigest()[:12]}",
                    flush=True,
                )
                if not is_good:
                    print(first.stderr.decode()[-600:])
                for count, kind in unexpected(output):
                    print("      ", count, kind)
                if options.out:
                    os.makedirs(options.out, exist_ok=True)
                    for ending, content in (("jsonl", output), ("txt", script.encode())):
                        with open(os.path.join(options.out, f"{name}.{ending}"), "wb") as file:
                            file.write(content)
    print(f"{runs} runs, {operations:,} operations, {bad} bad")
    sys.exit(bad != 0)


if __name__ == "__main__":
    main()
