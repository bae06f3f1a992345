"""A small Llama in bfloat16 with gradient checkpointing off and on, and batches of varying length."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from .training import lengths, tokens, trainer

LIMITED = True


def start(count=None):
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=16384,
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=6,
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
    batch, length = tokens(200, config.vocab_size), lengths(4, [512, 2000, 100, 1024, 1536, 700])

    def loss_of(model, ids):
        return model(input_ids=ids, labels=ids, use_cache=False).loss

    train = trainer(model, loss_of)

    def step(index):
        if index % 4 == 2:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        elif index % 4 == 0:
            model.gradient_checkpointing_disable()
        return train(batch(index, count or 1 + index % 3, length(index)))

    return step
