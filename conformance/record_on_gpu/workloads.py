#!/usr/bin/env python3
"""Records eight kinds of programs on a real GPU, for studies of allocation policies.

  workloads.py OUT [NAME ...]      record into the folder OUT; needs a GPU, PyTorch, transformers, peft and torch_geometric
  workloads.py --try [NAME ...]    take two steps of each program with shorter inputs on the CPU, without recording

All weights are random, and nothing is downloaded. A program takes steps until it has made a given number of requests
(REQUESTS), so that its packed recording has at most 300,000 bytes. The steps are marked for `parkade stats --steps`.

Exit codes: 0 good, 1 a recording is too large, 2 a program failed.
"""

import argparse
import concurrent.futures
import importlib.util
import itertools
import json
import lzma
import pathlib
import pickle
import random
import subprocess
import sys
import traceback

REQUESTS = {
    "prefix_caching": 24_000,
    "speculative_decoding": 24_000,
    "lora_switching": 24_000,
    "beam_search": 24_000,
    "mixture_of_experts": 24_000,
    "diffusion": 24_000,
    "graph_network": 18_000,
    "long_context": 24_000,
}
NEEDED = ["torch", "transformers", "peft", "torch_geometric"]
SEED = 46
MOST_BYTES = 300_000
# What --try divides lengths and picture sizes by.
SHORTER = 32


