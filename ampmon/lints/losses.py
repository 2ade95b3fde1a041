"""Reads the losses of a scaler: marks those that `scale()` returned, and tells in which precision one was computed."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

import torch
from torch import distributed as dist

from ampmon.lints.reporter import ENOUGH, LintReporter, Warn
from ampmon.probe.accelerator import capturing
from ampmon.probe.hooks import graph_nodes
from ampmon.training.call import Call
from ampmon.training.series import Stream


_SCALED = "ampmon: scaled"
_NEAR = 32
"""How many nodes of a loss's graph are searched for an earlier `scale()`."""
_NODES_MAX = 2000
"""How many are searched for the dtype that it was computed in."""


class _Pass:
    """A backward pass that began in a scaled loss. Only autograd keeps it, so it also ends if the pass raises."""

    def __init__(self, began: _Begin) -> None:
        self.began = began
        self.reached: set[int] = set()
        """The places that it has reached, as given to `Losses.reaching`."""

    def end(self) -> None:
        _running.discard(self)


_running: weakref.WeakSet[_Pass] = weakref.WeakSet()
"""Passes of all scalers in the process, because one may reach parameters of another scaler's optimizer."""


class Losses:
    """Marks each loss that one scaler scales. Keeps no graph alive and reads no value."""

    def __init__(
        self, begins: Callable[[], None], report: Callable[[str, Exception], None]
    ) -> None:
        self._begins = begins
        self._report = report
        self._by_hand = False
        """Whether a loss without a graph was scaled, as in loops that pass on gradients themselves."""
        self._count = self._begun = 0
        """Losses scaled, and backward passes begun in one, since the last update."""
        self._unpassed = 0
        """Consecutive updates with a scaled loss that was not passed backward."""
        self._own: set[int] = set()
        """The places that passes of these losses have reached since the last update."""
        self._bare: dict[int, set[int]] = {}
        """For each bare pass since the last update, by the id of its graph task: the places that it has reached."""

    def scaled(self, outputs: Any) -> None:
        """Mark the losses that `scale()` returned."""
        for node in _heads(outputs):
            if node is None:
                self._by_hand = True
            else:
                self._count += 1
                metadata: Any = node.metadata  # torch annotates it as a method
                metadata[_SCALED] = True
                node.register_prehook(_Begin(self))

    def began(self, began: _Begin) -> None:
        """Called when a backward pass begins in a loss that this scaler scaled."""
        try:
            self._begun += 1
            begun = _Pass(began)
            torch.autograd.Variable._execution_engine.queue_callback(begun.end)
            _running.add(begun)
            self._begins()
        except Exception as error:
            self._report("lint", error)
            self._by_hand = True

    def reaching(self, place: int) -> tuple[bool, bool]:
        """Whether the running pass began in this scaler's loss, and whether that loss reached ``place`` before."""
        own = [each for each in _running if each.began.of(self)]
        new = [each for each in own if place not in each.reached]
        again = any(place in each.began.reached for each in new)
        if own:
            self._own.add(place)
        for each in new:
            each.reached.add(place)
            each.began.reached.add(place)
        return bool(own), again

    def updated(self) -> bool:
        """Return whether this is the third update in a row in which a loss was not passed backward."""
        unpassed = self._count > self._begun and not self._by_hand
        self._unpassed = self._unpassed + 1 if unpassed else 0
        self._count = self._begun = 0
        self._own.clear()
        self._bare.clear()
        return self._unpassed == ENOUGH

    def bare(self, place: int, *, own: bool) -> Literal["unscaled", "other"] | None:
        """Whether the running pass, unless it is ``own``, began in an unscaled loss or in another scaler's.

        None for an own pass, and while that is unknown, as during the capture of a graph.
        """
        if own or self._by_hand or capturing():
            return None
        task = torch._C._current_graph_task_id()
        self._bare.setdefault(task, set()).add(place)
        return "other" if _running else "unscaled"

    def passed_through(self, place: int) -> bool:
        """Whether a bare pass since the last update reached this place, one that a scaled loss reached, and another.

        The pass of a loss does. One that goes on with a scaled gradient begins where the scaled loss's pass ended.
        """
        own = self._own
        return any(place in each and each & own and each - own for each in self._bare.values())


class _Begin:
    """A hook on a scaled loss. Keeps nothing alive."""

    __slots__ = ("__weakref__", "_losses", "reached")

    def __init__(self, losses: Losses) -> None:
        self._losses = weakref.ref(losses)
        self.reached: set[int] = set()
        """The places that passes of this loss have reached."""

    def of(self, losses: Losses) -> bool:
        return self._losses() is losses

    def __call__(self, _: Any) -> None:
        if (losses := self._losses()) is not None:
            losses.began(self)


def scaled_before(outputs: Any) -> bool:
    """Whether a loss was computed from one that is already scaled. Searches only nearby nodes."""
    return any(_SCALED in node.metadata for node in nodes_of(outputs, _NEAR))


def nodes_of(outputs: Any, enough: float = math.inf) -> Iterator[Any]:
    """Yield the nodes of the graphs of losses, as `graph_nodes` does for each."""
    for head in _heads(outputs):
        yield from graph_nodes(head, enough)


def leaves_of(nodes: Iterable[Any]) -> list[torch.Tensor]:
    """The tensors without a graph of their own on which a loss depends: parameters, and inputs that take a gradient."""
    return [leaf for node in nodes if (leaf := getattr(node, "variable", None)) is not None]


def _heads(outputs: Any) -> Iterator[Any]:
    """Yield the graph node of each loss, or None for a loss without a graph."""
    for each in outputs if isinstance(outputs, (list, tuple)) else (outputs,):
        yield each.grad_fn if isinstance(each, torch.Tensor) else None


def computes_in(outputs: Any) -> torch.dtype | None:
    """Return fp16 if any part of a loss was computed in it, else bfloat16 if any part was, else None.

    Searches the nodes nearest to the loss. Nodes that a compiler has merged, and a generator of losses, stay unseen.
    """
    found: set[torch.dtype] = set()
    for node in graph_nodes(next(_heads(outputs), None), _NODES_MAX):
        found.update(part.dtype for part in getattr(node, "_input_metadata", ()))
        if torch.float16 in found:
            return torch.float16
    return torch.bfloat16 if torch.bfloat16 in found else None


def is_distributed() -> bool:
    return dist.is_available() and dist.is_initialized()


_NO_CALL = Call("ampmon.client.scaler.GradScaler", {})


def say_unscaled(stream: Stream, warn: Warn, loss: Any, why: str, call: Call | None) -> bool:
    """Return whether the loss is computed in fp16. If so, report it, or that its parameters are fp16.

    The fix is ``call``, with the scaler enabled.
    """
    if computes_in(loss) is not torch.float16:
        return False
    reporter = LintReporter(stream, warn)
    half = sum(
        each.dtype is torch.float16
        for each in leaves_of(nodes_of(loss))
        if isinstance(each, torch.nn.Parameter)
    )
    # An enabled scaler would raise. FSDP's leaves are fp16 copies.
    if call and half and not is_distributed():
        reporter.say("fp16_parameters", count=half)
        return True
    first = loss[0] if isinstance(loss, (list, tuple)) else loss
    note = "" if call else "or ampmon.watch(scaler), if you have one"
    call = call or _NO_CALL
    wanted = {"device": f'"{first.device.type}"'}
    if "enabled" in call.arguments:
        wanted["enabled"] = "True"
    reporter.say("fp16_without_scaler", scaler=why, call=call.code(wanted, note))
    return True
