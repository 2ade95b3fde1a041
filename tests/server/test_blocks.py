"""Blocks of samples in the store: few, disjoint, complete and protected against damage."""

from __future__ import annotations

import random
from functools import partial
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from sqlalchemy import create_engine, select, text, update
from sqlalchemy.event import listen

from ampmon import wire
from ampmon_server.model.aggregates.merging import Cells
from ampmon_server.settings import Settings
from ampmon_server.store import ParameterPart, Store, Unreadable
from ampmon_server.store.engine import engine
from ampmon_server.store.engine.errors import Damaged
from ampmon_server.store.engine.opening import url_of
from ampmon_server.store.pages import packing
from ampmon_server.store.pages.packing import Sample, Stack
from ampmon_server.store.pages.windows import Stretch
from ampmon_server.store.samples import parameter_rollups, totals
from ampmon_server.store.samples.gradients import SAMPLES_MAX
from ampmon_server.store.samples.parameter_rollups import StreamSamples
from ampmon_server.store.schema.tables import BLOCK, gradient_blocks
from batches import Trainer, activations, statistics
from databases import provide


PACKED = {"gradient_blocks": ("totals", *BLOCK), "module_blocks": BLOCK}
TABLES = tuple(PACKED)


def record(trainer: Trainer, seed: int, parameters: int = 2) -> wire.Update:
    gradients = statistics(parameters, seed=seed).to_wire()
    return trainer.update(gradients=gradients, activations=activations(seed=seed))


def blocks(settings: Settings, table: str) -> list[tuple[int, int, int, tuple[bytes, ...]]]:
    """Attempt, first step, last step and packed columns of all blocks in order. Check each block's sample count."""
    database = create_engine(url_of(settings))
    with database.connect() as connection:
        rows = connection.execute(
            text(
                f"SELECT attempt, first_step, last_step, samples, {', '.join(PACKED[table])} "
                f"FROM {table} ORDER BY attempt, first_step"
            )
        ).all()
    database.dispose()
    for row in rows:
        assert row.samples == len(steps(row[4:])) <= SAMPLES_MAX
    return [(row.attempt, row.first_step, row.last_step, row[4:]) for row in rows]


def steps(packed: tuple[bytes, ...]) -> list[int]:
    """The steps of the samples in a block. Its sums, if it has any, are of the same ones."""
    *sums, counts, magnitudes, bins = packed
    found: list[int] = packing.stack_from_bytes((counts, magnitudes, bins)).steps.tolist()
    assert not sums or totals.samples_from_bytes(sums)["step"].tolist() == found
    return found


@pytest.mark.parametrize("size", [1, 3, 50])
def test_small_blocks_are_packed_together(settings: Settings, store: Store, size: int) -> None:
    """However many samples a batch has, all are stored in order in few blocks and can be read."""
    trainer = Trainer()
    sent = [record(trainer, seed) for seed in range(40)]
    for first in range(0, len(sent), size):
        store.ingest(trainer.batch(sent[first : first + size]))

    for table in TABLES:
        held = blocks(settings, table)
        assert [step for *_, data in held for step in steps(data)] == list(range(40))
        assert len(held) <= 40 // SAMPLES_MAX + 5
    found = store.parameters(trainer.run_id, step=33).parameters
    assert [row.histogram for row in found] == statistics(seed=33).histogram.tolist()


def test_the_newest_sample_is_looked_for_at_the_end_of_a_run(store: Store) -> None:
    """Without a last step, one read near the end of a run finds the newest sample, and one more its attempt."""
    trainer = Trainer()
    gradients = statistics().to_wire()
    store.ingest(
        trainer.batch(
            [trainer.update(gradients=gradients, ordinal=step) for step in (0, 10**5, 10**6)]
        )
    )
    asked: list[str] = []
    listen(store._engine, "before_cursor_execute", lambda *each: asked.append(each[2]))
    assert store.parameters(trainer.run_id).step == 10**6
    assert sum("SELECT gradient_blocks.attempt" in each.replace("\n", " ") for each in asked) == 2


