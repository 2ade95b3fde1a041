"""The numbers of a run in words, for its page and its report."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ampmon_server.model.words import (
    NONE,
    bits,
    count,
    percent,
    plural,
    scale_words,
    steps,
    within,
)


TRAINING = {
    "scale": "Scale now",
    "skipped": "Skipped",
    "underflow": "Underflow now",
    "headroom": "Headroom",
}
"""What a page shows of the training, by key: the definitions are in `terms`."""

RECORDING = {
    "records": "Records",
    "sampled": "Gradients sampled",
    "overhead": "Overhead",
    "newest": "Last update",
    "ranks": "Processes",
}


class Readout(NamedTuple):
    """``exact`` has all digits, None if there is nothing to copy. With ``since`` (us) the page shows an age instead."""

    value: str
    more: str = ""
    exact: str | float | None = None
    since: int | None = None


def readouts(run: Mapping[str, Any]) -> dict[str, Readout]:
    """Return the numbers of a run, which is a summary in JSON."""
    scale, headroom = number(run, "scale"), number(run, "headroom_bits")
    shown = "off" if run["disabled"] else scale_words(run["scale"], run["scale_kind"])
    sampled = run["subnormal_fraction"] is not None
    zero = within(run["zero_fraction"], run["zero_fraction_error"])
    subnormal = within(run["subnormal_fraction"], run["subnormal_fraction_error"])
    records = f"{count(run['records'])} of {count(run['records'] + run['lost_records'])}"
    skipped = f"{count(run['skipped'])} of {count(run['updates'])}"
    rate = run["skip_rate"]
    cost = ["of training time"] * (run["overhead"] is not None)
    return {
        "scale": Readout(shown, exact=_exact(scale)),
        "skipped": Readout(skipped, "" if rate is None else percent(rate), run["skipped"]),
        "underflow": Readout(
            subnormal, f"subnormal, {zero} zero" if sampled else "", run["subnormal_fraction"]
        ),
        "headroom": Readout(
            NONE if headroom is None else bits(headroom),
            "" if run["headroom_bits"] is None else "at most",
            _exact(headroom),
        ),
        "records": Readout(records, f"{count(run['lost_records'])} lost", run["records"]),
        "sampled": Readout(
            plural(run["sampled_updates"], "step"), interval_words(run), run["sampled_updates"]
        ),
        "overhead": Readout(
            within(run["overhead"]),
            ", ".join(filter(None, [*cost, budget_words(run)])),
            run["overhead"],
        ),
        "newest": _newest(run),
        "ranks": Readout(
            plural(run["ranks"], "rank"), plural(run["attempts"], "start"), run["ranks"]
        ),
    }


def choices(run: Mapping[str, Any], alone: int) -> list[dict[str, Any]]:
    """Return the choices of a scaler and of a rank, each a query parameter with its values in words.

    A stream stands for its scaler on all ranks. ``alone`` is how many steps of a single rank are drawn at most.
    """
    most = f", its newest {count(alone)} steps" if run["updates"] > alone else ""
    ranks = [
        [str(rank), f"rank {count(rank)}{most}"]
        for rank in sorted({each["rank"] for each in run["streams"]})
    ]
    streams = [[stream, scaler] for scaler, stream in first_streams(run).items()]
    return [
        {"name": "stream", "label": "Scaler", "options": streams},
        {"name": "rank", "label": "Rank", "options": [["", "all ranks"], *ranks]},
    ]


def first_streams(run: Mapping[str, Any]) -> dict[str, str]:
    """Return the first stream of each scaler, by the scaler's name."""
    found: dict[str, str] = {}
    for each in run["streams"]:
        found.setdefault(each["scaler"], each["stream"])
    return found


def number(record: Mapping[str, Any], name: str) -> float | None:
    """Return a number of a record. JSON has NaN and infinities only as a kind: "nan", "inf" or "-inf"."""
    kind = record[f"{name}_kind"]
    value: float | None = record[name] if kind is None else float(kind)
    return value


def interval_words(run: Mapping[str, Any]) -> str:
    """How often gradients are sampled now."""
    interval = run["sampling_interval"]
    if interval is None:
        return ""
    return "every step" if interval == 1 else f"every {count(interval)} steps"


def budget_words(run: Mapping[str, Any]) -> str:
    if run["budget"] is None:
        return ""
    budget = percent(run["budget"])
    return (
        f"over the budget of {budget} at the recent rate"
        if run["over_budget"]
        else f"budget {budget}"
    )


def health_words(run: Mapping[str, Any]) -> str:
    """The state of the recording: "Recording, 0 lost, 0.8 % overhead"."""
    verb = "Recording" if run["status"] == "running" else "Recorded"
    cost = "" if run["overhead"] is None else f", {percent(run['overhead'])} overhead"
    return f"{verb}, {count(run['lost_records'])} lost{cost}"


def budget_advice(run: Mapping[str, Any]) -> str:
    """Advice if the monitor exceeds its budget, else nothing."""
    if not run["over_budget"] or run["budget"] is None:
        return ""
    return (
        f"Monitoring now exceeds its budget of {percent(run['budget'])} of training time, even at the lowest sampling "
        f"rate: one step in {count(run['sampling_interval'] or 0)}, and after each change of the scale. Lower "
        "Config(sample=) to make samples cheaper on a CPU, or raise Config(budget=)."
    )


def _newest(run: Mapping[str, Any]) -> Readout:
    time, step = run["last_time"], run["last_step"]
    exact = None if time is None else f"{np.datetime64(time // 1000, 'ms')}Z"
    more = "" if step is None else steps(step, step)
    return Readout("none", more, exact, time if run["updates"] else None)


def _exact(number: float | None) -> str | float | None:
    """The number, or its name in JavaScript, which JSON cannot hold."""
    if number is None or math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"
