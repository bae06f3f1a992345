"""Many recordings and studies, on threads, processes and Dask: the same bytes as on one machine, even if workers are
killed.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import time
import warnings
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import pytest
from conftest import RECORDINGS, SMALL

import parkade
from parkade import _executors

POLICIES = "pytorch,pytorch-expandable,best-fit-remap"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Ranks, one of which cannot be read."""
    folder = tmp_path_factory.mktemp("ranks")
    for rank, name in enumerate(["deep_mlp.default", "prefetch_streams.limit6", "resnet50_sweep.limit5_oom"]):
        shutil.copy(RECORDINGS / f"{name}.pickle.xz", folder / f"rank{rank}.pickle.xz")
    (folder / "rank10.pickle").write_bytes(b"\x80\x04damaged")
    return folder


@pytest.fixture(scope="module")
def of_one_machine(folder, command):
    """Returns the command's output for each of them."""
    lines = command("diagnose", folder, "--json").stdout.splitlines(keepends=True)
    # The last is about all ranks together.
    assert "ranks" in json.loads(lines[-1])
    return lines[:-1]


@pytest.fixture(scope="module")
def rows_of_one_machine(command, tmp_path_factory):
    """The file that the command writes."""
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    ran = command("sweep", "-w", SMALL, "-p", POLICIES, "--seeds", "2", "--bounds", "0", "-o", path)
    assert ran.returncode == 0, ran.stderr
    return path.read_bytes()


def spawned(workers=2):
    return ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))


def test_a_folder_is_diagnosed_as_by_the_command(folder, of_one_machine):
    found = parkade.diagnose_many(folder)
    assert found.lines == of_one_machine and len(found) == 4
    results = list(found)
    assert [type(result) for result in results[:3]] == [parkade.Diagnosis] * 3 and isinstance(results[3], parkade.Error)
    assert "rank10.pickle" in str(results[3]) and results[2].devices[0].verdict == "fragmentation"
    assert "rank10.pickle" in found._repr_html_()


def test_many_diagnoses_are_the_text_of_the_command(folder, command):
    found = parkade.diagnose_many(folder)
    assert str(found) == command("diagnose", folder).stdout.decode().rstrip()
    assert str(found[:1]) == command("diagnose", json.loads(found.lines[0])["file"]).stdout.decode().rstrip()
    assert repr(found) == "Diagnoses(4 files, 1 of which could not be diagnosed)"


def test_the_executor_changes_nothing(folder, of_one_machine):
    with spawned() as processes:
        assert parkade.diagnose_many([folder], executor=processes).lines == of_one_machine
    with ThreadPoolExecutor(3) as threads:
        # By name, rank10 comes before rank2.
        assert parkade.diagnose_many(sorted(folder.iterdir()), executor=threads).lines == [
            of_one_machine[at] for at in (0, 1, 3, 2)
        ]


def test_wrong_arguments_are_not_taken_for_bad_files(folder):
    with pytest.raises(parkade.UsageError, match="apples"):
        parkade.diagnose_many(folder, limit="5 apples")


def test_nothing_is_something_too():
    assert len(parkade.diagnose_many([])) == 0
    with pytest.raises(TypeError, match="paths must be text, a path or a list"):
        parkade.diagnose_many(3)


def test_a_sweep_is_that_of_one_machine(rows_of_one_machine, tmp_path):
    for executor in (None, spawned, lambda: ThreadPoolExecutor(2)):
        found = parkade.sweep(SMALL, POLICIES, seeds=2, executor=executor, jobs_per_task=3, output=tmp_path / "rows")
        assert (tmp_path / "rows").read_bytes() == rows_of_one_machine
        found.write(tmp_path / "again")
        assert (tmp_path / "again").read_bytes() == rows_of_one_machine and len(found) == len(found.rows)
        os.remove(tmp_path / "rows")


def test_a_sweep_is_continued(rows_of_one_machine, tmp_path, command):
    path = tmp_path / "rows.jsonl"
    for kept in (0, 10, len(rows_of_one_machine) // 2, len(rows_of_one_machine)):
        path.write_bytes(rows_of_one_machine[:kept])
        if 0 < kept < rows_of_one_machine.index(b"\n"):
            # If the file is cut within the first line, there is nothing to continue.
            path.write_bytes(b"")
        found = parkade.sweep(SMALL, POLICIES.split(","), seeds=2, output=path)
        assert path.read_bytes() == rows_of_one_machine == found.header + b"".join(found.lines)
    with pytest.raises(parkade.Error, match="a different sweep"):
        parkade.sweep(SMALL, "pytorch", output=path)
    older = rows_of_one_machine.replace(b'"program":"', b'"program":"0-')
    path.write_bytes(older)
    with pytest.raises(parkade.Error, match="a different build of parkade than"):
        parkade.sweep(SMALL, POLICIES, seeds=2, output=path)
    assert path.read_bytes() == older
    lines = rows_of_one_machine.splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], *lines[2:]]))
    with pytest.raises(parkade.Error, match="has gaps"):
        parkade.sweep(SMALL, POLICIES, seeds=2, output=path)


