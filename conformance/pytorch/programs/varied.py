"""Programs generated from a number: a model, a distribution of sizes, an optimizer, and a number of steps. The same number makes the same program in every run.

Advice on runs that died is calibrated on these programs and tested with them: `closed_loop.py` runs them. `describe(number)` describes a program.
"""

import random

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

MODELS = (
    "decoder",
    "encoder",
    "seq2seq",
    "convnet",
    "unet",
    "graph",
    "recurrent",
    "speech",
    "experts",
    "recommender",
    "generate",
    "diffusion",
)
LAWS = ("fixed", "uniform", "heavy", "buckets", "growing", "rare", "cycle")


class Law:
    """Sizes between a minimum and a maximum, by one of `LAWS`."""

    def __init__(self, name, draw, least, most, steps):
        self.name, self.draw, self.least, self.most, self.steps = name, draw, least, most, steps
        self.buckets = sorted(draw.randint(least, most) for _ in range(draw.randint(2, 6)))

    def __call__(self, index):
        least, most, draw = self.least, self.most, self.draw
        if self.name == "fixed":
            return most
        if self.name == "uniform":
            return draw.randint(least, most)
        if self.name == "heavy":
            return min(most, int(least * draw.lognormvariate(0.3, 0.6)) + 1)
        if self.name == "buckets":
            return draw.choice(self.buckets)
        if self.name == "growing":
            return least + (most - least) * index // max(1, self.steps - 1)
        if self.name == "rare":
            return most if draw.random() < 0.08 else draw.randint(least, (least + most) // 2)
        return self.buckets[index % len(self.buckets)]


class Attention(nn.Module):
    """Attention that keeps its scores, and a feed-forward layer."""

    def __init__(self, width, heads, experts=0):
        super().__init__()
        self.heads, self.experts = heads, experts
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        mlp = lambda: nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.mlp = nn.ModuleList(mlp() for _ in range(max(1, experts)))
        self.gate = nn.Linear(width, experts) if experts else None

    def forward(self, x, causal=True):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / (width // self.heads) ** 0.5
        if causal:
            scores = scores.masked_fill(
                torch.ones(length, length, device=x.device, dtype=torch.bool).triu(1), float("-inf")
            )
        x = x + self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, width))
        y = self.norm2(x)
        if self.gate is None:
            return x + self.mlp[0](y)
        flat, result = y.reshape(-1, width), torch.zeros_like(y).reshape(-1, width)
        chosen = self.gate(flat).argmax(-1)
        for number, expert in enumerate(self.mlp):
            places = (chosen == number).nonzero().squeeze(1)
            if len(places):
                result = result.index_add(0, places, expert(flat[places]).to(result.dtype))
        return x + result.view_as(x)


class Stack(nn.Module):
    def __init__(self, vocabulary, width, layers, heads, experts=0, checkpointed=False):
        super().__init__()
        self.embed, self.head = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary)
        self.layers = nn.ModuleList(Attention(width, heads, experts) for _ in range(layers))
        self.checkpointed = checkpointed

    def hidden(self, ids, causal=True):
        x = self.embed(ids)
        for layer in self.layers:
            x = (
                checkpoint(layer, x, causal, use_reentrant=False)
                if self.checkpointed and self.training
                else layer(x, causal)
            )
        return x

    def forward(self, ids, causal=True):
        return self.head(self.hidden(ids, causal))


class Block(nn.Module):
    def __init__(self, before, after):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(before, after, 3, padding=1),
            nn.GroupNorm(8, after),
            nn.ReLU(),
            nn.Conv2d(after, after, 3, padding=1),
            nn.GroupNorm(8, after),
        )
        self.skip = nn.Conv2d(before, after, 1)

    def forward(self, x):
        return F.relu(self.body(x) + self.skip(x))


class ConvNet(nn.Module):
    def __init__(self, widths):
        super().__init__()
        self.blocks = nn.ModuleList(Block(a, b) for a, b in zip([3, *widths], widths))
        self.head = nn.Linear(widths[-1], 100)

    def forward(self, x):
        for block in self.blocks:
            x = F.max_pool2d(block(x), 2)
        return self.head(x.mean((2, 3)))


