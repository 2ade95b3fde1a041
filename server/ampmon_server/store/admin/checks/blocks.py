"""Checks blocks of samples against their checksums, the steps in their keys, and one another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from sqlalchemy import Connection, Row, Table, select

from ampmon_server.model.series import Ints
from ampmon_server.store.admin.checks.finding import RESTORE, Defect, in_order
from ampmon_server.store.engine.errors import Damaged
from ampmon_server.store.pages import packing
from ampmon_server.store.samples import totals
from ampmon_server.store.schema.tables import (
    gradient_blocks,
    gradient_totals,
    headers,
    module_blocks,
)
from ampmon_server.store.streams.scalers import unpack_modules, unpack_parameters


_AT_ONCE = 64
"""Blocks read by one statement. A block may hold several megabytes."""


def check(connection: Connection, run_id: bytes, where: str) -> Iterator[Defect]:
    """Yield blocks that cannot be read, hold other steps than their key, or overlap another of their attempt."""
    sampled: dict[Table, dict[tuple[int, int], list[Ints]]] = {}
    for table, steps_of in _STEPS.items():
        found = sampled.setdefault(table, {})
        before: dict[tuple[int, int], int] = {}
        for row in in_order(connection, table, run_id, _AT_ONCE):
            place = f"{where}, {table.name}, stream {row.stream}, steps {row.first_step} to {row.last_step}"
            key = row.stream, row.attempt
            try:
                steps = steps_of(row.data)
            except (Damaged, ValueError) as error:
                yield Defect(place, str(error), RESTORE)
                continue
            if not _lies(row, steps):
                yield Defect(place, "its steps differ from its key", RESTORE)
            elif row.first_step <= before.get(key, -1):
                yield Defect(place, "it overlaps the block before it", RESTORE)
            before[key] = max(before.get(key, -1), row.last_step)
            found.setdefault(key, []).append(steps)
    yield from _paired(sampled, where)
    yield from _headers(connection, run_id, where)


def _lies(row: Row[Any], steps: Ints) -> bool:
    return (
        len(steps) == row.samples > 0
        and (int(steps[0]), int(steps[-1])) == (row.first_step, row.last_step)
        and bool((np.diff(steps) > 0).all())
    )


def _steps_of_block(data: bytes) -> Ints:
    return packing.stack_from_bytes(data).steps


def _steps_of_totals(data: bytes) -> Ints:
    steps: Ints = totals.samples_from_bytes([data])["step"]
    return steps


_STEPS: dict[Table, Callable[[bytes], Ints]] = {
    gradient_blocks: _steps_of_block,
    gradient_totals: _steps_of_totals,
    module_blocks: _steps_of_block,
}


def _paired(
    sampled: dict[Table, dict[tuple[int, int], list[Ints]]], where: str
) -> Iterator[Defect]:
    """Yield attempts with samples in only one of the two tables: per parameter, and summed over parameters.

    Steps before the later start of the two are ignored, because pruning may cut the tables at different blocks.
    """
    blocks, sums = sampled[gradient_blocks], sampled[gradient_totals]
    for stream, attempt in sorted(blocks.keys() | sums.keys()):
        one, other = (
            np.concatenate([np.zeros(0, np.int64), *each.get((stream, attempt), [])])
            for each in (blocks, sums)
        )
        alone = np.setxor1d(one, other)
        first = max((each[0] for each in (one, other) if len(each)), default=0)
        alone = alone[alone >= first] if len(one) and len(other) else alone
        if len(alone):
            place = f"{where}, stream {stream}, attempt {attempt}, step {alone[0]}"
            what = f"{len(alone)} samples are in only one of gradient_blocks and gradient_totals"
            yield Defect(place, what, RESTORE)


def _headers(connection: Connection, run_id: bytes, where: str) -> Iterator[Defect]:
    table = headers.c
    for row in connection.execute(
        select(table.stream, table.attempt, table.parameters, table.modules).where(
            table.run_id == run_id
        )
    ):
        try:
            unpack_parameters(row.parameters)
            unpack_modules(row.modules)
        except (Damaged, ValueError) as error:
            place = f"{where}, stream {row.stream}, attempt {row.attempt}, its header"
            yield Defect(place, str(error), RESTORE)
