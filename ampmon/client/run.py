"""The public calls of a run: `init`, `log` and `metrics`. All are optional, and none changes the training."""

from __future__ import annotations

import operator
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
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
"""Which logged loss is checked if no scaler is watched, counted from 1. Earlier ones may precede the scaler."""


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
    """Begin a run and end the previous one. Return its id, or None if disabled or rank 0 has not sent the id yet.

    Optional. Call it before the first scaler, which otherwise begins a run named after the script.

    - ``url``, ``dir``: the server, and the data directory (``AMPMON_URL``, ``AMPMON_DIR``).
    - ``config``: the configuration to show. Values that are not plain data are kept as text. Passwords, keys and tokens
      are removed.
    - ``run_id`` (``AMPMON_RUN_ID``): continue this run at ``resume_step``, by default after its last recorded update.
    - ``mode``: ``online``, ``offline`` (records stay on disk) or ``disabled``.
    - ``baseline``: add the tag ``baseline``. Pages that compare runs show how far the others are from this one, which
      may train in fp32 or bf16.

    Raises ConfigurationError for invalid arguments and variables. If the data directory cannot be written, it warns,
    returns None and records nothing; the next scaler tries again. Writes to disk. May block for up to five seconds to
    deliver the previous run. Never syncs a device.
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

    The current update is the last one, or the next one once `scale()` was called. Without an enabled scaler, as in
    fp32 and bf16, it is ``step``, or else the number of earlier calls with the same name. Values are numbers or
    one-element tensors on any device; tensors are copied without waiting. NaN and infinities are kept. ``step`` is your
    own step.

    Never raises or syncs. Invalid values, invalid steps and names beyond 10 000 are left out, counted as errors and
    warned about once. Does nothing while a CUDA graph is captured.
    """
    run = current_run.current() or current_run.ensure(anew=False)
    if run is None:
        return
    try:
        if "torch" in sys.modules and _capture_check()():
            return
        stream = run.recent
        user_step = None if step is None else _user_step(run, step)
        ordinal = (
            max(stream.ordinal - (not stream.updating), 0)
            if run.streams
            else _counted(run, values, user_step)
        )
        known = _known(run, values)
        if known and run.may_append(stream):
            if not run.append(stream, _encoded, stream.name, ordinal, known, user_step):
                stream.put(wire.Scalars, ordinal=ordinal, values=known, user_step=user_step)
            return
        kept = _collect(run, values)
        _leave_out_what_is_beyond(run, kept)
        if kept:
            write = partial(_write, run, stream, ordinal, user_step, kept)
            stream.submit(have_arrived(kept.values()), write)
        if not run.streams:
            _look_for_fp16(run, values)
    except Exception as error:
        signals.let_through(error)
        run.failed("ampmon.log", error)


def metrics() -> dict[str, float]:
    """Return the newest values of this process's scalers, for your own tracker.

    Use it as ``wandb.log({"loss": loss} | ampmon.metrics(), step=step)``. Values that are unknown or not finite are
    left out. The names of a second scaler begin with ``amp/NAME/``, as in ``amp/NAME/scale``. Empty if nothing is
    recorded. Never raises, syncs or blocks.
    """
    run = current_run.current()
    if run is None:
        return {}
    try:
        found: dict[str, float] = {}
        for place, name in enumerate(list(run.streams)):
            if (shown := run.shown.get(name)) is not None:
                prefix = f"amp/{name}/" if place else "amp/"
                values = shown.metrics().items()
                found |= {prefix + key.removeprefix("amp/"): value for key, value in values}
        return found
    except Exception as error:
        signals.let_through(error)
        run.failed("ampmon.metrics", error)
        return {}


def _counted(run: Recorder, values: Mapping[str, Any], user_step: int | None) -> int:
    """The step of values logged without a scaler: the user's own, or one more each time a name repeats."""
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
    """Check once whether a loss that is logged without a watched scaler needs one."""
    if run.unwatched_losses < _UNWATCHED_LOSSES:
        for value in values.values():
            if getattr(value, "grad_fn", None) is not None:
                run.unwatched_losses += 1
                if run.unwatched_losses == _UNWATCHED_LOSSES:
                    run.unscaled(value, "no watched scaler scales it")
                break


