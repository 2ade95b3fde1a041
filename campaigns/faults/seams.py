"""Counts a part's calls to the system, the network and SQLite, and can make one of them fail.

Install it before ampmon loads, so that no module keeps an original. It passes everything through until it is armed,
in a process forked for one part.
"""

from __future__ import annotations

import builtins
import errno
import io
import json
import os
import signal
import socket
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


HANG_S = 0.3
LASTING = 5
"""The number of consecutive calls that a lasting fault breaks. `FOR_GOOD` breaks all, as with a full disk."""
FOR_GOOD = 10**9

_system = {
    name: getattr(os, name)
    for name in (
        *("write", "ftruncate", "fsync", "fdatasync", "rename", "replace", "unlink", "remove"),
        *("rmdir", "open", "mkdir"),
    )
    if hasattr(os, name)
}
_open = builtins.open
_sqlite_connect = sqlite3.connect


@dataclass(frozen=True, slots=True)
class Fault:
    """``times`` calls of ``operation`` fail in the way ``kind``, from call ``number`` on, counted from 1."""

    operation: str
    kind: str
    number: int
    times: int = 1


class Trap:
    """Waits for the call that must fail. Reports events to the descriptor ``tell``, one line of JSON each."""

    def __init__(self, fault: Fault | None, *, root: str, port: int, tell: int) -> None:
        self.calls: Counter[str] = Counter()
        self.root = root
        self.port = port
        self._fault = fault
        self._tell = tell
        self._lock = threading.Lock()

    def tell(self, **what: object) -> None:
        _system["write"](self._tell, json.dumps(what).encode() + b"\n")

    def due(self, operation: str) -> str | None:
        """How this call must fail, or None."""
        with self._lock:
            self.calls[operation] += 1
            number = self.calls[operation]
        fault = self._fault
        if fault is None or operation != fault.operation:
            return None
        if not fault.number <= number < fault.number + fault.times:
            return None
        if number == fault.number:
            self.tell(reached=True)
        return fault.kind

    def concerns(self, path: str) -> bool:
        return path.startswith(self.root)


trap: Trap | None = None


def arm(new: Trap) -> None:
    global trap
    trap = new


def disarm() -> None:
    global trap
    trap = None


def install() -> None:
    """Replace the original calls, in this process and those forked from it."""
    for operation, names in (
        ("write", ("write",)),
        ("fsync", ("fsync", "fdatasync", "ftruncate")),
    ):
        for name in names:
            if name in _system:
                setattr(os, name, _of_descriptor(operation, _system[name]))
    for operation, names in (
        ("rename", ("rename", "replace")),
        ("unlink", ("unlink", "remove", "rmdir")),
        ("create", ("open", "mkdir")),
    ):
        for name in names:
            setattr(os, name, _of_path(operation, _system[name]))
    builtins.open = io.open = _opened
    for operation, name in (("connect", "connect"), ("send", "sendall"), ("receive", "recv_into")):
        setattr(socket.socket, name, _of_socket(operation, getattr(socket.socket, name)))
    sqlite3.connect = sqlite3.dbapi2.connect = _connected


# -- failures ---------------------------------------------------------------------------------------------------------


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)  # the signal arrives before this thread continues


def _hang() -> None:
    if trap is not None and threading.current_thread() is threading.main_thread():
        trap.tell(stalled=True)
    time.sleep(HANG_S)


def _go_wrong(kind: str, call: Callable[[], Any], part: Callable[[], Any]) -> Any:
    """``call`` makes the whole call, ``part`` only half of it."""
    done = None
    if kind == "hang":
        _hang()
    if kind in {"hang", "kill after"}:
        done = call()
    if kind in {"short", "torn", "reset"}:
        done = part()
    if kind in {"kill", "kill after", "torn"}:
        _kill()
    if kind in {"hang", "short"}:
        return done
    raise _error(kind)


def _error(kind: str) -> OSError:
    if kind == "timeout":
        return TimeoutError("timed out")
    number = errno.ECONNRESET if kind == "reset" else getattr(errno, kind)
    return OSError(number, os.strerror(number))  # Python picks the subclass for this number


# -- the system -------------------------------------------------------------------------------------------------------


