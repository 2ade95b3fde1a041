"""The background thread of a run: syncs the spool, keeps the sender running, reports losses, and ends the run."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING
from uuid import UUID

from ampmon import sender
from ampmon.client.quota import SCARCE
from ampmon.config import answers
from ampmon.errors import NO_TOKEN
from ampmon.spool import SpoolWriter
from ampmon.spool.state import REJECTED


if TYPE_CHECKING:
    from ampmon.client.recorder import Recorder

EVERY_S = 1.0
SYNC_EVERY_S = 0.05
"""The spool is synced to disk at most this often, however many rare records there are."""
LOSSES_EVERY_S = 10.0
STARTING_S = 15.0
"""How long a server on the data directory may take to start, for example one that `ampmon run` started."""
_PATIENCE_S = 0.1


class MaintenanceThread:
    """Maintains spool and delivery of the attempt ``attempt_id`` until `finish`. Raises nothing."""

    def __init__(self, recorder: Recorder, spool: SpoolWriter, attempt_id: UUID) -> None:
        self._recorder = recorder
        self._spool = spool
        self._attempt_id = attempt_id
        self._wake = threading.Event()
        self._finishing = threading.Event()
        self._began_s = time.monotonic()
        self._deadline = 0.0
        self._kept = "disk"
        self._losses_reported_s = time.monotonic() - LOSSES_EVERY_S
        self._thread = threading.Thread(target=self._run, name="ampmon", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Have the spool synced at once, since a record was written that must survive a power cut. Does not wait."""
        self._wake.set()

    def after_fork_in_child(self) -> None:
        """Replace the events in a forked child: the parent's thread is not here to release the locks it held."""
        self._wake, self._finishing = threading.Event(), threading.Event()

    def finish(self, deadline: float) -> None:
        """Close the spool and wait until all is delivered, at most until ``deadline``, a time of time.monotonic().

        The thread does the work, because a disk that hangs must not keep the process from exiting.
        """
        self._deadline = deadline
        self._finishing.set()
        self._wake.set()
        # At the deadline it still has to say what is not sent.
        self._thread.join(max(deadline - time.monotonic(), 0.0) + _PATIENCE_S)

    def _run(self) -> None:
        looked_s = -EVERY_S
        while not self._finishing.is_set():
            _try(self._spool.sync)
            now_s = time.monotonic()
            if now_s - looked_s >= EVERY_S:
                looked_s = now_s
                _try(self._look_after_spool, now_s)
                _try(self._look_after_delivery, now_s)
                _try(self._recorder.findings.look, self._spool.path)
            # `wake` does not end this wait, so that many skips in a row share a sync.
            self._finishing.wait(SYNC_EVERY_S)
            self._wake.wait(EVERY_S - SYNC_EVERY_S)
            self._wake.clear()
        _try(self._end)
        _try(self._recorder.findings.finish)

    def _look_after_spool(self, now_s: float) -> None:
        spool = self._spool
        spool.look()
        if spool.kept != self._kept:
            self._kept = spool.kept
            self._recorder.event("spool", kept=self._kept, why=spool.why, window_ms=spool.window_ms)
        if now_s - self._losses_reported_s >= LOSSES_EVERY_S:
            self._losses_reported_s = now_s
            self._recorder.report_losses()
        self.warn_of_spool()

    def warn_of_spool(self) -> None:
        """Warn about problems of the spool, once for each kind. Touches no disk, which may be the problem."""
        spool, warn = self._spool, self._recorder.warn
        where = self._recorder.options.dir
        if spool.remade:
            warn(
                "removed",
                f"ampmon: the records in {spool.path} were deleted, and those not sent yet are lost. Training goes "
                "on, and new records are stored. Do not delete files there while training runs.",
            )
        if spool.trouble:
            warn(
                "trouble",
                f"ampmon: cannot write records to {where}: {spool.trouble}. Training goes on; a few MB of records "
                "wait in memory and are lost if the process is killed. Free space there, or set AMPMON_DIR to a "
                "directory on a local disk.",
            )
        elif spool.kept == "disk" and spool.fullness >= SCARCE:
            offline = self._recorder.options.mode == "offline"
            send = (
                "Send them with `ampmon sync`"
                if offline
                else "Start the server with `ampmon serve`"
            )
            warn(
                "room",
                f"ampmon: unsent records in {where} have nearly reached their size limit. Training goes on; gradient "
                f"samples are dropped, and at the limit records too. {send}, or raise AMPMON_SPOOL_BYTES.",
            )

    def _look_after_delivery(self, now_s: float) -> None:
        options = self._recorder.options
        if options.mode != "online":
            return
        sender.ensure_running(options.dir)
        self._warn_of_rejected()
        # At first, the status is of the time before this run, which may have brought another route.
        if now_s - self._began_s >= (EVERY_S if options.named else STARTING_S):
            self._warn_of_problem()

    def _warn_of_problem(self, *, unless_absent: bool = False) -> bool:
        """Warn about what keeps the sender from sending, and return whether it reports anything."""
        options = self._recorder.options
        url, token, status = options.url, options.token, sender.status(options.dir)
        problem = (status and status.problem(url, self._attempt_id, token=token)) or ""
        refused = problem.endswith("connection refused")
        if refused and answers(url):
            return unless_absent  # it has started since the sender's last attempt
        absent = refused or problem == NO_TOKEN
        if problem and not (absent and unless_absent):
            unanswered = absent or problem.startswith("no answer")
            failure = "cannot be reached" if unanswered else "takes no records"
            todo = " Start the server with `ampmon serve`." if absent else ""
            self._recorder.warn(
                "unreachable",
                f"ampmon: {url} {failure} ({problem}). Training goes on; records wait in {options.dir} and are "
                f"sent when it takes them.{todo}",
            )
        return bool(problem)

    def _warn_of_unsent(self) -> None:
        options = self._recorder.options
        self._recorder.warn(
            "unsent",
            f"ampmon: {options.url} has not confirmed the newest records of this run yet. They are in {options.dir}, "
            "and the sender process goes on. If this machine or container ends before it is done, run `ampmon sync` "
            "on that directory.",
        )

    def _warn_of_rejected(self) -> None:
        if (rejected := self._spool.path / REJECTED).exists():
            self._recorder.warn(
                "rejected",
                f"ampmon: the server rejects records of this run. Training goes on; {rejected} holds them and the "
                "reasons, up to AMPMON_SPOOL_BYTES. Further ones are only counted.",
            )

    def _end(self) -> None:
        self._spool.close(max(self._deadline - time.monotonic(), 0.0))
        options = self._recorder.options
        if options.mode == "online":
            # A short run may end before the loop above has started a sender.
            sender.ensure_running(options.dir)
            left_s = max(self._deadline - time.monotonic(), 0.0)
            sent = sender.wait_until_sent(options.dir, self._attempt_id, left_s)
            # A server that is absent may still be starting.
            if not sent and not self._warn_of_problem(unless_absent=not options.named):
                self._warn_of_unsent()
            self._warn_of_rejected()
            self._recorder.findings.look(self._spool.path)


def _try(work: Callable[..., object], *given: object) -> None:
    with contextlib.suppress(Exception):
        work(*given)
