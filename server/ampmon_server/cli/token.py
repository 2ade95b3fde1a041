"""``ampmon token``: creates one-time sign-in links and manages tokens, through a running server."""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from ampmon.config import resolve, server_address
from ampmon.errors import ConfigurationError
from ampmon.identity.attempt import owner
from ampmon.system.plain import plain
from ampmon_server.cli import which
from ampmon_server.client import held_token, running
from ampmon_server.client.client import ApiClient, ClientError, RequestRefused
from ampmon_server.settings import Settings


DEFAULT_SCOPES = ("ingest", "read")
_SECONDS = {"h": 3600, "d": 24 * 3600, "w": 7 * 24 * 3600}
_LISTED = (
    ("id", "id"),
    ("name", "name"),
    ("owner", "owner"),
    ("scopes", "scopes"),
    ("projects", "projects"),
    ("created", "made"),
    ("expires", "expires"),
    ("last used", "last_used"),
    ("revoked", "revoked"),
)
"""The columns of the list: title, and field name in the server's answer."""

Result = TypeVar("Result")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="what", required=True, metavar="WHAT")
    link = add_command(commands, "link", "print a new one-time sign-in link")
    link.add_argument("--public-url", help="public address of the page (the server's address)")
    new = add_command(commands, "new", "create a token, and print it once")
    new.add_argument("name", metavar="NAME", help="name of the token")
    new.add_argument(
        "--scope",
        action="append",
        help="scope: ingest, read or admin (repeatable; ingest and read)",
    )
    new.add_argument(
        "--project", action="append", help="project that the token may access (repeatable; all)"
    )
    new.add_argument("--owner", help="owner of the runs started with the token (your login name)")
    new.add_argument("--expires", help="when the token expires: 12h, 90d, 4w (never)")
    add_command(commands, "list", "list tokens (secrets hidden)")
    revoke = add_command(commands, "revoke", "revoke a token")
    revoke.add_argument(
        "name", metavar="ID_OR_NAME", help="id or name, as `ampmon token list` shows it"
    )


def add_command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, does: str
) -> argparse.ArgumentParser:
    """Add a sub-command that queries a running server."""
    parser: argparse.ArgumentParser = commands.add_parser(name, help=does, description=does)
    which.add_server(parser, which.THE_ONE_HERE)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Run one sub-command. Return 0, or 2 with a line that says what to do if the server did not do it."""
    does = {"link": _link, "new": _new, "list": _list, "revoke": _revoke}
    try:
        print(plain(does[arguments.what](arguments), lines=True))
    except (ClientError, ConfigurationError) as problem:
        print(f"ampmon token: {problem}", file=sys.stderr)
        return 2
    if arguments.what == "new":
        print(
            "Copy the token now, it is not shown again: the server keeps only its hash.",
            file=sys.stderr,
        )
    return 0


def _link(arguments: argparse.Namespace) -> str:
    made = asked(arguments, lambda server: server.post("/login-links"))
    url = str(answered(made, arguments)["url"])
    if arguments.public_url is None:
        return url
    return f"{arguments.public_url.rstrip('/')}/{url.rpartition('/')[2]}"


def _new(arguments: argparse.Namespace) -> str:
    wanted = {
        "name": arguments.name,
        "owner": arguments.owner or owner(),
        "scopes": sorted(set(arguments.scope or DEFAULT_SCOPES)),
        "projects": arguments.project,
        "expires": _expiry(arguments.expires),
    }
    made = asked(arguments, lambda server: server.post("/tokens", wanted))
    return str(answered(made, arguments)["token"])


def _list(arguments: argparse.Namespace) -> str:
    answer = answered(asked(arguments, lambda server: server.get("/tokens")), arguments)
    rows = [[shown(name, token[name]) for _, name in _LISTED] for token in answer["tokens"]]
    return "\n".join(table([[title for title, _ in _LISTED], *rows]))


def _revoke(arguments: argparse.Namespace) -> str:
    asked(arguments, lambda server: server.delete(f"/tokens/{quote(arguments.name, safe='')}"))
    return f"{arguments.name} is revoked."


def asked(arguments: argparse.Namespace, ask: Callable[[ApiClient], Result]) -> Result:
    """Return the server's answer to the first token that it accepts. Raises ClientError and ConfigurationError."""
    options = resolve(url=arguments.url, dir=arguments.data_dir)
    settings = Settings(data_directory=options.dir, token_file=arguments.token_file)
    written = server_address(options.dir)
    # Without AMPMON_URL there is no other server to ask, whether the written address is a killed server's or not.
    here = running(settings, options) if options.named and not arguments.url else written
    url = (arguments.url or here or options.url).rstrip("/")
    tokens = _tokens(settings, options.token, at_home=url == written)
    if arguments.url:
        tokens.reverse()  # a user who names the server uses their own token first
    refusal = None
    for token in tokens:
        with ApiClient(url, token) as server:
            try:
                return ask(server)
            except RequestRefused as refused:
                if refused.status not in {401, 403}:
                    raise
                refusal = refused
    assert refusal is not None
    raise refusal


def _tokens(settings: Settings, token: str | None, *, at_home: bool) -> list[str]:
    """The tokens to try: the named file's alone, or else the data directory's and AMPMON_TOKEN. Raises ClientError.

    Any server can reject a token to get another. So only the data directory's own server (``at_home``) gets both.
    """
    if token and not settings.token_file and not at_home:
        return [token]
    file = settings.token_file or settings.data_directory / "token"
    found = [token] if token and not settings.token_file else []
    try:
        return [held_token(settings), *found]
    except (OSError, ValueError) as error:
        if found:
            return found
        why = error.strerror if isinstance(error, OSError) else "not a token"
        raise ClientError(
            f"{file}: {why}; start `ampmon serve`, name its --data-dir, or set AMPMON_TOKEN"
        ) from None


def answered(answer: bytes, arguments: argparse.Namespace) -> dict[str, Any]:
    """Decode an answer. Raises ClientError if it is not one of an ampmon server."""
    try:
        return msgspec.json.decode(answer, type=dict[str, Any])
    except msgspec.DecodeError:
        raise ClientError(f"{arguments.url}: no ampmon server answers there") from None


def _expiry(typed: str | None) -> int | None:
    """The expiry in us since the epoch, or None for never. Raises ConfigurationError."""
    if typed is None or typed == "never":
        return None
    parts = re.fullmatch(r"([1-9][0-9]{0,5})([hdw])", typed)
    if parts is None:
        raise ConfigurationError(
            f"--expires {typed}: write a number and h, d or w, such as 90d; or never"
        )
    return round((time.time() + int(parts[1]) * _SECONDS[parts[2]]) * 1e6)


def shown(name: str, value: Any) -> str:
    """Format a field of an answer for a column of a list."""
    if isinstance(value, list):
        return ",".join(value)
    if isinstance(value, int):
        return datetime.fromtimestamp(value / 1e6, timezone.utc).strftime("%Y-%m-%d %H:%M")
    if value is None:
        return {"projects": "all", "revoked": "no"}.get(name, "never")
    return str(value)


def table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Align rows in columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()
