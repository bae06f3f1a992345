#!/usr/bin/env python3
"""Draw a GPU's memory as a car park at the moment of an out-of-memory error.

RECORDING is what torch.cuda.memory._dump_snapshot() wrote, with the history
recorded from the start; the limit is not in that file, so it is an argument.
The heap is rebuilt by walking the trace up to its first `oom` entry.
Everything is drawn to one scale: segments lie end to end in address order and
wrap like text into rows of 2 GiB; the space up to the limit closes the last row.
"""

import argparse
import bisect
import lzma
import pickle
import sys
from types import SimpleNamespace

MIB, GIB = 1 << 20, 1 << 30


def load(path):
    """The trace of the first device. Unpickling runs code: trust the file."""
    with (lzma.open if path.endswith(".xz") else open)(path, "rb") as f:
        return pickle.load(f)["device_traces"][0]


def heap_at_oom(trace):
    """Replay the trace to its first oom: {segment: [[address, size, live], ...]}."""
    heap, bases = {}, []

    def find(addr):
        blocks = heap[bases[bisect.bisect_right(bases, addr) - 1]]
        i = bisect.bisect_left(blocks, [addr])
        assert blocks[i][0] == addr
        return blocks, i

    for e in trace:
        action, size = e["action"], e["size"]
        if action == "oom":
            return heap, size
        addr = e["addr"]
        if action == "segment_alloc":
            heap[addr] = [[addr, size, False]]
            bisect.insort(bases, addr)
        elif action == "segment_free":
            assert heap.pop(addr) == [[addr, size, False]]
            bases.remove(addr)
        elif action == "alloc":
            blocks, i = find(addr)
            block = blocks[i]
            assert not block[2]
            want = max(512, -(-size // 512) * 512)
            rest = block[1] - want
            # What is left over becomes a free block of its own, unless it is
            # too small: up to 1 MiB stays with a block of the large pool.
            if rest > (MIB if size > MIB else 511):
                blocks.insert(i + 1, [addr + want, rest, False])
                block[1] = want
            block[2] = True
        elif action == "free_completed":
            blocks, i = find(addr)
            blocks[i][2] = False
            for j in (i, i - 1):  # merge with the next one, then the previous
                if 0 <= j < len(blocks) - 1 and not (blocks[j][2] or blocks[j + 1][2]):
                    blocks[j][1] += blocks.pop(j + 1)[1]
    sys.exit("no oom entry in this recording")


def measure(heap, request, limit):
    blocks = [b for s in sorted(heap) for b in heap[s]]  # address order
    holes = [b[1] for b in blocks if not b[2]]
    n = SimpleNamespace(limit=limit, request=request, blocks=blocks)
    n.reserved = sum(b[1] for b in blocks)
    n.free, n.holes, n.largest = sum(holes), len(holes), max(holes)
    n.live, n.cars = n.reserved - n.free, len(blocks) - len(holes)
    n.unreserved = limit - n.reserved
    n.empty = limit - n.live
    return n


# ---------------------------------------------------------------- the picture
ABOUT = "Real GPT-2 training on an H200"
W, PAD = 900, 28
LANE, PITCH, TOP = 34, 42, 118  # height of a row, row to row, first row
ROW = 2 * GIB
PX = (W - 2 * PAD) / ROW  # pixels per byte
INK, SOFT, RED, EDGE = "#22303c", "#56646f", "#c8451f", "#a08a4c"
CARS = ["#6f90b0", "#6082a3", "#7d9cba", "#688aab"]
HOLE, BUS, GLASS = "#ffefc2", "#f5b731", "#fffaf0"


def tag(name, body=None, **attr):
    attrs = ""
    for key, value in attr.items():
        if isinstance(value, float):
            value = f"{value:.2f}".rstrip("0").rstrip(".")
        attrs += ' {}="{}"'.format(key.replace("_", "-"), value)
    return f"<{name}{attrs}/>" if body is None else f"<{name}{attrs}>{body}</{name}>"


def rect(x, y, w, h, **attr):
    return tag("rect", x=x, y=y, width=w, height=h, **attr)


def text(x, y, body, size=14, fill=INK, **attr):
    return tag("text", body, x=x, y=y, font_size=size, fill=fill, **attr)


def gib(n):
    return f"{n / GIB:.2f} GiB"


def pieces(start, size):
    """[start, start + size) of the car park as (x, y, width), cut at row ends."""
    while size > 0:
        row, off = divmod(start, ROW)
        part = min(size, ROW - off)
        yield PAD + off * PX, TOP + row * PITCH, part * PX
        start, size = start + part, size - part


def runs(blocks, wanted):
    """Live (or free) blocks as [start, size]; neighbours too thin to see are merged."""
    pos, run = 0, None
    for _, size, live in blocks:
        if live == wanted:
            if run and sum(run) == pos and min(run[1], size) * PX < 1.5:
                run[1] += size
            else:
                if run:
                    yield run
                run = [pos, size]
        pos += size
    if run:
        yield run


def bus(x, y, w, over):
    """A bus seen from the side, exactly w long, its rear part `over` in red."""
    yield rect(x, y, w, LANE, rx=6, fill=BUS)
    yield tag("path", d=f"M{x + over:.1f} {y}H{x + 6:.1f}q-6 0-6 6v{LANE - 12}q0 6 6 6H{x + over:.1f}z", fill=RED)
    for i in range(int((w - 50) // 26)):
        yield rect(x + 10 + i * 26, y + 5, 20, 9, rx=2, fill=GLASS)
    yield rect(x + w - 30, y + 5, 24, 15, rx=3, fill=GLASS)  # windscreen
    for cx in (x + 26, x + 48, x + w - 48):
        yield tag("circle", cx=cx, cy=y + LANE, r=8, fill=INK)
        yield tag("circle", cx=cx, cy=y + LANE, r=3, fill="#cfd6dc")


def street(n):
    """Where the street below the last row begins."""
    return TOP + -(-n.limit // ROW) * PITCH


def draw(n):
    bottom = street(n)
    yield text(
        PAD, 45, f"Out of memory: {gib(n.empty)} is empty, but a {gib(n.request)} bus does not fit", 22, font_weight=700
    )
    yield text(
        PAD,
        70,
        f"{ABOUT}. Limit {n.limit / GIB:g} GiB, reserved {gib(n.reserved)}. Blocks in address order, one row is 2 GiB.",
        14,
        SOFT,
    )
    x = PAD
    for fill, line, dash, label, note, step in [
        (CARS[0], CARS[1], "none", gib(n.live), f"live, in {n.cars} blocks", 252),
        (HOLE, EDGE, "none", gib(n.free), f"free, in {n.holes} holes, largest {n.largest / MIB:.1f} MiB", 366),
        (HOLE, EDGE, "3 2", gib(n.unreserved), "not reserved", 0),
    ]:
        yield rect(x + 0.5, 86.5, 13, 13, rx=3, fill=fill, stroke=line, stroke_dasharray=dash)
        yield text(x + 21, 98, tag("tspan", label, font_weight=700) + " " + note)
        x += step
    for start, size in runs(n.blocks, False):
        for x, y, w in pieces(start, size):
            yield rect(x, y, w, LANE, fill=HOLE)
    for i, (start, size) in enumerate(runs(n.blocks, True)):
        for x, y, w in pieces(start, size):
            yield rect(x, y, w - 0.6 if w > 4 else w, LANE, rx=min(2.5, w / 3), fill=CARS[i % len(CARS)])
    for x, y, w in pieces(n.reserved, n.unreserved):
        yield rect(x + 1, y + 0.5, w - 1.5, LANE - 1, rx=4, fill=HOLE, stroke=EDGE, stroke_dasharray="5 4")
    # The longest place: the stretch that is not reserved, or a hole, which may go on in the next row.
    longest, note = n.unreserved, "longest place left"
    if n.largest > n.unreserved:
        longest = n.largest
        hole = next(start for start, size in runs(n.blocks, False) if size >= n.largest)
        x, y, w = max(pieces(hole, n.largest), key=lambda piece: piece[2])
        note = "longest place, over two rows" if w < n.largest * PX - 1 else note
    yield text(x + w / 2, y + 22, f"{note}: {gib(longest)}", 15, text_anchor="middle")
    # The request that failed, to the same scale; what is red is beyond the longest place.
    over, start, y = (n.request - longest) * PX, W - PAD - n.request * PX, bottom + 14
    yield from bus(start, y, n.request * PX, over)
    yield tag(
        "path",
        d=f"M{start + over:.1f} {bottom - 6}V{y + LANE + 8}",
        stroke=RED,
        stroke_width=1.5,
        stroke_dasharray="4 3",
    )
    yield text(
        start + 90 if over < 90 else start + 66,
        y + 28,
        f"the request: {gib(n.request)}, {gib(n.request - longest)} too long",
        13,
        font_weight=700,
    )
    yield text(PAD, y + 15, "The bus: one tensor,", 14, font_weight=700)
    yield text(PAD, y + 34, "needed in one piece", 14, SOFT)


def svg(n):
    title = (
        f"GPU memory at an out-of-memory error: {gib(n.live)} live, {gib(n.free)} free in "
        f"{n.holes} holes, {gib(n.unreserved)} not reserved, limit {n.limit / GIB:g} GiB; "
        f"a request of {gib(n.request)} fits nowhere"
    )
    height = street(n) + 80
    card = rect(0.5, 0.5, W - 1, height - 1, rx=14, fill="#fbfbf9", stroke="#d5d8da")
    body = "\n".join(["", tag("title", title), card, *draw(n), ""])
    return (
        tag(
            "svg",
            body,
            xmlns="http://www.w3.org/2000/svg",
            viewBox=f"0 0 {W} {height}",
            width=W,
            height=height,
            role="img",
            font_family="system-ui, sans-serif",
        )
        + "\n"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "recording", metavar="RECORDING.pickle[.xz]", help="the file; unpickling runs code, so it must come from you"
    )
    parser.add_argument("out", metavar="OUT.svg", help="the picture to write")
    parser.add_argument(
        "limit", metavar="LIMIT_GIB", type=float, nargs="?", default=12, help="the memory limit in GiB (default: 12)"
    )
    options = parser.parse_args()
    numbers = measure(*heap_at_oom(load(options.recording)), int(options.limit * GIB))
    if not numbers.unreserved < numbers.request < ROW:
        sys.exit("this layout needs: not reserved < request < one row; is the limit right?")
    with open(options.out, "w") as f:
        f.write(svg(numbers))
    for key, value in vars(numbers).items():
        if key != "blocks":
            print(f"{key:12}{value:>16,}")
