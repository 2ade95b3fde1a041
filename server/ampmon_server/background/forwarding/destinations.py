"""Where runs are forwarded to, as `--forward` names it, and what a destination can do."""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from ampmon.system.installing import install
from ampmon_server.store import Portion


class BadDestination(ValueError):
    """What was named is no destination, or cannot be used here; the message says why, in one line."""


class Rejected(Exception):
    """The destination does not take this run, and may take others."""


class ForwardDestination(Protocol):
    """Takes portions, one at a time, from one thread."""

    key: str
    """Which one it is, in the database: without a secret."""

    def deliver(self, portion: Portion) -> str:
        """Write a portion for good; what to remember as the next portion's ``position``. May block.

        Called again with the same position it takes the place of what it did before. Raises Rejected; any other
        exception means that the destination cannot be used now.
        """
        ...


def opened(named: Sequence[str]) -> dict[str, ForwardDestination]:
    """The destinations that `--forward` names, each under a label for logs and metrics. Raises BadDestination."""
    found: dict[str, ForwardDestination] = {}
    kinds: Counter[str] = Counter()
    for each in named:
        kind, _, place = each.partition(":")
        if kind not in _EXTRAS or not place:
            raise BadDestination(
                f"--forward {kind}: write tensorboard:DIR, or mlflow:URI, as mlflow:http://127.0.0.1:5000"
            )
        if importlib.util.find_spec(kind) is None:
            raise BadDestination(f"--forward {kind}: {kind} is missing: {install(_EXTRAS[kind])}")
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
