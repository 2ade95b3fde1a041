"""Measures on request how fp16 changes the gradients of a model, compared with fp32 on one batch.

The script names the model and the batch. The request comes from the page, through a file in the spool. The passes run
between two updates, on the training thread. They change nothing, and nothing here raises once training has begun.
"""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from ampmon.checking.passes import PassRunner, checked_model
from ampmon.checking.result import known
from ampmon.errors import ConfigurationError
from ampmon.system import signals


if TYPE_CHECKING:
    from ampmon.client.monitor import Monitor

EVERY_S = 3600.0
"""The least time between two measurements."""
UPDATES = 8
"""Expected duration of the first measurement, in updates. One of its two passes is in fp32."""
MODULES = 64
"""At most this many modules are reported, the worst first."""
ALREADY = "The gradient is not finite in fp32 either."
OVERFLOWED = "fp16 overflowed on the batch."

Model = TypeVar("Model", bound=torch.nn.Module)
Batch = TypeVar("Batch")


def measure_on_request(
    scaler: torch.amp.GradScaler,
    model: Model,
    batch: Batch,
    loss_fn: Callable[[Model, Batch], torch.Tensor],
) -> None:
    """Let the run's page measure how much fp16 changes the gradients of ``model``, while it trains.

    - ``scaler``: a scaler that ampmon watches. With any other scaler, nothing happens.
    - ``model``, ``batch``, ``loss_fn``: as in `ampmon.preflight`. The batch is kept.

    Call it once before training. The page then has a button beside findings of gradient underflow. After a click, one
    pass in fp32 and one in fp16 run between two steps, with the current weights and loss scale. The result is the error
    of each module's fp16 gradient, relative to the norm of its fp32 gradient.

    Measures at most once an hour, and within ``budget`` as a share of the training time. Training waits meanwhile. The
    passes take the memory of three more copies of the parameters. Model, gradients, buffers, hooks and random states
    are bit for bit the same afterwards. With several ranks, nothing is measured.

    Raises ConfigurationError for arguments that cannot be checked. Errors of ``loss_fn`` are shown on the page.
    """
    monitor: Monitor | None = getattr(scaler, "_ampmon_monitor", None)
    if monitor is None:
        return
    checked_model(model)
    if not callable(loss_fn):
        raise ConfigurationError("loss_fn: a function of the model and the batch is needed")
    monitor.measuring = Measuring(monitor, model, batch, loss_fn)
    monitor.measuring.announce()


class Measuring:
    """Measures the named model when that is requested and allowed. Uses private attributes of the monitor.

    Times are in seconds of ``clock``.
    """

    def __init__(
        self,
        monitor: Monitor,
        model: torch.nn.Module,
        batch: Any,
        loss_fn: Callable[[Any, Any], torch.Tensor],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._monitor, self._model = monitor, weakref.ref(model)
        self._batch, self._loss_fn, self._clock = batch, loss_fn, clock
        self._began = clock()
        self._ended: float | None = None
        self._served: int | None = None
        self._took = self._spent = 0.0

    def announce(self) -> None:
        """Write an event that the run can be measured. With several ranks, warn instead."""
        run, stream = self._monitor._recorder, self._monitor._stream
        if run is None or stream is None:
            return
        if run.world_size == 1:
            stream.event("measurable", ordinal=stream.ordinal)
        else:
            words = "ampmon: measure_on_request() measures nothing in a run with several ranks."
            run.warn("measure_on_request", words)

    def look(self, update_us: float | None) -> None:
        """Measure and write the event, if that is requested and allowed now. The update took ``update_us``."""
        monitor, model = self._monitor, self._model()
        run, stream, scale = monitor._recorder, monitor._stream, monitor._scale
        if run is None or stream is None or run.world_size > 1 or model is None:
            return
        request, started = run.findings.request, self._clock()
        if request in {None, self._served} or not (scale and self._may(started, update_us)):
            return
        if torch.is_autocast_enabled(next(model.parameters()).device.type):
            return  # autocast's cache of fp16 weights belongs to the training
        self._served, spending = request, monitor._account.clock()
        try:
            detail = self._measured(model, scale)
        except Exception as error:
            signals.let_through(error)
            words = f"{type(error).__name__}: {error}"
            detail = {"failed": words.splitlines()[0][:500]}  # torch may append C++ frames
        self._ended = self._clock()
        self._took = self._ended - started
        self._spent += self._took
        stream.event("measured", ordinal=stream.ordinal, scale=scale, seconds=self._took, **detail)
        monitor._account.spend(spending)

    def _may(self, now: float, update_us: float | None) -> bool:
        rested = self._ended is None or now - self._ended >= EVERY_S
        expected = self._spent + (self._took or UPDATES * (update_us or math.inf) / 1e6)
        return rested and expected <= self._monitor.config.budget * (now - self._began)

    def _measured(self, model: torch.nn.Module, scale: float) -> dict[str, Any]:
        bench = PassRunner(model, self._batch, self._loss_fn)
        if not bench.run(torch.float32).finite:
            return {"failed": ALREADY}
        found = bench.run(torch.float16, scale)
        if not found.finite:
            return {"failed": OVERFLOWED}
        worst = sorted(found.errors.items(), key=lambda each: -each[1])
        errors = {bench.name(place)[0]: known(error) for place, error in worst[:MODULES]}
        return {"error": known(found.error), "modules": errors}
