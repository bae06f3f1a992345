"""Callbacks for trainers, with stand-ins for their libraries."""

from __future__ import annotations

import sys
import types

import pytest

import parkade
from parkade import _callbacks


@pytest.fixture
def watched(monkeypatch):
    """The arguments with which `on_oom` and `Watch` were called."""
    calls = []

    class Watch:
        def __init__(self, writer, **options):
            calls.append(("watch", writer, options))

        def step(self, number):
            calls.append(("step", number))

        def close(self):
            calls.append(("close",))

    monkeypatch.setattr(_callbacks, "Watch", Watch)
    monkeypatch.setattr(_callbacks, "on_oom", lambda path, limit: calls.append(("on_oom", path, limit)))
    return calls


def test_without_the_libraries_it_is_said_which_is_missing(monkeypatch):
    for name in ("transformers", "lightning", "pytorch_lightning"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(parkade.Error, match="trainer_callback.* transformers"):
        parkade.trainer_callback()
    with pytest.raises(parkade.Error, match="lightning_callback.* Lightning"):
        parkade.lightning_callback()


def test_a_trainer_of_transformers_is_watched(watched, monkeypatch):
    class TrainerCallback:
        pass

    monkeypatch.setitem(sys.modules, "transformers", types.SimpleNamespace(TrainerCallback=TrainerCallback))
    callback = parkade.trainer_callback(print, path="oom.pickle", limit="5GiB")
    assert isinstance(callback, TrainerCallback) and watched == [("on_oom", "oom.pickle", "5GiB")]
    state = types.SimpleNamespace(global_step=7)
    callback.on_step_end(None, state, None)
    callback.on_train_begin(None, state, None, model=None)
    callback.on_step_end(None, state, None, model=None)
    callback.on_train_end(None, state, None)
    assert watched[1:] == [("watch", print, {"share": 0.01, "limit": "5GiB"}), ("step", 7), ("close",)]


def test_a_trainer_of_lightning_is_watched(watched, monkeypatch):
    class Callback:
        pass

    callbacks = types.ModuleType("lightning.pytorch.callbacks")
    callbacks.Callback = Callback
    for name in ("lightning", "lightning.pytorch"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "lightning.pytorch.callbacks", callbacks)
    logged = []
    logger = types.SimpleNamespace(log_metrics=lambda numbers, step: logged.append((numbers, step)))
    trainer = types.SimpleNamespace(loggers=[logger], global_step=3)
    callback = parkade.lightning_callback(path=None)
    callback.on_train_start(trainer, None)
    callback.on_train_batch_end(trainer, None, None, None, 0)
    callback.on_train_end(trainer, None)
    assert isinstance(callback, Callback) and watched[1:] == [("step", 3), ("close",)]
    watched[0][1]("parkade/ooms", 1, 3)
    assert logged == [({"parkade/ooms": 1}, 3)]


def test_without_a_gpu_they_do_nothing(no_torch, monkeypatch):
    class TrainerCallback:
        pass

    monkeypatch.setitem(sys.modules, "transformers", types.SimpleNamespace(TrainerCallback=TrainerCallback))
    callback = parkade.trainer_callback()
    callback.on_train_begin(None, None, None)
    callback.on_step_end(None, types.SimpleNamespace(global_step=1), None)
    callback.on_train_end(None, None, None)
