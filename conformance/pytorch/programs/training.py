"""A training step: forward, backward and optimizer, with the same handling of every failure."""

import gc

import torch


def trainer(model, loss_of, fused=False, optimizer=None):
    """Returns a function that trains `model` for one step on a batch and returns the loss; `loss_of(model, batch)` is the forward pass."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-4, fused=fused)

    def train(batch):
        try:
            loss = loss_of(model, batch)
            loss.backward()
            optimizer.step()
            return loss.detach()
        finally:
            # Even if memory ran out: the leftovers of the failed step would make the next one fail.
            optimizer.zero_grad(set_to_none=True)
            gc.collect(0)

    return train


def lengths(seed, choices):
    """Returns batch lengths that vary from step to step: `choices` in a random order, repeated."""
    generator = torch.Generator().manual_seed(seed)
    order = [choices[place] for place in torch.randperm(len(choices), generator=generator).tolist()]
    return lambda index: order[index % len(order)]


def tokens(seed, vocabulary):
    """Returns a function that makes a batch of tokens with shape (batch, length) on the GPU; each index has its own batch."""

    def batch(index, count, length):
        generator = torch.Generator().manual_seed(seed + index)
        return torch.randint(0, vocabulary, (count, length), generator=generator).cuda()

    return batch
