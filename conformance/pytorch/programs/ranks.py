"""A transformer that several GPUs train together on texts of varying length. `ranks_fsdp` and `ranks_ddp` are the programs."""

import os
import tempfile

import torch
import torch.distributed as dist
from torch import nn

from .training import lengths, tokens, trainer
from .vit import Block

WIDTH, HEADS, LAYERS, VOCABULARY = 1024, 16, 10, 8192


def meet():
    """Joins the ranks that the environment names. Returns this rank and the number of ranks; without these names it is the only one."""
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    torch.cuda.set_device(rank % torch.cuda.device_count())
    meeting = os.environ.get("PARKADE_MEETING") or tempfile.mktemp(prefix="ranks-")
    dist.init_process_group("nccl", init_method=f"file://{meeting}", rank=rank, world_size=world)
    return rank, world


def starter(shared):
    """Returns the `start` of a program; `shared(model, rank)` is the model that all ranks train."""

    def start(count=None):
        rank, world = meet()
        torch.manual_seed(39)
        blocks = [Block(WIDTH, HEADS) for _ in range(LAYERS)]
        model = shared(
            nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), *blocks, nn.Linear(WIDTH, VOCABULARY)).cuda(), rank
        )
        # Ranks differ in their texts, but not in the lengths, so all of them need about the same memory.
        batch, length = tokens(1200 + 1000 * rank, VOCABULARY), lengths(40, [512, 900, 300, 1000, 412, 750, 640, 850])

        def loss_of(model, ids):
            return nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())

        train = trainer(model, loss_of)

        def step(index):
            loss = train(batch(index, count or 2, length(index)))
            # This also waits for the other ranks, so none ends while a different one needs it.
            dist.all_reduce(loss)
            return loss / world

        return step

    return start
