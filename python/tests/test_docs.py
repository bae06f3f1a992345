"""The examples of docs/python.md run as they are written."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys

import pytest
from conftest import RECORDINGS, REPOSITORY, SMALL

PAGE = (REPOSITORY / "docs" / "python.md").read_text("utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The files that the examples name."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "snapshots").mkdir()
    for name in ["snapshot.pickle", "after.pickle", "snapshots/rank0.pickle", "snapshots/rank1.pickle"]:
        # Whatever its name, its contents show how it is compressed.
        shutil.copy(RECORDINGS / "resnet50_sweep.limit5_oom.pickle.xz", tmp_path / name)
    shutil.copy(RECORDINGS / "resnet50_sweep.default.pickle.xz", tmp_path / "before.pickle")
    return tmp_path


class Writer:
    """Like TensorBoard's, with only the method that is used."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        assert tag.startswith("parkade/") and global_step >= 0 and scalar_value >= 0


def small(example: str) -> str:
    """The example, with a program that takes a while."""
    return example.replace('"all,snapshot.pickle"', repr(SMALL))


def runs(example: str) -> bool:
    return not any(
        name in example for name in ("parkade.enable", "parkade.on_oom", "callback(", "@pytest.mark", "dask")
    )


def test_there_are_examples():
    assert len(EXAMPLES) >= 8 and sum(map(runs, EXAMPLES)) >= 6


@pytest.mark.parametrize("example", [example for example in EXAMPLES if runs(example)])
def test_the_example_runs(example, folder, fake_cuda, capsys):
    names = {"train": lambda: None, "train_step": lambda batch: None, "loader": range(10), "writer": Writer()}
    if "parquet" in example:
        pytest.importorskip("pyarrow")
    exec(compile(small(example), "docs/python.md", "exec"), names)


def test_the_example_of_dask_runs(folder):
    pytest.importorskip("distributed")
    (example,) = (example for example in EXAMPLES if "dask" in example)
    (folder / "example.py").write_text(small(example))
    subprocess.run([sys.executable, "example.py"], cwd=folder, check=True, timeout=300)
    assert (folder / "rows.jsonl").stat().st_size > 0


def test_the_example_of_job_arrays_runs(folder, command):
    (script,) = re.findall(r"^```bash\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    (line,) = (line for line in script.splitlines() if line.startswith("parkade "))
    for task in ("1", "2"):
        filled = line.replace("$SLURM_ARRAY_TASK_ID", task).replace("/32", "/2").replace('"', "").split()
        arguments = [SMALL if word == "all" else word for word in filled[1:]]
        assert command(*arguments, "-p", "pytorch").returncode == 0
    merged = command("merge", "part1.jsonl", "part2.jsonl", "-o", "rows.jsonl", "--html", "study.html")
    assert merged.returncode == 0 and (folder / "study.html").exists()


def test_functions_of_the_page_are_there():
    import parkade

    for name in re.findall(r"parkade\.([a-zA-Z_]+)", PAGE):
        assert name in parkade.__all__ or name in ("sh", "md"), name


def test_no_program_hides_a_module_of_python():
    """For a program that is started, its folder precedes Python's own modules."""
    names = {path.stem for path in (REPOSITORY / "benches").glob("*.py")}
    assert names and not names & sys.stdlib_module_names
