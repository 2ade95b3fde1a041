"""The run as its user sees it: `init`, `log`, `finish`. All three are optional, and none of them touches training."""

from __future__ import annotations

import operator
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from ampmon import config as configuration
from ampmon import process, wire
from ampmon.config import clean_name
from ampmon.recorder import Recorder
from ampmon.stream import Stream


_UNWATCHED_LOSSES = 3
"""Losses logged before a scaler: the first may come before the scaler is made."""


def init(  # noqa: PLR0913 - one argument for each thing a run can be told
    project: str | None = None,
    name: str | None = None,
    config: Mapping[str, Any] | None = None,
    *,
    url: str | None = None,
    dir: str | os.PathLike[str] | None = None,
    run_id: str | UUID | None = None,
    resume_step: int | None = None,
    mode: str | None = None,
    tags: Sequence[str] = (),
) -> str | None:
    """Begin a run, ending the one before; returns its id, or None where it is not known yet or monitoring is disabled.

    Without it the first scaler begins a run named after the script. ``config`` is what the run was started with;
    values that are not plain data are kept as text. ``run_id`` (``AMPMON_RUN_ID``) continues a run, whose next update
    is ``resume_step``, or by default the one after the last that was recorded. ``mode`` is ``online``, ``offline``
    (records stay on disk) or ``disabled``.

    Raises ConfigurationError or SpoolError, which say what to change. Writes to disk; may wait up to five seconds for
    the delivery of the run before. Syncs no device.
    """
    options = configuration.resolve(
        project=project,
        name=name,
        config=config,
        url=url,
        dir=dir,
        run_id=run_id,
        resume_step=resume_step,
        mode=mode,
        tags=tuple(tags),
    )
    run = process.start(options)
    return str(run.run_id) if run is not None and run.run_id is not None else None


def log(values: Mapping[str, Any], step: int | None = None) -> None:
    """Add scalars, such as loss and learning rate, to the last update, or, once `scale()` was called, to the one begun.

    Values are numbers, or tensors of one element on any device: a tensor is detached and copied, and nothing waits for
    it. NaN and infinities are kept as what they are. ``step`` is the user's own step. Never raises, never syncs; what
    is not a number, and a name after the first 10 000, is counted as an error of the monitor and warned of once. Does
    nothing while a CUDA graph is being captured, in which there are no values yet.
    """
    run = process.ensure(anew=False)
    if run is None:
        return
    try:
        if _capturing():
            return
        stream = run.recent
        ordinal = max(stream.ordinal - (not stream.updating), 0)
        numbers, copies = _collect(values)
        _leave_out_what_is_beyond(run, numbers, copies)
        if numbers or copies or not values:
            stream.submit(_PendingScalars(stream, ordinal, _user_step(step), numbers, copies))
        if not run.watches:
            _look_for_fp16(run, values)
    except Exception as error:
        run.failed("ampmon.log", error)


def _look_for_fp16(run: Recorder, values: Mapping[str, Any]) -> None:
    """A loss is logged, and nobody has told of a scaler yet: see whether it needs one, once."""
    if run.unwatched_losses < _UNWATCHED_LOSSES:
        for value in values.values():
            if getattr(value, "grad_fn", None) is not None:
                run.unwatched_losses += 1
                if run.unwatched_losses == _UNWATCHED_LOSSES:
                    run.unscaled(value, "no scaler of it is watched")
                break


def _capturing() -> bool:
    """Whether a CUDA graph is being captured: it would take a copy into itself, and break if an event were asked."""
    if "torch" not in sys.modules:
        return False
    from ampmon.probe.graphs import capturing

    return capturing()


def _user_step(step: Any) -> int | None:
    if step is None:
        return None
    number = operator.index(step)
    if not 0 <= number <= wire.COUNT_MAX:
        raise ValueError(f"step={number}: at least 0, at most 2^53 - 1")
    return number


def _collect(values: Mapping[str, Any]) -> tuple[dict[str, float], dict[str, Any]]:
    """Numbers that are known, and copies of those that are on their way from a device."""
    numbers: dict[str, float] = {}
    copies: dict[str, Any] = {}
    if len(values) > wire.SCALARS_MAX:
        raise ValueError(f"{len(values)} scalars at once; at most {wire.SCALARS_MAX} are kept")
    for name, value in values.items():
        device = getattr(value, "device", None)
        if device is not None and getattr(device, "type", "cpu") != "cpu":
            from ampmon.probe.ring import Readback

            copies[clean_name(name)] = Readback(value.detach().reshape(()))
        else:
            numbers[clean_name(name)] = float(value.detach() if hasattr(value, "detach") else value)
    return numbers, copies


def _leave_out_what_is_beyond(run: Recorder, *collected: dict[str, Any]) -> None:
    """Take out the names for which a run has no room beside those that it has."""
    for values in collected:
        new = [name for name in values if name not in run.logged]
        room = max(wire.SCALAR_NAMES_MAX - len(run.logged), 0)
        run.logged.update(new[:room])
        if beyond := new[room:]:
            for name in beyond:
                del values[name]
            more = f"{beyond[0]!r} is not kept: {wire.SCALAR_NAMES_MAX} names are logged already"
            run.failed("ampmon.log", ValueError(more))


@dataclass(slots=True)
class _PendingScalars:
    stream: Stream
    ordinal: int
    user_step: int | None
    numbers: dict[str, float]
    copies: dict[str, Any]

    def ready(self) -> bool:
        return all(copy.ready() for copy in self.copies.values())

    def write(self) -> None:
        arrived = {name: float(copy.result()) for name, copy in self.copies.items()}
        self.stream.put(
            wire.Scalars,
            ordinal=self.ordinal,
            values={**self.numbers, **arrived},
            user_step=self.user_step,
        )
