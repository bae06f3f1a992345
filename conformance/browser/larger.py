"""Writes a snapshot whose trace is a recording's, repeated.

    python3 conformance/browser/larger.py RECORDING TIMES OUT [STACKS]

RECORDING is a snapshot that has the run from its beginning, compressed with xz. Between two repetitions, everything that is live is freed and
the cache is emptied, so that every repetition makes the same decisions. If STACKS is given, entry after entry gets a stack of that snapshot.
"""

import lzma
import pickle
import sys


def back_to_the_start(trace):
    """The entries that free what is live after `trace`, block by block and then segment by segment."""
    blocks, segments = {}, {}
    for entry in trace:
        kind = entry["action"]
        if kind == "alloc":
            blocks[entry["addr"]] = entry
        elif kind == "free_completed":
            blocks.pop(entry["addr"])
        elif kind == "segment_alloc":
            segments[entry["addr"]] = entry
        elif kind == "segment_free":
            segments.pop(entry["addr"])
    time = {"time_us": trace[-1]["time_us"]}
    # The allocator releases the segments of large blocks before those of small blocks (2 MiB), each by stream, size and address.
    order = sorted(segments.values(), key=lambda one: (one["size"] == 2 << 20, one["stream"], one["size"], one["addr"]))
    frees = [
        block | time | {"action": kind} for block in blocks.values() for kind in ("free_requested", "free_completed")
    ]
    return frees + [segment | time | {"action": "segment_free"} for segment in order]


def main(recording, times, out, stacks=None):
    with lzma.open(recording) as file:
        snapshot = pickle.load(file)
    device = max(range(len(snapshot["device_traces"])), key=lambda device: len(snapshot["device_traces"][device]))
    trace = snapshot["device_traces"][device]
    period = trace[-1]["time_us"] - trace[0]["time_us"]
    once = trace + back_to_the_start(trace)
    larger = [entry | {"time_us": entry["time_us"] + part * period} for part in range(int(times) - 1) for entry in once]
    larger += [entry | {"time_us": entry["time_us"] + (int(times) - 1) * period} for entry in trace]
    if stacks:
        with lzma.open(stacks) as file:
            found = [
                entry["frames"]
                for trace in pickle.load(file)["device_traces"]
                for entry in trace
                if entry.get("frames")
            ]
        # As in PyTorch's own files, calls are shared and stacks are not.
        larger = [entry | {"frames": list(found[place % len(found)])} for place, entry in enumerate(larger)]
    snapshot["device_traces"][device] = larger
    with open(out, "wb") as file:
        pickle.dump(snapshot, file, protocol=4)
    print(f"{out}: {len(larger):,} entries")


main(*sys.argv[1:])
