"""The parts of a server's answers that only the terminal commands read, and their numbers as text."""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from ampmon.system.plain import plain
from ampmon_server.client.answers import Run
from ampmon_server.client.sketch import Sketch
from ampmon_server.model.names import training_loss
from ampmon_server.model.scale_policy import DEAD, ENDLESS
from ampmon_server.model.words import NONE, SPACE, count, digits_of, percent, scale_words


_AGES = ((60.0, "s", 1.0), (3600.0, "min", 60.0), (86400.0, "h", 3600.0))


class LoggedAnswer(msgspec.Struct, frozen=True):
    """A logged name and its newest value. ``value_kind`` is the kind of a value that is not finite."""

    name: str
    value: float | None = None
    value_kind: str | None = None


class LoggedNames(msgspec.Struct, frozen=True):
    """The answer of GET /runs/{run_id}/scalars."""

    names: tuple[LoggedAnswer, ...] = ()


class CulpritAnswer(msgspec.Struct, frozen=True):
    """A parameter whose gradient was not finite."""

    parameter: str


class SkipAnswer(msgspec.Struct, frozen=True):
    """One optimizer's skip on one rank. ``time`` is in us since the epoch."""

    step: int
    time: int = 0
    scaler: str = ""
    attempt: int = 0
    cause: str = "unknown"
    scale: float | None = None
    scale_after: float | None = None
    culprits: tuple[CulpritAnswer, ...] = ()

    @property
    def culprit(self) -> str:
        """The first parameter that overflowed, in plain text. Empty if unknown."""
        return plain(self.culprits[0].parameter, 256) if self.culprits else ""


class SkipsPage(msgspec.Struct, frozen=True):
    """A page of GET /runs/{run_id}/skips, newest first."""

    skips: tuple[SkipAnswer, ...] = ()


def duration(seconds: float) -> str:
    """Format a duration or an age in its largest unit: "42 s", "3 min", "5 h", "12 d"."""
    for below, unit, size in _AGES:
        if seconds < below:
            return f"{max(seconds, 0.0) / size:.0f}{SPACE}{unit}"
    return f"{seconds / 86400:.0f}{SPACE}d"


def scale_of(scale: float | None, kind: str | None = None) -> str:
    """Format a loss scale as its power of two alone: "2¹⁶"."""
    return scale_words(scale, kind).rpartition(" ")[2]


def scale_now(run: Run, drawn: Sketch) -> str:
    """Format the newest scale and, if it has changed, its extremes: "2¹⁶ (between 2¹⁴ and 2¹⁷)"."""
    now = scale_of(run.scale, run.scale_kind)
    # The newest scale is not drawn yet if the last update changed it.
    scales = [_at(drawn.low), _at(drawn.high), *([] if run.scale is None else [run.scale])]
    low, high = scale_of(min(scales)), scale_of(max(scales))
    return now if low == high else f"{now} (between {low} and {high})"


def _at(height: float) -> float:
    """The scale at a height of its chart."""
    return 0.0 if height == DEAD else math.inf if height == ENDLESS else 2.0**height


def skipped_of(run: Run) -> str:
    """Format the skipped updates: "53 of 12 345 updates (0.43 %)"."""
    share = f" ({percent(run.skip_rate)})" if run.skip_rate else ""
    return f"{count(run.skipped)} of {count(run.updates)} updates{share}"


def overhead_of(run: Run) -> str:
    """What the monitor costs, and whether that exceeds its budget."""
    share = f"{percent(run.overhead or 0.0)} of the training time"
    if run.budget is None or not run.over_budget:
        return share
    return f"{share}, over the budget of {percent(run.budget)}"


def underflow_of(run: Run) -> str:
    """Format the fractions of the gradient that are subnormal or zero in fp16, in the newest sample."""
    if run.subnormal_fraction is None:
        return (
            "no parameter is fp16-representable" if run.sampled_updates else "no gradient sampled"
        )
    words = f"{percent(run.subnormal_fraction)} subnormal"
    if run.zero_fraction is not None:
        words += f", {percent(run.zero_fraction)} zero"
    if run.headroom_bits is not None:
        words += f"; headroom {run.headroom_bits:.1f} bits"
    return words


def loss_among(logged: Iterable[LoggedAnswer]) -> LoggedAnswer | None:
    """The logged value that is most likely the training loss, or None."""
    named = {each.name: each for each in logged}
    name = training_loss(named)
    return named[name] if name is not None else None


def value_of(logged: LoggedAnswer) -> str:
    """Format a logged value: "0.4312", or "NaN"."""
    if logged.value is None:
        return plain(logged.value_kind or NONE)
    return digits_of(logged.value)
