"""The state machine of campaigns/faults at its smallest. `MACHINE_EXAMPLES=2000` runs more, with random seeds."""

from __future__ import annotations

import logging
import os

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from ampmon import wire
from ampmon.errors import Unreachable
from ampmon_server.http.decoding import decode_batch
from campaigns.faults.backends import InMemory, Real
from campaigns.faults.machine import Machine


EXAMPLES = int(os.environ.get("MACHINE_EXAMPLES", "0"))

# A sender killed between opening and closing a file leaves it open. The system closes the files of a real process.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")


def run(backend: type[InMemory | Real], examples: int, steps: int) -> None:
    run_state_machine_as_test(
        type("TheMachine", (Machine,), {"backend_class": backend}),
        settings=settings(
            max_examples=EXAMPLES or examples,
            stateful_step_count=steps,
            # Shrinking a failure takes minutes.
            phases=[Phase.generate, *([Phase.shrink] if EXAMPLES else [])],
            derandomize=not EXAMPLES,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.parametrize(("backend", "examples", "steps"), [(InMemory, 8, 40), (Real, 1, 25)])
def test_all_that_was_recorded_is_stored_once(
    backend: type[InMemory | Real], examples: int, steps: int, caplog: pytest.LogCaptureFixture
) -> None:
    """After any faults of spool, sender, network and server, acknowledged records are stored, and finally all are."""
    caplog.set_level(logging.CRITICAL, "ampmon.sender")
    run(backend, examples, steps)


class Rash(InMemory):
    """A server that acknowledges before it stores, and then fails to store."""

    def send(self, batch: bytes) -> wire.Ack:
        try:
            return super().send(batch)
        except Unreachable:
            decoded = decode_batch(batch)
            return wire.Ack(acked={record.stream: record.seq for record in decoded.records})


def test_server_that_acknowledges_too_early_is_found(caplog: pytest.LogCaptureFixture) -> None:
    """The machine detects a server that acknowledges records it did not store."""
    caplog.set_level(logging.CRITICAL, "ampmon.sender")
    with pytest.raises(AssertionError):
        run(Rash, 15, 40)