@cache
def _capture_check() -> Callable[[], bool]:
    """The function that says whether a CUDA graph is being captured, which a query of an event would break."""
    from ampmon.probe.accelerator import capturing

    return capturing


def _encoded(
    seq: int,
    time: int,
    stream: str,
    ordinal: int,
    values: dict[str, Any],
    user_step: int | None,
) -> bytes:
    record = wire.Scalars(
        stream=stream, seq=seq, ordinal=ordinal, time=time, values=values, user_step=user_step
    )
    return wire.encode(record)


def _user_step(run: Recorder, step: Any) -> int | None:
    """The user's own step. If it is not a valid count, report that and return None."""
    try:
        if _is_on_device(step):
            raise ValueError("it is a tensor on a device; pass a Python int")
        whole = isinstance(step, float) and step.is_integer()
        number = int(step) if whole else operator.index(step)
        if not 0 <= number <= wire.COUNT_MAX:
            raise ValueError(f"{number} is not between 0 and 2^53 - 1")
    except Exception as error:
        signals.let_through(error)
        run.failed("ampmon.log", ValueError(f"the step is ignored: {error}"))
        return None
    return number


def _known(run: Recorder, values: Mapping[str, Any]) -> dict[str, float] | None:
    """The values, if all are floats with names that were logged before, else None."""
    if len(values) > wire.SCALARS_MAX:
        return None
    names = run.logged
    for name, value in values.items():
        # Not np.float64 either: it is a float, but msgspec refuses it.
        if type(value) is not float or name not in names:
            return None
    return dict(values)


def _collect(run: Recorder, values: Mapping[str, Any]) -> dict[str, float | Readback]:
    """Known numbers as floats, and copies of those that are still on their way from a device."""
    if len(values) > wire.SCALARS_MAX:
        raise ValueError(f"{len(values)} scalars in one call; the limit is {wire.SCALARS_MAX}")
    named = {clean_name(name): value for name, value in values.items()}
    return _each(run, named, number_or_copy)


def _each(run: Recorder, values: Mapping[str, Any], convert: Callable[[Any], T]) -> dict[str, T]:
    """Convert each value on its own. Values that fail are dropped, and the first of them is reported by name."""
    converted: dict[str, T] = {}
    bad = None
    for name, value in values.items():
        try:
            converted[name] = convert(value)
        except Exception as error:
            signals.let_through(error)
            bad = bad or f"{name!r} is not recorded: {error}"
    if bad is not None:
        run.failed("ampmon.log", ValueError(bad))
    return converted


def number_or_copy(value: Any) -> float | Readback:
    """A float, or a copy of a value that is still on its way from a device."""
    if _is_on_device(value):
        from ampmon.probe.ring import Readback

        return Readback(value.detach().reshape(()))
    return float(value.detach() if hasattr(value, "detach") else value)


def _is_on_device(value: Any) -> bool:
    return getattr(getattr(value, "device", None), "type", "cpu") != "cpu"


def have_arrived(values: Iterable[float | Readback]) -> Callable[[], bool]:
    """A function that says whether all values are on the host. It does not wait."""
    copies = [value for value in values if not isinstance(value, float)]
    return lambda: all(copy.ready() for copy in copies)


def number(value: float | Readback) -> float:
    """The number itself. Waits for one that is still on its way."""
    return value if isinstance(value, float) else float(value.result())


def _leave_out_what_is_beyond(run: Recorder, values: dict[str, float | Readback]) -> None:
    """Remove new names for which the run has no room left."""
    new = [name for name in values if name not in run.logged]
    room = max(wire.SCALAR_NAMES_MAX - len(run.logged), 0)
    run.logged.update(new[:room])
    if beyond := new[room:]:
        for name in beyond:
            del values[name]
        more = f"{beyond[0]!r} is not recorded: the run already has {wire.SCALAR_NAMES_MAX} names, which is the limit"
        run.failed("ampmon.log", ValueError(more))


def _write(
    run: Recorder,
    stream: Stream,
    ordinal: int,
    user_step: int | None,
    values: dict[str, float | Readback],
) -> None:
    arrived = _each(run, values, number)
    stream.put(wire.Scalars, ordinal=ordinal, values=arrived, user_step=user_step)
