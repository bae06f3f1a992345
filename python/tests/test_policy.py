"""`policy=` and `workload=`: the answers of the commands with `--policy`; the answers and the series of a sweep."""

from __future__ import annotations

import csv
import io
import json
from fractions import Fraction
from pathlib import Path

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
    assert isinstance(stats, parkade.SimulatedStats) and stats.data == answer_of(command, "stats", *under)
    assert stats.policy == "bfc" and len(stats.runs) == len(stats.devices) == 1 and stats.program == request_of(given)
    assert stats.runs[0]["packing"]["packing_bytes"] > 0 and "bfc" in str(stats)
    assert stats.fits and stats.peak_reserved_bytes == stats.runs[0]["peak_reserved_bytes"]
    assert stats.memory_stats["reserved_bytes.all.peak"] == stats.peak_reserved_bytes
    assert repr(stats).startswith("SimulatedStats(file=") and "policy='bfc', fits=True" in repr(stats)
    report = parkade.report(*given, **named, policy="bfc", bounds=1000, output=tmp_path / "bfc.html")
    printed = answer_of(command, "report", *under, "--svg", tmp_path / "bfc.svg")
    assert isinstance(report, parkade.SimulatedReport) and report.data == printed
    assert report.devices[0]["packing"]["steps"] == stats.runs[0]["packing"]["steps"]
    assert report.policy == "bfc" and report.svg == (tmp_path / "bfc.svg").read_text("utf-8")
    assert "<html" in (tmp_path / "bfc.html").read_text("utf-8") and "<div" in report._repr_html_()
    exported = parkade.export(*given, output=tmp_path / "bfc.pickle", **named, policy="bfc")
    assert isinstance(exported, parkade.SimulatedExport) and exported.policy == "bfc"
    assert exported.devices[0]["entries"] > 0 and exported.events > 0 and "bfc" in repr(exported)
    assert parkade.diff(tmp_path / "bfc.pickle").a["file"] == str(tmp_path / "bfc.pickle")
    lives = parkade.stats(*given, **named, lifetimes=True)
    assert isinstance(lives, parkade.Lifetimes) and "<div" in lives._repr_html_()
    assert lives.lifetimes == answer_of(command, "stats", "--lifetimes", *for_command)["lifetimes"]
    assert len({stats, report, exported, lives}) == 4, "they have hashes"


def request_of(given):
    return "recording" if given else "workload"


def test_without_a_policy_the_result_is_about_the_recorded_run(died, tmp_path):
    results = (parkade.stats(died), parkade.report(died), parkade.export(died, tmp_path / "run.pickle"))
    assert [type(found).__name__ for found in results] == ["Stats", "Report", "Export"]
    assert [found.policy for found in results] == [None] * 3


def test_the_requests_of_a_workload_have_no_policy(tmp_path):
    found = parkade.export(output=tmp_path / "trace.jsonl", workload=SMALL, format="requests")
    assert isinstance(found, parkade.SimulatedExport) and found.policy is None and found.events > 0
    under = parkade.stats(tmp_path / "trace.jsonl", policy="pytorch", bounds=0)
    assert under.program == "trace" and under.runs[0]["packing"] is None


def test_wrong_programs_are_refused(died, tmp_path):
    for function in (parkade.stats, parkade.report):
        with pytest.raises(parkade.UsageError, match="there is no program"):
            function(policy="bfc")
        with pytest.raises(parkade.UsageError, match="two programs"):
            function(died, workload=SMALL, policy="bfc")
        with pytest.raises(parkade.UsageError, match="a workload has no recorded run: policy=NAME chooses"):
            function(workload=SMALL)
        with pytest.raises(parkade.UsageError, match="settings= cannot be combined with the policy bfc"):
            function(died, policy="bfc", settings="expandable_segments:True")
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
    assert {row["collection"] for row in rows if row["policy"] == "pytorch"} == {None, "small", "large"}
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


