"""The run as its user sees it: `init`, `log`, `finish`. All three are optional, and none of them touches training."""

from __future__ import annotations

import operator
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from ampmon import config as configuration
from ampmon import wire
from ampmon.client import current_run
from ampmon.client.recorder import Recorder
from ampmon.config import clean_name
from ampmon.system import signals
from ampmon.training.series import Stream


if TYPE_CHECKING:
    from ampmon.probe.ring import Readback


T = TypeVar("T")

_UNWATCHED_LOSSES = 3
"""Losses logged before a scaler: the first may come before the scaler is made."""


def init(  # noqa: PLR0913 - one argument for each setting of a run
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
    baseline: bool = False,
) -> str | None:
    """Begin a run, and end the one before. Return its id, or None if rank 0 has not sent it yet.

    Optional: otherwise the first scaler begins a run named after the script.

    - ``config``: the configuration to show. Values that are no plain data are kept as text. Passwords, keys and tokens
      are removed.
    - ``run_id`` (``AMPMON_RUN_ID``): continue this run at ``resume_step``, by default after its last recorded update.
    - ``mode``: ``online``, ``offline`` (records stay on disk) or ``disabled``.
    - ``baseline``: add the tag ``baseline``. A page that compares runs shows how far the others are from this one,
      which may train in fp32 or bf16.

    Raises ConfigurationError for invalid arguments and variables. If the data directory cannot be written, it warns,
    returns None and records nothing; the next scaler tries again. Writes to disk. May wait up to five seconds for the
    delivery of the run before. Syncs no device.
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
        tags=(*tags, wire.BASELINE) if baseline else tuple(tags),
    )
    run = current_run.begin(options)
    return str(run.run_id) if run is not None and run.run_id is not None else None


def log(values: Mapping[str, Any], step: int | None = None) -> None:
    """Log scalars, such as loss and learning rate, with the current update.

    The current update is the last one, or the next one after `scale()` was called. Without an enabled scaler, as in
    fp32 and bf16, it is ``step``, or else the number of earlier calls with the same name. Values are numbers or
    one-element tensors on any device, which are copied without waiting. NaN and infinities are kept. ``step`` is your
    own step.

    Never raises or syncs. Invalid values, invalid steps and names beyond 10 000 are left out, counted as errors and
    warned of once. Does nothing while a CUDA graph is captured.
    """
    run = current_run.ensure(anew=False)
    if run is None:
        return
    try:
        if _capturing():
            return
        stream = run.recent
        user_step = _user_step(run, step)
        ordinal = (
            max(stream.ordinal - (not stream.updating), 0)
            if run.watches
            else _counted(run, values, user_step)
        )
        known = _known(run, values)
        if known and stream.idle:
            stream.put(wire.Scalars, ordinal=ordinal, values=known, user_step=user_step)
            return
        kept = _collect(run, values)
        _leave_out_what_is_beyond(run, kept)
        if kept or not values:
            stream.submit(_PendingScalars(run, stream, ordinal, user_step, kept))
        if not run.watches:
            _look_for_fp16(run, values)
    except Exception as error:
        signals.let_through(error)
        run.failed("ampmon.log", error)


def metrics() -> dict[str, float]:
    """Return the newest values of this process's scalers, for your own tracker.

    Use them as ``wandb.log({"loss": loss} | ampmon.metrics(), step=step)``. Unknown values and values that are not
    finite are left out. The names of a second scaler are ``amp/NAME/scale`` and so on. Empty if nothing is recorded.
    Never raises, syncs or blocks.
    """
    run = current_run.current()
    if run is None:
        return {}
    try:
        return run.metrics()
    except Exception as error:
        signals.let_through(error)
        run.failed("ampmon.metrics", error)
        return {}


def _counted(run: Recorder, values: Mapping[str, Any], user_step: int | None) -> int:
    """The step of values where no scaler counts: the user's own, or one more each time that a name comes again."""
    stream, names = run.recent, set(values)
    if user_step is not None:
        stream.ordinal = max(user_step - (run.options.resume_step or 0), 0)
    elif names & run.counted:
        stream.ordinal += 1
    else:
        names |= run.counted
    run.counted = names
    return stream.ordinal


def _look_for_fp16(run: Recorder, values: Mapping[str, Any]) -> None:
    """A loss is logged before any scaler is watched: see whether it needs one, once."""
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


def _user_step(run: Recorder, step: Any) -> int | None:
    """The user's own step; None, and reported, where it is no count."""
    if step is None:
        return None
    try:
        if _is_on_device(step):
            raise ValueError("it is on a device, which nobody waits for")
        whole = isinstance(step, float) and step.is_integer()
        number = int(step) if whole else operator.index(step)
        if not 0 <= number <= wire.COUNT_MAX:
            raise ValueError(f"{number} is not at least 0 and at most 2^53 - 1")
    except Exception as error:
        signals.let_through(error)
        run.failed("ampmon.log", ValueError(f"the step is not kept: {error}"))
        return None
    return number


def _known(run: Recorder, values: Mapping[str, Any]) -> dict[str, float] | None:
    """The values, where all are floats under names that were kept before and some scaler reports; else None."""
    if not run.watches or len(values) > wire.SCALARS_MAX:
        return None
    names = run.logged
    for name, value in values.items():
        if type(value) is not float or name not in names:
            return None
    return dict(values)


def _collect(run: Recorder, values: Mapping[str, Any]) -> dict[str, float | Readback]:
    """Numbers that are known, and copies of those that are on their way from a device."""
    if len(values) > wire.SCALARS_MAX:
        raise ValueError(f"{len(values)} scalars at once; at most {wire.SCALARS_MAX} are kept")
    named = {clean_name(name): value for name, value in values.items()}
    return _each(run, named, _number_or_copy)


def _each(run: Recorder, values: Mapping[str, Any], convert: Callable[[Any], T]) -> dict[str, T]:
    """What becomes of each value by itself: the first that is no number is reported by its name."""
    converted: dict[str, T] = {}
    bad = None
    for name, value in values.items():
        try:
            converted[name] = convert(value)
        except Exception as error:
            signals.let_through(error)
            bad = bad or f"{name!r} is not kept: {error}"
    if bad is not None:
        run.failed("ampmon.log", ValueError(bad))
    return converted


def _number_or_copy(value: Any) -> float | Readback:
    if _is_on_device(value):
        from ampmon.probe.ring import Readback

        return Readback(value.detach().reshape(()))
    return float(value.detach() if hasattr(value, "detach") else value)


def _is_on_device(value: Any) -> bool:
    return getattr(getattr(value, "device", None), "type", "cpu") != "cpu"


def _number(value: float | Readback) -> float:
    return value if isinstance(value, float) else float(value.result())


def _leave_out_what_is_beyond(run: Recorder, values: dict[str, float | Readback]) -> None:
    """Take out the names for which a run has no room beside those that it has."""
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
    run: Recorder
    stream: Stream
    ordinal: int
    user_step: int | None
    values: dict[str, float | Readback]
    brief = True

    def ready(self) -> bool:
        return all(isinstance(value, float) or value.ready() for value in self.values.values())

    def write(self) -> None:
        arrived = _each(self.run, self.values, _number)
        if arrived or not self.values:
            self.stream.put(
                wire.Scalars,
                ordinal=self.ordinal,
                values=arrived,
                user_step=self.user_step,
            )
