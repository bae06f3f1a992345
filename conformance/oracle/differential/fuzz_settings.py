#!/usr/bin/env python3
"""Compares the settings parser with the real allocator on random settings strings.

  fuzz_settings.py [--n 20000] [--load 2000] [--seed 1] [--ours SETTINGS_FIELDS] [--oracle ORACLE] [--probe SETTINGS_PROBE]
  fuzz_settings.py --release 2.7.1 [--n 20000] [--seed 1] [--parkade BIN]

The first form compares every field with 2.11's. The second compares messages, and what a snapshot shows, with any release:
--release  both through scripts of `conf` and `snapshot`: the release's program, and `parkade ops` with its profile.
           With a few exceptions, only keys that the release knows are drawn. Before 2.3 a snapshot shows no settings,
           and only messages are compared.
--ours    parkade's example: `cargo build --release --example settings_fields`
--oracle  `conf` and `snapshot` for every string, at run time: compares what a snapshot shows
--probe   pytorch_harness/src/settings_probe.cpp, built against the same libraries: compares every field to the bit, at run time and, for --load of the
          strings, from the environment of a new process
conformance/oracle/pytorch_harness/setup.sh builds the last two in target/oracle, where they are found. Naming only one of them leaves the other out.
Exit status 1 if anything differs.
"""

import argparse
import json
import os
import random
import re
import struct
import subprocess
import sys

from releases import BUILT, ROOT, accepts, built, built_oracle, program, release, short

KEYS = [
    "large_segment_size_mb",
    "max_split_size_mb",
    "max_non_split_rounding_mb",
    "garbage_collection_threshold",
    "roundup_power2_divisions",
    "expandable_segments",
    "pinned_use_background_threads",
    "backend",
    "release_lock_on_cudamalloc",
    "release_lock_on_hipmalloc",
    "pinned_use_cuda_host_register",
    "pinned_use_hip_host_register",
    "pinned_num_register_threads",
    "pinned_reserve_segment_size_mb",
    "graph_capture_record_stream_reuse",
    "per_process_memory_fraction",
]
# Keys that only releases after 2.11 know.
LATER_KEYS = [
    "throw_on_cudamalloc_oom",
    "pinned_free_catch_all",
    "pinned_max_round_threshold_mb",
    "pinned_max_cached_size_mb",
    "expandable_segments_reserve",
    "expandable_segments_reserve_by_class",
]
ODD_KEYS = [
    "unknown",
    "",
    "Max_split_size_mb",
    "max_split_size",
    "throw_on_cudamalloc_oom",
    "é",
    "key=value",
    "max_split_size_mb=30",
]
INTEGERS = [
    "0",
    "1",
    "2",
    "3",
    "4",
    "8",
    "10",
    "11",
    "16",
    "19",
    "20",
    "21",
    "30",
    "63",
    "64",
    "127",
    "128",
    "129",
    "256",
    "1024",
    "32768",
    "65536",
    "4294967296",
    "17592186044415",
    "17592186044416",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "99999999999999999999999",
    "-1",
    "-5",
    "-18446744073709551615",
    "-18446744073709551616",
    "+7",
    "+-3",
    "--3",
    "-",
    "+",
    "007",
    "0x10",
    "30xyz",
    "x30",
    "3e2",
    "1.5",
    "٣",
]
DOUBLES = [
    "0",
    "0.0",
    "-0.0",
    "0.5",
    "0.8",
    ".5",
    "5.",
    ".",
    "1",
    "1.0",
    "0.9999999999999999999",
    "1.0000000000000001",
    "1.0000000000000003",
    "1e-1",
    "5E-1",
    "1e",
    "1e+",
    "1e-",
    ".5e-",
    "1e400",
    "1e-400",
    "1e-310",
    "2.2250738585072014e-308",
    "2.2250738585072011e-308",
    "4.9406564584124654e-324",
    "1e309",
    "0e999999999999",
    "1e-99999999999999999999",
    "inf",
    "INF",
    "-inf",
    "infinity",
    "infinit",
    "nan",
    "NaN",
    "-nan",
    "nan(12)",
    "nanx",
    "in",
    "na",
    "i",
    "0x",
    "0x.",
    "0x.8",
    "0x1p-1",
    "0X1P-2",
    "0x1p",
    "0x1p+",
    "0x1.8p-1",
    "0x.p1",
    "0x1p-1074",
    "0x1p-1075",
    "0x1.8p-1073",
    "0x1.8p-1074",
    "0xfffffffffffff8p-57",
    "0xfffffffffffff801p-60",
    "0x1p1024",
    "0x1.fffffffffffff8p1023",
    "0x1.fffffffffffff7p1023",
    "0.5x",
    "0.5.5",
    "-0.5",
    "+0.5",
    "+",
    "-",
    "1_0",
    "0,5",
]
WORDS = [
    "True",
    "False",
    "true",
    "1",
    "TrueX",
    "native",
    "cudaMallocAsync",
    "hipMallocAsync",
    ">",
    "",
    "[",
    "]",
    ":",
    ",",
]


