"""Logs ampmon's values to trackers with the interface of Weights & Biases, such as trackio and SwanLab."""

from __future__ import annotations

import inspect
from typing import Any

from ampmon.client import run
from ampmon.client.troubles import warn
from ampmon.system import signals


def log_metrics(tracker: Any, step: int | None = None) -> None:
    """Log `ampmon.metrics()` to a module or run with a method `log(values, ...)`, such as ``wandb``.

    If `log` takes ``commit``, the values join the row that you log next, because a row of ampmon's own would make W&B
    drop rows of yours. Otherwise they are logged at ``step``. Never raises; warns once of a failure.
    """
    try:
        values = run.metrics()
        if not values:
            return
        if "commit" in inspect.signature(tracker.log).parameters:
            tracker.log(values, commit=False)
        else:
            tracker.log(values, step=step)
    except Exception as error:
        signals.let_through(error)
        warn(f"ampmon: cannot log ampmon's metrics to {type(tracker).__name__}: {error}")
