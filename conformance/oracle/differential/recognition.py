#!/usr/bin/env python3
"""Tests which releases are confused with each other: makes recordings with each release's real allocator, and checks
which releases `parkade verify` names.

  recognition.py [--keep FOLDER] [--releases 2.7.0,2.11.0] [--seeds 1-2] [--n 800] [--flavours a,b] [--configs a,b] [--addresses up,down] [--write DOCUMENT]

Each script runs through the program of every release, and as_recording.py makes two snapshots of its answers: one with the keys that the release
writes, and a bare one in which only the decisions reveal the release. For each, the release that made it must be among
those named. Any other named release must give the same answers to the script: what it would have recorded is compared,
entry by entry. Prints tables; --write puts them between the two markers of a document. Exit code 1 if a release is
missed, or named although its own run differs.
"""

import argparse
import collections
import json
import lzma
import os
import subprocess
import sys
import tempfile

import as_recording
import gen
import releases
from programs import CONFIGS, environment
from run import seeds

# With private pools the real answers depend on the addresses of the allocator's objects: another run of the same release may
# give another recording.
COMPARED = ("basic", "streams", "oom", "boundary", "large")
ONLY_NAMED = ("pools", "poolfree", "capture")
MARKS = ("<!-- recognition: begin -->\n", "<!-- recognition: end -->\n")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--oracle", default=releases.BUILT, help="the folder of the real allocators (default: target/oracle)"
    )
    parser.add_argument(
        "--parkade",
        default=os.path.join(releases.ROOT, "target", "release", "parkade"),
        help="the binary (default: target/release/parkade)",
    )
    parser.add_argument(
        "--releases",
        default=",".join(reversed(releases.releases())),
        help="the releases, separated by commas (default: all that are built)",
    )
    parser.add_argument("--seeds", type=seeds, default=seeds("1-2"), help="the seeds, such as 7 or 1-20")
    parser.add_argument("--n", type=int, default=800, help="the number of operations in a script")
    parser.add_argument(
        "--flavours", default=",".join(COMPARED + ONLY_NAMED), help="kinds of scripts, separated by commas"
    )
    parser.add_argument("--configs", default="default,split32,round4,exp", help="settings by name, separated by commas")
    parser.add_argument("--addresses", default="up,down", help="orders of addresses: up, down or both")
    parser.add_argument("--keep", metavar="FOLDER", help="only write one small snapshot per series into this folder")
    parser.add_argument("--write", metavar="DOCUMENT", help="write the tables into this document")
    options = parser.parse_args()
    options.parkade = os.path.abspath(options.parkade)
    if not options.keep:
        releases.built(options.parkade, "cargo build --release -p parkade-cli")
    options.releases = [
        name for name in options.releases.split(",") if os.access(releases.program(name, options.oracle), os.X_OK)
    ]
    return options


def recorded_script(seed, n, flavour, live):
    """A random script with its history, without the end in which everything is freed."""
    lines = []
    gen.gen(seed, n, flavour, live, out=lines.append)
    return "\n".join(
        ["history on 1000000"] + lines[: len(lines) - lines[::-1].index("free_all") - 2] + ["trace", ""]
    ).encode()


def answers(options, release, flavour, config, addresses, script):
    """The lines of the real allocator, or None if the release refuses the settings."""
    command = [releases.program(release, options.oracle), "--raw", "--stats=none", "--log=0", "-"]
    run = subprocess.run(command, input=script, env=environment(flavour, config, addresses), capture_output=True)
    return run.stdout.decode().splitlines() if run.returncode == 0 else None


def recorded(lines):
    """The contents of a recording of these answers, except for what only some releases write."""
    snapshot = as_recording.Snapshot(lines, 15, True)
    whole = snapshot.whole()
    return whole["segments"], whole["device_traces"]


def named(options, folder, files, settings):
    """Returns the releases that parkade names for each file, and whether they explain it."""
    given = ["--settings", settings] if settings is not None else []
    run = subprocess.run([options.parkade, "verify", "--json", *given, *files], cwd=folder, capture_output=True)
    found = {}
    for line in run.stdout.decode().splitlines():
        answer = json.loads(line)
        if "made_by" in answer:
            found[answer["file"]] = (
                answer["made_by"]["releases"],
                answer["made_by"]["basis"],
                answer["made_by"]["words"],
            )
    return found


