"""A small U-Net that learns to remove noise, on images of varying size, with a moving average of its weights."""

import copy
import itertools

import torch
from torch import nn

from .training import lengths, trainer

LIMITED = True
WIDTHS = (64, 128, 256, 384)


class Part(nn.Module):
    """Two convolutions with a skip connection, with the time embedding of the noise added between them."""

    def __init__(self, inside, outside):
        super().__init__()
        self.first = nn.Sequential(nn.GroupNorm(8, inside), nn.SiLU(), nn.Conv2d(inside, outside, 3, padding=1))
        self.second = nn.Sequential(nn.GroupNorm(8, outside), nn.SiLU(), nn.Conv2d(outside, outside, 3, padding=1))
        self.time, self.around = nn.Linear(64, outside), nn.Conv2d(inside, outside, 1)

    def forward(self, x, time):
        return self.around(x) + self.second(self.first(x) + self.time(time)[:, :, None, None])


class Attention(nn.Module):
    """Attention between all positions of the smallest image."""

    def __init__(self, width):
        super().__init__()
        self.norm, self.qkv, self.out = (
            nn.GroupNorm(8, width),
            nn.Conv2d(width, 3 * width, 1),
            nn.Conv2d(width, width, 1),
        )

    def forward(self, x):
        query, key, value = self.qkv(self.norm(x)).flatten(2).chunk(3, 1)
        weights = (query.transpose(1, 2) @ key / x.shape[1] ** 0.5).softmax(-1)
        return x + self.out((value @ weights.transpose(1, 2)).view_as(x))


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.leave = nn.Conv2d(3, WIDTHS[0], 3, padding=1), nn.Conv2d(WIDTHS[0], 3, 3, padding=1)
        pairs = list(itertools.pairwise(WIDTHS))
        self.down = nn.ModuleList(Part(one, one) for one, _ in pairs)
        self.shrink = nn.ModuleList(nn.Conv2d(one, two, 2, 2) for one, two in pairs)
        self.middle, self.attention = Part(WIDTHS[-1], WIDTHS[-1]), Attention(WIDTHS[-1])
        self.grow = nn.ModuleList(nn.ConvTranspose2d(two, one, 2, 2) for one, two in reversed(pairs))
        self.up = nn.ModuleList(Part(2 * one, one) for one, _ in reversed(pairs))

    def forward(self, x, time):
        x, kept = self.enter(x), []
        for part, shrink in zip(self.down, self.shrink):
            x = part(x, time)
            kept.append(x)
            x = shrink(x)
        x = self.attention(self.middle(x, time))
        for part, grow in zip(self.up, self.grow):
            x = part(torch.cat([grow(x), kept.pop()], 1), time)
        return self.leave(x)


def start(count=None):
    torch.manual_seed(27)
    model = UNet().cuda()
    average = copy.deepcopy(model).requires_grad_(False)
    size, many = lengths(28, [128, 256, 192, 160]), lengths(29, [8, 12, 4, 16])
    waves = torch.arange(1, 33, device="cuda").float()

    def loss_of(model, batch):
        pictures, noise, time = batch
        angles = time[:, None] * waves
        strength = time[:, None, None, None]
        found = model((1 - strength) * pictures + strength * noise, torch.cat([angles.sin(), angles.cos()], 1))
        return (found - noise).square().mean()

    train = trainer(model, loss_of)

    def step(index):
        generator = torch.Generator("cuda").manual_seed(800 + index)
        shape = (count or many(index), 3, size(index), size(index))
        pictures, noise = (torch.randn(*shape, device="cuda", generator=generator) for _ in range(2))
        loss = train((pictures, noise, torch.rand(shape[0], device="cuda", generator=generator)))
        with torch.no_grad():
            for slow, fast in zip(average.parameters(), model.parameters()):
                slow.lerp_(fast, 0.01)
        return loss

    return step