class Programs:
    """The programs: each is an iterator that takes a step whenever it is advanced. All random choices come from `draw`."""

    def __init__(self, shorter):
        import torch

        self.torch, self.functional, self.draw = torch, torch.nn.functional, random.Random(SEED)
        self.shorter = shorter
        torch.manual_seed(SEED)

    def length(self, low, high):
        """Returns a random length; short ones are more frequent."""
        return max(4, int(low * (high / low) ** self.draw.random()) // self.shorter)

    def tokens(self, count, length, vocabulary):
        """Returns random tokens. As in text, a few of them are frequent."""
        return (self.torch.rand(count, length) ** 4 * vocabulary).long()

    def llama(self, layers, width, key_value_heads, vocabulary=16384):
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=width,
            intermediate_size=width * 11 // 4,
            num_hidden_layers=layers,
            num_attention_heads=width // 128,
            num_key_value_heads=key_value_heads,
            max_position_embeddings=1 << 17,
            bos_token_id=None,
            eos_token_id=None,
        )
        return LlamaForCausalLM(config).to(self.torch.bfloat16).eval()

    def prefix_caching(self):
        """A server that keeps the keys and values of prompts in a tree and evicts the leaves that were not used for longest."""
        tree, model = PrefixTree(limit_bytes=(1536 << 20) // self.shorter), self.packed_decoder(layers=2, width=2048)
        lengths, talks = {}, []

        def path_of(talk):
            return [tuple(talk[: end + 1]) for end in range(len(talk))]

        def next_prompt(turn):
            """Returns the path of a prompt: a system prompt, a document, and the turns of a conversation."""
            if talks and self.draw.random() < 0.55:
                talk = talks.pop(self.draw.randrange(len(talks)))
            else:
                talk = [int(6 * self.draw.random() ** 2), int(60 * self.draw.random() ** 2)]
            talk.append(("turn", turn))
            for node, (low, high) in zip(path_of(talk), [(500, 4000), (200, 12000)]):
                lengths.setdefault(node, self.length(low, high))
            lengths[tuple(talk)] = self.length(30, 800)
            if len(talk) < 7:
                talks.append(talk)
            return path_of(talk)

        for turn in itertools.count(0, 8):
            prompts = [next_prompt(turn + which) for which in range(self.draw.randint(1, 6))]
            tails = []
            for path in prompts:
                # Prompts are read one by one, so that one finds what the one before it has left.
                cached = tree.use(path)
                missing = [lengths[node] for node in path[cached:]]
                made = model([self.tokens(1, sum(missing), 16384)[0]], [tree.values(path[:cached])])[0]
                *new, tail = zip(*(layer.split(missing, 2) for layer in made))
                for node, values in zip(path[cached:], new):
                    tree.put(node, [part.clone() for part in values])
                tails.append([part.clone() for part in tail])
            del made, new, tail
            for _ in range(self.draw.randint(3, 10)):
                past = [[*tree.values(path[:-1]), tail] for path, tail in zip(prompts, tails)]
                made = model([self.tokens(1, 1, 16384)[0] for _ in prompts], past)
                del past
                for which, new in enumerate(made):
                    tails[which] = [self.torch.cat(pair, 2) for pair in zip(tails[which], new)]
                del made, new
            for path, tail in zip(prompts, tails):
                lengths[path[-1]] = tail[0].shape[2]
                tree.put(path[-1], tail)
                tree.done(path)
            del tails, tail
            tree.evict()
            yield

    def packed_decoder(self, layers, width):
        """Returns a decoder for sequences of different lengths without padding. It returns the new keys and values of each sequence."""
        torch, functional = self.torch, self.functional
        nn = torch.nn
        from torch.nn.attention.bias import causal_lower_right

        class Decoder(nn.Module):
            def __init__(self):
                super().__init__()
                self.embedding = nn.Embedding(16384, width)
                self.qkv = nn.ModuleList(nn.Linear(width, 3 * width, bias=False) for _ in range(layers))
                self.out = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(layers))
                self.up = nn.ModuleList(nn.Linear(width, 4 * width, bias=False) for _ in range(layers))
                self.down = nn.ModuleList(nn.Linear(4 * width, width, bias=False) for _ in range(layers))

            def attention(self, layer, x, counts, pasts, made):
                mixed = []
                for which, part in enumerate(self.qkv[layer](x).split(counts)):
                    query, *new = part.view(len(part), 3, -1, 128).permute(1, 2, 0, 3)
                    made[which].append(torch.stack(new))
                    keys, values = torch.cat([*(past[layer] for past in pasts[which]), made[which][-1]], 2)
                    mask = causal_lower_right(query.shape[1], keys.shape[1])
                    heads = functional.scaled_dot_product_attention(query[None], keys[None], values[None], mask)
                    mixed.append(heads[0].transpose(0, 1).reshape(len(part), -1))
                return self.out[layer](torch.cat(mixed))

            @torch.no_grad()
            def forward(self, sequences, pasts):
                counts, made = [len(sequence) for sequence in sequences], [[] for _ in sequences]
                x = self.embedding(torch.cat(sequences))
                for layer in range(layers):
                    x = x + self.attention(layer, functional.rms_norm(x, x.shape[-1:]), counts, pasts, made)
                    inner = functional.gelu(self.up[layer](functional.rms_norm(x, x.shape[-1:])))
                    x = x + self.down[layer](inner)
                    del inner
                ends = torch.tensor(counts).cumsum(0) - 1
                functional.linear(x[ends], self.embedding.weight).argmax(-1)
                return made

        return Decoder().to(torch.bfloat16)

    def speculative_decoding(self):
        """A small model drafts tokens; a large one checks them; both take back the keys and values of rejected ones."""
        from transformers import DynamicCache

        target, draft = self.llama(3, 2048, 8), self.llama(1, 1024, 4)

        def read(model, ids, cache):
            with self.torch.no_grad():
                return model(
                    input_ids=ids, past_key_values=cache, logits_to_keep=ids.shape[1] if ids.shape[1] < 16 else 1
                ).logits

        while True:
            count, length = self.draw.choice([1, 4, 8, 16]), self.length(300, 4000)
            ids, caches = (
                self.tokens(count, length, 16384),
                [DynamicCache(config=model.config) for model in (target, draft)],
            )
            for model, cache in zip((target, draft), caches):
                last = read(model, ids, cache)[:, -1:].argmax(-1)
            ids = self.torch.cat([ids, last], 1)
            for _ in range(self.draw.randint(6, 14)):
                drafted, length = [ids[:, -1:]], ids.shape[1]
                for _ in range(self.draw.randint(2, 6)):
                    drafted.append(read(draft, drafted[-1], caches[1])[:, -1:].argmax(-1))
                checked = read(target, self.torch.cat(drafted, 1), caches[0]).argmax(-1)
                # Models with random weights hardly ever agree, so chance decides how many tokens are accepted.
                accepted = sum(itertools.takewhile(bool, (self.draw.random() < 0.75 for _ in drafted[1:])))
                ids = self.torch.cat([ids, *drafted[1 : 1 + accepted], checked[:, accepted : accepted + 1]], 1)
                if accepted == len(drafted) - 1:
                    read(draft, drafted[-1], caches[1])
                for cache in caches:
                    shorten(cache, length + accepted)
                del drafted, checked
            del ids, caches, cache, last
            yield

    def lora_switching(self):
        """A server with adapters of different ranks: it loads and evicts them, merges some into the weights, and trains some further."""
        from peft import LoraConfig, get_peft_model

        torch, ranks = self.torch, [4, 8, 16, 32, 64, 128, 256]
        linear = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]

        def configured(name):
            targets = linear if name % 3 else linear[:4]
            return LoraConfig(
                r=ranks[name % len(ranks)], target_modules=targets, lora_dropout=0.0, task_type="CAUSAL_LM"
            )

        model, loaded = get_peft_model(self.llama(2, 2048, 8), configured(0), adapter_name="0"), [0]
        for index in itertools.count():
            name = int(24 * self.draw.random() ** 2)
            if name in loaded:
                loaded.remove(name)
            else:
                model.add_adapter(str(name), configured(name))
            loaded.append(name)
            model.set_adapter(str(name))
            while len(loaded) > 6:
                model.delete_adapter(str(loaded.pop(0)))
            merges = index % 5 == 3
            if merges:
                model.merge_adapter()
            for _ in range(self.draw.randint(1, 3)):
                with torch.no_grad():
                    model(
                        input_ids=self.tokens(self.draw.randint(1, 8), self.length(100, 3000), 16384), logits_to_keep=1
                    )
            if merges:
                model.unmerge_adapter()
            if index % 4 == 2:
                optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad])
                for _ in range(2):
                    ids = self.tokens(self.draw.randint(1, 4), self.length(100, 1500), 16384)
                    model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
                    optimizer.step()
                    optimizer.zero_grad()
                del optimizer, ids
            yield

    def beam_search(self):
        """Beam search with transformers: caches that are reordered at every token, for different numbers of beams."""
        model = self.llama(2, 1536, 12, vocabulary=32000)
        while True:
            count, beams, new = self.draw.randint(1, 6), self.draw.choice([2, 3, 4, 8]), self.draw.randint(8, 24)
            ids = self.tokens(count, self.length(100, 3000), 32000)
            model.generate(
                input_ids=ids,
                attention_mask=self.torch.ones_like(ids),
                num_beams=beams,
                max_new_tokens=new,
                min_new_tokens=new,
                length_penalty=self.draw.choice([0.8, 1.0, 1.2]),
                do_sample=False,
                pad_token_id=0,
                eos_token_id=1,
            )
            del ids
            yield

    def mixture_of_experts(self):
        """Training of a Mixtral, whose experts get a different number of tokens in each layer and step, with evaluations in between."""
        from transformers import MixtralConfig, MixtralForCausalLM

        torch = self.torch
        config = MixtralConfig(
            vocab_size=8192,
            hidden_size=1024,
            intermediate_size=2048,
            num_hidden_layers=3,
            num_attention_heads=16,
            num_key_value_heads=4,
            num_local_experts=8,
            num_experts_per_tok=2,
            experts_implementation="eager",
            bos_token_id=None,
            eos_token_id=None,
        )
        model = MixtralForCausalLM(config).to(torch.bfloat16)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        for index in itertools.count():
            ids = self.tokens(self.draw.randint(2, 8), self.length(256, 2048), 8192)
            model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if index % 6 == 5:
                with torch.no_grad():
                    for _ in range(3):
                        model(
                            input_ids=self.tokens(16, self.length(256, 2048), 8192), use_cache=False, logits_to_keep=1
                        )
            del ids
            yield

    def diffusion(self):
        """Pictures of different sizes from a U-Net, with and without guidance, some at twice the size in a second pass, then decoded."""
        torch, network, decoder = self.torch, self.unet(), self.decoder()
        sizes = [(64, 64), (96, 64), (64, 96), (96, 96), (128, 96), (128, 128)]

        def denoise(latents, text, steps, guidance):
            for step in range(steps):
                time = torch.full((len(text) * guidance,), 1 - step / steps)
                predicted = network(torch.cat([latents] * guidance), time, torch.cat([text] * guidance))
                first, *others = predicted.chunk(guidance)
                for other in others:
                    first = other + 4.0 * (first - other)
                latents = latents - first / steps
            return latents

        while True:
            count, (height, width) = self.draw.choice([1, 1, 2, 4]), self.draw.choice(sizes)
            shape = (count, 4, max(8, height // self.shorter // 4 * 4), max(8, width // self.shorter // 4 * 4))
            steps, guidance = self.draw.randint(4, 10), self.draw.choice([1, 2, 2, 3])
            with torch.no_grad():
                text = torch.randn(count, 77, 512, dtype=torch.bfloat16)
                latents = denoise(torch.randn(shape, dtype=torch.bfloat16), text, steps, guidance)
                if self.draw.random() < 0.25:
                    larger = self.functional.interpolate(latents, scale_factor=2, mode="bilinear")
                    latents = denoise(larger + torch.randn_like(larger) / 2, text, steps // 2, guidance)
                    del larger
                # Large pictures are decoded one by one.
                parts = latents.split(1 if latents.shape[2] * latents.shape[3] > 96 * 64 else count)
                pictures = [(decoder(part).clamp(-1, 1) * 127.5 + 127.5).to(torch.uint8).cpu() for part in parts]
                del text, latents, parts, pictures
            yield

    def unet(self):
        """Returns a U-Net with attention to a text at its two smaller sizes."""
        torch, functional = self.torch, self.functional
        nn, widths = torch.nn, (192, 384, 576)

        class Part(nn.Module):
            def __init__(self, inside, outside, attends):
                super().__init__()
                self.first, self.second = (
                    nn.Conv2d(inside, outside, 3, padding=1),
                    nn.Conv2d(outside, outside, 3, padding=1),
                )
                self.norms = nn.ModuleList([nn.GroupNorm(32, inside), nn.GroupNorm(32, outside)])
                self.time, self.around = nn.Linear(256, outside), nn.Conv2d(inside, outside, 1)
                self.attends, heads = attends, outside // 64
                if attends:
                    self.itself = nn.MultiheadAttention(outside, heads, batch_first=True)
                    self.text = nn.MultiheadAttention(outside, heads, kdim=512, vdim=512, batch_first=True)

            def forward(self, x, time, text):
                inner = self.first(functional.silu(self.norms[0](x))) + self.time(time)[:, :, None, None]
                x = self.around(x) + self.second(functional.silu(self.norms[1](inner)))
                if not self.attends:
                    return x
                flat = x.flatten(2).transpose(1, 2)
                flat = flat + self.itself(flat, flat, flat, need_weights=False)[0]
                flat = flat + self.text(flat, text, text, need_weights=False)[0]
                return flat.transpose(1, 2).reshape(x.shape)

        class UNet(nn.Module):
            def __init__(self):
                super().__init__()
                self.enter, self.leave = nn.Conv2d(4, widths[0], 3, padding=1), nn.Conv2d(widths[0], 4, 3, padding=1)
                pairs = list(itertools.pairwise(widths))
                self.down = nn.ModuleList(Part(one, one, one > widths[0]) for one, _ in pairs)
                self.shrink = nn.ModuleList(nn.Conv2d(one, two, 2, 2) for one, two in pairs)
                self.middle = Part(widths[-1], widths[-1], True)
                self.grow = nn.ModuleList(nn.ConvTranspose2d(two, one, 2, 2) for one, two in reversed(pairs))
                self.up = nn.ModuleList(Part(2 * one, one, one > widths[0]) for one, _ in reversed(pairs))

            def forward(self, x, time, text):
                angles = time[:, None] * torch.arange(1, 129)
                time = torch.cat([angles.sin(), angles.cos()], 1).to(x.dtype)
                x, kept = self.enter(x), []
                for part, shrink in zip(self.down, self.shrink):
                    x = part(x, time, text)
                    kept.append(x)
                    x = shrink(x)
                x = self.middle(x, time, text)
                for part, grow in zip(self.up, self.grow):
                    x = part(torch.cat([grow(x), kept.pop()], 1), time, text)
                return self.leave(x)

        return UNet().to(torch.bfloat16)

    def decoder(self):
        """Returns a network that makes a picture of latents, at eight times their size."""
        nn, layers = self.torch.nn, [self.torch.nn.Conv2d(4, 256, 3, padding=1)]
        for inside, outside in itertools.pairwise((256, 256, 128, 64)):
            layers += [
                nn.GroupNorm(32, inside),
                nn.SiLU(),
                nn.Upsample(scale_factor=2),
                nn.Conv2d(inside, outside, 3, padding=1),
            ]
        return nn.Sequential(*layers, nn.SiLU(), nn.Conv2d(64, 3, 3, padding=1)).to(self.torch.bfloat16)

    def graph_network(self):
        """Training of a graph attention network on sampled neighbourhoods; every few steps it is applied to the entire graph in parts."""
        torch, functional = self.torch, self.functional
        from torch_geometric.nn import GATConv

        nodes, width, classes = 300_000 // self.shorter, 256, 48
        # A few nodes have most of the neighbours.
        degrees = (2 / (torch.rand(nodes) + 0.004)).long().clamp(2, 400)
        starts = functional.pad(degrees.cumsum(0), (1, 0))
        neighbours = (torch.rand(int(starts[-1])) ** 2 * nodes).long()
        features, labels = torch.randn(nodes, width), torch.randint(0, classes, (nodes,))
        convolutions = torch.nn.ModuleList(
            [GATConv(width, 64, heads=4), GATConv(width, 64, heads=4), GATConv(width, classes, heads=1)]
        )
        optimizer = torch.optim.Adam(convolutions.parameters(), lr=1e-3)

        def edges_to(targets, most):
            """Returns the edges to `targets` as (neighbours, places in targets), at most this many for each."""
            counts = degrees[targets].clamp(max=most)
            places = torch.arange(len(targets)).repeat_interleave(counts)
            within = torch.arange(len(places)) - (counts.cumsum(0) - counts)[places]
            if most < 400:
                within = (within + torch.randint(0, 400, within.shape)) % degrees[targets][places]
            return neighbours[starts[targets][places] + within], places

        def block(targets, most):
            """Returns the nodes that a layer needs, the places of its targets among them, and its edges."""
            sources, places = edges_to(targets, most)
            needed, renamed = torch.cat([targets, sources]).unique(return_inverse=True)
            return needed, renamed[: len(targets)], torch.stack([renamed[len(targets) :], places])

        def apply(layer, x, chosen, edges):
            x = convolutions[layer]((x, x[chosen]), edges)
            return functional.elu(x) if layer < 2 else x

        def loss_of(seeds):
            blocks, needed = [], seeds
            for most in (12, 8, 4):
                needed, chosen, edges = block(needed, most)
                blocks.append((chosen, edges))
            x = features[needed]
            for layer, (chosen, edges) in enumerate(reversed(blocks)):
                x = apply(layer, x, chosen, edges)
            return functional.cross_entropy(x, labels[seeds])

        def apply_to_all():
            x = features
            for layer in range(3):
                made = []
                for targets in torch.arange(nodes).split(60_000):
                    needed, chosen, edges = block(targets, 400)
                    made.append(apply(layer, x[needed], chosen, edges))
                x = torch.cat(made)
            return (x.argmax(-1) == labels).float().mean().item()

        for index in itertools.count():
            loss_of(torch.randperm(nodes)[: self.length(256, 6000)]).backward()
            optimizer.step()
            optimizer.zero_grad()
            if index % 16 == 15:
                with torch.no_grad():
                    apply_to_all()
            yield

    def long_context(self):
        """Long prompts that are read in chunks, whose caches are copied as they grow, then an answer; some prompts share a beginning."""
        from transformers import DynamicCache

        model, chunk = self.llama(2, 2048, 8), max(8, 2048 // self.shorter)
        kept = None
        while True:
            cache, length = kept or DynamicCache(config=model.config), self.length(8_000, 64_000)
            kept = None
            with self.torch.no_grad():
                for start in range(0, length, chunk):
                    ids = self.tokens(1, min(chunk, length - start), 16384)
                    model(input_ids=ids, past_key_values=cache, logits_to_keep=1)
                for _ in range(self.draw.randint(4, 20)):
                    logits = model(input_ids=ids[:, -1:], past_key_values=cache, logits_to_keep=1).logits
                    ids = logits[:, -1:].argmax(-1)
                    del logits
            if self.draw.random() < 0.4:
                # The next prompt begins with the first part of this one.
                kept = cache
                shorten(kept, length // 4)
            del cache, ids
            yield


def shorten(cache, length):
    """Removes the keys and values of all tokens after the first `length` from a cache of transformers."""
    more = cache.get_seq_length() - length
    if more:
        cache.crop(-more)


class PrefixTree:
    """The keys and values of prompts by their path in the tree."""

    def __init__(self, limit_bytes):
        self.limit_bytes, self.nodes, self.users, self.used, self.clock = limit_bytes, {}, {}, {}, 0

    def use(self, path):
        """Keeps the nodes of a path from being evicted until `done`; returns how many of them the tree has."""
        self.clock += 1
        for node in path:
            self.users[node] = self.users.get(node, 0) + 1
            self.used[node] = self.clock
        return sum(node in self.nodes for node in path)

    def done(self, path):
        for node in path:
            self.users[node] -= 1

    def values(self, path):
        return [self.nodes[node] for node in path]

    def put(self, node, values):
        self.nodes[node] = values

    def evict(self):
        """Evicts the least recently used leaves until the tree is within its limit."""

        def taken():
            return sum(part.nbytes for values in self.nodes.values() for part in values)

        while taken() > self.limit_bytes:
            parents = {node[:-1] for node in self.nodes}
            leaves = [node for node in self.nodes if node not in parents and not self.users[node]]
            if not leaves:
                return
            del self.nodes[min(leaves, key=self.used.get)]


def record(name, folder):
    """Runs one program in this process and writes its recording. Returns whether it is small enough."""
    import torch

    torch.cuda.init()
    torch.cuda.memory._record_memory_history(max_entries=2_000_000, stacks="python", context=None)
    torch.set_default_device("cuda")
    # Backward passes run in this thread: PyTorch's own threads free some tensors after the caller has continued.
    torch.autograd.set_multithreading_enabled(False)
    program, requests, steps = getattr(Programs(shorter=1), name)(), 0, 0
    while requests < REQUESTS[name]:
        with torch.profiler.record_function(f"ProfilerStep#{steps}"):
            next(program)
        requests, steps = torch.cuda.memory_stats()["allocation.all.allocated"], steps + 1
    torch.cuda.synchronize()
    snapshot, statistics = torch.cuda.memory._snapshot(), dict(torch.cuda.memory_stats())
    packed = lzma.compress(pickle.dumps(snapshot), preset=9 | lzma.PRESET_EXTREME)
    (folder / f"{name}.default.pickle.xz").write_bytes(packed)
    (folder / f"{name}.default.stats.json").write_text(json.dumps(statistics))
    entries = sum(map(len, snapshot["device_traces"]))
    peaks = [f"{statistics[f'{kind}_bytes.all.peak'] / (1 << 30):.2f}" for kind in ("requested", "reserved")]
    print(
        f"| {name} | {steps} | {requests} | {entries} | {peaks[0]} | {peaks[1]} | {len(packed)} |"
        + (" too large" if len(packed) > MOST_BYTES else ""),
        flush=True,
    )
    return len(packed) <= MOST_BYTES


def try_out(name):
    """Takes two steps of a program with shorter inputs on the CPU."""
    program = getattr(Programs(SHORTER), name)()
    for _ in range(2):
        next(program)
    print(name, "took two steps", flush=True)
    return True


def run_all(names, arguments):
    """Runs each program in a process; prints its row or error. Returns the worst exit code."""

    def one(name):
        command = [sys.executable, __file__, *arguments, "--one", name]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=400)
        except subprocess.TimeoutExpired:
            print(f"{name}: no recording was made, because the program took more than 400 seconds", flush=True)
            return 2
        print(done.stdout.strip() or f"{name}: failed\n{done.stderr[-3000:]}", flush=True)
        return done.returncode

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        return max(pool.map(one, names))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=pathlib.Path, metavar="OUT", help="where the recordings go")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"programs: {', '.join(REQUESTS)} (default: all)")
    parser.add_argument("--try", action="store_true", dest="tries", help="only try the programs, on the CPU")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    names = [*([str(options.folder)] if options.tries and options.folder else []), *options.names] or list(REQUESTS)
    unknown = [name for name in names if name not in REQUESTS]
    if unknown:
        parser.error(f"no program is named {unknown[0]}; the programs are {', '.join(REQUESTS)}")
    if not options.tries and not options.folder:
        parser.error("name the folder for the recordings, or use --try")
    if options.one:
        try:
            return int(not (try_out(options.one) if options.tries else record(options.one, options.folder)))
        except Exception:
            traceback.print_exc()
            return 2
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        parser.error(f"the programs need {', '.join(missing)}, which Python does not find; install it with pip")
    if options.tries:
        return run_all(names, ["--try"])
    options.folder.mkdir(parents=True, exist_ok=True)
    print(
        "| program | steps | requests | entries | peak live, GiB | peak reserved, GiB | packed bytes |\n|---|--:|--:|--:|--:|--:|--:|"
    )
    return run_all(names, [str(options.folder)])


if __name__ == "__main__":
    sys.exit(main())
