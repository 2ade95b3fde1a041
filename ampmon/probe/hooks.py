"""Hooks on the tensors and modules of training, which keep nothing alive, the order that they reveal, and its graph."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from functools import cache
from types import FunctionType
from typing import Any

import torch

from ampmon.wire import BackwardOrder


_PATIENCE = 3
"""After this many updates without a hook call, `learning` is False."""


class WeakHook:
    """Calls ``method`` with ``given`` and what torch passes, for as long as the method's owner lives.

    Keeps neither the owner nor what it hooks alive. Copies and pickles do not contain it, and torch leaves it out of
    those of a tensor without a warning.
    """

    __slots__ = ("_given", "_owner", "function")
    __torch_unserializable__ = True

    def __init__(self, method: Any, *given: Any) -> None:
        self._owner = weakref.ref(method.__self__)
        self.function: Callable[..., None] = method.__func__
        self._given = given

    def __call__(self, *passed: Any) -> None:
        if (owner := self._owner()) is not None:
            self.function(owner, *self._given, *passed)

    def __reduce__(self) -> tuple[Any, ...]:
        # A function that takes a hook's arguments and does nothing. Loading it needs no ampmon.
        return getattr, (nullcontext(), "__exit__")


def forget_hooks(parameter: Any) -> None:
    """Remove a parameter's empty dicts of hooks.

    Torch would call empty ones in each later pass. It installs no hook in an old dict of post-accumulate hooks once the
    tensor was swapped.
    """
    if parameter._backward_hooks is not None and not parameter._backward_hooks:
        parameter._backward_hooks = None
    if parameter._post_accumulate_grad_hooks == {}:
        parameter._post_accumulate_grad_hooks = None


def remove_hooks(handles: list[Any]) -> None:
    while handles:
        handles.pop().remove()


def graph_nodes(head: Any, enough: float = math.inf) -> Iterator[Any]:
    """Yield the nodes of the autograd graph behind ``head``, a ``grad_fn`` or None, each once and nearest first.

    Once ``enough`` nodes are known, looks for no more.
    """
    nodes = [] if head is None else [head]
    met = set(nodes)
    for node in nodes:  # grows meanwhile
        yield node
        for each, _ in node.next_functions if len(met) < enough else ():
            if each is not None and each not in met:
                met.add(each)
                nodes.append(each)


class BackwardOrderLearner:
    """Sorts parameters in the order in which the backward pass reaches them.

    Assumes the reverse of the parameters' own order until it has learned the actual one. The hooks fire on the two
    updates after `watch` and are then removed. Only an order seen twice counts as learned, because a graph that changes
    from step to step has none.
    """

    def __init__(self, living: Callable[[], Iterable[tuple[int, torch.Tensor]]]) -> None:
        self._living = living
        """Yields the existing parameters with their indices."""
        self._handles: list[Any] = []
        weakref.finalize(self, remove_hooks, self._handles)
        self._seen: list[int] = []
        self._first: list[int] | None = None
        self._position: dict[int, int] | None = None
        self._patience = 0

    @property
    def learning(self) -> bool:
        """Whether the order will be learned from the next update."""
        return bool(self._handles) and self._patience > 0

    def watch(self) -> None:
        """Start, or start again, to learn the order of the existing parameters."""
        self.close()
        self._seen, self._first, self._position = [], None, None
        self._patience = _PATIENCE
        for index, parameter in self._living():
            if parameter.requires_grad and parameter.is_leaf:
                hook = WeakHook(self.note, index)
                self._handles.append(parameter.register_post_accumulate_grad_hook(hook))

    def note(self, index: int, _: torch.Tensor) -> None:
        self._seen.append(index)

    def updated(self) -> None:
        """Keep the order that the hooks saw in the update that just ended, or compare it with the first."""
        if not self._handles or not self._seen:
            self._patience -= 1
            return
        # Gradient accumulation reaches a parameter several times. The last time counts.
        order = list(dict.fromkeys(reversed(self._seen)))[::-1]
        self._seen = []
        if self._first is None:
            self._first = order
            return
        self.close()
        if order == self._first:
            self._position = {index: place for place, index in enumerate(order)}

    def sort(self, indices: Sequence[int]) -> tuple[list[int], BackwardOrder]:
        """Return indices in backward order, and whether that order was learned or assumed. Callable on any thread."""
        position = self._position  # read once: another thread may restart learning
        if position is None or not all(index in position for index in indices):
            return sorted(indices, reverse=True), "assumed"
        return sorted(indices, key=position.__getitem__), "learned"

    def close(self) -> None:
        if self._handles:
            remove_hooks(self._handles)
            for _, parameter in self._living():
                forget_hooks(parameter)


@cache
def leave_untraced() -> None:
    """Make torch.compile call this package without tracing into it, as it does with torch's own scaler.

    Traced hooks would be cut into dozens of graphs, and recompiled whenever their counts change. This imports the
    compiler's module, as the first optimizer does too. It has no effect if torch keeps its list of skipped modules
    elsewhere: tracing is then slow but still correct.
    """
    try:
        from torch._dynamo import trace_rules

        trace_rules.add(__name__.partition(".")[0])
    except Exception:
        return


def traceable(function: Callable[..., None]) -> Any:
    """Return the function as one that torch.compile does trace into, despite `leave_untraced`.

    It is for functions that torch calls inside a model: untraced, they would break the graph there. Traced, they cost
    nothing if all their code is behind ``if not torch.compiler.is_compiling()``.
    """
    # torch.compile decides by a function's file whether to trace it.
    code = function.__code__.replace(co_filename="<ampmon, traceable>")
    return FunctionType(code, function.__globals__, function.__name__)
