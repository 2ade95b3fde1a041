"""Imports of exported files, in every format that can be imported."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ampmon import wire
from ampmon_server.exchange.exported import Exported, tables_of
from ampmon_server.exchange.formats import TABLES, Table
from ampmon_server.exchange.logs import CannotImport
from ampmon_server.http.decoding import decode_batch
from ampmon_server.store import Store
from batches import Trainer, adversarial, statistics


Export = Callable[..., Path]
Held = tuple[Path, Store]


def taken_back(store: Store, files: list[Path]) -> UUID:
    """Import files into the same store and return the new run's id."""
    (run_id,) = {
        (batch.run_id, store.ingest(batch))[0]
        for batch in Exported(tables_of(files), "again", "tests").batches()
    }
    return run_id


def headers(trainer: Trainer) -> tuple[wire.Header, ...]:
    """A trainer's headers, with parameters of 80 elements, as many as its samples look at."""
    small = tuple(wire.Parameter(name, (10, 8), "float16") for name in ("a.weight", "b.weight"))
    return trainer.attempt, msgspec.structs.replace(trainer.stream, parameters=small)


def a_run(store: Store) -> UUID:
    """A resumed run with skips, samples, non-finite values and events."""
    first = Trainer()
    records = [
        first.event("init"),
        *first.updates(20, skipped=[3, 17], sampled=[0, 4, 19]),
        first.scalars({"loss": 2.5, "lr": 0.1}),
        first.update(scale=float("inf"), event="manual_set", scale_after=1024.0),
        first.scalars({"loss": None}, kinds={"loss": "nan"}),
        first.update(skipped=True, loss="not_finite", origin="forward", origin_module=1),
        first.update(skipped=True, loss="not_finite", origin="input"),
        first.update(skipped=True, loss="overflowed"),
        first.update(skipped=True, optimizers=_two_optimizers()),
        first.event("state_loaded", stream="scaler", scale=1.5),
        *first.updates(16),
    ]
    store.ingest(first.batch(records, headers=headers(first)))
    again = Trainer(run_id=first.run_id, resume_step=30)
    more = [again.event("init"), *again.updates(25, skipped=[5], sampled=[0, 9])]
    more.append(again.event("finish"))
    store.ingest(again.batch(more, headers=headers(again)))
    return first.run_id


def _two_optimizers() -> tuple[wire.OptimizerStep, ...]:
    return tuple(
        wire.OptimizerStep(
            optimizer=name,
            path="unscaled",
            skipped=True,
            culprits=(wire.Culprit(index, 1, None),),
            culprit_parameters=1,
        )
        for index, name in enumerate(("generator", "critic"))
    )


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "arrow"])
def test_an_export_comes_back_bit_for_bit(held: Held, written: Export, kind: str) -> None:
    """An exported and imported run exports the same bytes again, for every table but the numbers of events."""
    _, store = held
    run_id = a_run(store)
    files = [written(store, what, kind, run_id) for what in TABLES]
    back = taken_back(store, files)

    for what, file in zip(TABLES, files, strict=True):
        assert file.stat().st_size
        before, after = (
            re.sub(r'"seq":\d+', "", written(store, what, "jsonl", each).read_text())
            for each in (run_id, back)
        )
        assert after == before, what
        same = written(store, what, kind, back).read_bytes() == file.read_bytes()
        assert same or what == "events"


