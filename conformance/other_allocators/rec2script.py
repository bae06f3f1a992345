#!/usr/bin/env python3
"""Writes the requests in a PyTorch memory snapshot to standard output, as a script.

The snapshot must have been taken with the history on. The largest load and the numbers of requests and streams are printed to standard error.
"""

import argparse
import lzma
import pickle
import sys


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "snapshot", metavar="SNAPSHOT.pickle[.xz]", help="the file; unpickling runs code, so it must come from you"
    )
    path = parser.parse_args().snapshot
    with (lzma.open if path.endswith(".xz") else open)(path, "rb") as file:
        snapshot = pickle.load(file)
    live, streams, load, largest, made = {}, {}, 0, 0, 0
    for entry in (entry for trace in snapshot["device_traces"] for entry in trace):
        if entry["action"] == "alloc":
            made += 1
            live[entry["addr"]] = (made, entry["size"])
            stream = streams.setdefault(
                entry["stream"], 0 if entry["stream"] == 0 else len(streams) + (0 not in streams)
            )
            print("a", made, max(1, entry["size"]), stream)
            load += entry["size"]
            largest = max(largest, load)
        elif entry["action"] == "free_completed" and entry["addr"] in live:
            name, size = live.pop(entry["addr"])
            print("f", name)
            load -= size
    print(f"load {largest} requests {made} streams {len(streams)}", file=sys.stderr)


if __name__ == "__main__":
    main()
