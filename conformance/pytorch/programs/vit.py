"""A vision transformer with Adam, on images of varying size: the number of patches varies, and the attention varies with its square."""

import torch
from torch import nn

from .training import lengths, trainer

LIMITED = True
WIDTH, HEADS, LAYERS, PATCH = 512, 8, 8, 16


class Block(nn.Module):
    def __init__(self, width=WIDTH, heads=HEADS):
        super().__init__()
        self.heads = heads
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        batch, patches, width = x.shape
        query, key, value = (
            self.qkv(self.before(x)).view(batch, patches, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        )
        weights = (query @ key.transpose(-1, -2) / (width // self.heads) ** 0.5).softmax(-1)
        x = x + self.out((weights @ value).transpose(1, 2).reshape(batch, patches, width))
        return x + self.mlp(self.after(x))


class Transformer(nn.Module):
    def __init__(self, most):
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        # The same patch position has the same parameters in images of every size.
        self.places = nn.Parameter(torch.zeros(WIDTH, most // PATCH, most // PATCH))
        self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS)])
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 100))

    def forward(self, pictures):
        x = self.patches(pictures)
        x = x + self.places[:, : x.shape[2], : x.shape[3]]
        return self.head(self.blocks(x.flatten(2).transpose(1, 2)).mean(1))


def start(count=None):
    torch.manual_seed(21)
    model = Transformer(384).cuda()
    height, width = lengths(22, [224, 384, 160, 288]), lengths(23, [256, 192, 320, 384])

    def loss_of(model, batch):
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    train = trainer(model, loss_of, optimizer=torch.optim.Adam(model.parameters(), lr=1e-4))

    def step(index):
        generator = torch.Generator("cuda").manual_seed(600 + index)
        many = count or 16
        pictures = torch.randn(many, 3, height(index), width(index), device="cuda", generator=generator)
        return train((pictures, torch.randint(0, 100, (many,), device="cuda", generator=generator)))

    return step
