"""Sees whether an optimizer steps once more after the scaler has stepped it, by what a step writes into its state."""

from __future__ import annotations

import weakref

import torch

from ampmon.lints.optimizers import parameters_of, state_of
from ampmon.lints.reporter import ENOUGH


State = tuple[object, ...]
_watched: weakref.WeakKeyDictionary[torch.optim.Optimizer, int] = weakref.WeakKeyDictionary()
"""By how many scalers each optimizer was stepped: another one steps it in its own way."""


class Steps:
    """The state of an optimizer when the scaler had stepped it. One without a state, as SGD without momentum, has none.

    Others may write into the weights between a step and the update, as who clamps them does, and not into the state.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._left: State | None = None
        self._past = 0
        """Updates in a row in which it stepped once more."""
        _watched[optimizer] = _watched.get(optimizer, 0) + 1

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """The scaler has stepped it."""
        self._left = _state(optimizer)

    def past(self, optimizer: torch.optim.Optimizer) -> bool:
        """An update has ended. Whether it stepped once more in each of the last ones."""
        self._past = self._past + 1 if self._left not in (None, _state(optimizer)) else 0
        self._left = None
        return self._past >= ENOUGH and _watched.get(optimizer) == 1


def _state(optimizer: torch.optim.Optimizer) -> State | None:
    """The versions of the tensors, and the numbers, that it keeps for the first parameter that has any."""
    for parameter in parameters_of(optimizer):
        if state := state_of(optimizer, parameter):
            return tuple(
                each._version if isinstance(each, torch.Tensor) else each
                for each in state.values()
                if isinstance(each, (torch.Tensor, int, float))
            )
    return None
