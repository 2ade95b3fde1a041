"""The records of a test's processes, read from their spools in order, by stream."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ampmon import wire
from ampmon.client import current_run
from ampmon.numerics.histogram import Statistics
from ampmon.spool import spools
from ampmon.spool.reader import SpoolReader
from attempts import BEGIN, read_on
from waiting import DEADLINE_S


@dataclass(frozen=True)
class Recording:
    """The headers and records of one attempt."""

    messages: list[wire.Header | wire.Record]

    @property
    def attempt(self) -> wire.AttemptHeader:
        return next(header for header in self.messages if isinstance(header, wire.AttemptHeader))

    @property
    def updates(self) -> list[wire.Update]:
        return [record for record in self.messages if isinstance(record, wire.Update)]

    @property
    def scalars(self) -> list[wire.Scalars]:
        return [record for record in self.messages if isinstance(record, wire.Scalars)]

    def events(self, kind: str) -> list[wire.Event]:
        return [
            record
            for record in self.messages
            if isinstance(record, wire.Event) and record.kind == kind
        ]

    def header(self, stream: str = "scaler") -> wire.StreamHeader:
        headers = [header for header in self.messages if isinstance(header, wire.StreamHeader)]
        return [header for header in headers if header.stream == stream][-1]

    def of(self, stream: str) -> list[wire.Update]:
        return [update for update in self.updates if update.stream == stream]

    def names(self, step: wire.OptimizerStep, stream: str = "scaler") -> list[str]:
        parameters = self.header(stream).parameters
        return [parameters[culprit.parameter].name for culprit in step.culprits]

    def statistics(self, ordinal: int) -> Statistics:
        gradients = self.updates[ordinal].gradients
        assert gradients is not None
        return Statistics.from_wire(gradients)

    def activations(self, ordinal: int, stream: str = "scaler") -> Activations:
        sampled = self.of(stream)[ordinal].activations
        assert sampled is not None
        modules = self.header(stream).modules
        statistics = Statistics.from_wire(sampled.gradients)
        return Activations(
            names=[modules[place].name for place in statistics.parameters.tolist()],
            statistics=statistics,
            elements=np.frombuffer(sampled.elements, "<i8").tolist(),
            forward=np.frombuffer(sampled.forward, "<f8").tolist(),
        )


@dataclass(frozen=True)
class Activations:
    """A record's activations by module, in the order in which the forward pass left them."""

    names: list[str]
    statistics: Statistics
    elements: list[int]
    forward: list[float]


def recorded_so_far(directory: Path) -> Recording:
    """The recording of the only attempt so far."""
    (path,) = spools(directory)
    return _read(path)


def recordings(directory: Path) -> list[Recording]:
    """One recording per attempt, oldest first. Ends this process's run first, so that nothing is missing."""
    current_run.finish(deadline_s=DEADLINE_S)
    return [_read(path) for path in sorted(spools(directory))]


def _read(path: Path) -> Recording:
    reader = SpoolReader(path, BEGIN)
    records, _ = read_on(reader)
    return Recording([wire.decode(payload) for payload in (*reader.headers.values(), *records)])


def recording(directory: Path) -> Recording:
    """The recording of the only attempt, after its end."""
    (only,) = recordings(directory)
    return only
