"""Reads the TOML file that configures alerts. It holds passwords, so it must be private to its owner."""

from __future__ import annotations

import importlib.util
import os
import stat
import sys
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from ampmon_server.alerting.targets import Alerts, BadTarget, check


EXTRA_MISSING = "alerts need Apprise: pip install 'ampmon[alerts]'"
_BYTES_MAX = 256 * 1024


class BadAlerts(ValueError):
    """An alerts file cannot be used. The message says why and where, in one line without secrets."""


def read(path: Path, public_url: str | None = None) -> Alerts:
    """Read and check an alerts file. ``public_url``, if given, replaces the file's own. Raises BadAlerts."""
    if importlib.util.find_spec("apprise") is None:
        raise BadAlerts(EXTRA_MISSING)
    try:
        alerts = msgspec.toml.decode(_text(path), type=Alerts)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadAlerts(f"{path}: {error}") from None
    if public_url is not None:
        alerts = msgspec.structs.replace(alerts, public_url=public_url)
    if alerts.public_url is not None:
        alerts = msgspec.structs.replace(alerts, public_url=_address(path, alerts.public_url))
    names = [target.name for target in alerts.targets]
    for number, target in enumerate(alerts.targets, 1):
        if names.count(target.name) > 1:
            raise BadAlerts(f"{path}: two targets are called {target.name!r}")
        try:
            check(target, allow_private=alerts.allow_private)
        except BadTarget as problem:
            raise BadAlerts(f"{path}: target {number}, {target.name!r}: url: {problem}") from None
    return alerts


def _text(path: Path) -> bytes:
    """Raise BadAlerts if the file is unreadable or too large, or if others can read it: it holds passwords."""
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            text = file.read(_BYTES_MAX + 1)
    except OSError as error:
        raise BadAlerts(f"{path}: {error.strerror}") from None
    if os.name == "posix" and not _is_private(status):
        raise BadAlerts(f"{path} holds passwords and others may read it: chmod 600 {path}")
    if len(text) > _BYTES_MAX:
        raise BadAlerts(f"{path} is larger than {_BYTES_MAX} bytes")
    return text


def _is_private(status: os.stat_result) -> bool:
    """Whether only the owner can read the file. Its group may too if root owns it and the server is not root."""
    given = sys.platform != "win32" and status.st_uid == 0 and os.geteuid() != 0
    return not stat.S_IMODE(status.st_mode) & (0o037 if given else 0o077)


def _address(path: Path, given: str) -> str:
    if not _is_page(given):
        raise BadAlerts(
            f"{path}: public_url must be the page's address, such as https://ampmon.example.org"
        )
    return given.rstrip("/")


def _is_page(given: str) -> bool:
    try:
        parts = urlsplit(given)
        named = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:  # brackets without an address in them, or a port that is no number
        return False
    return bool(named) and not parts.query and not parts.fragment
