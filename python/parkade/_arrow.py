"""Converts results to Arrow tables and Parquet files. Nothing else imports pyarrow."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ._errors import Error

#: The columns of a sweep that do not hold whole numbers.
_SWEEP = {
    "fits": "bool",
    "is_fault": "bool",
    **dict.fromkeys(["workload", "policy", "capacity", "hash", "problem", "program"], "string"),
}

#: The columns of a device's diagnosis: the path of the value in the device's JSON object, and its type.
_DEVICE = {
    "device": (("device",), "int64"),
    "verdict": (("verdict",), "string"),
    "moment": (("moment",), "string"),
    "question": (("question",), "string"),
    "entry": (("entry",), "int64"),
    "time_us": (("time_us",), "int64"),
    "headline": (("headline",), "string"),
    "ending": (("ending",), "string"),
    "requested_bytes": (("request", "requested_bytes"), "int64"),
    "needed_bytes": (("needed_bytes",), "int64"),
    "short_bytes": (("short_bytes",), "int64"),
    "unreserved_bytes": (("unreserved_bytes",), "int64"),
    "reserved_bytes": (("heap", "reserved_bytes"), "int64"),
    "allocated_bytes": (("heap", "allocated_bytes"), "int64"),
    "stranded_bytes": (("heap", "stranded_bytes"), "int64"),
    "largest_hole_bytes": (("heap", "largest_hole_bytes"), "int64"),
    "peak_allocated_bytes": (("peaks", "allocated_bytes"), "int64"),
    "peak_reserved_bytes": (("peaks", "reserved_bytes"), "int64"),
    "ooms": (("ooms",), "int64"),
    "retries": (("retries",), "int64"),
    "mismatches": (("exactness", "mismatches"), "int64"),
}

#: The columns that all devices of a file share.
_FILE = {"file": "string", "error": "string", "settings": "string", "profile": "string", "limit_bytes": "int64"}


def rows(found: list[dict[str, Any]]) -> Any:
    """Returns a table of a sweep's rows."""
    names = found[0] if found else {}
    return _table(found, {name: _SWEEP.get(name, "int64") for name in names})


def series(csv: bytes) -> Any:
    """Returns a table of a sweep's series."""
    pyarrow = _pyarrow()
    from pyarrow.csv import ConvertOptions, read_csv

    names = csv.split(b"\n", 1)[0].decode().split(",")
    texts = ("workload", "policy", "collection")
    types = {name: pyarrow.string() if name in texts else pyarrow.int64() for name in names}
    options = ConvertOptions(column_types=types, null_values=[""], strings_can_be_null=True)
    return read_csv(pyarrow.BufferReader(csv), convert_options=options)


def diagnoses(found: Iterable[dict[str, Any]]) -> Any:
    """Returns a table with a row for each device of each file."""
    flat = []
    for file in found:
        common = {name: file.get(name) for name in _FILE}
        devices = file.get("devices") or [{}]
        flat += [{**common, **{name: _at(device, path) for name, (path, _) in _DEVICE.items()}} for device in devices]
    return _table(flat, {**_FILE, **{name: kind for name, (_, kind) in _DEVICE.items()}})


def write(table: Any, path: Any) -> None:
    """Writes a table to a Parquet file."""
    _pyarrow()
    import pyarrow.parquet

    pyarrow.parquet.write_table(table, path)


def _at(value: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _table(found: list[dict[str, Any]], kinds: dict[str, str]) -> Any:
    pyarrow = _pyarrow()
    types = {"string": pyarrow.string(), "int64": pyarrow.int64(), "bool": pyarrow.bool_()}
    return pyarrow.Table.from_pylist(
        found, schema=pyarrow.schema([(name, types[kind]) for name, kind in kinds.items()])
    )


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError:
        raise Error("tables need pyarrow: pip install pyarrow") from None
    return pyarrow
