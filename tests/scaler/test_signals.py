"""An exception of a signal handler reaches the training code, wherever in ampmon's code the signal arrives."""

from __future__ import annotations

import copy
import functools
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch.optim import SGD

import ampmon
from ampmon.client.recorder import Recorder
from ampmon.spool.tail import SpoolTail
from older_torch import named
from recording import recording, recordings


class Preempted(Exception):
    """Raised by the handlers of these tests."""


def raising(number: int, frame: FrameType | None) -> None:
    raise Preempted


def replaced(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)
    raise Preempted


def replaced_by_any(*given: Any) -> None:
    signal.signal(given[0], signal.SIG_IGN)
    raise Preempted


def timed_out(*_: object) -> None:
    raise TimeoutError


def ill_valued(*_: object) -> None:
    raise ValueError


class Handler:
    """Handlers that are not functions."""

    def __call__(self, number: int, frame: FrameType | None) -> None:
        raise Preempted

    def method(self, number: int, frame: FrameType | None, more: int = 0) -> None:
        raise Preempted


HANDLERS: list[Any] = [
    raising,
    replaced,
    replaced_by_any,
    timed_out,
    ill_valued,
    Handler(),
    Handler().method,
    functools.partial(Handler().method, more=1),
]


@pytest.fixture(autouse=True)
def put_back() -> Iterator[None]:
    """Restore the previous handlers."""
    before = {number: signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGALRM)}
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    for number, handler in before.items():
        signal.signal(number, handler)


def arrive(*_: object) -> None:
    """Raise a signal, whose handler runs before this returns."""
    signal.raise_signal(signal.SIGUSR1)


class Late:
    """A number to log during whose conversion the signal arrives."""

    def __float__(self) -> float:
        arrive()
        return 1.0


class LateGradient(torch.Tensor):
    """A gradient during whose measuring the signal arrives."""

    def detach(self) -> torch.Tensor:
        arrive()
        return super().detach()


class LateRate(float):
    """A learning rate during whose comparison the signal arrives."""

    __hash__ = float.__hash__

    def __eq__(self, other: object) -> bool:
        arrive()
        return super().__eq__(other)


class LateOutput(dict[str, torch.Tensor]):
    """A module's output during whose inspection the signal arrives."""

    values = arrive  # type: ignore[assignment]


class Named(torch.nn.Linear):
    """A module that returns a mapping."""

    def forward(self, inputs: torch.Tensor) -> Any:
        return LateOutput(out=super().forward(inputs))


class Watched:
    """Training with every update and activation sampled."""

    def __init__(self, layer: type[torch.nn.Module] = torch.nn.Linear) -> None:
        self.model = layer(4, 4)
        self.optimizer = SGD(named(self.model.named_parameters()), lr=0.1)
        self.scaler = ampmon.GradScaler(
            "cpu", init_scale=2.0, model=self.model, monitor=ampmon.Config(every=1, activations=1)
        )

    def backward(self) -> None:
        outputs = self.model(torch.ones(2, 4))
        outputs = outputs["out"] if isinstance(outputs, dict) else outputs
        self.scaler.scale(outputs.sum()).backward()

    def finish(self) -> None:
        self.scaler.step(self.optimizer)
        self.scaler.update()
        ampmon.log({"loss": 1.0})


def measure() -> None:
    watched = Watched()
    watched.backward()
    watched.model.bias.grad = watched.model.bias.grad.as_subclass(LateGradient)
    watched.finish()


def compare() -> None:
    watched = Watched()
    watched.optimizer.param_groups[0]["lr"] = LateRate(0.1)
    watched.backward()
    watched.finish()


def inspect() -> None:
    Watched(Named).backward()


@pytest.mark.parametrize("train", [measure, compare, inspect])
@pytest.mark.parametrize("handler", [raising, timed_out])
def test_what_a_handler_raises_within_a_hook(
    data_directory: Path, train: Callable[[], None], handler: Any
) -> None:
    """An exception of a handler in a hook leaves the scaler method or module called, and is no monitor error."""
    signal.signal(signal.SIGUSR1, handler)
    with pytest.raises((Preempted, TimeoutError)):
        train()
    assert recording(data_directory).events("error") == []


