"""The probe, pointed at an optimizer: finds its gradients by their place in the header, and measures them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import groupby
from typing import Literal

import torch

from ampmon.iteration import Culprits, Sample
from ampmon.parameters import ParameterRegistry
from ampmon.probe import attribution, eager
from ampmon.probe.gradients import local_gradients
from ampmon.probe.ring import Readback


def known_gradients(
    registry: ParameterRegistry, optimizer: torch.optim.Optimizer
) -> list[tuple[int, torch.Tensor]]:
    """The local gradients of an optimizer, each with its parameter's place in the header."""
    return [
        (index, gradient)
        for parameter, gradient in local_gradients(optimizer)
        if (index := registry.index(parameter)) is not None
    ]


def sample(
    gradients: list[tuple[int, torch.Tensor]],
    elements: int | Literal["all"],
    generator: random.Random,
) -> list[Sample]:
    """Statistics of gradients on any devices, one `Sample` a device. On a CPU at once, elsewhere only enqueued."""
    samples = []
    for device, indices, tensors in _by_device(gradients):
        if device.type == "cpu":
            samples.append(Sample(eager.measure(tensors, indices, elements, generator)))
        else:
            samples.append(Sample(packed=Readback(eager.launch(tensors)), indices=indices))
    return samples


def count_culprits(gradients: list[tuple[int, torch.Tensor]]) -> Culprits:
    """The gradients that are not finite, by reading them all: for a CPU."""
    indices, tensors = [index for index, _ in gradients], [tensor for _, tensor in gradients]
    return Culprits(attribution.count(tensors, indices))


def flag_culprits(gradients: list[tuple[int, torch.Tensor]]) -> list[Culprits]:
    """The gradients that are not finite, found on their devices: only enqueued, one `Culprits` a device."""
    return [
        Culprits(flags=Readback(attribution.flag(tensors)), indices=indices)
        for _, indices, tensors in _by_device(gradients)
    ]


def _by_device(
    gradients: list[tuple[int, torch.Tensor]],
) -> Iterator[tuple[torch.device, list[int], list[torch.Tensor]]]:
    ordered = sorted(gradients, key=lambda entry: str(entry[1].device))
    for device, entries in groupby(ordered, key=lambda entry: entry[1].device):
        indices, tensors = zip(*entries, strict=True)
        yield device, list(indices), list(tensors)
