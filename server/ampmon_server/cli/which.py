"""The server that a command asks, and the run that it is about."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from ampmon_server.client import ApiClient, choose
from ampmon_server.client.answering import answering
from ampmon_server.client.answers import Run


def asked(
    arguments: argparse.Namespace, *, for_long: bool = False
) -> AbstractContextManager[ApiClient]:
    """The server that the options name, as `answering` finds it."""
    return answering(arguments.url, arguments.data_dir, arguments.token_file, for_long=for_long)


@contextmanager
def chosen(
    arguments: argparse.Namespace, *, for_long: bool = False
) -> Iterator[tuple[ApiClient, Run]]:
    """Yield the server, and the run that the argument names. Raises ClientError."""
    with asked(arguments, for_long=for_long) as server:
        yield server, choose(server, arguments.run)
