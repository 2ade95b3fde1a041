"""Detects an optimizer that is stepped by one new scaler after another."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from ampmon.lints.refusals import has_no_scale


Beginning: TypeAlias = tuple[Any, Any]
"""A scaler's initial scale and growth tracker, on the host."""
ENOUGH = 3
"""A second scaler may begin a new phase of training, a third is reported."""


@dataclass(slots=True)
class _Known:
    beginning: Beginning
    scaler: weakref.ref[Any]
    scalers: int = 1


_known: weakref.WeakKeyDictionary[torch.optim.Optimizer, _Known] = weakref.WeakKeyDictionary()


def beginning(scaler: Any) -> Beginning | None:
    """Return what a scaler begins with, or None if it has scaled already. Reads no tensor."""
    if not has_no_scale(scaler):
        return None
    return scaler.__dict__.get("_init_scale"), scaler.__dict__.get("_init_growth_tracker")


def made_anew(
    optimizer: torch.optim.Optimizer, scaler: weakref.ref[Any], begun: Beginning | None
) -> bool:
    """Whether this scaler is the third in a row to step the optimizer, all with the same beginning.

    ``begun`` is None if the scaler was given a state, or has scaled before ampmon saw it.
    """
    known = _known.get(optimizer)
    if begun is None or known is None or known.beginning != begun:
        _known.pop(optimizer, None)
        if begun is not None:
            _known[optimizer] = _Known(begun, scaler)
        return False
    if known.scaler is not scaler and known.scaler() is not scaler():
        known.scalers += 1
        known.scaler = scaler
        return known.scalers == ENOUGH
    return False
