"""``ampmon sync``: sends the unsent records of a data directory, or of a copy of one. Needs no server packages."""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TextIO

from ampmon.config import RunOptions, data_directory, resolve, route_to, server_address
from ampmon.errors import NO_TOKEN, ConfigurationError
from ampmon.spool import Destination
from ampmon.transport import NOT_ACCEPTED, HttpTransport
from ampmon.transport.proof import WRONG_PROOF
from ampmon_server.client.sync import SpoolOutcome, Sync, spools_at


LEFT = 1
"""Exit code if something is left to send."""
_LACKS_TOKEN = {NO_TOKEN, NOT_ACCEPTED, WRONG_PROOF}
_DRAW_EVERY_S = 0.1
_SAY_EVERY_S = 10.0
_BAR = 24


def run(arguments: argparse.Namespace) -> int:
    """Send all records. Return 0, or 1 if something is left to send. Raises ConfigurationError and OSError."""
    options = resolve(url=arguments.url, dir=arguments.directory)
    paths = spools_at(options.dir)
    if paths is None:
        raise ConfigurationError(
            f"{options.dir} holds no spools: pass a data directory (AMPMON_DIR), a copy of one, or one spool in it"
        )
    bar = Bar(sys.stderr)
    ways = _Ways(options, arguments.url, arguments.token_file)
    sync = Sync(paths, ways.to, on_batch=bar.show)
    outcomes = []
    for outcome in sync.run():
        bar.clear()
        print(_words(outcome), flush=True)
        outcomes.append(outcome)
    bar.clear()
    return _conclude(sync, outcomes, ways)


class _Ways:
    """Chooses the server and the token for each spool, from the options, the environment, the run or a file.

    A spool names its own server, so anyone who can write it can choose one. Never send AMPMON_TOKEN, or the token of
    the user's own data directory, to a server that only a spool names. Plain http is an exception: there the server
    must first prove that it has the token.
    """

    def __init__(self, options: RunOptions, url: str | None, file: Path | None) -> None:
        token = _data_directory_of(options.dir) / "token"
        self._beside = token if token.exists() else None
        self._file = file
        self._url = url and options.url
        with suppress(ConfigurationError):  # there is no home directory
            if self._url and self._url == server_address(data_directory()):
                self._beside = None  # a copied data directory may hold another server's token
        self._known = options.url
        self._token = options.token
        self.kept_from: set[str] = set()
        """Servers that only a spool names, to which a token from here was not sent."""

    def to(self, destination: Destination) -> HttpTransport:
        url = self._url or (destination.url if destination.named else self._known)
        to = partial(HttpTransport, url, route=route_to(url))
        if self._file is not None:
            return to(token=_held(self._file))
        own = self._beside or _own_token()
        if url == self._known or url.startswith("http://"):
            token = self._token or destination.token
            return to(token=token, token_file=own)
        if self._token or (self._beside is None and own is not None and own.exists()):
            self.kept_from.add(url)
        return to(token=destination.token, token_file=self._beside)


def _own_token() -> Path | None:
    """The token file of the user's own data directory. None if the user has no home directory."""
    with suppress(ConfigurationError):
        return data_directory() / "token"
    return None


def _held(file: Path) -> str:
    """The content of the token file that the user named, or nothing if it cannot be read."""
    try:
        return file.read_text("ascii").strip()
    except OSError:
        return ""
    except ValueError:
        return "\n"  # invalid, so that the transport rejects it with a clear message


def _data_directory_of(place: Path) -> Path:
    """The data directory of a spool or of the spool folder. ``place`` itself if it is neither."""
    if place.parent.name == "spool":
        return place.parent.parent
    return place.parent if place.name == "spool" else place


class Bar:
    """Shows progress: one line redrawn on a terminal, elsewhere a new line every ten seconds."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._draws = stream.isatty()
        self._began_s = time.monotonic()
        # In a log, a short sync has no line of progress.
        self._shown_s = self._began_s if not self._draws else 0.0
        self._width = 0

    def show(self, sync: Sync) -> None:
        now_s = time.monotonic()
        if now_s - self._shown_s < (_DRAW_EVERY_S if self._draws else _SAY_EVERY_S):
            return
        self._shown_s = now_s
        line = progress(sync.bytes, sync.left_bytes, sync.records, now_s - self._began_s)
        if self._draws:
            self._stream.write(f"\r{line:{self._width}}")
            self._width = len(line)
        else:
            self._stream.write(f"{line}\n")
        self._stream.flush()

    def clear(self) -> None:
        """Erase the line, so that another can be printed."""
        if self._width:
            self._stream.write(f"\r{'':{self._width}}\r")
            self._stream.flush()
            self._width = 0


def progress(total: int, left: int, records: int, elapsed_s: float) -> str:
    """One line with the share and bytes done, records, MB/s and the time left."""
    done = max(total - left, 0)
    share = done / total if total else 1.0
    full = round(share * _BAR)
    per_s = done / elapsed_s if elapsed_s > 0 else 0.0
    left_s = f"{left / per_s:.0f} s left" if per_s else "waiting"
    return (
        f"[{'=' * full}{' ' * (_BAR - full)}] {share:4.0%} {done / 1e6:,.1f} of {total / 1e6:,.1f} MB, "
        f"{records:,} records, {per_s / 1e6:,.1f} MB/s, {left_s}"
    )


def _words(outcome: SpoolOutcome) -> str:
    parts = [f"{outcome.records:,} records sent"]
    if outcome.rejected:
        parts.append(f"{outcome.rejected:,} refused")
    if outcome.corrupt:
        parts.append(f"{outcome.corrupt:,} places damaged on disk")
    if outcome.left_bytes:
        parts.append(f"{outcome.left_bytes:,} bytes left")
    why = outcome.problem or outcome.kept
    attempt = outcome.path.name.partition("~")[0]
    return f"{attempt}: {', '.join(parts)}{f' ({why})' if why else ''}"


def _conclude(sync: Sync, outcomes: list[SpoolOutcome], ways: _Ways) -> int:
    left = [outcome for outcome in outcomes if outcome.problem is not None]
    if left:
        print(
            f"ampmon sync: {len(left)} of {len(outcomes)} spools were not fully sent, {sync.left_bytes:,} bytes are "
            f"left: {_advice(left, ways)}",
            file=sys.stderr,
        )
        return LEFT
    if outcomes:
        rest = "records written meanwhile are" if sync.left_bytes else "nothing is"
        print(f"{sync.records:,} records sent; {rest} left")
    else:
        print("nothing is left to send")
    return 0


def _advice(left: list[SpoolOutcome], ways: _Ways) -> str:
    lacking = {outcome.url for outcome in left if outcome.problem in _LACKS_TOKEN}
    if not lacking:
        silent = any((outcome.problem or "").startswith("no answer") for outcome in left)
        return f"{'check that the server runs, then ' if silent else ''}run it again to continue"
    if lacking & ways.kept_from:
        at = min(lacking & ways.kept_from)
        return (
            f"your token was not sent to {at!r}, because only a spool names that server: "
            "if it is the right one, name it with --url"
        )
    return "pass the server's token with --token-file or AMPMON_TOKEN"
