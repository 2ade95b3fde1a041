"""Detects a second step of an optimizer after the scaler's, by what a step writes into its state."""

from __future__ import annotations

import weakref

import torch

from ampmon.lints.optimizers import parameters_of, state_of
from ampmon.lints.reporter import ENOUGH


State = tuple[object, ...]
_watched: weakref.WeakKeyDictionary[torch.optim.Optimizer, int] = weakref.WeakKeyDictionary()
"""The number of scalers that step each optimizer. With several, the second step may be another scaler's."""


class Steps:
    """An optimizer's state after the scaler's step. None if it has none, as SGD without momentum.

    Weights are not compared: other code may write into them between step and update, for example to clamp them.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._left: State | None = None
        self._past = 0
        """Consecutive updates with a second step."""
        _watched[optimizer] = _watched.get(optimizer, 0) + 1

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        self._left = _state(optimizer)

    def past(self, optimizer: torch.optim.Optimizer) -> bool:
        """Called after an update. Return whether each of the last ones had a second step."""
        self._past = self._past + 1 if self._left not in (None, _state(optimizer)) else 0
        self._left = None
        return self._past >= ENOUGH and _watched.get(optimizer) == 1


def _state(optimizer: torch.optim.Optimizer) -> State | None:
    """Tensor versions and numbers in the state of the first parameter that has any."""
    for parameter in parameters_of(optimizer):
        if state := state_of(optimizer, parameter):
            return tuple(
                each._version if isinstance(each, torch.Tensor) else each
                for each in state.values()
                if isinstance(each, (torch.Tensor, int, float))
            )
    return None