def test_the_summary_is_that_of_merge(rows_of_one_machine, tmp_path, command):
    (tmp_path / "rows").write_bytes(rows_of_one_machine)
    printed = json.loads(command("merge", "--json", "-o", tmp_path / "merged", tmp_path / "rows").stdout)
    found = parkade.sweep(SMALL, POLICIES, seeds=2)
    assert found.summary == printed and "best-fit-remap" in found._repr_html_()


# ---- workers that die


def _kills_once(task):
    """Ends its process the first time that a task asks for it."""
    marker, number = task
    if marker is not None and not os.path.exists(marker):
        with open(marker, "w"):
            pass
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.01)
    return number * number


def _always_kills(_):
    os.kill(os.getpid(), signal.SIGKILL)


def _fails(number):
    if number == 3:
        raise ZeroDivisionError("three")
    return number


needs_sigkill = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system cannot kill processes this way")


@needs_sigkill
@pytest.mark.parametrize("is_made", [True, False])
def test_tasks_that_died_with_a_process_are_done_again(is_made, tmp_path):
    tasks = [(str(tmp_path / "killed") if number == 5 else None, number) for number in range(40)]
    executor = spawned if is_made else spawned()
    with pytest.warns(RuntimeWarning, match="continue in a new pool"):
        found = list(_executors.in_order(_kills_once, tasks, executor, retries=3))
    assert found == [number * number for number in range(40)] and (tmp_path / "killed").exists()


@needs_sigkill
def test_what_kills_every_process_is_given_up():
    with warnings.catch_warnings(), pytest.raises(parkade.LostJobs, match="too little memory"):
        warnings.simplefilter("ignore", RuntimeWarning)
        list(_executors.in_order(_always_kills, [1, 2], spawned, retries=1))


def test_an_error_of_a_task_is_raised_as_it_is():
    for executor in (None, ThreadPoolExecutor(2), spawned):
        with pytest.raises(ZeroDivisionError, match="three"):
            list(_executors.in_order(_fails, list(range(100)), executor, retries=3))


def test_results_come_in_order():
    assert list(_executors.in_order(_fails, [9, 8, 7] * 1000, None, retries=0)) == [9, 8, 7] * 1000


# ---- Dask


@pytest.fixture(scope="module")
def dask():
    """A cluster of three worker processes."""
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(n_workers=3, threads_per_worker=1, processes=True, dashboard_address=None) as cluster:
        with distributed.Client(cluster) as client:
            yield client


@needs_sigkill
def test_dask_makes_the_same_bytes_while_a_worker_is_killed(
    dask, folder, of_one_machine, rows_of_one_machine, tmp_path
):
    executor = dask.get_executor()
    assert parkade.diagnose_many(folder, executor=executor).lines == of_one_machine
    killed = []

    def kill_one(done, of, what):
        """In the middle of a run: some rows are there, and others are not."""
        if not killed and 0 < done < of:
            killed.extend(dask.run(os.getpid).values())
            os.kill(killed[0], signal.SIGKILL)

    found = parkade.sweep(SMALL, POLICIES, seeds=2, executor=executor, jobs_per_task=1, progress=kill_one)
    assert killed and found.header + b"".join(found.lines) == rows_of_one_machine


@needs_sigkill
def test_dask_does_a_task_again_that_killed_its_worker(dask, tmp_path):
    tasks = [(str(tmp_path / "killed") if number == 5 else None, number) for number in range(40)]
    found = list(_executors.in_order(_kills_once, tasks, dask.get_executor(), retries=3))
    assert found == [number * number for number in range(40)] and (tmp_path / "killed").exists()


# ---- tables


def test_tables_are_read_by_others(folder, rows_of_one_machine, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    found = parkade.sweep(SMALL, POLICIES, seeds=2)
    table = found.to_arrow()
    assert table.num_rows == len(found) and table.to_pylist() == found.rows
    found.to_parquet(tmp_path / "rows.parquet")
    assert parquet.read_table(tmp_path / "rows.parquet").equals(table)
    diagnoses = parkade.diagnose_many(folder)
    diagnoses.to_parquet(tmp_path / "ranks.parquet")
    ranks = parquet.read_table(tmp_path / "ranks.parquet").to_pydict()
    assert (
        ranks["verdict"][2:] == ["fragmentation", None] and ranks["error"][3] and ranks["reserved_bytes"][2] > 4 << 30
    )
    pandas = pytest.importorskip("pandas")
    assert len(pandas.read_parquet(tmp_path / "rows.parquet")) == len(found)
    polars = pytest.importorskip("polars")
    assert polars.read_parquet(tmp_path / "ranks.parquet").height == 4