def test_scalers_and_starts_keep_their_order(held: Held, written: Export) -> None:
    """Two scalers and a start in the middle of the one before come back with their samples, values and end."""
    _, store = held
    first, batch = adversarial([1.0] * 6, skipped=[3])
    sampled = [
        msgspec.structs.replace(each, gradients=statistics(seed=index).to_wire())
        if isinstance(each, wire.Update) and index % 3 == 0
        else each
        for index, each in enumerate(batch.records)
    ]
    named = {"generator": "a generator"}  # its name comes before that of the first scaler
    renamed = [
        msgspec.structs.replace(each, stream=named.get(each.stream, each.stream))
        for each in sampled
    ]
    streams = [
        msgspec.structs.replace(each, stream=name, parameters=headers(first)[1].parameters)
        for each, name in zip(batch.headers[1:], (first.scaler, "a generator"), strict=True)
    ]
    store.ingest(
        msgspec.structs.replace(batch, records=tuple(renamed), headers=(batch.headers[0], *streams))
    )
    for begins, updates in ((20, 8), (10, 5)):
        again = Trainer(run_id=first.run_id, resume_step=begins)
        records = [*again.updates(updates, sampled=[1, 3]), again.event("finish")]
        store.ingest(again.batch(records, headers=headers(again)))

    back = taken_back(store, [written(store, what, "jsonl", first.run_id) for what in TABLES])
    before, after = (store.run(each)[0] for each in (first.run_id, back))
    assert (after.status, after.sampled_updates) == ("finished", before.sampled_updates)
    for what in ("updates", "samples", "scalars", "skips"):
        rows = [
            written(store, what, "jsonl", each).read_text().splitlines()
            for each in (first.run_id, back)
        ]
        assert sorted(rows[0]) == sorted(rows[1]), what


def test_a_growth_beside_a_missing_row_says_nothing_of_the_interval(
    held: Held, written: Export
) -> None:
    """The interval comes from growths whose update before is there: not from a first row, nor after a lost record."""
    _, store = held
    trainer = Trainer()
    grow = {"event": "grow", "scale_after": 2048.0, "growth_tracker": 0}
    clean = [{"growth_tracker": count} for count in range(1, 5)]
    made = [grow, *clean, grow, *clean]
    records = [trainer.update(**fields) for fields in made]  # type: ignore[arg-type]
    records.append(trainer.update(ordinal=12, **grow))  # type: ignore[arg-type]
    store.ingest(trainer.batch(records))
    back = taken_back(store, [written(store, "updates", "jsonl", trainer.run_id)])
    assert store.policy(back).growth_interval == 5


def test_values_of_several_ranks_are_not_mixed(held: Held, written: Export) -> None:
    """Of a name that two ranks logged, the lowest rank's values come back. A name of the other rank does too."""
    _, store = held
    first = Trainer(world_size=2)
    other = Trainer(run_id=first.run_id, rank=1, world_size=2)
    for rank, each in enumerate((first, other)):
        records = [each.update(), each.scalars({"loss": float(rank), f"of {rank}": 1.0})]
        store.ingest(each.batch([*records, *each.updates(3)]))

    back = taken_back(store, [written(store, what, "jsonl", first.run_id) for what in TABLES])
    names = {each.name: each.value for each in store.scalar_names(back)}
    assert names == {"loss": 0.0, "of 0": 1.0, "of 1": 1.0}
    assert store.run(back)[0].lost_records == 0


def test_missing_rows_are_not_losses(held: Held, written: Export) -> None:
    """Rows that are not exported, or that a resume redid, do not make the imported run lose records."""
    _, store = held
    logged = Trainer()
    records: list[wire.Record] = []
    for _ in range(20):
        records += [logged.update(), logged.scalars({"loss": 1.0})]
    records += [logged.event("state_loaded", stream="scaler"), logged.event("finish")]
    store.ingest(logged.batch(records))
    first = Trainer()
    redone = [*first.updates(20), first.event("state_loaded", stream="scaler")]
    store.ingest(first.batch(redone))
    again = Trainer(run_id=first.run_id, resume_step=10)
    store.ingest(again.batch([*again.updates(15), again.event("finish")]))

    for run_id, tables in ((logged.run_id, ("updates", "events")), (first.run_id, TABLES)):
        back = taken_back(store, [written(store, what, "jsonl", run_id) for what in tables])
        before, after = (store.run(each)[0] for each in (run_id, back))
        assert (after.updates, after.status, after.lost_records) == (before.updates, "finished", 0)
        kinds = [[row.kind for row in store.events(each).rows] for each in (run_id, back)]
        assert sorted(kinds[0]) == sorted(kinds[1])


