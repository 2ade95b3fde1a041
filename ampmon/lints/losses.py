"""Which losses `scale()` returned, and whether a backward pass that began in one of them is running."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ampmon.probe.graphs import capturing


_SCALED = "ampmon: scaled"
_NEAR = 32
"""Nodes of a loss's graph that are searched for an earlier `scale()`."""


class _Pass:
    """A backward pass that began in a scaled loss. Only the pass keeps it, so that one that raises is over too."""

    def __init__(self, began: _Begin) -> None:
        self.began = began
        self.reached: set[int] = set()
        """The places at which it was met."""

    def end(self) -> None:
        _running.discard(self)


_running: weakref.WeakSet[_Pass] = weakref.WeakSet()
"""Those of all scalers of the process: a pass may reach parameters that another scaler's optimizer holds."""


class Losses:
    """Marks each loss that one scaler scales. Keeps no graph alive and reads no value."""

    def __init__(
        self, begins: Callable[[], None], report: Callable[[str, Exception], None]
    ) -> None:
        self._begins = begins
        self._report = report
        self.by_hand = False
        """Whether something without a graph was scaled, as by those who multiply or pass on gradients themselves."""
        self.count = self.begun = 0
        """Losses scaled since the last update, and backward passes that began in one."""

    def scaled(self, outputs: Any) -> None:
        """`scale()` has returned."""
        for node in _heads(outputs):
            if node is None:
                self.by_hand = True
            else:
                self.count += 1
                metadata: Any = node.metadata  # torch's own annotation takes it for a method
                metadata[_SCALED] = True
                node.register_prehook(_Begin(self))

    def began(self, began: _Begin) -> None:
        """A backward pass has begun in a loss that this scaler scaled."""
        try:
            self.begun += 1
            begun = _Pass(began)
            torch.autograd.Variable._execution_engine.queue_callback(begun.end)
            _running.add(begun)
            self._begins()
        except Exception as error:
            self._report("lint", error)
            self.by_hand = True

    def reaching(self, place: int) -> tuple[bool, bool]:
        """Of the pass that is running: whether it began in a loss of this scaler, and one that has come here before."""
        own = [each for each in _running if each.began.of(self)]
        new = [each for each in own if place not in each.reached]
        again = any(place in each.began.reached for each in new)
        for each in new:
            each.reached.add(place)
            each.began.reached.add(place)
        return bool(own), again

    def updated(self) -> None:
        """An update has ended: start the counts again."""
        self.count = self.begun = 0

    def bare(self) -> bool:
        """Whether the backward pass that is running began in no scaled loss. A captured pass does not count."""
        return not (_running or self.by_hand or capturing())


class _Begin:
    """A hook that keeps nothing alive."""

    __slots__ = ("__weakref__", "_losses", "reached")

    def __init__(self, losses: Losses) -> None:
        self._losses = weakref.ref(losses)
        self.reached: set[int] = set()
        """The places that a pass of this loss has reached."""

    def of(self, losses: Losses) -> bool:
        return self._losses() is losses

    def __call__(self, _: Any) -> None:
        losses = self._losses()
        if losses is not None:
            losses.began(self)


def scaled_before(outputs: Any) -> bool:
    """Whether a loss that is about to be scaled was made from one that a scaler has scaled. Looks at nearby nodes."""
    return any(_SCALED in node.metadata for head in _heads(outputs) for node in _near(head))


def _heads(outputs: Any) -> Iterator[Any]:
    """The node that made each loss; None of one without a graph."""
    for each in outputs if isinstance(outputs, (list, tuple)) else (outputs,):
        yield each.grad_fn if isinstance(each, torch.Tensor) else None


def _near(head: Any) -> Iterator[Any]:
    waiting = [head] if head is not None else []
    for node in waiting:  # it grows
        yield node
        if len(waiting) < _NEAR:
            waiting.extend(each for each, _ in node.next_functions if each is not None)
