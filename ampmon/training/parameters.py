"""Names parameters, and gives each the index by which records refer to it. Keeps none alive."""

from __future__ import annotations

import heapq
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, repeat
from typing import TypeAlias

import torch
from torch.nn.parameter import is_lazy

from ampmon import wire
from ampmon.config import clean_name
from ampmon.probe.gradients import local_elements
from ampmon.training import built
from ampmon.training.built import strip_wrappers


Models: TypeAlias = (
    torch.nn.Module | Iterable[torch.nn.Module] | Mapping[str, torch.nn.Module] | None
)

PARAMETERS_MAX = 100_000
"""The most parameters that a stream can name. Others are not measured."""
RECENT = 64
"""Turns of optimizers. One without a turn among the last ones is taken to be no longer in use."""
_BEGINNERS = 8
"""The number of first optimizers whose turns are counted from 0. Scripts may create an optimizer for every update."""


_Kind: TypeAlias = tuple[str | None, tuple[int, ...], str]
"""Name, shape and dtype."""


@dataclass(slots=True)
class _Holder:
    """An optimizer, with its group sizes and its parameters' ids and shapes at the last check."""

    optimizer: weakref.ref[torch.optim.Optimizer]
    sizes: list[int]
    held: list[tuple[int, torch.Size]]


class ParameterRegistry:
    """The parameters of one stream, in the order they were met. The list only grows.

    A name comes from the first source that has one: the given model, ``names`` (by id), the optimizer's ``param_names``
    (if it was built from ``named_parameters()``), the models of the process, index and shape.

    A parameter is known by its id while a living optimizer holds it. A weak reference would keep torch from swapping
    the tensor, as `Module.to` and `load_state_dict` do.
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
        """Places whose parameter no optimizer holds any more. Each list is a heap."""
        self._taken: set[str] = set()
        self.parameters: list[wire.Parameter] = []

    def meet(self, optimizer: torch.optim.Optimizer, *, again: bool = False) -> bool:
        """Register an optimizer's parameters. Return whether there are new ones.

        For a known optimizer, checks only whether the sizes of its groups have changed, unless ``again``.
        """
        sizes = [len(group["params"]) for group in optimizer.param_groups]
        holder = self._holders.get(id(optimizer))
        if holder is not None and holder.optimizer() is not optimizer:
            holder = None
        if holder is not None and not again and holder.sizes == sizes:
            return False
        before = len(self.parameters)
        held = [(id(each), each.shape) for each, _ in _held(optimizer)]
        changed = holder is None or holder.held != held
        full = before >= PARAMETERS_MAX
        if not changed and (full or all(each in self._places for each, _ in held)):
            return False
        met = [each for each in _held(optimizer) if changed or self._misses(each[0])]
        if met:
            known = self._names()
            names = {id(each): known.get(id(each)) or name for each, name in met}
            # Walk all modules of the process only if a name is missing.
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

    def of_models(self) -> dict[int, tuple[str, bool]]:
        """For each parameter of the known models, by id: its name there, and whether it is trained."""
        given = [
            (prefix, model)
            for prefix, path, reference in self._modules
            if not path and (model := reference()) is not None
        ]
        return {
            id(each): (prefix + name, each.requires_grad)
            for prefix, model in given or built.models()
            for name, each in model.named_parameters()
        }

    def index(self, parameter: torch.Tensor) -> int | None:
        """The place in the header of a parameter that a living optimizer holds, or None if it is unknown."""
        return self._places.get(id(parameter))

    def _misses(self, parameter: torch.Tensor) -> bool:
        if id(parameter) in self._places:
            return False
        return parameter.requires_grad or parameter.grad is not None

    def _release(self, optimizer: torch.optim.Optimizer, kinds: Mapping[int, _Kind]) -> None:
        """Free the places that no optimizer holds any more. ``kinds``, by id, are those of the given optimizer.

        A known id may belong to another parameter by now. Then its name or shape differs.
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
        # A script may create a parameter for every step, such as a latent to optimise. It reuses the last one's place.
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
        # The wire takes 256 characters, a number included.
        name = clean_name(strip_wrappers(name))[:240]
        if name in self._taken:
            name = f"{name} #{index}"
        self._taken.add(name)
        return name

    def _names(self) -> dict[int, str]:
        """The current names in the given models, by id."""
        names = {**self._given()}
        for prefix, path, reference in self._modules:
            module = reference()
            if module is not None:
                for name, parameter in module._parameters.items():
                    full = strip_wrappers(f"{path}.{name}" if path else name)
                    names.setdefault(id(parameter), prefix + full)
        return names


