"""Compares two runs of one script, line by line: the real allocator's answers and parkade's.

Everything must be equal, except for what depends on the addresses of the real allocator's own objects (docs/fidelity.md). Streams and pools are
visited in an order that depends on their handles and ids, and ours must be the same.

Blocks that are freed during a recording or a capture while other streams use them are kept in a hash table of their objects' addresses,
and their events are recorded in its order. If there are several such blocks, then until no block waits for events any more
- the order of `free_completed` entries within an operation may differ, and with it, in that operation and not beyond it, how far the counters
  `peak`, `allocated` and `freed` of inactive_split and inactive_split_bytes move (the order of merging decides the steps between; `current`
  must still be equal);
- from then on the stale `requested` of inactive blocks in snapshots may differ.
The same applies to blocks that a restored checkpoint takes back and that then wait for events.

A restored checkpoint visits the pool's segments in the hash order of their blocks: the order of segments may differ in
`ckpt_load`'s entries, in `freed` and in `allocd`, but not the order within a segment; if several segments are missing,
a different one may be named. From then on peaks may differ, until they are reset; nothing else may.
The comparison ends, without a difference, when that order shows in the numbers of events, and when a restore fails
after it has taken blocks back: the real allocator has then lost them, and ours has changed
nothing. It also ends when the real one hands out a block that waits for events.

The registration counter of segments (`reg`) is internal to the real allocator in 2.11 and is not compared; from 2.12 on it
orders blocks and must be equal.
"""

import copy
import json
import re

from releases import minor

REGISTRATION = re.compile(r'"reg":-?\d+,')
PEAKS = (
    "allocation.",
    "active.",
    "allocated_bytes.",
    "active_bytes.",
    "requested_bytes.",
    "oversize_allocations",
    "inactive_split.",
    "inactive_split_bytes.",
)
MISSING = " could not find 0x"
ZEROS = [0, 0, 0, 0]
MERGE_COUNTERS = ("inactive_split.", "inactive_split_bytes.")
MERGE_KEYS = [counter + kind for counter in MERGE_COUNTERS for kind in ("all", "small", "large")]