def double_text(r):
    k = r.random()
    if k < 0.5:
        return r.choice(DOUBLES)
    if k < 0.6:
        return repr(r.random())
    if k < 0.7:
        return "%.*e" % (r.randint(0, 30), r.random() * 10.0 ** r.randint(-320, 3))
    if k < 0.8:
        return ("%.*f" % (r.choice([760, 1074, 1080]), r.getrandbits(r.randint(1, 52)) * 2.0**-1074)) + r.choice(
            ["", "", "1", "0"]
        )
    if k < 0.9:
        return r.random().hex()
    digits = "".join(r.choice("0123456789abcdefABCDEF") for _ in range(r.randint(1, 24)))
    point = r.randint(0, len(digits))
    return (
        r.choice(["", "-", "+"])
        + "0x"
        + digits[:point]
        + r.choice([".", ""])
        + digits[point:]
        + r.choice(["", "p%d" % r.randint(-1200, 20), "p-%d" % (len(digits) * 4)])
    )


def integer_text(r):
    k = r.random()
    if k < 0.6:
        return r.choice(INTEGERS)
    if k < 0.8:
        return str(1 << r.randint(0, 66))
    return str(r.getrandbits(r.randint(1, 70)))


def list_text(r):
    pairs = []
    for _ in range(r.choice([0, 1, 1, 2, 3, 5])):
        interval = ">" if r.random() < 0.2 else str(1 << r.randint(0, 17)) if r.random() < 0.8 else integer_text(r)
        division = str(1 << r.randint(0, 6)) if r.random() < 0.85 else integer_text(r)
        pairs.append(interval + (":" if r.random() < 0.97 else r.choice(",[;=")) + division)
    body = ",".join(pairs) + ("," if r.random() < 0.1 else "")
    return "[" + body + ("]" if r.random() < 0.93 else "")


def value_text(r, key):
    if r.random() < 0.12:
        return r.choice([r.choice(WORDS), integer_text(r), double_text(r), list_text(r)])
    if key == "roundup_power2_divisions":
        return list_text(r) if r.random() < 0.75 else integer_text(r)
    if key in ("garbage_collection_threshold", "per_process_memory_fraction"):
        return double_text(r)
    if key == "backend":
        return r.choice(["native", "native", "native", "cudaMallocAsync", "x"])
    if key.endswith("_mb"):
        return str(r.randint(5, 200)) if r.random() < 0.6 else integer_text(r)
    if key == "pinned_num_register_threads":
        return integer_text(r)
    return r.choice(["True", "False", "True", "False", "true", "0"])


def mutated(r, s):
    for _ in range(r.choice([0, 0, 0, 1, 1, 2, 4])):
        at = r.randint(0, len(s))
        k = r.random()
        if k < 0.3:
            s = s[:at] + r.choice(",:[]") + s[at:]
        elif k < 0.5:
            s = s[:at] + r.choice(" \t\v\f\r\u00a0\u3000\u0085") + s[at:]
        elif k < 0.7:
            s = s[:at] + s[at + 1 :]
        elif k < 0.8:
            s = s[:at]
        elif k < 0.9:
            s = s[:at] + r.choice("0123456789.+-eExXpPTFn>=_\x01\x7fé") + s[at:]
        else:
            end = min(len(s), at + r.randint(1, 12))
            s = s[:end] + s[at:end] + s[end:]
    return s


def likely_value(r, key):
    if key == "roundup_power2_divisions":
        if r.random() < 0.3:
            return str(1 << r.randint(0, 6))
        return (
            "["
            + ",".join(
                f"{r.choice(['>', 1 << r.randint(0, 16)])}:{r.choice([0, 1, 2, 4, 8])}" for _ in range(r.randint(0, 4))
            )
            + "]"
        )
    if key == "expandable_segments_reserve":
        return r.choice([repr(r.random()), "0.5", "8GB", "1.5GB"])
    if key == "expandable_segments_reserve_by_class":
        return f"[{r.choice('abc')}:{r.random()}]"
    if key in ("garbage_collection_threshold", "per_process_memory_fraction"):
        return r.choice([repr(r.random()), r.random().hex(), "0.5", ".8", "5e-1"])
    if key == "backend":
        return "native"
    if key == "large_segment_size_mb":
        return str(r.randint(11, 40))
    if key.endswith("_mb"):
        return str(r.choice([r.randint(20, 4096), 1 << r.randint(6, 64)]))
    if key == "pinned_num_register_threads":
        return str(1 << r.randint(0, 7))
    return r.choice(["True", "False"])


