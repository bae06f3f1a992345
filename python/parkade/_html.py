"""Results as HTML for notebooks: small, without scripts or anything from elsewhere, in the colours of the page around it."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, Optional

if TYPE_CHECKING:
    from ._results import Advice, Diagnosis, Difference, Report, Stats, Verification

#: Half-transparent grey is seen on white and on black.
_LINE = "1px solid rgba(128,128,128,.4)"
#: How many rows a table shows.
_ROWS = 12


def size(amount: Optional[int]) -> str:
    """Bytes as the command `parkade` prints them."""
    if amount is None:
        return "?"
    sign, rest = ("-", -amount) if amount < 0 else ("", amount)
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        # What would be rounded up to 1024 is one of the next unit.
        if rest >= factor - factor // 2048:
            return f"{sign}{rest / factor:.2f} {unit}"
    return f"{sign}{rest} {'byte' if rest == 1 else 'bytes'}"


def page(title: str, *parts: str) -> str:
    """A frame around parts."""
    body = "".join(parts)
    return f'<div style="border:{_LINE};border-radius:4px;padding:.6em .9em;max-width:70em"><b>{escape(title)}</b>{body}</div>'


def line(text: object) -> str:
    """A paragraph."""
    return f'<div style="margin-top:.4em">{escape(str(text))}</div>'


def code(text: str) -> str:
    """A line to copy."""
    style = f"border:{_LINE};border-radius:3px;padding:.3em .6em;margin:.4em 0;background:transparent;color:inherit;white-space:pre-wrap"
    return f'<pre style="{style}">{escape(text)}</pre>'


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table; the first column to the left, the others to the right. What is beyond a dozen rows is counted."""
    cell = "padding:.15em .6em;background:transparent;color:inherit;text-align:"
    sides = ["left", *["right"] * (len(heads) - 1)]

    def cells(tag: str, texts: Sequence[object]) -> str:
        parts = (f'<{tag} style="{cell}{side}">{escape(str(text))}</{tag}>' for side, text in zip(sides, texts))
        return f"<tr>{''.join(parts)}</tr>"

    every = list(rows)
    body = "".join(cells("td", row) for row in every[:_ROWS])
    more = line(f"and {len(every) - _ROWS} more") if len(every) > _ROWS else ""
    return f'<table style="border-collapse:collapse;margin-top:.4em">{cells("th", heads)}{body}</table>{more}'


def _release(made_by: dict[str, Any]) -> str:
    return line(made_by["words"]) if made_by.get("words") else ""


def verification(found: Verification) -> str:
    """What `verify` found."""
    said = "every decision is the same" if found.exact else f"{found.mismatches} of {found.decisions} recorded decisions differ"
    row: list[object] = [found.entries, found.decisions, found.mismatches, found.ooms]
    row += [size(found.peak_allocated_bytes), size(found.peak_reserved_bytes)]
    heads = ["entries", "decisions", "mismatches", "out of memory", "peak allocated", "peak reserved"]
    return page(f"{found.file}: {said}", table(heads, [row]), _release(found.made_by))


def advice(found: Advice) -> str:
    """What `advise` found."""
    parts = [line(f"verdict on the run's own settings: {found.verdict}; outcome with what is recommended: {found.outcome}")]
    if found.recommendation is not None:
        parts += [code(found.recommendation.line), line(found.recommendation.why)]
    rows = [
        (
            option.settings or "(defaults)",
            "yes" if option.fits else "gets past" if option.gets_past else "no",
            size(option.peak_reserved_bytes),
            size(option.smallest_capacity_bytes),
            option.retries,
        )
        for option in found.options
    ]
    if rows:
        parts.append(table(["settings", "fits", "peak reserved", "smallest memory", "retries"], rows))
    return page(f"{found.file}: {found.verdict or found.outcome}", *parts, *map(line, found.notes))


def diagnosis(found: Diagnosis) -> str:
    """What `diagnose` found."""
    parts = []
    for device in found.devices:
        heap = device.heap
        parts.append(line(f"device {device.device}: {device.headline}"))
        rows = [("requested and in use", size(heap.get("requested_bytes"))), ("rounding", size(heap.get("rounding_bytes")))]
        rows += [(f"stranded: {part['cause']}", size(part["bytes"])) for part in heap.get("stranded", [])]
        rows.append(("reserved", size(heap.get("reserved_bytes"))))
        parts.append(table(["where the bytes are", "bytes"], rows))
        parts.append(table(["step", "applies", "finding"], [(s["step"], s["applies"], s["finding"]) for s in device.steps]))
    verdicts = ", ".join(device.verdict for device in found.devices)
    return page(f"{found.file}: {verdicts}", *parts)


def report(found: Report) -> str:
    """What `report` shows."""
    parts = [line(f"device {device['device']}: {device['what_happened']}") for device in found.devices]
    if found.svg:
        # As a picture, so that nothing in it is a part of the page around it.
        picture = base64.b64encode(found.svg.encode()).decode()
        parts.append(f'<img alt="memory over time" style="max-width:100%;background:#fff" src="data:image/svg+xml;base64,{picture}">')
    if found.output:
        parts.append(line(f"the page is in {found.output}"))
    return page(found.file, *parts)


def difference(found: Difference) -> str:
    """What `diff` found."""
    rows = []
    for device in found.devices:
        a, b = device["a"], device.get("b")
        for name, key in (("peak allocated", "peak_allocated"), ("peak reserved", "peak_reserved")):
            last = size(b[key]["bytes"]) if b else ""
            change = size(b[key]["bytes"] - a[key]["bytes"]) if b else ""
            rows.append((f"device {a['device']}: {name}", size(a[key]["bytes"]), last, change))
    title = found.a.get("file", "") + (f" and {found.b['file']}" if found.b else "")
    said = {1: ": a bound is exceeded", 3: ": not known whether the bounds hold"}.get(found.exit_code, "")
    return page(title + said, table(["", "A", "B", "change"], rows), *map(line, found.notes))


def stats(found: Stats) -> str:
    """What `stats` shows."""
    rows = []
    for device in found.devices:
        for moment in device["moments"]:
            of = moment["measures"]
            share = "" if of["fragmentation"] is None else f"{of['fragmentation']:.1%}"
            sizes = [size(of[key]) for key in ("allocated_bytes", "reserved_bytes", "free_bytes", "largest_hole_bytes")]
            rows.append((f"device {device['device']}, entry {moment['entry']}", *sizes, share))
    return page(found.file, table(["after", "allocated", "reserved", "free", "largest hole", "fragmentation"], rows))