class Comparison:
    """Follows two runs and keeps track of what may differ."""

    def __init__(self, profile):
        self.profile = profile
        self.sides = [{}, {}]
        self.waiting = Waiting(profile)
        # Whether a different order of completion has appeared, and whether it appeared in this operation.
        self.order_showed = self.order_shows = False
        self.restore_order_showed = False
        self.ages_follow_order = False
        self.segments = {}
        self.is_over = False
        self.tolerated = 0
        # The merge counters of both sides after the previous operation, if they may differ.
        self.before = {}

    def line(self, theirs, ours):
        """Returns None if the lines agree, or else the difference: (field, theirs, ours)."""
        are_equal = theirs == ours
        theirs = json.loads(theirs)
        ours = dict(theirs) if are_equal else json.loads(ours)
        self.without_properties(theirs, ours)
        if self.frees_a_part(theirs):
            self.is_over = True
            return None
        op = theirs["op"]
        if op == "reset_peak":
            self.restore_order_showed = False
        if op.startswith("ckpt_load"):
            self.restore(theirs, ours)
            if self.is_over:
                return None
        self.waiting.follow(theirs)
        for side, answer in zip(self.sides, (theirs, ours)):
            side.update(answer.pop("st", {}))
        difference = self.events(theirs.pop("ev", []), ours.pop("ev", []))
        for field, check in (("snapshot", self.snapshot), ("stats", self.counters)):
            if field in theirs and field in ours:
                difference = difference or check(theirs.pop(field), ours.pop(field))
        for field in sorted(theirs.keys() | ours.keys()):
            if theirs.get(field) != ours.get(field):
                difference = difference or (field, theirs.get(field), ours.get(field))
        difference = difference or self.counters(*self.sides) or self.moves(op)
        if difference and self.ages_follow_order:
            self.is_over = True
            return None
        self.waiting.end()
        return difference

    def frees_a_part(self, answer):
        """Whether the real allocator returns part of a segment as if it were the entire segment: a defect, after which its heap is damaged."""
        for action, pointer, *rest in answer.get("ev", []):
            size = rest[0] if rest else None
            if action == "segment_alloc":
                self.segments[pointer] = size
            elif action == "segment_free" and self.segments.pop(pointer, size) != size:
                return True
        return False

    def without_properties(self, *answers):
        """Leaves out reads of the device's properties, which some releases do for each message and each range of
        addresses.
        """
        if minor(self.profile) < 10:
            for answer in answers:
                calls = [call for call in answer.pop("drv", []) if call[0] != "cudaGetDeviceProperties"]
                answer.update({"drv": calls} if calls else {})

    def restore(self, theirs, ours):
        """Puts the segments of a restore into the same order, if only their order differs."""
        if theirs["ok"] == 0:
            if ours["ok"] == 0 and all(MISSING in answer["msg"] for answer in (theirs, ours)):
                ours["msg"] = theirs["msg"]
            same = theirs.get("msg") == ours.get("msg") or reuses_pending(self.waiting.pending, theirs)
            self.is_over = "ev" in theirs and same and "ev" not in ours
            return
        if ours["ok"] == 0:
            self.is_over = reuses_pending(self.waiting.pending, theirs)
            return
        differ = [field for field in ("ev", "freed", "allocd") if theirs.get(field) != ours.get(field)]
        if not differ or any(by_segment(theirs.get(field, [])) != by_segment(ours.get(field, [])) for field in differ):
            return
        for field in differ:
            ours[field] = theirs[field]
        self.restore_order_showed = True
        self.ages_follow_order = minor(self.profile) == 12
        self.tolerated += 1
        self.is_over = theirs.get("drv") != ours.get("drv")

    def events(self, theirs, ours):
        self.order_shows = theirs != ours
        if not self.order_shows:
            return None
        completed = lambda events: [event for event in events if event[0] == "free_completed"]
        others = lambda events: [event for event in events if event[0] != "free_completed"]
        runs = lambda events: [event[0] == "free_completed" for event in events]
        same = (
            sorted(completed(theirs)) == sorted(completed(ours))
            and others(theirs) == others(ours)
            and runs(theirs) == runs(ours)
        )
        if not same or not self.waiting.has_no_order:
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
            a, b = theirs.get(key, ZEROS), ours.get(key, ZEROS)
            if isinstance(a, list) and self.restore_order_showed and key.startswith(PEAKS):
                a, b = a[:1] + a[2:], b[:1] + b[2:]
            if a != b and not (self.order_showed and key.startswith(MERGE_COUNTERS) and a[0] == b[0]):
                return (f"st {key}", a, b)
        return None

    def moves(self, op):
        """Whether counters that may differ changed equally in this operation, if no order shows in it."""
        before = self.before
        pairs = {
            key: [side.get(key, ZEROS) for side in self.sides] for key in (MERGE_KEYS if self.order_showed else ())
        }
        self.before = {key: (a, b) for key, (a, b) in pairs.items() if a != b}
        if self.order_shows:
            return None
        for key, now in self.before.items():
            if not moved_alike(before.get(key, (now[0], now[0])), now, op, self.restore_order_showed):
                return (f"st {key}, where no order shows", *now)
        return None


class Captures:
    """Which streams take part in a capture, and in which: its first stream."""

    def __init__(self):
        self.of = {}

    def follow(self, edge, words):
        """An operation that was carried out: capture_begin, capture_wait or capture_end, with its streams."""
        if edge == "begin":
            self.of[words[0]] = words[0]
        elif edge == "wait":
            self.of.setdefault(words[0], self.of.get(words[1], words[1]))
        elif edge == "end" and words[0] in self.of:
            ended = self.of[words[0]]
            self.of = {stream: first for stream, first in self.of.items() if first != ended}