def test_of_many_parameters_few_samples_are_held_at_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where samples have many parameters, a window does not read all of a page at its ends."""
    trainer = Trainer()
    store.ingest(trainer.batch([record(trainer, seed) for seed in range(800)]))
    read_rows, read = StreamSamples.rows, []

    def rows(of: StreamSamples, first: int, last: int) -> Cells:
        found = read_rows(of, first, last)
        read.append(len(found))
        return found

    monkeypatch.setattr(StreamSamples, "rows", rows)
    monkeypatch.setattr(parameter_rollups, "VALUES_MAX", 2 * 32)
    cells = store.parameter_series(trainer.run_id, Stretch(3, 700)).cells
    assert cells["n"].sum() == 700 - 3
    assert max(read) <= 32


def test_a_block_is_of_alike_samples(settings: Settings, store: Store) -> None:
    """A new block begins where the set of sampled parameters changes."""
    trainer = Trainer()
    for seed in range(12):
        store.ingest(trainer.batch([record(trainer, seed, parameters=1 + (seed >= 5))]))

    held = blocks(settings, "gradient_blocks")
    stacks = [packing.stack_from_bytes(data[1:]) for *_, data in held]
    assert [len(stack.parameters) for stack in stacks] == sorted(
        len(stack.parameters) for stack in stacks
    )
    assert [step for stack in stacks for step in stack.steps] == list(range(12))


@hypothesis_settings(max_examples=5, suppress_health_check=[HealthCheck.too_slow])
@given(
    starts=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 40)), min_size=1, max_size=2),
    size=st.integers(3, 9),
    seed=st.integers(0, 10),
)
def test_whatever_comes_when_is_held_once(
    starts: list[tuple[int, int]], size: int, seed: int
) -> None:
    """Batches out of order, repeated or of overlapping attempts leave disjoint, complete blocks for each attempt."""
    first = Trainer()
    with TemporaryDirectory() as directory:
        provide(Path(directory))
        settings = Settings(data_directory=Path(directory))
        store = Store.open(settings)
        for attempt, (resumed, count) in enumerate(starts):
            trainer = Trainer(first.run_id, resume_step=resumed if attempt else None)
            sent = [record(trainer, index) for index in range(count)]
            batches = [sent[index : index + size] for index in range(0, count, size)]
            batches += batches[:2]
            random.Random(seed).shuffle(batches)
            store.ingest(trainer.batch())
            for batch in batches:
                store.ingest(trainer.batch(batch))
        store.close()
        for table in TABLES:
            held = blocks(settings, table)
            for attempt, (resumed, count) in enumerate(starts):
                of = [block for block in held if block[0] == attempt]
                origin = resumed if attempt else 0
                found = [step for *_, data in of for step in steps(data)]
                assert found == list(range(origin, origin + count))
                for (_, _, last, _), (_, after, _, _) in pairwise(of):
                    assert last < after


@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), seed=st.integers(0, 3))
def test_damage_shows(place: float, bit: int, seed: int) -> None:
    """A block or totals with one flipped bit is rejected, or read unchanged if the bit carries nothing."""
    stack = Stack.of([Sample(step, step, 1.0, statistics(2, seed=seed)) for step in range(3)])
    rows = totals.total(stack, np.full(2, 80), None)
    block = packing.block_to_bytes(stack)

    def again(place: int, data: bytes) -> bytes:
        read = packing.stack_from_bytes([*block[:place], data, *block[place + 1 :]])
        return packing.block_to_bytes(read)[place]

    for whole, again_ in (
        *((each, partial(again, at)) for at, each in enumerate(block)),
        (totals.samples_to_bytes(rows), _totals_again),
    ):
        damaged = bytearray(whole)
        damaged[int(place * len(whole))] ^= 1 << bit
        try:
            read = again_(bytes(damaged))
        except Damaged:
            continue
        assert read == whole


def _totals_again(data: bytes) -> bytes:
    return totals.samples_to_bytes(totals.samples_from_bytes([data]))


@pytest.mark.engines
@pytest.mark.parametrize("fields", [("looked",), ("looked", "norm")])
@pytest.mark.parametrize("before", [b"", b"\xff\xff\xff\x7f"])
def test_damage_at_the_start_of_a_block_is_refused(
    store: Store, before: bytes, fields: tuple[str, ...]
) -> None:
    """An empty block, or one with a damaged frame, is refused whatever is read of it."""
    trainer = Trainer()
    store.ingest(trainer.batch([record(trainer, seed) for seed in range(3)]))
    with engine.writing(store._engine) as connection:
        data = connection.scalar(select(gradient_blocks.c.data))
        damaged = before and before + data[len(before) :]
        connection.execute(update(gradient_blocks).values(data=damaged))
    with pytest.raises(Unreadable, match="`ampmon db verify`"):
        store.parameter_series(trainer.run_id, part_of=lambda _: ParameterPart(range(2), fields))


def test_a_flipped_bit_in_the_middle_is_refused() -> None:
    """A flipped bit behind a frame's header raises Damaged, in any column of a block."""
    block = packing.block_to_bytes(Stack.of([Sample(0, 0, 1.0, statistics(2))]))
    for place in range(len(block)):
        damaged = [bytearray(each) for each in block]
        damaged[place][len(damaged[place]) // 2] ^= 16
        with pytest.raises(Damaged):
            packing.stack_from_bytes([*map(bytes, damaged)])
