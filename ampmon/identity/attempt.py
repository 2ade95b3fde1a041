"""Builds the header of an attempt from the options and this process's environment.

Finds the script's git commit, without running git, and the versions of loaded packages.
"""

from __future__ import annotations

import contextlib
import getpass
import importlib.metadata
import os
import platform
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from uuid import UUID

import msgspec

from ampmon import wire
from ampmon.config import RunOptions
from ampmon.identity import process
from ampmon.identity.redaction import REMOVED, redacted


_VALUE_TEXT_MAX = 1000

LEFT_OUT = "[left out]"
"""The config key that names the values too large for the wire."""
_SAID_BYTES = 1024
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_REF = re.compile(r"ref: (refs/[^\x00-\x20]+)")
_FILE_BYTES_MAX = 2**22
_PARENTS_MAX = 32


def new_attempt(
    options: RunOptions, run_id: UUID, attempt_id: UUID, *, started: int, rank: int, world_size: int
) -> wire.AttemptHeader:
    """Describe this process as an attempt of run ``run_id``.

    ``started`` is in microseconds since the epoch. Reads a few small files. Config values that the wire does not know
    become text. Passwords and tokens are removed.
    """
    return wire.AttemptHeader(
        run_id=run_id,
        attempt_id=attempt_id,
        project=options.project,
        name=options.name,
        owner=owner(),
        started=started,
        rank=rank,
        world_size=world_size,
        host=process.host(),
        pid=os.getpid(),
        boot_id=process.boot_id(),
        resume_step=options.resume_step,
        tags=options.tags,
        config=_plain_config(options.config),
        versions=versions(),
        git_commit=git_commit(),
    )


def owner() -> str:
    """The name of the user who runs this process, or the user's number if there is no name."""
    if sys.platform != "win32":
        import pwd

        with contextlib.suppress(KeyError):
            return pwd.getpwuid(os.getuid()).pw_name
    try:
        return getpass.getuser()
    except Exception:  # its type depends on the platform and on Python's version
        return str(os.getuid()) if hasattr(os, "getuid") else "unknown"


def _plain_config(config: Mapping[str, object]) -> dict[str, object]:
    plain = {_plain_text(key): _plain(value) for key, value in config.items()}
    try:
        return _cut({key: redacted(key, value) for key, value in plain.items()})
    except RecursionError:  # nested too deep to be checked for secrets
        return dict.fromkeys(plain, REMOVED)


def _cut(config: dict[str, object]) -> dict[str, object]:
    """Keep the values that fit into a server's limits, in order, and name the others."""
    kept: dict[str, object] = {}
    beyond = []
    # Leaves room for LEFT_OUT: its bytes, and two nodes with the config itself.
    bytes_left, nodes_left = wire.FREE_BYTES_MAX - _SAID_BYTES, wire.FREE_NODES_MAX - 2
    for key, value in config.items():
        size, nodes = len(msgspec.msgpack.encode((key, value))), wire.nodes(value)
        if size > bytes_left or nodes > nodes_left:
            beyond.append(key)
            continue
        bytes_left, nodes_left = bytes_left - size, nodes_left - nodes
        kept[key] = value
    if beyond:
        more = f" and {len(beyond) - 1} more" if len(beyond) > 1 else ""
        kept[LEFT_OUT] = f"{beyond[0][:100]!r}{more}: too large"
    return kept


def _plain(value: object) -> object:
    try:
        plain = msgspec.to_builtins(value, str_keys=True, enc_hook=_plain_text)
        # Integers beyond 64 bits and lone surrogates fail only here.
        msgspec.msgpack.encode(plain)
    except Exception:  # objects may raise anything when inspected
        return _plain_text(value)
    return plain


def _plain_text(value: object) -> str:
    try:
        text = str(value)
    except Exception:
        text = f"<{type(value).__name__}>"
    return text[:_VALUE_TEXT_MAX].encode("utf-8", "replace").decode("utf-8")


def git_commit(start: Path | None = None) -> str:
    """The commit checked out at ``start`` (default: the script, else the working directory), or "".

    Reads a few small files. Runs no program and never raises.
    """
    try:
        return _commit_of(start or _script_directory())
    except (OSError, ValueError, RuntimeError):
        return ""


def _script_directory() -> Path:
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    return Path(main).resolve().parent if main else Path.cwd()


def _commit_of(start: Path) -> str:
    for directory in [start, *start.parents][:_PARENTS_MAX]:
        git = directory / ".git"
        if git.is_file():  # a worktree or a submodule
            git = directory / _read(git).removeprefix("gitdir:").strip()
        if (git / "HEAD").is_file():
            return _resolve_head(git)
    return ""


def _resolve_head(git: Path) -> str:
    head = _read(git / "HEAD").strip()
    if match := _REF.fullmatch(head):
        return _resolve_ref(git, match[1])
    return head if _COMMIT.fullmatch(head) else ""


def _resolve_ref(git: Path, ref: str) -> str:
    common = git / _read(git / "commondir").strip() if (git / "commondir").is_file() else git
    for directory in (git, common):
        loose = directory / ref
        if loose.is_file() and _COMMIT.fullmatch(commit := _read(loose).strip()):
            return commit
    packed = _read(common / "packed-refs")
    match = re.search(rf"^([0-9a-f]{{40,64}}) {re.escape(ref)}$", packed, re.MULTILINE)
    return match[1] if match else ""


def _read(path: Path) -> str:
    if not path.is_file():  # a pipe would block
        return ""
    with path.open("rb") as file:
        return file.read(_FILE_BYTES_MAX).decode("utf-8", "replace")


def versions() -> dict[str, str]:
    """The versions of Python and ampmon, and of numpy, torch and CUDA if they are loaded. Loads nothing."""
    found = {"python": platform.python_version(), "ampmon": _installed_version()}
    for name in ("numpy", "torch"):
        if module := sys.modules.get(name):
            found[name] = _text(getattr(module, "__version__", ""))
    torch_version: ModuleType | None = sys.modules.get("torch.version")
    for name in ("cuda", "hip"):
        found[name] = _text(getattr(torch_version, name, ""))
    return {name: version for name, version in found.items() if version}


def _installed_version() -> str:
    try:
        return importlib.metadata.version("ampmon")
    except importlib.metadata.PackageNotFoundError:
        return ""


def _text(version: object) -> str:
    return "".join(c for c in str(version or "") if c.isprintable())[:256]
