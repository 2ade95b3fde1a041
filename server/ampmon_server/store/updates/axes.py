"""Converts the range of an x axis to a stretch of steps or time. The user's own steps come from logged values."""

from __future__ import annotations

from typing import Literal

from sqlalchemy import Connection

from ampmon_server.model.series import UserSteps
from ampmon_server.store.engine.numbers import INTEGER_MAX
from ampmon_server.store.pages.windows import Stretch
from ampmon_server.store.streams.scalers import Scaler
from ampmon_server.store.updates import logged


def find(
    connection: Connection,
    scaler: Scaler,
    *,
    start: int,
    stop: int,
    by: Literal["step", "time", "user"],
    columns: int = 1000,
) -> tuple[Stretch, UserSteps | None] | None:
    """The stretch with ``start`` <= x < ``stop``, and the user's own steps if x is those; None if there are none."""
    if by != "user":
        return Stretch(start, stop, by), None
    low = start if start > 0 else None
    high = stop if stop <= INTEGER_MAX else None
    user = logged.user_steps(connection, scaler, start=low, stop=high, columns=columns)
    if user is None:
        return None
    first = 0 if low is None else user.back(low)
    return Stretch(first, INTEGER_MAX + 1 if high is None else user.back(high)), user
