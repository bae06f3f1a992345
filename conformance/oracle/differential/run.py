#!/usr/bin/env python3
"""Runs random scripts from fresh seeds through the real PyTorch allocator and through `parkade ops`; the answers must be the same.

  run.py [--release 2.11.0] [--seeds 1-20] [--n 10000] [--flavours a,b] [--configs a,b] [--addresses up,down] [--jobs 2] [--oracle DIR] [--parkade BIN]

DIR holds the release's program, oracle-2.11.0: target/oracle, where conformance/oracle/pytorch_harness/setup.sh builds it. BIN is target/release/parkade, from
`cargo build --release -p parkade-cli`. gen.py and checkpoints.py write the scripts.
Prints a table, one row per flavour, and why runs ended early; exit code 1 if anything differs. A run ends early if the
real allocator shows a defect that parkade does not copy, or if its answers depend on the order of addresses: nothing
after that is compared.

When blocks are freed during a recording or a capture while other streams use them, the real allocator's own answers
depend on the addresses of its objects, because it walks a hash table of these
addresses. It is therefore run several times with randomised addresses and compared up to the first
operation in which its own runs disagree by more than an order; before a difference counts, it is run another 96 times.

Most of the time would be spent on text, so both sides first print digests of their answers. The answers themselves are compared only if two digests differ.

--progress FILE records what was compared, one line of JSON per script, and skips what the file already has; --tally FILE only sums up a progress file.
"""

import argparse
import collections
import concurrent.futures
import json
import os
import subprocess
import sys
import tempfile
import time

import checkpoints
import gen
import progress
from compare import Captures, beginning_in_common, compare
from programs import (
    ADDRESS_DEPENDENT,
    CHECKPOINTS,
    CONFIGS,
    FLAVOURS,
    RELEASES_POOLS,
    SINCE,
    digests,
    environment,
    parkade,
    real,
    without_calls,
)
from releases import BUILT, ROOT, accepts, built, built_oracle, minor, program, release, short

RUNS_BEFORE_A_DIFFERENCE_COUNTS = 96


def seeds(text):
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--oracle", default=BUILT, help="the folder of the real allocator (default: target/oracle)")
    parser.add_argument(
        "--release", type=release, default="2.11.0", help="the release of PyTorch, such as 2.7.1 (default: 2.11.0)"
    )
    parser.add_argument(
        "--parkade",
        default=os.path.join(ROOT, "target", "release", "parkade"),
        help="the binary (default: target/release/parkade)",
    )
    parser.add_argument(
        "--bridge",
        metavar="LIB",
        help="compare PyTorch running on parkade instead of the binary: the library that bridge.sh builds for the release",
    )
    parser.add_argument("--seeds", type=seeds, default=seeds("1-20"), help="the seeds, such as 7 or 1-20")
    parser.add_argument("--n", type=int, default=10000, help="the number of operations in a script")
    parser.add_argument(
        "--flavours", default=",".join(FLAVOURS), help="kinds of scripts, separated by commas (default: all)"
    )
    parser.add_argument(
        "--configs", default=",".join(CONFIGS), help="settings by name, separated by commas (default: all)"
    )
    parser.add_argument("--addresses", default="up,down", help="orders of addresses: up, down or both")
    parser.add_argument(
        "--rotate",
        type=int,
        default=0,
        help="use this many of the settings for each seed, in turn, and one order of addresses, instead of all",
    )
    parser.add_argument(
        "--aslr",
        type=int,
        default=4,
        help="the number of runs with randomised addresses, if answers depend on the addresses",
    )
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count(), help="the number of runs at the same time (default: one per core)"
    )
    parser.add_argument("--progress", help="the file that records what has been compared")
    parser.add_argument("--tally", metavar="FILE", help="only print the totals in this file")
    options = parser.parse_args()
    if options.tally:
        progress.print_sums(options.tally)
        sys.exit()
    built_oracle(options.release, options.oracle)
    if options.bridge:
        built(options.bridge, f"conformance/oracle/pytorch_harness/bridge.sh {options.release}")
    else:
        built(options.parkade, "cargo build --release -p parkade-cli")
    only_what_is_known(options)
    return options


