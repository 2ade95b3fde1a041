"""Finds the server that answers: the named one, the one running on the data directory, or else one of its own.

Such a server serves the data directory on a free port of 127.0.0.1 while a command runs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from uuid import UUID

from ampmon.config import resolve, server_address
from ampmon.errors import AmpmonError, ConfigurationError
from ampmon.system import private
from ampmon_server.client.answers import Run, choose
from ampmon_server.client.client import ApiClient, ClientError, RequestRefused
from ampmon_server.client.spool_import import SpoolImport, waiting
from ampmon_server.http.address import address_written, listen
from ampmon_server.settings import Settings


START_S = 30.0


@contextmanager
def answering(
    url: str | None = None,
    data_dir: Path | str | None = None,
    token_file: Path | str | None = None,
    *,
    for_long: bool = False,
    first: bool = False,
) -> Iterator[ApiClient]:
    """A client of the server at ``url``, or else of one for the data directory. Raises ClientError.

    ``for_long``: if this starts an embedded server, other commands can use it meanwhile. ``first``: the data directory
    may hold no runs yet.
    """
    try:
        options = resolve(url=url, dir=data_dir)
    except ConfigurationError as error:
        raise ClientError(str(error)) from None
    file = None if token_file is None else Path(token_file)
    settings = Settings(data_directory=options.dir, token_file=file)
    place = options.url if options.named else running(settings, options.token)
    with (
        alone(settings, announced=for_long, first=first)
        if place is None
        else ApiClient(place, _token(settings, options.token))
    ) as server:
        yield server


def running(settings: Settings, token: str | None) -> str | None:
    """Return the address of the server that runs on the data directory, or None.

    A killed server leaves its address, where another directory's server may run. That one accepts neither token.
    """
    url = server_address(settings.data_directory)
    if url is None:
        return None
    own = replace(settings, token_file=None)
    for held in (partial(_token, settings, token), partial(held_token, own, "")):
        try:
            known = held()
        except ClientError:
            continue
        try:
            with ApiClient(url, known) as server:
                server.get("/me")
        except RequestRefused as refused:
            if refused.status == 401:
                continue
        except ClientError:  # waiting for it again would take another minute
            return None
        return url
    return None


def held_token(settings: Settings, advice: str) -> str:
    """Read the named token file, whoever owns it, or else the data directory's own. Raises ClientError with advice."""
    named, own = settings.token_file, settings.data_directory / "token"
    try:
        held = private.read(own) if named is None else named.read_bytes()
        return held.decode("ascii").strip()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "not a token"
        raise ClientError(f"{named or own}: {why}; {advice}") from None


def _token(settings: Settings, token: str | None) -> str:
    if settings.token_file is None and token:
        return token
    advice = "pass the server's --data-dir or --token-file, or set AMPMON_TOKEN"
    return held_token(settings, advice)


# -- what a command names ----------------------------------------------------------------------------------------------


def asked(
    arguments: argparse.Namespace, *, for_long: bool = False, first: bool = False
) -> AbstractContextManager[ApiClient]:
    """The server that the options name, as `answering` finds it."""
    named = arguments.url, arguments.data_dir, arguments.token_file
    return answering(*named, for_long=for_long, first=first)


@contextmanager
def chosen(
    arguments: argparse.Namespace, *, for_long: bool = False
) -> Iterator[tuple[ApiClient, Run]]:
    """Yield the server, and the run that the argument names. Raises ClientError."""
    with asked(arguments, for_long=for_long) as server:
        yield server, choose(server, arguments.run)


# -- a server of its own -----------------------------------------------------------------------------------------------


@contextmanager
def alone(
    settings: Settings, *, announced: bool = False, first: bool = False
) -> Iterator[ApiClient]:
    """Start a server for one command, and import the records that wait for it in spools. Raises ClientError.

    With ``announced``, other commands can find and use it. They need it, because it locks the database file.
    """
    if not (first or settings.database_file.exists() or waiting(settings.data_directory)):
        raise ClientError(
            f"no server runs on {settings.data_directory}, and it holds no runs: record one with "
            "`ampmon run train.py`, or pass a --data-dir, or a server's --url"
        )
    with (
        tempfile.TemporaryDirectory(prefix="ampmon-asking-") as folder,
        _serving(settings) as (known, server),
    ):
        directory = settings.data_directory
        spools = SpoolImport(directory, Path(folder), server.url, server.token, known)
        taken = spools.take()
        print(f"no server runs on {directory}: reading its database{taken}", file=sys.stderr)
        server.catch_up = spools.take
        with address_written(settings.address_file, server.url) if announced else nullcontext():
            yield server


@contextmanager
def filled(fill: Callable[[str, str], object]) -> Iterator[ApiClient]:
    """Start a server on a temporary database, which ``fill`` fills, given the server's address and token.

    The database is deleted at the end.
    """
    with (
        tempfile.TemporaryDirectory(prefix="ampmon-asking-") as folder,
        _serving(Settings(data_directory=Path(folder) / "data", judging=False)) as (_, server),
    ):
        fill(server.url, server.token)
        yield server


@contextmanager
def _serving(settings: Settings) -> Iterator[tuple[Callable[[UUID], bool], ApiClient]]:
    """A client of a server that a thread runs, and what tells whether it has a run. Raises ClientError."""
    # Most commands ask a server that runs already, and start faster without these modules.
    from ampmon_server.http.app import create_app
    from ampmon_server.http.process import ServerProcess
    from ampmon_server.http.service import Service

    def known(run_id: UUID) -> bool:
        return bool(service.store.versions([run_id]))

    try:
        service = Service(settings)
    except AmpmonError as problem:
        raise ClientError(str(problem)) from None
    with closing(service), listen(replace(settings, port=0)) as listener:
        ready = threading.Event()
        process = ServerProcess(create_app(settings, service), ready=ready.set)
        thread = threading.Thread(target=process.run, args=([listener],), daemon=True)
        thread.start()
        try:
            if not ready.wait(START_S):
                raise ClientError(
                    "the temporary server for the database did not start: start `ampmon serve`"
                )
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            with ApiClient(url, service.keys.token, lasts=False) as server:
                yield known, server
        finally:
            process.should_exit = True
            thread.join()
