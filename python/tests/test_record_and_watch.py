"""`record` and `watch` with a stand-in for PyTorch, and a clock that the tests advance."""

from __future__ import annotations

import pickle
import sys
import types

import pytest
from conftest import FakeClock

import parkade
from parkade import _watch


def test_record_writes_a_snapshot_that_can_be_asked_about(fake_cuda, tmp_path):
    with parkade.record(tmp_path / "run.pickle", max_entries=5000) as recorded:
        assert fake_cuda.memory.calls == [("record", {"enabled": "all", "stacks": "python", "max_entries": 5000})]
    assert [name for name, _ in fake_cuda.memory.calls] == ["record", "snapshot", "record"]
    assert fake_cuda.memory.calls[-1][1] == {"enabled": None}
    assert recorded.diagnose().devices[0].verdict == recorded.advise().verdict == "fragmentation"
    assert parkade.verify(recorded).exact and parkade.verify(tmp_path / "run.pickle").exact


def test_record_writes_it_also_if_the_block_raises(fake_cuda, tmp_path):
    with pytest.raises(MemoryError), parkade.record(tmp_path / "run.pickle"):
        raise MemoryError
    assert parkade.diagnose(tmp_path / "run.pickle").devices[0].verdict == "fragmentation"
    assert fake_cuda.memory.calls[-1][1] == {"enabled": None}


def test_record_refuses_a_file_that_cannot_be_written_before_the_program_runs(fake_cuda, tmp_path):
    ran = False
    with pytest.raises(FileNotFoundError), parkade.record(tmp_path / "nowhere" / "run.pickle"):
        ran = True
    assert not ran and fake_cuda.memory.calls == []


def test_record_keeps_a_bounded_history_unless_asked_for_all(fake_cuda, tmp_path):
    with parkade.record(tmp_path / "a.pickle"), parkade.record(tmp_path / "b.pickle", max_entries=None):
        pass
    begun = [options for name, options in fake_cuda.memory.calls if options and options.get("enabled") == "all"]
    assert begun == [
        {"enabled": "all", "stacks": "python", "max_entries": 1_000_000},
        {"enabled": "all", "stacks": "python"},
    ]


def test_the_error_of_the_block_is_raised_also_if_the_snapshot_fails(fake_cuda, tmp_path, monkeypatch):
    def fails():
        raise RuntimeError("no memory for a snapshot")

    monkeypatch.setattr(fake_cuda.memory, "_snapshot", fails)
    (tmp_path / "run.pickle").write_text("older")
    with pytest.warns(UserWarning, match="could not be written: no memory for a snapshot"):
        with pytest.raises(MemoryError), parkade.record(tmp_path / "run.pickle", force=True):
            raise MemoryError
    with (
        pytest.raises(RuntimeError, match="no memory for a snapshot"),
        parkade.record(tmp_path / "run.pickle", force=True),
    ):
        pass
    assert fake_cuda.memory.calls[-1][1] == {"enabled": None}
    assert [path.name for path in tmp_path.iterdir()] == ["run.pickle"] and (
        tmp_path / "run.pickle"
    ).read_text() == "older"


def test_a_history_that_is_on_stays_on(fake_cuda, tmp_path, monkeypatch):
    monkeypatch.setattr(
        sys.modules["torch"], "_C", types.SimpleNamespace(_cuda_isHistoryEnabled=lambda: True), raising=False
    )
    with parkade.record(tmp_path / "run.pickle"):
        pass
    assert [name for name, _ in fake_cuda.memory.calls] == ["snapshot"]


def test_each_rank_writes_a_file_of_its_own(fake_cuda, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "3")
    with parkade.record(tmp_path / "run-{rank}.pickle") as recorded:
        pass
    assert recorded.path == str(tmp_path / "run-3.pickle") and (tmp_path / "run-3.pickle").exists()
    with pytest.warns(UserWarning, match="put {rank} into the name"), parkade.record(tmp_path / "run.pickle"):
        pass


def test_a_file_that_is_replaced_is_said_to_be(fake_cuda, tmp_path):
    (tmp_path / "run.pickle").write_text("older")
    with pytest.warns(UserWarning, match="exists and will be replaced"), parkade.record(tmp_path / "run.pickle"):
        assert (tmp_path / "run.pickle").read_text() == "older", "until the block has ended"
    assert parkade.verify(tmp_path / "run.pickle").exact


def test_the_limit_is_kept_in_the_snapshot(fake_cuda, tmp_path, monkeypatch):
    def kept(**how):
        with parkade.record(tmp_path / "run.pickle", force=True, **how):
            pass
        return pickle.loads((tmp_path / "run.pickle").read_bytes()).get("parkade")

    assert kept() is None, "this stand-in does not tell"
    assert kept(limit="14GiB") == {"limit_bytes": 14 << 30, "limit_source": "given"}
    monkeypatch.setattr(fake_cuda, "current_device", lambda: 0, raising=False)
    monkeypatch.setattr(fake_cuda, "mem_get_info", lambda device: (1 << 30, 80 << 30), raising=False)
    assert kept()["limit_source"] == "mem_get_info" and kept()["limit_bytes"] > 1 << 30
    monkeypatch.setattr(fake_cuda, "get_per_process_memory_fraction", lambda device: 0.0625, raising=False)
    assert kept() == {"limit_bytes": 5 << 30, "limit_source": "fraction"}
    assert kept(limit=None) is None
    with pytest.raises(parkade.UsageError, match="apples"):
        kept(limit="12 apples")


