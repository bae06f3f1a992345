#!/usr/bin/env python3
"""Compares two outputs of one script, a real allocator's and a policy's.

Prints one line. Exit code 1 if a placement or a driver call differs.
"""

import argparse
import json
import re
import sys


def calls_of(words, line):
    """Returns the driver calls in a line, each as (kind, ...); none for other lines."""
    if words[0] == "#":
        call = driver_call(json.loads(line[2:]))
        return [call] if call else []
    if words[0] in "+!":
        return [(words[0], int(words[-1]))]
    return {"-": lambda: [("-", int(words[1]))], "w": lambda: [("w",)]}.get(words[0], list)()


def driver_call(call):
    """Translates a logged call; returns None if it is not compared."""
    if call[0] == "cudaMalloc":
        return ("+" if call[1] == 0 else "!", call[2])
    if call[0] == "cudaFree":
        return ("-", int(call[2][1:]))
    if call[0] == "cudaStreamWaitEvent":
        return ("w",)
    return None


def read(path):
    """Returns the operations as (kind, id, answer, calls), and the totals in the last line."""
    operations, calls, totals = [], [], {}
    for line in open(path):
        words = line.split()
        if not words:
            continue
        if found := calls_of(words, line):
            calls.extend(found)
        elif words[0] in ("a", "f"):
            answer = re.sub("^[cv]", "", words[2]) if words[0] == "a" else len(words) > 2
            operations.append((words[0], words[1], answer, tuple(calls)))
            calls = []
        elif words[0] == "=":
            totals = {words[i]: int(words[i + 1]) for i in range(1, len(words) - 1, 2)}
    return operations, totals


def memory(calls):
    """Returns the calls that must be the same: segments, refusals, releases and waits."""
    return tuple(call for call in calls if call[0] in "+-!w")


def first_difference(real, policy):
    """Returns the first operation whose answer or compared calls differ; None if there is none."""
    both = zip(real, policy)
    return next((k for k, (a, b) in enumerate(both) if a[:3] != b[:3] or memory(a[3]) != memory(b[3])), None)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("real", metavar="REAL", help="the real allocator's output")
    parser.add_argument("policy", metavar="POLICY", help="the policy's output")
    parser.add_argument("-v", action="store_true", help="also show the lines around the first difference")
    options = parser.parse_args()
    (real, real_totals), (policy, policy_totals) = read(options.real), read(options.policy)
    count = min(len(real), len(policy))
    first = first_difference(real, policy)
    if first is not None and options.v:
        for k in range(max(0, first - 2), min(count, first + 3)):
            print("   ", k, "real", real[k], "| policy", policy[k])
    pairs = [(a, b) for a, b in zip(real, policy) if a[0] == "a"]
    percent = lambda number: f"{100 * number / max(1, len(pairs)):.2f}%"
    refused = [[operation[2] == "oom" for operation in pair] for pair in pairs]
    segments = [
        sum(call[0] == "+" for operation in operations for call in operation[3]) for operations in (real, policy)
    ]
    print(
        f"allocs {len(pairs)} same place {percent(sum(a[2] == b[2] for a, b in pairs))}"
        f" same driver calls {percent(sum(memory(a[3]) == memory(b[3]) for a, b in pairs))}"
        f" first difference at {'-' if first is None else first} of {count};"
        f" oom real {sum(a for a, _ in refused)} policy {sum(b for _, b in refused)} both {sum(a and b for a, b in refused)};"
        f" segments {segments[0]} {segments[1]}; peak MiB {real_totals.get('peak', 0) / 2**20:.1f} {policy_totals.get('peak', 0) / 2**20:.1f};"
        f" waits {real_totals.get('waits')} {policy_totals.get('waits')}"
    )
    sys.exit(first is not None)


if __name__ == "__main__":
    main()
