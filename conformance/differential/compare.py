"""Compares two runs of one script, line by line: the real allocator's answers and parkade's.

Everything must be equal, but for what follows from the real allocator's hash order of streams, and only from the operation on in
which it shows (docs/fidelity.md): where several streams' events complete in one operation,
- the order of `free_completed` entries within that operation;
- from then on the counters `peak`, `allocated` and `freed` of inactive_split and inactive_split_bytes (the order of merging decides
  the steps between; `current` must still be equal);
- from then on the stale `requested` of inactive blocks in snapshots.
The registration counter of segments (`reg`) is the real one's own in 2.11 and is not compared; in 2.15 it orders blocks and must be
equal.
"""
import json

MERGE_COUNTERS = ("inactive_split.", "inactive_split_bytes.")


class Comparison:
    """Follows two runs and knows what may differ by now."""

    def __init__(self, profile):
        self.profile = profile
        self.sides = [{}, {}]
        self.order_showed = False
        self.tolerated = 0

    def line(self, theirs, ours):
        """None if the lines agree, else what differs: (field, theirs, ours)."""
        theirs, ours = json.loads(theirs), json.loads(ours)
        for side, answer in zip(self.sides, (theirs, ours)):
            side.update(answer.pop("st", {}))
        difference = self.events(theirs.pop("ev", []), ours.pop("ev", []))
        for field, check in (("snapshot", self.snapshot), ("stats", self.counters)):
            if field in theirs and field in ours:
                difference = difference or check(theirs.pop(field), ours.pop(field))
        for field in sorted(theirs.keys() | ours.keys()):
            if theirs.get(field) != ours.get(field):
                difference = difference or (field, theirs.get(field), ours.get(field))
        return difference or self.counters(*self.sides)

    def events(self, theirs, ours):
        if theirs == ours:
            return None
        completed = lambda events: [event for event in events if event[0] == "free_completed"]
        others = lambda events: [event for event in events if event[0] != "free_completed"]
        runs = lambda events: [event[0] == "free_completed" for event in events]
        same = sorted(completed(theirs)) == sorted(completed(ours)) and others(theirs) == others(ours) and runs(theirs) == runs(ours)
        if not same:
            return ("ev", theirs, ours)
        self.order_showed = True
        self.tolerated += 1
        return None

    def snapshot(self, theirs, ours):
        for segment in theirs["segments"]:
            if self.profile == "2.11":
                segment.pop("reg", None)
        if theirs == ours:
            return None
        if self.order_showed:
            for snapshot in (theirs, ours):
                for segment in snapshot["segments"]:
                    for block in segment["blocks"]:
                        if block[3] == "inactive":
                            block[2] = 0
        return None if theirs == ours else ("snapshot", theirs, ours)

    def counters(self, theirs, ours):
        if theirs == ours:
            return None
        for key in sorted(theirs.keys() | ours.keys()):
            a, b = theirs.get(key, [0, 0, 0, 0]), ours.get(key, [0, 0, 0, 0])
            if a != b and not (self.order_showed and key.startswith(MERGE_COUNTERS) and a[0] == b[0]):
                return (f"st {key}", a, b)
        return None


def compare(theirs, ours, profile="2.11"):
    """Compares two lists of lines. Returns (number of the first differing line or None, difference, tolerated orders)."""
    comparison = Comparison(profile)
    if len(theirs) != len(ours):
        shorter = min(len(theirs), len(ours))
        return shorter, ("lines", len(theirs), len(ours)), 0
    for number, pair in enumerate(zip(theirs, ours)):
        difference = comparison.line(*pair)
        if difference:
            return number, difference, comparison.tolerated
    return None, None, comparison.tolerated
