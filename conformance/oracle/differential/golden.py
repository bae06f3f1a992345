#!/usr/bin/env python3
"""Writes the golden files: scripts with the real PyTorch allocator's answers, kept in the repository so that the comparison needs
neither PyTorch nor its libraries.

  golden.py [--oracle DIR] [--n 400] [--seed 2611] [--out conformance/oracle/golden] [--only basic,checkpoints]

DIR holds the programs of the releases: target/oracle, where `conformance/oracle/pytorch_harness/setup.sh all` builds them. gen.py writes the
random scripts. The same arguments produce the same bytes, except for scripts with checkpoints and with pools, in which
the real allocator's answers depend on the addresses of its objects.

One file per flavour, NAME.jsonl.xz, one for each of the hand-written scripts every_operation.txt and graph_reuse.txt, one for the other releases, and one for scripts
with checkpoints (checkpoints.py), which has the answers of 2.11 and 2.15, as has the one of the flavour lend. A file is the line "golden answers 1" and
a sequence of runs; a run is one header line, a JSON object with the key "run", then one answer per line, as many as the
header's "lines" says. An answer has the text of its operation in "op", so the script is in the file too.

Only the statistics ("st") are written differently: each number as its difference from the one last printed in the same run, which
packs into less than half the size. The Rust side (conformance/src/golden.rs) adds them up again.
"""

import argparse
import json
import lzma
import os
import re
import subprocess

import checkpoints
import gen
from programs import CHECKPOINTS, CONFIGS, FLAVOURS, environment
from releases import BUILT, built_oracle, minor, program, release

HERE = os.path.dirname(os.path.abspath(__file__))
G = 1 << 30
# The release, the flavour and the settings of each run of the file "releases".
RELEASE_RUNS = [
    ("2.1", "gc", "gc08split64"),
    ("2.1", "capture", "exp"),
    ("2.2", "frac", "roundlist"),
    ("2.3", "oom", "exp_split64"),
    ("2.3", "capture", "default"),
    ("2.4", "frac", "exp_split64"),
    ("2.5", "oom", "exp"),
    ("2.6", "frac", "split64nr40"),
    ("2.7", "poolfree", "split32"),
    ("2.8", "oom", "exp_gc"),
    ("2.9", "capture", "graphreuse"),
    ("2.10", "large", "ppmf"),
    ("2.12", "basic", "default"),
    ("2.12", "oom", "exp"),
    ("2.12", "boundary", "split32"),
    ("2.12", "capture", "graphreuse"),
    ("2.13", "oom", "exp_round4"),
    ("2.14", "large", "exp_split64"),
]
# The hand-written script runs under these: name -> (settings, addresses).
HAND_WRITTEN = {
    "default": ("", "up"),
    "oversize": ("max_split_size_mb:64,max_non_split_rounding_mb:40", "down"),
    "collecting": ("garbage_collection_threshold:0.6,roundup_power2_divisions:4", "up"),
}


def answers(oracle, script, settings, capacity, addresses, profile="2.11"):
    environment = dict(os.environ, FAKE_GPU_BYTES=str(capacity), FAKE_ADDR_POLICY=addresses)
    environment["PYTORCH_CUDA_ALLOC_CONF"] = environment["PYTORCH_ALLOC_CONF"] = settings
    run = subprocess.run(
        [program(release(profile), oracle), "-"],
        input=script.encode(),
        env=environment,
        capture_output=True,
        check=True,
    )
    return run.stdout.decode().splitlines()


def as_differences(lines):
    """Returns the same lines, with every statistic as the difference from its previous value."""
    printed = {}

    def difference(match):
        changes = json.loads(match[1])
        for name, values in changes.items():
            before, printed[name] = printed.get(name, [0] * 4 if isinstance(values, list) else 0), values
            changes[name] = [a - b for a, b in zip(values, before)] if isinstance(values, list) else values - before
        return '"st":' + json.dumps(changes, separators=(",", ":")) + "}"

    # The statistics end the line.
    return [re.sub(r'"st":(\{[^{}]*\})\}$', difference, line) for line in lines]


def write(path, runs):
    # Not JSON: the reader of recordings unpacks these files too, and recognises JSON files by their first byte.
    text = ["golden answers 1"]
    for header, lines in runs:
        text.append(json.dumps({"run": dict(header, lines=len(lines))}))
        text.extend(as_differences(lines))
    packed = lzma.compress(("\n".join(text) + "\n").encode(), preset=9 | lzma.PRESET_EXTREME)
    with open(path, "wb") as file:
        file.write(packed)
    print(f"{path}: {len(runs)} runs, {len(text):,} lines, {len(packed):,} bytes")


def random_runs(options, flavour):
    # A seed for each configuration, so that the file holds twelve scripts rather than one; addresses up and down alternate.
    for number, (config, settings) in enumerate(CONFIGS.items()):
        seed, addresses = options.seed + number, ("up", "down")[number % 2]
        script = []
        gen.gen(seed, options.n, flavour, out=script.append)
        header = {
            "flavour": flavour,
            "config": config,
            "settings": settings,
            "capacity": FLAVOURS[flavour],
            "addresses": addresses,
            "seed": seed,
        }
        yield header, answers(options.oracle, "\n".join(script) + "\n", settings, FLAVOURS[flavour], addresses)


def hand_written_runs(options):
    with open(os.path.join(HERE, "every_operation.txt")) as file:
        script = file.read()
    for config, (settings, addresses) in HAND_WRITTEN.items():
        header = {
            "flavour": "every_operation",
            "config": config,
            "settings": settings,
            "capacity": G,
            "addresses": addresses,
            "seed": 0,
        }
        yield header, answers(options.oracle, script, settings, G, addresses)


