"""Lists runs with filters, sorting and paging. Reads only the runs' own rows.

Columns that change with each batch have no index, because each batch would have to update it. Sorting ten thousand rows
without one takes 20 ms.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

import msgspec
import orjson
from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    LargeBinary,
    String,
    Text,
    and_,
    case,
    cast,
    func,
    or_,
    select,
    tuple_,
)

from ampmon_server.store.engine.engine import WHERE, as_store_errors, now_us
from ampmon_server.store.engine.errors import BadQuery, Unreadable
from ampmon_server.store.engine.numbers import decode_texts
from ampmon_server.store.engine.rows import Paged, checked, sound
from ampmon_server.store.runs.runs import Status, Summary, read_streams, summary
from ampmon_server.store.schema.tables import key_text, runs
from ampmon_server.store.streams.state import SUMMARY_COLUMNS, RunState


Sort = Literal[
    "started",
    "name",
    "project",
    "owner",
    "status",
    "ranks",
    "updates",
    "scale",
    "skipped",
    "subnormal",
    "severity",
]
"""``skipped`` sorts by the fraction of skipped updates, ``severity`` by the worst finding."""

GROUPS_MAX = 1000
"""The most projects, and the most tags, offered as filters."""


_ESCAPES, _APART = {r"\\": "\x01", r"\"": "\x02"}, "\x03"
"""Replacements for JSON escapes, and a separator. JSON escapes these characters, so they never occur in its text."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Filters and order of a list of runs. None is any.

    A run matches ``search`` if each word is part of its name, project, owner or a tag. A to Z match in either case.
    Runs without a value to sort by come last. Runs that sort alike come newest first.
    """

    project: str | None = None
    status: Status | None = None
    tag: str | None = None
    search: str = ""
    archived: bool = False
    sort: Sort = "started"
    ascending: bool = False
    projects: Collection[str] | None = None
    """The projects that the caller may see."""

    @property
    def is_newest_first(self) -> bool:
        return self.sort == "started" and not self.ascending

    @property
    def is_indexed(self) -> bool:
        """Whether an index yields these runs in order, within a project or not."""
        filtered = self.search or self.tag is not None or self.status is not None
        return not filtered and self.sort == "started"


@dataclass(frozen=True, slots=True)
class ListedRuns(Paged[Summary]):
    """A page of the list, and the total number of runs in the list."""

    total: int


@dataclass(frozen=True, slots=True)
class Groups:
    """The projects and tags to filter runs by, each with its number of runs."""

    projects: dict[str, int]
    tags: dict[str, int]


def read_page(
    connection: Connection,
    wanted: Wanted | None = None,
    *,
    limit: int = 100,
    offset: int = 0,
    cursor: str | None = None,
) -> ListedRuns:
    """Return a page of runs, newest first unless ``wanted`` has another order.

    Raises BadQuery for a ``cursor`` with another order or with an ``offset``.
    """
    now, wanted = now_us(), wanted or Wanted()
    table, conditions = runs.c, _conditions(wanted, now)
    counted = select(func.count()).select_from(runs).where(*conditions)
    # A search scans the texts of all runs, so count in the same statement. That works only for the first page.
    at_once = bool(wanted.search) and cursor is None and not offset
    total = 0 if at_once else connection.scalar(counted) or 0
    if cursor is not None:
        conditions.append(_after(cursor, wanted, offset))
    # Select ids first, so that the sorted rows are small.
    columns = [table.run_id, *([func.count().over()] if at_once else [])]
    picked = select(*columns).where(*conditions).order_by(*_order(wanted, now))
    found = connection.execute(picked.limit(limit + 1).offset(offset)).all()
    ids = [row[0] for row in found]
    if at_once and found:
        total = found[0][1]
    rows = _summaries(connection, ids[:limit], now)
    following = None
    if len(ids) > limit and wanted.is_newest_first:
        following = f"{rows[-1].started}-{UUID(rows[-1].run_id).hex}"
    return ListedRuns(rows, following, total)


_NUMBERS = tuple(
    column
    for column in SUMMARY_COLUMNS
    # The share of the monitor is unknown without the names of the scalers.
    if not isinstance(column.type, String) and column.name != "duration_us"
)


def _summaries(connection: Connection, run_ids: Sequence[bytes], now: int) -> list[Summary]:
    """The summaries of runs, in this order. If the row or the streams of a run are damaged, its name says so."""
    try:
        # The savepoint, because PostgreSQL rejects all statements after one that failed.
        with as_store_errors(connection.engine), connection.begin_nested():
            found = connection.execute(select(*SUMMARY_COLUMNS).where(runs.c.run_id.in_(run_ids)))
            rows = {row.run_id: checked(SUMMARY_COLUMNS, row) for row in found}
            streams = read_streams(connection, run_ids)
            return [summary(rows[run_id], streams[run_id], now) for run_id in run_ids]
    except Unreadable:
        if len(run_ids) > 1:
            return [each for run_id in run_ids for each in _summaries(connection, [run_id], now)]
        row = connection.execute(select(*_NUMBERS).where(runs.c.run_id == run_ids[0])).one()
        shown = {"project": "", "name": f"Unreadable{WHERE}", "owner": "", "tags": "[]"}
        return [summary(RunState(**{**shown, "started": 0, **sound(_NUMBERS, row)}), [], now)]


def read_groups(
    connection: Connection, *, archived: bool = False, within: Collection[str] | None = None
) -> Groups:
    """Return the projects and tags of runs in order of their names, without damaged ones.

    ``within`` limits the runs to some projects.
    """
    table = runs.c
    number = func.count()
    projects = connection.execute(
        select(_undecoded(table.project), number)
        .where(*_listed(archived, indexed=True), *_within(within))
        .group_by(table.project)
        .limit(GROUPS_MAX)
    )
    tagged = connection.execute(
        select(_undecoded(table.tags), number)
        .where(*_listed(archived, indexed=False), *_within(within), table.tags != "[]")
        .group_by(table.tags)
    )
    named: dict[str, int] = {}
    for project, runs_in in projects:
        with suppress(UnicodeDecodeError, AttributeError):  # not UTF-8, or null
            named[project if isinstance(project, str) else project.decode()] = runs_in
    tags: Counter[str] = Counter()
    for together, runs_with in tagged:
        with suppress(msgspec.DecodeError):
            tags.update(dict.fromkeys(decode_texts(together), runs_with))
    return Groups(dict(sorted(named.items())), dict(sorted(tags.items())[:GROUPS_MAX]))


def _undecoded(column: Column[str]) -> ColumnElement[Any]:
    """A text, as bytes on SQLite: there its driver would raise an error for one that is damaged."""
    return cast(column, LargeBinary().with_variant(Text(), "postgresql"))


def _listed(archived: bool, *, indexed: bool) -> list[ColumnElement[bool]]:
    """The condition that the list shows a run.

    Without ``indexed`` it is a sum, which no index covers. Otherwise SQLite would look up each run in index order, ten
    times slower than reading them all.
    """
    table = runs.c
    if indexed:
        return [table.deleted == 0, table.archived == int(archived)]
    return [2 * table.deleted + table.archived == int(archived)]


def _within(projects: Collection[str] | None) -> list[ColumnElement[bool]]:
    """The condition that a run belongs to one of these projects, or no condition for all projects."""
    return [] if projects is None else [runs.c.project.in_(projects)]


def _conditions(wanted: Wanted, now: int) -> list[ColumnElement[bool]]:
    table, status = runs.c, wanted.status
    conditions = _listed(wanted.archived, indexed=wanted.is_indexed or wanted.project is not None)
    if wanted.project is not None:
        conditions.append(table.project == wanted.project)
    conditions += _within(wanted.projects)
    if status is not None:
        conditions.append(table.state == ("running" if status == "silent" else status))
    if status in {"running", "silent"}:
        heard = table.silent_after >= now
        conditions.append(heard if status == "running" else ~heard)
    if wanted.tag is not None:
        # Unlike LIKE, `replace` is case-sensitive on every engine. The first condition already rejects most runs.
        quoted = orjson.dumps(wanted.tag).decode()
        conditions.append(func.replace(table.tags, quoted, "") != table.tags)
        tags, one = _tags(), f"{_APART}{_unquoted(wanted.tag)}{_APART}"
        conditions.append(func.replace(tags, one, "") != tags)
    return conditions + [_has(word) for word in wanted.search.split()]


def _has(word: str) -> ColumnElement[bool]:
    table = runs.c
    named = (_contains(each, word) for each in (table.name, table.project, table.owner))
    # Search the raw JSON of all tags first: that is faster, and rejects most runs.
    somewhere = _contains(table.tags, orjson.dumps(word).decode()[1:-1])
    return or_(*named, and_(table.tags != "[]", somewhere, _contains(_tags(), _unquoted(word))))


def _tags() -> ColumnElement[str]:
    """A run's tags as text, if it has any, with the separator `_APART` before and after each tag.

    Once the escapes are replaced, every quote begins or ends a tag. So '","' occurs only between two tags.
    """
    tags = runs.c.tags
    listed: ColumnElement[str] = func.substr(tags, 2, func.length(tags) - 2)
    for escape, instead in _ESCAPES.items():
        listed = func.replace(listed, escape, instead)
    return func.replace('",' + listed + ',"', '","', _APART)


def _unquoted(tag: str) -> str:
    """A tag, or part of one, as it appears in `_tags`."""
    text = orjson.dumps(tag).decode()[1:-1]
    for escape, instead in _ESCAPES.items():
        text = text.replace(escape, instead)
    return text


def _contains(text: ColumnElement[str], part: str) -> ColumnElement[bool]:
    """The condition that a text contains this part, in either case."""
    # `bytes.lower` changes A to Z alone, as both databases do.
    return _small(text).contains(part.encode().lower().decode(), autoescape=True)


def _small(text: ColumnElement[str]) -> ColumnElement[str]:
    """Text for sorting and searching, with only A to Z in lower case: databases disagree about other letters."""
    return func.lower(cast(text, key_text()))


def _order(wanted: Wanted, now: int) -> list[ColumnElement[Any]]:
    table = runs.c
    # The sum keeps SQLite off the index, in whose order it would look up each run: see `_listed`.
    started: ColumnElement[int] = table.started if wanted.is_indexed else table.started + 0
    newest: list[ColumnElement[Any]] = [started.desc(), table.run_id.desc()]
    if wanted.is_newest_first:
        return newest
    if wanted.sort == "started":
        return [started, table.run_id]
    by = _sorted_by(wanted.sort, now)
    return [by.is_(None), by if wanted.ascending else by.desc(), *newest]


def _sorted_by(sort: Sort, now: int) -> ColumnElement[Any]:
    table = runs.c
    if sort in {"name", "project", "owner"}:
        return _small(table[sort])
    if sort == "status":
        silent = and_(table.state == "running", table.silent_after < now)
        order = {"running": 0, "crashed": 2, "finished": 3}
        return case((silent, 1), else_=case(order, value=table.state))
    if sort == "skipped":
        return table.skipped * 1.0 / func.nullif(table.updates, 0)
    if sort == "severity":
        judged = case((table.verdict.is_(None), None), else_=0)
        return case({"notice": 1, "warning": 2, "critical": 3}, value=table.severity, else_=judged)
    return table[{"subnormal": "subnormal_fraction"}.get(sort, sort)]


def _after(cursor: str, wanted: Wanted, offset: int) -> ColumnElement[bool]:
    if not wanted.is_newest_first or offset:
        raise BadQuery("cursor", "it needs the sort order newest first, and no offset")
    started, _, run_id = cursor.partition("-")
    key = (int(started), bytes.fromhex(run_id))
    return tuple_(runs.c.started, runs.c.run_id) < tuple_(*key)
