"""Runs a cell of the matrix: the parts one after another, one of them with its fault, and then the checks."""

from __future__ import annotations

import gc
import os
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from uuid import UUID

import anyio
import msgspec
import torch
from alembic.script import ScriptDirectory

import ampmon
from ampmon import identity, wire
from ampmon.sender import DestinationStatus, SenderStatus, election
from ampmon.spool import Destination, SpoolWriter, spools
from ampmon.spool.layout import attempt_directory
from ampmon.spool.reader import SpoolReader
from ampmon.system import private
from ampmon_server.http.address import listen
from ampmon_server.http.app import create_app
from ampmon_server.http.process import ServerProcess
from ampmon_server.http.service import Service
from ampmon_server.settings import Settings
from ampmon_server.store.schema import migrations
from attempts import BEGIN, DEAD, read_on
from campaigns.faults import account, matrix, parts, workload
from campaigns.faults.account import Account
from campaigns.faults.matrix import Line
from campaigns.faults.parts import Part
from campaigns.faults.seams import Fault
from campaigns.faults.verdict import Verdict
from databases import defects
from draining import Into, drain
from waiting import DEADLINE_S


# Migrations are loaded once, for all servers forked from here.
_migrations = ScriptDirectory.from_config(migrations.config())
ScriptDirectory.from_config = lambda config: _migrations  # type: ignore[method-assign, assignment]

_PAUSE_S = 0.01


@dataclass
class Cell:
    """The result of one cell. ``wrong`` describes each violation."""

    reached: bool
    wrong: list[str]
    seconds: float
    calls: dict[str, int]


@dataclass
class Sent:
    """A spool being delivered: its run and attempt, its records, and the acknowledged ones."""

    run_id: UUID
    attempt_id: UUID
    holds: Account
    acked: set[tuple[str, int]] = field(default_factory=set)

    def note(self, attempt: str, seqs: dict[str, list[int]]) -> None:
        if attempt == self.attempt_id.hex:
            self.acked |= {(stream, seq) for stream, found in seqs.items() for seq in found}