def test_a_start_that_was_wholly_redone_keeps_its_number(held: Held, written: Export) -> None:
    """A start whose updates a later one did again comes back with its events, and the later one with its number."""
    _, store = held
    first = Trainer()
    store.ingest(first.batch([first.event("init"), *first.updates(10)]))
    for steps in (5, 20):
        again = Trainer(run_id=first.run_id, resume_step=8)
        records = [again.event("init"), *again.updates(steps), again.event("state_loaded")]
        store.ingest(again.batch(records))
    back = taken_back(store, [written(store, what, "jsonl", first.run_id) for what in TABLES])

    attempts = [store.run(each)[0].attempts for each in (first.run_id, back)]
    assert attempts == [3, 3]
    for what in ("updates", "events"):
        rows = [
            [
                json.loads(row)
                for row in written(store, what, "jsonl", each).read_text().splitlines()
            ]
            for each in (first.run_id, back)
        ]
        found = [[(row["attempt"], row["step"], row.get("kind")) for row in each] for each in rows]
        redone = {(1, 8, "resume")}  # the server writes it with an update at that step
        assert set(found[0]) - set(found[1]) == (redone if what == "events" else set())


def test_a_scaler_may_have_events_and_no_update(held: Held, written: Export) -> None:
    """The events of a scaler that never updated are imported with the updates of another."""
    _, store = held
    trainer, batch = adversarial([1.0] * 3)
    only = [each for each in batch.records if each.stream != "generator"]
    other = next(each.stream for each in batch.records if each.stream != trainer.scaler)
    kept = [each for each in only if each.stream == trainer.scaler]
    noticed = wire.Event(stream=other, seq=0, time=1, kind="lint", detail={"rule": "no_step"})
    store.ingest(msgspec.structs.replace(batch, records=(*kept, noticed)))
    files = [written(store, what, "jsonl", trainer.run_id) for what in ("updates", "events")]
    kinds = [row.kind for row in store.events(taken_back(store, files)).rows]
    assert kinds == ["lint"]


def imported(files: list[Path]) -> Exported | str:
    """Read files, or return why they are rejected."""
    try:
        return Exported(tables_of(files), "again", "tests")
    except CannotImport as refused:
        return str(refused)


VALUES = st.one_of(
    st.none(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=3),
    st.lists(st.integers(-1, 2), max_size=3),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=1),
)


@pytest.mark.parametrize("what", ["updates", "scalars"])
def test_a_scaler_whose_name_cannot_be_printed_is_refused(
    held: Held, written: Export, what: Table
) -> None:
    """The error names the file, before any batch."""
    _, store = held
    files = {each: written(store, each, "jsonl") for each in TABLES if each != "events"}
    rows = [json.loads(line) for line in files[what].read_text().splitlines()]
    rows[0]["scaler"] = "\x1f"
    files[what].write_text("".join(f"{json.dumps(each)}\n" for each in rows))
    assert str(files[what]) in str(imported([*files.values()]))


@given(data=st.data())
@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_edit_of_an_export_is_imported_or_refused(
    held: Held, written: Export, data: st.DataObject
) -> None:
    """With one value of one row changed, a server stores the run, or the error names the file before any batch."""
    _, store = held
    files = {what: written(store, what, "jsonl") for what in TABLES if what != "events"}
    file = files[data.draw(st.sampled_from(sorted(files)))]
    rows: list[dict[str, Any]] = [json.loads(line) for line in file.read_text().splitlines()]
    row = data.draw(st.sampled_from(rows))
    row[data.draw(st.sampled_from(sorted(row)))] = data.draw(VALUES)
    file.write_text("".join(f"{json.dumps(each)}\n" for each in rows))
    exported = imported([*files.values()])
    if isinstance(exported, str):
        assert str(file) in exported
    else:
        for batch in exported.batches():
            store.ingest(decode_batch(wire.encode(batch)))