def _path_of(descriptor: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return ""


def _of_descriptor(operation: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def called(descriptor: int, *rest: Any) -> Any:
        if trap is None or not trap.concerns(_path_of(descriptor)):
            return original(descriptor, *rest)
        kind = trap.due(operation)
        if kind is None:
            return original(descriptor, *rest)

        def half() -> Any:
            return original(descriptor, rest[0][: len(rest[0]) // 2]) if operation == "write" else 0

        return _go_wrong(kind, lambda: original(descriptor, *rest), half)

    return called


def _of_path(operation: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def called(path: Any, *rest: Any, **named: Any) -> Any:
        if trap is None or not trap.concerns(_whole(path, named)) or _only_reads(original, rest):
            return original(path, *rest, **named)
        kind = trap.due(operation)
        if kind is None:
            return original(path, *rest, **named)
        return _go_wrong(kind, lambda: original(path, *rest, **named), lambda: None)

    return called


def _whole(path: Any, named: dict[str, Any]) -> str:
    name = os.fsdecode(path)
    directory = named.get("dir_fd")
    return os.path.join(_path_of(directory), name) if directory is not None else name


def _only_reads(original: Callable[..., Any], rest: tuple[Any, ...]) -> bool:
    return original is _system["open"] and not (rest and rest[0] & os.O_CREAT)


class _File(io.FileIO):
    """The raw file below a buffered one. Its writes bypass the module `os`."""

    def write(self, data: Any) -> int:
        kind = trap.due("write") if trap is not None else None
        if kind is None:
            return super().write(data)
        whole, write = bytes(data), super().write
        return _go_wrong(kind, lambda: write(whole), lambda: write(whole[: len(whole) // 2]))


def _opened(file: Any, mode: str = "r", buffering: int = -1, *rest: Any, **named: Any) -> Any:
    if trap is None or "b" not in mode or not set(mode) & set("wax"):
        return _open(file, mode, buffering, *rest, **named)
    path = _path_of(file) if isinstance(file, int) else os.fsdecode(file)
    if not trap.concerns(path):
        return _open(file, mode, buffering, *rest, **named)
    raw = _File(file, mode.replace("b", ""), **named)
    return raw if buffering == 0 else io.BufferedWriter(raw)


# -- the network ------------------------------------------------------------------------------------------------------


def _of_socket(operation: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def called(self: socket.socket, *rest: Any) -> Any:
        if trap is None or not _leads_to(self, trap.port, rest):
            return original(self, *rest)
        kind = trap.due(operation)
        if kind is None:
            return original(self, *rest)
        if kind == "closed":
            return 0

        def half() -> Any:
            if operation == "send":
                return original(self, rest[0][: len(rest[0]) // 2])
            return original(self, rest[0], 1) if operation == "receive" else None

        return _go_wrong(kind, lambda: original(self, *rest), half)

    return called


def _leads_to(connection: socket.socket, port: int, rest: tuple[Any, ...]) -> bool:
    if rest and isinstance(rest[0], tuple):
        return bool(rest[0][1] == port)
    try:
        return bool(connection.getpeername()[1] == port)
    except OSError:
        return False


# -- SQLite -----------------------------------------------------------------------------------------------------------

_WORDS = {
    "EIO": "disk I/O error",
    "ENOSPC": "database or disk is full",
    "locked": "database is locked",
}


def _in_sqlite(operation: str, call: Callable[[], Any]) -> Any:
    kind = trap.due(operation) if trap is not None else None
    if kind is None:
        return call()
    if kind == "EIO after":
        call()
        raise sqlite3.OperationalError(_WORDS["EIO"])
    if kind in _WORDS:
        raise sqlite3.OperationalError(_WORDS[kind])
    return _go_wrong(kind, call, lambda: None)


class _Cursor(sqlite3.Cursor):
    def execute(self, *statement: Any) -> Any:
        return _in_sqlite("execute", lambda: super(_Cursor, self).execute(*statement))

    def executemany(self, *statement: Any) -> Any:
        return _in_sqlite("execute", lambda: super(_Cursor, self).executemany(*statement))


class _Connection(sqlite3.Connection):
    def cursor(self, factory: type[sqlite3.Cursor] = _Cursor) -> Any:
        return super().cursor(factory)

    def commit(self) -> None:
        _in_sqlite("commit", super().commit)


def _connected(*arguments: Any, **named: Any) -> Any:
    return _sqlite_connect(*arguments, **{"factory": _Connection, **named})
