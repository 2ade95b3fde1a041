"""The sender: one process per machine and data directory that sends spools to servers. Never loads torch.

A training process ensures that one runs: as a process that outlives it, or as a thread if no process can be started. At
the end of a run, it waits until the sender has delivered it. Otherwise it only reads the files that the sender writes.
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import threading
import time
from pathlib import Path
from uuid import UUID

from ampmon.sender import election
from ampmon.sender.adoption import orphans
from ampmon.sender.statusfile import DestinationStatus, SenderStatus, status
from ampmon.spool import layout
from ampmon.spool.state import Cursor, Destination
from ampmon.system import interpreter


__all__ = [
    "DestinationStatus",
    "SenderStatus",
    "ensure_running",
    "orphans",
    "status",
    "wait_until_sent",
]

# A training process may not have set up logging. Nothing from here goes to its stderr.
logging.getLogger(__name__).addHandler(logging.NullHandler())

_STARTING_S = 5.0
_STARTS_MAX = 3
_PATIENCE_S = 2.0
_POLL_S = 0.01
_LOOK_AFTER_S = 1.0

_lock = threading.Lock()
_starts: dict[Path, list[float]] = {}
_offices: dict[Path, election.SenderLock] = {}
_launched: list[subprocess.Popen[bytes]] = []


def ensure_running(directory: Path) -> None:
    """Start the sender of ``directory`` unless one runs. Never raises; takes microseconds while one runs.

    Starting one blocks while an interpreter starts, up to 2 s. Do not call this on the training thread.
    """
    with contextlib.suppress(Exception), _lock:
        _ensure(directory)


def _ensure(directory: Path) -> None:
    # `poll` also reaps those that have ended: they would stay zombies of the training.
    _launched[:] = [process for process in _launched if process.poll() is None]
    if election.is_held(directory):
        _starts.pop(directory, None)
        return
    starts = _starts.setdefault(directory, [])
    if starts and time.monotonic() - starts[-1] < _STARTING_S:
        return  # give the last one time to take the lock
    starts.append(time.monotonic())
    if len(starts) > _STARTS_MAX or not _start_process(directory):
        threading.Thread(
            target=_run_in_thread, args=(directory,), name="ampmon sender", daemon=True
        ).start()


def _start_process(directory: Path) -> bool:
    if not interpreter.available():
        return False
    try:
        process = subprocess.Popen(
            interpreter.command("ampmon.sender", str(directory), "--detach"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=interpreter.ROOT,
            # A signal to the training's process group, such as Ctrl-C, must not end the sender.
            start_new_session=True,
        )
    except OSError:
        return False
    try:
        return process.wait(_PATIENCE_S) == 0
    except subprocess.TimeoutExpired:
        _launched.append(process)
        return True


def _run_in_thread(directory: Path) -> None:
    # Imported here, so a training process does not load the HTTP client unless it must.
    from ampmon.sender.loop import Loop, http_transports

    try:
        office = election.elect(directory)
    except OSError:
        office = None
    if office is None:
        return
    _offices[directory] = office
    try:
        Loop(directory, http_transports(directory)).run(threading.Event(), office.is_held)
    finally:
        _offices.pop(directory).resign()


def wait_until_sent(directory: Path, attempt_id: UUID, deadline_s: float) -> bool:
    """Wait until all records of the attempt are acknowledged. Return whether they were within ``deadline_s`` seconds.

    Blocks for no longer, and returns at once if the sender reports a problem with the server. What is left stays on
    disk, and the sender goes on.
    """
    destination = Destination.read(layout.attempt_directory(directory, attempt_id))
    now_s = time.monotonic()
    deadline_s += now_s
    look_after_s = now_s + _LOOK_AFTER_S
    while not _is_sent(directory, attempt_id):
        now_s = time.monotonic()
        said = status(directory)
        if now_s >= deadline_s or (
            said
            and destination
            and said.problem(destination.url, attempt_id, token=destination.token)
        ):
            return False
        if now_s >= look_after_s:
            ensure_running(directory)
            look_after_s = now_s + _LOOK_AFTER_S
        time.sleep(_POLL_S)
    return True


def _is_sent(directory: Path, attempt_id: UUID) -> bool:
    paths = layout.spools_of(directory, attempt_id)
    sent = all(Cursor.bytes_left(path) == 0 for path in paths)
    # A spool that was taken over meanwhile is not gone: it has another name.
    return sent and set(layout.spools_of(directory, attempt_id)) <= set(paths)


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.Lock()
    # The child's copy of the descriptor would hold the lock for as long as the child lives.
    for office in _offices.values():
        office.resign()
    for state in (_starts, _offices, _launched):
        state.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
