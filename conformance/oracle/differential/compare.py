"""Compares two runs of one script, line by line: the real allocator's answers and parkade's.

Everything must be equal, but for what follows from the real allocator's hash order of streams, and only from the operation on in
which it shows (docs/fidelity.md): where several streams' events complete in one operation,
- the order of `free_completed` entries within that operation;
- from then on the counters `peak`, `allocated` and `freed` of inactive_split and inactive_split_bytes (the order of merging decides
  the steps between; `current` must still be equal);
- from then on the stale `requested` of inactive blocks in snapshots.
Where several abandoned pools are given back in one operation, their order, not that within a pool, may differ: it is that of a hash map.

A restored checkpoint goes through the pool's segments in the hash order of their blocks: the order of segments may differ in `ckpt_load`'s
entries, in `freed` and in `allocd`, not the order within a segment; of several missing segments another may be named. From then on peaks may differ, until they are reset; nothing else may.
The comparison ends, with no difference, where that order shows in the numbers of events, and where a restore fails after it has taken
blocks back: the real one has lost them then, ours has changed nothing. So it does where the real one hands out a block that waits for events.

The registration counter of segments (`reg`) is the real one's own in 2.11 and is not compared; in 2.15 it orders blocks and must be
equal.
"""
import itertools
import json
import re

from releases import minor

REGISTRATION = re.compile(r'"reg":-?\d+,')
PEAKS = ("allocation.", "active.", "allocated_bytes.", "active_bytes.", "requested_bytes.", "oversize_allocations",
         "inactive_split.", "inactive_split_bytes.")
MISSING = " could not find 0x"
MERGE_COUNTERS = ("inactive_split.", "inactive_split_bytes.")


class Comparison:
    """Follows two runs and knows what may differ by now."""

    def __init__(self, profile):
        self.profile = profile
        self.sides = [{}, {}]
        self.order_showed = False
        self.restore_order_showed = False
        self.is_over = False
        self.pending = set()
        self.users = {}
        self.tolerated = 0

    def line(self, theirs, ours):
        """None if the lines agree, else what differs: (field, theirs, ours)."""
        theirs, ours = json.loads(theirs), json.loads(ours)
        self.without_properties(theirs, ours)
        if theirs["op"] == "reset_peak":
            self.restore_order_showed = False
        if theirs["op"].startswith("ckpt_load"):
            self.restore(theirs, ours)
            if self.is_over:
                return None
        follow_pending(self.pending, theirs)
        follow_users(self.users, theirs)
        for side, answer in zip(self.sides, (theirs, ours)):
            side.update(answer.pop("st", {}))
        if theirs.get("ev") != ours.get("ev"):
            self.pools_given_back(theirs, ours)
        difference = self.events(theirs.pop("ev", []), ours.pop("ev", []))
        for field, check in (("snapshot", self.snapshot), ("stats", self.counters)):
            if field in theirs and field in ours:
                difference = difference or check(theirs.pop(field), ours.pop(field))
        for field in sorted(theirs.keys() | ours.keys()):
            if theirs.get(field) != ours.get(field):
                difference = difference or (field, theirs.get(field), ours.get(field))
        return difference or self.counters(*self.sides)

    def without_properties(self, *answers):
        """Leaves out that the device's properties are read, where releases do so for each message and each range of addresses."""
        if minor(self.profile) < 10:
            for answer in answers:
                calls = [call for call in answer.pop("drv", []) if call[0] != "cudaGetDeviceProperties"]
                answer.update({"drv": calls} if calls else {})

    def restore(self, theirs, ours):
        """Puts the segments of a restore into one order, if only that differs."""
        if theirs["ok"] == 0:
            if ours["ok"] == 0 and all(MISSING in answer["msg"] for answer in (theirs, ours)):
                ours["msg"] = theirs["msg"]
            self.is_over = "ev" in theirs and theirs.get("msg") == ours.get("msg") and "ev" not in ours
            return
        if ours["ok"] == 0:
            self.is_over = reuses_pending(self.pending, theirs)
            return
        differ = [field for field in ("ev", "freed", "allocd") if theirs.get(field) != ours.get(field)]
        if not differ or any(by_segment(theirs.get(field, [])) != by_segment(ours.get(field, [])) for field in differ):
            return
        for field in differ:
            ours[field] = theirs[field]
        self.restore_order_showed = True
        self.tolerated += 1
        self.is_over = theirs.get("drv") != ours.get("drv")

    def pools_given_back(self, theirs, ours):
        """Puts the abandoned pools that give their segments back into one order, if there are several."""
        abandoned = {pool for pool, users in self.users.items() if users == 0}
        if all(len(abandoned.intersection(pools_giving(answer.get("ev", [])))) > 1 for answer in (theirs, ours)):
            before = [(answer["ev"], answer.get("drv")) for answer in (theirs, ours)]
            for answer in (theirs, ours):
                answer["ev"], answer["drv"] = in_order_of_pools(answer["ev"], answer.get("drv", []), abandoned)
            self.tolerated += any((answer["ev"], answer["drv"]) != old for answer, old in zip((theirs, ours), before))

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
        for segment in theirs["segments"] + ours["segments"]:
            if minor(self.profile) < 12:
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
            if isinstance(a, list) and self.restore_order_showed and key.startswith(PEAKS):
                a, b = a[:1] + a[2:], b[:1] + b[2:]
            if a != b and not (self.order_showed and key.startswith(MERGE_COUNTERS) and a[0] == b[0]):
                return (f"st {key}", a, b)
        return None


