"""Compares the reports of two runs of one program: traces entry by entry, segments, statistics, losses and texts of errors.

A run's report is a dictionary: `snapshot` (what torch.cuda.memory._snapshot() returns), `stats`, `summary`, `losses`, `errors`, `ended`.
Times are ignored. Addresses are compared relative to their segment, and segments and streams by the order in which they first appear:
the driver returns different addresses in two runs, and a stream's handle is a pointer.
"""

import bisect
import re

# Times and the free memory of the GPU are determined by other processes, not by the allocator.
ASIDE = {"time_us", "device_free"}
# An expandable segment reserves this multiple of the GPU's memory as addresses: spec 4.1.
SPAN = (9, 8)


class Segments:
    """Numbers segments in the order in which they appeared, and finds the segment that contains an address."""

    def __init__(self, span_bytes):
        self.span_bytes, self.count, self.starts, self.known = span_bytes, 0, [], {}

    def add(self, address, size_bytes, expandable):
        if expandable:
            found = self.find(address)
            if found is not None:
                self.known[found]["mapped"] += size_bytes
                return
        bisect.insort(self.starts, address)
        span = self.span_bytes if expandable else size_bytes
        self.known[address] = {"number": self.count, "span": span, "mapped": size_bytes}
        self.count += 1

    def remove(self, address, size_bytes):
        found = self.find(address)
        if found is None:
            return
        self.known[found]["mapped"] -= size_bytes
        if self.known[found]["mapped"] <= 0:
            self.starts.remove(found)
            del self.known[found]

    def find(self, address):
        place = bisect.bisect_right(self.starts, address)
        start = self.starts[place - 1] if place else None
        return start if start is not None and address < start + self.known[start]["span"] else None

    def relative(self, address):
        """(number of the segment, offset in it), or the address itself with a note if no segment is known there."""
        start = self.find(address)
        return ("no known segment", address) if start is None else (self.known[start]["number"], address - start)


class Streams:
    """Numbers streams in the order in which they first appear. The default stream is 0."""

    def __init__(self):
        self.numbers = {0: 0}

    def number(self, handle):
        return self.numbers.setdefault(handle, len(self.numbers))


def same_in_all_runs(entry, streams):
    kept = {key: value for key, value in entry.items() if key not in ASIDE}
    if "stream" in kept:
        kept["stream"] = streams.number(kept["stream"])
    return kept