def only_what_is_known(options):
    """Ends with a line if parkade has no profile of the release; leaves out the settings and the flavours that the release does not know."""
    asked = (
        None
        if options.bridge
        else subprocess.run(
            [options.parkade, "ops", "-", "--profile", short(options.release)], input=b"", capture_output=True
        )
    )
    if asked and asked.returncode != 0:
        print(f"nothing to compare with {options.release}: {asked.stderr.decode().splitlines()[0]}", file=sys.stderr)
        sys.exit(2)
    oracle = program(options.release, options.oracle)
    configs, flavours = options.configs.split(","), options.flavours.split(",")
    known = [config for config in configs if accepts(oracle, CONFIGS[config])]
    there = [flavour for flavour in flavours if minor(options.release) >= SINCE.get(flavour, 0)]
    left_out = [name for name in configs + flavours if name not in known + there]
    if left_out:
        print(f"left out, because {options.release} does not know them: {', '.join(left_out)}", flush=True)
    options.configs, options.flavours = ",".join(known), ",".join(there)


def one(options, flavour, seed):
    """All configurations of one script: a list of (name, operations, tolerated orders, difference or None, why it ended early or None)."""
    configs, orders = options.configs.split(","), options.addresses.split(",")
    if options.rotate:
        first = seed * options.rotate
        orders = [orders[first // len(configs) % len(orders)]]
        configs = [configs[(first + place) % len(configs)] for place in range(options.rotate)]
    lines = []
    if flavour not in CHECKPOINTS:
        gen.gen(seed, options.n, flavour, out=gen.for_release(lines.append, options.release))
    whole = ("\n".join(lines) + "\n").encode()
    results = []
    with tempfile.NamedTemporaryFile() as file:
        file.write(whole)
        file.flush()
        for config in configs:
            for addresses in orders:
                if gives_pools_back(flavour, options.release) and config.startswith("exp"):
                    continue  # the real allocator corrupts its heap there (docs/fidelity.md, section 5)
                if flavour == "every_operation" and config.startswith("exp"):
                    continue  # the harness exports no handles of expandable segments
                name = f"{flavour}.{config}.{addresses} seed {seed}"
                if flavour not in CHECKPOINTS and are_alike(options, flavour, config, addresses, file.name, len(lines)):
                    results.append((name, len(lines), 0, None, None))
                else:
                    results.append((name, *text(options, flavour, config, addresses, seed, whole)))
    return results


def are_alike(options, flavour, config, addresses, path, length):
    """Whether both sides have the same digest for each line of a script, and the real one has the same digests
    whatever the addresses of its own objects.
    """
    ours = digests(options, flavour, config, addresses, path, is_real=False)
    if ours is None or len(ours) != length * 17:
        return False
    more = [{"ORACLE_ASLR": "1"}] * options.aslr if flavour in ADDRESS_DEPENDENT else []
    return all(digests(options, flavour, config, addresses, path, True, env) == ours for env in [{}, *more])


def text(options, flavour, config, addresses, seed, script):
    """Compares the answers of one run: (operations, tolerated orders, difference or None, why it ended early or None)."""
    if flavour in CHECKPOINTS:
        # The addresses of its objects belong to this one run; the comparison knows what they decide.
        lines, theirs = checkpoints.drive(
            program(options.release, options.oracle),
            environment(flavour, config, addresses),
            seed,
            options.n,
            flavour,
            not config.startswith("exp"),
            options.release,
        )
        script, theirs = ("\n".join(lines) + "\n").encode(), without_calls(options, theirs)
    else:
        theirs = real(options, flavour, config, addresses, script)
    where = why = None
    if flavour in ADDRESS_DEPENDENT:
        agreed = agreement(options, flavour, config, addresses, script)
        if agreed < len(theirs):
            theirs, why = theirs[:agreed], "runs of the real allocator differ"
            script = first_lines(script, agreed)
    ours = parkade(options, flavour, config, addresses, script)
    if len(theirs) < len(ours):
        ours, why = ours[: len(theirs)], why or "the real allocator's heap is damaged"
    number, difference, tolerated = compare(theirs, ours, options.release)
    if number is not None and not difference:
        theirs, why = theirs[:number], "a checkpoint was restored, or the real allocator's heap is damaged"
    if (
        difference
        and number < min(len(theirs), len(ours))
        and forgets_a_use(options, flavour, config, addresses, script, theirs[: number + 1], ours[: number + 1])
    ):
        difference, theirs, why = None, theirs[:number], "the real allocator remembered a use for too long"
    if (
        difference
        and flavour in ADDRESS_DEPENDENT
        and its_runs_disagree(options, flavour, config, addresses, first_lines(script, number + 1), number)
    ):
        difference, theirs, why = None, theirs[:number], "runs of the real allocator differ"
    if difference:
        line = theirs[number] if number < len(theirs) else ours[number]
        where = f"line {number}: {difference[0]}\n    real    {str(difference[1])[:600]}\n    parkade {str(difference[2])[:600]}\n    {line[:160]}"
    return len(theirs), tolerated, where, why


def first_lines(script, number):
    return b"".join(script.splitlines(keepends=True)[:number])


def gives_pools_back(flavour, release):
    """Whether private pools are released in the middle of the scripts. Before 2.6 every pool can be; before 2.5 none
    has expandable segments.
    """
    return flavour in RELEASES_POOLS or (minor(release) == 5 and flavour in ("pools", "everything"))


def agreement(options, flavour, config, addresses, script):
    """Returns the number of lines to which the real allocator's answers do not depend on the addresses of its own objects."""
    runs = [
        real(options, flavour, config, addresses, script, more) for more in [{}] + [{"ORACLE_ASLR": "1"}] * options.aslr
    ]
    agreed = min(map(len, runs))
    # The comparison knows how they may differ in the order of completion, but not what follows from such a difference.
    start = beginning_in_common(runs, options.release)
    for run in runs[1:]:
        number = compare(runs[0][:agreed], run[:agreed], options.release, start)[0]
        agreed = agreed if number is None else number
    return agreed


def its_runs_disagree(options, flavour, config, addresses, script, number):
    """Whether the real allocator's own runs disagree at or before line `number`: a few can agree by chance on one of
    two orders.
    """
    rounds = -(-RUNS_BEFORE_A_DIFFERENCE_COUNTS // options.aslr)
    return any(agreement(options, flavour, config, addresses, script) <= number for _ in range(rounds))


def forgets_a_use(options, flavour, config, addresses, script, theirs, ours):
    """Whether the last line shows the defect of uses that are remembered for too long (docs/fidelity.md, section 5):
    the real allocator frees blocks at this line that ours keeps waiting.

    If a block that another stream uses during a capture is freed after the capture, the real one remembers that use
    beyond the capture, by the address of its own object, which a different block may have later. Which block that is
    depends on how that process's heap hands out memory, and nothing shows it. The real one is therefore run again, with
    a script in which those uses are recorded just before their blocks are freed, and no longer during a capture.
    Nothing else in it is different, and our answers to it must be the
    same. If the real one agrees with ours up to and including the last line, the difference was that defect.
    """
    if not freed_early(theirs[-1], ours[-1]):
        return False
    lines = script.decode().splitlines()[: len(theirs)]
    late = with_late_uses(lines, theirs, options.release)
    if late == lines:
        return False
    late = ("\n".join(late) + "\n").encode()
    their_late, our_late = (
        real(options, flavour, config, addresses, late),
        parkade(options, flavour, config, addresses, late),
    )
    if without_uses(our_late) != without_uses(ours):
        return False
    return len(their_late) == len(our_late) and compare(their_late, our_late, options.release)[0] is None


def freed_early(theirs, ours):
    """Returns the blocks that become free in the real allocator's operation but not in ours."""
    theirs, ours = (
        {event[1] for event in json.loads(line).get("ev", []) if event[0] == "free_completed"}
        for line in (theirs, ours)
    )
    return theirs - ours


def without_uses(lines):
    """Answers without their numbers, except for those about uses."""
    answers = [json.loads(line) for line in lines]
    return [{**answer, "i": None} for answer in answers if not answer["op"].startswith("record_stream")]


def with_late_uses(ops, answers, profile):
    """A script, here without what follows its answers, in which each use that was recorded during a capture (or a
    routing) is recorded just before its block is freed, if that is outside any capture or routing.

    2.15 counts only a capture of the caller's current stream, which is that of the last request.
    """
    routings, captures, current = set(), Captures(), "0"
    # The lines that recorded a use of a live block during a capture; and the line that replaces each.
    recorded, places = {}, {}
    for number, (op, answer) in enumerate(zip(ops, answers)):
        words = op.split()
        kind = words[0] if words else ""
        if kind == "alloc":
            current = words[3] if len(words) > 3 else "0"
        routed = current in captures.of if minor(profile) >= 13 else bool(routings or captures.of)
        if kind == "pool_begin":
            routings.add(tuple(words[1:3]))
        elif kind == "pool_end":
            routings.discard(tuple(words[1:3]))
        elif kind.startswith("capture_"):
            if json.loads(answer).get("ok"):
                captures.follow(kind.removeprefix("capture_"), words[1:])
        elif kind in ("alloc", "rawalloc") and json.loads(answer).get("ptr"):
            recorded[words[1]] = []
        elif kind == "record_stream" and routed and words[1] in recorded:
            recorded[words[1]].append(number)
        elif kind in ("free", "rawfree", "free_all"):
            given_back = list(recorded) if kind == "free_all" else words[1:2]
            for block in given_back:
                lines = recorded.pop(block, [])
                places.update((line, number) for line in lines if not routed)
    before = collections.defaultdict(list)
    for line, number in places.items():
        before[number].append(ops[line])
    return [line for number, op in enumerate(ops) for line in before[number] + ([] if number in places else [op])]


def main():
    options = arguments()
    start = time.time()
    rows = collections.defaultdict(lambda: [0, 0, 0, 0, 0])
    differing, reasons = 0, collections.Counter()
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        jobs = [(flavour, seed, pool.submit(one, options, flavour, seed)) for flavour, seed in progress.left(options)]
        for flavour, seed, job in jobs:
            results = job.result()
            for name, operations, tolerated, where, why in results:
                row = rows[flavour]
                row[0] += 1
                row[1] += operations
                row[2] += tolerated
                row[4] += why is not None
                reasons[why] += 1
                if where:
                    row[3] += 1
                    differing += 1
                    if differing <= 10:
                        print(f"{name}: {where}", flush=True)
            progress.keep(options, flavour, seed, results)
    print(
        f"{'flavour':10} {'runs':>6} {'operations':>12} {'orders tolerated':>17} {'runs that differ':>17} {'ended early':>12}"
    )
    for flavour in options.flavours.split(","):
        row = rows[flavour]
        print(f"{flavour:10} {row[0]:6} {row[1]:12,} {row[2]:17,} {row[3]:17} {row[4]:12}")
    for why, count in sorted((why, count) for why, count in reasons.items() if why):
        print(f"ended early: {why}: {count}")
    print(f"{sum(row[1] for row in rows.values()):,} operations, {differing} runs differ, {time.time() - start:.0f} s")
    sys.exit(differing != 0)


if __name__ == "__main__":
    main()