@given(data=st.data())
@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_damage_to_a_file_is_survived(held: Held, written: Export, data: st.DataObject) -> None:
    """A file with overwritten bytes, or cut short, is read or named. Reading does not end the process."""
    _, store = held
    kind = data.draw(st.sampled_from(["jsonl", "parquet", "arrow"]))
    file = written(store, "updates", kind)
    whole = bytearray(file.read_bytes())
    for place in data.draw(st.lists(st.integers(0, len(whole) - 1), max_size=8)):
        whole[place] = data.draw(st.integers(0, 255))
    file.write_bytes(whole[: data.draw(st.integers(0, len(whole)))])
    exported = imported([file])
    assert isinstance(exported, Exported) or str(file) in exported or not file.stat().st_size


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("text.jsonl", "hello\n", "line 1 is not a JSON object"),
        ("number.jsonl", "3\n", "line 1 is not a JSON object"),
        ("text.parquet", "hello", "the file is damaged"),
        ("empty.arrow", "", "the file is damaged"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, name: str, content: str, why: str) -> None:
    """A file that is no export inside is rejected with its path and the reason."""
    file = tmp_path / name
    file.write_text(content)
    with pytest.raises(CannotImport, match=why) as refused:
        tables_of([file])
    assert str(file) in str(refused.value)


def test_files_of_two_runs_are_no_run(held: Held, written: Export) -> None:
    """Skips of a scaler that has no update are rejected."""
    _, store = held
    runs = [Trainer(), Trainer(scaler="other")]
    for each in runs:
        store.ingest(each.batch(each.updates(5, skipped=[2])))
    tables = zip(("updates", "skips"), runs, strict=True)
    files = [written(store, what, "jsonl", each.run_id) for what, each in tables]
    with pytest.raises(CannotImport, match="no update is of the scaler 'other'"):
        Exported(tables_of(files), "again", "tests")


def test_rows_that_are_there_twice_are_refused(held: Held, written: Export, tmp_path: Path) -> None:
    """A file with the updates of two exports, one behind the other, is rejected."""
    _, store = held
    trainer = Trainer()
    store.ingest(trainer.batch(trainer.updates(5, sampled=[2])))
    updates, samples = (
        written(store, what, "jsonl", trainer.run_id) for what in ("updates", "samples")
    )
    twice = tmp_path / "twice.jsonl"
    twice.write_bytes(2 * updates.read_bytes())
    with pytest.raises(CannotImport, match="step 0 of scaler 'scaler' is there twice"):
        Exported(tables_of([twice, samples]), "again", "tests")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"scale": "high"}, "line 1: scale: Expected float | null, got str"),
        ({"step": -1}, "line 1: step: Expected int >= 0"),
        ({"event": "up"}, "line 1: event: Invalid enum value 'up'"),
        ({"path": "by hand"}, "line 1: path: Expected str matching regex"),
    ],
)
def test_an_edited_row_is_named(
    held: Held, written: Export, change: dict[str, object], why: str
) -> None:
    """A value that a column cannot hold is rejected with its file, its line, its column and the reason."""
    _, store = held
    file = written(store, "updates", "jsonl")
    first, *others = file.read_text().splitlines(keepends=True)
    file.write_text(json.dumps(json.loads(first) | change) + "\n" + "".join(others))
    with pytest.raises(CannotImport) as refused:
        Exported(tables_of([file]), "again", "tests")
    assert str(refused.value).startswith(f"{file}: {why}")


def test_what_is_no_export_is_refused(held: Held, written: Export, tmp_path: Path) -> None:
    """Files with other columns, and rows without their updates, are rejected with a reason."""
    _, store = held
    other = tmp_path / "other.jsonl"
    other.write_text('{"step": 1}\n')
    with pytest.raises(CannotImport, match="its columns do not match"):
        tables_of([other])
    updates = written(store, "updates", "jsonl")
    with pytest.raises(CannotImport, match="pass one file of each table"):
        tables_of([updates, updates])
    with pytest.raises(CannotImport, match="no file has exported updates"):
        tables_of([written(store, "skips", "jsonl")])
