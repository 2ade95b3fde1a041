"""Builds the header of an attempt from the options and this process's environment."""

from __future__ import annotations

import contextlib
import getpass
import os
import sys
import time
from collections.abc import Mapping
from uuid import UUID

import msgspec

from ampmon import wire
from ampmon.config import RunOptions
from ampmon.identity import ids, process, source
from ampmon.identity.redaction import REMOVED, redacted


_VALUE_TEXT_MAX = 1000

LEFT_OUT = "[left out]"
"""The config key that names the values too large for the wire."""
_SAID_BYTES = 1024


def new_attempt(
    options: RunOptions,
    *,
    run_id: UUID,
    attempt_id: UUID | None = None,
    started: int | None = None,
    rank: int | None = None,
    world_size: int | None = None,
) -> wire.AttemptHeader:
    """Describe this process as an attempt of run ``run_id``. Rank and size default to the launcher's.

    ``started`` is in microseconds since the epoch, by default now. Reads a few small files. Config values that the wire
    does not know become text. Passwords and tokens are removed.
    """
    own_rank, own_size = ids.rank_of_process()
    return wire.AttemptHeader(
        run_id=run_id,
        attempt_id=attempt_id or ids.uuid7(),
        project=options.project,
        name=options.name,
        owner=owner(),
        started=time.time_ns() // 1000 if started is None else started,
        rank=own_rank if rank is None else rank,
        world_size=own_size if world_size is None else world_size,
        host=process.host(),
        pid=os.getpid(),
        boot_id=process.boot_id(),
        resume_step=options.resume_step,
        tags=options.tags,
        config=_plain_config(options.config),
        versions=source.versions(),
        git_commit=source.git_commit(),
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
