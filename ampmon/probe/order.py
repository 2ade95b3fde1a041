"""Learns the order in which the backward pass finishes gradients, from hooks on two updates."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from ampmon.wire import BackwardOrder


_PATIENCE = 3
"""After this many updates without a hook call, `learning` is False."""


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
        weakref.finalize(self, _remove, self._handles)
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
                self._handles.append(
                    parameter.register_post_accumulate_grad_hook(_Note(self, index))
                )

    def note(self, index: int) -> None:
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
        """Remove the hooks."""
        if self._handles:
            _remove(self._handles)
            for _, parameter in self._living():
                forget_hooks(parameter)


def forget_hooks(parameter: Any) -> None:
    """Remove a parameter's empty dict of hooks, so that torch installs its next hook afresh.

    With the old dict, torch installs no hook once the tensor was swapped.
    """
    if parameter._post_accumulate_grad_hooks == {}:
        parameter._post_accumulate_grad_hooks = None


def _remove(handles: list[Any]) -> None:
    while handles:
        handles.pop().remove()


class _Note:
    """A hook that keeps neither the parameter nor the learner alive."""

    __slots__ = ("_index", "_learner")

    def __init__(self, learner: BackwardOrderLearner, index: int) -> None:
        self._learner: Callable[[], BackwardOrderLearner | None] = weakref.ref(learner)
        self._index = index

    def __call__(self, parameter: torch.Tensor) -> None:
        if (learner := self._learner()) is not None:
            learner.note(self._index)
