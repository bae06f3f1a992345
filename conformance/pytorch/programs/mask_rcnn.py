"""Mask R-CNN on images of varying size: the amount of memory that it requests depends on what it detects."""

import torch
import torchvision

from .training import trainer

LIMITED = True


def images(index, count=2):
    """Images of synthetic objects with their boxes, labels and masks."""
    generator = torch.Generator().manual_seed(300 + index)

    def number(low, high):
        return int(torch.randint(low, high, (1,), generator=generator))

    pictures, targets = [], []
    for _ in range(count):
        height, width, objects = number(200, 400), number(200, 400), number(1, 9)
        masks, boxes = torch.zeros(objects, height, width, dtype=torch.uint8), []
        for mask in masks:
            left, top = number(0, width - 60), number(0, height - 60)
            right, bottom = left + number(20, 60), top + number(20, 60)
            mask[top:bottom, left:right] = 1
            boxes.append([left, top, right, bottom])
        labels = torch.randint(1, 8, (objects,), generator=generator)
        pictures.append(torch.rand(3, height, width, generator=generator).cuda())
        targets.append(
            {"boxes": torch.tensor(boxes, dtype=torch.float32).cuda(), "labels": labels.cuda(), "masks": masks.cuda()}
        )
    return pictures, targets


def start(count=None):
    torch.manual_seed(5)
    # Deterministic algorithms pool regions in Python, which takes gigabytes for the usual 2,000 regions. They have no fused
    # region pooling, and compiling the version in Python would take a minute.
    torch._dynamo.config.disable = True
    model = torchvision.models.detection.maskrcnn_resnet50_fpn(
        weights=None,
        weights_backbone=None,
        num_classes=8,
        min_size=224,
        max_size=448,
        box_detections_per_img=20,
        rpn_pre_nms_top_n_train=300,
        rpn_post_nms_top_n_train=100,
        box_batch_size_per_image=64,
    ).cuda()
    model.train()

    def loss_of(model, batch):
        return sum(model(*batch).values())

    train = trainer(model, loss_of)
    return lambda index: train(images(index, count or 2))
