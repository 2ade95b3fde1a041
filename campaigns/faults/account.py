"""Reads spools and databases into one form, to find missing, doubled and false records."""

from __future__ import annotations

import base64
import json
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from ampmon import wire
from ampmon.spool import spools
from ampmon.spool.reader import SpoolReader
from ampmon_server.model.aggregates import scalars
from ampmon_server.model.aggregates.updates import ROWS
from ampmon_server.store.pages.pages import unpack
from attempts import BEGIN, read_on


# Event kinds that report a fault: a training without a fault has none.
TELLING = {"dropped", "thinned", "spool", "error"}


@dataclass
class Account:
    """The records of one attempt, each reduced to what identifies it."""

    seqs: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    updates: dict[int, tuple[float, float]] = field(default_factory=dict)
    skips: set[int] = field(default_factory=set)
    samples: set[int] = field(default_factory=set)
    events: Counter[str] = field(default_factory=Counter)
    scalars: dict[tuple[int, str], float | None] = field(default_factory=dict)
    dropped: int = 0

    @property
    def finished(self) -> bool:
        return self.events["finish"] > 0

    @property
    def lost(self) -> int:
        """The number of missing seqs before each stream's last record."""
        return sum(max(seqs) + 1 - len(set(seqs)) for seqs in self.seqs.values())

    def leave_out(self, payload: bytes) -> None:
        """Do not expect a record that is too large: its seq is a hole. An update with a sample arrives without it."""
        record = wire.decode(payload)
        assert isinstance(record, wire.Update | wire.Event | wire.Scalars)
        if isinstance(record, wire.Update) and wire.without_samples(record) is not None:
            self.samples.discard(record.ordinal)
            return
        self.seqs[record.stream].remove(record.seq)
        if isinstance(record, wire.Update):
            del self.updates[record.ordinal]
            self.skips.discard(record.ordinal)
        elif isinstance(record, wire.Scalars):
            for name in record.values:
                del self.scalars[record.ordinal, name]
        else:
            self.events -= Counter([record.kind])


def waiting(directory: Path) -> bool:
    """Whether any spool in the directory has undelivered records."""
    return any(any(path.glob("*.seg")) for path in spools(directory))


def set_aside(directory: Path) -> list[bytes]:
    """The records that a server rejected."""
    files = [path / "rejected" for path in spools(directory)]
    lines = [line for file in files if file.exists() for line in file.read_bytes().splitlines()]
    return [base64.b64decode(json.loads(line)["record"]) for line in lines]


def of_spool(path: Path) -> Account:
    """The records of a spool, read from its beginning as a sender does."""
    account = Account()
    for payload in read_on(SpoolReader(path, BEGIN))[0]:
        _add(account, wire.decode(payload))
    return account


def _add(account: Account, record: wire.Header | wire.Record) -> None:
    assert not isinstance(record, wire.AttemptHeader | wire.StreamHeader)
    account.seqs[record.stream].append(record.seq)
    if isinstance(record, wire.Update):
        account.updates[record.ordinal] = (record.scale, record.scale_after)
        if any(step.skipped for step in record.optimizers):
            account.skips.add(record.ordinal)
        if record.gradients is not None:
            account.samples.add(record.ordinal)
    elif isinstance(record, wire.Scalars):
        for name, value in record.values.items():
            account.scalars[record.ordinal, name] = value
    else:
        account.events[record.kind] += 1
        if record.kind == "dropped":
            account.dropped += record.detail["count"]


def of_database(path: Path, attempt_id: UUID) -> tuple[Account, dict[str, object]]:
    """The stored records of an attempt, the only one of its run, and the run's row: empty if nothing is stored."""
    account = Account()
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        database.row_factory = sqlite3.Row
        found = database.execute(
            "SELECT run_id FROM attempts WHERE attempt_id = ?", [attempt_id.bytes]
        ).fetchone()
        if found is None:
            return account, {}
        key = [found["run_id"]]

        def rows(table: str) -> Iterable[sqlite3.Row]:
            return database.execute(f"SELECT * FROM {table} WHERE run_id = ?", key)

        names = {row["stream"]: row["scaler"] for row in rows("streams")}
        for row in rows("ledger"):
            held = range(row["first_seq"], row["last_seq"] + 1)
            account.seqs[names[row["stream"]]] += held
        for page in rows("update_pages"):
            held = unpack(page["data"], ROWS)
            for step, *scales in held[["step", "scale", "scale_after"]].tolist():
                account.updates[step] = (scales[0], scales[1])
            account.samples.update(held["step"][held["sampled"] == 1].tolist())
        account.skips = {row["step"] for row in rows("skips")}
        for row in rows("events"):
            account.events[row["kind"]] += 1
        for page in rows("scalar_pages"):
            logged = unpack(page["data"], scalars.ROWS)[["step", "value"]].tolist()
            account.scalars |= {(step, page["name"]): value for step, value in logged}
        return account, dict(next(iter(rows("runs"))))
