#!/usr/bin/env python3
"""Writes a script and a real allocator's answers to standard output, as one run in a file of recorded answers.

The first line is `run POLICY CAPACITY LIMIT`, then each request has one: `a BYTES STREAM = CALLS... PLACE` or `f NUMBER = CALLS...`. The NUMBER
counts the allocations from 1. Calls are +BYTES and !BYTES for segments given and refused, -N for segment N given back, and w for a wait. Frees of
refused requests are left out.
"""

import argparse

from compare import read


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("policy", metavar="POLICY", help="the policy that must give the same answers")
    parser.add_argument("capacity", metavar="CAPACITY", type=int, help="the device's memory in bytes")
    parser.add_argument("limit", metavar="LIMIT", help="the limit in bytes; - for none")
    parser.add_argument("script", metavar="SCRIPT", help="the script")
    parser.add_argument("real", metavar="REAL", help="the real allocator's output for it")
    options = parser.parse_args()
    requests = [line.split() for line in open(options.script) if line[:2] in ("a ", "f ")]
    print("run", options.policy, options.capacity, options.limit)
    numbers, made = {}, 0
    for words, (kind, name, answer, calls) in zip(requests, read(options.real)[0], strict=True):
        assert words[:2] == [kind, name], f"the answer {kind} {name} does not fit the request {' '.join(words)}"
        said = [call[0] + "".join(map(str, call[1:])) for call in calls if call[0] in "+-!w"]
        if kind == "a":
            made += 1
            numbers[name] = made
            print("a", *words[2:], "=", *said, answer)
        elif answer:
            assert not said, f"{kind} {name} has nothing to free, but made the calls {said}"
        else:
            print("f", numbers[name], "=", *said)


if __name__ == "__main__":
    main()