def lend_runs(options):
    for number, config in enumerate(("default", "split32")):
        for profile in ("2.11", "2.15"):
            seed, addresses = options.seed + number, ("up", "down")[number % 2]
            script = []
            gen.gen(seed, 5 * options.n, "lend", out=script.append)  # several pools are rare at the start
            header = {
                "flavour": "lend",
                "config": config,
                "settings": CONFIGS[config],
                "capacity": FLAVOURS["lend"],
                "addresses": addresses,
                "seed": seed,
                "profile": profile,
            }
            yield (
                header,
                answers(
                    options.oracle, "\n".join(script) + "\n", CONFIGS[config], FLAVOURS["lend"], addresses, profile
                ),
            )


def captured_runs(options):
    """The hand-written script of blocks that are reused during a capture."""
    script = "\n".join(gen.hand_written("graph_reuse")) + "\n"
    for profile, addresses in (("2.11", "up"), ("2.15", "down")):
        header = {
            "flavour": "graph_reuse",
            "config": "default",
            "settings": "",
            "capacity": FLAVOURS["graph_reuse"],
            "addresses": addresses,
            "seed": 0,
            "profile": profile,
        }
        yield header, answers(options.oracle, script, "", FLAVOURS["graph_reuse"], addresses, profile)


def address_runs(options):
    for number, (profile, config) in enumerate((("2.13", "default"), ("2.15", "exp"))):
        seed, addresses = options.seed + number, ("up", "down")[number % 2]
        script = []
        gen.gen(
            seed, 2 * options.n, "addresses", out=script.append
        )  # because most requests find no room at their address
        header = {
            "flavour": "addresses",
            "config": config,
            "settings": CONFIGS[config],
            "capacity": FLAVOURS["addresses"],
            "addresses": addresses,
            "seed": seed,
            "profile": profile,
        }
        yield (
            header,
            answers(
                options.oracle, "\n".join(script) + "\n", CONFIGS[config], FLAVOURS["addresses"], addresses, profile
            ),
        )


def release_runs(options):
    """Makes one run for each series, with different flavours and settings; the run of a series includes what only that series does."""
    for number, (profile, flavour, config) in enumerate(RELEASE_RUNS):
        seed, addresses = options.seed + number, ("up", "down")[number % 2]
        script = []
        gen.gen(seed, options.n, flavour, out=gen.for_release(script.append, release(profile)))
        header = {
            "flavour": "releases",
            "config": config,
            "settings": CONFIGS[config],
            "capacity": FLAVOURS[flavour],
            "addresses": addresses,
            "seed": seed,
            "profile": profile,
        }
        found = answers(
            options.oracle, "\n".join(script) + "\n", CONFIGS[config], FLAVOURS[flavour], addresses, profile
        )
        yield header, [without_properties(line) for line in found] if minor(release(profile)) < 10 else found


def without_properties(line):
    """Returns an answer without reads of the device's properties: before 2.10 these happen for each message, and they
    are not compared.
    """
    line = re.sub(r'\["cudaGetDeviceProperties",[^\]]*\],?', "", line).replace("],]", "]]")
    return line.replace(',"drv":[]', "")


def checkpoint_runs(options):
    n = 2 * options.n  # restores are rare at the start
    for number, config in enumerate(("default", "split32", "exp", "exp_split64")):
        for profile in ("2.11", "2.15"):
            seed, addresses = options.seed + number, ("up", "down")[number % 2]
            releases = not config.startswith("exp")
            lines, found = checkpoints.drive(
                program(release(profile), options.oracle),
                environment("ckpt", config, addresses),
                seed,
                n,
                "ckpt",
                releases,
            )
            if len(lines) < n:
                found.pop()  # an operation that ends a script early damages the real allocator's heap
            header = {
                "flavour": "checkpoints",
                "config": config,
                "settings": CONFIGS[config],
                "capacity": FLAVOURS["ckpt"],
                "addresses": addresses,
                "seed": seed,
                "profile": profile,
            }
            yield header, found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--oracle", default=BUILT, help="the folder of the real allocator (default: target/oracle)")
    parser.add_argument("--n", type=int, default=400, help="the number of operations in a script")
    parser.add_argument("--seed", type=int, default=2611, help="the seed of the scripts")
    parser.add_argument(
        "--out",
        default=os.path.join(HERE, "..", "golden"),
        help="the folder for the files (default: conformance/oracle/golden)",
    )
    parser.add_argument("--only", default="", help="write only these files, by name, separated by commas")
    options = parser.parse_args()
    for profile in {"2.11", "2.15", *(profile for profile, _, _ in RELEASE_RUNS)}:
        built_oracle(release(profile), options.oracle)
    os.makedirs(options.out, exist_ok=True)
    files = {
        flavour: lambda flavour=flavour: random_runs(options, flavour)
        for flavour in FLAVOURS
        if flavour not in (*CHECKPOINTS, *gen.HAND_WRITTEN)
    }
    files["every_operation"] = lambda: hand_written_runs(options)
    files["lend"] = lambda: lend_runs(options)
    files["graph_reuse"] = lambda: captured_runs(options)
    files["addresses"] = lambda: address_runs(options)
    del files[
        "graphs"
    ]  # the order of blocks that become free together follows from addresses of the real allocator's own objects
    files["releases"] = lambda: release_runs(options)
    files["checkpoints"] = lambda: checkpoint_runs(options)
    for name in options.only.split(",") if options.only else files:
        write(os.path.join(options.out, f"{name}.jsonl.xz"), list(files[name]()))


if __name__ == "__main__":
    main()
