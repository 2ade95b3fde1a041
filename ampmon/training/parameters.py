"""Names and numbers parameters: what a record calls 3 is one entry of the stream's header. Keeps none alive."""

from __future__ import annotations

import heapq
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import repeat
from typing import TypeAlias

import torch

from ampmon import wire
from ampmon.config import clean_name
from ampmon.probe.gradients import local_elements
from ampmon.training import built
from ampmon.training.built import strip_wrappers


Models: TypeAlias = (
    torch.nn.Module | Iterable[torch.nn.Module] | Mapping[str, torch.nn.Module] | None
)

PARAMETERS_MAX = 100_000
"""Parameters that a stream can name; those beyond are not measured."""


_Kind: TypeAlias = tuple[str | None, tuple[int, ...], str]
"""Name, shape and dtype."""


@dataclass(slots=True)
class _Holder:
    """An optimizer, and what it held when it was last looked through: ids and shapes."""

    optimizer: weakref.ref[torch.optim.Optimizer]
    sizes: list[int]
    held: list[tuple[int, torch.Size]]


class ParameterRegistry:
    """The parameters of one stream, in the order they were met; the list only grows.

    A name comes from the model where one is given, or from ``names``, which gives them by id; else from the optimizer's
    ``param_names`` (there when it was built from ``named_parameters()``), else from the models of the process, else it
    is made of the index and the shape.

    A parameter is known by its id while a living optimizer holds it. There is no weak reference to it, for torch swaps
    no tensor that has one, as `Module.to` and `load_state_dict` do.
    """

    def __init__(self, models: Models, names: Callable[[], Mapping[int, str]] = dict) -> None:
        self._given = names
        self._modules = [
            (prefix, name, weakref.ref(module))
            for prefix, model in named_models(models)
            for name, module in model.named_modules()
        ]
        if not self._modules:
            built.see_modules()
        self._holders: dict[int, _Holder] = {}
        self._places: dict[int, int] = {}
        self._kinds: list[_Kind] = []
        self._free: dict[_Kind, list[int]] = {}
        """Places whose parameter no optimizer holds any more, each list a heap."""
        self._taken: set[str] = set()
        self.parameters: list[wire.Parameter] = []

    def meet(self, optimizer: torch.optim.Optimizer, *, again: bool = False) -> bool:
        """Take in the parameters of an optimizer. Whether there were new ones.

        Looks only at the sizes of its groups where it has met it before, unless it is to look ``again``.
        """
        sizes = [len(group["params"]) for group in optimizer.param_groups]
        holder = self._holders.get(id(optimizer))
        if holder is not None and holder.optimizer() is not optimizer:
            holder = None
        if holder is not None and not again and holder.sizes == sizes:
            return False
        before = len(self.parameters)
        held = [
            (id(each), each.shape) for group in optimizer.param_groups for each in group["params"]
        ]
        changed = holder is None or holder.held != held
        full = before >= PARAMETERS_MAX
        if not changed and (full or all(each in self._places for each, _ in held)):
            return False
        met = [each for each in _held(optimizer) if changed or self._misses(each[0])]
        if met:
            known = self._names()
            names = {id(each): known.get(id(each)) or name for each, name in met}
            # All modules of the process are walked only where a name is missing.
            others = {} if all(names.values()) else built.names()
            kinds = {
                id(each): _kind(each, names[id(each)] or others.get(id(each))) for each, _ in met
            }
            if changed:
                self._release(optimizer, kinds)
            for parameter, _ in met:
                if self._misses(parameter):
                    self._add(parameter, kinds[id(parameter)])
        self._holders[id(optimizer)] = _Holder(weakref.ref(optimizer), sizes, held)
        return len(self.parameters) > before

    def living(self) -> list[tuple[int, torch.Tensor]]:
        """The parameters that living optimizers hold, with their places in the header."""
        optimizers = [holder.optimizer() for holder in self._holders.values()]
        found = {
            place: parameter
            for optimizer in optimizers
            if optimizer is not None
            for parameter, _ in _held(optimizer)
            if (place := self.index(parameter)) is not None
        }
        return list(found.items())

    def of_models(self) -> set[int]:
        """The ids of the parameters that the known models hold now; empty where no model is known."""
        return set(self._names() or built.names())

    def index(self, parameter: torch.Tensor) -> int | None:
        """The place in the header of a parameter that a living optimizer holds, or None if it was never met."""
        return self._places.get(id(parameter))

    def _misses(self, parameter: torch.Tensor) -> bool:
        if id(parameter) in self._places:
            return False
        return parameter.requires_grad or parameter.grad is not None

    def _release(self, optimizer: torch.optim.Optimizer, kinds: Mapping[int, _Kind]) -> None:
        """Free what no optimizer holds any more, when one turns out to hold parameters of these kinds, by id.

        An id that is known may be another parameter's by now: then its name or its shape is another.
        """
        self._holders = {
            key: holder
            for key, holder in self._holders.items()
            if (living := holder.optimizer()) is not None and living is not optimizer
        }
        held = {each for holder in self._holders.values() for each, _ in holder.held}
        for identity in self._places.keys() - held:
            kind = self._kinds[self._places[identity]]
            if identity not in kinds or kinds[identity][:2] != kind[:2]:
                heapq.heappush(self._free.setdefault(kind, []), self._places.pop(identity))

    def _add(self, parameter: torch.Tensor, kind: _Kind) -> None:
        # Who makes parameters anew at every step, as in the search for a latent, goes on where the last one was.
        if free := self._free.get(kind):
            self._places[id(parameter)] = heapq.heappop(free)
        elif len(self.parameters) < PARAMETERS_MAX:
            self._places[id(parameter)] = self._append(kind)

    def _append(self, kind: _Kind) -> int:
        index = len(self.parameters)
        name, shape, dtype = kind
        self._kinds.append(kind)
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

    def _names(self) -> dict[int, str]:
        """What the models call their parameters now, by id."""
        names = {**self._given()}
        for prefix, path, reference in self._modules:
            module = reference()
            if module is not None:
                for name, parameter in module._parameters.items():
                    full = strip_wrappers(f"{path}.{name}" if path else name)
                    names.setdefault(id(parameter), prefix + full)
        return names


