"""``ampmon db backup`` and ``ampmon db restore``: made beside servers, put back without them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ampmon_server.cli.db import settings_of
from ampmon_server.cli.exits import CANNOT
from ampmon_server.cli.progress import progress
from ampmon_server.store import Unusable
from ampmon_server.store.admin import copies


_GO_ON = """\
Runs that go on are taken up by themselves. Records that were acknowledged after the copy was made are on no trainer's
disk any more: they are missing, and shown as a gap. Runs that were deleted since are there again, and so are
tokens that were revoked since: see ampmon token list. Tokens that were made since are not known: make them anew."""


def run(arguments: argparse.Namespace) -> int:
    """Run one of the two; 2, with one line that says why, where it did nothing."""
    does = {"backup": _back_up, "restore": _restore}
    try:
        does[arguments.what](arguments)
    except Unusable as problem:
        print(f"ampmon db {arguments.what}: {problem}", file=sys.stderr)
        return CANNOT
    return 0


def _back_up(arguments: argparse.Namespace) -> None:
    settings = settings_of(arguments)
    target: Path = (arguments.file or copies.name_of(settings)).absolute()
    if target.exists() and not arguments.force:
        raise Unusable(f"{target} is there already: name another file, or say --force")
    with _told("copying") as tell:
        copies.back_up(settings, target, tell)
    print(f"{target}: {target.stat().st_size:,} bytes, whole and sound")


def _restore(arguments: argparse.Namespace) -> None:
    with _told("restoring") as tell:
        restored = copies.restore(settings_of(arguments), arguments.file.absolute(), tell)
    print(_said(restored))
    print(_GO_ON, file=sys.stderr)


def _said(restored: copies.Restored) -> str:
    words = f"{restored.database} is what the copy holds"
    if restored.aside is not None:
        words += f"; what was there before is {restored.aside}"
    if restored.older:
        words += "; its schema is an older one: run ampmon db upgrade"
    return words


@contextmanager
def _told(what: str) -> Iterator[copies.Tell]:
    """A bar for as long as it takes, and what moves it."""
    with progress() as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
