"""The functions about recordings: what they answer, on a file, on bytes, on a file object and on a dictionary."""

from __future__ import annotations

import dataclasses
import io
import json
import re
from pathlib import Path

import pytest
from conftest import RECORDINGS, REPOSITORY

import parkade


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
    found = parkade.advise(died, settings=["max_split_size_mb:64", "expandable_segments:True"], only=True, capacity=16 << 30)
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
    assert html.startswith("<div") and html.endswith("</div>") and "<script" not in html and "&lt;script" in html
    assert html.count("<div") == html.count("</div>") and html.count("<td") == html.count("</td>")
    assert len(html) < 100_000 and "color:#" not in html.replace("background:#fff", "")


SECTIONS = {
    parkade.Verification: "verify",
    parkade.Advice: "advise",
    parkade.Diagnosis: "diagnose",
    parkade.Report: "report",
    parkade.Difference: "diff",
    parkade.Stats: "stats",
}


def documented(section: str) -> set[str]:
    """The keys at the top of a section of docs/json.md."""
    page = (REPOSITORY / "docs" / "json.md").read_text("utf-8")
    part = page.split(f"\n## {section}\n")[1].split("\n## ")[0]
    return {key for key in re.findall(r"^\| `([^`]+)`", part, re.MULTILINE) if not re.search(r"[.\[]", key)}


@pytest.mark.parametrize("kind", SECTIONS, ids=SECTIONS.values())
def test_fields_are_the_documented_keys(kind):
    own = {"exit_code", "data", "svg", "output"}
    fields = {field.name for field in dataclasses.fields(kind)}
    left_to_data = {"statistics"}
    assert fields - own <= documented(SECTIONS[kind])
    assert documented(SECTIONS[kind]) - fields <= left_to_data


def test_progress_is_told_and_may_end_the_work(died):
    told = []
    parkade.advise(died, progress=lambda done, of, what: told.append((done, of, what)))
    assert all(done <= of and what in ("entries", "settings") for done, of, what in told)

    class Enough(Exception):
        pass

    def enough(*_):
        raise Enough

    with pytest.raises(Enough):
        # Long enough to be asked about.
        parkade.advise(RECORDINGS / "gpt2_varlen.default.pickle.xz", progress=enough)


def test_a_bar_is_drawn_if_asked_for(capsys):
    parkade.advise(RECORDINGS / "gpt2_varlen.default.pickle.xz", progress=True)
    shown = capsys.readouterr().err
    assert " of " in shown and shown.endswith("\r")
    parkade.verify(RECORDINGS / "deep_mlp.default.pickle.xz")
    assert capsys.readouterr().err == "", "nobody would see it"