def test_a_sweep_takes_what_the_command_takes(command, tmp_path):
    options = ("-w", SMALL, "-p", "pytorch,bfc", "-c", "1.1", "--precision", "1/1000", "--bounds", "1000")
    swept = command("sweep", *options, "--baseline", "bfc", "-o", tmp_path / "rows.jsonl", "--json")
    assert swept.returncode == 0, swept.stderr
    found = parkade.sweep(SMALL, "pytorch,bfc", 1.1, precision=1 / 1000, bounds=1000, baseline="bfc")
    found.write(tmp_path / "again.jsonl")
    assert (tmp_path / "again.jsonl").read_bytes() == (tmp_path / "rows.jsonl").read_bytes()
    assert found.summary == json.loads(swept.stdout)
    assert found.summary["plan"]["precision"] == "1/1000" and found.summary["baseline"] == "bfc"
    assert found.summary["bounds"][0]["packing_over_load"]["n"] == 1
    text = command("sweep", *options, "--baseline", "bfc", "-o", tmp_path / "rows.jsonl").stdout.decode()
    lines = [line for line in text.splitlines() if not line.startswith("--all shows")]
    assert str(found).splitlines() == lines and "bfc" in found._repr_html_()
    found.write_html(tmp_path / "study.html")
    assert "<html" in (tmp_path / "study.html").read_text("utf-8")
    with pytest.raises(parkade.Error, match="study.html already exists: force=True overwrites it"):
        found.write_html(tmp_path / "study.html")
    # Each gives the same rows.
    for precision in ("1/1000", Fraction(1, 1000)):
        assert parkade.sweep(SMALL, "pytorch,bfc", "1.1", precision=precision).lines == found.lines
    assert parkade.sweep(SMALL, "pytorch", "1.1").summary["bounds"][0]["packing_over_load"] is None


def test_wrong_arguments_of_a_sweep_are_refused_before_the_work(tmp_path):
    for wrong, said in [
        ({"precision": 0.3}, "precision='3/10': .* is not a part of LOAD"),
        ({"precision": 0}, "precision=0: .* is not a part of LOAD"),
        ({"baseline": "bfc"}, "baseline='bfc' is not one of the policies"),
        ({"bounds": -1}, "bounds=-1: it must not be negative"),
        ({"prealloc": -1.0}, "prealloc='-1.0': .* is not a factor"),
        ({"seeds": 0}, "seeds=0 leaves nothing to do"),
        ({"capacities": []}, "capacities is an empty list"),
        ({"capacities": "x"}, "is not a size"),
        ({"addresses": "nowhere"}, "no address model"),
    ]:
        with pytest.raises(parkade.UsageError, match=said):
            parkade.sweep(SMALL, "pytorch", **{"output": tmp_path / "rows.jsonl", **wrong})
        assert not (tmp_path / "rows.jsonl").exists()
    with pytest.raises(TypeError, match="precision must be a part of LOAD"):
        parkade.sweep(SMALL, "pytorch", precision=[1])
    with pytest.raises(TypeError, match="workloads must be text, a path or a list"):
        parkade.sweep(3)
    with pytest.raises(TypeError, match="executor must be"):
        parkade.sweep(SMALL, "pytorch", executor=3)


def test_a_recording_is_a_workload_by_its_path(died):
    rows = parkade.sweep(Path(died), "pytorch", [1.1]).rows
    assert (
        rows[0]["workload"] == "resnet50_sweep.limit5_oom" and parkade.sweep([Path(died)], "pytorch", 1.1).rows == rows
    )


def test_the_catalogue_and_the_largest_batch_are_those_of_the_command(command):
    known = parkade.catalogue()
    assert known.data == answer_of(command, "sweep", "--list")
    assert "gpt2" in {workload["name"] for workload in known.workloads} and "gpt2" in str(known)
    assert "bfc" in {policy["name"] for policy in known.policies} and repr(known).startswith("Catalogue(workloads=")
    tiny = "transformer:layers=2,hidden=64,heads=2,vocabulary=100,sequence=64,steps=2"
    found = parkade.largest_batch(tiny, "pytorch", "64MiB", most_batch=8, context=0)
    options = ("--largest-batch", "-w", tiny, "-p", "pytorch", "-c", "64MiB", "--most-batch", "8", "--context", "0")
    assert found.data == answer_of(command, "sweep", *options)
    assert found.points[0]["batch"] > 0 and repr(found) == "LargestBatches(points=1, most_batch=8)"