def settings_text(r):
    if r.random() < 0.4:  # mostly valid
        text = ",".join(
            key + r.choice([":", ":", ":", ","]) + likely_value(r, key)
            for key in r.sample(KEYS, r.randint(0, min(8, len(KEYS))))
        )
        return text if r.random() < 0.8 else mutated(r, text)
    if r.random() < 0.05:
        return "".join(r.choice(KEYS + WORDS + INTEGERS + [",", ":", "[", "]"] * 8) for _ in range(r.randint(0, 14)))
    pairs = []
    for _ in range(r.choice([0, 1, 1, 1, 2, 2, 3, 5])):
        key = r.choice(KEYS) if r.random() < 0.96 else r.choice(ODD_KEYS)
        pairs.append(key + (":" if r.random() < 0.98 else r.choice([",", "", "=", "["])) + value_text(r, key))
    return mutated(r, (",").join(pairs))


def run_ours(path, mode, texts):
    text = "".join((t if t == "!" else t.encode().hex()) + "\n" for t in texts)
    return subprocess.run([path, mode], input=text, capture_output=True, text=True, check=True).stdout.splitlines()


def fields(line):
    parts = line.split("\t")
    return parts[0], bytes.fromhex(parts[1]).decode(), dict(p.split("=", 1) for p in parts[2:])


def as_double(bits):
    return struct.unpack(">d", bytes.fromhex(bits))[0]


class Report:
    def __init__(self):
        self.compared = self.different = self.errors = 0

    def check(self, where, text, ours, real):
        self.compared += 1
        if ours != real:
            self.different += 1
            if self.different <= 10:
                print(f"DIFFERS ({where}) {text!r}\n  ours {ours}\n  real {real}")


def in_scripts(texts):
    """The strings that a script can have: it has a comment character and lines, and a blank string reaches the allocator as an empty one."""
    return [t for t in texts if "#" not in t and "\n" not in t and t.strip(" \t\v\f\r") != "" and t != "!"]


def answered(command, texts):
    """A program's answers to each string and to the snapshot after it, alternately."""
    script = "".join(f"conf {t}\nsnapshot\n" for t in texts).encode()
    env = dict(os.environ, FAKE_GPU_BYTES=str(1 << 30))
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"):
        env.pop(name, None)
    output = subprocess.run(command, input=script, env=env, capture_output=True, check=True).stdout
    lines = [json.loads(line, strict=False) for line in output.decode(errors="surrogateescape").split("\n") if line]
    assert len(lines) == 2 * len(texts), (command[0], len(lines), len(texts))
    return lines


def against_release(args, texts):
    texts = [
        text for text in in_scripts(texts) if not text.endswith("\r")
    ]  # `parkade ops` drops it at the end of a line
    sides = [
        answered(command, texts)
        for command in (
            [args.parkade, "ops", "-", "--capacity", str(1 << 30), "--profile", short(args.release)],
            [built_oracle(args.release), "--log=0", "--stats=none", "--events=0", "-"],
        )
    ]
    report = Report()
    for place, text in enumerate(texts):
        ours, real = (
            [
                *(side[2 * place].get(field) for field in ("ok", "err", "msg")),
                side[2 * place + 1]["snapshot"].get("config"),
            ]
            for side in sides
        )
        report.errors += real[0] == 0
        report.check(args.release, text, ours, real)
    return report


def against_oracle(args, texts):
    texts = in_scripts(texts)
    lines = answered([args.oracle, "--log=0", "--stats=none", "--events=0", "-"], texts)
    ours = run_ours(args.ours, "run", texts)
    assert len(ours) == len(texts), (len(ours), len(texts))
    report = Report()
    for text, conf, snapshot, line in zip(texts, lines[::2], lines[1::2], ours):
        kind, message, f = fields(line)
        c = snapshot["snapshot"]["config"]
        real = (
            conf.get("err"),
            conf.get("msg", ""),
            "{:g}".format(c["gc_threshold"]),
            c["max_split_size"],
            c["expandable_segments"],
            c["release_lock"],
            c["graph_reuse"],
            c["last"],
            c["roundup"],
        )
        mine = (
            {"-": None, "value": "c10", "internal": "c10"}.get(kind, "std"),
            message,
            "{:g}".format(float("{:g}".format(as_double(f["gc"])))),
            int(f["split"]),
            int(f["expandable"]),
            int(f["release"]),
            int(f["graph"]),
            bytes.fromhex(f["text"]).decode(),
            [int(x) for x in f["roundup"].split(",")],
        )
        report.errors += conf["ok"] == 0
        report.check("oracle", text, mine, real)
    return report


