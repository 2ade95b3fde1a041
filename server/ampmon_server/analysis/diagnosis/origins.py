"""Where overflows began, as far as activations were sampled at skipped updates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ampmon_server.analysis.diagnosis.calibration import calibrated_from
from ampmon_server.analysis.diagnosis.ledger import SkippedUpdate, skipped_updates
from ampmon_server.model.case import LOST, ScalerCase


def of_origin(scaler: ScalerCase, origin: str) -> tuple[Sequence[SkippedUpdate], str | None]:
    """The skipped ones of the newest updates that began there, and the module that was the first most often.

    Those of the search for a scale do not count among those that began backward: a scale too large makes any overflow.
    Those whose loss was lost where nobody looked count as most of the others.
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
