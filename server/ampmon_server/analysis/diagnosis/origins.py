"""Finds where overflows began, as far as activations were sampled at skipped updates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ampmon_server.analysis.diagnosis.calibration import calibrated_from
from ampmon_server.analysis.diagnosis.ledger import SkippedUpdate, skipped_updates
from ampmon_server.model.case import LOST, ScalerCase


def of_origin(scaler: ScalerCase, origin: str) -> tuple[Sequence[SkippedUpdate], str | None]:
    """Return the newest skipped updates that began at ``origin``, and the module that was most often the first.

    Backward overflows during calibration do not count, because any gradient overflows at a scale that is too large.
    An update of unknown origin whose loss was not finite counts for the most frequent origin of such updates.
    """
    since = int(scaler.recent["first"][0])
    if origin == "backward":
        since = max(since, calibrated_from(scaler))
    newest = [each for each in skipped_updates(scaler) if each.step >= since]
    lost = Counter(each.origin for each in newest if each.loss == LOST and each.origin)
    unseen = None if lost and lost.most_common(1)[0][0] == origin else origin
    found = [
        each
        for each in newest
        if each.origin == origin or (each.loss == LOST and each.origin == unseen)
    ]
    modules = Counter(each.module for each in found if each.module)
    return found, modules.most_common(1)[0][0] if modules else None
