"""In which order the backward pass finishes gradients: learned by hooks on two updates, which are then removed."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from ampmon.wire import BackwardOrder


_PATIENCE = 3
"""Updates without any hook seen, after which nobody waits for one."""


class BackwardOrderLearner:
    """Orders parameters as the backward pass reaches them; assumes the reverse of their own order until it has seen it.

    The hooks fire on the two updates after `watch` and are then removed. Only an order seen twice counts as learned: a
    graph that changes from step to step has none.
    """

    def __init__(self, living: Callable[[], Iterable[tuple[int, torch.Tensor]]]) -> None:
        self._living = living
        """The parameters that there are, with their indices."""
        self._handles: list[Any] = []
        weakref.finalize(self, _remove, self._handles)
        self._seen: list[int] = []
        self._first: list[int] | None = None
        self._position: dict[int, int] | None = None
        self._patience = 0

    @property
    def learning(self) -> bool:
        """Whether the order is learned from the next update."""
        return bool(self._handles) and self._patience > 0

    def watch(self) -> None:
        """Begin to learn the order of the parameters that there are. Starts over if it had begun."""
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
        """An update has ended: keep or compare what the hooks saw."""
        if not self._handles or not self._seen:
            self._patience -= 1
            return
        # A parameter that gradient accumulation reaches several times counts when it is reached last.
        order = list(dict.fromkeys(reversed(self._seen)))[::-1]
        self._seen = []
        if self._first is None:
            self._first = order
            return
        self.close()
        if order == self._first:
            self._position = {index: place for place, index in enumerate(order)}

    def sort(self, indices: Sequence[int]) -> tuple[list[int], BackwardOrder]:
        """Indices in backward order, and whether that order was learned or assumed. May be called on any thread."""
        position = self._position  # once, for another thread may begin to learn anew meanwhile
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
    """Have torch make a parameter's next hook anew: it sets none beside those that were, once the tensor is swapped."""
    if parameter._post_accumulate_grad_hooks == {}:
        parameter._post_accumulate_grad_hooks = None


def _remove(handles: list[Any]) -> None:
    while handles:
        handles.pop().remove()


class _Note:
    """A hook that holds neither the parameter nor the learner alive."""

    __slots__ = ("_index", "_learner")

    def __init__(self, learner: BackwardOrderLearner, index: int) -> None:
        self._learner: Callable[[], BackwardOrderLearner | None] = weakref.ref(learner)
        self._index = index

    def __call__(self, parameter: torch.Tensor) -> None:
        learner = self._learner()
        if learner is not None:
            learner.note(self._index)