def trace(entries, total_bytes, streams):
    """Returns the entries of one device's trace in a form that two runs have in common, and the segments that exist at its end."""
    segments, result = Segments(total_bytes * SPAN[0] // SPAN[1]), []
    for entry in entries:
        action, address, size = entry["action"], entry.get("addr"), entry.get("size", 0)
        if action in ("segment_alloc", "segment_map"):
            segments.add(address, size, action == "segment_map")
        common = same_in_all_runs(entry, streams)
        if "addr" in common:
            common["addr"] = segments.relative(address)
        if action in ("segment_free", "segment_unmap"):
            segments.remove(address, size)
        result.append(common)
    return by_address(result), segments


def by_address(entries):
    """Puts segments that are returned together into the order in which they appeared: which stream's segments go first depends on the streams' handles, which are addresses in the process."""
    result, run = [], []
    for entry in [*entries, None]:
        if entry and entry["action"] in ("segment_free", "segment_unmap"):
            run.append(entry)
            continue
        result += sorted(run, key=lambda entry: (entry["action"], entry["addr"]))
        run = []
        if entry:
            result.append(entry)
    return result


def heap(snapshot, device, segments, streams):
    """Returns a snapshot's segments and blocks in a form that two runs have in common, in the order in which the segments appeared."""
    result = []
    for segment in snapshot["segments"]:
        if segment["device"] != device:
            continue
        common = same_in_all_runs(segment, streams)
        common["address"] = segments.relative(segment["address"])
        common["blocks"] = [same_in_all_runs(block, streams) for block in segment["blocks"]]
        for block, original in zip(common["blocks"], segment["blocks"]):
            if "address" in block:
                block["address"] = segments.relative(original["address"])
        result.append(common)
    return sorted(result, key=lambda segment: (str(segment["address"][0]), segment["address"][1]))


def normal_text(text):
    """Returns an error's text without what depends on other processes: process numbers, free GPU memory, and memory in use outside PyTorch."""
    text = re.sub(r"\b[Pp]rocess \d+\b", "process N", text)
    text = re.sub(r"of which \S+ \S+ is free", "of which N is free", text)
    text = re.sub(r"has \S+ \S+ memory in use", "has N memory in use", text)
    return re.sub(r"(process N has N memory in use\. )+", "", text)


def entries_of(report):
    return sum(len(trace) for trace in report["snapshot"]["device_traces"])


def differing(left, right, what):
    """Returns the differences between two lists: their number, and the first one in words."""
    places = [place for place, (ours, theirs) in enumerate(zip(left, right)) if ours != theirs]
    count = len(places) + abs(len(left) - len(right))
    if not count:
        return 0, None
    if not places:
        return count, f"{what}: one side has {len(left)} and the other {len(right)}; all that both have are equal"
    place = places[0]
    return count, f"{what} {place}: {first_difference(left[place], right[place])}"


def first_difference(left, right):
    if isinstance(left, dict) and isinstance(right, dict):
        keys = [key for key in {**left, **right} if left.get(key, "missing") != right.get(key, "missing")]
        shown = ", ".join(
            f"{key} {left.get(key, 'missing')} and {right.get(key, 'missing')}" for key in keys if key != "blocks"
        )
        if "blocks" in keys:
            blocks = differing(left.get("blocks", []), right.get("blocks", []), "block")[1]
            shown = "; ".join(part for part in (shown, blocks) if part)
        named = left.get("action")
        return f"{named}: {shown}" if named else shown
    return f"{left!r} and {right!r}"


def compare_traces(left, right, found):
    """Adds the differences of traces and heaps to `found`."""
    sides = []
    for report in (left, right):
        streams, devices = Streams(), []
        for device, entries in enumerate(report["snapshot"]["device_traces"]):
            common, segments = trace(entries, report["total_bytes"], streams)
            devices.append((common, heap(report["snapshot"], device, segments, streams)))
        sides.append(devices)
    traces, heaps, texts = abs(len(sides[0]) - len(sides[1])), 0, []
    for (ours, our_heap), (theirs, their_heap) in zip(*sides):
        count, text = differing(ours, theirs, "entry")
        traces, texts = traces + count, texts + [text]
        count, text = differing(our_heap, their_heap, "segment")
        heaps, texts = heaps + count, texts + [text]
    found["trace"], found["heap"] = traces, heaps
    found["texts"] += [text for text in texts if text]


def compare(left, right):
    """Compares two reports. Returns the number of differences of each kind, and `texts`, the first difference of each kind."""
    found = {"texts": []}
    compare_traces(left, right, found)
    lists = {
        "losses": (left["losses"], right["losses"]),
        "errors": ([normal_text(text) for text in left["errors"]], [normal_text(text) for text in right["errors"]]),
        "stats": (sorted(left["stats"].items()), sorted(right["stats"].items())),
        "summary": (left["summary"].splitlines(), right["summary"].splitlines()),
        "settings": (settings(left), settings(right)),
        "ended": ([left["ended"]], [right["ended"]]),
    }
    # A dictionary of keys, so that a missing key counts once.
    found["keys"], text = compare_stats(
        dict.fromkeys(left["snapshot"], "there"), dict.fromkeys(right["snapshot"], "there"), "keys"
    )
    found["texts"] += [text] if text else []
    for kind, (ours, theirs) in lists.items():
        if kind == "stats":
            found[kind], text = compare_stats(dict(ours), dict(theirs))
        else:
            found[kind], text = differing(ours, theirs, kind)
        if text:
            found["texts"].append(text)
    return found


def settings(report):
    return sorted((key, str(value)) for key, value in report["snapshot"].get("allocator_settings", {}).items())


def compare_stats(left, right, what="stats"):
    """Returns how many statistics differ, and the first difference. A key that only one side has also counts."""
    keys = [key for key in sorted({**left, **right}) if left.get(key, "missing") != right.get(key, "missing")]
    if not keys:
        return 0, None
    shown = ", ".join(f"{key} {left.get(key, 'missing')} and {right.get(key, 'missing')}" for key in keys[:5])
    return len(keys), f"{what}: {shown}{' ...' if len(keys) > 5 else ''}"


def differences(found):
    """Returns how many differences a comparison found."""
    return sum(count for kind, count in found.items() if kind != "texts")
