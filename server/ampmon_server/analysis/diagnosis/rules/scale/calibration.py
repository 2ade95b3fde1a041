"""Reports what the search for the first scale cost, and a better scale to begin with."""

from __future__ import annotations

from ampmon.wire import Finding
from ampmon_server.analysis.diagnosis.rules.parts import each_scaler
from ampmon_server.analysis.diagnosis.updates import calibrated_from, newest_scale
from ampmon_server.model.case import ScalerCase
from ampmon_server.model.scale_policy import INIT_SCALE
from ampmon_server.model.thresholds import Thresholds
from ampmon_server.model.words import count, in_code, plural, power_of_two


EXPLANATION = (
    "A scaler starts with a scale that is probably too large, and halves it at every overflow until the gradients "
    "fit. Those skips are normal, but each wastes a batch, and they repeat whenever the job starts without the "
    "scaler's state."
)
FIX = "scaler = ampmon.GradScaler(init_scale={init_scale})"


@each_scaler
def examine(scaler: ScalerCase, thresholds: Thresholds) -> Finding | None:
    """Return a notice if the search has as many skips as a `consecutive_skips` notice needs, while the run is young.

    If it went below 1, the first scale was not the problem: see `low_scale`.
    """
    end = calibrated_from(scaler)
    first = scaler.first
    search = first[first["last"] < end]
    skipped = int(search["skipped"].sum())
    young = len(first) and first["last"][-1] == scaler.recent["last"][-1]
    if not young or thresholds.consecutive_skips.severity(skipped) is None:
        return None
    scale = float(search["after_last"][-1])
    if scale < 1:
        return None
    newest = newest_scale(scaler)
    # A scale that fell below 1 later did not fall for the reason that the search did.
    first_scale = min(scale, newest) if newest >= 1 else scale
    over = end <= int(first["last"][-1])
    updates = count(int(search["n"].sum()))
    title = (
        f"Initial scale too high: {plural(skipped, 'warm-up skip')} in the first {updates} steps, down to "
        f"{power_of_two(scale)}"
        if over
        else f"Initial scale too high: {plural(skipped, 'skip')} in the first {updates} steps so far"
    )
    return Finding(
        rule="calibration",
        severity="notice",
        title=title,
        explanation=EXPLANATION,
        fix=FIX.format(init_scale=in_code(first_scale if over else min(first_scale, INIT_SCALE))),
        first_step=int(first["first"][0]),
        last_step=int(search["last"][-1]),
        evidence={"skipped": skipped, "scale": scale},
        figure="scale",
    )
