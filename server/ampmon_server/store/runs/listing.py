"""The list of runs: which of them, in which order, from where on. Reads the runs' own rows only.

What changes with each batch has no index: it would be written with each, and ten thousand rows are sorted in 20 ms.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal

import orjson
from sqlalchemy import ColumnElement, Connection, and_, case, cast, func, or_, select, tuple_

from ampmon_server.store.engine.engine import now_us
from ampmon_server.store.engine.errors import BadQuery
from ampmon_server.store.engine.paging import Paged
from ampmon_server.store.runs.runs import SUMMARY_COLUMNS, Status, Summary, summary
from ampmon_server.store.schema.tables import key_text, runs


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
"""``skipped`` is the share of updates that were, ``severity`` that of the worst finding."""

GROUPS_MAX = 1000
"""So many projects and tags are offered, at most."""

_ESCAPES, _APART = {r"\\": "\x01", r"\"": "\x02"}, "\x03"
"""Characters that JSON writes otherwise, so that it has none of them."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which runs, and in which order; None is any. Of each word in ``search`` a name, project, owner or tag has a part.

    Letters from A to Z are found in either case. Runs that ``sort`` alike, or have nothing to sort by, come last,
    newest first.
    """

    project: str | None = None
    status: Status | None = None
    tag: str | None = None
    search: str = ""
    archived: bool = False
    sort: Sort = "started"
    ascending: bool = False
    projects: Collection[str] | None = None
    """Those of which anything may be shown."""

    @property
    def is_newest_first(self) -> bool:
        return self.sort == "started" and not self.ascending

    @property
    def is_indexed(self) -> bool:
        """Whether the indices say which runs these are and, within a project or not, in which order."""
        filtered = self.search or self.tag is not None or self.status is not None
        return not filtered and self.sort == "started"


@dataclass(frozen=True, slots=True)
class ListedRuns(Paged[Summary]):
    """A page of the list, and how many runs the whole of it has."""

    total: int


@dataclass(frozen=True, slots=True)
class Groups:
    """What runs can be filtered by: their projects and tags, each with how many have it."""

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
    """Runs, newest first unless ``wanted`` says otherwise; a cursor is for those. Raises BadQuery."""
    now, wanted = now_us(), wanted or Wanted()
    table, conditions = runs.c, _conditions(wanted, now)
    counted = select(func.count()).select_from(runs).where(*conditions)
    # A search goes over all texts of all runs: one statement counts what it finds, unless it begins in the middle.
    at_once = bool(wanted.search) and cursor is None and not offset
    total = 0 if at_once else connection.scalar(counted) or 0
    if cursor is not None:
        conditions.append(_after(cursor, wanted, offset))
    # Ids first: what is sorted is then small.
    columns = [table.run_id, *([func.count().over()] if at_once else [])]
    picked = select(*columns).where(*conditions).order_by(*_order(wanted, now))
    found = connection.execute(picked.limit(limit + 1).offset(offset)).all()
    ids = [row[0] for row in found]
    if at_once and found:
        total = found[0][1]
    shown = {run_id: place for place, run_id in enumerate(ids[:limit])}
    rows = list(connection.execute(select(*SUMMARY_COLUMNS).where(table.run_id.in_(shown))))
    rows.sort(key=lambda row: shown[row.run_id])
    following = None
    if len(ids) > limit and wanted.is_newest_first:
        following = f"{rows[-1].started}-{rows[-1].run_id.hex()}"
    return ListedRuns([summary(row, now) for row in rows], following, total)


def read_groups(
    connection: Connection, *, archived: bool = False, within: Collection[str] | None = None
) -> Groups:
    """The projects and tags of runs, in order of their names; of the runs ``within`` some projects, if given."""
    table = runs.c
    number = func.count()
    projects = connection.execute(
        select(table.project, number)
        .where(*_listed(archived, indexed=True), *_within(within))
        .group_by(table.project)
        .limit(GROUPS_MAX)
    )
    tagged = connection.execute(
        select(table.tags, number)
        .where(*_listed(archived, indexed=False), *_within(within), table.tags != "[]")
        .group_by(table.tags)
    )
    tags: dict[str, int] = {}
    for together, runs_with in tagged:
        for tag in dict.fromkeys(orjson.loads(together)):
            tags[tag] = tags.get(tag, 0) + runs_with
    named = sorted(tuple(row) for row in projects)
    return Groups(dict(named), dict(sorted(tags.items())[:GROUPS_MAX]))


def _listed(archived: bool, *, indexed: bool) -> list[ColumnElement[bool]]:
    """That the list shows a run.

    A sum has no index: SQLite would look up each run in the order of one, ten times as slow as to read them all.
    """
    table = runs.c
    if indexed:
        return [table.deleted == 0, table.archived == int(archived)]
    return [2 * table.deleted + table.archived == int(archived)]


def _within(projects: Collection[str] | None) -> list[ColumnElement[bool]]:
    """That a run is of one of these projects; nothing where all will do."""
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
        # Unlike LIKE, `replace` respects case on every engine. Most runs need no more than the first.
        quoted = orjson.dumps(wanted.tag).decode()
        conditions.append(func.replace(table.tags, quoted, "") != table.tags)
        tags, one = _tags(), f"{_APART}{_unquoted(wanted.tag)}{_APART}"
        conditions.append(func.replace(tags, one, "") != tags)
    return conditions + [_has(word) for word in wanted.search.split()]


def _has(word: str) -> ColumnElement[bool]:
    table = runs.c
    named = (_contains(each, word) for each in (table.name, table.project, table.owner))
    # What is in no tag's JSON is in no tag: that is said sooner.
    somewhere = _contains(table.tags, orjson.dumps(word).decode()[1:-1])
    return or_(*named, and_(table.tags != "[]", somewhere, _contains(_tags(), _unquoted(word))))


def _tags() -> ColumnElement[str]:
    """A run's tags, where it has any, with what no tag has before and after each, in the place of what JSON has there.

    Left without escapes, every quote begins or ends a tag; so, from the first on, '","' is what stands between two.
    """
    tags = runs.c.tags
    listed: ColumnElement[str] = func.substr(tags, 2, func.length(tags) - 2)
    for escape, instead in _ESCAPES.items():
        listed = func.replace(listed, escape, instead)
    return func.replace('",' + listed + ',"', '","', _APART)


def _unquoted(tag: str) -> str:
    """A tag, or a part of one, as it stands in `_tags`."""
    text = orjson.dumps(tag).decode()[1:-1]
    for escape, instead in _ESCAPES.items():
        text = text.replace(escape, instead)
    return text


def _contains(text: ColumnElement[str], part: str) -> ColumnElement[bool]:
    """That it has this part, in either case."""
    return _small(text).contains(part.encode().lower().decode(), autoescape=True)


def _small(text: ColumnElement[str]) -> ColumnElement[str]:
    """Text to be sorted and found by, with A to Z in lower case: for other letters each database has its own rules."""
    return func.lower(cast(text, key_text()))


def _order(wanted: Wanted, now: int) -> list[ColumnElement[Any]]:
    table = runs.c
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
        raise BadQuery("cursor", "it goes with the newest first, and with no offset")
    started, _, run_id = cursor.partition("-")
    key = (int(started), bytes.fromhex(run_id))
    return tuple_(runs.c.started, runs.c.run_id) < tuple_(*key)
