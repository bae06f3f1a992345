"""Results as HTML for notebooks: small, without scripts or anything from elsewhere, in the colours of the page around it."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._results import Advice, Diagnosis, Difference, Export, Info, MessageDiagnosis, Replay, Report, Stats, Verification

#: Half-transparent grey is seen on white and on black.
_LINE = "1px solid rgba(128,128,128,.4)"
#: How many rows a table shows.
_ROWS = 12
#: What is set to the right: a number, with its unit.
_NUMBER = re.compile(r"-?\d[\d,.]*(?: ?(?:bytes?|[KMGT]iB|%))?|\?|")

#: Why the run's own settings fail, in words.
_VERDICTS = {
    "fits": "the run fits as it is",
    "no_failure": "nothing failed",
    "fragmentation": "out of memory by fragmentation",
    "streams": "out of memory because other streams hold free memory",
    "private_pools": "out of memory because private pools hold free memory",
    "capacity": "out of memory because more was needed than there is",
    "undecided": "out of memory, and the file does not tell why",
}
#: What comes of a run, in words.
_OUTCOMES = {
    "fits": "it fits",
    "gets_past": "it gets past the error; what comes after is not in the file",
    "does_not_fit": "it does not fit",
    "unknown": "whether it fits is not known",
}


def size(amount: int | None) -> str:
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


def words(key: str | None) -> str:
    """A name in JSON as words: `private_pools` is `private pools`."""
    return (key or "").replace("_", " ")


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table; columns of numbers to the right, the others to the left. What is beyond a dozen rows is counted."""
    every = [[str(text) for text in row] for row in rows]
    shown = every[:_ROWS]

    def side(column: int) -> str:
        texts = [row[column] for row in shown]
        return "right" if column and any(texts) and all(map(_NUMBER.fullmatch, texts)) else "left"

    cell = "padding:.15em .6em;background:transparent;color:inherit;vertical-align:top;text-align:"
    sides = [side(column) for column in range(len(heads))]

    def cells(tag: str, texts: Sequence[str]) -> str:
        parts = (f'<{tag} style="{cell}{side}">{escape(text)}</{tag}>' for side, text in zip(sides, texts))
        return f"<tr>{''.join(parts)}</tr>"

    body = "".join(cells("td", row) for row in shown)
    more = line(f"and {len(every) - _ROWS} more") if len(every) > _ROWS else ""
    return f'<table style="border-collapse:collapse;margin-top:.4em">{cells("th", heads)}{body}</table>{more}'


def _release(made_by: Mapping[str, Any]) -> str:
    return line(made_by["words"]) if made_by.get("words") else ""


def verification(found: Verification) -> str:
    """What `verify` found."""
    said = "every decision is the same" if found.exact else f"{found.mismatches} of {found.decisions} recorded decisions differ"
    row: list[object] = [found.entries, found.decisions, found.mismatches, found.ooms]
    row += [size(found.peak_allocated_bytes), size(found.peak_reserved_bytes)]
    heads = ["entries", "decisions", "mismatches", "out of memory", "peak allocated", "peak reserved"]
    return page(f"{found.file}: {said}", table(heads, [row]), _release(found.made_by))


def advice(found: Advice) -> str:
    """What `advise` found: why it failed, what to set with what that costs and may break, and what else was tried."""
    parts = [line(_cause(found))] if found.cause else []
    chosen = found.recommendation
    if chosen is not None:
        parts += [code(chosen.line), line(f"With it: {_OUTCOMES.get(found.outcome, words(found.outcome))}.")]
        parts += [line(text) for text in (chosen.why, chosen.costs, chosen.also) if text]
        parts += [line(f"Check first: {said['what']} {said['instead']}") for said in chosen.cautions]
    for remedy in found.remedies:
        is_chosen = chosen is not None and remedy["line"] == chosen.line
        if not is_chosen:
            is_first = chosen is None and remedy is found.remedies[0]
            parts += ["" if is_first else line("Or:"), (line if remedy["kind"] == "program" else code)(remedy["line"])]
        asks = "" if is_chosen else "; ".join(remedy["asks"])
        parts += [line(text) for text in (likely(remedy), asks) if text]
    rows = [
        (
            option.settings or "(defaults)",
            "yes" if option.fits else "gets past the error" if option.gets_past else "no",
            size(option.peak_reserved_bytes),
            size(option.smallest_capacity_bytes),
            option.retries,
        )
        for option in found.options
    ]
    if rows:
        parts.append(table(["settings", "fits", "peak reserved", "smallest memory", "retries"], rows))
    verdict = _VERDICTS.get(found.verdict or "", words(found.verdict)) or _OUTCOMES.get(found.outcome, words(found.outcome))
    return page(f"{found.file}: {verdict}", *parts, *map(line, found.notes))


