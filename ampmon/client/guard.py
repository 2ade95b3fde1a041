"""The wrapper around every hook of the full gear."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Concatenate, ParamSpec

from ampmon.probe.accelerator import capturing


if TYPE_CHECKING:
    from ampmon.client.monitor import Monitor

P = ParamSpec("P")


def guarded(
    hook: Callable[Concatenate[Monitor, P], None],
) -> Callable[Concatenate[Monitor, P], None]:
    """Wrap a hook of the full gear so that it cannot harm training: count its errors, and skip it in a graph capture.

    Leaves the plain gear first, if that is engaged.
    """

    @functools.wraps(hook)
    def guard(monitor: Monitor, /, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            if monitor.gear is not None:
                monitor.gear.leave()
            if capturing():
                monitor.stand_aside(hook.__name__)
            else:
                hook(monitor, *args, **kwargs)
        except Exception as error:
            monitor.failed(hook.__name__, error)

    return guard
