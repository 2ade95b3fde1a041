"""Formats a run's numbers for a terminal."""

from __future__ import annotations

from collections.abc import Iterable

from ampmon.system.plain import plain
from ampmon_server.cli.terminal.answers import LoggedAnswer, SummaryAnswer
from ampmon_server.model.names import training_loss
from ampmon_server.model.words import NONE, SPACE, count, percent, power_of_two


_AGES = ((60.0, "s", 1.0), (3600.0, "min", 60.0), (86400.0, "h", 3600.0))


def duration(seconds: float) -> str:
    """Format a duration or an age in its largest unit: "42 s", "3 min", "5 h", "12 d"."""
    for below, unit, size in _AGES:
        if seconds < below:
            return f"{max(seconds, 0.0) / size:.0f}{SPACE}{unit}"
    return f"{seconds / 86400:.0f}{SPACE}d"


def scale_of(scale: float | None, kind: str | None = None) -> str:
    """Format a loss scale as its power of two alone: "2¹⁶"."""
    if scale is None:
        return NONE if kind in {None, "finite"} else str(kind)
    return power_of_two(scale).rpartition(" ")[2]


def skipped_of(run: SummaryAnswer) -> str:
    """Format the skipped updates: "53 of 12 345 updates (0.43 %)"."""
    share = f" ({percent(run.skip_rate)})" if run.skip_rate else ""
    return f"{count(run.skipped)} of {count(run.updates)} updates{share}"


def underflow_of(run: SummaryAnswer) -> str:
    """Format the fractions of the gradient that are subnormal or zero in fp16, in the newest sample."""
    if run.subnormal_fraction is None:
        return "no gradient sampled yet"
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
    return f"{logged.value:.4g}"
