"""GPT-2 in single precision with batches of varying length: no tensor keeps the same size from step to step."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from .training import lengths, tokens, trainer

LIMITED = True


def start(count=None):
    torch.manual_seed(1)
    config = GPT2Config(
        vocab_size=16384,
        n_positions=1024,
        n_embd=768,
        n_layer=6,
        n_head=12,
        attn_implementation="eager",
        bos_token_id=0,
        eos_token_id=0,
    )
    model = GPT2LMHeadModel(config).cuda()
    batch, length = tokens(100, config.vocab_size), lengths(2, [64, 1000, 333, 512, 128, 717, 900, 256])

    def loss_of(model, ids):
        return model(input_ids=ids, labels=ids, use_cache=False).loss

    train = trainer(model, loss_of)
    return lambda index: train(batch(index, count or 2 + index % 5, length(index)))