def _cause(found: Advice) -> str:
    cause: Mapping[str, Any] = found.cause or {}
    return (
        f"Where it fails: {size(cause['wanted_bytes'])} needed with {size(cause['reserved_bytes'])} reserved, of which "
        f"{size(cause['live_bytes'])} are in use; the largest free piece has {size(cause['largest_free_bytes'])}."
    )


def likely(remedy: Mapping[str, Any]) -> str:
    """How likely a remedy completes a program that died."""
    base, probability = remedy.get("completes_base"), remedy.get("completes_probability")
    if not base or probability is None:
        return ""
    return f"Completes the run with a probability of {probability:.0%}: it did for {base['completed']} of {base['runs']} runs like this one."


def diagnosis(found: Diagnosis) -> str:
    """What `diagnose` found."""
    parts = []
    for device in found.devices:
        heap = device.heap
        parts.append(line(f"device {device.device}: {device.headline}"))
        rows = [("requested and in use", size(heap.get("requested_bytes"))), ("rounding", size(heap.get("rounding_bytes")))]
        rows += [(f"stranded: {words(part['cause'])}", size(part["bytes"])) for part in heap.get("stranded", [])]
        rows.append(("reserved", size(heap.get("reserved_bytes"))))
        parts.append(table(["where the bytes are", "bytes"], rows))
        parts.append(table(["step", "applies", "finding"], [(words(s["step"]), s["applies"], s["finding"]) for s in device.steps]))
    verdicts = ", ".join(_VERDICTS.get(verdict, words(verdict)) for verdict in found.verdicts)
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
        a: Mapping[str, Any] = device["a"]
        b: Mapping[str, Any] | None = device.get("b")
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


def message(found: MessageDiagnosis) -> str:
    """What `diagnose` found about a message."""
    parts = [code(found.to_try)] if found.to_try else []
    if found.steps:
        rows = [(words(step["step"]), step["applies"], step["finding"]) for step in found.steps]
        parts.append(table(["step", "applies", "finding"], rows))
    return page(found.headline, *parts, *map(line, found.notes))


def replay(found: Replay) -> str:
    """What `replay` found."""
    rows = [
        ("peak allocated", size(found.peak_allocated_bytes)),
        ("peak reserved", size(found.peak_reserved_bytes)),
        ("requests out of memory", found.ooms),
        ("retries", found.retries),
    ]
    under = f"policy {found.policy}" if found.policy else found.settings or "the default settings"
    outcome = _OUTCOMES.get(found.outcome, words(found.outcome))
    return page(f"{found.file} under {under}: {outcome}", table(["", "replayed"], rows), _release(found.made_by))


def export(found: Export) -> str:
    """What `export` wrote."""
    rows = [(device["device"], device["entries"], device["ooms"], size(device["peak_reserved_bytes"])) for device in found.devices]
    return page(f"written to {found.output}", table(["device", "entries", "out of memory", "peak reserved"], rows))


def info(found: Info) -> str:
    """The GPUs."""
    rows = []
    for device in found.devices:
        sizes = [size(device[key]) for key in ("total_bytes", "used_bytes", "free_bytes")]
        rows.append((f"{device['index']}: {device['name'] or '?'}", *sizes, len(device["processes"] or [])))
    return page("GPUs of this machine", table(["GPU", "memory", "used", "free", "processes"], rows))
