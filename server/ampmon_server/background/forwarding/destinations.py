"""Parses `--forward`, and defines what a forwarding destination must provide."""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from ampmon.system.installing import install
from ampmon_server.store import Portion


class BadDestination(ValueError):
    """The named destination does not exist or cannot be used here. The message says why, in one line."""


class Rejected(Exception):
    """The destination rejects this run. It may accept others."""


class ForwardDestination(Protocol):
    """Accepts portions one at a time, from one thread."""

    key: str
    """Identifies the destination in the database. Contains no secret."""

    def deliver(self, portion: Portion) -> str:
        """Write a portion durably, and return what to store as the next portion's ``position``. May block.

        A second call with the same position replaces what the first call wrote. Raises Rejected. Any other exception
        means that the destination is unavailable now.
        """
        ...


def opened(named: Sequence[str]) -> dict[str, ForwardDestination]:
    """Return the destinations that `--forward` names, by their label in logs and metrics. Raises BadDestination."""
    found: dict[str, ForwardDestination] = {}
    kinds: Counter[str] = Counter()
    for each in named:
        kind, _, place = each.partition(":")
        if kind not in _EXTRAS or not place:
            raise BadDestination(
                f"--forward {kind}: write tensorboard:DIR or mlflow:URI, such as mlflow:http://127.0.0.1:5000"
            )
        if importlib.util.find_spec(kind) is None:
            raise BadDestination(
                f"--forward {kind}: {kind} is not installed: {install(_EXTRAS[kind])}"
            )
        kinds[kind] += 1
        label = kind if kinds[kind] == 1 else f"{kind}-{kinds[kind]}"
        found[label] = _destination(kind, place)
    if len({each.key for each in found.values()}) < len(found):
        raise BadDestination("--forward: the same destination is named twice")
    return found


_EXTRAS = {"tensorboard": "files", "mlflow": "mlflow"}


def _destination(kind: str, place: str) -> ForwardDestination:
    if kind == "tensorboard":
        from ampmon_server.background.forwarding.tensorboard import TensorBoard

        return TensorBoard(Path(place).expanduser().absolute())
    from ampmon_server.background.forwarding.mlflow import MLflow

    return MLflow(place)
