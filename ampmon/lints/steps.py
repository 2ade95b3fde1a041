"""Counts the calls of an optimizer's `step()`, those that the scaler makes among them."""

from __future__ import annotations

import weakref
from typing import Any

import torch


ENOUGH = 3
"""What is seen in so many updates is no accident."""


class Steps:
    """The steps of one optimizer since the last update, counted by its own hooks. Holds it not alive."""

    def __init__(self, optimizer: torch.optim.Optimizer, name: str) -> None:
        self.name = name
        self._count = self._depth = 0
        self._twice = 0
        """Updates in a row in which it stepped more than once."""
        this = weakref.ref(self)
        handles = [
            optimizer.register_step_pre_hook(_Hook(this, 1)),
            optimizer.register_step_post_hook(_Hook(this, -1)),
        ]
        for handle in handles:
            weakref.finalize(self, handle.remove)
        self._shared = _counting.setdefault(optimizer, [])
        self._shared.append(this)

    def called(self, change: int) -> None:
        """A step begins (1) or has ended (-1). One within another is none of its own: a class may call its base's."""
        self._depth = max(0, self._depth + change)
        self._count += change < 0 and not self._depth

    def past(self) -> bool:
        """An update has ended. Whether the optimizer stepped twice in each of the last ones."""
        self._twice = self._twice + 1 if self._count > 1 else 0
        self._count = self._depth = 0
        # Another scaler may step it as well, in its own way.
        return self._twice >= ENOUGH and sum(each() is not None for each in self._shared) == 1


_counting: weakref.WeakKeyDictionary[torch.optim.Optimizer, list[weakref.ref[Steps]]] = (
    weakref.WeakKeyDictionary()
)


class _Hook:
    """A hook that keeps nothing alive."""

    __slots__ = ("_change", "_steps")

    def __init__(self, steps: weakref.ref[Steps], change: int) -> None:
        self._steps, self._change = steps, change

    def __call__(self, *_: Any) -> None:
        if (steps := self._steps()) is not None:
            steps.called(self._change)


def count_steps(optimizer: torch.optim.Optimizer, name: str) -> Steps | None:
    """Begin to count; None of an optimizer that is none of torch's, and has no hooks."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        return None
    return Steps(optimizer, name)
