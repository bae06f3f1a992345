"""Fully sharded training (FSDP2) over all ranks that the environment names; one rank shards with itself."""

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

from .ranks import meet
from .training import trainer

LIMITED = False


def start():
    rank, _ = meet()
    torch.manual_seed(17)
    blocks = [
        nn.Sequential(nn.LayerNorm(1024), nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)) for _ in range(6)
    ]
    model = nn.Sequential(*blocks).cuda()
    for block in model:
        fully_shard(block)
    fully_shard(model)

    def loss_of(model, x):
        return model(x).square().mean()

    train = trainer(model, loss_of)

    def step(index):
        generator = torch.Generator("cuda").manual_seed(100 * index + rank)
        loss = train(torch.randn(64 * (1 + index % 4), 1024, device="cuda", generator=generator))
        # Copies for the collectives are freed with events; wait, so that they have completed before the next step requests memory.
        torch.cuda.synchronize()
        return loss

    return step
