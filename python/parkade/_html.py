"""Tables and pictures for notebooks, for results that no command prints as a single answer.

They are small, have no scripts, and use the colours of the surrounding page.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._results import Report, SimulatedReport

#: Half-transparent grey is visible on white and on black.
_LINE = "1px solid rgba(128,128,128,.4)"
#: The number of rows that a table shows.
_ROWS = 12
#: A right-aligned cell: a number with its unit.
_NUMBER = re.compile(r"-?\d[\d,.]*(?: ?(?:bytes?|[KMGT]iB|%))?|\?|")


def size(amount: int | None) -> str:
    """Returns a number of bytes as the command `parkade` prints it."""
    if amount is None:
        return "?"
    sign, rest = ("-", -amount) if amount < 0 else ("", amount)
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        # A value that would be rounded up to 1024 is 1 in the next unit.
        if rest >= factor - factor // 2048:
            return f"{sign}{rest / factor:.2f} {unit}"
    return f"{sign}{rest} {'byte' if rest == 1 else 'bytes'}"


def page(title: str, *parts: str) -> str:
    """Returns a frame around the parts."""
    body = "".join(parts)
    style = f"border:{_LINE};border-radius:4px;padding:.6em .9em;max-width:70em"
    return f'<div style="{style}"><b>{escape(title)}</b>{body}</div>'


def line(text: object) -> str:
    """Returns a paragraph."""
    return f'<div style="margin-top:.4em">{escape(str(text))}</div>'


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Returns a table with columns of numbers right-aligned and the others left-aligned. Rows beyond a dozen are only
    counted."""
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


def report(found: Report | SimulatedReport) -> str:
    """Returns what `report` shows."""
    parts = [line(f"device {device['device']}: {device['what_happened']}") for device in found.devices]
    if found.svg:
        # Embedded as an image, so that nothing in it becomes part of the page around it.
        picture = base64.b64encode(found.svg.encode()).decode()
        source = f"data:image/svg+xml;base64,{picture}"
        parts.append(f'<img alt="memory over time" style="max-width:100%;background:#fff" src="{source}">')
    if found.output:
        parts.append(line(f"the page is in {found.output}"))
    return page(found.file, *parts)
