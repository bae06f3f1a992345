#!/usr/bin/env python3
"""Turns the real allocator's answers into a memory snapshot, as that release's Python code would have pickled it.

  oracle-2.7.0 --raw SCRIPT | as_recording.py 2.7.0 OUTPUT.pickle [--bare]

The script begins with `history on 1000000` and ends with `trace`. The keys that each release writes were determined from
its libtorch_python.so (docs/spec.md, 7.8).
--bare leaves out every key that reveals a release and uses the protocol of C++ snapshots, in which a missing key means nothing, so that only the decisions remain.
"""

import argparse
import json
import pickle
import sys

STREAM = 0x1000  # stream K of a script is the handle K times this
MICROSECONDS = 1_700_000_000_000_000
STATES = {"allocated": "active_allocated", "pending_free": "active_pending_free", "inactive": "inactive"}
# The first release that writes a key: docs/spec.md, 7.8.
SINCE = {
    "segment_pool_id": 1,
    "is_expandable": 1,
    "address": 1,
    "time_us": 2,
    "allocator_settings": 3,
    "external_annotations": 5,
    "compile_context": 8,
    "graph_capture_record_stream_reuse": 9,
    "user_metadata": 10,
    "pool_id": 12,
    "max_round_threshold": 13,
    "max_cached_size": 13,
}


class Snapshot:
    def __init__(self, answers, minor, is_bare):
        self.minor, self.is_bare = minor, is_bare
        self.last = json.loads(answers[-1])["snapshot"]
        self.bases = {}
        for line in answers:
            answer = json.loads(line)
            if answer.get("ptr") and "addr" in answer:
                name, offset = answer["ptr"].split("+")
                self.bases[name] = answer["addr"] - int(offset)

    def address(self, place):
        if isinstance(place, int):
            return place
        name, offset = place.split("+")
        return self.bases[name] + int(offset)

    def only_known(self, pairs):
        """The keys that this release writes."""
        return {
            key: value
            for key, value in pairs.items()
            if key not in SINCE or (self.minor >= SINCE[key] and not self.is_bare)
        }

    def segment(self, segment):
        blocks, start = [], self.address(segment["addr"])
        for offset, size, requested, state, _ in segment["blocks"]:
            block = {
                "address": start + offset,
                "size": size,
                "requested_size": requested,
                "state": STATES[state],
                "frames": [],
            }
            if self.minor == 0:
                del block["requested_size"], block["frames"]
                if state != "inactive":
                    block["history"] = [{"addr": start + offset, "real_size": requested, "frames": []}]
            blocks.append(self.only_known(block))
        found = self.only_known(
            {
                "device": segment["device"],
                "total_size": segment["total"],
                "allocated_size": segment["allocated"],
                "active_size": segment["active"],
                "requested_size": segment["requested"],
                "stream": segment["stream"] * STREAM,
                "segment_type": segment["type"],
                "segment_pool_id": tuple(segment["pool"]),
                "is_expandable": bool(segment["expandable"]),
                "frames": [],
                "blocks": blocks,
            }
        )
        if self.is_bare:  # the values that the replay needs
            found |= {"segment_pool_id": tuple(segment["pool"]), "is_expandable": bool(segment["expandable"])}
        return found | {"address": start}

    def entry(self, number, entry):
        action, place, size, stream, *pool = entry
        return self.only_known(
            {
                "action": action,
                "device_free" if action == "oom" else "addr": self.address(place),
                "size": size,
                "stream": stream * STREAM,
                "time_us": MICROSECONDS + number,
                "compile_context": "N/A",
                "user_metadata": "",
                "pool_id": tuple(pool or (0, 0)),
            }
        )

    def settings(self, config):
        split = config["max_split_size"]
        return self.only_known(
            {
                "PYTORCH_CUDA_ALLOC_CONF": config["last"],
                "max_split_size": -1 if split == (1 << 64) - 1 else split,
                "garbage_collection_threshold": float(config["gc_threshold"]),
                "expandable_segments": bool(config["expandable_segments"]),
                "pinned_num_register_threads": 1,
                "release_lock_on_cudamalloc": bool(config["release_lock"]),
                "pinned_use_cuda_host_register": False,
                "graph_capture_record_stream_reuse": bool(config.get("graph_reuse", 0)),
                "max_round_threshold": 0,
                "max_cached_size": 0,
                "roundup_power2_divisions": {
                    str(1 << place): divisions for place, divisions in enumerate(config["roundup"])
                },
            }
        )

    def whole(self):
        traces = [[self.entry(number, entry) for number, entry in enumerate(self.last["traces"])]]
        parts = {"segments": [self.segment(segment) for segment in self.last["segments"]], "device_traces": traces}
        if "config" in self.last:
            parts["allocator_settings"] = self.settings(self.last["config"])
        parts["external_annotations"] = []
        return self.only_known(parts)


def pickled(answers, release, is_bare=False):
    """The bytes of the snapshot. There is no program for 2.0, so its format gets 2.1's answers."""
    minor = int(release.split(".")[1])
    return pickle.dumps(Snapshot(answers, minor, is_bare).whole(), protocol=2 if is_bare else 4)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("release", help="write the keys of this release, such as 2.7.0")
    parser.add_argument("output")
    parser.add_argument("--bare", action="store_true", help="leave out the keys that reveal the release")
    options = parser.parse_args()
    with open(options.output, "wb") as file:
        file.write(pickled(sys.stdin.read().splitlines(), options.release, options.bare))


if __name__ == "__main__":
    main()
