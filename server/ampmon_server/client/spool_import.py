"""Imports the records that wait in a data directory's spools, and those written meanwhile. Never changes a spool."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit
from uuid import UUID

from ampmon.config import is_loopback
from ampmon.errors import AmpmonError
from ampmon.sender.delivery import SpoolDelivery
from ampmon.spool import Destination, Position, segments, spools
from ampmon.spool.layout import SUFFIX, segment_path
from ampmon.spool.state import CURSOR
from ampmon.transport import HttpTransport
from ampmon_server.client.sync import Sync, spools_at


# Elsewhere a link needs rights that few users have, and what is written later is missing.
_share = os.symlink if os.name == "posix" else shutil.copy2


def waiting(directory: Path, known: Callable[[UUID], bool] = lambda run_id: False) -> list[Path]:
    """The spools whose records are for a server on this machine, or were recorded offline.

    A spool of a named server that has some of the records counts only if the run is ``known`` to the directory's own
    server. Elsewhere the rest would look like a run with lost records.
    """
    try:
        return [path for path in spools(directory) if _is_ours(path, known)]
    except OSError:
        return []


def _is_ours(path: Path, known: Callable[[UUID], bool]) -> bool:
    destination = Destination.read(path)
    if destination is None:
        return False
    if destination.mode == "offline":
        return True
    if not is_loopback(urlsplit(destination.url).hostname):
        return False
    return not destination.named or _is_whole(path, destination, known)


def _is_whole(path: Path, destination: Destination, known: Callable[[UUID], bool]) -> bool:
    transport = HttpTransport(destination.url)  # it sends nothing
    delivery = SpoolDelivery(path, destination, transport, time.monotonic)
    if delivery.cursor.position == Position(0, 0):
        return True
    series = delivery.series()  # None if a newer ampmon wrote it, and sends it
    return series is not None and known(series[0])


@dataclass
class SpoolImport:
    """Copies spools to ``folder`` and sends to the server at ``url`` what it does not have yet. Segments are shared.

    The spools stay for their own sender. The server stores a repeated record once.
    """

    directory: Path
    folder: Path
    url: str
    token: str
    known: Callable[[UUID], bool]
    """Whether that server has a run."""
    records: int = 0
    _copied: dict[str, dict[int, int]] = field(default_factory=dict)
    """For each spool, the size of each segment when it was last copied."""

    def take(self) -> str:
        """Send new records. Return how many, in words, or why a spool could not be read. Never raises for that."""
        try:
            left = self._take()
        except (AmpmonError, OSError) as error:
            return f" (unsent records could not be read: {error})"
        rest = f", {left} spools incomplete" if left else ""
        return f" and {self.records:,} unsent records{rest}" if self.records else rest

    def _take(self) -> int:
        """Send new records. Return how many spools are not fully sent. Raises AmpmonError and OSError."""
        for path in waiting(self.directory, self.known):
            try:
                self._copy(path)
            except (OSError, shutil.Error):
                continue  # its sender deleted it just now
        copies = [spool for name in self._copied for spool in self._copies_of(name)]
        sync = Sync(copies, lambda _: HttpTransport(self.url, token=self.token))
        left = [each for each in sync.run() if each.problem is not None]
        self.records += sync.records
        return len(left)

    def _copies_of(self, name: str) -> list[Path]:
        """The path of a spool's copy, which is renamed while it is sent. Empty once all of it was sent."""
        place = self._place(name)
        return (spools_at(place) or []) if place.exists() else []

    def _place(self, name: str) -> Path:
        return self.folder / f"of-{name}"  # a folder with a spool's name would be taken for a spool

    def _copy(self, path: Path) -> None:
        """Give a spool's copy, which keeps how far it was sent, the files that it lacks. It shares the segments."""
        destination = Destination.read(path)
        # The cursor says what the destination has, which may be another server.
        ours = destination is not None and destination.mode == "online" and not destination.named
        # One of them marks the end of the spool. They are listed before the sizes, so those are final if it exists.
        marks = [
            each
            for each in path.iterdir()
            if each.suffix != SUFFIX and (ours or each.name != CURSOR)
        ]
        sizes = {number: segment_path(path, number).stat().st_size for number in segments(path)}
        copies = self._copies_of(path.name)
        if not copies and self._copied.get(path.name) == sizes:
            return  # all of it was sent
        self._copied[path.name] = sizes
        copy = copies[0] if copies else self._place(path.name) / "spool" / path.name
        copy.mkdir(parents=True, exist_ok=True)
        for file in (*(segment_path(path, number) for number in sizes), *marks):
            if not (copy / file.name).exists():
                share = _share if file.suffix == SUFFIX else shutil.copy2
                share(file, copy / file.name)
