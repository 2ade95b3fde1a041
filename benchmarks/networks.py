"""GPT-2 and ResNet-50 with random weights and batches. Independent of precision and scalers.

The cost of a training step depends on shapes alone, so no data set and no pretrained weights are needed.
"""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, relu

from ampmon_server.demo.model import GPT, ModelSize


Batch: TypeAlias = tuple[Tensor, Tensor]

VOCABULARY = 50257
GPT2 = ModelSize(layers=12, heads=12, width=768, context=1024, batch=8)
TINY = ModelSize(layers=1, heads=1, width=8, context=8, batch=1)
"""For tests."""
RESNET50 = (3, 4, 6, 3)


def gpt2(size: ModelSize = GPT2, vocabulary: int = VOCABULARY) -> nn.Module:
    """GPT-2 small: 124 million parameters in 148 tensors, the head tied to the embedding."""
    model = GPT(vocabulary, size)
    model.head = nn.Linear(size.width, vocabulary, bias=False)
    model.head.weight = model.characters.weight
    return model


def tokens(size: ModelSize = GPT2, vocabulary: int = VOCABULARY) -> Batch:
    """Random token ids and the id that follows each, both int64 [batch, context]."""
    windows = torch.randint(vocabulary, (size.batch, size.context + 1))
    return windows[:, :-1], windows[:, 1:]


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions and a shortcut, on [batch, channels, height, width]. A stride of 2 halves sides."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = 4 * width
        self.reduce = _convolution(channels, width, 1)
        self.mix = _convolution(width, width, 3, stride)
        self.expand = _convolution(width, out, 1)
        fits = stride == 1 and channels == out
        self.short_cut = nn.Identity() if fits else _convolution(channels, out, 1, stride)

    def forward(self, images: Tensor) -> Tensor:
        found = self.expand(relu(self.mix(relu(self.reduce(images)))))
        return relu(found + self.short_cut(images))


class ResNet(nn.Module):
    """A ResNet of bottlenecks. By default it is ResNet-50: 25.6 million parameters in 161 tensors."""

    def __init__(self, stages: tuple[int, ...] = RESNET50, width: int = 64, classes: int = 1000):
        super().__init__()
        self.stem = _convolution(3, width, 7, 2)
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        blocks: list[nn.Module] = []
        channels = width
        for stage, depth in enumerate(stages):
            for place in range(depth):
                stride = 2 if stage and not place else 1
                blocks.append(Bottleneck(channels, width << stage, stride))
                channels = 4 * (width << stage)
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(channels, classes)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        """The mean loss in nats per image. Images are fp32 [batch, 3, height, width], labels int64 [batch]."""
        features = self.blocks(self.pool(relu(self.stem(images)))).mean((2, 3))
        return cross_entropy(self.head(features).float(), labels)


def images(batch: int = 64, side: int = 224, classes: int = 1000) -> Batch:
    """Random images, fp32 [batch, 3, side, side], and labels, int64 [batch]."""
    return torch.randn(batch, 3, side, side), torch.randint(classes, (batch,))


def _convolution(channels: int, out: int, side: int, stride: int = 1) -> nn.Module:
    convolution = nn.Conv2d(channels, out, side, stride, padding=side // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(out))