class UNet(nn.Module):
    def __init__(self, widths):
        super().__init__()
        self.down = nn.ModuleList(Block(a, b) for a, b in zip([3, *widths], widths))
        self.up = nn.ModuleList(Block(a + b, a) for a, b in zip(widths[-2::-1], widths[:0:-1]))
        self.head = nn.Conv2d(widths[0], 3, 1)

    def forward(self, x):
        kept = []
        for place, block in enumerate(self.down):
            x = block(x)
            if place < len(self.down) - 1:
                kept.append(x)
                x = F.max_pool2d(x, 2)
        for block in self.up:
            skip = kept.pop()
            x = block(torch.cat([F.interpolate(x, size=skip.shape[2:]), skip], 1))
        return self.head(x)


class Graph(nn.Module):
    def __init__(self, width, layers):
        super().__init__()
        self.inside = nn.Linear(64, width)
        self.messages = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(layers))
        self.head = nn.Linear(width, 16)

    def forward(self, x, edges):
        x = self.inside(x)
        for layer in self.messages:
            sent = F.relu(layer(torch.cat([x[edges[0]], x[edges[1]]], 1)))
            x = x + torch.zeros_like(x).index_add(0, edges[1], sent)
        return self.head(x)


def describe(number):
    """Returns the parts of program `number` by name."""
    draw = random.Random(number)
    model = MODELS[number % len(MODELS)]
    law = draw.choice(LAWS)
    steps = draw.choice((6, 10, 16, 24, 40))
    optimizer = draw.choice(("adamw", "adamw", "sgd", "momentum"))
    extra = draw.choice(("none", "none", "none", "accumulate", "evaluate", "checkpoint", "clip", "logging"))
    half = draw.random() < 0.3
    seed = draw.randrange(1 << 30)
    # Batches grow by one every 72 numbers: memory is taken in pages, which matter less to larger programs.
    return {
        "model": model,
        "law": law,
        "steps": steps,
        "optimizer": optimizer,
        "extra": extra,
        "half": half,
        "seed": seed,
        "times": 1 + number // 72 % 4,
    }


def start(number):
    """The number of steps of a program, and its `step(index)`."""
    what = describe(number)
    draw = random.Random(what["seed"])
    torch.manual_seed(what["seed"])
    model, losses = make(what, draw)
    model = model.cuda()
    if what["model"] == "generate":
        return what["steps"], lambda index: losses(model, index)
    kinds = {
        "adamw": lambda: torch.optim.AdamW(model.parameters(), 1e-4, foreach=draw.random() < 0.5),
        "sgd": lambda: torch.optim.SGD(model.parameters(), 1e-3),
        "momentum": lambda: torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9),
    }
    optimizer = kinds[what["optimizer"]]()
    accumulate = 3 if what["extra"] == "accumulate" else 1
    kept = []

    def step(index):
        for _ in range(accumulate):
            with torch.autocast("cuda", torch.bfloat16, enabled=what["half"]):
                loss = losses(model, index)
            loss.backward()
        if what["extra"] == "clip":
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if what["extra"] == "logging":
            kept.append(torch.full((draw.randint(1, 1 << 18),), float(loss), device="cuda"))
        if what["extra"] == "evaluate" and index % 4 == 3:
            with torch.no_grad():
                model.eval()
                for _ in range(2):
                    losses(model, index)
                model.train()
        return float(loss.detach())

    return what["steps"], step


