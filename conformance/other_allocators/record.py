#!/usr/bin/env python3
"""Records what the real allocators answer, for `cargo test -p parkade-policies --test policies real_ones`: writes policies/tests/data/NAME.xz.

  record.py [--built DIR] bfc

One line per request and driver call, as the real programs print them, with the bytes of each request:
  > POLICY LIMIT_BYTES DEVICE_BYTES    a new allocator, and how much the device has
  + BYTES   ! BYTES   - SEGMENT        the device gave a segment, refused one, got one back
  a ID BYTES SEGMENT+OFFSET|oom        a request
  f ID                                 a block given back; not for blocks that were refused
"""

import argparse
import lzma
import os
import subprocess
import sys

from paths import BUILT, ROOT, check

GEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "gen.py")
PAGE = 2 << 20
# Seed, operations, the device's pages, limit, percentage of the limit that is live, largest request, operations per wave.
SCRIPTS = {
    "bfc": [
        (1, 2000, 954, 2_000_000_001, 97, 64 << 20, 0),
        (5, 2000, 600, 1_000_000_000, 100, 64 << 20, 40),
        (2, 1500, 120, 300_000_000, 90, 64 << 20, 0),
        (6, 2000, 470, 1_000_000_000, 95, 64 << 20, 40),
    ],
}


def commands(limit, device):
    """Per file: the policies, and the real ones' commands."""
    share = limit * 3 // 4
    return {
        "bfc": [
            ("bfc", ["bfc_peer", "grow", device, limit]),
            ("bfc:kind=one-region", ["bfc_peer", "one", device, limit]),
            ("bfc:kind=xla", ["bfc_peer", "prealloc", device, share]),
            ("bfc:kind=xla-growth", ["bfc_peer", "grow-keep", device, share]),
        ],
    }


def answers(command, script):
    """Returns the real program's output, with the bytes of each request."""
    asked = {line.split()[1]: line.split()[2] for line in script.splitlines() if line.startswith("a")}
    run = subprocess.run(
        [*map(str, command), "-"],
        input=script,
        capture_output=True,
        text=True,
        env=dict(os.environ, TF_CPP_MIN_LOG_LEVEL="3"),
    )
    lines = run.stdout.splitlines()
    if run.returncode or not lines or not lines[-1].startswith("= ops"):
        sys.exit(f"{command} did not finish: {lines[-1:]} {run.stderr}")
    for words in map(str.split, lines[:-1]):
        if words[0] == "a":
            yield f"a {words[1]} {asked[words[1]]} {words[2]}"
        elif words[0] == "+":
            yield f"+ {words[2]}"
        elif words[-1] != "none":
            yield " ".join(words)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--built", default=BUILT, help="the folder with the real allocators (default: target/peers)")
    parser.add_argument("name", choices=list(SCRIPTS))
    options = parser.parse_args()
    lines = []
    for seed, operations, pages, limit, live, largest, waves in SCRIPTS[options.name]:
        arguments = [seed, operations, 1, limit * live // 100, largest, "--waves", waves]
        script = subprocess.run(
            [sys.executable, GEN, *map(str, arguments)], capture_output=True, text=True, check=True
        ).stdout
        device = pages * PAGE
        for policy, (program, *arguments) in commands(limit, device)[options.name]:
            program = os.path.join(options.built, program)
            check(program, f"conformance/other_allocators/build_{options.name}.sh")
            lines += [f"> {policy} {limit} {device}", *answers([program, *arguments], script)]
    path = os.path.join(ROOT, "policies", "tests", "data", options.name + ".xz")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with lzma.open(path, "wt", preset=9 | lzma.PRESET_EXTREME) as file:
        file.writelines(line + "\n" for line in lines)
    print(f"{path}: {len(lines)} lines, {os.path.getsize(path)} bytes")


if __name__ == "__main__":
    main()
