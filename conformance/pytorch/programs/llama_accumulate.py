"""A Llama in bfloat16 with gradient checkpointing: each step adds up the gradients of four small batches of varying length."""

import gc

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from .training import lengths, tokens

LIMITED = True
PARTS = 4


def start(count=None):
    torch.manual_seed(25)
    config = LlamaConfig(
        vocab_size=16384,
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=8,
        num_attention_heads=16,
        num_key_value_heads=4,
        max_position_embeddings=2048,
        attn_implementation="eager",
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=None,
    )
    model = LlamaForCausalLM(config).to(device="cuda", dtype=torch.bfloat16)
    model.train()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    batch, length = tokens(700, config.vocab_size), lengths(26, [900, 300, 1500, 2000, 640, 1200, 128, 1800])

    def step(index):
        total = 0
        try:
            for part in range(PARTS):
                place = PARTS * index + part
                ids = batch(place, count or 2, length(place))
                loss = model(input_ids=ids, labels=ids, use_cache=False).loss / PARTS
                loss.backward()
                total = total + loss.detach()
                del loss
            optimizer.step()
            return total
        finally:
            optimizer.zero_grad(set_to_none=True)
            gc.collect(0)

    return step