def _held(optimizer: torch.optim.Optimizer) -> Iterator[tuple[torch.Tensor, str | None]]:
    """What an optimizer holds, each with the name that it was given there."""
    for group in optimizer.param_groups:
        names = group.get("param_names") or repeat(None)
        yield from zip(group["params"], names, strict=False)


def _kind(parameter: torch.Tensor, name: str | None) -> _Kind:
    gradient = parameter.grad
    # The gradient is what is measured, but a sparse one has as many rows as the batch had.
    measured = parameter if gradient is None or gradient.is_sparse else gradient
    shape = tuple(local_elements(measured).shape)
    return name, shape, str(measured.dtype).removeprefix("torch.")


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


@dataclass(slots=True)
class _Met:
    optimizer: weakref.ref[torch.optim.Optimizer]
    name: str
    turns: int = 0
    after: _Met | None = None
    """The one whose turn came next."""


class OptimizerNames:
    """Names optimizers by class, numbered where there are several; one made anew is another, whatever its address."""

    def __init__(self) -> None:
        self._met: dict[int, _Met] = {}
        self._counts: dict[str, int] = {}
        self._last: _Met | None = None
        """The optimizer whose turn was asked for last."""

    def living(self, optimizer: int) -> torch.optim.Optimizer | None:
        """The optimizer with this id, if it was met and lives."""
        return self._met[optimizer].optimizer() if optimizer in self._met else None

    def name(self, optimizer: torch.optim.Optimizer) -> str:
        return self._meet(optimizer).name

    def turn(self, optimizer: torch.optim.Optimizer) -> int:
        """How often this was asked of the optimizer before, or since `restart`."""
        met = self._meet(optimizer)
        if self._last is not None:
            self._last.after = met
        self._last = met
        met.turns += 1
        return met.turns - 1

    def last(self) -> torch.optim.Optimizer | None:
        """The optimizer whose turn was asked for last, if it lives."""
        return self._last.optimizer() if self._last is not None else None

    def coming(self) -> int:
        """What `turn` will give for the optimizer of which it was asked last."""
        return self._last.turns if self._last is not None else 0

    def expected(self) -> int:
        """What `turn` will give if the next optimizer is the one that came next the last time."""
        after = self._last.after if self._last is not None else None
        return after.turns if after is not None and after.optimizer() else self.coming()

    def turned(self, turns: int) -> None:
        """That optimizer had so many turns that nobody asked for."""
        if self._last is not None:
            self._last.turns += turns

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
