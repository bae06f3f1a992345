"""The functions about recordings: their answers for a file, for bytes, for a file object and for a dictionary."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import re
import shutil
import sys
import types
import typing
from html import unescape
from pathlib import Path

import pytest
from conftest import RECORDINGS, REPOSITORY

import parkade
from parkade import _results


def test_verify_says_whether_every_decision_is_the_same(died):
    found = parkade.verify(died)
    assert found.exact and found.exit_code == 0 and found.decisions == 14054 and found.ooms == 1
    assert found.data["decisions"] == found.decisions and found.file == died
    # A setting that the run did not have.
    other = parkade.verify(died, settings="max_split_size_mb:32")
    assert not other.exact and other.exit_code == 1 and other.first_mismatch["entry"] > 0


def test_the_same_is_found_however_the_recording_is_given(died, died_bytes, snapshot):
    of_path = parkade.diagnose(died)
    given = {"<bytes>": died_bytes, "<snapshot>": snapshot, "<file>": io.BytesIO(died_bytes)}
    for name, recording in given.items():
        found = parkade.diagnose(recording)
        renamed = json.loads(json.dumps(of_path.data).replace(died, name))
        assert found.file == name and found.data == renamed
    assert parkade.diagnose(Path(died)).data == of_path.data
    assert parkade.diagnose(memoryview(died_bytes)).file == "<bytes>"
    with open(died, "rb") as file:
        assert parkade.diagnose(file).data == of_path.data


def test_advise_recommends_settings():
    found = parkade.advise(RECORDINGS / "gpt2_varlen.limit12_oom.pickle.xz", limit="12GiB")
    assert (found.verdict, found.outcome, found.exit_code) == ("fragmentation", "gets_past", 3)
    assert found.recommendation.line == "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    assert found.options[0].own and len(found.options) > 50


def test_advise_tries_only_what_is_given_if_asked_to(died):
    found = parkade.advise(
        died, settings=["max_split_size_mb:64", "expandable_segments:True"], only=True, capacity=16 << 30
    )
    assert {option.settings for option in found.options} >= {"max_split_size_mb:64", "expandable_segments:True"}
    assert len(found.options) <= 3 and found.capacity_bytes == 16 << 30


def test_diagnose_says_where_the_bytes_are(died):
    device = parkade.diagnose(died, limit="5GiB").devices[0]
    assert device.verdict == "fragmentation" and device.heap["reserved_bytes"] > device.heap["allocated_bytes"]
    assert device.fences and device.headline.startswith("fragmentation")


def test_report_has_a_picture_and_writes_a_page(died, tmp_path):
    page = tmp_path / "report.html"
    found = parkade.report(died, page, settings="expandable_segments:True")
    assert found.svg.startswith("<svg") and found.output == str(page) and "<html" in page.read_text("utf-8")
    with pytest.raises(parkade.Error, match="force"):
        parkade.report(died, page)


def test_diff_checks_bounds(died, snapshot):
    alone = parkade.diff(died, fail_above="5GiB")
    assert not alone.exceeded and alone.b is None and alone.exit_code == 3, "the run died"
    assert parkade.diff(died, fail_above=["4GiB"]).exit_code == 1
    assert [check["check"] for check in alone.checks] == ["not_known"] and "not known" in alone._repr_html_()
    both = parkade.diff(died, snapshot)
    assert both.b["file"] == "<snapshot>" and both.devices[0]["comparison"]["relation"] == "same_recording"


def test_stats_are_those_of_pytorch():
    recorded = json.loads((RECORDINGS / "deep_mlp.default.stats.json").read_text())
    found = parkade.stats(RECORDINGS / "deep_mlp.default.pickle.xz").memory_stats
    same = [key for key in found if found[key] == recorded.get(key)]
    assert len(found) == 122 and len(same) > 100
    moments = parkade.stats(RECORDINGS / "deep_mlp.default.pickle.xz", every=1000).devices[0]["moments"]
    assert [moment["entry"] for moment in moments] == [999, 1315]


@pytest.mark.parametrize("name", ["verify", "advise", "diagnose", "report", "diff", "stats"])
def test_every_result_is_shown_in_notebooks_without_trusting_names(name, died_bytes, tmp_path):
    path = tmp_path / "<script>alert(1).pickle"
    path.write_bytes(died_bytes)
    html = getattr(parkade, name)(path)._repr_html_()
    assert html.startswith("<div") and html.endswith("</div>") and "<script" not in html
    assert "&lt;script" in html or name in ("verify", "stats"), "these do not name the file"
    assert html.count("<div") == html.count("</div>") and html.count("<td") == html.count("</td>")
    assert len(html) < 100_000 and "color:#" not in html.replace("background:#fff", "")


SECTIONS = {
    parkade.Verification: "verify",
    parkade.Advice: "advise",
    parkade.Diagnosis: "diagnose",
    parkade.Report: "report",
    parkade.SimulatedReport: "report --policy",
    parkade.Difference: "diff",
    parkade.Stats: "stats",
    parkade.SimulatedStats: "stats --policy",
    parkade.Lifetimes: "stats --lifetimes",
    parkade.MessageDiagnosis: "diagnose --message",
    parkade.Replay: "replay",
    parkade.Export: "export",
    parkade.SimulatedExport: "export --policy",
    parkade.LargestBatches: "sweep --largest-batch",
    parkade.Catalogue: "sweep --list",
    parkade.Info: "info",
}


def documented(section: str) -> set[str]:
    """The keys at the top of a section of docs/json.md."""
    page = (REPOSITORY / "docs" / "json.md").read_text("utf-8")
    part = page.split(f"\n## {section}\n")[1].split("\n## ")[0]
    return {key for key in re.findall(r"^\| `([^`]+)`", part, re.MULTILINE) if not re.search(r"[.\[]", key)}


@pytest.mark.parametrize("kind", SECTIONS, ids=SECTIONS.values())
def test_fields_are_the_documented_keys(kind):
    own = {"exit_code", "data", "text", "html", "svg"}
    own |= {"output"} if kind in (parkade.Report, parkade.SimulatedReport) else set()
    fields = {field.name for field in dataclasses.fields(kind)}
    left_to_data = {"statistics"}
    assert fields - own <= documented(SECTIONS[kind])
    assert documented(SECTIONS[kind]) - fields <= left_to_data


TRIED = "expandable_segments:True gets past, 0 of 16 similar runs completed"


def test_results_are_texts_and_lines_and_have_a_hash(died, command):
    for name in ("verify", "advise", "diagnose", "diff", "report", "stats", "replay"):
        found = getattr(parkade, name)(died)
        assert (
            len(repr(found)) < 400 and "\n" not in repr(found) and repr(found).startswith(type(found).__name__ + "(")
        ), repr(found)
        again = getattr(parkade, name)(died)
        assert hash(found) == hash(again) or {**found.data, "seconds": 0} == {**again.data, "seconds": 0}
        printed = command(name, died).stdout.decode()
        numbers = re.compile(r"\b\d+\.\d+ m?s\b|\b\d+\.\d\d$", re.MULTILINE)
        if name != "report":
            # The same lines, without hints on other options.
            lines = [line for line in numbers.sub("", printed).splitlines() if not line.startswith("--all ")]
            assert [line.replace("--limit", "limit=") for line in lines] == numbers.sub("", str(found)).splitlines()
    rows = str(parkade.stats(died, every=5000))
    assert rows == command("stats", died, "--every", "5000").stdout.decode().rstrip()
    advice = parkade.advise(died)
    assert repr(advice) == f"Advice('resnet50_sweep.limit5_oom.pickle.xz': fragmentation, {TRIED})"
    assert repr(parkade.advise(died, limit="12GiB")) == "Advice('resnet50_sweep.limit5_oom.pickle.xz': fits)"
    assert all(len(repr(part)) < 200 for part in (*advice.options, advice.recommendation) if part is not None)
    assert set(advice.options)


def test_advice_is_applied(died, monkeypatch):
    found = parkade.advise(RECORDINGS / "gpt2_varlen.limit12_oom.pickle.xz", limit="12GiB")
    assert found.line == "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    assert repr(found) == f"Advice('gpt2_varlen.limit12_oom.pickle.xz': fragmentation, {TRIED})"
    assert found.as_env() == {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "")
    set_before = []
    torch = types.SimpleNamespace(
        cuda=types.SimpleNamespace(is_initialized=lambda: False, memory=types.SimpleNamespace())
    )
    torch.cuda.memory._set_allocator_settings = set_before.append
    monkeypatch.setitem(sys.modules, "torch", torch)
    found.apply()
    assert os.environ["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True" and set_before == [
        "expandable_segments:True"
    ]
    torch.cuda.is_initialized = lambda: True
    with pytest.raises(parkade.Error, match="CUDA was used before"):
        found.apply()
    nothing = parkade.Advice(file="run.pickle", verdict="capacity", outcome="does_not_fit")
    assert repr(nothing) == "Advice('run.pickle': capacity, no settings help)"
    assert nothing.line is None and nothing.as_env() == {}
    with pytest.raises(parkade.Error, match="capacity"):
        nothing.apply()


MESSAGE = (
    "CUDA out of memory. Tried to allocate 4.88 GiB (GPU 2; 39.59 GiB total capacity; 28.60 GiB already allocated; "
    "3.92 GiB free; 33.95 GiB reserved in total by PyTorch)"
)


def test_a_message_is_diagnosed_and_an_exception_is_explained():
    found = parkade.diagnose(message=MESSAGE)
    assert (
        found.verdict == "fragmentation"
        and found.tried["bytes"] > 4 << 30
        and found.headline in " ".join(str(found).split())
    )
    try:
        try:
            raise RuntimeError(MESSAGE)
        except RuntimeError as error:
            raise ValueError("the step failed") from error
    except ValueError as error:
        assert parkade.explain(error).data == found.data == parkade.explain(MESSAGE).data
    assert "<div" in found._repr_html_() and repr(found).startswith("MessageDiagnosis(verdict='fragmentation'")
    with pytest.raises(parkade.UsageError, match="cannot be combined"):
        parkade.diagnose(message=MESSAGE, limit="5GiB")
    for wrong in ("", "-"):
        with pytest.raises(parkade.UsageError, match="message is"):
            parkade.diagnose(message=wrong)
    with pytest.raises(parkade.UsageError, match="nothing to diagnose"):
        parkade.diagnose()
    with pytest.raises(parkade.Error):
        parkade.explain(ZeroDivisionError("division by zero"))


def test_explain_and_diagnose_name_each_other(died, tmp_path):
    with pytest.raises(parkade.Error, match=re.escape(f"parkade.diagnose({died!r}) explains it")):
        parkade.explain(died)
    with pytest.raises(TypeError, match="parkade.diagnose.recording. explains a recording"):
        parkade.explain(Path(died))
    with pytest.raises(TypeError, match="parkade.explain.error. explains an exception"):
        parkade.diagnose(RuntimeError(MESSAGE))
    log = tmp_path / "train.log"
    log.write_text(f"step 1\n{MESSAGE}\n")
    assert parkade.explain(str(log)).verdict == parkade.diagnose(message=str(log)).verdict == "fragmentation"
    is_log = re.escape(f"{log} is a log: parkade.diagnose(message={str(log)!r}) explains")
    with pytest.raises(parkade.UsageError, match=is_log):
        parkade.diagnose(log)
    with pytest.raises(parkade.Error, match=re.escape(f'call parkade.diagnose(message="{log}")')):
        parkade.verify(log)
    (found,) = parkade.diagnose_many(log)
    assert isinstance(found, parkade.Error) and re.match(is_log, str(found))


def test_replay_and_export_and_info(died, tmp_path):
    found = parkade.replay(died, settings={"expandable_segments": True}, capacity=16 << 30)
    assert (
        found.settings == "expandable_segments:True"
        and found.outcome in ("fits", "gets_past")
        and found.peak_reserved_bytes > 0
    )
    policy = parkade.replay(died, policy="compaction", limit="16GiB")
    assert policy.policy == "compaction" and policy.settings is None and "compaction" in policy._repr_html_()
    written = parkade.export(died, tmp_path / "other.pickle", settings="expandable_segments:True")
    assert written.output == str(tmp_path / "other.pickle") and parkade.verify(tmp_path / "other.pickle").decisions > 0
    with pytest.raises(parkade.Error, match="force=True"):
        parkade.export(died, tmp_path / "other.pickle")
    try:
        gpus = parkade.info()
    except parkade.Error as error:
        assert str(error)
    else:
        assert gpus.devices


def test_a_report_named_as_a_picture_is_one(died, tmp_path):
    found = parkade.report(died, tmp_path / "report.svg")
    assert (tmp_path / "report.svg").read_text("utf-8").startswith("<svg") and found.output == str(
        tmp_path / "report.svg"
    )
    with pytest.raises(parkade.Error, match="force=True"):
        parkade.report(died, tmp_path / "report.svg")
    parkade.report(died, tmp_path / "report.svg", force=True)
    with pytest.raises(parkade.UsageError, match="png"):
        parkade.report(died, tmp_path / "report.png")


def test_a_notebook_sees_what_the_line_costs_and_may_break():
    advice = parkade.advise(RECORDINGS / "gpt2_varlen.limit12_oom.pickle.xz", limit="12GiB")
    html = unescape(advice._repr_html_())
    chosen = advice.recommendation
    for text in (
        chosen.why,
        chosen.costs,
        *(caution["what"] for caution in chosen.cautions if caution["severity"] != "no effect"),
    ):
        assert text in html
    assert "fragmentation" in html and "similar runs in tests" in html and "<details>" in html, (
        "everything is there, folded"
    )
    assert "--all" not in html, "a notebook has no command line"
    assert "gets_past" not in html and "private_pools" not in html, "no names of keys"
    diagnosis = parkade.diagnose(RECORDINGS / "gpt2_varlen.limit12_oom.pickle.xz")._repr_html_()
    findings = re.findall(r'text-align:(\w+)">([^<]{60,})', diagnosis)
    assert findings and {side for side, _ in findings} == {"left"}, "sentences"


def test_progress_is_told_and_may_end_the_work(died):
    told = []
    parkade.advise(died, progress=lambda done, of, what: told.append((done, of, what)))
    assert all(done <= of and what in ("entries", "settings") for done, of, what in told)

    class Enough(Exception):
        pass

    def enough(*_):
        raise Enough

    with pytest.raises(Enough):
        # Long enough for progress to be reported.
        parkade.advise(RECORDINGS / "gpt2_varlen.default.pickle.xz", progress=enough)


def test_a_bar_is_drawn_if_asked_for(capsys):
    parkade.advise(RECORDINGS / "gpt2_varlen.default.pickle.xz", progress=True)
    shown = capsys.readouterr().err
    assert " of " in shown and shown.endswith("\r")
    parkade.verify(RECORDINGS / "deep_mlp.default.pickle.xz")
    assert capsys.readouterr().err == "", "nobody would see it"


def test_the_types_of_results_are_found_when_the_program_runs():
    for name in parkade.__all__:
        kind = getattr(parkade, name)
        if isinstance(kind, type) and issubclass(kind, _results.Result):
            hints = typing.get_type_hints(kind)
            assert hints["exit_code"] is int and set(hints) >= {field.name for field in dataclasses.fields(kind)}
    assert typing.get_type_hints(parkade.Advice)["recommendation"] == _results.Recommendation | None


def test_a_difference_names_its_files(died, snapshot):
    assert repr(parkade.diff(died)).startswith(f"Difference(a={died!r}, exceeded=False, ")
    assert repr(parkade.diff(died, snapshot)).startswith(f"Difference(a={died!r}, b='<snapshot>', exceeded=False, ")


def test_a_folder_with_one_recording_is_that_recording(died, tmp_path):
    folder = tmp_path / "snapshots"
    folder.mkdir()
    shutil.copy(died, folder / "rank0.pickle")
    assert parkade.verify(folder).file == str(folder / "rank0.pickle")
    shutil.copy(died, folder / "rank1.pickle")
    with pytest.raises(IsADirectoryError, match="a folder with 2 recordings.*parkade advise FOLDER"):
        parkade.advise(folder)
