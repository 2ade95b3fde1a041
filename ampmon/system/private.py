"""Makes and opens files and directories that only their owner may write. Refuses any that others may have planted.

Root counts as an owner too, since nothing is safe from it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
import tempfile
from pathlib import Path

from ampmon.system import signals


DIRECTORY_MODE = 0o700
FILE_MODE = 0o600
_FLAGS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)


class NotPrivate(OSError):
    """A directory or file belongs to somebody else, or others can write to it. ``strerror`` says what to do."""

    def __init__(self, message: str) -> None:
        super().__init__(errno.EPERM, message)


def directory(path: Path, *below: str, uid: int | None = None) -> Path:
    """Return the folder ``below`` in a directory of user ``uid``, by default this process's. Make what is missing.

    ``path`` itself may be a link, folders in it may not. Raises NotPrivate, and OSError.
    """
    make(path)
    _check(path.stat(), path, uid)
    for name in below:
        path = path / name
        make(path)
        _check(path.lstat(), path, uid)
    return path


def on_this_machine(name: str) -> Path:
    """A path in this user's folder of the temporary directory, which machines do not share. Raises as `directory`."""
    user = os.getuid() if hasattr(os, "getuid") else 0
    return directory(Path(tempfile.gettempdir()) / f"ampmon-{user}") / name


def make(path: Path) -> None:
    """Make a directory that only its owner may access, and any missing parents. Raises OSError."""
    if not path.is_dir():
        # mkdir's `parents` would make them with the default mode.
        make(path.parent)
        path.mkdir(mode=DIRECTORY_MODE, exist_ok=True)


def open_file(path: Path, flags: int, *, uid: int | None = None) -> int:
    """Open a file that only its owner may write; return its fd. Follows no link. Raises NotPrivate and OSError."""
    try:
        # Opening a pipe that somebody planted would block.
        fd = os.open(path, flags | _FLAGS | getattr(os, "O_NONBLOCK", 0), FILE_MODE)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise NotPrivate(f"{path} is a symbolic link: put the file itself there") from None
        raise
    try:
        _check(os.fstat(fd), path, uid)
    except NotPrivate:
        os.close(fd)
        raise
    return fd


def read(path: Path, *, uid: int | None = None) -> bytes:
    """Read a file that only its owner may write. Raises as `open_file` does."""
    with open(open_file(path, os.O_RDONLY, uid=uid), "rb") as file:
        return file.read()


def replace(path: Path, content: bytes, *, durable: bool) -> None:
    """Replace a file atomically: a reader finds all of the old content or all of the new. ``durable`` syncs it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    # A killed process that had this pid may have left one.
    temporary.unlink(missing_ok=True)
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FLAGS, FILE_MODE)
    try:
        with open(fd, "wb") as file:
            file.write(content)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        rename(temporary, path)
    except OSError as error:
        error.filename = str(path)  # a full disk names no file
        temporary.unlink(missing_ok=True)
        raise


def rename(source: Path, target: Path) -> None:
    """Rename a file or directory. A file server may report an error for one that it has done. Raises OSError."""
    before = source.stat()
    try:
        os.replace(source, target)
    except OSError as error:
        signals.let_through(error)
        with contextlib.suppress(OSError):
            if os.path.samestat(before, target.stat()):
                return
        raise


if sys.platform == "win32":

    def _check(status: os.stat_result, path: Path, uid: int | None) -> None:
        """File modes are the system's there."""

else:

    def _check(status: os.stat_result, path: Path, uid: int | None) -> None:
        uid = os.geteuid() if uid is None else uid
        if stat.S_ISLNK(status.st_mode):
            raise NotPrivate(f"{path} is a symbolic link: put the directory itself there")
        if status.st_uid not in (uid, 0):
            raise NotPrivate(f"{path} belongs to {_name(status.st_uid)}")
        if status.st_mode & stat.S_IWOTH or (
            status.st_mode & stat.S_IWGRP and not _is_own_group(status.st_gid, uid)
        ):
            remedy = (
                f"run chmod go-w {path}" if status.st_uid == uid else "name a new directory in it"
            )
            raise NotPrivate(f"others can write to {path}: {remedy}")

    def _is_own_group(gid: int, uid: int) -> bool:
        """Whether a group has no other user. Most Linux systems give each user one, with rights to the user's files."""
        import grp
        import pwd

        try:
            user, group = pwd.getpwuid(uid).pw_name, grp.getgrgid(gid)
        except KeyError:
            return False
        return group.gr_name == user and set(group.gr_mem) <= {user}

    def _name(uid: int) -> str:
        import pwd

        try:
            return f"user {pwd.getpwuid(uid).pw_name}"
        except KeyError:
            return f"user {uid}"
