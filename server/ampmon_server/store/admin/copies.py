"""Copies of a database, whichever engine it is: taken beside running servers, and put back without them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from sqlalchemy import make_url

from ampmon_server.settings import Settings
from ampmon_server.store.admin import copying, dumping
from ampmon_server.store.admin.copying import Tell
from ampmon_server.store.engine import engine, postgresql


__all__ = ["Restored", "Tell", "back_up", "name_of", "restore"]


@dataclass(frozen=True, slots=True)
class Restored:
    """``aside`` is where what was there before is now; with ``older`` no server takes it until it is upgraded."""

    database: str
    aside: Path | None
    older: bool


def name_of(settings: Settings) -> Path:
    """A name for a copy that is made now. Raises Unusable."""
    end = "db" if engine.is_file(settings.url) else "dump"
    return Path(f"ampmon-{_now()}.{end}")


def back_up(settings: Settings, target: Path, tell: Tell) -> None:
    """Copy the database to a file; ``tell`` is given what is done of it, and all. Raises Unusable."""
    if engine.is_file(settings.url):
        copying.back_up(_file(settings), target, tell)
    else:
        dumping.back_up(make_url(settings.url), target)


def restore(settings: Settings, copy: Path, tell: Tell) -> Restored:
    """Put a copy back, while no server uses the database. Raises Unusable, with nothing changed."""
    if not engine.is_file(settings.url):
        url = make_url(settings.url)
        schema = dumping.restore(copy, url)
        return Restored(postgresql.place(url), None, schema.age == "older")
    file = _file(settings)
    aside = copying.restore(copy, file, file.with_name(f"{file.name}.{_now()}"), tell)
    return Restored(str(file), aside, older=False)  # its one server upgrades it


def _file(settings: Settings) -> Path:
    return Path(make_url(settings.url).database or "")


def _now() -> str:
    return datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
