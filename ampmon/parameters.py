"""Names and numbers parameters: what a record calls 3 is one entry of the stream's header. Holds them weakly."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import torch

from ampmon import wire
from ampmon.config import clean_name
from ampmon.probe.gradients import local_elements


Models: TypeAlias = (
    torch.nn.Module | Iterable[torch.nn.Module] | Mapping[str, torch.nn.Module] | None
)

WRAPPERS = ("module.", "_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")
"""What DataParallel and DDP, torch.compile, FSDP and activation checkpointing put into a parameter's name."""


PARAMETERS_MAX = 100_000
"""Parameters that a stream can name; those beyond are not measured."""


def strip_wrappers(name: str) -> str:
    """A parameter's name as the model's author wrote it."""
    for wrapper in WRAPPERS[1:]:
        name = name.replace(wrapper, "")
    while name.startswith(WRAPPERS[0]):
        name = name.removeprefix(WRAPPERS[0])
    return name


class ParameterRegistry:
    """The parameters of one stream, in the order they were met; the list only grows.

    A name comes from the model where one is given, else from the optimizer's ``param_names`` (there when it was built
    from ``named_parameters()``), else it is made of the index and the shape.
    """

    def __init__(self, models: Models) -> None:
        self._named = _names(models)
        self._entries: dict[int, tuple[weakref.ref[torch.Tensor], int]] = {}
        self._groups: dict[int, tuple[weakref.ref[torch.optim.Optimizer], list[int]]] = {}
        self._free: dict[tuple[str | None, tuple[int, ...], str], list[int]] = {}
        """Places whose parameter is gone, by name, shape and dtype."""
        self._taken: set[str] = set()
        self.parameters: list[wire.Parameter] = []

    def meet(self, optimizer: torch.optim.Optimizer, *, again: bool = False) -> bool:
        """Take in the parameters of an optimizer. Whether there were new ones.

        Looks only at the sizes of its groups where it has met it before, unless told to look ``again``.
        """
        sizes = [len(group["params"]) for group in optimizer.param_groups]
        known = self._groups.get(id(optimizer))
        if not again and known is not None and known[0]() is optimizer and known[1] == sizes:
            return False
        before = len(self.parameters)
        for group in optimizer.param_groups:
            names = group.get("param_names") or [None] * len(group["params"])
            for parameter, name in zip(group["params"], names, strict=False):
                if parameter.requires_grad or parameter.grad is not None:
                    self._add(parameter, name)
        self._groups[id(optimizer)] = (weakref.ref(optimizer), sizes)
        return len(self.parameters) > before

    def living(self) -> list[tuple[int, torch.Tensor]]:
        """The parameters that still exist, with their places in the header."""
        entries = [(index, reference()) for reference, index in self._entries.values()]
        return [(index, parameter) for index, parameter in entries if parameter is not None]

    def index(self, parameter: torch.Tensor) -> int | None:
        """The parameter's place in the header, or None if it was never met."""
        entry = self._entries.get(id(parameter))
        return entry[1] if entry is not None and entry[0]() is parameter else None

    def _add(self, parameter: torch.Tensor, name: str | None) -> None:
        if self.index(parameter) is not None:
            return
        known = self._named.get(id(parameter))
        if known is not None and known[0]() is parameter:
            name = known[1]
        gradient = parameter.grad
        # The gradient is what is measured, but a sparse one has as many rows as the batch had.
        measured = parameter if gradient is None or gradient.is_sparse else gradient
        shape = tuple(local_elements(measured).shape)
        dtype = str(measured.dtype).removeprefix("torch.")
        free = self._free.setdefault((name, shape, dtype), [])
        if not free and len(self.parameters) >= PARAMETERS_MAX:
            return
        index = free.pop() if free else self._append(name, shape, dtype)
        # Who makes parameters anew at every step, as in the search for a latent, goes on where the last one was.
        self._entries[id(parameter)] = (weakref.ref(parameter, _Freed(free, index)), index)

    def _append(self, name: str | None, shape: tuple[int, ...], dtype: str) -> int:
        index = len(self.parameters)
        self.parameters.append(wire.Parameter(self._unique(name, index, shape), shape, dtype))
        return index

    def _unique(self, name: str | None, index: int, shape: tuple[int, ...]) -> str:
        if name is None:
            name = f"parameter {index} [{' × '.join(map(str, shape)) or 'scalar'}]"
        name = clean_name(strip_wrappers(name))[:240]
        if name in self._taken:
            name = f"{name} #{index}"
        self._taken.add(name)
        return name


class _Freed:
    """Called when a parameter is gone: its place may be taken by one like it."""

    __slots__ = ("_free", "_index")

    def __init__(self, free: list[int], index: int) -> None:
        self._free = free
        self._index = index

    def __call__(self, _: weakref.ref[torch.Tensor]) -> None:
        self._free.append(self._index)


def named_models(models: Models) -> list[tuple[str, torch.nn.Module]]:
    """The models given, each with what stands before the names in it: nothing where there is one alone."""
    if models is None:
        return []
    if isinstance(models, torch.nn.Module):
        return [("", models)]
    if isinstance(models, Mapping):
        return [(f"{key}.", model) for key, model in models.items()]
    listed = list(models)
    return [(f"{place}." if len(listed) > 1 else "", model) for place, model in enumerate(listed)]


def _names(models: Models) -> dict[int, tuple[weakref.ref[torch.Tensor], str]]:
    return {
        id(parameter): (weakref.ref(parameter), prefix + strip_wrappers(name))
        for prefix, model in named_models(models)
        for name, parameter in model.named_parameters()
    }


@dataclass(slots=True)
class _Met:
    optimizer: weakref.ref[torch.optim.Optimizer]
    name: str
    turns: int = 0


class OptimizerNames:
    """Names optimizers by class, numbered where there are several; one made anew is another, whatever its address."""

    def __init__(self) -> None:
        self._met: dict[int, _Met] = {}
        self._counts: dict[str, int] = {}

    def name(self, optimizer: torch.optim.Optimizer) -> str:
        return self._meet(optimizer).name

    def turn(self, optimizer: torch.optim.Optimizer) -> int:
        """How often this was asked of the optimizer before, or since `restart`."""
        met = self._meet(optimizer)
        met.turns += 1
        return met.turns - 1

    def restart(self) -> None:
        """Count turns anew."""
        for met in self._met.values():
            met.turns = 0

    def _meet(self, optimizer: torch.optim.Optimizer) -> _Met:
        met = self._met.get(id(optimizer))
        if met is not None and met.optimizer() is optimizer:
            return met
        kind = type(optimizer).__name__
        number = self._counts.get(kind, 0) + 1
        self._counts[kind] = number
        name = kind if number == 1 else f"{kind}-{number}"
        met = self._met[id(optimizer)] = _Met(weakref.ref(optimizer), name)
        return met
