"""A transformer whose saved activations are packed into bytes (`saved_tensors_hooks`): the forward pass replaces each by a tensor of a quarter of its size, and
the backward pass requests the full size again."""

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from .training import lengths, tokens, trainer
from .vit import WIDTH, Block

LIMITED = True
LAYERS, VOCABULARY = 8, 8192
# Smaller tensors are not worth packing.
LEAST = 1 << 16


def start(count=None):
    torch.manual_seed(37)
    model = nn.Sequential(
        nn.Embedding(VOCABULARY, WIDTH), *[Block() for _ in range(LAYERS)], nn.Linear(WIDTH, VOCABULARY)
    ).cuda()
    parameters = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    batch, length = tokens(1100, VOCABULARY), lengths(38, [800, 128, 1000, 512, 333, 900, 256, 640])

    def pack(tensor):
        if tensor.numel() < LEAST or tensor.untyped_storage().data_ptr() in parameters:
            return tensor, None
        scale = tensor.abs().max().clamp(min=1e-12) / 127
        return (tensor / scale).round().to(torch.int8), scale

    def unpack(kept):
        packed, scale = kept
        return packed if scale is None else packed * scale

    def loss_of(model, ids):
        x = model[0](ids)
        with saved_tensors_hooks(pack, unpack):
            x = model[1:-1](x)
        return nn.functional.cross_entropy(model[-1](x).flatten(0, 1), ids.flatten())

    train = trainer(model, loss_of)
    return lambda index: train(batch(index, count or 4, length(index)))