class LateScaler(ampmon.GradScaler):
    """A scaler at whose next question whether it is enabled, if it is ``late``, the signal arrives."""

    late = False

    def is_enabled(self) -> bool:
        if self.late:
            self.late = False
            arrive()
        return super().is_enabled()


def test_a_copy_is_watched_although_a_signal_ended_its_first_scale(data_directory: Path) -> None:
    """A copy whose first `scale()` a handler's exception ended is watched from the next one on."""
    signal.signal(signal.SIGUSR1, raising)
    parameter = torch.nn.Parameter(torch.ones(2))
    scaler = copy.deepcopy(LateScaler("cpu", init_scale=2.0))
    scaler.late = True
    with pytest.raises(Preempted):
        scaler.scale(parameter.sum())
    scaler.scale(parameter.sum()).backward()
    scaler.step(SGD([parameter], lr=0.1))
    scaler.update()
    assert len(recording(data_directory).updates) == 1


def test_the_next_run_is_reported_to_although_a_signal_ended_its_first_scale(
    data_directory: Path,
) -> None:
    """A scaler that a handler's exception interrupted as it turned to a new run does so at the next `scale()`."""
    signal.signal(signal.SIGUSR1, raising)
    watched = Watched()
    watched.scaler = LateScaler("cpu", init_scale=2.0)
    watched.backward()
    watched.finish()
    ampmon.init()
    watched.scaler.late = True
    with pytest.raises(Preempted):
        watched.backward()
    watched.backward()
    watched.finish()
    recorded = recordings(data_directory)[-1]
    assert recorded.header(recorded.updates[0].stream).enabled


def test_a_next_run_that_refuses_the_header_is_tried_once(
    data_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unlike a handler's exception, an error as a scaler turns to a new run is counted once. Training goes on."""
    watched = Watched()
    ampmon.init()
    monkeypatch.setattr(Recorder, "header", refusing := Mock(side_effect=ValueError))
    for _ in range(3):
        watched.backward()
    refusing.assert_called_once()
    watched.finish()
    assert {each.stream for each in recordings(data_directory)[-1].updates} == {"scaler"}


def test_an_exception_behind_a_quick_write_comes_through_at_once(
    data_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal handler's TimeoutError is no trouble of the disk: it leaves the `log` in whose write it came."""
    Watched()
    ampmon.log({"loss": 1.0})
    signal.signal(signal.SIGUSR1, timed_out)
    write, signals = SpoolTail.write, iter([signal.SIGUSR1])

    def interrupted(*given: Any) -> None:
        write(*given)
        for each in signals:
            signal.raise_signal(each)

    with monkeypatch.context() as patched:
        patched.setattr(SpoolTail, "write", interrupted)
        with pytest.raises(TimeoutError):
            ampmon.log({"loss": 2.0})
    assert {"loss": 2.0} in [each.values for each in recording(data_directory).scalars]


@pytest.mark.parametrize("handler", HANDLERS)
def test_any_kind_of_handler(data_directory: Path, handler: Any) -> None:
    """Exceptions of functions, methods, objects, partials and handlers that replace themselves all come through."""
    ampmon.init()
    signal.signal(signal.SIGUSR1, handler)
    with pytest.raises((Preempted, TimeoutError, ValueError)):
        ampmon.log({"loss": Late()})
    assert recording(data_directory).events("error") == []


def test_wherever_it_arrives(data_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 200 signals during iterations none counts as a monitor error, and over 190 exceptions come through."""
    raised: list[int] = []
    caught = 0
    # Python drops exceptions raised while it frees an object, and torch those raised in optional imports.
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)

    def handler(*_: object) -> None:
        raised.append(arrival)
        raise TimeoutError

    signal.signal(signal.SIGALRM, handler)
    watched = Watched()
    for arrival in range(200):
        try:
            signal.setitimer(signal.ITIMER_REAL, 1e-5 * (arrival + 1))
            watched.backward()
            watched.finish()
            while arrival not in raised:
                pass
        except TimeoutError:
            caught += 1
            torch.set_grad_enabled(True)  # in case the signal interrupted the end of `no_grad`
            watched = Watched()
    assert len(raised) == 200
    assert caught > 190
    assert recording(data_directory).events("error") == []
