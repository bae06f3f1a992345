"""ResNet-50 with momentum, and batches of varying size: large activations that are the same in every step of a size."""

import torch
import torchvision

from .training import lengths, trainer

LIMITED = True


def start(count=None):
    torch.manual_seed(19)
    model = torchvision.models.resnet50(weights=None, num_classes=100).cuda()
    model.train()
    size = lengths(20, [24, 8, 32, 16])

    def loss_of(model, batch):
        return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])

    train = trainer(model, loss_of, optimizer=torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9))

    def step(index):
        generator = torch.Generator("cuda").manual_seed(500 + index)
        many = count or size(index)
        pictures = torch.randn(many, 3, 224, 224, device="cuda", generator=generator)
        return train((pictures, torch.randint(0, 100, (many,), device="cuda", generator=generator)))

    return step