class Table:
    def __init__(self, names):
        self.names = names
        self.files = collections.Counter()
        self.hits = collections.Counter()
        self.also = {form: collections.defaultdict(collections.Counter) for form in ("whole", "bare")}
        self.problems, self.unexplained = [], 0

    def count(self, form, release, found, others, where):
        names, basis, words = found
        self.files[form, release] += 1
        self.hits[form, release] += release in names
        # No release explains an answer that the replay cannot reproduce; recognition then names the nearest releases.
        self.unexplained += basis == "nearest"
        if release not in names:
            self.problems.append(f"{where}, made by {release}, {form}: {words}")
        for other in names:
            self.also[form][release][other] += 1
            if other != release and basis == "replay" and others is not None and other in others and not others[other]:
                self.problems.append(
                    f"{where}, made by {release}, {form}: {other} is named, but its own run differs: {words}"
                )

    def text(self):
        lines = [
            "| made by | files | named, by keys and replay | also named | named, by the replay only | also named |",
            "|---|---|---|---|---|---|",
        ]
        for release in self.names:
            whole, bare = (in_ranges(self.names, release, self.also[form][release]) for form in ("whole", "bare"))
            lines.append(
                f"| {release} | {self.files['whole', release]} | {self.hits['whole', release]} | {whole} | {self.hits['bare', release]} | {bare} |"
            )
        return "\n".join(lines) + "\n"


def in_ranges(names, release, counts):
    """How often other releases were named; neighbours with the same count are shown as a range."""
    ranges = []
    for name in names:
        if name == release or not counts[name]:
            continue
        if (
            ranges
            and ranges[-1][2] == counts[name]
            and names.index(name) - names.index(ranges[-1][1])
            <= 1 + (names.index(ranges[-1][1]) < names.index(release) < names.index(name))
        ):
            ranges[-1][1] = name
        else:
            ranges.append([name, name, counts[name]])
    return (
        ", ".join(
            f"{first} ({count})" if first == last else f"{first} to {last} ({count})" for first, last, count in ranges
        )
        or "none"
    )


def main():
    options = arguments()
    if options.keep:
        return keep(options)
    table = Table(options.releases)
    with tempfile.TemporaryDirectory() as folder:
        for flavour in options.flavours.split(","):
            for config in options.configs.split(","):
                if flavour == "poolfree" and config.startswith("exp"):
                    continue  # the real allocator corrupts its heap there (docs/fidelity.md, section 5)
                for addresses in options.addresses.split(","):
                    for seed in options.seeds:
                        one(options, table, folder, flavour, config, addresses, seed)
    text = table.text()
    print(text)
    print(
        f"{sum(table.files.values())} files, of which no release explains {table.unexplained}; {len(table.problems)} problems"
    )
    print("\n".join(table.problems[:40]))
    if options.write:
        write(options.write, text)
    sys.exit(bool(table.problems))


def one(options, table, folder, flavour, config, addresses, seed):
    script = recorded_script(seed, options.n, flavour, 120)
    made, where = {}, f"{flavour}.{config}.{addresses} seed {seed}"
    for release in options.releases:
        of_release = answers(options, release, flavour, config, addresses, script)
        if of_release:
            made[release] = (of_release, recorded(of_release))
    # Two kinds of runs: files that state their settings, and files that cannot.
    for form, states in (("whole", True), ("whole", False), ("bare", False)):
        files = []
        for release, (of_release, _) in made.items():
            has_settings = int(release.split(".")[1]) >= as_recording.SINCE["allocator_settings"]
            if form == "bare" or has_settings == states:
                with open(os.path.join(folder, release), "wb") as file:
                    file.write(as_recording.pickled(of_release, release, form == "bare"))
                files.append(release)
        found = named(options, folder, files, None if states else CONFIGS[config]) if files else {}
        for release in files:
            others = {other: made[other][1] == made[release][1] for other in made} if flavour in COMPARED else None
            table.count(form, release, found.get(release, ([], "failed", "it could not be verified")), others, where)


def keep(options):
    """One snapshot of each series, in its own format, which tests read without PyTorch; 2.0's format has the answers
    of 2.1.
    """
    script = recorded_script(1, 200, "streams", 60)
    firsts = [name for name in options.releases if name.endswith(".0")]
    for release, shape in [(firsts[0], "2.0.1")] * (firsts[0] == "2.1.0") + [(name, name) for name in firsts]:
        made = as_recording.pickled(answers(options, release, "streams", "default", "down", script), shape)
        with open(os.path.join(options.keep, f"{shape}.pickle.xz"), "wb") as file:
            file.write(lzma.compress(made, preset=9 | lzma.PRESET_EXTREME))


def write(path, text):
    with open(path, encoding="utf-8") as file:
        document = file.read()
    before, rest = document.split(MARKS[0])
    after = rest.split(MARKS[1])[1]
    with open(path, "w", encoding="utf-8") as file:
        file.write(before + MARKS[0] + text + MARKS[1] + after)


if __name__ == "__main__":
    main()
