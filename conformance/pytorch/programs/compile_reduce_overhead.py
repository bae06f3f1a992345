"""torch.compile(mode="reduce-overhead"): trees of CUDA graphs in one pool, whose state is saved and restored between graphs."""

import torch
from torch import nn

LIMITED = False


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def start(count=None):
    torch.manual_seed(9)
    model = nn.Sequential(*[Block(384) for _ in range(3)]).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    compiled = torch.compile(model, mode="reduce-overhead", dynamic=False)

    def step(index):
        torch.compiler.cudagraph_mark_step_begin()
        generator = torch.Generator("cuda").manual_seed(index)
        # Three runs of a shape before it changes: a tree warms up, records, and replays.
        x = torch.randn((64, 96, 160)[index // 4 % 3] * (count or 1), 384, device="cuda", generator=generator)
        loss = compiled(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if index % 4 == 3:
            with torch.no_grad():
                compiled(x[: 32 * (count or 1)])
        return loss.item()

    return step
