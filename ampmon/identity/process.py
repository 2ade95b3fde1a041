"""Identifies a process by pid, start time, boot and pid namespace, and tells whether it is alive."""

from __future__ import annotations

import errno
import functools
import os
import re
import socket
import sys
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from ampmon.system import private


Fate: TypeAlias = Literal["alive", "gone", "unknown"]

_PROC = Path("/proc")
_NO_NAMES = frozenset({"localhost", "unknown"})
_SHORT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Errors that say nothing about a file: the reader is short of descriptors or memory."""
_MADE = "file-"
"""Begins an id that stands for a boot's."""
_FIRST_NAMESPACE = 0xEFFFFFFC
"""The inode of a Linux machine's initial pid namespace (PROC_PID_INIT_INO)."""


class ProcessIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """A process, described so that another one can tell later whether it is gone.

    ``started`` is the kernel's start time in clock ticks after boot, ``namespace`` the pid namespace's inode. Both are
    0 on systems without them (macOS, Windows).
    """

    pid: int
    started: int
    boot_id: str
    host: str
    namespace: int

    def place(self) -> str:
        """The `place` in which this process runs."""
        machine = f"-{file_name(self.boot_id)}" if self.boot_id.startswith(_MADE) else ""
        return file_name(self.host) + machine + (f"-{self.namespace}" if self._is_inner() else "")

    def _is_inner(self) -> bool:
        return self.namespace not in (0, _FIRST_NAMESPACE)

    def fate(self) -> Fate:
        """Whether the process is alive. "unknown" from another machine or container: it may still run.

        Raises OSError if this process is short of descriptors or memory, and so cannot see it.
        """
        if self.boot_id != boot_id():
            # The same machine after a reboot, if it has a name of its own. Containers on several may share one.
            named = not self._is_inner() and self.host.partition(".")[0] not in _NO_NAMES
            made = self.boot_id.startswith(_MADE) or boot_id().startswith(_MADE)
            return "gone" if self.host == host() and named and not made else "unknown"
        if self.namespace != _namespace() or (not self.boot_id and self.host != host()):
            return "unknown"
        if sys.platform == "win32":
            return "alive" if self.pid == os.getpid() else "unknown"
        return "alive" if process_alive(self.pid, self.started) else "gone"


def this_process() -> ProcessIdentity:
    """Describe the calling process. Not cached, because it changes with a fork. Raises OSError as `fate` does."""
    pid = os.getpid()
    return ProcessIdentity(
        pid=pid,
        started=start_time(pid) or 0,
        boot_id=boot_id(),
        host=host(),
        namespace=_namespace(),
    )


def process_alive(pid: int, started: int) -> bool:
    """Whether ``pid`` is a running process that began at ``started`` (0 for any time). A zombie is not running."""
    if _PROC.joinpath("self", "stat").exists():
        now = start_time(pid)
        return now is not None and started in (0, now)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # it exists, and belongs to another user
    return True


def start_time(pid: int) -> int | None:
    """When a process began, in clock ticks after boot. None if it is gone or a zombie, or not on Linux.

    Raises OSError as `ProcessIdentity.fate` does.
    """
    stat = _read(str(pid), "stat")
    try:
        # The second field is the program's name in brackets, which may itself hold brackets and spaces.
        fields = stat[stat.rindex(")") + 2 :].split()
        # In proc(5), the state is field 3 and the start time field 22.
        return None if fields[0] in "ZX" else int(fields[19])
    except (ValueError, IndexError):
        return None


@functools.cache
def boot_id() -> str:
    """The kernel's random id of this boot. If it has none, an id of this machine. Raises OSError as `fate` does.

    That is when a file was created in the temporary directory. It is empty if none can be.
    """
    if given := _read("sys/kernel/random/boot_id").strip()[:64]:
        return given
    try:
        fd = private.open_file(private.on_this_machine("machine"), os.O_RDONLY | os.O_CREAT)
    except OSError as error:
        if error.errno in _SHORT:
            raise
        return ""
    with os.fdopen(fd):
        made = os.fstat(fd)
    return f"{_MADE}{made.st_ino:x}-{made.st_mtime_ns:x}"


def _read(*names: str) -> str:
    """A file in /proc, or an empty text if there is none or this process may not read it."""
    try:
        return _PROC.joinpath(*names).read_text("utf-8", "replace")
    except OSError as error:
        if error.errno in _SHORT:
            raise
        return ""


def place() -> str:
    """Name this machine and container, within which processes see each other's fate. Fit for a file name."""
    return this_process().place()


def file_name(name: str) -> str:
    """A host's name or another as a part of a file name, at most 64 characters."""
    return re.sub(r"[^A-Za-z0-9.-]", "_", name)[:64]


def host() -> str:
    return "".join(c for c in socket.gethostname() if c.isprintable())[:256] or "unknown"


def _namespace() -> int:
    try:
        return _PROC.joinpath("self/ns/pid").stat().st_ino
    except OSError:
        return 0