def make(what, draw):
    """The model of a program, and the function of model and step that returns a loss."""
    name, steps, checkpointed = what["model"], what["steps"], what["extra"] == "checkpoint"
    law = lambda least, most, times=1: Law(what["law"], draw, times * least, times * most, steps)
    more = what["times"]
    words = lambda *shape: torch.randint(0, 8000, shape, device="cuda")
    entropy = lambda logits, target: F.cross_entropy(logits.float().flatten(0, -2), target.flatten())
    if name in ("decoder", "experts", "encoder"):
        model = Stack(
            8000, draw.choice((256, 384, 512)), draw.randint(3, 8), 8, 6 if name == "experts" else 0, checkpointed
        )
        batch, length = (
            law(2, draw.randint(4, 12), more)
            if draw.random() < 0.4
            else (lambda index, of=more * draw.randint(4, 10): of),  # noqa: B008 - drawn once
            law(96, draw.randint(256, 640)),
        )

        def tokens(model, index):
            ids = words(batch(index), length(index))
            return entropy(model(ids, name != "encoder"), ids)

        return model, tokens
    if name == "seq2seq":
        model = nn.ModuleList([Stack(8000, 384, draw.randint(2, 4), 6), Stack(8000, 384, draw.randint(2, 4), 6)])
        source, target, batch = (
            law(64, draw.randint(256, 512)),
            law(48, draw.randint(200, 400)),
            more * draw.randint(4, 10),
        )

        def translate(model, index):
            memory = model[0].hidden(words(batch, source(index)), False)
            ids = words(batch, target(index))
            x = model[1].hidden(ids) + (torch.softmax(model[1].hidden(ids) @ memory.transpose(1, 2), -1) @ memory)
            return entropy(model[1].head(x), ids)

        return model, translate
    if name in ("convnet", "unet", "diffusion"):
        widths = [draw.choice((32, 48, 64)) * part for part in ((1, 2, 4) if name != "convnet" else (1, 2, 4, 6))]
        model = ConvNet(widths) if name == "convnet" else UNet(widths)
        batch, side = more * draw.randint(4, 12), law(96, draw.randint(160, 288))
        both = draw.random() < 0.4

        def images(model, index):
            high = side(index)
            wide = side(index) if both else high
            x = torch.randn(batch, 3, high // 8 * 8, wide // 8 * 8, device="cuda")
            y = model(x)
            return y.float().pow(2).mean() if name == "convnet" else F.mse_loss(y.float(), x)

        return model, images
    if name == "graph":
        model, nodes = Graph(draw.choice((128, 256)), draw.randint(3, 6)), law(4000, draw.randint(15000, 40000), more)

        def graphs(model, index):
            count = nodes(index)
            edges = torch.randint(0, count, (2, count * draw.randint(3, 6)), device="cuda")
            return model(torch.randn(count, 64, device="cuda"), edges).float().pow(2).mean()

        return model, graphs
    if name in ("recurrent", "speech"):
        width = draw.choice((256, 512))
        front = nn.Sequential(nn.Conv1d(80, width, 5, 2, 2), nn.ReLU(), nn.Conv1d(width, width, 5, 2, 2), nn.ReLU())
        model = nn.ModuleList(
            [
                front,
                nn.LSTM(width, width, draw.randint(2, 4), batch_first=True, bidirectional=name == "speech"),
                nn.Linear(width * (2 if name == "speech" else 1), 64),
            ]
        )
        batch, length = more * draw.randint(8, 32), law(300, draw.randint(1200, 2400))

        def sounds(model, index):
            frames = model[0](torch.randn(batch, 80, length(index), device="cuda")).transpose(1, 2)
            logits = model[2](model[1](frames)[0]).float()
            if name == "recurrent":
                return logits.pow(2).mean()
            steps_of = torch.full((batch,), logits.shape[1], dtype=torch.long)
            target = torch.randint(1, 64, (batch, 30), device="cuda")
            return F.ctc_loss(
                logits.log_softmax(-1).transpose(0, 1), target, steps_of, torch.full((batch,), 30, dtype=torch.long)
            )

        return model, sounds
    if name == "recommender":
        model = nn.ModuleList(
            [
                nn.EmbeddingBag(draw.randint(100000, 400000), 128),
                nn.Sequential(nn.Linear(128, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 1)),
            ]
        )
        rows, bag = law(4000, draw.randint(12000, 30000), more), draw.randint(10, 40)

        def clicks(model, index):
            count = rows(index)
            ids = torch.randint(0, model[0].num_embeddings, (count, bag), device="cuda")
            return model[1](model[0](ids)).float().pow(2).mean()

        return model, clicks
    model, batch, prompt, new_words = (
        Stack(8000, 512, draw.randint(4, 8), 8),
        law(4, draw.randint(8, 24), more),
        law(64, draw.randint(128, 320)),
        draw.randint(16, 48),
    )

    def generate(model, index):
        with torch.no_grad():
            ids = words(batch(index), prompt(index))
            keys = [model.hidden(ids) for _ in range(3)]
            for _ in range(new_words):
                new = model.hidden(ids[:, -1:])
                keys = [torch.cat([key, new], 1) for key in keys]
                ids = torch.cat(
                    [ids, model.head((torch.softmax(new @ keys[0].transpose(1, 2), -1) @ keys[1]) + new).argmax(-1)], 1
                )
            return float(sum(key.float().mean() for key in keys))

    return model, generate
