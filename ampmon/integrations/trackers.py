"""What the integrations with trackers share: the run that a framework proposes, and ampmon's values in its trackers."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any, TypeVar, cast

from ampmon import config
from ampmon.client import current_run, run
from ampmon.client.troubles import warn
from ampmon.system import signals


H = TypeVar("H", bound=Callable[..., Any])


def harmless(hook: H) -> H:
    """Wrap what a framework calls: warn of an error of ours, and raise nothing into the training."""

    @functools.wraps(hook)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return hook(*args, **kwargs)
        except Exception as error:
            signals.let_through(error)
            warn(f"ampmon: {hook.__qualname__} failed ({type(error).__name__}: {error})")

    return cast("H", call)


class Proposal:
    """A run that begins with the framework's first scale or logged value, unless the script has begun one.

    Its methods never raise.
    """

    def __init__(self) -> None:
        self._taken = False

    def make(
        self,
        name: str | None = None,
        settings: Mapping[str, Any] | None = None,
        run_id: str | None = None,
        resume_step: int | None = None,
    ) -> None:
        """Propose a run. ``run_id`` continues a run, whose next update is ``resume_step``."""
        try:
            options = config.resolve(
                name=name, config=settings, run_id=run_id, resume_step=resume_step
            )
            self._taken = current_run.propose(options)
        except Exception as error:
            signals.let_through(error)
            warn(f"ampmon: cannot start the run with the framework's settings: {error}")

    def watch(self, scaler: Any, model: Any) -> None:
        """Watch a scaler, unless it is watched already or will be, as under `ampmon run`.

        The scaler of an earlier training goes on in the new run.
        """
        kind = type(scaler)
        if hasattr(kind, "_ampmon_waits_as") or not callable(getattr(scaler, "is_enabled", None)):
            return
        try:
            if not hasattr(kind, "_ampmon_monitor"):
                # It loads torch, which `log_metrics` does not need.
                from ampmon.client.scaler import watch

                watch(scaler, model=model)
            elif (known := current_run.ensure()) is not None:
                current_run.greet(known)
        except Exception as error:
            signals.let_through(error)
            warn(f"ampmon: cannot watch the framework's scaler: {error}")

    def end(self, outcome: str = "finished") -> None:
        """Deliver and end the run if the framework began it. May block for up to five seconds.

        ``outcome`` is the type of the exception that ended the training, if one did.
        """
        if self._taken:
            self._taken = False
            current_run.end(outcome)


def run_id() -> str | None:
    """The id of the current run, or None until it has one."""
    known = current_run.current()
    return str(known.run_id) if known is not None and known.run_id is not None else None


def numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that are numbers, NumPy's too, or tensors of one element."""
    return {
        name: value
        for name, value in values.items()
        if isinstance(value, Real) or getattr(value, "numel", lambda: 0)() == 1
    }


def log_metrics(tracker: Any, step: int | None = None) -> None:
    """Log `ampmon.metrics()` to a tracker with the interface of Weights & Biases, such as trackio and SwanLab.

    ``tracker`` is a module or run with a method `log(values, ...)`, such as ``wandb``.

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
