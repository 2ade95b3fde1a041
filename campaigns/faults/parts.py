"""The parts that can fail: trainer, sender and server, all real, each forked from a warm process."""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import socket
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import ampmon
from ampmon import wire
from ampmon.client import current_run as process
from ampmon.sender import delivery
from ampmon.sender.loop import Loop
from ampmon.spool import Destination, SpoolWriter
from ampmon.transport import HttpTransport, Transport
from ampmon_server.http.app import create_app
from ampmon_server.http.process import ServerProcess
from ampmon_server.http.service import Service
from ampmon_server.settings import Settings
from campaigns.faults import account, seams, workload
from campaigns.faults.hostile import Hostile
from campaigns.faults.plants import (
    AcknowledgesBeforeCommit,
    TakesSilenceForAcknowledgement,
    store_whatever_comes,
)
from campaigns.faults.seams import Fault, Trap
from draining import Witness
from waiting import DEADLINE_S


# Small, so that a short training has several segments and several batches.
SpoolWriter.__init__.__kwdefaults__["segment_bytes"] = 2**12  # type: ignore[index]
delivery.BATCH_RECORDS_MAX = 9

READ_TIMEOUT_S = 0.25
"""Shorter than `seams.HANG_S`."""
FASTER = 20
"""The sender's clock runs this many times faster, so its real waits are short."""
SENDING_S = 3.0
_PR_SET_PDEATHSIG = 1


class Part:
    """A running part: what it reports, and how it ended."""

    def __init__(
        self,
        work: Callable[[Trap], object],
        fault: Fault | None,
        *,
        root: Path,
        port: int,
        log: Path,
    ) -> None:
        self.reports: list[dict[str, Any]] = []
        self.status: int | None = None
        self._pipe, tell = os.pipe()
        self._rest = b""
        trap = Trap(fault, root=str(root), port=port, tell=tell)
        self.pid = forked(partial(self._be_the_part, work, trap, log))
        os.close(tell)

    def _be_the_part(self, work: Callable[[Trap], object], trap: Trap, log: Path) -> None:
        os.close(self._pipe)
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(output, 1)
        os.dup2(output, 2)
        seams.arm(trap)
        try:
            work(trap)
        finally:
            seams.disarm()
            trap.tell(calls=dict(trap.calls))

    def wait(self, deadline_s: float = DEADLINE_S) -> bool:
        """Wait until it ends, and kill it at the deadline. Return whether it ended on its own."""
        end, ended = time.monotonic() + deadline_s, False
        while (left_s := end - time.monotonic()) > 0 and not ended:
            ended = self._listen(left_s)
        if not ended:
            os.kill(self.pid, signal.SIGKILL)
        self._reap()
        return ended

    def stop(self) -> None:
        """End it with SIGTERM."""
        if self.status is None:
            os.kill(self.pid, signal.SIGTERM)
            self._reap()

    def kill(self) -> None:
        """End it with SIGKILL."""
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
            self._reap()

    def ended(self) -> bool:
        if self.status is None and os.waitid(
            os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT
        ):
            self._reap()
        return self.status is not None

    def all_reported(self, what: str) -> list[Any]:
        return [each[what] for each in self.reports if what in each]

    @property
    def reached(self) -> bool:
        """Whether the call that should fail was made."""
        return bool(self.all_reported("reached"))

    @property
    def killed(self) -> bool:
        return self.status == -signal.SIGKILL

    def _reap(self) -> None:
        while not self._listen(1.0):
            pass
        os.close(self._pipe)
        self.status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def _listen(self, wait_s: float) -> bool:
        """Read what it reports within ``wait_s``. Return whether it closed the pipe."""
        if not select.select([self._pipe], [], [], wait_s)[0]:
            return False
        heard = os.read(self._pipe, 2**16)
        *lines, self._rest = (self._rest + heard).split(b"\n")
        self.reports += [json.loads(line) for line in lines]
        return not heard


def forked(work: Callable[[], object]) -> int:
    """Do the work in a fork of this process, which dies with it, and return the fork's process id."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return pid


# -- training ---------------------------------------------------------------------------------------------------------


def watched() -> ampmon.GradScaler:
    """ampmon's scaler in place of the stock one."""
    return ampmon.GradScaler("cpu", **workload.SETTINGS, monitor=ampmon.Config(every=5, budget=1.0))


def train(trap: Trap, directory: Path, run_id: UUID) -> None:
    """Run the workload with ampmon's scaler, configured only by the environment, like an unmodified script."""
    os.environ.update(
        AMPMON_DIR=str(directory),
        AMPMON_URL=f"http://127.0.0.1:{trap.port}",
        AMPMON_MODE="online",
        AMPMON_RUN_ID=str(run_id),
        AMPMON_NAME="matrix",
    )
    scaler = watched()
    trap.tell(began=True)

    def stepped(step: int) -> None:
        run = process.current()
        trap.tell(step=step, in_memory=run is not None and run._spool.kept == "memory")

    trained = workload.train(scaler, ampmon.log, stepped)
    trap.tell(trained=trained)
    ampmon.finish(deadline_s=2.0)
    trap.tell(finished=True)


# -- sending ----------------------------------------------------------------------------------------------------------


def transports(
    token: str,
    note: Callable[[str, dict[str, list[int]]], object],
    read_timeout_s: float = READ_TIMEOUT_S,
) -> Callable[[Destination], Transport]:
    """HTTP transports to a spool's destination. ``note`` gets the attempt and the acknowledged seqs by stream."""

    def acknowledged(sent: wire.Batch, _: wire.Ack) -> None:
        seqs = defaultdict(list)
        for record in sent.records:
            seqs[record.stream].append(record.seq)
        note(sent.attempt_id.hex, seqs)

    return lambda destination: Witness(
        HttpTransport(destination.url, token=token, read_timeout_s=read_timeout_s), acknowledged
    )


def send(
    trap: Trap, directory: Path, token: str, plant: str = "", *, patient: bool = False
) -> None:
    """Run the sender's loop until nothing is left, for at most `SENDING_S`. If ``patient``, wait for slow answers."""
    stop = threading.Event()
    end = time.monotonic() + (DEADLINE_S if patient else SENDING_S)

    def at_work() -> bool:
        if not account.waiting(directory) or time.monotonic() > end:
            stop.set()
        return True

    transport_for = transports(
        token,
        lambda attempt, seqs: trap.tell(acked=[attempt, seqs]),
        DEADLINE_S if patient else READ_TIMEOUT_S,
    )
    if plant == "takes silence for acknowledgement":
        honest = transport_for
        transport_for = lambda destination: TakesSilenceForAcknowledgement(honest(destination))  # noqa: E731
    Loop(directory, transport_for, clock=lambda: time.monotonic() * FASTER).run(stop, at_work)


# -- serving ----------------------------------------------------------------------------------------------------------


def serve(trap: Trap, settings: Settings, listener: socket.socket, plant: str = "") -> None:
    """Run `ampmon serve` on a listening socket until it is ended."""
    if plant == "stores whatever comes":
        store_whatever_comes()
    service = Service(settings)
    process = ServerProcess(create_app(settings, service), ready=lambda: trap.tell(ready=True))
    process.config.app = Hostile(process.config.app)
    if plant == "acknowledges before commit":
        process.config.app = AcknowledgesBeforeCommit(process.config.app)
    process.run(sockets=[listener])
    service.close()
