"""The programs of record_on_gpu/record.py as steps: each step is one program, generated from the step's number."""

import gc
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "record_on_gpu"))

import record
import torch


def starter(kind):
    """Returns the `start` of a kind of program; a step's loss is the state of the GPU's random numbers, which depends on everything computed so far."""

    def step(index):
        getattr(record.Programs(kind, 500 + index), kind)()
        torch.cuda.synchronize()
        gc.collect()
        return torch.rand((), device="cuda").item()

    return lambda: step