def without_registrations(line, profile):
    """A line of output without the registration counters that are not compared."""
    return REGISTRATION.sub("", line) if minor(profile) < 12 else line


def follow_pending(pending, answer):
    """Keeps the pointers of blocks that were given back and wait for events."""
    for action, pointer, *_ in answer.get("ev", []):
        if action == "free_requested":
            pending.add(pointer)
        elif action == "free_completed":
            pending.discard(pointer)


def follow_users(users, answer):
    """Keeps how many users each private pool has; one without any is abandoned."""
    kind, *words = answer["op"].split()
    pool = tuple(int(word) for word in words[:2]) if kind in ("pool_create", "pool_begin", "pool_release") else None
    if kind == "pool_release" and answer["ok"]:
        users[pool] = users.get(pool, 0) - 1
    elif pool and kind != "pool_release" and "use_count > 0" not in answer.get("msg", ""):
        # A routing that fails has counted by then, unless the pool was abandoned.
        users[pool] = users.get(pool, 0) + 1


def pools_giving(events):
    """The private pools that give segments back."""
    return {tuple(event[-2:]) for event in events if event[0] == "segment_free" and any(event[-2:])}


def in_order_of_pools(events, calls, abandoned):
    """Trace entries and driver calls with what abandoned pools give back, one directly after the other, sorted by the pool's id."""
    pool_of = {event[1].split("+")[0]: tuple(event[-2:]) for event in events if event[0] == "segment_free"}
    given_back = lambda event: event[0] == "segment_free" and tuple(event[-2:]) in abandoned
    freed = lambda call: call[0] == "cudaFree" and pool_of.get(call[-1]) in abandoned
    return sorted_runs(events, given_back, lambda event: event[-2:]), sorted_runs(calls, freed, lambda call: pool_of[call[-1]])


def sorted_runs(items, belongs, key):
    """A list in which every run of items that belong together is sorted; those that compare equal keep their order."""
    runs = itertools.groupby(items, belongs)
    return [item for together, run in runs for item in (sorted(run, key=key) if together else run)]


def reuses_pending(pending, answer):
    """Whether a restore handed out a block that waits for events: a defect, after which the real heap is damaged."""
    pending = set(pending)
    for event in answer.get("ev", []):
        follow_pending(pending, {"ev": [event]})
        if event[0] == "alloc" and event[1] in pending:
            return True
    return False


def by_segment(items):
    """Trace entries, pointers or names of restored blocks, by the segment that they lie in."""
    segments = {}
    for item in items:
        pointer = item[1] if isinstance(item, list) else item.split("_")[-1]
        segments.setdefault(pointer.split("+")[0], []).append(item)
    return segments


def compare(theirs, ours, profile="2.11"):
    """Compares two lists of lines. Returns (number of the first differing line or None, difference, tolerated orders).

    A number without a difference is that of the line from which on they cannot be compared.
    """
    comparison = Comparison(profile)
    if len(theirs) != len(ours):
        shorter = min(len(theirs), len(ours))
        return shorter, ("lines", len(theirs), len(ours)), 0
    if all(a == b or without_registrations(a, profile) == without_registrations(b, profile) for a, b in zip(theirs, ours)):
        return None, None, 0  # the same bytes: nothing to be tolerated, and no need to read them
    for number, pair in enumerate(zip(theirs, ours)):
        difference = comparison.line(*pair)
        if comparison.is_over:
            return number, None, comparison.tolerated
        if difference:
            return number, difference, comparison.tolerated
    return None, None, comparison.tolerated
