"""A GPT-2 that alternates between generation and training, as in reinforcement learning: caches grow one token at a time, then a training step follows."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from .training import lengths, tokens, trainer

LIMITED = True
# The number of tokens generated after each prompt.
NEW_TOKENS = 96


def start(count=None):
    torch.manual_seed(15)
    config = GPT2Config(
        vocab_size=8192,
        n_positions=1024,
        n_embd=768,
        n_layer=6,
        n_head=12,
        attn_implementation="eager",
        bos_token_id=0,
        eos_token_id=0,
    )
    model = GPT2LMHeadModel(config).cuda()
    batch, length = tokens(400, config.vocab_size), lengths(16, [384, 128, 700, 256, 512])

    def loss_of(model, ids):
        return model(input_ids=ids, labels=ids, use_cache=False).loss

    train = trainer(model, loss_of)

    def generate(ids):
        """Returns the most likely tokens, one after the other."""
        cache, made = None, []
        with torch.no_grad():
            for _ in range(NEW_TOKENS):
                out = model(input_ids=ids, past_key_values=cache, use_cache=True)
                cache, ids = out.past_key_values, out.logits[:, -1:].argmax(-1)
                made.append(ids)
        return torch.cat(made, 1)

    def step(index):
        many = count or 2 + index % 4
        if index % 2:
            return train(batch(index, many, length(index // 2)))
        prompt = batch(index, 2 * many, length(index // 2) // 2)
        return train(torch.cat([prompt[:many], generate(prompt)[:many]], 1))

    return step
