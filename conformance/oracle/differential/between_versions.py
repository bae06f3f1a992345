#!/usr/bin/env python3
"""The first difference between two outputs of one script, and how many lines differ.

For 2.11 against 2.15. Driver calls, registration counters and the statistics that only 2.15 has are not compared.
"""
import argparse
import json
import sys


def normal(line):
    answer = json.loads(line)
    answer.pop("drv", None)
    for segment in answer.get("snapshot", {}).get("segments", []):
        segment.pop("reg", None)
    for field in ("st", "stats"):
        if field in answer:
            answer[field] = {key: value for key, value in answer[field].items() if not key.startswith("reserved_bytes_by") and key != "num_oom_rejections"}
    if answer.get("st") == {}:
        del answer["st"]
    return answer


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("outputs", nargs=2, metavar="OUTPUT.jsonl", help="what each version answered")
    first, second = (open(path).read().splitlines() for path in parser.parse_args().outputs)
    differing = 0
    for number, (a, b) in enumerate(zip(first, second)):
        if a == b or normal(a) == normal(b):
            continue
        differing += 1
        if differing == 1:
            a, b = normal(a), normal(b)
            print("first: operation", a["i"], a["op"], "| before it:", [json.loads(line)["op"] for line in first[max(0, number - 8):number]])
            for field in sorted(a.keys() | b.keys()):
                if a.get(field) != b.get(field):
                    print(field, "\n  A:", str(a.get(field))[:700], "\n  B:", str(b.get(field))[:700])
    print(f"{differing} of {len(first)} lines differ")
    sys.exit(differing != 0)


if __name__ == "__main__":
    main()
