"""Processes that send a year's batches: each sends those of some runs, in order, with their owners' tokens."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from typing import NamedTuple

from ampmon.errors import AmpmonError
from ampmon.transport import HttpTransport
from benchmarks.store.load import delivered
from benchmarks.store.samples import Real
from campaigns.year.population import Planned
from campaigns.year.training import Piece, Samples, Training


PROCESSES = 2
_GIVE_UP_S = 60.0


class Person(NamedTuple):
    """A member of the team, with a token of their own."""

    name: str
    token: str


class Senders:
    """Sends due batches: those of a run one after another, and several runs at once."""

    def __init__(self, pools: Sequence[ProcessPoolExecutor]) -> None:
        self._pools = pools

    def send(self, due: Sequence[Piece]) -> None:
        """Return once all is acknowledged. Raises what any process raised."""
        shares: list[list[Piece]] = [[] for _ in self._pools]
        for piece in due:
            shares[piece.run % len(shares)].append(piece)
        futures = [
            pool.submit(_send, share)
            for pool, share in zip(self._pools, shares, strict=True)
            if share
        ]
        for future in futures:
            future.result()


@contextmanager
def sending(
    url: str, people: Sequence[Person], runs: Mapping[int, Planned], real: Real
) -> Iterator[Senders]:
    """Keep the sending processes up during the block."""
    context = multiprocessing.get_context("spawn")  # the caller may have threads
    with ExitStack() as stack:
        pools = [
            stack.enter_context(ProcessPoolExecutor(1, context, _begin, (url, people, runs, real)))
            for _ in range(PROCESSES)
        ]
        yield Senders(pools)


class _Here:
    """The state of a sending process."""

    runs: Mapping[int, Planned]
    people: Sequence[Person]
    lines: list[HttpTransport]
    samples: Samples


def _begin(url: str, people: Sequence[Person], runs: Mapping[int, Planned], real: Real) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # end silently: unfinished batches are resent
    _Here.runs, _Here.people, _Here.samples = runs, people, Samples(real)
    _Here.lines = [HttpTransport(url, token=each.token) for each in people]


@lru_cache(maxsize=16)
def _training(number: int) -> Training:
    run = _Here.runs[number]
    return Training.of(run, _Here.people[run.person].name, _Here.samples)


def _send(share: Sequence[Piece]) -> None:
    for piece in share:
        line, given_up = _Here.lines[_Here.runs[piece.run].person], time.perf_counter() + _GIVE_UP_S
        try:
            taken, _ = delivered(line, _training(piece.run).batch(piece), given_up)
        except AmpmonError as error:  # it would not pass between processes
            raise RuntimeError(f"{piece}: {error}") from None
        if not taken:
            raise RuntimeError(f"{piece}: not taken within {_GIVE_UP_S:.0f} s")
