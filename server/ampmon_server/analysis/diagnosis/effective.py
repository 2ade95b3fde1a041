"""Effective training: how many updates ran, and how many of them changed the weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ampmon_server.model.case import Case
from ampmon_server.model.words import count, percent, plural


BATCH_NAMES = ("batch_size", "batch")
"""Configuration keys for the number of samples that one rank takes for one update."""


@dataclass(frozen=True, slots=True)
class EffectiveTraining:
    """The updates that ran, and those that counted because they changed the weights, also in samples.

    ``share`` is 0..1, None before the first update. ``samples`` multiply the configuration's `batch_size` or `batch` by
    the ranks. They are None if it is unknown, or if several scalers have updates, which may be of the same batches.
    ``scheduler_ahead`` counts skipped updates after which the learning rate changed.
    """

    updates: int
    counted: int
    share: float | None
    samples: int | None
    samples_counted: int | None
    scheduler_ahead: int
    sentence: str


def effective(case: Case) -> EffectiveTraining:
    """Return how much of a run's training changed the weights."""
    counted = max(case.updates - case.skipped, 0)
    batch = None if _scalers(case) > 1 else _batch(case.config)
    each = None if batch is None else batch * max(case.ranks, 1)
    return EffectiveTraining(
        updates=case.updates,
        counted=counted,
        share=counted / case.updates if case.updates else None,
        samples=None if each is None else each * case.updates,
        samples_counted=None if each is None else each * counted,
        scheduler_ahead=case.scheduled,
        sentence=_sentence(case, counted, each),
    )


def _scalers(case: Case) -> int:
    """The number of scalers with updates."""
    return sum(len(scaler.updates) > 0 for scaler in case.scalers)


def _batch(config: Mapping[str, Any]) -> int | None:
    for name in BATCH_NAMES:
        value = config.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None


def _sentence(case: Case, counted: int, each: int | None) -> str:
    if not case.updates:
        return "No steps recorded." if case.status == "running" else "No steps were made."
    whose = " of all scalers" if _scalers(case) > 1 else ""
    said = f"{count(counted)} of {plural(case.updates, 'step')}{whose} applied"
    said += f" ({percent(counted / case.updates)})"
    if lost := case.updates - counted:
        samples = f" ({plural(each * lost, 'training example')})" if each else ""
        said += f"; {count(lost)} skipped{samples}"
    if case.scheduled:
        said += f"; the scheduler is {plural(case.scheduled, 'step')} ahead"
    return f"{said}."
