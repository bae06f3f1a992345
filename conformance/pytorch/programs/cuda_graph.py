"""Training steps captured as CUDA graphs of several shapes, in a shared pool and in separate pools; some are reset and captured again."""

import gc

import torch
from torch import nn

LIMITED = True
SHAPES = [(8, 512), (32, 512), (3, 512), (64, 512)]


class Captured:
    """One training step of `model`, captured for one shape."""

    def __init__(self, model, optimizer, shape, pool):
        self.x = torch.zeros(*shape, device="cuda")
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                model(self.x).square().mean().backward()
                # Gradients that two streams use are freed while the GPU is idle, and their events complete before the next request.
                torch.cuda.synchronize()
                optimizer.zero_grad(set_to_none=True)
                torch.cuda.synchronize()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, pool=pool):
            self.loss = model(self.x).square().mean()
            self.loss.backward()
        # The gradients lie in the graph's pool: each graph keeps its own.
        self.gradients = [parameter.grad for parameter in model.parameters()]
        optimizer.zero_grad(set_to_none=True)

    def replay(self, model, optimizer, values):
        self.x.copy_(values)
        self.graph.replay()
        for parameter, gradient in zip(model.parameters(), self.gradients):
            parameter.grad = gradient
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return self.loss.item()


def start():
    torch.manual_seed(7)
    model = nn.Sequential(
        *[layer for _ in range(4) for layer in (nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512))]
    ).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    shared, graphs = torch.cuda.graph_pool_handle(), {}

    def step(index):
        shape = SHAPES[index % len(SHAPES)]
        if index % 7 == 5:
            graphs.pop(shape, None)
            gc.collect()
        try:
            if shape not in graphs:
                graphs[shape] = Captured(model, optimizer, shape, shared if index % 2 else None)
            values = torch.randn(*shape, device="cuda", generator=torch.Generator("cuda").manual_seed(index))
            loss = graphs[shape].replay(model, optimizer, values)
        except torch.OutOfMemoryError:
            graphs.clear()
            optimizer.zero_grad(set_to_none=True)
            raise
        # Run eager work between replays, in the default pool.
        with torch.no_grad():
            return loss + model(torch.ones(100 * (1 + index % 3), 512, device="cuda")).mean().item()

    return step