@pytest.fixture
def clock(fake_cuda, monkeypatch):
    """A clock; looks at the statistics take half a millisecond."""
    clock = FakeClock()
    memory_stats = fake_cuda.memory_stats

    def slow(*device):
        clock.now += 0.0005
        return memory_stats(*device)

    monkeypatch.setattr(fake_cuda, "memory_stats", slow)
    fake_cuda.memory.clock = clock
    return clock


def steps(watch, clock, number, seconds):
    """Runs this many steps of this many seconds, and returns the largest share that was spent after any of them."""
    most, looks = 0.0, 0
    for _ in range(number):
        clock.now += seconds
        looks += watch.step() is not None
        most = max(most, watch.share)
    return most, looks


def test_what_is_seen_is_logged(fake_cuda, clock):
    logged = []
    watch = parkade.Watch(lambda *scalar: logged.append(scalar), advice=False, clock=clock)
    _, looks = steps(watch, clock, 10, 1.0)
    assert looks == 10 and len(logged) == 60
    assert {name: value for name, value, step in logged if step == 3} == {
        "parkade/allocated_bytes": 600,
        "parkade/reserved_bytes": 1000,
        "parkade/stranded_bytes": 300,
        "parkade/fragmentation": pytest.approx(0.4),
        "parkade/ooms": 1,
        "parkade/retries": 2,
    }
    assert watch.seen.step == 9 and watch.advice is None and watch.snapshots == 0
    assert watch.step(number=77) is None or watch.seen.step == 77


def test_a_writer_or_a_run_of_wandb_will_do(fake_cuda, clock):
    class Writer:
        def __init__(self):
            self.seen = []

        def add_scalar(self, name, value, step):
            self.seen.append((name, step))

    class Run:
        def __init__(self):
            self.seen = []

        def log(self, numbers, step=None, commit=None):
            self.seen.append((numbers, commit))

    writer, run = Writer(), Run()
    for target in (writer, run):
        watch = parkade.Watch(target, advice=False, clock=clock)
        steps(watch, clock, 2, 1.0)
        assert repr(watch).startswith("Watch(step 1, reserved 1000 bytes, 0 snapshots")
    assert writer.seen[0] == ("parkade/allocated_bytes", 0) and len(writer.seen) == 12
    assert [numbers["parkade/step"] for numbers, commit in run.seen if commit is False] == [0, 1]
    assert run.seen[0][0]["parkade/reserved_bytes"] == 1000
    with pytest.raises(TypeError, match="SummaryWriter"):
        parkade.watch(3)


def test_closing_does_not_wait_for_ever(fake_cuda, clock):
    import threading

    watch = parkade.Watch(clock=clock)
    go_on = threading.Event()
    watch._worker = threading.Thread(target=go_on.wait, daemon=True)
    watch._worker.start()
    watch.close(timeout=0.01)
    assert watch._worker.is_alive()
    go_on.set()


@pytest.mark.parametrize("seconds", [0.001, 0.01, 0.1, 1.0])
@pytest.mark.parametrize("snapshot", [0.001, 0.02, 0.5])
def test_the_share_is_kept_at_every_moment(fake_cuda, clock, seconds, snapshot):
    fake_cuda.memory.seconds = snapshot
    # Enough entries that the first snapshot costs as much as expected.
    fake_cuda.stats.update(
        {"allocation.all.allocated": int(snapshot / _watch._ENTRY_SECONDS), "allocation.all.freed": 0}
    )
    watch = parkade.Watch(clock=clock)
    most, looks = steps(watch, clock, 3000, seconds)
    watch.close()
    assert most < 0.01 and looks > 0, (most, looks)
    if seconds * 3000 * 0.005 > 3 * snapshot:
        assert watch.snapshots > 0


def test_a_snapshot_that_costs_more_than_expected_is_paid_back(fake_cuda, clock):
    fake_cuda.memory.seconds = 1.0
    watch = parkade.Watch(clock=clock)
    steps(watch, clock, 200, 0.1)
    assert watch.snapshots == 1
    steps(watch, clock, 2000, 0.1)
    assert watch.share < 0.01 and watch.snapshots == 1


def test_advice_comes_from_another_thread(fake_cuda, clock):
    logged = {}
    fake_cuda.stats["allocation.all.allocated"] = 10
    watch = parkade.Watch(lambda name, value, step: logged.update({name: value}), limit="5GiB", clock=clock)
    steps(watch, clock, 20, 1.0)
    watch.close()
    assert watch.snapshots >= 1 and watch.advice.verdict == "fragmentation" and watch.no_advice is None
    steps(watch, clock, 1, 1.0)
    assert logged["parkade/advice/own_peak_reserved_bytes"] > 5_000_000_000
    watch.close()


def test_a_snapshot_without_history_is_no_failure(fake_cuda, clock):
    fake_cuda.memory.data = pickle.dumps({"segments": [], "device_traces": []})
    fake_cuda.stats["allocation.all.allocated"] = 0
    with parkade.Watch(clock=clock) as watch:
        steps(watch, clock, 20, 1.0)
    assert watch.advice is None and watch.no_advice


def test_what_a_watch_refuses(fake_cuda):
    for share in (0, 1, -0.1, 2):
        with pytest.raises(ValueError, match="share"):
            parkade.watch(share=share)


def test_a_step_without_a_look_costs_microseconds(fake_cuda):
    import time

    watch = parkade.watch(share=1e-6)
    begun = time.perf_counter()
    for _ in range(10_000):
        watch.step()
    assert (time.perf_counter() - begun) / 10_000 < 100e-6
