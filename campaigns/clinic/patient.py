"""A patient: how it trains, and its known fault. Pure data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias


if TYPE_CHECKING:
    from campaigns.clinic.training import Training


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How a training is set up.

    ``loss`` is a factor on the loss; ``every`` and ``activations`` are `ampmon.Config`'s.
    """

    model: str = "mlp"
    optimizer: str = "adam"
    lr: float = 2e-3
    batch: int = 16
    updates: int = 200
    seed: int = 0
    init_scale: float = 2.0**16
    growth_interval: int = 2000
    accumulate: int = 1
    clip: float | None = None
    dtype: Literal["float16", "bfloat16", "float32"] = "float16"
    enabled: bool = True
    loss: float = 1.0
    every: int | Literal["auto"] = 10
    activations: int | None = None
    strength: float = 1.0
    """The severity of the fault, in the fault's own unit."""


Spoil: TypeAlias = Callable[[Path], None]
Ends: TypeAlias = Literal["finished", "killed", "hung"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Patient:
    """A run. ``attempts`` are trainings one after another, each by ``ranks`` processes.

    One of ``rules`` must be the first finding; a healthy patient has none. ``layer`` is the faulty layer. ``spoil``
    damages the data directory before delivery.
    """

    name: str
    about: str
    attempts: tuple[type[Training], ...]
    plan: Plan = field(default_factory=Plan)
    rules: tuple[str, ...] = ()
    layer: str | None = None
    ranks: int = 1
    ends: Ends = "finished"
    spoil: Spoil | None = None
    incurable: bool = False
    """Whether no code in the script can cure it, as with bad data. Its finding must then say what to look at."""

    @property
    def sick(self) -> bool:
        return bool(self.rules)

    @property
    def training(self) -> str:
        """A key of everything its training depends on, except the code."""
        return f"{self.name}, {[kind.__name__ for kind in self.attempts]}, {self.plan}"