class Bench:
    """Runs cells below ``directory``, one at a time, in forks of this process. Close it at the end."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._fresh = directory / "fresh"
        service = Service(Settings(data_directory=self._fresh))
        self._token = service.keys.token
        service.close()
        self._log = directory / "log"
        self._listeners = {
            name: listen(Settings(data_directory=self._fresh, port=0)) for name in ("all", "own")
        }
        self._settings = Settings(data_directory=shutil.copytree(self._fresh, directory / "all"))
        self._server: Part | None = None
        self._warm_up_training()
        self._reference = workload.train(torch.amp.GradScaler("cpu", **workload.SETTINGS))
        self._messages, self._whole = self._record()
        self._warm_up_server()
        assert threading.active_count() == 1, "what is forked must have one thread"
        gc.collect()
        gc.freeze()

    def close(self) -> list[str]:
        """End the shared server, verify its database, delete all files, and return what is wrong."""
        if self._server is not None:
            self._server.kill()
        for listener in self._listeners.values():
            listener.close()
        found = defects(self._settings)
        shutil.rmtree(self._directory)
        gc.unfreeze()
        return found

    def census(self) -> dict[str, dict[str, int]]:
        """How often each part calls each operation when nothing fails."""
        return {part: self.run(Line(part, "", ""), 0).calls for part in matrix.PARTS}

    def run(self, line: Line, number: int) -> Cell:
        """Run one cell. With ``number`` 0 nothing fails."""
        began, verdict, directory = time.monotonic(), Verdict(), self._directory / "cell"
        self._log.write_text("")
        part = None
        try:
            run = {"trainer": self._trainer, "sender": self._sender, "server": self._served}
            part = run[line.part](verdict, line, line.fault(number) if number else None, directory)
        except Exception as error:
            verdict.wrong.append(f"{type(error).__name__}: {error}")
        if verdict.wrong:
            verdict.wrong.append(self._log.read_text()[-2000:])
        shutil.rmtree(directory, ignore_errors=True)
        shutil.rmtree(self._directory / "own", ignore_errors=True)
        return Cell(
            reached=part is not None and part.reached,
            wrong=verdict.wrong,
            seconds=round(time.monotonic() - began, 3),
            calls=(part.all_reported("calls") or [{}])[-1] if part is not None else {},
        )

    # -- cells --------------------------------------------------------------------------------------------------------

    def _trainer(self, verdict: Verdict, line: Line, fault: Fault | None, directory: Path) -> Part:
        run_id = identity.uuid7()
        part = self._train(directory, run_id, fault)
        verdict.trained(part, self._reference)
        log = self._log.read_text()
        verdict.expect("Traceback" not in log, "something was raised")
        found = spools(directory)
        verdict.expect(len(found) <= 1, f"{len(found)} spools")
        verdict.expect(
            found or part.killed or "not recording" in log, "nothing says that there is no run"
        )
        for path in found:
            sent = Sent(run_id, UUID(path.name), account.of_spool(path))
            verdict.recorded(part, sent.holds, self._whole, log)
            self._deliver(verdict, directory, sent)
            self._judge(verdict, self._settings, sent, whole=False)
        return part

    def _sender(self, verdict: Verdict, line: Line, fault: Fault | None, directory: Path) -> Part:
        self._serve_all()
        sent = self._spool(directory, "all")
        part = self._send(directory, "all", fault)
        verdict.expect(part.killed or part.status == 0, f"exit code {part.status}")
        for each in part.all_reported("acked"):
            sent.note(*each)
        self._deliver(verdict, directory, sent)
        self._judge(verdict, self._settings, sent, whole=False)
        return part

    def _served(self, verdict: Verdict, line: Line, fault: Fault | None, directory: Path) -> Part:
        settings = self._own()
        server = part = self._serve(settings, "own", fault, line.plant)
        sent = self._spool(directory, "own")
        end = time.monotonic() + DEADLINE_S
        while account.waiting(directory) and time.monotonic() < end:
            if line.operation == "request":
                for each in self._send(directory, "own", None, line).all_reported("acked"):
                    sent.note(*each)
            else:
                drain(directory, parts.transports(self._token, sent.note))
            if server.ended():
                server = self._serve(settings, "own", None)
            time.sleep(_PAUSE_S)
        server.kill() if fault else server.stop()
        verdict.expect(not account.waiting(directory), "not delivered")
        if line.kind == "413":  # a single record is too large
            for payload in account.set_aside(directory):
                sent.holds.leave_out(payload)
        self._judge(verdict, settings, sent, whole=True)
        return part

    def _judge(self, verdict: Verdict, settings: Settings, sent: Sent, *, whole: bool) -> None:
        verdict.stored(settings, sent.attempt_id, sent.holds, sent.acked)
        # The database reopens and is intact, and its derived rows match its other rows.
        verdict.wrong += defects(settings, None if whole else sent.run_id)

    # -- parts --------------------------------------------------------------------------------------------------------

    def _part(
        self, work: Callable[..., object], fault: Fault | None, root: Path, port: int
    ) -> Part:
        return Part(work, fault, root=root, port=port, log=self._log)

    def _port(self, which: str) -> int:
        return int(self._listeners[which].getsockname()[1])

    def _train(self, directory: Path, run_id: UUID, fault: Fault | None) -> Part:
        """Run a trainer beside a sender that claims to be at work but cut off, so that the trainer starts none."""
        office = election.elect(directory)
        assert office is not None
        url = f"http://127.0.0.1:{self._port('all')}"
        status = DestinationStatus(
            url=url,
            problem="a server that is away",
            waiting_bytes=0,
        )
        SenderStatus(pid=0, updated=time.time_ns() // 1000, destinations=(status,)).write(directory)
        work = partial(parts.train, directory=directory, run_id=run_id)
        part = self._part(work, fault, directory, self._port("all"))
        part.wait()
        office.resign()
        return part

    def _send(
        self, directory: Path, which: str, fault: Fault | None, line: Line | None = None
    ) -> Part:
        """Run a sender. In a ``line`` of bad answers nothing hangs, and a resend would meet the fault elsewhere."""
        work = partial(
            parts.send,
            directory=directory,
            token=self._token,
            plant=line.plant if line else "",
            patient=line is not None,
        )
        part = self._part(work, fault, directory, self._port(which))
        part.wait()
        return part

    def _serve(self, settings: Settings, which: str, fault: Fault | None, plant: str = "") -> Part:
        listener = self._listeners[which]
        work = partial(parts.serve, settings=settings, listener=listener, plant=plant)
        return self._part(work, fault, settings.data_directory, self._port(which))

    def _own(self) -> Settings:
        """The settings of a server for one cell only."""
        return Settings(data_directory=shutil.copytree(self._fresh, self._directory / "own"))

    def _serve_all(self) -> None:
        """Start the server for the cells in which the server does not fail, unless it runs."""
        if self._server is None or self._server.ended():
            self._server = self._serve(self._settings, "all", None)

    def _deliver(self, verdict: Verdict, directory: Path, sent: Sent) -> None:
        """Deliver the rest without a fault, and check that nothing is left."""
        self._serve_all()
        end = time.monotonic() + DEADLINE_S
        drain(directory, parts.transports(self._token, sent.note))
        while account.waiting(directory) and time.monotonic() < end:
            drain(directory, parts.transports(self._token, sent.note))
        verdict.expect(not account.waiting(directory), "not delivered")
        self._tidy(directory)
        left = os.listdir(directory / "spool")
        verdict.expect(not left, f"left behind: {left}")

    def _tidy(self, directory: Path) -> None:
        """Let a much later sender remove what one left that failed while it freed the disk."""
        for remains in (directory / "spool").iterdir():
            os.utime(remains, (1, 1))
        if any((directory / "spool").iterdir()):
            self._send(directory, "all", None)

    # -- warm-up, once for all forks ----------------------------------------------------------------------------------

    def _warm_up_training(self) -> None:
        os.environ.update(AMPMON_MODE="offline", AMPMON_DIR=str(self._directory / "warm"))
        workload.train(parts.watched(), ampmon.log)
        ampmon.finish()

    def _warm_up_server(self) -> None:
        directory, settings = self._directory / "cell", self._own()
        service = Service(settings)
        self._spool(directory, "own")
        drain(directory, lambda _: Into(service.store))
        process = ServerProcess(
            create_app(settings, service), ready=lambda: setattr(process, "should_exit", True)
        )
        process.run(sockets=[self._listeners["own"].dup()])
        service.close()
        anyio.run(anyio.sleep, 0)
        defects(settings)
        shutil.rmtree(directory)
        shutil.rmtree(settings.data_directory)

    # -- spools -------------------------------------------------------------------------------------------------------

    def _record(self) -> tuple[list[bytes], Account]:
        """Record a training without a fault. Return its messages, and the same as an account."""
        directory = self._directory / "cell"
        part = self._train(directory, identity.uuid7(), None)
        assert part.status == 0, self._log.read_text()
        assert part.all_reported("trained") == [self._reference], "it is not deterministic"
        (path,) = spools(directory)
        reader = SpoolReader(path, BEGIN)
        messages, _ = read_on(reader)
        whole = account.of_spool(path)
        assert len(whole.skips) == workload.SKIPS
        shutil.rmtree(directory)
        return [*reader.headers.values(), *messages], whole

    def _spool(self, directory: Path, which: str) -> Sent:
        """Write the recorded messages as the spool of another run, whose process has ended."""
        run_id, attempt_id = identity.uuid7(), identity.uuid7()
        private.make(election.home(directory))  # a running sender has one
        destination = Destination(
            url=f"http://127.0.0.1:{self._port(which)}", mode="online", process=DEAD
        )
        writer = SpoolWriter(directory, attempt_id, destination)
        for payload in self._messages:
            message = wire.decode(payload)
            if isinstance(message, wire.AttemptHeader):
                changed = msgspec.structs.replace(message, run_id=run_id, attempt_id=attempt_id)
                writer.header("attempt", wire.encode(changed))
            elif isinstance(message, wire.StreamHeader):
                writer.header(f"stream {message.stream}", payload)
            else:
                writer.append(payload)
        writer.close()
        return Sent(run_id, attempt_id, account.of_spool(attempt_directory(directory, attempt_id)))
