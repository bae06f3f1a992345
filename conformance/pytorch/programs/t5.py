"""A T5, which reads one text and writes a different one: encoder and decoder, both of varying length, with attention between them."""

import torch
from transformers import T5Config, T5ForConditionalGeneration

from .training import lengths, tokens, trainer

LIMITED = True


def start(count=None):
    torch.manual_seed(31)
    config = T5Config(
        vocab_size=16384,
        d_model=512,
        d_kv=64,
        d_ff=2048,
        num_layers=6,
        num_heads=8,
        dropout_rate=0.0,
        pad_token_id=0,
        eos_token_id=1,
        decoder_start_token_id=0,
    )
    model = T5ForConditionalGeneration(config).cuda()
    model.train()
    read, write = tokens(900, config.vocab_size), tokens(950, config.vocab_size)
    longer, shorter = lengths(32, [512, 768, 128, 1000]), lengths(33, [100, 400, 256, 64])

    def loss_of(model, batch):
        return model(input_ids=batch[0], labels=batch[1], use_cache=False).loss

    train = trainer(model, loss_of)

    def step(index):
        many = count or 4 + index % 4
        return train((read(index, many, longer(index)), write(index, many, shorter(index))))

    return step
