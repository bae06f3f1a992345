"""GraphSAGE that predicts the edges of random graphs: each step has its own numbers of nodes and edges, so no large size ever repeats."""

import torch
from torch import nn
from torch_geometric.nn import SAGEConv

from .training import trainer

LIMITED = True
FEATURES, WIDTH, LAYERS = 64, 128, 3


class GraphSAGE(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolutions = nn.ModuleList(SAGEConv(WIDTH if layer else FEATURES, WIDTH) for layer in range(LAYERS))
        self.score = nn.Sequential(nn.Linear(2 * WIDTH, 4 * WIDTH), nn.ReLU(), nn.Linear(4 * WIDTH, 1))

    def forward(self, x, edges, asked):
        for convolution in self.convolutions:
            x = convolution(x, edges).relu()
        return self.score(torch.cat([x[asked[0]], x[asked[1]]], 1)).squeeze(1)


def start(count=None):
    torch.manual_seed(35)
    model = GraphSAGE().cuda()

    def loss_of(model, batch):
        x, edges, others = batch
        # The edges must have higher scores than as many random pairs of nodes.
        scores = model(x, edges, torch.cat([edges, others], 1))
        signs = torch.ones_like(scores)
        signs[edges.shape[1] :] = -1
        return nn.functional.softplus(-signs * scores).mean()

    train = trainer(model, loss_of)

    def step(index):
        generator = torch.Generator().manual_seed(1000 + index)
        nodes = (count or 4) * int(torch.randint(500, 5000, (1,), generator=generator))
        many = nodes * int(torch.randint(4, 13, (1,), generator=generator))
        x = torch.randn(nodes, FEATURES, generator=generator)
        # Squares of random numbers are often small, so the first nodes have the most edges.
        edges = torch.stack([torch.rand(many, generator=generator), torch.rand(many, generator=generator).square()])
        others = torch.randint(0, nodes, (2, many), generator=generator)
        return train((x.cuda(), (edges * nodes).long().cuda(), others.cuda()))

    return step
