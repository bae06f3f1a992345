"""Small PyTorch programs that request memory in the ways that matter, each the same in every run.

A module has `start()`, which builds everything from fixed seeds and returns a function: `step(index)` does one step and returns its loss
as a tensor with one number or a float. Programs in `COUNTED` take the batch size, `start(count)`. `LIMITED` states whether a program survives running out of memory, so that it can be run with a limit.
`run(name, steps)` runs a program and returns its losses.
"""

import importlib
import pathlib

NAMES = (
    "gpt2",
    "llama",
    "mask_rcnn",
    "cuda_graph",
    "compile_reduce_overhead",
    "streams",
    "mempool",
    "fails",
    "fsdp",
    "random_train",
    "random_graphs",
    "random_pools",
    "generate",
    "resnet",
    "vit",
    "llama_accumulate",
    "unet",
    "t5",
    "two_gpus",
    "graphsage",
    "packed",
)
# Programs that need a second GPU.
ON_TWO_GPUS = ("two_gpus",)
# Programs that need a process on each of two GPUs; their batches may have any size.
ON_RANKS = ("ranks_fsdp", "ranks_ddp")
# Programs whose batches may have any size.
COUNTED = (
    "gpt2",
    "llama",
    "llama_accumulate",
    "t5",
    "vit",
    "resnet",
    "unet",
    "mask_rcnn",
    "generate",
    "compile_reduce_overhead",
    "streams",
    "graphsage",
    "packed",
)
# The limit for a program that is meant to run out of memory.
LIMIT_BYTES = {"fails": 600 << 20}
OUT_OF_MEMORY = "out of memory"


def load(name):
    """Returns a program's module. Imports torch, and transformers or torchvision if the program needs them."""
    return importlib.import_module(f"{__name__}.{name}")


def is_limited(name):
    """Whether a program survives running out of memory. Its source states this; importing it would need torch."""
    source = pathlib.Path(__file__).with_name(f"{name}.py").read_text()
    return "\nLIMITED = True\n" in source


def run(name, steps, report=lambda error: None):
    """Returns the losses of `steps` steps as exact hexadecimal numbers; a step that ran out of memory has words instead.

    `report` gets the text of each error. After one, the cache is emptied, so that the next step has a chance.
    """
    import torch

    step, losses = None, []
    while len(losses) < steps:
        failed = None
        try:
            if step is None:
                step = load(name).start()
            loss = step(len(losses))
            losses.append(float(loss).hex())
            loss = None
        except torch.OutOfMemoryError as error:
            failed = str(error)
        if failed is not None:
            # Outside the except clause: the error's traceback holds the frames, and those hold tensors.
            report(failed)
            losses.append(OUT_OF_MEMORY)
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
    return losses


def settle():
    """Makes this process take the same decisions in every run. Call it before anything else in PyTorch is used.

    Backward passes run in the calling thread: PyTorch's own threads free some tensors after the caller has continued.
    Reference cycles are collected only where a program requests it.
    """
    import gc
    import os

    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # Do not choose kernels by their time, which differs from run to run.
    os.environ.setdefault("TORCHINDUCTOR_DETERMINISTIC", "1")
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    import torch

    torch.autograd.set_multithreading_enabled(False)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False
    torch.set_num_threads(1)
    gc.collect()
    gc.disable()
