"""Finds a costly sequence of growth and skip, by which torch searches for the largest scale that fits."""

from __future__ import annotations

import numpy as np

from ampmon.wire import Finding
from ampmon_server.analysis.diagnosis.outliers import outlier_skips, period_of
from ampmon_server.analysis.diagnosis.rules.parts import each_scaler
from ampmon_server.analysis.diagnosis.rules.skip_rate import at_least, begun, severity_of
from ampmon_server.analysis.diagnosis.updates import (
    AT_CEILING,
    GROW,
    follows_growth,
    has_ceiling,
    whole_skips,
)
from ampmon_server.model.aggregates.merging import Cells
from ampmon_server.model.case import ScalerCase
from ampmon_server.model.scale_policy import ScalePolicy
from ampmon_server.model.thresholds import Thresholds
from ampmon_server.model.words import count, percent


EXPLANATION = (
    "The scaler grows its scale after growth_interval steps, overflows, backs off and tries again. That is by design, "
    "but every try wastes a batch. With growth_interval={interval} it tries too often: with torch's default of 2000 "
    "it would waste one step in 2000."
)
FIX = "scaler = ampmon.GradScaler(growth_interval=2000)"
TRIES = 3
"""This many tries make a sawtooth."""
MOST = 0.7
"""Least share of the skips that take back a growth."""


@each_scaler
def examine(scaler: ScalerCase, thresholds: Thresholds) -> Finding | None:
    """Judge by the share of updates that it costs, from the first growth under the current growth interval on."""
    window = scaler.recent[-thresholds.skip_window :]
    interval = scaler.policy.growth_interval
    grown = np.flatnonzero(window["moves"][:, GROW])
    if not len(grown):
        return None
    # Growths closer than the interval are of a shorter one that the script has changed since.
    sooner = np.flatnonzero(np.diff(window["first"][grown]) < interval)
    window = window[grown[sooner[-1] + 1 if len(sooner) else 0] :]
    skipped, updates = int(window["skipped"].sum()), int(window["n"].sum())
    tries = _tries(window, scaler.policy.hysteresis)
    severity = thresholds.skip_rate.severity(at_least(tries, updates, thresholds.skip_window))
    if severity is None or tries < max(TRIES, MOST * skipped):
        return None
    if not has_ceiling(window[whole_skips(window)]) or _is_of_the_loader(window, scaler.policy):
        return None
    if severity_of(window[outlier_skips(window, scaler.logged)], window, thresholds) is not None:
        return None  # outliers are a second cause: `skip_rate` reports both together
    return Finding(
        rule="sawtooth",
        severity=severity,
        title=f"{percent(tries / updates)} of the steps are skipped because growth_interval="
        f"{interval} is too short ({count(tries)} of {count(updates)})",
        explanation=EXPLANATION.format(interval=count(interval)),
        fix=begun(FIX, window, scaler.policy),
        first_step=int(window["first"][0]),
        last_step=int(window["last"][-1]),
        evidence={"skipped": tries, "updates": updates, "growth_interval": interval},
        figure="scale",
    )


def _is_of_the_loader(cells: Cells, policy: ScalePolicy) -> bool:
    """Whether the skips have a period that is not that of the growths."""
    skipped = cells["skipped"] > 0
    late = follows_growth(cells, policy)[skipped].mean() < AT_CEILING
    return bool(late) and period_of(cells["skip_first"][skipped]) is not None


def _tries(cells: Cells, hysteresis: int) -> int:
    """How many skips took back growths: up to the next one, at most ``hysteresis`` for each since the skip before."""
    grown = cells["first"][cells["moves"][:, GROW] > 0]
    so_far = np.searchsorted(grown, cells["first"][whole_skips(cells)])
    growths, skips = np.unique(so_far, return_counts=True)
    return int(np.minimum(np.diff(growths, prepend=0) * hysteresis, skips).sum())
