"""Finds the server that answers: the named one, the one running on the data directory, or else an embedded one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ampmon.config import RunOptions, resolve, server_address
from ampmon.errors import ConfigurationError
from ampmon.system import private
from ampmon_server.client.client import ApiClient, ClientError, RequestRefused
from ampmon_server.settings import Settings


@contextmanager
def answering(
    url: str | None = None,
    data_dir: Path | str | None = None,
    token_file: Path | str | None = None,
    *,
    for_long: bool = False,
) -> Iterator[ApiClient]:
    """A client of the server at ``url``, or else of one for the data directory. Raises ClientError.

    ``for_long``: if this starts an embedded server, other commands can use it meanwhile.
    """
    try:
        options = resolve(url=url, dir=data_dir)
    except ConfigurationError as error:
        raise ClientError(str(error)) from None
    file = None if token_file is None else Path(token_file)
    settings = Settings(data_directory=options.dir, token_file=file)
    if options.named:
        with ApiClient(options.url, _token(settings, options)) as server:
            yield server
    elif (own := running(settings, options)) is not None:
        with ApiClient(own, _token(settings, options)) as server:
            yield server
    else:
        from ampmon_server.client.embedded_server import alone

        with alone(settings, announced=for_long) as server:
            yield server


def running(settings: Settings, options: RunOptions) -> str | None:
    """Return the address of the server that runs on the data directory, or None.

    It sends a request, because a killed server leaves its address.
    """
    url = server_address(settings.data_directory)
    if url is None:
        return None
    try:
        with ApiClient(url, _token(settings, options)) as server:
            server.get("/runs", {"limit": "1"})
    except RequestRefused:
        return url
    except ClientError:
        return None
    return url


def held_token(settings: Settings) -> str:
    """Read the named token file, whoever owns it, or else the data directory's own. Raises OSError and ValueError."""
    named = settings.token_file
    held = private.read(settings.data_directory / "token") if named is None else named.read_bytes()
    return held.decode("ascii").strip()


def _token(settings: Settings, options: RunOptions) -> str:
    if settings.token_file is None and options.token:
        return options.token
    file = settings.token_file or settings.data_directory / "token"
    try:
        return held_token(settings)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "not a token"
        raise ClientError(
            f"{file}: {why}; name the server's --data-dir or --token-file, or set AMPMON_TOKEN"
        ) from None
