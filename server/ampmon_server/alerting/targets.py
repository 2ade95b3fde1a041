"""The TOML file that configures alerts, and their targets: Apprise URLs, of which only a few kinds are allowed.

The file holds passwords, so it must be private to its owner.
"""

from __future__ import annotations

import importlib.util
import os
import re
import stat
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated
from urllib.parse import unquote_plus, urlsplit

import msgspec

from ampmon.errors import ConfigurationError
from ampmon.system.installing import install
from ampmon.wire import Severity
from ampmon_server.model.thresholds import RANKS


_SERVICES = """
    dingtalk discord feishu flock gchat lark mailgun opsgenie pagerduty pbul pover sendgrid signl4 slack spike splunk
    squadcast tgram twilio wecombot workflows wxteams zulip
"""
_OWN = "form gotify json mailto matrix mmost ntfy rocket signal xml"

ENCRYPTED = frozenset(_SERVICES.split()) | {f"{each}s" for each in _OWN.split()}
"""URL schemes that reach their service over TLS. All others may run programs, write files or send plain text."""

PLAIN = frozenset(_OWN.split())
"""Unencrypted schemes, for receivers in your own network."""

_READS = ("attach", "include", "pem", "pgp", "redirect", "smime", "template", "wkd")
"""Options with these prefixes make Apprise read a file, fetch an address, or follow one."""

_BYTES_MAX = 256 * 1024

Name = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_.@+-]{1,64}\Z")]
_Seconds = Annotated[int, msgspec.Meta(ge=0, le=86_400)]


class Target(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A destination for findings of severity ``least`` or worse, of ``projects`` or, if that is None, of all."""

    name: Name
    url: str
    least: Severity = "warning"
    projects: frozenset[str] | None = None

    def __repr__(self) -> str:  # without the URL, which holds a password
        return f"Target({self.name!r})"

    @property
    def scheme(self) -> str:
        return self.url.partition(":")[0].lower()

    def wants(self, project: str, severity: Severity) -> bool:
        known = self.projects is None or project in self.projects
        return known and RANKS[severity] <= RANKS[self.least]


class After(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Seconds that a finding of each severity must last before it is sent."""

    notice: _Seconds = 600
    warning: _Seconds = 120
    critical: _Seconds = 0


class AlertPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits: no message about a finding for ``cool_down_s`` after its end, ``hourly`` messages an hour to a target."""

    after_s: After = After()
    cool_down_s: _Seconds = 900
    hourly: Annotated[int, msgspec.Meta(ge=1, le=3600)] = 20


class Alerts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a server sends alerts. ``public_url`` is the address of the page; without it, messages have no links.

    ``allow_private`` allows addresses in your own network and unencrypted targets.
    """

    targets: Annotated[tuple[Target, ...], msgspec.Meta(min_length=1, max_length=64)]
    policy: AlertPolicy = AlertPolicy()
    public_url: str | None = None
    allow_private: bool = False

    def wanting(self, project: str, severity: Severity) -> list[Target]:
        return [target for target in self.targets if target.wants(project, severity)]


def check(target: Target, *, allow_private: bool) -> None:
    """Raise ConfigurationError, without the secret parts of its URL, if messages may not go to the target.

    Checks the URL only and makes no connection.
    """
    allowed = ENCRYPTED | PLAIN if allow_private else ENCRYPTED
    if target.scheme not in allowed:
        if target.scheme in PLAIN:
            raise ConfigurationError(
                f"{target.scheme}:// is not encrypted: write {target.scheme}s://, or allow_private = true "
                "for a receiver in your own network"
            )
        raise ConfigurationError(
            f"its scheme is none of {', '.join(f'{each}://' for each in sorted(allowed))}"
        )
    try:
        urlsplit(target.url)
    except ValueError:
        raise ConfigurationError("it is not a valid URL") from None
    for name, value in _options(target.url):
        # Not the name itself: it may be the rest of a password with a `#`.
        for reads in filter(name.startswith, _READS):
            raise ConfigurationError(
                f"options that begin with {reads!r} are not allowed on a server"
            )
        weakens = name == "verify" or (name, value) == ("mode", "insecure")
        if weakens and not allow_private:
            raise ConfigurationError(
                f"its option {name!r} would turn off TLS or its certificate check"
            )


def _options(url: str) -> Iterator[tuple[str, str]]:
    """Yield the options in lower case, wherever Apprise may find some: also after `#` or `;`, and amid spaces."""
    for pair in re.split("[?&;#]", url)[1:]:
        name, _, value = pair.partition("=")
        yield unquote_plus(name).strip().lower(), unquote_plus(value).strip().lower()


# -- the file ----------------------------------------------------------------------------------------------------------


def read(path: Path, public_url: str | None = None) -> Alerts:
    """Read and check an alerts file. ``public_url``, if given, replaces the file's own. Raises ConfigurationError."""
    if importlib.util.find_spec("apprise") is None:
        raise ConfigurationError(f"alerts need Apprise: {install('alerts')}")
    try:
        alerts = msgspec.toml.decode(_text(path), type=Alerts)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        # The only choice in the file is `least`. msgspec does not name the choices.
        choices = "; write critical, warning or notice" if "enum value" in str(error) else ""
        raise ConfigurationError(f"{path}: {error}{choices}") from None
    page = alerts.public_url if public_url is None else public_url
    if page is not None:
        alerts = msgspec.structs.replace(alerts, public_url=_address(path, page))
    names = [target.name for target in alerts.targets]
    for number, target in enumerate(alerts.targets, 1):
        if names.count(target.name) > 1:
            raise ConfigurationError(f"{path}: two targets are called {target.name!r}")
        try:
            check(target, allow_private=alerts.allow_private)
        except ConfigurationError as problem:
            raise ConfigurationError(
                f"{path}: target {number}, {target.name!r}: url: {problem}"
            ) from None
    return alerts


def _text(path: Path) -> bytes:
    """Raise ConfigurationError if the file is unreadable or too large, or if others can read it: it holds passwords."""
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            text = file.read(_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from None
    if os.name == "posix" and not _is_private(status):
        raise ConfigurationError(f"{path} holds passwords and others may read it: chmod 600 {path}")
    if len(text) > _BYTES_MAX:
        raise ConfigurationError(f"{path} is larger than {_BYTES_MAX} bytes")
    return text


def _is_private(status: os.stat_result) -> bool:
    """Whether only the owner can read the file. Its group may too if root owns it and the server is not root."""
    given = sys.platform != "win32" and status.st_uid == 0 and os.geteuid() != 0
    return not stat.S_IMODE(status.st_mode) & (0o037 if given else 0o077)


def _address(path: Path, given: str) -> str:
    with suppress(ValueError):  # brackets without an address in them, or a port that is no number
        parts = urlsplit(given)
        named = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
        if named and not parts.query and not parts.fragment:
            return given.rstrip("/")
    raise ConfigurationError(
        f"{path}: public_url must be the page's address, such as https://ampmon.example.org"
    )
