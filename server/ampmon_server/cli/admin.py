"""``ampmon token``, ``alerts`` and ``health``: ask a running server for tokens, alerts and its state."""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from typing import Any
from urllib.parse import quote

import msgspec

from ampmon.config import resolve, server_address
from ampmon.errors import AmpmonError, ConfigurationError
from ampmon.identity.attempt import owner
from ampmon.system.plain import plain
from ampmon_server.alerting import messages
from ampmon_server.alerting.delivery import deliver, words
from ampmon_server.alerting.messages import DeliveryOutcome, trial
from ampmon_server.alerting.targets import Alerts, Target, read
from ampmon_server.client import ApiClient, ClientError, RequestRefused
from ampmon_server.client.answering import held_token, running
from ampmon_server.settings import Settings


DEFAULT_SCOPES = ("ingest", "read")
NOT_ALL, UNWELL = 1, 1
"""Exit codes if a test alert was not sent, and if a server is not ready. Docker reserves 2 for health checks."""
_SECONDS = {"h": 3600, "d": 24 * 3600, "w": 7 * 24 * 3600}

_TOKENS = "id name owner scopes projects created=made expires last_used revoked"
_ALERTS = "state severity project run=name found=title since notified=told acknowledged_by"
_TARGETS = "target=name kind min_severity=least projects waiting last_sent=sent trouble"
"""The columns of a list: each title, and the field in the server's answer if that has another name."""
_NONE = {"projects": "all", "revoked": "no", "acknowledged_by": "nobody", "trouble": "none"}


def link(arguments: argparse.Namespace) -> None:
    """Print a one-time sign-in link, at ``--public-url`` if that is named."""
    url = str(_asked(arguments, lambda server: server.post("/login-links"))["url"])
    if arguments.public_url is not None:
        url = f"{arguments.public_url.rstrip('/')}/{url.rpartition('/')[2]}"
    print(plain(url))


def new(arguments: argparse.Namespace) -> None:
    wanted = {
        "name": arguments.name,
        "owner": arguments.owner or owner(),
        "scopes": sorted(set(arguments.scope or DEFAULT_SCOPES)),
        "projects": arguments.project,
        "expires": _expiry(arguments.expires),
    }
    made = _asked(arguments, lambda server: server.post("/tokens", wanted))
    print(plain(str(made["token"])))
    print(
        "Copy the token now, it is not shown again: the server keeps only its hash.",
        file=sys.stderr,
    )


def list_tokens(arguments: argparse.Namespace) -> None:
    tokens = _asked(arguments, lambda server: server.get("/tokens"))["tokens"]
    print("\n".join(_table(_TOKENS, tokens, plain)))


def revoke(arguments: argparse.Namespace) -> None:
    name = quote(arguments.name, safe="", errors="replace")
    _asked(arguments, lambda server: server.delete(f"/tokens/{name}"))
    print(plain(f"{arguments.name} is revoked."))


def health(arguments: argparse.Namespace) -> int:
    """Return 0 if the server is ready, else 1 with a line that says why. Blocks for up to a minute."""
    try:
        path = "/healthz" if arguments.alive else "/readyz"
        _asked(arguments, lambda server: server.check(path))
    except (AmpmonError, OSError) as problem:
        print(f"ampmon health: {str(problem) or repr(problem)}", file=sys.stderr)
        return UNWELL
    print("alive" if arguments.alive else "ready")
    return 0


def list_alerts(arguments: argparse.Namespace) -> None:
    """Print the open alerts, and the targets' state for tokens that may see it."""
    alerts = _asked(arguments, lambda server: server.get("/alerts"))["alerts"]
    listed = _table(_ALERTS, alerts, messages.plain) if alerts else ["No alert is open."]
    print("\n".join(listed))
    try:
        targets = _asked(arguments, lambda server: server.get("/alerts/targets"))["targets"]
    except RequestRefused as refused:
        if refused.status not in {401, 403}:
            raise
        return  # only the scope `admin` may see the targets' status
    none = ["The server has no targets."]
    print("\n".join(["", *(_table(_TARGETS, targets, messages.plain) if targets else none)]))


def send_tests(arguments: argparse.Namespace) -> int:
    """Send a test alert to each target. Return 0, or 1 if one was not sent."""
    alerts = read(arguments.alerts, arguments.public_url)
    named = [each for each in alerts.targets if arguments.target in {None, each.name}]
    if not named:
        known = ", ".join(target.name for target in alerts.targets)
        raise ConfigurationError(f"no target is called {arguments.target!r}; there are {known}")
    outcomes = asyncio.run(_try(alerts, named))
    for target, outcome in zip(named, outcomes, strict=True):
        said = "sent"
        if outcome.trouble is not None:
            said = f"not sent: {words(outcome.trouble, outcome.status)}"
        print(f"{target.name} ({target.scheme}): {said}")
    return NOT_ALL if any(outcome.trouble for outcome in outcomes) else 0


async def _try(alerts: Alerts, targets: list[Target]) -> list[DeliveryOutcome]:
    url, private = alerts.public_url, alerts.allow_private
    tried = (deliver(each, trial(each.name, url), allow_private=private) for each in targets)
    return await asyncio.gather(*tried)


def _asked(
    arguments: argparse.Namespace, ask: Callable[[ApiClient], bytes | None]
) -> dict[str, Any]:
    """Return the server's answer to the first token that it accepts. Raises ClientError and ConfigurationError."""
    options = resolve(url=arguments.url, dir=arguments.data_dir)
    settings = Settings(data_directory=options.dir, token_file=arguments.token_file)
    written = server_address(options.dir)
    # Without AMPMON_URL there is no other server to ask, whether the written address is a killed server's or not.
    here = running(settings, options.token) if options.named and not arguments.url else written
    url = (arguments.url or here or options.url).rstrip("/")
    tokens = _tokens(settings, options.token, at_home=url == written)
    if arguments.url:
        tokens.reverse()  # a user who names the server uses their own token first
    refusal = None
    for token in tokens:
        with ApiClient(url, token) as server:
            try:
                return msgspec.json.decode(ask(server) or b"{}", type=dict[str, Any])
            except msgspec.DecodeError:
                raise ClientError(f"{url}: no ampmon server answers there") from None
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
    found = [token] if token and not settings.token_file else []
    try:
        advice = "start `ampmon serve`, pass its --data-dir or --token-file, or set AMPMON_TOKEN"
        return [held_token(settings, advice), *found]
    except ClientError:
        if not found:
            raise
        return found


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


def _table(
    columns: str, rows: Sequence[dict[str, Any]], clean: Callable[[str], str]
) -> Iterator[str]:
    """Align the rows of an answer in columns below their titles."""
    named = [each.partition("=") for each in columns.split()]
    titles = [title.replace("_", " ") for title, _, _ in named]
    fields = [name or title for title, _, name in named]
    cells = [[clean(_cell(field, row[field])) for field in fields] for row in rows]
    widths = [max(map(len, column)) for column in zip(titles, *cells, strict=True)]
    for line in (titles, *cells):
        padded = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        yield "  ".join(padded).rstrip()


def _cell(name: str, value: Any) -> str:
    if isinstance(value, list):
        return ",".join(value)
    if isinstance(value, int) and name != "waiting":
        return datetime.fromtimestamp(value / 1e6, timezone.utc).strftime("%Y-%m-%d %H:%M")
    return _NONE.get(name, "never") if value is None else str(value)
