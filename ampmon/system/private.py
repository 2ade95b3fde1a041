"""Directories and files that only their owner may write: made, opened, and refused where others may have planted them.

Root counts as an owner too, since nothing is safe from it.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


DIRECTORY_MODE = 0o700
FILE_MODE = 0o600
_FLAGS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


class NotPrivate(OSError):
    """A directory or file belongs to somebody else, or others can write to it. ``strerror`` says what to do."""

    def __init__(self, message: str) -> None:
        super().__init__(errno.EPERM, message)


def directory(path: Path, *below: str, uid: int | None = None) -> Path:
    """The folder ``below`` in a directory of ``uid``'s, by default this process's user's; makes what is missing.

    ``path`` itself may be a link, folders in it may not. Raises NotPrivate, and OSError.
    """
    make(path)
    _check(path.stat(), path, uid)
    for name in below:
        path = path / name
        make(path)
        _check(path.lstat(), path, uid)
    return path


def make(path: Path) -> None:
    """Make a directory that only its owner may look into, and its parents where they are missing. Raises OSError."""
    if not path.is_dir():
        make(path.parent)
        path.mkdir(mode=DIRECTORY_MODE, exist_ok=True)


def open_file(path: Path, flags: int, *, uid: int | None = None) -> int:
    """A descriptor of a file that only its owner writes. Follows no link. Raises NotPrivate, and OSError."""
    try:
        # A pipe that somebody planted would be waited for.
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
    """What a file holds that only its owner writes. Raises as `open_file` does."""
    with open(open_file(path, os.O_RDONLY, uid=uid), "rb") as file:
        return file.read()


def replace(path: Path, content: bytes, *, durable: bool) -> None:
    """Put ``content`` in the place of a file at once: a reader finds the old one or the new one, whole."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FLAGS, FILE_MODE)
    try:
        with open(fd, "wb") as file:
            file.write(content)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def _check(status: os.stat_result, path: Path, uid: int | None) -> None:
    """Raises NotPrivate."""
    if os.name != "posix":
        return
    uid = os.geteuid() if uid is None else uid
    if stat.S_ISLNK(status.st_mode):
        raise NotPrivate(f"{path} is a symbolic link: put the directory itself there")
    if status.st_uid not in (uid, 0):
        raise NotPrivate(f"{path} belongs to {_name(status.st_uid)}")
    if status.st_mode & stat.S_IWOTH or (
        status.st_mode & stat.S_IWGRP and not _is_own_group(status.st_gid, uid)
    ):
        remedy = f"run chmod go-w {path}" if status.st_uid == uid else "name a new directory in it"
        raise NotPrivate(f"others can write to {path}: {remedy}")


def _is_own_group(gid: int, uid: int) -> bool:
    """Whether a group is one user's alone: most Linux systems give each one, and let it write what the user makes."""
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