def _held(optimizer: torch.optim.Optimizer) -> Iterator[tuple[torch.Tensor, str | None]]:
    """Yield an optimizer's initialized parameters, each with the name that the optimizer has for it."""
    for group in optimizer.param_groups:
        # Scripts that add to the list of parameters may leave out the list of names.
        names = chain(group.get("param_names") or (), repeat(None))
        yield from (
            each for each in zip(group["params"], names, strict=False) if not is_lazy(each[0])
        )


def _kind(parameter: torch.Tensor, name: str | None) -> _Kind:
    gradient = parameter.grad
    # The gradient is what is measured, but the rows of a sparse one depend on the batch.
    measured = parameter if gradient is None or gradient.is_sparse else gradient
    shape = tuple(local_elements(measured).shape)
    return name, shape, str(measured.dtype).removeprefix("torch.")


def named_models(models: Models) -> list[tuple[str, torch.nn.Module]]:
    """Return the given models, each with the prefix of its names: empty for a single model without a key."""
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
    newest: int = 0
    """The number of its newest turn among those of all."""
    after: _Met | None = None
    """The optimizer that had the next turn."""
    varies: bool = False
    """Whether that was not always the same one."""


class OptimizerNames:
    """Names optimizers by class and number, and counts their turns. A new one at a reused address is another."""

    def __init__(self) -> None:
        self._met: dict[int, _Met] = {}
        self._counts: dict[str, int] = {}
        self._last: _Met | None = None
        """The optimizer with the newest turn."""
        self._turns = 0
        """Turns of all optimizers."""

    def living(self, optimizer: int) -> torch.optim.Optimizer | None:
        """The optimizer with this id, if it is known and alive."""
        return self._met[optimizer].optimizer() if optimizer in self._met else None

    def name(self, optimizer: torch.optim.Optimizer) -> str:
        return self._meet(optimizer).name

    def turn(self, optimizer: torch.optim.Optimizer) -> int:
        """Count a turn of the optimizer. Return how many it had before, since the last `restart`.

        After the first optimizers, a new one goes on with the turns of all. Else each would be due at once.
        """
        met = self._meet(optimizer)
        if self._last is not None:
            self._last.varies |= self._last.after not in (None, met)
            self._last.after = met
        self._last = met
        self.turned(1)
        return met.turns - 1

    def last(self) -> torch.optim.Optimizer | None:
        """The optimizer with the newest turn, if it is alive."""
        return self._last.optimizer() if self._last is not None else None

    def recent(self) -> list[int]:
        """What `turn` will return next for each living optimizer that had one of the last `RECENT` turns."""
        return [
            met.turns
            for met in self._met.values()
            if met.newest > max(self._turns - RECENT, 0) and met.optimizer() is not None
        ]

    def expected(self) -> list[int]:
        """What `turn` may return next if optimizers take turns in the same order as before."""
        last = self._last
        if last is None:
            return [0]
        if last.varies:
            return self.recent()
        after = last.after
        return [after.turns if after is not None and after.optimizer() else last.turns]

    def turned(self, turns: int) -> None:
        """Add turns of the `last` optimizer for which `turn` was not called."""
        if self._last is not None:
            self._turns += turns
            self._last.turns += turns
            self._last.newest = self._turns

    def restart(self) -> None:
        for met in self._met.values():
            met.turns = met.newest = 0

    def _meet(self, optimizer: torch.optim.Optimizer) -> _Met:
        met = self._met.get(id(optimizer))
        if met is not None and met.optimizer() is optimizer:
            return met
        kind = type(optimizer).__name__
        number = self._counts.get(kind, 0) + 1
        self._counts[kind] = number
        name = kind if number == 1 else f"{kind}-{number}"
        turns = self._turns if sum(self._counts.values()) > _BEGINNERS else 0
        met = self._met[id(optimizer)] = _Met(weakref.ref(optimizer), name, turns)
        return met
