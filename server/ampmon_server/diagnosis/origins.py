"""Where overflows began, as far as activations were sampled at skipped updates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ampmon_server.case import ScalerCase
from ampmon_server.diagnosis.calibration import calibrated_from
from ampmon_server.diagnosis.ledger import SkippedUpdate, skipped_updates


def of_origin(scaler: ScalerCase, origin: str) -> tuple[Sequence[SkippedUpdate], str | None]:
    """The skipped ones of the newest updates that began there, and the module that was the first most often.

    Those of the search for a scale do not count among those that began backward: a scale too large makes any overflow.
    """
    since = int(scaler.recent["first"][0])
    if origin == "backward":
        since = max(since, calibrated_from(scaler))
    found = [
        each for each in skipped_updates(scaler) if each.origin == origin and each.step >= since
    ]
    modules = Counter(each.module for each in found if each.module)
    return found, modules.most_common(1)[0][0] if modules else None