def against_probe(args, texts):
    with_resets = []
    for i, t in enumerate(texts):
        if i % 7 == 0:
            with_resets.append("!")
        with_resets.append(t)
    hexes = "".join((t if t == "!" else t.encode().hex()) + "\n" for t in with_resets)
    real = subprocess.run(
        [args.probe, "run"], input=hexes, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    ours = run_ours(args.ours, "run", with_resets)
    assert len(real) == len(ours) == len(with_resets)
    report = Report()
    for t, o, r in zip(with_resets, ours, real):
        report.errors += not r.startswith("-")
        report.check("probe", t, o, r)
    return report


def load_real(probe, text):
    env = dict(os.environ, PYTORCH_CUDA_ALLOC_CONF=text, FAKE_GPU_BYTES=str(1 << 30))
    done = subprocess.run([probe, "load"], env=env, capture_output=True)
    if done.returncode == 0:
        return done.stdout.decode().rstrip("\n")
    # Only internal asserts end a process while it loads.
    found = re.search(r"what\(\):  (.*)", done.stderr.decode())
    return "internal\t" + found.group(1).encode().hex() if found else f"status {done.returncode}"


def against_load(args, texts):
    ours = run_ours(args.ours, "load", texts)
    report = Report()
    for t, o in zip(texts, ours):
        real = load_real(args.probe, t)
        report.errors += not real.startswith("-")
        report.check("load", t, o, real)
    return report


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--ours",
        default=os.path.join(ROOT, "target", "release", "examples", "settings_fields"),
        help="parkade's side (default: target/release/examples/settings_fields)",
    )
    parser.add_argument("--oracle", help="the real allocator (default: target/oracle/oracle-2.11.0)")
    parser.add_argument("--probe", help="the real parser (default: target/oracle/settings_probe-2.11.0)")
    parser.add_argument(
        "--release", type=release, help="compare this release, such as 2.7.1, instead of every field of 2.11"
    )
    parser.add_argument(
        "--parkade",
        default=os.path.join(ROOT, "target", "release", "parkade"),
        help="the binary that --release uses (default: target/release/parkade)",
    )
    parser.add_argument("--n", type=int, default=20000, help="the number of strings")
    parser.add_argument(
        "--load", type=int, default=2000, help="the number of strings that a new process reads from its environment"
    )
    parser.add_argument("--seed", type=int, default=1, help="the seed of the strings")
    args = parser.parse_args()
    if args.release:
        built(args.parkade, "cargo build --release -p parkade-cli")
        known = built_oracle(args.release)
        values = random.Random(0)
        KEYS[:] = [key for key in KEYS + LATER_KEYS if accepts(known, f"{key}:{likely_value(values, key)}")]
        print(f"keys: {', '.join(KEYS)}")
    elif not args.oracle and not args.probe:
        args.oracle, args.probe = program("2.11.0"), os.path.join(BUILT, "settings_probe-2.11.0")
    builders = {
        "ours": "cargo build --release --example settings_fields",
        "oracle": "conformance/oracle/pytorch_harness/setup.sh",
        "probe": "conformance/oracle/pytorch_harness/setup.sh",
    }
    for name, command in builders.items():
        if getattr(args, name) and not args.release:
            setattr(args, name, os.path.abspath(getattr(args, name)))
            built(getattr(args, name), command)
    r = random.Random(args.seed)
    texts = [t for t in (settings_text(r) for _ in range(args.n)) if t != "!"]
    different = 0
    jobs = []
    if args.release:
        jobs.append((args.release, against_release, texts))
    if args.oracle:
        jobs.append(("oracle", against_oracle, texts))
    if args.probe:
        jobs += [("probe", against_probe, texts), ("load", against_load, texts[: args.load])]
    for name, job, some in jobs:
        report = job(args, some)
        different += report.different
        print(
            f"{name}: {report.compared} strings compared, {report.errors} of them errors, {report.different} different"
        )
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
