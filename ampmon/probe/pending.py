"""Values that may still be on their way from a device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar


T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Awaited(Protocol[T_co]):
    """A value that may still be on its way."""

    def ready(self) -> bool:
        """Whether it is on the host. Does not wait."""

    def result(self) -> T_co:
        """Return it. Waits until it is on the host."""


class Pending(Generic[T_co]):
    """A value that ``make`` computes from ``awaited`` ones, at the first call of `result`. Then it drops both."""

    __slots__ = ("_awaited", "_made", "_make")
    _made: T_co

    def __init__(self, make: Callable[[], T_co], *awaited: Awaited[Any]) -> None:
        self._make: Callable[[], T_co] | None = make
        self._awaited = awaited

    def ready(self) -> bool:
        for each in self._awaited:  # noqa: SIM110 - all() would double the depth of a chain
            if not each.ready():
                return False
        return True

    def result(self) -> T_co:
        make = self._make  # read once: another thread may be here too
        if make is not None:
            self._made = make()
            self._make, self._awaited = None, ()
        return self._made


def on_host(value: T) -> Pending[T]:
    """Return a value that is on the host already."""
    return Pending(lambda: value)