class Waiting:
    """The real run's blocks that wait for events, and whether the order of some of them depends on addresses."""

    def __init__(self, profile):
        # What defers events: a capture and, up to 2.12, any routing.
        self.puts_off = () if minor(profile) >= 13 else ("pool",)
        self.routings, self.captures = set(), Captures()
        self.pending, self.deferred = set(), set()
        self.has_no_order = False

    def follow(self, answer):
        """Returns the blocks that an operation leaves waiting."""
        waited = set(self.pending)
        follow_pending(self.pending, answer)
        kind, _, rest = answer["op"].partition(" ")
        restored = len(self.pending - waited) if kind == "ckpt_load" else 0
        if self.routings or self.captures.of:
            self.deferred |= self.pending - waited
        if len(self.deferred) > 1 or restored > 1:
            self.has_no_order = True
        subject, _, edge = kind.partition("_")
        if subject == "capture" and answer["ok"]:
            self.captures.follow(edge, rest.split())
        elif subject in self.puts_off and edge in ("begin", "end") and answer["ok"]:
            (self.routings.add if edge == "begin" else self.routings.discard)(tuple(rest.split()[:2]))

    def end(self):
        """Call this after an operation has been compared."""
        self.deferred &= self.pending
        if not self.pending:
            self.has_no_order = False


def moved_alike(before, now, op, peaks_may_differ=False):
    """Whether counters that differ changed by the same amounts, and whether their peaks, if above the previous ones,
    rose to the same height.
    """
    (a, b), (old_a, old_b) = now, before
    totals = (op == "reset_accumulated" and a[2:] == b[2:]) or all(
        a[place] - old_a[place] == b[place] - old_b[place] for place in (2, 3)
    )
    reached = max(peak if peak > old else 0 for peak, old in ((a[1], old_a[1]), (b[1], old_b[1])))
    peaks = (op == "reset_peak" and a[1] == b[1]) or [a[1], b[1]] == [max(old, reached) for old in (old_a[1], old_b[1])]
    return totals and (peaks or peaks_may_differ)


def without_registrations(line, profile):
    """Returns a line of output without the registration counters that are not compared."""
    return REGISTRATION.sub("", line) if minor(profile) < 12 else line


def follow_pending(pending, answer):
    """Keeps the pointers of blocks that were freed and wait for events."""
    for action, pointer, *_ in answer.get("ev", []):
        if action == "free_requested":
            pending.add(pointer)
        elif action == "free_completed":
            pending.discard(pointer)


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


def beginning_in_common(runs, profile):
    """The number of lines that all runs begin with, and a comparison that has read them, for `compare` to continue as
    if it had read them itself.
    """
    number = min(map(len, runs))
    for run in runs[1:]:
        number = next((place for place, (a, b) in enumerate(zip(runs[0][:number], run)) if a != b), number)
    comparison = Comparison(profile)
    for place in range(number):
        if comparison.line(runs[0][place], runs[0][place]) or comparison.is_over:
            return None  # not a beginning that other lines can build on
    return number, comparison


def compare(theirs, ours, profile="2.11", start=None):
    """Compares two lists of lines. Returns (number of the first differing line or None, difference, tolerated orders).

    A number without a difference is that of the first line that cannot be compared. `start` is a common beginning.
    """
    first, comparison = (start[0], copy.deepcopy(start[1])) if start else (0, Comparison(profile))
    if len(theirs) != len(ours):
        shorter = min(len(theirs), len(ours))
        return shorter, ("lines", len(theirs), len(ours)), 0
    if all(
        a == b or without_registrations(a, profile) == without_registrations(b, profile) for a, b in zip(theirs, ours)
    ):
        return None, None, 0  # the same bytes: nothing to tolerate, and no need to read them
    for number, pair in enumerate(zip(theirs[first:], ours[first:]), first):
        difference = comparison.line(*pair)
        if comparison.is_over:
            return number, None, comparison.tolerated
        if difference:
            return number, difference, comparison.tolerated
    return None, None, comparison.tolerated
