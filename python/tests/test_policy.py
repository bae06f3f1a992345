"""`policy=` and `workload=`: the answers of the commands with `--policy`, and the series of a sweep."""

from __future__ import annotations

import csv
import io
import json

import pytest
from conftest import SMALL

import parkade


def answer_of(command, *arguments):
    """What the command prints with `--json`."""
    return json.loads(command(*arguments, "--json").stdout)


@pytest.fixture
def program(request, died):
    """The program of the functions, and the same for the command."""
    return {"recording": ((died,), {}, (died,)), "workload": ((), {"workload": SMALL}, ("-w", SMALL))}[request.param]


@pytest.mark.parametrize("program", ["recording", "workload"], indirect=True)
def test_the_answers_are_those_of_the_commands(program, command, tmp_path):
    given, named, for_command = program
    under = ("--policy", "bfc", "--bounds", "1000", *for_command)
    stats = parkade.stats(*given, **named, policy="bfc", bounds=1000)
    assert stats.data == answer_of(command, "stats", *under)
    assert stats.policy == "bfc" and len(stats.runs) == len(stats.data["devices"]) == 1
    assert stats.runs[0]["packing"]["packing_bytes"] > 0 and "bfc" in str(stats)
    report = parkade.report(*given, **named, policy="bfc", bounds=1000, output=tmp_path / "bfc.html")
    printed = answer_of(command, "report", *under, "--svg", tmp_path / "bfc.svg")
    assert {key: report.data[key] for key in printed} == printed
    assert report.policy == "bfc" and report.svg == (tmp_path / "bfc.svg").read_text("utf-8")
    assert "<html" in (tmp_path / "bfc.html").read_text("utf-8") and "<div" in report._repr_html_()
    exported = parkade.export(*given, output=tmp_path / "bfc.pickle", **named, policy="bfc")
    assert exported.policy == "bfc" and exported.data["devices"][0]["entries"] > 0
    assert parkade.diff(tmp_path / "bfc.pickle").a["file"] == str(tmp_path / "bfc.pickle")
    lifetimes = parkade.stats(*given, **named, lifetimes=True).lifetimes
    assert lifetimes == answer_of(command, "stats", "--lifetimes", *for_command)["lifetimes"]


def test_without_a_policy_there_is_none(died):
    found = parkade.stats(died)
    assert (found.policy, found.runs, found.lifetimes) == (None, [], [])


def test_wrong_programs_are_refused(died, tmp_path):
    for function in (parkade.stats, parkade.report):
        with pytest.raises(parkade.UsageError, match="there is no program"):
            function(policy="bfc")
        with pytest.raises(parkade.UsageError, match="two programs"):
            function(died, workload=SMALL, policy="bfc")
        with pytest.raises(parkade.Error, match="a workload has no recorded run: policy= "):
            function(workload=SMALL)
        with pytest.raises(parkade.Error, match="bfcc"):
            function(died, policy="bfcc")
    with pytest.raises(parkade.UsageError, match="no file to write"):
        parkade.export(died, policy="bfc")


def test_a_sweep_gives_its_series(command, tmp_path):
    pytest.importorskip("pyarrow")
    path = tmp_path / "series.csv"
    policies = "pytorch,bfc:kind=growth/xla-growth"
    swept = command("sweep", "-w", SMALL, "-p", policies, "--bounds", "0", "-c", "1.1", "--series", path)
    assert swept.returncode == 0, swept.stderr
    study = parkade.sweep(SMALL, policies, capacities="1.1")
    series = study.series()
    assert series.csv == path.read_bytes() and repr(series) == f"Series({len(series)} rows)"
    rows, lines = series.rows, list(csv.DictReader(io.StringIO(series.csv.decode())))
    assert len(rows) == len(series) == len(lines) and rows[0]["pool"] is None and rows[0]["live_bytes"] >= 0
    # The points include every peak.
    plenty = {row["policy"]: row["peak_reserved_bytes"] for row in study.rows if row["capacity"] == "plenty"}
    assert set(plenty) == {"pytorch", "bfc", "bfc:kind=xla-growth"}
    for policy, peak in plenty.items():
        assert max(row["reserved_bytes"] for row in rows if row["policy"] == policy and row["pool"] is None) == peak
    table = series.to_arrow()
    assert table.to_pylist() == rows
    series.to_parquet(tmp_path / "series.parquet")
    series.write(tmp_path / "again.csv")
    assert (tmp_path / "again.csv").read_bytes() == series.csv
    import pyarrow
    import pyarrow.parquet

    assert pyarrow.parquet.read_table(tmp_path / "series.parquet") == table == pyarrow.table(series)
    assert pyarrow.table(study) == study.to_arrow()
    assert len(study.series(step=100)) < len(series)
